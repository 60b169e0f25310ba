//! Numbered slots for what waits outside the trace, in chunks that are given back when they are empty.

use std::collections::VecDeque;

use crate::epoch::Epoch;

/// Slots in a chunk. Fewer: more allocations; more: one long-lived value holds more memory.
const CHUNK: usize = 512;

/// Free slots from which on a chunk is filled again. Fewer: values that arrive together are scattered over more chunks, each
/// a cache miss; more: more memory stands empty.
const ROOM: usize = CHUNK / 4;

struct Chunk<T> {
    /// Grows up to [`CHUNK`]; no memory while no slot is used.
    entries: Vec<Option<T>>,
    /// Slots that were used and may be used again.
    free: Vec<u16>,
    /// Slots with a value, and slots whose number may not be used yet.
    used: usize,
    /// It stands in the list of chunks with room.
    listed: bool,
}

/// Values by slot number.
///
/// The number of a removed value is not used again before [`Slab::release`] says so, as others may still know the value by it.
pub(crate) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks with room, the last of which is being filled.
    room: Vec<u32>,
    /// Slots that were removed, by the epoch that did it; ascending.
    retired: VecDeque<(Epoch, u32)>,
    len: usize,
    /// Chunks that hold memory.
    allocated: usize,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Slab { chunks: Vec::new(), room: Vec::new(), retired: VecDeque::new(), len: 0, allocated: 0 }
    }

    /// Puts a value into a slot that is free.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        loop {
            let Some(&number) = self.room.last() else {
                self.room.push(self.chunks.len() as u32);
                self.chunks.push(Chunk { entries: Vec::new(), free: Vec::new(), used: 0, listed: true });
                continue;
            };
            let chunk = &mut self.chunks[number as usize];
            let at = if let Some(at) = chunk.free.pop() {
                chunk.entries[usize::from(at)] = Some(value);
                usize::from(at)
            } else if chunk.entries.len() < CHUNK {
                if chunk.entries.capacity() == 0 {
                    chunk.entries.reserve_exact(CHUNK);
                    self.allocated += 1;
                }
                chunk.entries.push(Some(value));
                chunk.entries.len() - 1
            } else {
                chunk.listed = false;
                self.room.pop();
                continue;
            };
            chunk.used += 1;
            let slot = number as usize * CHUNK + at;
            return u32::try_from(slot).expect("a worker holds fewer than 2^32 keys");
        }
    }

    fn entry(&mut self, slot: u32) -> &mut Option<T> {
        &mut self.chunks[slot as usize / CHUNK].entries[slot as usize % CHUNK]
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.chunks.get(slot as usize / CHUNK)?.entries.get(slot as usize % CHUNK)?.as_ref()
    }

    /// All values, by their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let chunks = (0..).step_by(CHUNK).zip(&self.chunks);
        chunks
            .flat_map(|(first, chunk)| (first..).zip(&chunk.entries))
            .filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)))
    }

    /// Takes a value out, to be followed by [`Slab::put_back`] or [`Slab::retire`].
    pub(crate) fn take(&mut self, slot: u32) -> Option<T> {
        let value = self.entry(slot).take();
        self.len -= usize::from(value.is_some());
        value
    }

    pub(crate) fn put_back(&mut self, slot: u32, value: T) {
        let old = self.entry(slot).replace(value);
        debug_assert!(old.is_none(), "slot {slot} was taken");
        self.len += 1;
    }

    /// Gives up the number of a value that was taken out in `epoch`.
    pub(crate) fn retire(&mut self, slot: u32, epoch: Epoch) {
        debug_assert!(self.entry(slot).is_none(), "slot {slot} is in use");
        self.retired.push_back((epoch, slot));
    }

    /// Lets the slots that were retired in epochs below `bound` be used again.
    pub(crate) fn release(&mut self, bound: Epoch) {
        while let Some((_, slot)) = self.retired.front().copied().filter(|(epoch, _)| *epoch < bound) {
            self.retired.pop_front();
            let number = slot as usize / CHUNK;
            let chunk = &mut self.chunks[number];
            chunk.used -= 1;
            if chunk.used == 0 {
                chunk.entries = Vec::new();
                chunk.free = Vec::new();
                self.allocated -= 1;
            } else {
                chunk.free.push((slot as usize % CHUNK) as u16);
            }
            if !chunk.listed && CHUNK - chunk.used >= ROOM {
                chunk.listed = true;
                self.room.push(number as u32);
            }
        }
        if self.retired.is_empty() && (self.len == 0 || self.retired.capacity() > 8 * CHUNK) {
            self.retired = VecDeque::new();
        }
        if self.retired.is_empty() && self.len == 0 {
            (self.chunks, self.room) = (Vec::new(), Vec::new());
        }
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The memory held, in bytes, without what values point at.
    pub(crate) fn bytes(&self) -> usize {
        self.allocated * CHUNK * size_of::<Option<T>>()
            + self.chunks.capacity() * size_of::<Chunk<T>>()
            + self.retired.capacity() * size_of::<(Epoch, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    proptest! {
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec((0u8..4, any::<u16>()), 1..3000)) {
            let mut slab = Slab::new();
            let mut map = BTreeMap::new();
            let mut retired: BTreeSet<u32> = BTreeSet::new();
            let mut epoch = 0;
            for (step, number) in steps {
                let pick = map.keys().nth(usize::from(number) % map.len().max(1)).copied();
                match (step, pick) {
                    (0 | 1, _) => {
                        let slot = slab.insert(number);
                        prop_assert!(!retired.contains(&slot));
                        prop_assert_eq!(map.insert(slot, number), None);
                    }
                    (2, Some(slot)) => {
                        prop_assert_eq!(slab.take(slot), map.remove(&slot));
                        slab.retire(slot, epoch);
                        retired.insert(slot);
                    }
                    (3, Some(slot)) if number % 2 == 0 => {
                        let value = slab.take(slot).unwrap();
                        slab.put_back(slot, value);
                    }
                    _ => {
                        epoch += 1;
                        slab.release(epoch);
                        retired.clear();
                    }
                }
                prop_assert_eq!(slab.len(), map.len());
            }
            for (slot, value) in &map {
                prop_assert_eq!(slab.get(*slot), Some(value));
            }
        }
    }

    #[test]
    fn memory_is_given_back() {
        let mut slab = Slab::new();
        let floor = slab.bytes();
        let slots: Vec<u32> = (0..100_000u64).map(|n| slab.insert(n)).collect();
        let full = slab.bytes();
        for slot in &slots[..99_000] {
            slab.take(*slot);
            slab.retire(*slot, 1);
        }
        slab.release(2);
        assert!(slab.bytes() < full / 10, "{} of {full}", slab.bytes());
        for slot in &slots[99_000..] {
            slab.take(*slot);
            slab.retire(*slot, 2);
        }
        slab.release(3);
        assert!(slab.bytes() < floor + 64 * 1024, "{}", slab.bytes());
    }
}
