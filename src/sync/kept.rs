//! What checkpoints keep of the keys: items, each of which never changes.
//!
//! | item | there while |
//! |---|---|
//! | a record that waits, with its payload | it waits |
//! | what is not in the records of a key that waits: that it was delayed and until when, or a cap of its deadline | so |
//! | a finished key: how, until when it is remembered, where its records came from, how many came too late | it is remembered |

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use super::card::Position;
use super::key::{Key, KeyHash};
use super::record::{Entry, Payload};
use super::state::{MAX_TIME, Phase, State};
use super::step::{Held, Part};
use super::store::{Open, Store};
use crate::checkpoint::ItemId;
use crate::dataflow::{ItemCodec, Keeping};
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Offset, SplitId};
use crate::varint;

/// An item, or only its id where it goes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Kept<P> {
    id: ItemId,
    pub(crate) item: Option<Item<P>>,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Item<P> {
    Waiting { key: Key, side: u8, split: SplitId, offset: Offset, times: WaitTimes, payload: P },
    Held { key: Key, delayed: bool, deadline: u64, cap: u64 },
    Finished { key: Key, late: bool, until: u64, dropped: u32, positions: Vec<Option<Position>> },
}

/// The times of a record that waits, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WaitTimes {
    pub(crate) timestamp: u64,
    pub(crate) clock: u64,
    pub(crate) deadline: u64,
}

impl<P> Kept<P> {
    /// The key that the item is of. An item that goes has none: it is only ever looked for by its id.
    pub(crate) fn key_hash(&self) -> KeyHash {
        self.item.as_ref().map_or(KeyHash::default(), |item| item.key().hash())
    }
}

impl<P> Item<P> {
    /// The key that it is of.
    pub(crate) fn key(&self) -> &Key {
        match self {
            Item::Waiting { key, .. } | Item::Held { key, .. } | Item::Finished { key, .. } => key,
        }
    }
}

/// How a key was finished that has records from these places, one for each side.
pub(crate) fn finished_as(positions: &[Option<Position>]) -> Phase {
    if positions.iter().all(Option::is_some) { Phase::Joined } else { Phase::Closed }
}

/// The collection of the synchronization job's keys.
pub(crate) const KEYS: &str = "keys";

/// A record is there once, whatever its key.
fn waiting_id(side: u8, (split, offset): Position) -> ItemId {
    let mut bytes = [0; 17];
    bytes[0] = side;
    bytes[1..9].copy_from_slice(&split.to_bits().to_le_bytes());
    bytes[9..].copy_from_slice(&offset.0.to_le_bytes());
    ItemId(xxh3_128(&bytes))
}

/// The seeds of the other ids.
const HELD: u64 = 1;
const FINISHED: u64 = 2;

fn keyed_id(seed: u64, key: &[u8], more: [u64; 2]) -> ItemId {
    let more = xxh3_128_with_seed(&(u128::from(more[0]) << 64 | u128::from(more[1])).to_le_bytes(), seed);
    ItemId(xxh3_128_with_seed(key, seed).rotate_left(1) ^ more)
}

fn held_id<P>(held: &Held<P>, key: &[u8]) -> Option<ItemId> {
    let tells = held.delayed || held.cap != MAX_TIME;
    tells.then(|| keyed_id(HELD, key, [held.deadline << 1 | u64::from(held.delayed), held.cap]))
}

/// Tells checkpoints of the changes of items, if there are any.
pub(crate) struct Recorder {
    keeping: Option<Keeping>,
    /// The epoch that is open.
    epoch: Epoch,
}

/// The items of a key that waits, before it is stepped: mostly a record or two.
#[derive(Default)]
pub(crate) struct Before {
    items: SmallVec<[ItemId; 2]>,
    /// Where the records of the first ones came from.
    places: SmallVec<[(u8, Position); 2]>,
}

