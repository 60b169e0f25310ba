//! Reading what is known about a key.

use std::cell::RefCell;
use std::rc::Rc;

use super::key::{Key, KeyHash};
use super::record::Payload;
use super::state::State;
use super::store::Store;
use crate::epoch::Epoch;
use crate::message::{Offset, SplitId};

/// What is known about the keys of this worker beyond their [`State`]s.
pub struct Details<P> {
    store: Rc<RefCell<Store<P>>>,
    sides: usize,
}

impl<P> Clone for Details<P> {
    fn clone(&self) -> Self {
        Details { store: Rc::clone(&self.store), sides: self.sides }
    }
}

/// Where a key stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The key.
    pub key: Key,
    /// Records that were dropped since the key was finished.
    pub dropped: u32,
    /// For each side, the record that is present, or was when the key was finished.
    pub sides: Vec<Option<SideDetail>>,
}

/// Where the record of a side came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideDetail {
    /// The split it was read from.
    pub split: SplitId,
    /// Its position there.
    pub offset: Offset,
    /// What is known only while the record waits.
    pub waits: Option<WaitDetail>,
}

/// How long a record has waited, and will. Times are on the job's clock, in milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitDetail {
    /// Its timestamp.
    pub timestamp: u64,
    /// The epoch of its arrival.
    pub epoch: Option<Epoch>,
    /// The clock at its arrival.
    pub clock: u64,
    /// When the time that it gives the other sides is over.
    pub deadline: u64,
}

impl<P: Payload> Details<P> {
    pub(crate) fn new(store: Rc<RefCell<Store<P>>>, sides: usize) -> Self {
        Details { store, sides }
    }

    /// What is known about the key that has this hash and this state; `None` if it has changed since. A key that was forgotten
    /// and finished again meanwhile may answer as it is now.
    ///
    /// States of other workers mean nothing here.
    pub fn get(&self, hash: KeyHash, state: State) -> Option<Detail> {
        let store = self.store.borrow();
        // Readers of the trace are behind: the slot of a key that is forgotten may be another's by now.
        if state.is_finished() {
            let card = store.card(state).filter(|card| card.hash() == hash)?;
            let side = |(split, offset)| SideDetail { split, offset, waits: None };
            let sides = card.by_side(self.sides).into_iter().map(|position| position.map(side)).collect();
            return Some(Detail { key: card.key(), dropped: card.dropped(), sides });
        }
        let open = store.open(state).filter(|open| open.key.hash() == hash)?;
        let mut sides = vec![None; self.sides];
        for part in open.held.parts() {
            let epoch = store.ages.epoch(part.arrived);
            let waits = WaitDetail { timestamp: part.timestamp, epoch, clock: part.clock, deadline: part.deadline };
            sides[usize::from(part.side)] =
                Some(SideDetail { split: part.split, offset: part.offset, waits: Some(waits) });
        }
        Some(Detail { key: open.key.key(), dropped: 0, sides })
    }
}
