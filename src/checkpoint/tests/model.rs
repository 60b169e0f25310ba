//! What a store should hold, said plainly: the list of all ranges.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::*;
use super::sim::Random;
use crate::sink::{Insert, Inserted};

/// A range of a run: a frame for each worker.
#[derive(Clone, Debug)]
pub struct Range {
    pub lower: Epoch,
    pub upper: Epoch,
    pub frames: Vec<Frame>,
    /// The workers that have tried to append theirs.
    pub tried: Vec<bool>,
    /// The workers whose append returned.
    pub done: Vec<bool>,
}

/// How often each item is there, by collection and id.
pub type Count = BTreeMap<(String, u128), i64>;

/// The bytes of an item.
pub fn bytes(id: u128) -> Bytes {
    let length = Random(id as u64).below(40) as usize;
    Bytes::from(format!("{id:x}").repeat(3).into_bytes()).slice(..length.min(3))
}

/// What was prepared, with the items that it refers to.
pub fn whole(prepared: &Prepared) -> Bytes {
    let (mut whole, mut from) = (vec![], 0);
    for insert in &prepared.inserts {
        whole.extend_from_slice(&prepared.bytes[from..insert.at]);
        match &insert.what {
            Inserted::Bytes(shared) => whole.extend_from_slice(shared),
            Inserted::Item { item, length } => {
                let item = bytes(item.id.0);
                whole.extend_from_slice(&item[item.len() - length..]);
            }
        }
        from = insert.at;
    }
    whole.extend_from_slice(&prepared.bytes[from..]);
    whole.into()
}

/// The counts after these ranges.
pub fn count(ranges: &[Range]) -> Count {
    let mut count = Count::new();
    for changes in ranges.iter().flat_map(|range| &range.frames).flat_map(|frame| &frame.changes) {
        for update in &changes.updates {
            *count.entry((changes.collection.clone(), update.id.0)).or_default() += update.diff;
        }
    }
    assert!(count.values().all(|count| *count >= 0));
    count.retain(|_, count| *count != 0);
    count
}

/// What these ranges come to, but for the items; more may be known to be published than their frames say.
pub fn restored(ranges: &[Range], upper: Epoch, above: Epoch, published: Epoch) -> Restored {
    let mut marks = BTreeMap::new();
    let mut restored = Restored { any: !ranges.is_empty(), upper, above, published, ..Restored::default() };
    for range in ranges {
        for (slot, frame) in range.frames.iter().enumerate() {
            restored.clock = restored.clock.max(frame.clock);
            restored.published = restored.published.max(frame.published);
            marks.extend(frame.splits.iter().map(|mark| ((mark.source, mark.split), *mark)));
            if frame.prepared.iter().any(|prepared| !prepared.is_empty()) {
                let prepared = frame.prepared.iter().map(whole).collect();
                restored.outbox.push(Pending { slot: Slot(slot), lower: range.lower, upper: range.upper, prepared });
            }
        }
    }
    restored.splits = marks.into_values().collect();
    restored.outbox.retain(|pending| pending.upper > restored.published);
    restored.outbox.sort_by_key(|pending| (pending.slot, pending.lower));
    restored
}

/// A range that changes what is there after `live`, which follows it.
pub fn range(random: &mut Random, lower: Epoch, num_slots: usize, published: Epoch, live: &mut Count) -> Range {
    let upper = lower + 1 + random.below(5);
    let mut frames = vec![];
    let before: Vec<_> = live.keys().cloned().collect();
    for slot in 0..num_slots {
        let mut changes: BTreeMap<String, BTreeMap<u128, i64>> = BTreeMap::new();
        let mut change = |live: &mut Count, key: (String, u128), diff: i64| {
            *live.entry(key.clone()).or_default() += diff;
            *changes.entry(key.0).or_default().entry(key.1).or_default() += diff;
        };
        for _ in 0..random.below(5) {
            let id = u128::from(Random(random.below(50)).next()) << random.below(60);
            change(live, (["a", "b", "ccc"][random.below(3) as usize].to_owned(), id), 1 + random.below(2) as i64);
        }
        for _ in 0..random.below(5) {
            let there: Vec<_> = live.iter().filter(|(_, count)| **count > 0).map(|(key, _)| key.clone()).collect();
            if !there.is_empty() {
                // Any worker may take away what another one has added.
                change(live, there[random.below(there.len() as u64) as usize].clone(), -1);
            }
        }
        // What is prepared refers to items that were there before the range, or that the worker itself has added.
        let own = changes.iter().flat_map(|(name, updates)| updates.iter().map(move |(id, diff)| (name, *id, *diff)));
        let own = own.filter(|(.., diff)| *diff >= 0).map(|(name, id, _)| (name.clone(), id));
        let known: Vec<(String, u128)> = before.iter().cloned().chain(own).collect();
        let mut referred = vec![];
        let mut insert = |random: &mut Random, at: usize| {
            let (name, id) = known.get(random.below(known.len() as u64 + 3) as usize)?;
            referred.push((name.clone(), *id));
            let item = ItemRef { collection: CollectionId::of(name), id: ItemId(*id) };
            let length = random.below(bytes(*id).len() as u64 + 1) as usize;
            let what = match random.one_in(3) {
                true => Inserted::Bytes(Bytes::from(vec![8; length])),
                false => Inserted::Item { item, length },
            };
            Some(Insert { at, what })
        };
        let prepared = (0..random.below(3)).map(|_| {
            let bytes = vec![7; random.below(4) as usize];
            let inserts = (0..=bytes.len()).filter_map(|at| insert(random, at)).collect();
            Prepared { bytes, inserts }
        });
        let prepared: Vec<Prepared> = prepared.collect();
        let update = |(id, diff): (u128, i64)| ItemUpdate {
            id: ItemId(id),
            diff,
            bytes: if diff >= 0 { bytes(id) } else { Bytes::new() },
            rest: None,
        };
        let changes = changes.into_iter().map(|(collection, updates)| {
            let counts = |id: u128, diff: i64| diff != 0 || referred.contains(&(collection.clone(), id));
            let updates = updates.into_iter().filter(|(id, diff)| counts(*id, *diff)).map(update).collect();
            Changes { collection, updates }
        });
        let mut splits: Vec<SplitMark> = vec![];
        for number in (0..6).filter(|number| *number % num_slots == slot) {
            if random.one_in(2) {
                splits.push(SplitMark {
                    source: number as u32 % 2,
                    split: SplitId::numbered("topic", number as u32),
                    offset: Offset(upper * 3),
                    time: upper,
                    timed: [None, Some(false), Some(true)][random.below(3) as usize],
                });
            }
        }
        frames.push(Frame { lower, upper, clock: upper * 10, published, splits, changes: changes.collect(), prepared });
    }
    live.retain(|_, count| *count != 0);
    Range { lower, upper, frames, tried: vec![false; num_slots], done: vec![false; num_slots] }
}
