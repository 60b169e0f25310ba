//! The ledger: which offsets belong to which epoch. Pure: no input or output, no threads, no clock.
//!
//! Offsets never leave the worker that read them; epochs travel through the dataflow in their place, and when an epoch is done
//! the ledger says what that means for the broker.

use std::collections::BTreeMap;

use crate::epoch::Epoch;
use crate::message::{Offset, Offsets, SplitId};

/// Maps epochs to the offsets that were reached in them, for the splits of one source on one worker.
#[derive(Debug, Default)]
pub struct Ledger {
    /// What is done: the offsets of every retired epoch.
    done: Offsets,
    /// The splits' next offsets at the end of each epoch that moved them.
    bindings: BTreeMap<Epoch, Offsets>,
    /// Epochs below it are closed.
    closed: Epoch,
    /// Epochs below it are retired.
    retired: Epoch,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Ledger::default()
    }

    /// Starts splits at offsets, as a checkpoint or a start position says.
    pub fn restore(&mut self, offsets: &Offsets) {
        for (split, offset) in offsets {
            let known = self.done.entry(*split).or_insert(*offset);
            *known = (*known).max(*offset);
        }
    }

    /// A message of an open epoch moved a split: `next` is the next offset to read.
    pub fn record(&mut self, epoch: Epoch, split: SplitId, next: Offset) {
        debug_assert!(epoch >= self.closed, "epoch {epoch} is closed up to {}", self.closed);
        let known = self.bindings.entry(epoch).or_default().entry(split).or_insert(next);
        debug_assert!(*known <= next, "split {split} went back from {known} to {next}");
        *known = (*known).max(next);
    }

    /// No message of this epoch or an earlier one will be recorded any more.
    pub fn close(&mut self, epoch: Epoch) {
        debug_assert!(epoch >= self.closed, "epoch {epoch} is closed up to {}", self.closed);
        self.closed = self.closed.max(epoch + 1);
    }

    /// What a checkpoint of everything below `bound` must store: the next offset of every split.
    pub fn offsets_at(&self, bound: Epoch) -> Offsets {
        debug_assert!(self.bindings.range(self.closed..).all(|(epoch, _)| *epoch >= bound), "not closed below {bound}");
        let mut offsets = self.done.clone();
        for binding in self.bindings.range(..bound).map(|(_, binding)| binding) {
            offsets.extend(binding.iter().map(|(split, offset)| (*split, *offset)));
        }
        offsets
    }

    /// Everything below `bound` is done: forgets these bindings and returns the offsets that moved, to be committed.
    pub fn retire(&mut self, bound: Epoch) -> Offsets {
        debug_assert!(bound >= self.retired, "the bound went back from {} to {bound}", self.retired);
        let mut moved = Offsets::new();
        if bound <= self.retired {
            return moved;
        }
        self.retired = bound;
        let rest = self.bindings.split_off(&bound);
        for binding in std::mem::replace(&mut self.bindings, rest).into_values() {
            moved.extend(binding);
        }
        self.done.extend(moved.iter().map(|(split, offset)| (*split, *offset)));
        moved
    }

    /// Keeps the ledger small while commits are held back for long: puts bindings of neighbouring epochs together, into the
    /// later one, so that at most about `most` remain. Commits are never too early by it; what a checkpoint between them would
    /// have to store is no longer known, so it is for jobs that store nothing.
    pub fn thin(&mut self, most: usize) {
        if self.bindings.len() <= most {
            return;
        }
        let open = self.bindings.split_off(&self.closed);
        let mut closed = std::mem::take(&mut self.bindings).into_iter();
        while let Some((epoch, mut offsets)) = closed.next() {
            let epoch = match closed.next() {
                Some((later, more)) => {
                    offsets.extend(more);
                    later
                }
                None => epoch,
            };
            self.bindings.insert(epoch, offsets);
        }
        self.bindings.extend(open);
    }

    /// Forgets a split that is read no more.
    pub fn remove(&mut self, split: SplitId) {
        self.done.remove(&split);
        for binding in self.bindings.values_mut() {
            binding.remove(&split);
        }
        self.bindings.retain(|_, binding| !binding.is_empty());
    }

    /// How many epochs wait to be retired.
    pub fn num_bindings(&self) -> usize {
        self.bindings.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(number: u32) -> SplitId {
        SplitId::numbered("topic", number)
    }

    proptest! {
        /// Against the plainest reference: the list of all (epoch, split, next) that were recorded.
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec((0u64..3, 0u32..4, 1u64..5, any::<bool>()), 0..60)) {
            let mut ledger = Ledger::new();
            let mut all: Vec<(Epoch, SplitId, Offset)> = vec![];
            let (mut epoch, mut retired) = (10, 0);
            let mut next = [Offset(0); 4];
            let at = |all: &[(Epoch, SplitId, Offset)], from: Epoch, bound: Epoch| -> Offsets {
                let mut offsets = Offsets::new();
                for (_, split, offset) in all.iter().filter(|(e, _, _)| *e >= from && *e < bound) {
                    offsets.insert(*split, *offset);
                }
                offsets
            };
            for (gap, number, by, retire) in steps {
                next[number as usize].0 += by;
                ledger.record(epoch, split(number), next[number as usize]);
                all.push((epoch, split(number), next[number as usize]));
                if gap > 0 {
                    ledger.close(epoch);
                    epoch += gap;
                    prop_assert_eq!(ledger.offsets_at(epoch), at(&all, 0, epoch));
                    if retire {
                        prop_assert_eq!(ledger.retire(epoch - 1), at(&all, retired, epoch - 1));
                        retired = epoch - 1;
                        prop_assert_eq!(ledger.offsets_at(epoch), at(&all, 0, epoch));
                    }
                }
            }
            ledger.close(epoch);
            prop_assert_eq!(ledger.retire(epoch + 1), at(&all, retired, epoch + 1));
            prop_assert_eq!(ledger.num_bindings(), 0);
        }
    }

    #[test]
    fn a_thin_ledger_commits_the_same_in_the_end_and_never_too_early() {
        let (mut whole, mut thin) = (Ledger::new(), Ledger::new());
        for epoch in 1..=1_000 {
            for ledger in [&mut whole, &mut thin] {
                ledger.record(epoch, split(epoch as u32 % 3), Offset(epoch));
                ledger.close(epoch);
            }
            thin.thin(16);
            assert!(thin.num_bindings() <= 17);
        }
        let (mut early, mut late) = (Offsets::new(), Offsets::new());
        for bound in [100, 333, 998, 1_001] {
            early.extend(whole.retire(bound));
            late.extend(thin.retire(bound));
            assert!(late.iter().all(|(split, offset)| early[split] >= *offset));
        }
        assert_eq!((early, thin.num_bindings()), (late, 0));
    }

    #[test]
    fn restored_offsets_are_stored_and_not_committed() {
        let mut ledger = Ledger::new();
        ledger.restore(&Offsets::from([(split(0), Offset(7))]));
        ledger.close(5);
        assert_eq!(ledger.offsets_at(6), Offsets::from([(split(0), Offset(7))]));
        assert_eq!(ledger.retire(6), Offsets::new());
    }
}
