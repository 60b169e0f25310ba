//! What is known of keys outside the trace, found by the slot that a state names: records that wait, and cards.

use std::collections::VecDeque;

use bytes::Bytes;

use super::card::{Card, Position};
use super::finished::Finished;
use super::key::{Key, KeyHash};
use super::record::Payload;
use super::slab::Slab;
use super::state::{Phase, State};
use super::step::Held;
use crate::epoch::Epoch;

/// A key of its own memory: those of records share buffers, which a key that waits is not to hold.
pub(crate) struct OwnKey {
    hash: KeyHash,
    bytes: Box<[u8]>,
}

impl OwnKey {
    pub(crate) fn new(key: &Key) -> Self {
        OwnKey { hash: key.hash(), bytes: key.bytes()[..].into() }
    }

    pub(crate) fn hash(&self) -> KeyHash {
        self.hash
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn key(&self) -> Key {
        Key::with_hash(self.hash, Bytes::copy_from_slice(&self.bytes))
    }
}

/// A key that waits.
pub(crate) struct Open<P> {
    pub(crate) key: OwnKey,
    pub(crate) held: Held<P>,
}

impl<P> Open<P> {
    /// The state whose slot this is.
    fn state(&self, slot: u32) -> State {
        let phase = if self.held.delayed { Phase::Delayed } else { Phase::Waiting };
        State::new(phase, false, self.held.sides, self.held.deadline, slot)
    }
}

/// A mark on the number of a slot: it is one of the finished keys. So one wheel holds the deadlines of both kinds.
const FINISHED: u32 = 1 << 31;

/// The records that wait and the cards of finished keys.
pub(crate) struct Store<P> {
    sides: usize,
    open: Slab<Open<P>>,
    finished: Finished,
    pub(crate) ages: Ages,
    /// Records that wait.
    pending: u64,
    /// Bytes of their payloads.
    payload_bytes: usize,
    /// Bytes of the keys that wait.
    key_bytes: usize,
}

const HELD: &str = "a state names a slot that holds it";

impl<P: Payload> Store<P> {
    pub(crate) fn new(sides: usize) -> Self {
        Store {
            sides,
            open: Slab::new(),
            finished: Finished::default(),
            ages: Ages::default(),
            pending: 0,
            payload_bytes: 0,
            key_bytes: 0,
        }
    }

    /// Puts a key that waits into a new slot.
    pub(crate) fn hold(&mut self, mut open: Open<P>) -> State {
        self.count_in(&mut open);
        let (phase, sides, deadline) = (open.held.delayed, open.held.sides, open.held.deadline);
        let slot = self.open.insert(open);
        State::new(if phase { Phase::Delayed } else { Phase::Waiting }, false, sides, deadline, slot)
    }

    /// Takes a key that waits out, to be followed by [`Store::put_back`] or [`Store::retire`].
    pub(crate) fn take(&mut self, state: State) -> Open<P> {
        let open = self.open.take(state.slot()).expect(HELD);
        debug_assert_eq!(open.state(state.slot()), state);
        self.pending -= u64::from(open.held.sides.count_ones());
        for part in open.held.parts() {
            self.ages.remove(part.arrived);
            self.payload_bytes -= part.payload.bytes();
        }
        self.key_bytes -= open.key.bytes.len();
        open
    }

    pub(crate) fn put_back(&mut self, state: State, mut open: Open<P>) {
        self.count_in(&mut open);
        self.open.put_back(state.slot(), open);
    }

    fn count_in(&mut self, open: &mut Open<P>) {
        self.key_bytes += open.key.bytes.len();
        self.pending += u64::from(open.held.sides.count_ones());
        let current = self.ages.current();
        for part in open.held.parts_mut() {
            if part.arrived == current {
                part.payload.detach();
            }
            self.ages.add(part.arrived);
            self.payload_bytes += part.payload.bytes();
        }
    }

    /// Remembers a finished key and where the records came from that it was finished with, one for each side.
    pub(crate) fn finish(
        &mut self,
        key: &Key,
        (phase, late, until): (Phase, bool, u64),
        positions: impl Iterator<Item = Option<Position>> + Clone,
    ) -> State {
        let sides =
            positions.clone().zip(0..).fold(0, |sides, (place, side)| sides | u8::from(place.is_some()) << side);
        State::new(phase, late, sides, until, self.finished.insert(key, late, positions))
    }

    /// Forgets a finished key.
    pub(crate) fn forget(&mut self, state: State, epoch: Epoch) {
        assert!(self.finished.forget(state.slot(), epoch), "{HELD}");
    }

    /// Gives up the slot of a key that was taken out.
    pub(crate) fn retire(&mut self, state: State, epoch: Epoch) {
        self.open.retire(state.slot(), epoch);
    }

    /// Counts records that came too late for a finished key.
    pub(crate) fn add_dropped(&mut self, state: State, records: usize) {
        assert!(self.finished.add_dropped(state.slot(), records), "{HELD}");
    }

    /// The card of the finished key that a state is of, if the state is still the one in its slot.
    pub(crate) fn card(&self, state: State) -> Option<Card<'_>> {
        self.finished.get(state.slot()).filter(|card| state.is_finished() && card.sides() == state.sides())
    }

