//! State that survives: collections whose items are in the checkpoints.
//!
//! ```text
//! store --items--> restored (at the rebuild epoch) --+--> what the program sees
//! the program's updates ------------------------------+
//!                       \--> net changes of each range --> the frame
//! ```
//!
//! Only what goes through here survives. The state of other operators (a `reduce`, an arrangement) is gone after a restart, unless
//! it can be computed from a durable collection: restored items enter it again, all at one epoch, before anything is read. Sinks,
//! checkpoints and counters ignore what happens at that epoch: it was done before.

use std::cell::{Cell, RefCell};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};
use differential_dataflow::{AsCollection, VecCollection};
use foldhash::fast::RandomState;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Input as _;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::{Scope, Stream};

use crate::blocks::Blocks;
use crate::checkpoint::{Changes, CollectionId, ItemId, ItemRef, ItemUpdate};
use crate::dataflow::TIMED;
use crate::dataflow::flow::Flow;
use crate::dataflow::input::{Data, Handle};
use crate::dataflow::progress::Mark;
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{Insert, Prepared};

/// How the items of a durable collection are written down.
///
/// The form must not change between versions of a program: a checkpoint may be older than the program that reads it.
pub trait ItemCodec<D>: 'static {
    /// Identifies an item: those that are equal have the same id, others have another.
    fn id(&self, item: &D) -> ItemId;
    /// Appends the item to `out`. What is returned comes after it: it is shared, and need not be copied; mostly it is empty. It is
    /// asked of items that are added only.
    fn encode(&self, item: &D, out: &mut BytesMut) -> Bytes;
    /// Reads an item that was written.
    ///
    /// # Errors
    ///
    /// Bytes that no [`encode`](Self::encode) has made.
    fn decode(&self, bytes: Bytes) -> Result<D>;
}

/// Items in the form of bincode. Types whose `Deserialize` asks the format what comes (see [`Data`]) cannot be read again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bincode;

impl<D: Data> ItemCodec<D> for Bincode {
    fn id(&self, item: &D) -> ItemId {
        let mut bytes = BytesMut::new();
        self.encode(item, &mut bytes);
        ItemId(xxhash_rust::xxh3::xxh3_128(&bytes))
    }
    fn encode(&self, item: &D, out: &mut BytesMut) -> Bytes {
        bincode::serialize_into(out.writer(), item).expect("memory takes what serde knows");
        Bytes::new()
    }
    fn decode(&self, bytes: Bytes) -> Result<D> {
        let damaged = |error| Error::new(ErrorKind::Store, "an item cannot be read").with_source(error);
        bincode::deserialize(&bytes).map_err(damaged)
    }
}

/// The changes of one collection that are in no frame yet.
struct Kept {
    name: String,
    id: CollectionId,
    /// By epoch.
    updates: BTreeMap<Epoch, Vec<ItemUpdate>>,
}

/// The changes of all durable collections of a worker that are in no frame yet.
#[derive(Default)]
pub(crate) struct Keeper {
    collections: RefCell<Vec<Kept>>,
    /// Bytes of items in them.
    bytes: Cell<usize>,
    /// Where items stand among those of a frame; for `take_below` alone.
    places: RefCell<HashMap<ItemId, usize, RandomState>>,
}

impl Keeper {
    /// Adds a collection; its number.
    fn open(&self, name: &str) -> usize {
        let mut collections = self.collections.borrow_mut();
        collections.push(Kept { name: name.to_owned(), id: CollectionId::of(name), updates: BTreeMap::new() });
        collections.len() - 1
    }

    fn add(&self, collection: usize, epoch: Epoch, update: ItemUpdate) {
        self.bytes.set(self.bytes.get() + size(&update));
        self.collections.borrow_mut()[collection].updates.entry(epoch).or_default().push(update);
    }

    /// Refuses a name that is there twice: the items of one would come back in the other.
    pub fn check(&self) -> Result<()> {
        let collections = self.collections.borrow();
        let twice = |index: usize| collections[..index].iter().any(|other| other.name == collections[index].name);
        match (0..collections.len()).find(|index| twice(*index)) {
            Some(index) => {
                let text = format!("two durable collections are called \"{}\": rename one", collections[index].name);
                Err(Error::new(ErrorKind::Config, text))
            }
            None => Ok(()),
        }
    }

