//! One worker's keys, epoch by epoch, without timely: what the operator does when an epoch is complete.
//!
//! 1. Sort the records by key.
//! 2. Take the keys whose deadline has passed from the wheel, sort them, and merge both lists: the touched keys.
//! 3. Look the touched keys up in the trace, from its newest batch to its oldest.
//! 4. Step each key ([`step`](super::step)): outputs, and changes of state.
//!
//! Everything is sorted, so nothing depends on the order in which records came.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::batch::{Found, StateBatch, Update};
use super::counts::Counts;
use super::kept::Recorder;
use super::key::KeyHash;
use super::options::{AtEnd, Options};
use super::pass::Pass;
use super::record::{Output, Payload, Record};
use super::restore::Restoring;
use super::state::{MAX_TIME, State};
use super::step::Rules;
use super::store::Store;
use super::wheel::Wheel;
use crate::dataflow::{Gauges, Keeping, Tick};
use crate::epoch::Epoch;

/// A key that the epoch touches: its records, as a range of the sorted ones, and its state before the epoch.
struct Touched {
    hash: KeyHash,
    from: u32,
    to: u32,
    old: Option<State>,
}

/// The keys of one worker.
pub(crate) struct Synchronizer<P> {
    pub(crate) rules: Rules,
    /// Shared with whoever wants to read what waits.
    pub(crate) store: Rc<RefCell<Store<P>>>,
    /// Tickets of the store by deadline. One of a key that has changed is out of date, and found so when it is due.
    pub(crate) wheel: Wheel,
    /// The clock, at the end of the last epoch.
    clock: u64,
    /// Hashes of which several keys had a state at once: they are looked up in all batches. Nothing is ever removed: a real
    /// collision of 128 bits costs its 16 bytes once in the life of a universe.
    pub(crate) collided: BTreeSet<KeyHash>,
    /// The changes of what checkpoints keep.
    pub(crate) recorder: Recorder,
    /// What comes from a checkpoint, until it is all there.
    pub(crate) restoring: Restoring<P>,
    /// The leading bits of the hashes of the records, with their indexes, sorted.
    order: Vec<(u64, u32)>,
    /// Where buckets of the sort end.
    ends: Vec<u32>,
    /// Keys whose deadline has passed, sorted.
    due: Vec<(KeyHash, State)>,
    touched: Vec<Touched>,
    /// Indexes of touched keys whose state is not known yet.
    unknown: Vec<u32>,
}

/// What an epoch did.
pub(crate) struct Done {
    /// The changes of state, sorted.
    pub(crate) updates: Vec<Update>,
    pub(crate) counts: Counts,
    /// The epoch of the oldest record that waits.
    pub(crate) oldest: Option<Epoch>,
}

