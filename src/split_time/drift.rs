//! Which splits are too far ahead of the others, so that they have to wait. Pure.
//!
//! A record waits until the other sides have come as far as it, so what a split is ahead is state. A split that is more than
//! `max` ahead is paused until half of that is left: its messages wait in the broker.
//!
//! * Splits that have something to read hold the others: they will come on. So the one that is furthest behind is never
//!   paused, and something goes on as long as a broker gives anything.
//! * Splits that are caught up and yet behind in time (they are silent, and the job has not watched them for the window or for
//!   `idle_after`) hold others only where memory needs it. Otherwise one silent split would stop every job for that long
//!   after each start.
//! * A split whose messages say no times holds nobody: nothing that it gives would let the others go on.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Now, SplitTime};

/// The smallest times of splits that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Low {
    /// Of all of them.
    pub all: Option<u64>,
    /// Of those that have something to read, or may have.
    pub behind: Option<u64>,
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

impl Low {
    /// Of splits of which nothing is known yet.
    pub const UNKNOWN: Low = Low { all: Some(0), behind: Some(0) };

    /// Of these and of those.
    #[must_use]
    pub fn and(self, other: Low) -> Low {
        Low { all: least(self.all, other.all), behind: least(self.behind, other.behind) }
    }

    /// Of a split.
    pub fn of(split: &mut SplitTime, now: Now) -> Low {
        let all = split.time(now).filter(|_| !split.is_untimed());
        Low { all, behind: all.filter(|_| !split.is_caught_up(now)) }
    }
}

/// How far splits may be ahead, at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// How far.
    pub max: Duration,
    /// The job's clock as far as it is known, in milliseconds since the Unix epoch: splits that are found late do not turn it
    /// back, and hold the others only there.
    pub clock: u64,
    /// The times of all splits of all workers.
    pub low: Low,
    /// The state is so large that it must not grow because of splits that are silent.
    pub full: bool,
}

impl Limit {
    /// Whether a split has to wait, that is `paused` now or is not.
    pub fn pauses(&self, split: &mut SplitTime, paused: bool, now: Now) -> bool {
        let Some(time) = split.time(now) else { return false };
        let max = self.max.as_millis() as u64;
        let allowed = if paused { max / 2 } else { max };
        let is_beyond = |low: Option<u64>| low.is_some_and(|low| time > low.max(self.clock).saturating_add(allowed));
        is_beyond(self.low.behind) || self.full && !split.is_caught_up(now) && is_beyond(self.low.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Evidence;
    use crate::split_time::TimeMode;

    const NOW: Now = Now { wall: 10_000_000, monotonic: Duration::ZERO };

    fn split(timestamps: &[Option<u64>], evidence: Evidence) -> SplitTime {
        let mode = TimeMode::Auto { window: Duration::from_secs(10) };
        let mut split = SplitTime::new(mode, Duration::from_secs(3600));
        for timestamp in timestamps {
            split.read(*timestamp, NOW, 0);
        }
        split.evidence(evidence, NOW);
        split
    }

    /// Whether a split that was read up to 2,000 waits for this one.
    fn waits_for(mut other: SplitTime, max: u64, paused: bool, full: bool) -> bool {
        let mut split = split(&[Some(2_000)], Evidence::Behind);
        let low = Low::of(&mut split, NOW).and(Low::of(&mut other, NOW));
        let limit = Limit { max: Duration::from_millis(max), clock: 0, low, full };
        assert!(!limit.pauses(&mut other, paused, NOW), "the last one is never paused");
        limit.pauses(&mut split, paused, NOW)
    }

    #[test]
    fn a_split_waits_for_one_that_has_something_to_read() {
        let behind = || split(&[Some(1_000)], Evidence::Behind);
        assert!(waits_for(behind(), 999, false, false));
        assert!(!waits_for(behind(), 1_000, false, false));
        assert!(waits_for(behind(), 1_999, true, false), "until half of it is left");
        assert!(!waits_for(behind(), 2_000, true, false));
        assert!(waits_for(split(&[], Evidence::Behind), 1_999, false, false), "one that has given nothing yet, too");
        assert!(!waits_for(split(&[Some(1_000)], Evidence::Ended), 0, false, true));
        assert!(!waits_for(split(&[None], Evidence::Behind), 0, false, true), "it will never say a time");
        assert!(waits_for(split(&[None, Some(1_000), None], Evidence::Behind), 999, false, false));
    }

    #[test]
    fn a_split_waits_for_silence_only_where_memory_is_full() {
        for silent in [&[][..], &[Some(1_000)]] {
            assert!(!waits_for(split(silent, Evidence::CaughtUp), 999, false, false));
            assert!(waits_for(split(silent, Evidence::CaughtUp), 999, false, true));
        }
        let mut live = split(&[Some(2_000)], Evidence::CaughtUp);
        let limit = Limit { max: Duration::ZERO, clock: 0, low: Low { all: Some(0), behind: None }, full: true };
        assert!(!limit.pauses(&mut live, false, NOW), "what comes live is not held back");
    }

    #[test]
    fn a_split_found_late_holds_at_the_clock() {
        let mut split = split(&[Some(2_000)], Evidence::Behind);
        let limit = |clock| Limit { max: Duration::from_millis(500), clock, low: Low::UNKNOWN, full: false };
        assert!(limit(1_499).pauses(&mut split, false, NOW));
        assert!(!limit(1_500).pauses(&mut split, false, NOW));
    }
}