impl Recorder {
    pub(crate) fn new(keeping: Option<Keeping>) -> Self {
        Recorder { keeping, epoch: 0 }
    }

    /// What is told from now on is of this epoch.
    pub(crate) fn open(&mut self, epoch: Epoch) {
        self.epoch = epoch;
    }

    /// Whether anything was told since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        self.keeping.as_mut().is_some_and(Keeping::take_changed)
    }

    fn is_on(&self) -> bool {
        self.keeping.is_some()
    }

    /// The items of a key that waits.
    pub(crate) fn before<P>(&self, open: Option<&Open<P>>) -> Before {
        let mut before = Before::default();
        if let Some(open) = open.filter(|_| self.is_on()) {
            for part in open.held.parts() {
                let place = (part.side, (part.split, part.offset));
                before.items.push(waiting_id(place.0, place.1));
                before.places.push(place);
            }
            if let Some(id) = held_id(&open.held, open.key.bytes()) {
                before.items.push(id);
            }
        }
        before
    }

    fn goes(&mut self, id: ItemId) {
        if let Some(keeping) = &mut self.keeping {
            keeping.remove(self.epoch, id);
        }
    }

    fn comes(&mut self, id: ItemId, encode: impl FnOnce(&mut BytesMut) -> Bytes) {
        if let Some(keeping) = &mut self.keeping {
            keeping.add(self.epoch, id, encode);
        }
    }

    /// Says of the records of an output which are items of a key that waited so, by side.
    pub(crate) fn refer<'e, P: 'e>(&self, before: &Before, entries: impl Iterator<Item = Option<&'e mut Entry<P>>>) {
        for (side, entry) in (0..).zip(entries).filter(|_| !before.places.is_empty()) {
            if let Some(entry) = entry {
                let place = (side, (entry.split, entry.offset));
                entry.item = before.places.iter().position(|known| *known == place).map(|at| before.items[at]);
            }
        }
    }

    /// A key waits on, in this way.
    pub(crate) fn holds<P: Payload>(&mut self, before: Before, open: &Open<P>) {
        if !self.is_on() {
            return;
        }
        let (before, after) = (before.items, self.before(Some(open)).items);
        before.iter().filter(|id| !after.contains(id)).for_each(|id| self.goes(*id));
        let head = parts(open.key.hash(), open.key.bytes());
        for (part, id) in open.held.parts().zip(&after).filter(|(_, id)| !before.contains(id)) {
            let Part { side, split, offset, timestamp, clock, deadline, .. } = *part;
            let times = WaitTimes { timestamp, clock, deadline };
            self.comes(*id, |out| put_waiting(head, side, (split, offset), times, &part.payload, out));
        }
        if let Some(id) = held_id(&open.held, open.key.bytes()).filter(|id| !before.contains(id)) {
            let Held { delayed, deadline, cap, .. } = open.held;
            self.comes(id, |out| put_held(head, delayed, deadline, cap, out));
        }
    }

    /// A key waits no more.
    pub(crate) fn waits_no_more(&mut self, before: Before) {
        before.items.into_iter().for_each(|id| self.goes(id));
    }

    /// A key is finished, or more records came too late for it: its card says so.
    pub(crate) fn finished<P: Payload>(&mut self, store: &Store<P>, state: State, sides: usize) {
        if let Some(card) = store.card(state).filter(|_| self.is_on()) {
            let (until, dropped, key) = (state.deadline(), card.dropped(), card.key_bytes());
            let id = keyed_id(FINISHED, key, [until, dropped.into()]);
            let (head, late) = ((card.own_hash(), key), card.is_late());
            self.comes(id, |out| put_finished(head, late, until, dropped, &card.by_side(sides), out));
        }
    }

    /// What the card of a finished key says is no more so.
    pub(crate) fn unfinished<P: Payload>(&mut self, store: &Store<P>, state: State) {
        if let Some(card) = store.card(state).filter(|_| self.is_on()) {
            self.goes(keyed_id(FINISHED, card.key_bytes(), [state.deadline(), card.dropped().into()]));
        }
    }
}

