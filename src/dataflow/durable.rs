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

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};
use differential_dataflow::{AsCollection, VecCollection};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Input as _;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::{Scope, Stream};

use crate::blocks::Blocks;
use crate::checkpoint::{ItemId, ItemUpdate};
use crate::dataflow::TIMED;
use crate::dataflow::flow::Flow;
use crate::dataflow::input::{Data, Handle};
use crate::dataflow::keeper::Keeper;
use crate::dataflow::progress::Mark;
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};

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
        let rest = (!rest.is_empty()).then(|| Box::new(rest));
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
