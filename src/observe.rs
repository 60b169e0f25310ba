//! What a running job tells about itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::epoch::Epoch;
use crate::message::Reason;
use crate::sink::Undelivered;

/// A moment of a job, as far as this process knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Messages read by the workers of this process, in closed epochs, refused ones too.
    pub records_read: u64,
    /// Messages that went no further: refused by their codecs, or delivered before, by reason.
    pub refused: [u64; Reason::ALL.len()],
    /// Timestamps too far ahead of the wall clock to be believed.
    pub ahead: u64,
    /// Offsets that brokers had no longer and that were skipped because an option said so: at least as many as there were messages.
    pub lost_offsets: u64,
    /// Calls of brokers that failed and were tried again, commits apart.
    pub retries: u64,
    /// Readers that gave nothing although their brokers had something, and were opened anew.
    pub rebuilt: u64,
    /// Splits, of all workers, that are paused because they are ahead of others.
    pub paused: u64,
    /// The input that is ahead of the others by timestamps, if one is.
    pub ahead_input: Option<AheadInput>,
    /// Messages that the brokers still hold for the splits that this process reads, as they said when they were last asked:
    /// about every ten seconds. `None` if none was asked yet, or one does not say.
    pub backlog: Option<u64>,
    /// Commits that failed; the next one says the same again.
    pub failed_commits: u64,
    /// Ids of messages that are remembered, so that a second delivery is dropped, on the workers of this process.
    pub remembered_ids: u64,
    /// Outputs that a broker refused one by one and that became dead letters, by reason. Those of all workers of the job; other
    /// processes than that of worker 0 know none.
    pub undelivered: Undelivered,
    /// The job's clock, in milliseconds since the Unix epoch.
    pub clock: u64,
    /// Everything below this epoch is published and may be committed.
    pub bound: Epoch,
}

/// Of two inputs, which one is ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AheadInput {
    /// The one that is ahead.
    pub input: String,
    /// The one that is behind all others.
    pub other: String,
    /// How far they are apart in event time, in milliseconds; `None` if the other one has said no time yet.
    pub by: Option<u64>,
}

impl fmt::Display for AheadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AheadInput { input, other, by } = self;
        match by {
            Some(by) => write!(f, "input \"{input}\" is {} ahead of \"{other}\"", Span(*by)),
            None => write!(f, "input \"{input}\" is ahead of \"{other}\", of which no time is known yet"),
        }
    }
}

/// Milliseconds, printed in the unit that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SECOND: u64 = 1_000;
        const MINUTE: u64 = 60 * SECOND;
        const HOUR: u64 = 60 * MINUTE;
        const DAY: u64 = 24 * HOUR;
        match self.0 {
            ms @ ..SECOND => write!(f, "{ms}ms"),
            ms @ ..MINUTE => write!(f, "{}.{}s", ms / SECOND, ms % SECOND / 100),
            ms @ ..HOUR => write!(f, "{}m{}s", ms / MINUTE, ms % MINUTE / SECOND),
            ms @ ..DAY => write!(f, "{}h{}m", ms / HOUR, ms % HOUR / MINUTE),
            ms => write!(f, "{}d{}h", ms / DAY, ms % DAY / HOUR),
        }
    }
}

/// Shared by all workers of a process and whoever wants to look.
#[derive(Debug, Default)]
pub struct Status(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    snapshot: Snapshot,
    /// What is left for each reader, by input and worker.
    backlogs: BTreeMap<(usize, usize), Option<u64>>,
    /// How many ids are remembered, by worker.
    ids: BTreeMap<usize, u64>,
}

impl Status {
    /// What is known now.
    pub fn snapshot(&self) -> Snapshot {
        let known = self.lock();
        let backlogs = known.backlogs.values().copied().sum::<Option<u64>>();
        let backlog = backlogs.filter(|_| !known.backlogs.is_empty());
        Snapshot { backlog, remembered_ids: known.ids.values().sum(), ..known.snapshot.clone() }
    }

    /// Adds what was read; returns how many messages that makes.
    pub(crate) fn read(&self, records: u64, refused: &[u64; Reason::ALL.len()], ahead: u64) -> u64 {
        let snapshot = &mut self.lock().snapshot;
        snapshot.records_read += records;
        snapshot.ahead += ahead;
        for (total, refused) in snapshot.refused.iter_mut().zip(refused) {
            *total += refused;
        }
        snapshot.records_read
    }

    pub(crate) fn lost(&self, offsets: u64) {
        self.lock().snapshot.lost_offsets += offsets;
    }

    pub(crate) fn retry(&self) {
        self.lock().snapshot.retries += 1;
    }

    pub(crate) fn rebuilt(&self) {
        self.lock().snapshot.rebuilt += 1;
    }

    /// What the broker holds for the reader of an input on a worker.
    pub(crate) fn backlog(&self, input: usize, worker: usize, backlog: Option<u64>) {
        self.lock().backlogs.insert((input, worker), backlog);
    }

    /// How many splits are paused, and which input is ahead.
    pub(crate) fn align(&self, paused: u64, ahead: Option<AheadInput>) {
        let snapshot = &mut self.lock().snapshot;
        snapshot.paused = paused;
        snapshot.ahead_input = ahead;
    }

    /// How many ids a worker remembers.
    pub(crate) fn remember(&self, worker: usize, ids: u64) {
        self.lock().ids.insert(worker, ids);
    }

    pub(crate) fn failed_commit(&self) {
        self.lock().snapshot.failed_commits += 1;
    }

    pub(crate) fn undelivered(&self, more: &Undelivered) {
        for (total, more) in self.lock().snapshot.undelivered.iter_mut().zip(more) {
            *total += more;
        }
    }

    pub(crate) fn follow(&self, clock: u64, bound: Epoch) {
        let snapshot = &mut self.lock().snapshot;
        snapshot.clock = snapshot.clock.max(clock);
        snapshot.bound = snapshot.bound.max(bound);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_fitting_unit() {
        for (ms, expected) in
            [(0, "0ms"), (999, "999ms"), (1_000, "1.0s"), (61_000, "1m1s"), (3_600_000, "1h0m"), (90_000_000, "1d1h")]
        {
            assert_eq!(Span(ms).to_string(), expected);
        }
    }

    #[test]
    fn the_backlog_is_a_sum_or_not_known() {
        let status = Status::default();
        assert_eq!(status.snapshot().backlog, None);
        status.backlog(0, 0, Some(3));
        status.backlog(1, 0, Some(4));
        status.backlog(0, 0, Some(1));
        assert_eq!(status.snapshot().backlog, Some(5));
        status.backlog(0, 1, None);
        assert_eq!(status.snapshot().backlog, None);
    }
}