/// The form of [`Kept`] in checkpoints. Times and positions are LEB128.
pub(crate) struct KeptCodec;

const WAITING_TAG: u8 = 0;
const HELD_TAG: u8 = 1;
const FINISHED_TAG: u8 = 2;
/// A bit beside the tag: the hash of the key is the caller's own.
const OWN_HASH: u8 = 4;
/// A bit beside the tag: delayed, or late.
const FLAG: u8 = 8;

/// A key: its hash, if it is the caller's own, and its canonical bytes.
type KeyParts<'a> = (Option<KeyHash>, &'a [u8]);

fn parts(hash: KeyHash, key: &[u8]) -> KeyParts<'_> {
    (Some(hash).filter(|hash| *hash != KeyHash::of(key)), key)
}

fn put_head(tag: u8, flag: bool, (own, key): KeyParts<'_>, out: &mut BytesMut) {
    out.put_u8(tag | if own.is_some() { OWN_HASH } else { 0 } | if flag { FLAG } else { 0 });
    if let Some(hash) = own {
        out.put_u128_le(hash.0);
    }
    varint::put(key.len() as u64, out);
    out.put_slice(key);
}

fn put_waiting<P: Payload>(
    key: KeyParts<'_>,
    side: u8,
    position: Position,
    times: WaitTimes,
    payload: &P,
    out: &mut BytesMut,
) -> Bytes {
    put_head(WAITING_TAG, false, key, out);
    out.put_u8(side);
    put_position(position, out);
    [times.timestamp, times.clock, times.deadline].into_iter().for_each(|time| varint::put(time, out));
    payload.encode(out)
}

fn put_held(key: KeyParts<'_>, delayed: bool, deadline: u64, cap: u64, out: &mut BytesMut) -> Bytes {
    put_head(HELD_TAG, delayed, key, out);
    varint::put(deadline, out);
    varint::put(cap, out);
    Bytes::new()
}

fn put_finished(
    key: KeyParts<'_>,
    late: bool,
    until: u64,
    dropped: u32,
    positions: &[Option<Position>],
    out: &mut BytesMut,
) -> Bytes {
    put_head(FINISHED_TAG, late, key, out);
    varint::put(until, out);
    varint::put(dropped.into(), out);
    for position in positions {
        out.put_u8(u8::from(position.is_some()));
        if let Some(position) = position {
            put_position(*position, out);
        }
    }
    Bytes::new()
}

fn take_number(bytes: &mut Bytes) -> Option<u64> {
    let (number, length) = varint::get(bytes)?;
    bytes.advance(length);
    Some(number)
}

fn take_position(bytes: &mut Bytes) -> Option<Position> {
    let split = bytes.try_get_u64_le().ok()?;
    Some((SplitId::from_bits(split), Offset(take_number(bytes)?)))
}

fn put_position((split, offset): Position, out: &mut BytesMut) {
    out.put_u64_le(split.to_bits());
    varint::put(offset.0, out);
}

impl<P: Payload> ItemCodec<Kept<P>> for KeptCodec {
    fn id(&self, kept: &Kept<P>) -> ItemId {
        kept.id
    }

    fn encode(&self, kept: &Kept<P>, out: &mut BytesMut) -> Bytes {
        match &kept.item {
            Some(Item::Waiting { key, side, split, offset, times, payload }) => {
                put_waiting(parts(key.hash(), key.bytes()), *side, (*split, *offset), *times, payload, out)
            }
            Some(Item::Held { key, delayed, deadline, cap }) => {
                put_held(parts(key.hash(), key.bytes()), *delayed, *deadline, *cap, out)
            }
            Some(Item::Finished { key, late, until, dropped, positions }) => {
                put_finished(parts(key.hash(), key.bytes()), *late, *until, *dropped, positions, out)
            }
            None => Bytes::new(),
        }
    }

