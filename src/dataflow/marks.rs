//! The times of splits at the ends of epochs, as checkpoints need them. Pure.
//!
//! A checkpoint of what is below an epoch must hold the times of that moment: a split has been read further meanwhile, and a time
//! that is ahead of the offset beside it would let deadlines pass that nobody had the chance to meet.

use std::collections::{BTreeMap, VecDeque};

use crate::checkpoint::SplitMark;
use crate::epoch::Epoch;
use crate::message::{Offsets, SplitId};

/// The time of a split, and whether anything that was read has said one.
pub(crate) type Time = (u64, Option<bool>);

/// What is known of the splits of one input on one worker.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    source: u32,
    /// The times at the ends of the epochs that are in no frame yet.
    closed: VecDeque<(Epoch, Vec<(SplitId, Time)>)>,
    /// The times before them.
    known: BTreeMap<SplitId, Time>,
    /// What the last frame said.
    sent: BTreeMap<SplitId, SplitMark>,
}

impl Marks {
    /// Nothing is known yet of the splits of the input with this number.
    pub fn new(source: usize) -> Self {
        Marks { source: source as u32, ..Marks::default() } // inputs are few
    }

    /// An epoch was closed with these times. Epochs come in their order.
    pub fn close(&mut self, epoch: Epoch, times: Vec<(SplitId, Time)>) {
        if self.closed.back().map(|(_, last)| last) != Some(&times) {
            self.closed.push_back((epoch, times));
        }
    }

    /// The marks at a bound for a frame, those that differ from the last frame's; `offsets` are the ones of the same bound.
    pub fn at(&mut self, bound: Epoch, offsets: &Offsets) -> Vec<SplitMark> {
        while self.closed.front().is_some_and(|(epoch, _)| *epoch < bound) {
            self.known.extend(self.closed.pop_front().into_iter().flat_map(|(_, times)| times));
        }
        let mut moved = vec![];
        for (split, offset) in offsets {
            let (time, timed) = self.known.get(split).copied().unwrap_or_default();
            let mark = SplitMark { source: self.source, split: *split, offset: *offset, time, timed };
            if self.sent.insert(*split, mark) != Some(mark) {
                moved.push(mark);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Offset;

    #[test]
    fn times_are_those_of_the_bound() {
        let split = |number| SplitId::numbered("t", number);
        let mark = |number, offset, time| SplitMark {
            source: 2,
            split: split(number),
            offset: Offset(offset),
            time,
            timed: Some(true),
        };
        let offsets = |one, two| Offsets::from([(split(1), Offset(one)), (split(2), Offset(two))]);
        let mut marks = Marks::new(2);
        marks.close(5, vec![(split(1), (50, Some(true))), (split(2), (40, Some(true)))]);
        marks.close(6, vec![(split(1), (50, Some(true))), (split(2), (40, Some(true)))]);
        marks.close(7, vec![(split(1), (70, Some(true))), (split(2), (40, Some(true)))]);
        assert_eq!(marks.at(7, &offsets(1, 2)), [mark(1, 1, 50), mark(2, 2, 40)]);
        assert_eq!(marks.at(7, &offsets(1, 2)), []);
        assert_eq!(marks.at(9, &offsets(3, 2)), [mark(1, 3, 70)]);
        marks.close(9, vec![(split(1), (90, Some(true)))]); // the other one is read no more
        assert_eq!(marks.at(10, &offsets(3, 2)), [mark(1, 3, 90)]);
    }
}
