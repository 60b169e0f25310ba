//! The keys of a checkpoint become the state of a worker again.

use std::collections::BTreeMap;

use super::batch::Update;
use super::counts::Counts;
use super::kept::{Item, Kept, WaitTimes, finished_as};
use super::key::Key;
use super::record::Payload;
use super::state::Phase;
use super::step::{Held, Part};
use super::store::{Open, OwnKey, Store};
use super::synchronizer::{Done, Synchronizer};
use crate::epoch::Epoch;

/// What has been restored and is not in the trace yet.
pub(crate) struct Restoring<P> {
    /// Keys that wait, whose items come one by one.
    open: BTreeMap<Key, Held<P>>,
    updates: Vec<Update>,
}

impl<P> Default for Restoring<P> {
    fn default() -> Self {
        Restoring { open: BTreeMap::new(), updates: Vec::new() }
    }
}

impl<P: Payload> Synchronizer<P> {
    /// Takes an item of the checkpoint.
    pub(crate) fn restore(&mut self, kept: Kept<P>) {
        match kept.item {
            Some(Item::Waiting { key, side, split, offset, times, payload }) => {
                let WaitTimes { timestamp, clock, deadline } = times;
                let part = Part { side, split, offset, timestamp, clock, deadline, arrived: 0, payload };
                self.restoring.open.entry(key).or_insert_with(Held::new).put(part);
            }
            Some(Item::Held { key, delayed, deadline, cap }) => {
                let held = self.restoring.open.entry(key).or_insert_with(Held::new);
                (held.delayed, held.deadline, held.cap) = (delayed, deadline, cap);
            }
            Some(Item::Finished { key, late, until, dropped, positions }) => {
                let phase = if positions.len() == self.rules.sides { finished_as(&positions) } else { Phase::Closed };
                let mut store = self.store.borrow_mut();
                let state = store.finish(&key, (phase, late, until), positions.into_iter());
                if dropped > 0 {
                    store.add_dropped(state, dropped as usize);
                }
                self.restoring.updates.push(Update { key: key.hash(), value: state, diff: 1 });
                self.wheel.push(until, Store::<P>::ticket(state));
            }
            None => {}
        }
    }