    fn decode(&self, bytes: Bytes) -> Result<Kept<P>> {
        let damaged = || Error::new(ErrorKind::Store, "an item of a key is damaged, or of another version");
        let item = decode(bytes).ok_or_else(damaged)??;
        Ok(Kept { id: ItemId::default(), item: Some(item) })
    }
}

fn decode<P: Payload>(mut bytes: Bytes) -> Option<Result<Item<P>>> {
    let head = bytes.try_get_u8().ok()?;
    let hash = if head & OWN_HASH != 0 { Some(KeyHash(bytes.try_get_u128_le().ok()?)) } else { None };
    let length = usize::try_from(take_number(&mut bytes)?).ok().filter(|length| *length <= bytes.len())?;
    let key = Bytes::copy_from_slice(&bytes.split_to(length));
    let key = hash.map_or_else(|| Key::new(key.clone()), |hash| Key::with_hash(hash, key.clone()));
    let flag = head & FLAG != 0;
    let item = match head & !OWN_HASH & !FLAG {
        WAITING_TAG => {
            let side = bytes.try_get_u8().ok()?;
            let (split, offset) = take_position(&mut bytes)?;
            let mut time = || take_number(&mut bytes);
            let times = WaitTimes { timestamp: time()?, clock: time()?, deadline: time()? };
            return Some(P::decode(bytes).map(|payload| Item::Waiting { key, side, split, offset, times, payload }));
        }
        HELD_TAG => {
            Item::Held { key, delayed: flag, deadline: take_number(&mut bytes)?, cap: take_number(&mut bytes)? }
        }
        FINISHED_TAG => {
            let until = take_number(&mut bytes)?;
            let dropped = take_number(&mut bytes)?.try_into().ok()?;
            let mut positions = vec![];
            while !bytes.is_empty() {
                positions.push(if bytes.get_u8() == 0 { None } else { Some(take_position(&mut bytes)?) });
            }
            Item::Finished { key, late: flag, until, dropped, positions }
        }
        _ => return None,
    };
    bytes.is_empty().then_some(Ok(item))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_comes_back_and_any_other_bytes_are_an_error() {
        let key = Key::builder().text("some").number("1").build();
        let own = Key::with_hash(KeyHash(7), Bytes::from_static(b"other"));
        let position = (SplitId::numbered("t", 3), Offset(u64::MAX));
        let times = WaitTimes { timestamp: 1, clock: 2, deadline: MAX_TIME };
        let payload = Bytes::from_static(b"{}");
        let items = [
            Item::Waiting { key: key.clone(), side: 7, split: position.0, offset: position.1, times, payload },
            Item::Held { key: own.clone(), delayed: true, deadline: 5, cap: MAX_TIME },
            Item::Held { key: key.clone(), delayed: false, deadline: 0, cap: 6 },
            Item::Finished { key, late: true, until: 9, dropped: 300, positions: vec![None, Some(position)] },
            Item::Finished { key: own, late: false, until: 9, dropped: 0, positions: vec![Some(position); 2] },
        ];
        for item in items {
            let mut bytes = BytesMut::new();
            let rest = KeptCodec.encode(&Kept { id: ItemId(0), item: Some(item.clone()) }, &mut bytes);
            bytes.extend_from_slice(&rest);
            let bytes = bytes.freeze();
            let decoded: Kept<Bytes> = KeptCodec.decode(bytes.clone()).unwrap();
            assert_eq!(decoded.item.as_ref(), Some(&item));
            for cut in 0..bytes.len() {
                let cut: Result<Kept<Bytes>> = KeptCodec.decode(bytes.slice(..cut));
                assert!(cut.is_err() || cut.unwrap().item != Some(item.clone()));
            }
        }
        assert!(ItemCodec::<Kept<Bytes>>::decode(&KeptCodec, Bytes::from_static(&[3, 0])).is_err());
    }
}
