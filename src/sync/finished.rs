//! The finished keys that are remembered: by far the most of all keys, so each takes as little as it can.
//!
//! Their cards stand one behind the other in chunks, as they are finished, and are forgotten in about that order.

use std::collections::VecDeque;
use std::ops::Range;

use super::card::{self, Card, Position, Splits};
use super::key::Key;
use crate::epoch::Epoch;

/// Cards in a chunk. Fewer: more allocations; more: one card that is remembered for long holds more memory.
const CHUNK: usize = 1024;

/// Bytes from which on a chunk is full, whatever the number of its cards.
const CHUNK_BYTES: usize = 256 << 10;

#[derive(Default)]
struct Chunk {
    /// Where each card begins; it ends where the next one begins. One that was forgotten may have no bytes.
    starts: Vec<u32>,
    bytes: Vec<u8>,
    /// Cards that are not forgotten.
    live: usize,
    /// Bytes of those that are.
    dead: usize,
}

impl Chunk {
    /// Where the bytes of a card are.
    fn range(&self, index: usize) -> Option<Range<usize>> {
        let start = *self.starts.get(index)? as usize;
        Some(start..self.starts.get(index + 1).map_or(self.bytes.len(), |next| *next as usize))
    }

    /// Drops the bytes of the cards that were forgotten.
    fn compact(&mut self) {
        let mut bytes = Vec::with_capacity(self.bytes.len() - self.dead);
        for index in 0..self.starts.len() {
            let range = self.range(index).unwrap_or_default();
            self.starts[index] = bytes.len() as u32;
            if card::is_live(&self.bytes[range.clone()]) {
                bytes.extend_from_slice(&self.bytes[range]);
            }
        }
        (self.bytes, self.dead) = (bytes, 0);
    }

    fn held(&self) -> usize {
        self.bytes.capacity() + self.starts.capacity() * size_of::<u32>()
    }
}

/// Cards by slot number. The number of a card that was forgotten is not used again before [`Finished::release`] says so.
#[derive(Default)]
pub(crate) struct Finished {
    chunks: Vec<Chunk>,
    /// The chunk that is being filled.
    open: Option<u32>,
    /// Chunks that may be filled anew.
    free: Vec<u32>,
    /// Chunks that were full and hold no card any more, by the epoch that forgot the last; ascending.
    retired: VecDeque<(Epoch, u32)>,
    splits: Splits,
    /// The last epoch that forgot one.
    forgot: Epoch,
    len: usize,
    /// Memory behind the chunks.
    held: usize,
}

impl Finished {
    /// Remembers a key that was finished with the records from these places, one for each side; its slot.
    pub(crate) fn insert(&mut self, key: &Key, late: bool, positions: impl Iterator<Item = Option<Position>>) -> u32 {
        let number = self.open_chunk();
        let chunk = &mut self.chunks[number as usize];
        self.held -= chunk.held();
        chunk.starts.push(chunk.bytes.len() as u32);
        card::write(&mut chunk.bytes, &mut self.splits, key, late, positions);
        chunk.live += 1;
        let slot = number as usize * CHUNK + chunk.starts.len() - 1;
        if chunk.starts.len() == CHUNK || chunk.bytes.len() >= CHUNK_BYTES {
            chunk.starts.shrink_to_fit();
            chunk.bytes.shrink_to_fit();
            self.open = None;
        }
        self.held += chunk.held();
        self.len += 1;
        u32::try_from(slot).expect("a worker holds fewer than 2^32 keys")
    }

