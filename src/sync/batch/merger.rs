//! Merges of two batches, a little at a time.

use differential_dataflow::consolidation::consolidate_updates;
use differential_dataflow::lattice::Lattice;
use differential_dataflow::trace::implementations::spine_fueled::Merger;
use timely::progress::Antichain;
use timely::progress::frontier::AntichainRef;

use super::{Diff, Index, StateBatch, Times, Update};
use crate::epoch::Epoch;
use crate::sync::key::KeyHash;
use crate::sync::state::State;

/// A merge of two batches in progress.
pub struct StateMerger {
    /// How far each batch is merged.
    at: (usize, usize),
    since: Antichain<Epoch>,
    /// The one epoch of the result, if both batches have but one that is the same after compaction: then keys that only one
    /// batch has are copied as they are.
    same: Option<Epoch>,
    updates: Vec<Update>,
    /// The epochs of `updates`; empty if they are all the same.
    times: Vec<Epoch>,
    index: Index,
    /// How many of `updates` are in the index.
    indexed: usize,
    /// The updates of one key, while they are consolidated.
    stage: Vec<(State, Epoch, Diff)>,
}

fn advanced(mut time: Epoch, since: AntichainRef<'_, Epoch>) -> Epoch {
    time.advance_by(since);
    time
}

impl Merger<StateBatch> for StateMerger {
    fn new(one: &StateBatch, two: &StateBatch, since: AntichainRef<'_, Epoch>) -> Self {
        let same = match (&one.times, &two.times) {
            (Times::Same(a), Times::Same(b)) => Some((advanced(*a, since), advanced(*b, since))),
            _ => None,
        };
        let most = one.updates.len() + two.updates.len();
        StateMerger {
            at: (0, 0),
            since: since.to_owned(),
            same: same.filter(|(a, b)| a == b).map(|(a, _)| a),
            updates: Vec::with_capacity(most),
            times: Vec::new(),
            index: Index::with_capacity(most),
            indexed: 0,
            stage: Vec::new(),
        }
    }

    /// Leaves fuel exactly when the merge is finished, as the trait demands.
    fn work(&mut self, one: &StateBatch, two: &StateBatch, fuel: &mut isize) {
        let (a, b) = (&one.updates[..], &two.updates[..]);
        let (mut i, mut j) = self.at;
        let mut budget = *fuel;
        while i < a.len() && j < b.len() && budget > 0 {
            if self.same.is_some() && a[i].key != b[j].key {
                let first = a[i].key < b[j].key;
                self.updates.push(if first { a[i] } else { b[j] });
                i += usize::from(first);
                j += usize::from(!first);
                budget -= 1;
            } else {
                let key = a[i].key.min(b[j].key);
                let before = i + j;
                self.take(a, &one.times, key, &mut i);
                self.take(b, &two.times, key, &mut j);
                self.seal(key);
                budget -= (i + j - before) as isize;
            }
        }
        if j == b.len() {
            self.copy(a, &one.times, &mut i, &mut budget);
        }
        if i == a.len() {
            self.copy(b, &two.times, &mut j, &mut budget);
        }
        self.at = (i, j);
        self.index.extend(&self.updates[self.indexed..]);
        self.indexed = self.updates.len();
        let finished = i == a.len() && j == b.len();
        *fuel = if finished { budget.max(1) } else { budget.min(0) };
    }

    fn done(mut self) -> Option<StateBatch> {
        if self.updates.is_empty() {
            return None;
        }
        if self.updates.len() < self.updates.capacity() / 2 {
            self.updates.shrink_to_fit(); // else not: it copies, and the memory behind the end was never touched
        }
        self.index.finish();
        let times = match (self.same, self.times.first()) {
            (Some(time), _) => Times::Same(time),
            (None, Some(time)) if self.times.iter().all(|other| other == time) => Times::Same(*time),
            _ => Times::Each(self.times),
        };
        Some(StateBatch { updates: self.updates, times, index: self.index })
    }
}

impl StateMerger {
    /// Copies what is left of one batch when the other is at its end.
    fn copy(&mut self, source: &[Update], times: &Times, at: &mut usize, budget: &mut isize) {
        if self.same.is_some() {
            let count = (source.len() - *at).min((*budget).max(0) as usize);
            self.updates.extend_from_slice(&source[*at..*at + count]);
            *at += count;
            *budget -= count as isize;
        } else {
            while *at < source.len() && *budget > 0 {
                let (key, before) = (source[*at].key, *at);
                self.take(source, times, key, at);
                self.seal(key);
                *budget -= (*at - before) as isize;
            }
        }
    }

    /// Stages every update of `key` at the front of a batch.
    fn take(&mut self, source: &[Update], times: &Times, key: KeyHash, at: &mut usize) {
        while let Some(update) = source.get(*at).filter(|update| update.key == key) {
            self.stage.push((update.value, advanced(*times.get(*at), self.since.borrow()), update.diff));
            *at += 1;
        }
    }

    /// Writes what is left of the staged updates of `key`.
    fn seal(&mut self, key: KeyHash) {
        consolidate_updates(&mut self.stage);
        for (value, time, diff) in self.stage.drain(..) {
            self.updates.push(Update { key, value, diff });
            if self.same.is_none() {
                self.times.push(time);
            }
        }
    }
}
