//! The progress line of a terminal, and the conservation line at the end of a job.

use std::fmt::{self, Write};

use super::units::utc;
use crate::message::Reason;
use crate::observe::{AheadInput, Span};

/// Takes a line away from a terminal, so that another can be written in its place.
pub const CLEAR: &str = "\r\x1b[2K";

/// Number of records, by reason, in the order of [`Reason::ALL`].
pub type Dropped = [u64; Reason::ALL.len()];

/// What a progress line shows: sums over all workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Records read since the start.
    pub records_in: u64,
    /// Joined records emitted, those marked late included.
    pub joined: u64,
    /// Joined records marked late.
    pub late: u64,
    /// Records that wait for a partner.
    pub waiting: u64,
    /// Delays emitted.
    pub delayed: u64,
    /// Records dropped, by reason.
    pub dropped: Dropped,
    /// Documents that the broker refused and that became dead letters.
    pub undelivered: u64,
    /// The job's clock in milliseconds since the Unix epoch; 0 before the first record.
    pub clock_ms: u64,
    /// The wall clock in milliseconds since the Unix epoch.
    pub wall_ms: u64,
    /// Messages that the brokers still hold for the job, if they say.
    pub backlog: Option<u64>,
    /// Ids of messages that are remembered in this process, so that a second delivery is dropped.
    pub remembered_ids: u64,
    /// Splits that wait because they are ahead of others.
    pub paused: u64,
    /// The input that is ahead.
    pub ahead: Option<AheadInput>,
    /// Records read in the last second.
    pub rate: f64,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {} joined {}", Grouped(self.records_in), Grouped(self.joined))?;
        if self.late > 0 {
            write!(f, " (late {})", Grouped(self.late))?;
        }
        write!(f, " waiting {} delayed {}", Grouped(self.waiting), Grouped(self.delayed))?;
        for (reason, count) in reasons(&self.dropped) {
            write!(f, " {reason} {}", Grouped(count))?;
        }
        if self.undelivered > 0 {
            write!(f, " undelivered {}", Grouped(self.undelivered))?;
        }
        match self.clock_ms {
            0 => f.write_str(" | clock -")?,
            clock => write!(f, " | clock {} lag {}", Clock(clock), Span(self.wall_ms.saturating_sub(clock)))?,
        }
        if let Some(backlog) = self.backlog {
            write!(f, " backlog {}", Grouped(backlog))?;
        }
        if self.remembered_ids > 0 {
            write!(f, " ids {}", Grouped(self.remembered_ids))?;
        }
        if self.paused > 0 {
            write!(f, " | {} paused", Grouped(self.paused))?;
            if let Some(ahead) = &self.ahead {
                write!(f, ": {ahead}")?;
            }
        }
        write!(f, " | {}/s", Grouped(self.rate.max(0.0).round() as u64))
    }
}

impl Status {
    /// The line with what puts it in the place of the previous one; the terminal cuts what is too long.
    pub fn line(&self) -> String {
        const NO_WRAP: &str = "\x1b[?7l";
        const WRAP: &str = "\x1b[?7h";
        format!("{CLEAR}{NO_WRAP}{self}{WRAP}")
    }
}

/// What became of every record: sums over all workers, at the end of an epoch or of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conservation {
    /// Records read.
    pub records_in: u64,
    /// Records that were waiting when the job started.
    pub restored: u64,
    /// Records inside of joined records.
    pub joined_records: u64,
    /// Records that were given up without having joined.
    pub expired: u64,
    /// Records that wait, or whose delay was emitted and that may still join.
    pub pending: u64,
    /// Records dropped, by reason.
    pub dropped: Dropped,
    /// Joined records emitted, those marked late included.
    pub joined: u64,
    /// Joined records marked late.
    pub late: u64,
    /// Delays emitted.
    pub delayed: u64,
    /// Delays not emitted, because none are wanted.
    pub unmatched: u64,
    /// Documents among those emitted that the broker refused and that became dead letters, by reason.
    pub undelivered: Dropped,
}

impl Conservation {
    /// Records in minus records accounted for: anything but 0 is an error of the job.
    pub fn difference(&self) -> i128 {
        let sum = |numbers: &[u64]| numbers.iter().map(|number| i128::from(*number)).sum::<i128>();
        sum(&[self.records_in, self.restored])
            - sum(&[self.joined_records, self.expired, self.pending])
            - sum(&self.dropped)
    }
}