    /// Bytes that wait to be put into a frame.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Takes the net changes of all epochs below `upper`, and the items that came and went if what is prepared refers to them.
    pub fn take_below(&self, upper: Epoch, prepared: &[Prepared]) -> Vec<Changes> {
        let inserts = prepared.iter().flat_map(|prepared| &prepared.inserts);
        let referred: HashSet<ItemRef, RandomState> = inserts.filter_map(Insert::item).collect();
        let mut taken = vec![];
        for kept in self.collections.borrow_mut().iter_mut() {
            let rest = kept.updates.split_off(&upper);
            let epochs = std::mem::replace(&mut kept.updates, rest);
            let bytes: usize = epochs.values().flatten().map(size).sum();
            self.bytes.set(self.bytes.get() - bytes);
            let is_referred = |id| referred.contains(&ItemRef { collection: kept.id, id });
            let updates = net(epochs.into_values(), &mut self.places.borrow_mut(), is_referred);
            if !updates.is_empty() {
                taken.push(Changes { collection: kept.name.clone(), updates });
            }
        }
        taken
    }
}

/// Bytes of an item.
fn size(update: &ItemUpdate) -> usize {
    update.bytes.len() + update.rest.len()
}

/// Adds up the changes of each item. One that came and went is there only if somebody refers to it.
fn net(
    mut epochs: impl Iterator<Item = Vec<ItemUpdate>>,
    places: &mut HashMap<ItemId, usize, RandomState>,
    is_referred: impl Fn(ItemId) -> bool,
) -> Vec<ItemUpdate> {
    let mut updates = epochs.next().unwrap_or_default();
    updates.extend(epochs.flatten());
    places.clear();
    places.shrink_to(8 * updates.len() + 1024); // a range may have been huge
    for at in 0..updates.len() {
        match places.entry(updates[at].id) {
            Entry::Vacant(place) => {
                place.insert(at);
            }
            Entry::Occupied(place) => {
                let (before, after) = updates.split_at_mut(at);
                let (first, later) = (&mut before[*place.get()], &mut after[0]);
                first.diff += std::mem::take(&mut later.diff);
                let (bytes, rest) = (std::mem::take(&mut later.bytes), std::mem::take(&mut later.rest));
                if size(first) == 0 {
                    (first.bytes, first.rest) = (bytes, rest);
                }
            }
        }
    }
    updates.retain(|update| update.diff != 0 || size(update) > 0 && is_referred(update.id));
    for update in updates.iter_mut().filter(|update| update.diff < 0) {
        (update.bytes, update.rest) = (Bytes::new(), Bytes::new());
    }
    updates
}

/// Takes the restored items of one collection into the dataflow.
pub(crate) trait Restore {
    /// The name of the collection.
    fn collection(&self) -> &str;
    /// Takes an item that is there so many times.
    fn take(&mut self, times: i64, bytes: Bytes) -> Result<()>;
}

/// The restored items of one collection; those that go in come out of the handle's stream, at its time.
pub(crate) struct RestoreInput<D: Data, C> {
    name: String,
    codec: Rc<C>,
    input: Handle<(D, isize)>,
}

impl<D: Data, C: ItemCodec<D>> RestoreInput<D, C> {
    /// An input whose items enter at this epoch, and their stream.
    pub fn new<'s>(
        scope: Scope<'s, Epoch>,
        name: &str,
        codec: &Rc<C>,
        upper: Epoch,
    ) -> (Self, Stream<'s, Epoch, Vec<(D, isize)>>) {
        let (mut input, stream) = scope.new_input::<Vec<(D, isize)>>();
        input.advance_to(upper);
        (RestoreInput { name: name.to_owned(), codec: Rc::clone(codec), input }, stream)
    }
}

impl<D: Data, C: ItemCodec<D>> Restore for RestoreInput<D, C> {
    fn collection(&self) -> &str {
        &self.name
    }
    fn take(&mut self, times: i64, bytes: Bytes) -> Result<()> {
        let item = self.codec.decode(bytes).map_err(|error| {
            let text = format!("an item of the collection \"{}\" in the checkpoint cannot be read", self.name);
            Error::new(error.kind(), text).with_source(error)
        })?;
        self.input.send((item, times as isize));
        Ok(())
    }
}

