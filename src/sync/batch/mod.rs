//! Batches of state updates: sorted by the hash of the key, and found as in a hash table.
//!
//! Sorted hashes are already laid out like a hash table: the leading bits of a hash say where it lives. One word for each
//! bucket of a few updates holds where the bucket starts and a small Bloom filter of what is in it, so that most lookups of
//! absent keys touch one word, and most lookups of present keys one word and one cache line. Nothing gallops.
//!
//! The batch is one for differential's own `Spine`: other operators read and join it.

mod cursor;
mod merger;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use differential_dataflow::trace::implementations::spine_fueled::{Spine, SpineBatch};

use super::key::KeyHash;
use super::state::State;
use crate::epoch::Epoch;

pub use cursor::StateCursor;
pub use merger::StateMerger;

/// Differences of states: a state is there once, or not at all.
pub type Diff = i32;

/// The trace of the states of keys.
pub type StateSpine = Spine<Rc<StateBatch>>;

/// A change of one state: it comes or goes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Update {
    pub(crate) key: KeyHash,
    pub(crate) value: State,
    pub(crate) diff: Diff,
}

/// The epochs of the updates of a batch: nearly always one and the same, as merges advance them to the compaction frontier.
enum Times {
    Same(Epoch),
    Each(Vec<Epoch>),
}

impl Times {
    #[inline(always)]
    fn get(&self, index: usize) -> &Epoch {
        match self {
            Times::Same(time) => time,
            Times::Each(times) => &times[index],
        }
    }
}

/// Where buckets of keys start, and what may be in them: `start | filter << 32` each.
struct Index {
    shift: u32,
    words: Vec<u64>,
}

/// The bits of an index word that hold where a bucket starts.
const START: u64 = u32::MAX as u64;

impl Index {
    /// An index for at most `len` updates, about three to a bucket: fewer cost memory, more cost steps in a bucket.
    fn with_capacity(len: usize) -> Self {
        let bits = (len.max(2).ilog2() - 1).min(30);
        Index { shift: 63 - bits, words: vec![0; (1 << bits) + 1] }
    }

    #[inline(always)]
    fn bucket(&self, top: u64) -> usize {
        ((top >> 1) >> self.shift) as usize
    }

    /// Two bits of a filter, from bits of the hash that neither choose buckets (leading) nor workers (the other half).
    #[inline(always)]
    fn filter(top: u64) -> u64 {
        1 << (32 + (top >> 20 & 31)) | 1 << (32 + (top >> 25 & 31))
    }

    /// Counts updates, which `finish` turns into starts.
    fn extend(&mut self, updates: &[Update]) {
        for update in updates {
            let top = update.key.top();
            let bucket = self.bucket(top);
            self.words[bucket] = (self.words[bucket] | Self::filter(top)) + 1;
        }
    }

    fn finish(&mut self) {
        let mut start = 0;
        for word in &mut self.words {
            let count = *word & START;
            *word = *word - count + start;
            start += count;
        }
    }

    #[inline(always)]
    fn start(&self, top: u64) -> usize {
        (self.words[self.bucket(top)] & START) as usize
    }
}

/// An immutable batch of state updates, sorted by key, state and epoch.
pub struct StateBatch {
    updates: Vec<Update>,
    times: Times,
    index: Index,
}

/// What a batch says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing: ask an older one.
    Nothing,
    /// The key has no state after the batch.
    Absent,
    /// The key has this state after the batch.
    Present(State),
}

impl StateBatch {
    /// A batch of updates of one epoch, sorted by key and state; `None` if there are none.
    pub(crate) fn new(updates: Vec<Update>, time: Epoch) -> Option<Self> {
        debug_assert!(updates.is_sorted_by_key(|update| (update.key, update.value)));
        if updates.is_empty() {
            return None;
        }
        let mut index = Index::with_capacity(updates.len());
        index.extend(&updates);
        index.finish();
        Some(StateBatch { updates, times: Times::Same(time), index })
    }

    /// What the batch says about a hash that belongs to one key only.
    ///
    /// Asked from the newest batch to the oldest, the first that says something is right, because whoever replaces a state
    /// retracts the old one in the same batch.
    #[inline]
    pub(crate) fn find(&self, key: KeyHash) -> Found {
        let run = self.run(key);
        match run {
            [] => Found::Nothing,
            [only] if only.diff > 0 => Found::Present(only.value),
            [_] => Found::Absent,
            _ => Self::accumulate(run),
        }
    }

    /// The updates of a hash.
    #[inline]
    pub(crate) fn run(&self, key: KeyHash) -> &[Update] {
        let top = key.top();
        let word = self.index.words[self.index.bucket(top)];
        let filter = Index::filter(top);
        if word & filter != filter {
            return &[];
        }
        let mut from = (word & START) as usize;
        while self.updates.get(from).is_some_and(|update| update.key < key) {
            from += 1;
        }
        let mut to = from;
        while self.updates.get(to).is_some_and(|update| update.key == key) {
            to += 1;
        }
        &self.updates[from..to]
    }

    fn accumulate(run: &[Update]) -> Found {
        let mut found = Found::Nothing;
        for same in run.chunk_by(|one, two| one.value == two.value) {
            match same.iter().map(|update| update.diff).sum::<Diff>() {
                0 => {}
                1.. => return Found::Present(same[0].value),
                _ => found = Found::Absent,
            }
        }
        found
    }

    /// The memory that the batch holds, in bytes.
    pub fn bytes(&self) -> usize {
        let times = match &self.times {
            Times::Same(_) => 0,
            Times::Each(times) => times.capacity() * size_of::<Epoch>(),
        };
        self.updates.capacity() * size_of::<Update>() + self.index.words.capacity() * size_of::<u64>() + times
    }
}

impl SpineBatch for StateBatch {
    type Time = Epoch;
    type Merger = StateMerger;
    fn len(&self) -> usize {
        self.updates.len()
    }
}