    fn open_chunk(&mut self) -> u32 {
        let (chunks, free) = (&mut self.chunks, &mut self.free);
        *self.open.get_or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                chunks.push(Chunk::default());
                chunks.len() as u32 - 1
            })
        })
    }

    /// The chunk of a card that was not forgotten, and where it is there.
    #[inline]
    fn find(&self, slot: u32) -> Option<(usize, Range<usize>)> {
        let number = slot as usize / CHUNK;
        let chunk = self.chunks.get(number)?;
        let range = chunk.range(slot as usize % CHUNK)?;
        card::is_live(&chunk.bytes[range.clone()]).then_some((number, range))
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<Card<'_>> {
        let (number, range) = self.find(slot)?;
        Some(Card::new(&self.chunks[number].bytes[range], &self.splits))
    }

    /// Counts records that came too late for a key; whether it is remembered.
    pub(crate) fn add_dropped(&mut self, slot: u32, records: usize) -> bool {
        let Some((number, range)) = self.find(slot) else { return false };
        card::add_dropped(&mut self.chunks[number].bytes[range], records);
        true
    }

    /// Forgets a key; whether it was remembered.
    pub(crate) fn forget(&mut self, slot: u32, epoch: Epoch) -> bool {
        let Some((number, range)) = self.find(slot) else { return false };
        let chunk = &mut self.chunks[number];
        self.held -= chunk.held();
        chunk.dead += range.len();
        card::forget(&mut chunk.bytes[range]);
        chunk.live -= 1;
        if chunk.live == 0 && self.open != Some(number as u32) {
            *chunk = Chunk::default();
            self.retired.push_back((epoch, number as u32));
        } else if 2 * chunk.dead > chunk.bytes.len() {
            chunk.compact();
        }
        self.held += chunk.held();
        self.len -= 1;
        self.forgot = epoch;
        true
    }

    /// Lets slots that were given up in epochs below `bound` be used again.
    pub(crate) fn release(&mut self, bound: Epoch) {
        while let Some((_, number)) = self.retired.front().copied().filter(|(epoch, _)| *epoch < bound) {
            self.retired.pop_front();
            self.free.push(number);
        }
        if self.len == 0 && self.forgot < bound {
            *self = Finished::default();
        }
    }

    /// How many keys are remembered.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The memory held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.held
            + self.chunks.capacity() * size_of::<Chunk>()
            + self.retired.capacity() * size_of::<(Epoch, u32)>()
            + self.free.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Offset, SplitId};
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn key(number: u32, length: usize) -> Key {
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.resize(4 + length, b'x');
        Key::new(Bytes::from(bytes))
    }

    fn place(number: u32) -> Position {
        (SplitId::numbered("t", number % 7), Offset(number.into()))
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_shrink_iters: 2000, ..ProptestConfig::default() })]
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec((0u8..8, any::<u32>(), 0usize..3000), 1..4000)) {
            let mut finished = Finished::default();
            let mut map: BTreeMap<u32, (Key, u32)> = BTreeMap::new();
            let mut given_up = BTreeSet::new();
            let mut epoch = 1;
            for (step, number, length) in steps {
                // About the oldest, as it goes, or any.
                let nth = if number % 4 == 0 { number as usize } else { number as usize % 8 } % map.len().max(1);
                let pick = map.keys().nth(nth).copied();
                match (step, pick) {
                    (0..4, _) => {
                        let key = key(number, length / 10);
                        let slot = finished.insert(&key, false, [Some(place(number)), None].into_iter());
                        prop_assert!(!given_up.contains(&slot));
                        prop_assert!(map.insert(slot, (key, 0)).is_none());
                    }
                    (4..6, Some(slot)) => {
                        map.remove(&slot);
                        prop_assert!(finished.forget(slot, epoch));
                        prop_assert!(!finished.forget(slot, epoch) && !finished.add_dropped(slot, 1));
                        given_up.insert(slot);
                    }
                    (6, Some(slot)) => {
                        map.get_mut(&slot).unwrap().1 += number % 3;
                        prop_assert!(finished.add_dropped(slot, number as usize % 3));
                    }
                    (7, _) if number % 16 == 0 => {
                        epoch += 1;
                        finished.release(epoch);
                        given_up.clear();
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(finished.len(), map.len());
            prop_assert_eq!(finished.held, finished.chunks.iter().map(Chunk::held).sum::<usize>());
            for (slot, (key, dropped)) in &map {
                let card = finished.get(*slot).unwrap();
                prop_assert_eq!((&card.key(), card.dropped()), (key, *dropped));
                let number = u32::from_le_bytes(key.bytes()[..4].try_into().unwrap());
                prop_assert_eq!(&card.by_side(2)[..], &[Some(place(number)), None][..]);
            }
        }
    }

    #[test]
    fn memory_follows_the_keys_and_slots_come_back() {
        let mut finished = Finished::default();
        let mut slots: VecDeque<u32> = VecDeque::new();
        let mut most = 0;
        for number in 0..200_000u32 {
            slots.push_back(finished.insert(&key(number, 30), false, [Some(place(number))].into_iter()));
            if slots.len() > 10_000 {
                assert!(finished.forget(slots.pop_front().unwrap(), number.into()));
            }
            finished.release(number.into());
            most = most.max(finished.bytes());
        }
        assert!(most < 10_000 * 100, "{most} bytes for 10,000 keys");
        assert!(slots.iter().all(|slot| *slot < 20_000), "slots are not used again");
        // One in 500 is remembered longer than the others.
        let few: Vec<u32> = slots.iter().copied().step_by(500).collect();
        for slot in slots.drain(..).filter(|slot| !few.contains(slot)) {
            assert!(finished.forget(slot, 200_000));
        }
        assert!(finished.bytes() < 150_000, "{} bytes for {} keys", finished.bytes(), few.len());
        for slot in few {
            assert!(finished.forget(slot, 200_000));
        }
        finished.release(200_000);
        assert!(finished.bytes() > 0, "slots are used again too early");
        finished.release(200_001);
        assert_eq!((finished.len(), finished.bytes()), (0, 0));
    }

    #[test]
    fn a_huge_key_has_a_chunk_to_itself() {
        let mut finished = Finished::default();
        let places = || [None, Some(place(0))].into_iter();
        let (one, two) = (key(1, CHUNK_BYTES), key(2, 10));
        let slots = [finished.insert(&one, false, places()), finished.insert(&two, true, places())];
        assert_eq!(slots, [0, CHUNK as u32]);
        assert_eq!(slots.map(|slot| finished.get(slot).unwrap().key()), [one, two]);
    }
}
