//! The card of a key: everything that is known of it as long as it is known, in one allocation.

use bytes::Bytes;

use super::key::{Key, KeyHash};
use super::record::Entry;
use crate::message::{Offset, SplitId};

/// The canonical bytes and the hash of a key, with room for what is to be remembered once it is finished: the positions of
/// its records and how many were dropped since. There are many more finished keys than waiting ones, so it is one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card(Box<[u8]>);

// The layout: hash, number dropped, outcome (sides, flags), a position for each side, key.
const DROPPED: usize = 16;
const OUTCOME: usize = DROPPED + 4;
const POSITIONS: usize = OUTCOME + 2;
const POSITION_BYTES: usize = 16;
const LATE: u8 = 1;

/// Where a record came from.
pub(crate) type Position = (SplitId, Offset);

impl Card {
    pub(crate) fn new(sides: usize, key: &Key) -> Self {
        let front = POSITIONS + sides * POSITION_BYTES;
        let mut block = Vec::with_capacity(front + key.bytes().len());
        block.extend_from_slice(&key.hash().0.to_le_bytes());
        block.resize(front, 0);
        block.extend_from_slice(key.bytes());
        Card(block.into_boxed_slice())
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.0[at..at + N]);
        array
    }

    pub(crate) fn hash(&self) -> KeyHash {
        KeyHash(u128::from_le_bytes(self.array(0)))
    }

    /// The canonical bytes of the key.
    #[inline]
    pub(crate) fn key_bytes(&self, sides: usize) -> &[u8] {
        &self.0[POSITIONS + sides * POSITION_BYTES..]
    }

    pub(crate) fn key(&self, sides: usize) -> Key {
        Key::with_hash(self.hash(), Bytes::copy_from_slice(self.key_bytes(sides)))
    }

    /// Remembers how the key was finished, and the records that it was finished with.
    pub(crate) fn finish<'a, P: 'a>(&mut self, late: bool, entries: impl Iterator<Item = Option<&'a Entry<P>>>) {
        self.0[OUTCOME + 1] = if late { LATE } else { 0 };
        for (side, entry) in entries.enumerate() {
            let Some(entry) = entry else { continue };
            self.0[OUTCOME] |= 1 << side;
            let at = POSITIONS + side * POSITION_BYTES;
            self.0[at..at + 8].copy_from_slice(&entry.split.to_u64().to_le_bytes());
            self.0[at + 8..at + 16].copy_from_slice(&entry.offset.0.to_le_bytes());
        }
    }

    /// The sides that the key was finished with.
    pub(crate) fn sides(&self) -> u8 {
        self.0[OUTCOME]
    }

    pub(crate) fn is_late(&self) -> bool {
        self.0[OUTCOME + 1] & LATE != 0
    }

    /// Where the record of a side came from that the key was finished with.
    pub(crate) fn position(&self, side: usize) -> Option<Position> {
        let at = POSITIONS + side * POSITION_BYTES;
        let split = SplitId::from_u64(u64::from_le_bytes(self.array(at)));
        let offset = Offset(u64::from_le_bytes(self.array(at + 8)));
        (self.sides() & 1 << side != 0).then_some((split, offset))
    }

    /// Counts records that came too late for this key.
    pub(crate) fn add_dropped(&mut self, records: usize) {
        let dropped = self.dropped().saturating_add(u32::try_from(records).unwrap_or(u32::MAX));
        self.0[DROPPED..DROPPED + 4].copy_from_slice(&dropped.to_le_bytes());
    }

    /// How many records came too late for this key.
    pub(crate) fn dropped(&self) -> u32 {
        u32::from_le_bytes(self.array(DROPPED))
    }

    /// The memory behind the card, in bytes, with what an allocator adds.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len() + 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_comes_back() {
        let key = Key::builder().text("some").number("1").build();
        let mut card = Card::new(3, &key);
        assert_eq!((card.key(3), card.hash(), card.sides(), card.dropped()), (key.clone(), key.hash(), 0, 0));
        let entry = |number: u32| Entry {
            split: SplitId::numbered("t", number),
            offset: Offset(u64::from(number) << 40 | 1),
            timestamp: 0,
            payload: (),
        };
        card.finish(true, [Some(&entry(1)), None, Some(&entry(3))].into_iter());
        card.add_dropped(2);
        card.add_dropped(1);
        assert_eq!((card.sides(), card.is_late(), card.dropped()), (0b101, true, 3));
        assert_eq!(card.position(2), Some((entry(3).split, entry(3).offset)));
        assert_eq!((card.position(1), card.key(3)), (None, key));
    }
}
