//! Split time: how far a split has come on the job's clock. Pure: time is handed in.
//!
//! The job's clock is the minimum of the split times over the open splits of all workers; deadlines are set and pass on it.
//!
//! [`TimeMode::Auto`] promises that a record is delayed only after every split had `window` of real opportunity: it was read
//! past, or it was caught up for `window` while we were asking. A silent topic times out; a backlog, an outage, a pause of ours
//! or downtime never does. So the time of a split is
//!
//! * while behind, the largest timestamp read, capped at the wall clock;
//! * while caught up, what it was, plus the time that really passed since;
//! * after `window` of uninterrupted caught-up time, the wall clock.
//!
//! [`TimeMode::Event`] is the usual watermark: the largest timestamp read less `max_disorder`; a split with nothing to read for
//! `idle_after` is left out until it has something again.
//!
//! A split time never goes back. The wall clock may jump: a jump interrupts caught-up time, so that no deadline passes by it. What is
//! less than a second is taken for slewing, and may make a window that much shorter or longer. Nor does the wall clock of a run go back,
//! or begin before that of the run whose checkpoint it goes on from ([`SteadyClock`](crate::epoch::SteadyClock)).

use std::time::Duration;

use crate::source::Evidence;

mod drift;

pub use drift::{Limit, Low};

/// How long "nothing more to read" stays true without being said again.
pub const EVIDENCE_AGE: Duration = Duration::from_secs(2);

/// A difference between wall and monotonic time above which the wall clock has jumped, in milliseconds. Below it is slewing.
const JUMP_MS: u64 = 1_000;

/// What makes the job's clock move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeMode {
    /// Timestamps while there is a backlog, real time while there is none.
    Auto {
        /// How long a split must be caught up for its time to be the wall clock: the longest window of the job.
        window: Duration,
    },
    /// Timestamps alone.
    Event {
        /// How much older than the newest timestamp of its split a record may be.
        max_disorder: Duration,
        /// How long a split must have had nothing to read, while being asked, to be left out.
        idle_after: Duration,
    },
}

impl TimeMode {
    /// How far a split may be ahead of the clock if nobody says: a window, as nothing can be given up before one has passed, or a
    /// minute of event time.
    pub fn max_drift(self) -> Duration {
        match self {
            TimeMode::Auto { window } => window,
            TimeMode::Event { .. } => Duration::from_secs(60),
        }
    }
}

/// A moment: the wall clock in milliseconds since the Unix epoch, and the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since the Unix epoch.
    pub wall: u64,
    /// Time since an arbitrary moment.
    pub monotonic: Duration,
}

/// What a record gets when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time its deadline counts from.
    pub base: u64,
    /// Its timestamp as far as it is believed.
    pub timestamp: u64,
    /// Its own timestamp was too far ahead of the wall clock, and was not believed.
    pub ahead: bool,
}

/// Caught-up time without interruption.
#[derive(Clone, Copy, Debug)]
struct CaughtUp {
    /// When it began, or the split last gave a message in event mode.
    since: Duration,
    /// When it was last said.
    said: Duration,
    /// Wall less monotonic time when it began, in milliseconds: it changes when the wall clock jumps.
    skew: i128,
}

/// The time of one split.
#[derive(Clone, Debug)]
pub struct SplitTime {
    mode: TimeMode,
    max_ahead: u64,
    /// The time itself. In event mode the largest believed timestamp, from which the disorder is still to be taken.
    time: u64,
    /// Up to where elapsed time is in it: evidence that comes late must not count the same time again.
    counted: Duration,
    caught_up: Option<CaughtUp>,
    ended: bool,
    /// Whether anything that was read said a time that was believed; `None` before anything was read.
    timed: Option<bool>,
}

fn skew(now: Now) -> i128 {
    i128::from(now.wall) - now.monotonic.as_millis() as i128
}

impl SplitTime {
    /// A split of which nothing was read yet. `max_ahead` is how far timestamps may be ahead of the wall clock.
    pub fn new(mode: TimeMode, max_ahead: Duration) -> Self {
        SplitTime {
            mode,
            max_ahead: max_ahead.as_millis() as u64,
            time: 0,
            counted: Duration::ZERO,
            caught_up: None,
            ended: false,
            timed: None,
        }
    }

    /// What a checkpoint keeps of it: the time itself, and whether anything that was read said one.
    pub fn saved(&self) -> (u64, Option<bool>) {
        (self.time, self.timed)
    }

    /// Goes on from what a checkpoint kept. Whether it is caught up must be said anew: the time in between does not count.
    pub fn restore(&mut self, (time, timed): (u64, Option<bool>)) {
        self.time = self.time.max(time);
        self.timed = timed;
    }