/// `conservation: in=5 restored=0 joined_records=2 expired=1 pending=1 dropped=1 dropped.late=1 joined=1 late=0 delayed=1
/// unmatched=0 difference=0`, on one line: the first six numbers add up, then come the documents emitted. Reasons that dropped
/// nothing are left out; if documents were refused by the broker, ` undelivered=1 undelivered.too_large=1` stands before the
/// difference.
impl fmt::Display for Conservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "conservation: in={} restored={} joined_records={} expired={} pending={} dropped={}",
            self.records_in,
            self.restored,
            self.joined_records,
            self.expired,
            self.pending,
            self.dropped.iter().sum::<u64>()
        )?;
        for (reason, count) in reasons(&self.dropped) {
            write!(f, " dropped.{reason}={count}")?;
        }
        write!(f, " joined={} late={} delayed={} unmatched={}", self.joined, self.late, self.delayed, self.unmatched)?;
        if self.undelivered != Dropped::default() {
            write!(f, " undelivered={}", self.undelivered.iter().sum::<u64>())?;
        }
        for (reason, count) in reasons(&self.undelivered) {
            write!(f, " undelivered.{reason}={count}")?;
        }
        write!(f, " difference={}", self.difference())
    }
}

fn reasons(dropped: &Dropped) -> impl Iterator<Item = (Reason, u64)> {
    Reason::ALL.into_iter().zip(*dropped).filter(|(_, count)| *count > 0)
}

/// A number with its digits in groups of three.
pub(super) struct Grouped(pub u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_char('_')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// A moment to the second, in UTC.
struct Clock(u64);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&utc(self.0 / 1000 * 1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(counts: &[(Reason, u64)]) -> Dropped {
        let mut dropped = Dropped::default();
        for (reason, count) in counts {
            dropped[*reason as usize] = *count;
        }
        dropped
    }

    #[test]
    fn progress_says_what_happens() {
        let mut status = Status { rate: 0.4, ..Status::default() };
        assert_eq!(status.to_string(), "in 0 joined 0 waiting 0 delayed 0 | clock - | 0/s");
        status = Status {
            records_in: 1_937_686,
            joined: 890_123,
            late: 7,
            waiting: 1_000,
            delayed: 999,
            dropped: dropped(&[(Reason::KeyNull, 2), (Reason::Duplicate, 38_112)]),
            undelivered: 3,
            clock_ms: 1_600_000_000_999,
            wall_ms: 1_600_000_003_399,
            backlog: Some(12),
            rate: 281_000.4,
            ..Status::default()
        };
        assert_eq!(
            status.to_string(),
            "in 1_937_686 joined 890_123 (late 7) waiting 1_000 delayed 999 duplicate 38_112 key_null 2 \
             undelivered 3 | clock 2020-09-13T12:26:40Z lag 2.4s backlog 12 | 281_000/s"
        );
        let ahead = AheadInput { input: "one".into(), other: "two".into(), by: Some(3_540_000) };
        status = Status { remembered_ids: 1_200, paused: 2, ahead: Some(ahead), ..Status::default() };
        assert_eq!(
            status.to_string(),
            "in 0 joined 0 waiting 0 delayed 0 | clock - ids 1_200 | 2 paused: input \"one\" is 59m0s ahead of \"two\" | 0/s"
        );
        status.records_in = 1_937_686;
        assert!(status.line().starts_with("\r\x1b[2K\x1b[?7lin 1_937_686 "));
    }

    #[test]
    fn moments_have_an_end() {
        assert_eq!(Clock(u64::MAX).to_string(), "after the year 9999");
    }

    #[test]
    fn conservation_adds_up() {
        let mut conservation = Conservation {
            records_in: 9,
            restored: 1,
            joined_records: 4,
            expired: 1,
            pending: 2,
            dropped: dropped(&[(Reason::Overridden, 2), (Reason::InvalidJson, 1)]),
            joined: 2,
            late: 1,
            delayed: 2,
            unmatched: 0,
            undelivered: Dropped::default(),
        };
        assert_eq!(
            conservation.to_string(),
            "conservation: in=9 restored=1 joined_records=4 expired=1 pending=2 dropped=3 dropped.overridden=2 \
             dropped.invalid_json=1 joined=2 late=1 delayed=2 unmatched=0 difference=0"
        );
        conservation.undelivered = dropped(&[(Reason::TooLarge, 1), (Reason::Refused, 2)]);
        let end = " unmatched=0 undelivered=3 undelivered.too_large=1 undelivered.refused=2 difference=0";
        assert!(conservation.to_string().ends_with(end), "{conservation}");
        conservation.pending = 3;
        assert_eq!(conservation.difference(), -1);
    }
}
