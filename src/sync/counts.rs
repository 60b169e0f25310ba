//! What is counted: every record that comes in is, after every epoch, in exactly one place.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::message::Reason;

/// What happened in one epoch on one worker. Records are counted apart from documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Counts {
    /// Records that came in.
    pub arrived: u64,
    /// Records that waited in the checkpoint from which the job goes on.
    pub restored_records: u64,
    /// Records that left inside joined outputs.
    pub joined_records: u64,
    /// Records that left without a join: forgotten after their delay, or retired at the end.
    pub expired_records: u64,
    /// Records that wait after the epoch, delayed ones included: a level, not a flow.
    pub pending_records: u64,
    /// Records that were dropped, by reason, in the order of [`Reason::ALL`].
    pub dropped: [u64; Reason::ALL.len()],
    /// Joined outputs, late ones included.
    pub joins: u64,
    /// Joined outputs that are marked late.
    pub late_joins: u64,
    /// Delayed outputs.
    pub delays: u64,
    /// Delays that were not put out, because they are switched off.
    pub unmatched: u64,
}

impl Counts {
    /// Records dropped for a reason.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(crate) fn drop_records(&mut self, reason: Reason, records: u64) {
        self.dropped[reason as usize] += records;
    }

    /// Adds what happened in later epochs on the same workers.
    pub fn follow(&mut self, later: &Counts) {
        *self += *later;
        self.pending_records = later.pending_records;
    }

    /// Records in less records in all other places: 0 if nothing was lost or made up, for sums over all workers and epochs.
    pub fn difference(&self) -> i128 {
        let out = [self.joined_records, self.expired_records, self.pending_records];
        let out = out.iter().chain(&self.dropped).map(|count| i128::from(*count)).sum::<i128>();
        i128::from(self.arrived) + i128::from(self.restored_records) - out
    }
}

/// Adds what happened in the same epoch on another worker.
impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.arrived += other.arrived;
        self.restored_records += other.restored_records;
        self.joined_records += other.joined_records;
        self.expired_records += other.expired_records;
        self.pending_records += other.pending_records;
        for (count, other) in self.dropped.iter_mut().zip(other.dropped) {
            *count += other;
        }
        self.joins += other.joins;
        self.late_joins += other.late_joins;
        self.delays += other.delays;
        self.unmatched += other.unmatched;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_where_they_are_listed() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }

    #[test]
    fn levels_are_replaced_and_flows_added() {
        let mut total = Counts { arrived: 3, joined_records: 2, pending_records: 1, ..Counts::default() };
        assert_eq!(total.difference(), 0);
        let mut later = Counts { arrived: 1, pending_records: 1, ..Counts::default() };
        later.drop_records(Reason::Overridden, 1);
        total.follow(&later);
        assert_eq!((total.arrived, total.pending_records, total.dropped(Reason::Overridden)), (4, 1, 1));
        assert_eq!(total.difference(), 0);
    }
}
