//! The card of a finished key: what is remembered of it, in a few bytes.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes};
use smallvec::{SmallVec, smallvec};

use super::key::{Key, KeyHash};
use crate::message::{Offset, SplitId};
use crate::varint;

// The layout: number dropped (u32), sides (a bit each), flags, the hash if it is the caller's own, for each side that is present
// the number of its split and its offset, and up to the end the canonical bytes of the key.
const SIDES: usize = 4;
const FLAGS: usize = SIDES + 1;
const REST: usize = FLAGS + 1;

const LATE: u8 = 1;
/// The hash is not the one of the bytes.
const OWN_HASH: u8 = 2;

/// Where a record came from.
pub(crate) type Position = (SplitId, Offset);

/// For each side, where its record came from. Mostly there are two.
pub(crate) type BySide = SmallVec<[Option<Position>; 2]>;

/// Small numbers for the splits that cards name. There are few splits and many cards.
#[derive(Default)]
pub(crate) struct Splits {
    numbers: BTreeMap<SplitId, u32>,
    ids: Vec<SplitId>,
}

impl Splits {
    fn number(&mut self, split: SplitId) -> u32 {
        *self.numbers.entry(split).or_insert_with(|| {
            self.ids.push(split);
            self.ids.len() as u32 - 1
        })
    }
}

/// Appends the card of a key that was finished with the records from these places, one for each side.
pub(crate) fn write(
    out: &mut Vec<u8>,
    splits: &mut Splits,
    key: &Key,
    late: bool,
    positions: impl Iterator<Item = Option<Position>>,
) {
    let start = out.len();
    out.put_bytes(0, REST);
    let (mut sides, mut flags) = (0, if late { LATE } else { 0 });
    if key.hash() != KeyHash::of(key.bytes()) {
        flags |= OWN_HASH;
        out.put_u128_le(key.hash().0);
    }
    for (side, position) in positions.enumerate() {
        let Some((split, offset)) = position else { continue };
        sides |= 1 << side;
        varint::put(splits.number(split).into(), out);
        varint::put(offset.0, out);
    }
    out[start + SIDES] = sides;
    out[start + FLAGS] = flags;
    out.extend_from_slice(key.bytes());
}

/// Counts records that came too late for the key of a card.
pub(crate) fn add_dropped(card: &mut [u8], records: usize) {
    let dropped = dropped(card).saturating_add(u32::try_from(records).unwrap_or(u32::MAX));
    card[..SIDES].copy_from_slice(&dropped.to_le_bytes());
}

/// Whether these are the bytes of a card that was not forgotten.
#[inline]
pub(crate) fn is_live(card: &[u8]) -> bool {
    card.get(SIDES).is_some_and(|sides| *sides != 0)
}

/// Marks a card as one that is not needed any more.
pub(crate) fn forget(card: &mut [u8]) {
    card[SIDES] = 0;
}

fn dropped(card: &[u8]) -> u32 {
    let mut bytes = [0; SIDES];
    bytes.copy_from_slice(&card[..SIDES]);
    u32::from_le_bytes(bytes)
}

/// A card, to be read.
#[derive(Clone, Copy)]
pub(crate) struct Card<'a> {
    bytes: &'a [u8],
    splits: &'a Splits,
}

impl<'a> Card<'a> {
    /// The card in these bytes, which is not forgotten.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], splits: &'a Splits) -> Self {
        Card { bytes, splits }
    }

    /// The sides that the key was finished with: a bit for each.
    #[inline]
    pub(crate) fn sides(self) -> u8 {
        self.bytes[SIDES]
    }

    fn has(self, flag: u8) -> bool {
        self.bytes[FLAGS] & flag != 0
    }

    pub(crate) fn is_late(self) -> bool {
        self.has(LATE)
    }

    /// How many records came too late for this key.
    pub(crate) fn dropped(self) -> u32 {
        dropped(self.bytes)
    }

    /// Where the positions begin.
    fn positions(self) -> usize {
        if self.has(OWN_HASH) { REST + size_of::<KeyHash>() } else { REST }
    }

    /// Where the records came from that the key was finished with, in the order of their sides, and the key behind them.
    fn walk(self, mut at: usize, mut position: impl FnMut(u64, u64)) -> &'a [u8] {
        const WHOLE: &str = "a card is whole";
        let mut number = || {
            let (number, length) = varint::get(&self.bytes[at..]).expect(WHOLE);
            at += length;
            number
        };
        for _ in 0..self.sides().count_ones() {
            let (split, offset) = (number(), number());
            position(split, offset);
        }
        &self.bytes[at..]
    }

    /// The canonical bytes of the key.
    #[inline]
    pub(crate) fn key_bytes(self) -> &'a [u8] {
        self.walk(self.positions(), |_, _| {})
    }

    pub(crate) fn hash(self) -> KeyHash {
        self.own_hash().unwrap_or_else(|| KeyHash::of(self.key_bytes()))
    }

    /// The hash, if it is not the one of the bytes.
    pub(crate) fn own_hash(self) -> Option<KeyHash> {
        let (hash, _) = self.bytes[REST..].split_first_chunk().filter(|_| self.has(OWN_HASH))?;
        Some(KeyHash(u128::from_le_bytes(*hash)))
    }

    pub(crate) fn key(self) -> Key {
        Key::with_hash(self.hash(), Bytes::copy_from_slice(self.key_bytes()))
    }

    /// For each of so many sides, where the record came from that the key was finished with.
    pub(crate) fn by_side(self, sides: usize) -> BySide {
        let mut positions: BySide = smallvec![None; sides];
        let mut present = (0..sides).filter(|side| self.sides() & 1 << side != 0);
        self.walk(self.positions(), |split, offset| {
            if let Some(side) = present.next() {
                positions[side] = Some((self.splits.ids[split as usize], Offset(offset)));
            }
        });
        positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_comes_back() {
        let typed = Key::builder().text("some").number("1").build();
        let own = Key::with_hash(KeyHash(7), Bytes::from_static(b"other"));
        let place = |number: u32| (SplitId::numbered("t", number), Offset(u64::MAX >> number | 1));
        let positions = [Some(place(1)), None, Some(place(30))];
        let mut splits = Splits::default();
        for key in [typed, own] {
            let mut bytes = b"before".to_vec();
            write(&mut bytes, &mut splits, &key, true, positions.into_iter());
            let bytes = &mut bytes[6..];
            add_dropped(bytes, 2);
            add_dropped(bytes, 1);
            assert!(is_live(bytes));
            let card = Card::new(bytes, &splits);
            assert_eq!((card.sides(), card.is_late(), card.dropped()), (0b101, true, 3));
            assert_eq!((card.key(), card.hash(), card.key_bytes()), (key.clone(), key.hash(), &key.bytes()[..]));
            assert_eq!(card.by_side(3)[..], positions);
            forget(bytes);
            assert!(!is_live(bytes));
        }
        assert_eq!(splits.ids.len(), 2);
    }
}
