//! The changes of durable collections on their way into frames.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};

use foldhash::fast::RandomState;

use crate::checkpoint::{Changes, CollectionId, ItemId, ItemRef, ItemUpdate};
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{Insert, Prepared};

/// Updates of a piece. Few enough that the allocator has room for one at hand: what is much larger it takes from the system, page by
/// page, and copies when it grows.
const PIECE: usize = 1 << 10;

/// Updates in pieces.
type Pieces = Vec<Vec<ItemUpdate>>;

/// The changes of one collection that are in no frame yet.
struct Kept {
    name: String,
    id: CollectionId,
    /// By epoch.
    updates: BTreeMap<Epoch, Pieces>,
}

/// The changes of all durable collections of a worker that are in no frame yet.
#[derive(Default)]
pub(crate) struct Keeper {
    collections: RefCell<Vec<Kept>>,
    /// Bytes of items in them.
    bytes: Cell<usize>,
    /// For [`net`] alone.
    removed: RefCell<HashMap<ItemId, i64, RandomState>>,
}

impl Keeper {
    /// Adds a collection; its number.
    pub fn open(&self, name: &str) -> usize {
        let mut collections = self.collections.borrow_mut();
        collections.push(Kept { name: name.to_owned(), id: CollectionId::of(name), updates: BTreeMap::new() });
        collections.len() - 1
    }

    /// Adds a change of a collection.
    pub fn add(&self, collection: usize, epoch: Epoch, update: ItemUpdate) {
        if update.diff == 0 {
            return;
        }
        self.bytes.set(self.bytes.get() + update.len());
        let pieces = &mut self.collections.borrow_mut()[collection].updates;
        let pieces = pieces.entry(epoch).or_default();
        match pieces.last_mut().filter(|piece| piece.len() < PIECE) {
            Some(piece) => piece.push(update),
            None => {
                let mut piece = Vec::with_capacity(if pieces.is_empty() { 1 } else { PIECE });
                piece.push(update);
                pieces.push(piece);
            }
        }
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
        let mut referred: Option<HashSet<ItemRef, RandomState>> = None;
        let mut taken = vec![];
        for kept in self.collections.borrow_mut().iter_mut() {
            let rest = kept.updates.split_off(&upper);
            let mut pieces: Pieces = std::mem::replace(&mut kept.updates, rest).into_values().flatten().collect();
            let bytes: usize = pieces.iter().flatten().map(ItemUpdate::len).sum();
            self.bytes.set(self.bytes.get() - bytes);
            net(&mut pieces, &mut self.removed.borrow_mut(), |id| {
                let referred = referred.get_or_insert_with(|| inserts.clone().filter_map(Insert::item).collect());
                referred.contains(&ItemRef { collection: kept.id, id })
            });
            let changes = |updates| Changes { collection: kept.name.clone(), updates };
            taken.extend(pieces.into_iter().filter(|piece| !piece.is_empty()).map(changes));
        }
        taken
    }
}

/// Takes out what was added and removed. The item stays, as one that is there no more often, if somebody refers to it.
fn net(
    pieces: &mut Pieces,
    removed: &mut HashMap<ItemId, i64, RandomState>,
    mut is_referred: impl FnMut(ItemId) -> bool,
) {
    removed.clear();
    removed.shrink_to(8 * pieces.len() * PIECE); // a range may have been huge
    for update in pieces.iter().flatten().filter(|update| update.diff < 0) {
        *removed.entry(update.id).or_default() += update.diff;
    }
    if removed.is_empty() {
        return;
    }
    let mut any = false;
    for update in pieces.iter_mut().flatten().filter(|update| update.diff > 0) {
        if let Some(removed) = removed.get_mut(&update.id).filter(|removed| **removed < 0) {
            let both = update.diff.min(-*removed);
            update.diff -= both;
            *removed += both;
            any = true;
        }
    }
    if !any {
        return;
    }
    for piece in pieces {
        piece.retain_mut(|update| {
            if update.diff < 0
                && let Some(removed) = removed.get_mut(&update.id)
            {
                update.diff = update.diff.max(*removed);
                *removed -= update.diff;
                return update.diff != 0;
            }
            update.diff != 0 || !update.is_empty() && is_referred(update.id)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::sink::Inserted;

    fn update(id: u128, diff: i64, bytes: &'static str) -> ItemUpdate {
        ItemUpdate { id: ItemId(id), diff, bytes: Bytes::from_static(bytes.as_bytes()), rest: None }
    }

    fn refers_to(id: u128) -> Prepared {
        let item = ItemRef { collection: CollectionId::of("some"), id: ItemId(id) };
        Prepared { bytes: vec![], inserts: vec![Insert { at: 0, what: Inserted::Item { item, length: 1 } }] }
    }

    fn flat(changes: Vec<Changes>) -> Vec<ItemUpdate> {
        assert!(changes.iter().all(|changes| changes.collection == "some" && !changes.updates.is_empty()));
        changes.into_iter().flat_map(|changes| changes.updates).collect()
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
        assert_eq!(flat(keeper.take_below(3, &[])), [update(3, 1, "three"), update(4, -1, "")]);
        assert_eq!(keeper.bytes(), 5);
        assert!(keeper.take_below(3, &[]).is_empty());
        assert_eq!(flat(keeper.take_below(4, &[])), [update(3, 1, "three")]);
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
        let keeper = Keeper::default();
        keeper.open("some");
        for update in [update(1, -1, ""), update(2, 2, "two"), update(1, 1, "one"), update(2, -1, "")] {
            keeper.add(0, 1, update);
        }
        assert_eq!(flat(keeper.take_below(2, &[])), [update(2, 1, "two")]);
    }

    proptest! {
        /// Sums are those of all changes, in whatever order; and no item is both added and removed.
        #[test]
        fn sums_stay(
            updates in prop::collection::vec((1u64..4, 0u128..6, -2i64..3), 0..40),
            many in prop::bool::weighted(0.05),
        ) {
            let keeper = Keeper::default();
            keeper.open("some");
            let mut sums: BTreeMap<u128, i64> = BTreeMap::new();
            let spread = if many { 2 * PIECE as u128 } else { 1 };
            for (epoch, id, diff) in updates {
                for number in 0..spread {
                    let id = id + 6 * number;
                    keeper.add(0, epoch, update(id, diff, if diff > 0 { "item" } else { "" }));
                    *sums.entry(id).or_default() += diff;
                }
            }
            let mut taken: BTreeMap<u128, Vec<i64>> = BTreeMap::new();
            for update in flat(keeper.take_below(4, &[])) {
                prop_assert_eq!(update.is_empty(), update.diff < 0);
                taken.entry(update.id.0).or_default().push(update.diff);
            }
            for diffs in taken.values() {
                prop_assert!(diffs.iter().all(|diff| *diff < 0) || diffs.iter().all(|diff| *diff > 0));
            }
            let taken: BTreeMap<u128, i64> = taken.into_iter().map(|(id, diffs)| (id, diffs.iter().sum())).collect();
            sums.retain(|_, sum| *sum != 0);
            prop_assert_eq!(taken, sums);
            prop_assert_eq!(keeper.bytes(), 0);
        }
    }
}