    /// All items are there: they are the state of this epoch.
    pub(crate) fn restored(&mut self, time: Epoch) -> Done {
        let Restoring { open, mut updates } = std::mem::take(&mut self.restoring);
        let mut store = self.store.borrow_mut();
        store.release(time);
        store.ages.open(time);
        let arrived = store.ages.current();
        for (key, mut held) in open {
            held.parts_mut().for_each(|part| part.arrived = arrived);
            if !held.delayed {
                held.deadline = held.parts().map(|part| part.deadline).fold(held.cap, u64::min);
            }
            let deadline = held.deadline;
            let state = store.hold(Open { key: OwnKey::new(&key), held });
            updates.push(Update { key: key.hash(), value: state, diff: 1 });
            self.wheel.push(deadline, Store::<P>::ticket(state));
        }
        updates.sort_unstable_by_key(|update| (update.key, update.value));
        self.collided.extend(updates.windows(2).filter(|pair| pair[0].key == pair[1].key).map(|pair| pair[0].key));
        let pending = store.pending();
        let counts = Counts { restored_records: pending, pending_records: pending, ..Counts::default() };
        Done { updates, counts, oldest: store.ages.oldest() }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::rc::Rc;
    use std::time::Duration;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::super::batch::StateBatch;
    use super::super::kept::KeptCodec;
    use super::super::key::KeyHash;
    use super::super::options::{AtEnd, Duplicates, Late, Options};
    use super::super::record::{Output, Record};
    use super::*;
    use crate::checkpoint::{ItemId, ItemUpdate};
    use crate::dataflow::{ItemCodec, Keeper, Keeping, Tick};
    use crate::message::{Offset, SplitId};

    /// A worker without timely: its keys, its trace, and what checkpoints keep of them.
    struct Worker {
        synchronizer: Synchronizer<Bytes>,
        batches: Vec<Rc<StateBatch>>,
        keeper: Rc<Keeper>,
        kept: BTreeMap<ItemId, (i64, Bytes)>,
    }

    impl Worker {
        fn new(options: &Options) -> Self {
            let store = Rc::new(RefCell::new(Store::new(options.windows.len())));
            let keeper = Rc::default();
            let synchronizer = Synchronizer::new(options, store, Some(Keeping::new(&keeper, "keys")));
            Worker { synchronizer, batches: vec![], keeper, kept: BTreeMap::new() }
        }

        fn epoch(&mut self, time: Epoch, tick: Tick, records: &[Record<Bytes>]) -> (Vec<Output<Bytes>>, Counts) {
            let mut records: Vec<_> = records.iter().cloned().map(Some).collect();
            let mut outputs = vec![];
            let give = |output| outputs.push(output);
            let done = self.synchronizer.epoch(time, Some(tick), &mut records, &self.batches, give);
            (outputs, self.take(time, done))
        }

        fn take(&mut self, time: Epoch, done: Done) -> Counts {
            self.batches.extend(StateBatch::new(done.updates, time).map(Rc::new));
            let changes = self.keeper.take_below(time + 1, &[]);
            for ItemUpdate { id, diff, bytes, rest } in changes.into_iter().flat_map(|changes| changes.updates) {
                let entry = self.kept.entry(id).or_default();
                entry.0 += diff;
                if diff > 0 {
                    entry.1 = [bytes, rest.map_or(Bytes::new(), |rest| *rest)].concat().into();
                }
            }
            self.kept.retain(|_, (diff, _)| *diff != 0);
            assert!(self.kept.values().all(|(diff, bytes)| *diff == 1 && !bytes.is_empty()));
            done.counts
        }

        /// The worker that a checkpoint brings back.
        fn restart(&self, time: Epoch, options: &Options) -> (Worker, Counts) {
            let mut worker = Worker::new(options);
            for (_, bytes) in self.kept.values() {
                worker.synchronizer.restore(KeptCodec.decode(bytes.clone()).unwrap());
            }
            let done = worker.synchronizer.restored(time);
            let counts = worker.take(time, done);
            worker.kept.clone_from(&self.kept);
            (worker, counts)
        }
    }

    /// An epoch: how far the clock goes, and records as (key, side, split).
    type Script = Vec<(u64, Vec<(u8, u8, u8)>)>;

    fn script() -> impl Strategy<Value = Script> {
        let clock = prop_oneof![4 => 0u64..8, 1 => 8u64..60];
        prop::collection::vec((clock, prop::collection::vec((0u8..6, 0u8..3, 0u8..2), 0..6)), 1..40)
    }

    fn options() -> impl Strategy<Value = Options> {
        (2usize..=3, any::<[bool; 4]>(), prop::option::of(15u64..40)).prop_map(
            |(sides, [late, first, keep, delays], max)| Options {
                remember: Duration::from_millis(30),
                late: if late { Late::Join } else { Late::Drop },
                duplicates: if first { Duplicates::First } else { Duplicates::Last },
                at_end: if keep { AtEnd::Keep } else { AtEnd::Delay },
                max_wait: max.map(Duration::from_millis),
                emit_delays: delays,
                ..Options::new(sides, Duration::from_millis(15))
            },
        )
    }

    proptest! {
        #[test]
        fn nobody_sees_from_outside_that_a_worker_was_restarted(
            script in script(),
            options in options(),
            stops in prop::collection::btree_set(0usize..40, 0..4),
            collide in any::<bool>(),
        ) {
            let (mut one, mut two) = (Worker::new(&options), Worker::new(&options));
            let (mut clock, mut offsets) = (1_000, BTreeMap::<SplitId, u64>::new());
            let mut last = Counts::default();
            let end = script.len();
            for (index, (passed, records)) in script.into_iter().enumerate() {
                clock += passed;
                let records: Vec<_> = records.into_iter().filter(|(_, side, _)| usize::from(*side) < options.windows.len()).map(|(key, side, split)| {
                    let split = SplitId::numbered("t", u32::from(side) * 2 + u32::from(split));
                    let offset = offsets.entry(split).or_default();
                    *offset += 1;
                    let bytes = Bytes::copy_from_slice(&[b'k', key]);
                    let hash = if collide { KeyHash(u128::from(key % 2)) } else { KeyHash::of(&bytes) };
                    let payload = Bytes::from(format!("{split}-{offset}"));
                    Record { key: Key::with_hash(hash, bytes), side, split, offset: Offset(*offset), timestamp: clock + *offset % 3, base: clock, payload }
                }).collect();
                let time = 10 * (index as u64 + 1);
                if stops.contains(&index) {
                    let (restarted, counts) = two.restart(time - 5, &options);
                    prop_assert_eq!((counts.restored_records, counts.difference()), (last.pending_records, 0));
                    two = restarted;
                }
                let tick = Tick { time: clock, end: index + 1 == end };
                let expected = one.epoch(time, tick, &records);
                prop_assert_eq!(&two.epoch(time, tick, &records), &expected);
                prop_assert!(one.kept == two.kept);
                last = expected.1;
            }
        }
    }
}