    /// What waits in the slot of a state, if the state is still the one in its slot.
    pub(crate) fn open(&self, state: State) -> Option<&Open<P>> {
        self.open.get(state.slot()).filter(|open| open.state(state.slot()) == state)
    }

    /// The hashes and the states of all keys that wait.
    pub(crate) fn waiting(&self) -> Vec<(KeyHash, State)> {
        self.open.iter().map(|(slot, open)| (open.key.hash, open.state(slot))).collect()
    }

    /// The canonical bytes of the key that a state is of.
    pub(crate) fn key_bytes(&self, state: State) -> &[u8] {
        let waiting = || self.open(state).map(|open| &open.key.bytes[..]);
        if state.is_finished() { self.card(state).map(Card::key_bytes) } else { waiting() }.expect(HELD)
    }

    /// The mark under which the deadline of a state is set.
    pub(crate) fn ticket(state: State) -> u32 {
        debug_assert!(state.slot() < FINISHED, "a worker holds fewer than 2^31 keys");
        if state.is_finished() { state.slot() | FINISHED } else { state.slot() }
    }

    /// The state that is due, if it has not changed since its deadline was set.
    pub(crate) fn due(&self, deadline: u64, ticket: u32) -> Option<(KeyHash, State)> {
        let slot = ticket & !FINISHED;
        if ticket & FINISHED != 0 {
            // The state of a finished key never changes before its deadline.
            let card = self.finished.get(slot)?;
            let phase = if card.sides().count_ones() as usize == self.sides { Phase::Joined } else { Phase::Closed };
            return Some((card.hash(), State::new(phase, card.is_late(), card.sides(), deadline, slot)));
        }
        let open = self.open.get(slot).filter(|open| open.held.deadline == deadline)?;
        Some((open.key.hash, open.state(slot)))
    }

    /// Lets slots that were given up in epochs below `bound` be used again.
    pub(crate) fn release(&mut self, bound: Epoch) {
        self.open.release(bound);
        self.finished.release(bound);
    }

    /// Keys that have a state.
    pub(crate) fn keys(&self) -> usize {
        self.open.len() + self.finished.len()
    }

    /// Records that wait.
    pub(crate) fn pending(&self) -> u64 {
        self.pending
    }

    /// The memory held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.open.bytes() + self.finished.bytes() + self.payload_bytes + self.key_bytes + self.ages.bytes()
    }
}

/// How many records wait of each epoch, so that the oldest is known. Epochs are numbered as they are opened.
#[derive(Default)]
pub(crate) struct Ages {
    epochs: VecDeque<(Epoch, u64)>,
    /// The number of the front one.
    first: u64,
}

impl Ages {
    /// Opens an epoch, later than all before: records that arrive now get its number.
    pub(crate) fn open(&mut self, epoch: Epoch) {
        match self.epochs.back_mut() {
            Some(last) if last.1 == 0 => last.0 = epoch, // no record has its number
            _ => self.epochs.push_back((epoch, 0)),
        }
    }

    /// The number of the epoch that is open.
    pub(crate) fn current(&self) -> u64 {
        (self.first + self.epochs.len() as u64).saturating_sub(1)
    }

    fn add(&mut self, number: u64) {
        self.epochs[(number - self.first) as usize].1 += 1;
    }

    fn remove(&mut self, number: u64) {
        self.epochs[(number - self.first) as usize].1 -= 1;
    }

    /// The epoch of the record that has waited longest.
    pub(crate) fn oldest(&mut self) -> Option<Epoch> {
        while self.epochs.len() > 1 && self.epochs[0].1 == 0 {
            self.epochs.pop_front();
            self.first += 1;
        }
        if self.epochs.capacity() > 64 && self.epochs.len() < self.epochs.capacity() / 8 {
            self.epochs.shrink_to(self.epochs.capacity() / 4);
        }
        self.epochs.front().filter(|(_, waiting)| *waiting > 0).map(|(epoch, _)| *epoch)
    }

    /// The epoch with a number, if records of it wait.
    pub(crate) fn epoch(&self, number: u64) -> Option<Epoch> {
        self.epochs.get(number.checked_sub(self.first)? as usize).map(|(epoch, _)| *epoch)
    }

    fn bytes(&self) -> usize {
        self.epochs.capacity() * size_of::<(Epoch, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_epoch_is_the_first_with_a_record_left() {
        let mut ages = Ages::default();
        ages.open(10);
        let ten = ages.current();
        assert_eq!(ages.oldest(), None);
        ages.add(ten);
        ages.open(11);
        ages.open(15);
        let fifteen = ages.current();
        assert_ne!(ten, fifteen);
        ages.add(fifteen);
        ages.add(fifteen);
        assert_eq!((ages.oldest(), ages.epoch(fifteen)), (Some(10), Some(15)));
        ages.remove(ten);
        assert_eq!(ages.oldest(), Some(15));
        ages.remove(fifteen);
        ages.remove(fifteen);
        assert_eq!(ages.oldest(), None);
        ages.open(20);
        ages.add(ages.current());
        assert_eq!(ages.oldest(), Some(20));
    }
}