/// Tells the frames of the changes of one collection.
pub(crate) struct Keeping {
    keeper: Rc<Keeper>,
    collection: usize,
    blocks: Blocks,
    changed: bool,
}

impl Keeping {
    pub(crate) fn new(keeper: &Rc<Keeper>, name: &str) -> Self {
        let keeper = Rc::clone(keeper);
        Keeping { collection: keeper.open(name), keeper, blocks: Blocks::new(BLOCK), changed: false }
    }

    /// An item is added, whose form in checkpoints `encode` makes (see [`ItemCodec::encode`]).
    pub(crate) fn add(&mut self, epoch: Epoch, id: ItemId, encode: impl FnOnce(&mut BytesMut) -> Bytes) {
        self.update(epoch, id, 1, encode);
    }

    /// An item is removed.
    pub(crate) fn remove(&mut self, epoch: Epoch, id: ItemId) {
        self.update(epoch, id, -1, |_| Bytes::new());
    }

    fn update(&mut self, epoch: Epoch, id: ItemId, diff: i64, encode: impl FnOnce(&mut BytesMut) -> Bytes) {
        let (bytes, rest) = if diff > 0 {
            let rest = encode(self.blocks.room(ROOM));
            (self.blocks.split(), rest)
        } else {
            (Bytes::new(), Bytes::new())
        };
        self.changed = true;
        self.keeper.add(self.collection, epoch, ItemUpdate { id, diff, bytes, rest });
    }

    /// Whether there was a change since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }
}

/// Keeps the updates of a collection for the frames. What comes out are marks: the epoch has something to be checkpointed.
pub(crate) fn keep<'s, D: Data, C: ItemCodec<D>>(
    updates: Stream<'s, Epoch, Vec<(D, Epoch, isize)>>,
    name: &str,
    codec: Rc<C>,
    keeper: &Rc<Keeper>,
    rebuild: Option<Epoch>,
) -> Stream<'s, Epoch, Vec<Mark>> {
    let mut keeping = Keeping::new(keeper, name);
    updates.unary::<CapacityContainerBuilder<Vec<Mark>>, _, _, _>(Pipeline, "Keep", move |_capability, _info| {
        move |input, output| {
            input.for_each(|capability, updates| {
                if Some(*capability.least().expect(TIMED)) != rebuild {
                    output.session(&capability).give(0);
                }
                for (item, epoch, diff) in updates.drain(..).filter(|(_, epoch, _)| Some(*epoch) != rebuild) {
                    keeping.update(epoch, codec.id(&item), diff as i64, |out| codec.encode(&item, out));
                }
            });
        }
    })
}

impl<'s> Flow<'s> {
    /// Whether what is durable outlives the job: there is a store.
    pub fn keeps(&self) -> bool {
        self.store.keeps()
    }

    /// The epoch at which restored items enter, if there are any.
    pub(super) fn rebuild(&self) -> Option<Epoch> {
        self.restored.any.then_some(self.restored.upper)
    }