    /// A record was read; `timestamp` is its own, if it has one. `clock` is the job's clock as far as it is known here: a record
    /// that is read live gets its whole window from there even if the wall clock was turned back.
    pub fn read(&mut self, timestamp: Option<u64>, now: Now, clock: u64) -> Arrival {
        self.pass(now);
        let ahead = timestamp.is_some_and(|timestamp| timestamp > now.wall.saturating_add(self.max_ahead));
        let believed = if ahead { Some(now.wall) } else { timestamp };
        self.timed = Some(self.timed == Some(true) || timestamp.is_some() && !ahead);
        if let Some(timestamp) = timestamp.filter(|_| !ahead) {
            let cap = match self.mode {
                TimeMode::Auto { .. } => now.wall,
                TimeMode::Event { .. } => u64::MAX,
            };
            self.time = self.time.max(timestamp.min(cap));
        }
        let base = match self.mode {
            TimeMode::Auto { .. } if self.caught_up.is_some() => self.time.max(now.wall).max(clock),
            TimeMode::Auto { .. } => self.time,
            TimeMode::Event { .. } => believed.unwrap_or(self.time),
        };
        if let (TimeMode::Event { .. }, Some(caught_up)) = (self.mode, &mut self.caught_up) {
            caught_up.since = now.monotonic;
        }
        Arrival { base, timestamp: believed.unwrap_or(base), ahead }
    }

    /// A message was read that is no record, so its time is not known.
    pub fn refuse(&mut self) {
        self.timed.get_or_insert(false);
    }

    /// The reader said how far it is.
    pub fn evidence(&mut self, evidence: Evidence, now: Now) {
        self.pass(now);
        match (evidence, &mut self.caught_up) {
            (Evidence::CaughtUp, Some(caught_up)) => caught_up.said = now.monotonic,
            (Evidence::CaughtUp, none) => {
                let since = now.monotonic;
                *none = Some(CaughtUp { since, said: since, skew: skew(now) });
                self.counted = self.counted.max(since);
            }
            (Evidence::Behind, _) => self.caught_up = None,
            (Evidence::Ended, _) => {
                self.caught_up = None;
                self.ended = true;
            }
        }
    }

    /// The time now, or `None` if the split does not count: it has ended, or it is idle in event mode.
    pub fn time(&mut self, now: Now) -> Option<u64> {
        self.pass(now);
        match self.mode {
            _ if self.ended => None,
            TimeMode::Auto { .. } => Some(self.time),
            TimeMode::Event { idle_after, .. }
                if self.caught_up.is_some_and(|c| now.monotonic.saturating_sub(c.since) >= idle_after) =>
            {
                None
            }
            TimeMode::Event { max_disorder, .. } => Some(self.time.saturating_sub(max_disorder.as_millis() as u64)),
        }
    }

    /// Whether the reader has said, lately, that there is nothing more.
    pub fn is_caught_up(&mut self, now: Now) -> bool {
        self.pass(now);
        self.caught_up.is_some()
    }

    /// Whether messages were read, and none of them has said a time.
    pub fn is_untimed(&self) -> bool {
        self.timed == Some(false)
    }

    /// How far it has come by timestamps, if any was read: the split may have ended meanwhile.
    pub fn reached(&self) -> Option<u64> {
        let disorder = match self.mode {
            TimeMode::Auto { .. } => Duration::ZERO,
            TimeMode::Event { max_disorder, .. } => max_disorder,
        };
        (self.timed == Some(true)).then(|| self.time.saturating_sub(disorder.as_millis() as u64))
    }

