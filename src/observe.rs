//! What a running job tells about itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::epoch::Epoch;
use crate::message::Reason;
use crate::sink::Undelivered;

/// A moment of a job, as far as this process knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Messages read by the workers of this process, in closed epochs, refused ones too.
    pub records_read: u64,
    /// Messages refused by their codecs, by reason.
    pub refused: [u64; Reason::ALL.len()],
    /// Timestamps too far ahead of the wall clock to be believed.
    pub ahead: u64,
    /// Offsets that brokers had no longer and that were skipped because an option said so: at least as many as there were messages.
    pub lost_offsets: u64,
    /// Calls of brokers that failed and were tried again, commits apart.
    pub retries: u64,
    /// Commits that failed; the next one says the same again.
    pub failed_commits: u64,
    /// Outputs that a broker refused one by one and that became dead letters, by reason. Those of all workers of the job; other
    /// processes than that of worker 0 know none.
    pub undelivered: Undelivered,
    /// The job's clock, in milliseconds since the Unix epoch.
    pub clock: u64,
    /// Everything below this epoch is published and may be committed.
    pub bound: Epoch,
}

/// Shared by all workers of a process and whoever wants to look.
#[derive(Debug, Default)]
pub struct Status(Mutex<Snapshot>);

impl Status {
    /// What is known now.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    /// Adds what was read; returns how many messages that makes.
    pub(crate) fn read(&self, records: u64, refused: &[u64; Reason::ALL.len()], ahead: u64) -> u64 {
        let mut snapshot = self.lock();
        snapshot.records_read += records;
        snapshot.ahead += ahead;
        for (total, refused) in snapshot.refused.iter_mut().zip(refused) {
            *total += refused;
        }
        snapshot.records_read
    }

    pub(crate) fn lost(&self, offsets: u64) {
        self.lock().lost_offsets += offsets;
    }

    pub(crate) fn retry(&self) {
        self.lock().retries += 1;
    }

    pub(crate) fn failed_commit(&self) {
        self.lock().failed_commits += 1;
    }

    pub(crate) fn undelivered(&self, more: &Undelivered) {
        for (total, more) in self.lock().undelivered.iter_mut().zip(more) {
            *total += more;
        }
    }

    pub(crate) fn follow(&self, clock: u64, bound: Epoch) {
        let mut snapshot = self.lock();
        snapshot.clock = snapshot.clock.max(clock);
        snapshot.bound = snapshot.bound.max(bound);
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