    /// A collection that outlives the job: what it held in the last checkpoint, and these updates, which the next ones will hold.
    ///
    /// Restored items enter at one epoch, before anything is read; the updates of that epoch are ignored, so what follows from
    /// restored items alone may go in a circle. Names must differ, or the job does not start, and stay the same from version to version of a program.
    /// Without a store it is the collection itself.
    pub fn durable<D: Data, C: ItemCodec<D>>(
        &mut self,
        collection: VecCollection<'s, Epoch, D, isize>,
        name: &str,
        codec: C,
    ) -> VecCollection<'s, Epoch, D, isize> {
        let codec = Rc::new(codec);
        let Some(restored) = self.restored(name, &codec) else { return collection };
        self.keep(collection.inner.clone(), name, &codec);
        let restored = restored.unary::<CapacityContainerBuilder<Vec<(D, Epoch, isize)>>, _, _, _>(
            Pipeline,
            "Restored",
            |_capability, _info| {
                move |input, output| {
                    input.for_each(|capability, items| {
                        let epoch = *capability.least().expect(TIMED);
                        output
                            .session(&capability)
                            .give_iterator(items.drain(..).map(|(item, times)| (item, epoch, times)));
                    })
                }
            },
        );
        collection.concat(restored.as_collection())
    }

    /// The items that a durable collection held in the last checkpoint and how many times, each on some worker; none without a store.
    pub(crate) fn restored<D: Data, C: ItemCodec<D>>(
        &mut self,
        name: &str,
        codec: &Rc<C>,
    ) -> Option<Stream<'s, Epoch, Vec<(D, isize)>>> {
        if !self.store.keeps() {
            return None;
        }
        let (input, stream) = RestoreInput::new(self.scope, name, codec, self.restored.upper);
        self.restores.push(Box::new(input));
        Some(stream)
    }

    /// Who is told of the changes of a durable collection by an operator; nobody without a store. A stream with a mark for each epoch
    /// in which there were any goes into [`mark`](Self::mark).
    pub(crate) fn keeping(&self, name: &str) -> Option<Keeping> {
        self.store.keeps().then(|| Keeping::new(&self.keeper, name))
    }

    /// Epochs with such marks have something to be checkpointed.
    pub(crate) fn mark(&mut self, marks: Stream<'s, Epoch, Vec<Mark>>) {
        self.marks.push(marks);
    }

    /// Puts the updates of a durable collection into checkpoints.
    pub(super) fn keep<D: Data, C: ItemCodec<D>>(
        &mut self,
        updates: Stream<'s, Epoch, Vec<(D, Epoch, isize)>>,
        name: &str,
        codec: &Rc<C>,
    ) {
        self.marks.push(keep(updates, name, Rc::clone(codec), &self.keeper, self.rebuild()));
    }
}

/// Bytes of the blocks that items share until they are in a frame. Smaller: more allocations; larger: more is held by few.
const BLOCK: usize = 256 << 10;

/// Room for most items, so that few make a block grow.
const ROOM: usize = 2 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Inserted;

    fn update(id: u128, diff: i64, bytes: &'static str) -> ItemUpdate {
        ItemUpdate { id: ItemId(id), diff, bytes: Bytes::from_static(bytes.as_bytes()), rest: Bytes::new() }
    }

    fn refers_to(id: u128) -> Prepared {
        let item = ItemRef { collection: CollectionId::of("some"), id: ItemId(id) };
        Prepared { bytes: vec![], inserts: vec![Insert { at: 0, what: Inserted::Item { item, length: 1 } }] }
    }

    #[test]
    fn a_frame_gets_the_net_changes_of_its_epochs() {
        let keeper = Keeper::default();
        assert_eq!(keeper.open("some"), 0);
        for (epoch, id, diff, bytes) in
            [(1, 5, 1, "five"), (1, 3, 1, "three"), (3, 3, 1, "three"), (2, 5, -1, ""), (2, 4, -1, "")]
        {
            keeper.add(0, epoch, update(id, diff, bytes));
        }
        assert_eq!(keeper.bytes(), 14);
        let below = keeper.take_below(3, &[]);
        let expected = vec![update(3, 1, "three"), update(4, -1, "")];
        assert_eq!(below, [Changes { collection: "some".into(), updates: expected }]);
        assert_eq!(keeper.bytes(), 5);
        assert!(keeper.take_below(3, &[]).is_empty());
        assert_eq!(keeper.take_below(4, &[])[0].updates, [update(3, 1, "three")]);
        assert_eq!(keeper.bytes(), 0);
    }

    #[test]
    fn what_came_and_went_is_kept_for_what_refers_to_it() {
        let keeper = Keeper::default();
        keeper.open("some");
        keeper.open("other");
        for (collection, id) in [(0, 5), (0, 6), (1, 5)] {
            keeper.add(collection, 1, update(id, 1, "item"));
            keeper.add(collection, 2, update(id, -1, ""));
        }
        let taken = keeper.take_below(3, &[refers_to(7), refers_to(5)]);
        assert_eq!(taken, [Changes { collection: "some".into(), updates: vec![update(5, 0, "item")] }]);
    }

    #[test]
    fn an_item_that_is_replaced_by_itself_has_not_changed() {
        let updates = vec![update(1, -1, ""), update(2, 2, "two"), update(1, 1, "one"), update(2, -1, "")];
        assert_eq!(net([updates].into_iter(), &mut HashMap::default(), |_| false), [update(2, 1, "two")]);
    }
}