    /// Whether nothing will come any more.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Counts the time that has passed.
    fn pass(&mut self, now: Now) {
        let Some(caught_up) = &mut self.caught_up else {
            return;
        };
        let fresh_until = caught_up.said + EVIDENCE_AGE;
        let upto = now.monotonic.min(fresh_until);
        if let TimeMode::Auto { window } = self.mode {
            let passed = upto.saturating_sub(self.counted).as_millis() as u64;
            self.time += passed;
            self.counted += Duration::from_millis(passed);
            if skew(now).abs_diff(caught_up.skew) > u128::from(JUMP_MS) {
                caught_up.since = now.monotonic;
                caught_up.skew = skew(now);
            }
            let fresh = now.monotonic <= fresh_until;
            if fresh && now.monotonic.saturating_sub(caught_up.since) >= window {
                self.time = self.time.max(now.wall);
            }
        }
        if now.monotonic > fresh_until {
            self.caught_up = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);
    const HOUR: Duration = Duration::from_secs(3600);
    const START: u64 = 1_000_000_000;

    fn auto() -> SplitTime {
        SplitTime::new(TimeMode::Auto { window: WINDOW }, HOUR)
    }
    fn at(ms: u64) -> Now {
        Now { wall: START + ms, monotonic: Duration::from_millis(ms) }
    }

    #[test]
    fn a_backlog_moves_by_its_timestamps_alone() {
        let mut split = auto();
        assert_eq!(split.read(Some(500), at(0), 0), Arrival { base: 500, timestamp: 500, ahead: false });
        assert_eq!(split.time(at(60_000)), Some(500));
        assert_eq!(split.read(Some(400), at(60_000), 0).base, 500);
    }

    #[test]
    fn caught_up_time_passes_and_becomes_the_wall_clock_after_the_window() {
        let mut split = auto();
        split.read(Some(500), at(0), 0);
        for ms in (0..10_000).step_by(1_000) {
            split.evidence(Evidence::CaughtUp, at(ms));
            assert_eq!(split.time(at(ms)), Some(500 + ms));
        }
        split.evidence(Evidence::CaughtUp, at(10_000));
        assert_eq!(split.time(at(10_000)), Some(START + 10_000));
        assert_eq!(split.read(None, at(10_001), 0).base, START + 10_001);
    }

    #[test]
    fn evidence_ages_and_an_outage_stops_time() {
        let mut split = auto();
        split.evidence(Evidence::CaughtUp, at(0));
        assert_eq!(split.time(at(60_000)), Some(2_000));
        assert!(!split.is_caught_up(at(60_000)));
        split.evidence(Evidence::CaughtUp, at(70_000));
        assert_eq!(split.time(at(71_000)), Some(3_000));
        split.evidence(Evidence::Behind, at(71_000));
        assert_eq!(split.time(at(72_000)), Some(3_000));
    }

    /// A worker counts time when it closes an epoch, and takes what its reader has said before that only then.
    #[test]
    fn evidence_that_comes_late_counts_no_time_twice() {
        let mut split = auto();
        split.evidence(Evidence::CaughtUp, at(0));
        assert_eq!(split.time(at(100)), Some(100));
        split.evidence(Evidence::Behind, at(50));
        split.evidence(Evidence::CaughtUp, at(60));
        assert_eq!(split.time(at(100)), Some(100));
        assert_eq!(split.time(at(130)), Some(130));
    }

    #[test]
    fn a_jump_of_the_wall_clock_passes_no_window() {
        let jumped = |ms: u64, by: i64| Now { wall: (START + ms).saturating_add_signed(by), ..at(ms) };
        for by in [3_600_000i64, -3_600_000] {
            let mut split = auto();
            for ms in (0..=20_000).step_by(1_000) {
                split.evidence(Evidence::CaughtUp, at(ms));
            }
            assert_eq!(split.time(at(20_000)), Some(START + 20_000));
            split.evidence(Evidence::CaughtUp, jumped(21_000, by));
            assert_eq!(split.time(jumped(21_000, by)), Some(START + 21_000));
            assert!(split.read(None, jumped(21_000, by), 0).base >= START + 21_000);
            for ms in (22_000..=31_000).step_by(1_000) {
                split.evidence(Evidence::CaughtUp, jumped(ms, by));
            }
            let expected = (START + 31_000).max(jumped(31_000, by).wall);
            assert_eq!(split.time(jumped(31_000, by)), Some(expected));
        }
    }

    #[test]
    fn timestamps_of_the_future_are_not_believed() {
        let event = TimeMode::Event { max_disorder: Duration::ZERO, idle_after: HOUR };
        for mode in [TimeMode::Auto { window: WINDOW }, event] {
            let mut split = SplitTime::new(mode, HOUR);
            let arrival = split.read(Some(START + 3_600_001), at(0), 0);
            assert_eq!((arrival.timestamp, arrival.ahead), (START, true));
            assert_eq!(split.time(at(0)), Some(0));
            assert!(!split.read(Some(START + 3_600_000), at(0), 0).ahead);
        }
    }

    #[test]
    fn event_time_follows_timestamps_and_leaves_idle_splits_out() {
        let idle_after = Duration::from_secs(5);
        let mut split = SplitTime::new(TimeMode::Event { max_disorder: Duration::from_millis(100), idle_after }, HOUR);
        assert_eq!(split.read(Some(1_000), at(0), 0).base, 1_000);
        assert_eq!(split.time(at(0)), Some(900));
        for ms in (0..5_000).step_by(1_000) {
            split.evidence(Evidence::CaughtUp, at(ms));
            assert_eq!(split.time(at(ms)), Some(900));
        }
        split.evidence(Evidence::CaughtUp, at(5_000));
        assert_eq!(split.time(at(5_000)), None);
        assert_eq!(split.read(Some(1_500), at(5_001), 0).base, 1_500);
        assert_eq!(split.time(at(5_001)), Some(1_400));
        split.evidence(Evidence::Ended, at(5_002));
        assert_eq!(split.time(at(5_002)), None);
    }
}

#[cfg(test)]
mod alignment;
#[cfg(test)]
mod event_model;
#[cfg(test)]
mod model;