impl<P: Payload> Synchronizer<P> {
    /// `keeping`: checkpoints want to know of changes.
    pub(crate) fn new(options: &Options, store: Rc<RefCell<Store<P>>>, keeping: Option<Keeping>) -> Self {
        Synchronizer {
            rules: Rules::new(options),
            store,
            wheel: Wheel::new(),
            clock: 0,
            collided: BTreeSet::new(),
            recorder: Recorder::new(keeping),
            restoring: Restoring::default(),
            order: Vec::new(),
            ends: Vec::new(),
            due: Vec::new(),
            touched: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Processes an epoch. `batches` is the trace before it; `records` are left as `None` where they were taken.
    ///
    /// Gives the outputs in the order of their keys.
    pub(crate) fn epoch(
        &mut self,
        time: Epoch,
        tick: Option<Tick>,
        records: &mut [Option<Record<P>>],
        batches: &[Rc<StateBatch>],
        mut give: impl FnMut(Output<P>),
    ) -> Done {
        self.clock = self.clock.max(tick.map_or(0, |tick| tick.time.min(MAX_TIME)));
        let store = Rc::clone(&self.store);
        let mut store = store.borrow_mut();
        store.release(time);
        store.ages.open(time);
        self.recorder.open(time);
        self.sort(records);
        self.take_due(&store);
        self.touch(records);
        self.lookup(batches);
        let end = tick.is_some_and(|tick| tick.end) && self.rules.at_end == AtEnd::Delay;
        let (updates, mut counts) = if end {
            let mut outputs = Vec::new();
            let done = self.step(&mut store, time, records, batches, true, |output| outputs.push(output));
            outputs.sort_unstable_by(|one, two| one.key().cmp(two.key()));
            outputs.into_iter().for_each(give);
            done
        } else {
            self.step(&mut store, time, records, batches, false, &mut give)
        };
        counts.arrived = records.len() as u64;
        counts.pending_records = store.pending();
        Done { updates, counts, oldest: store.ages.oldest() }
    }

    /// Sorts the records by key, side, split and offset: one scatter by the leading bits, then small sorts.
    fn sort(&mut self, records: &[Option<Record<P>>]) {
        let bits = (records.len() / 4).max(2).ilog2().min(12);
        let bucket = |top: u64| (top >> (64 - bits)) as usize;
        let tops = || records.iter().map(|record| record.as_ref().map_or(0, |record| record.key.hash().top()));
        self.ends.clear();
        self.ends.resize(1 << bits, 0);
        for top in tops() {
            self.ends[bucket(top)] += 1;
        }
        let mut end = 0;
        for count in &mut self.ends {
            end += *count;
            *count = end - *count;
        }
        self.order.clear();
        self.order.resize(records.len(), (0, 0));
        for (index, top) in tops().enumerate() {
            let at = &mut self.ends[bucket(top)];
            self.order[*at as usize] = (top, index as u32);
            *at += 1;
        }
        let rank = |index: u32| {
            let record = records[index as usize].as_ref();
            record.map(|record| (&record.key, record.side, record.split, record.offset, record.timestamp))
        };
        let mut from = 0;
        for to in &self.ends {
            let run = &mut self.order[from..*to as usize];
            if run.len() > 1 {
                run.sort_unstable_by(|one, two| one.0.cmp(&two.0).then_with(|| rank(one.1).cmp(&rank(two.1))));
            }
            from = *to as usize;
        }
    }

    fn take_due(&mut self, store: &Store<P>) {
        let due = &mut self.due;
        due.clear();
        self.wheel.take(self.clock, |deadline, ticket| due.extend(store.due(deadline, ticket)));
        due.sort(); // made of sorted runs, one for each epoch that set deadlines, which this sort finds
        due.dedup();
    }

    /// Merges the sorted records and the keys that are due.
    fn touch(&mut self, records: &[Option<Record<P>>]) {
        self.touched.clear();
        self.unknown.clear();
        let (order, due) = (&self.order, &self.due);
        let hash_at = |at: usize| {
            let (_, index) = order.get(at)?;
            records[*index as usize].as_ref().map(|record| record.key.hash())
        };
        let (mut at, mut next_due) = (0, 0);
        let mut arriving = hash_at(0);
        loop {
            let hash = match (arriving, due.get(next_due)) {
                (Some(hash), Some((due, _))) => hash.min(*due),
                (Some(hash), None) => hash,
                (None, Some((due, _))) => *due,
                (None, None) => break,
            };
            let from = at;
            while arriving == Some(hash) {
                at += 1;
                arriving = hash_at(at);
            }
            // A key that is due needs no lookup: its state has not changed since its deadline was set.
            let mut old = None;
            while let Some((_, state)) = due.get(next_due).filter(|(due, _)| *due == hash) {
                old = Some(*state);
                next_due += 1;
            }
            if old.is_none() {
                self.unknown.push(self.touched.len() as u32);
            }
            self.touched.push(Touched { hash, from: from as u32, to: at as u32, old });
        }
    }

    /// Looks the unknown keys up, from the newest batch to the oldest, each batch in the order of the keys.
    fn lookup(&mut self, batches: &[Rc<StateBatch>]) {
        let touched = &mut self.touched;
        for batch in batches.iter().rev() {
            self.unknown.retain(|&index| {
                let touched = &mut touched[index as usize];
                match batch.find(touched.hash) {
                    Found::Nothing => return true,
                    Found::Absent => {}
                    Found::Present(state) => touched.old = Some(state),
                }
                false
            });
        }
    }

    /// Steps every touched key, and retires all that wait if this is the end.
    fn step(
        &mut self,
        store: &mut Store<P>,
        time: Epoch,
        records: &mut [Option<Record<P>>],
        batches: &[Rc<StateBatch>],
        end: bool,
        give: impl FnMut(Output<P>),
    ) -> (Vec<Update>, Counts) {
        let mut pass = Pass {
            rules: &self.rules,
            store,
            wheel: &mut self.wheel,
            recorder: &mut self.recorder,
            order: &self.order,
            records,
            time,
            clock: self.clock,
            counts: Counts::default(),
            updates: Vec::with_capacity(self.touched.len() + self.touched.len() / 2),
            give,
        };
        for &Touched { hash, from, to, old } in &self.touched {
            let range = from as usize..to as usize;
            if !self.collided.is_empty() && self.collided.contains(&hash) {
                pass.many(hash, live(batches, hash), range);
            } else if pass.is_mixed(old, range.clone()) {
                if pass.many(hash, old.into_iter().collect(), range) > 1 {
                    self.collided.insert(hash);
                }
            } else {
                let new = pass.one(old, range);
                pass.change(hash, old, new);
            }
        }
        if end {
            pass.retire_all();
        }
        (pass.updates, pass.counts)
    }

    /// Gives memory back after an epoch that was much larger than this one.
    pub(crate) fn tidy(&mut self) {
        let much = 8 * self.touched.len() + 1024;
        if self.order.capacity() > much || self.touched.capacity() > much || self.due.capacity() > much {
            (self.order, self.due) = (Vec::new(), Vec::new());
            (self.touched, self.unknown) = (Vec::new(), Vec::new());
        }
    }

    /// Reads the gauges, as far as the trace is not concerned.
    pub(crate) fn gauge(&self, gauges: &Gauges) {
        let store = self.store.borrow();
        gauges.keys.set(store.keys());
        gauges.waits_for_time.set(store.keys() > 0);
        gauges.pending.set(store.pending());
        gauges.bytes.set(store.bytes() + self.wheel.bytes());
    }
}

/// The states of all keys of a hash.
fn live(batches: &[Rc<StateBatch>], hash: KeyHash) -> Vec<State> {
    let mut sums: BTreeMap<State, i32> = BTreeMap::new();
    for update in batches.iter().flat_map(|batch| batch.run(hash)) {
        *sums.entry(update.value).or_default() += update.diff;
    }
    sums.into_iter().filter(|(_, sum)| *sum > 0).map(|(state, _)| state).collect()
}
