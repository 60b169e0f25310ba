//! Options of the synchronization.

use std::time::Duration;

use crate::error::{Error, Result};

/// The most sides that can be joined.
pub const MAX_SIDES: usize = 8;

/// What becomes of records that arrive after the delay of their key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Late {
    /// They complete the key, and the join is marked late.
    #[default]
    Join,
    /// The delay is final: they are dropped.
    Drop,
}

/// Which record of a side counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicates {
    /// The last one: it replaces the others, and its deadline starts anew.
    #[default]
    Last,
    /// The first one: the others are dropped.
    First,
}

/// What becomes of keys that wait when all input has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtEnd {
    /// They are delayed at once, and everything is forgotten.
    #[default]
    Delay,
    /// They go on waiting, for another run.
    Keep,
}

/// How records are synchronized. Durations are counted in whole milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// For each side, how long after its record the other sides may come.
    pub windows: Vec<Duration>,
    /// How long a key is known after its join or delay.
    pub remember: Duration,
    /// What becomes of records that arrive after the delay of their key.
    pub late: Late,
    /// Which record of a side counts.
    pub duplicates: Duplicates,
    /// What becomes of keys that wait when all input has ended.
    pub at_end: AtEnd,
    /// How long a key whose records are replaced for ever waits at most, from the first one on.
    pub max_wait: Option<Duration>,
    /// Whether delays are put out, or only counted.
    pub emit_delays: bool,
}

/// The longest duration: times are kept in 48 bits, and there must be room for sums.
const MAX_DURATION: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Options {
    /// Options for `sides` sides with the same window; keys are remembered for ten windows.
    pub fn new(sides: usize, window: Duration) -> Self {
        Options {
            windows: vec![window; sides],
            remember: window.saturating_mul(10),
            late: Late::default(),
            duplicates: Duplicates::default(),
            at_end: AtEnd::default(),
            max_wait: None,
            emit_delays: true,
        }
    }

    /// Everything that is wrong, one text each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(2..=MAX_SIDES).contains(&self.windows.len()) {
            problems.push(format!("{} sides cannot be joined: give 2 to {MAX_SIDES}", self.windows.len()));
        }
        let windows = self.windows.iter().enumerate().map(|(side, window)| (format!("window of side {side}"), *window));
        let others = [("time to remember keys", Some(self.remember)), ("longest wait of a key", self.max_wait)];
        let others = others.into_iter().filter_map(|(name, duration)| Some((name.to_owned(), duration?)));
        for (name, duration) in windows.chain(others) {
            if duration > MAX_DURATION {
                problems.push(format!("the {name} is longer than 100 years: give a shorter one"));
            }
        }
        problems
    }

    /// Checks the options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) that lists every problem.
    pub fn validate(&self) -> Result<()> {
        match self.problems() {
            problems if problems.is_empty() => Ok(()),
            problems => Err(Error::config(&problems)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_told_at_once() {
        assert_eq!(Options::new(2, Duration::from_secs(300)).problems(), Vec::<String>::new());
        assert_eq!(Options::new(2, Duration::from_secs(300)).remember, Duration::from_secs(3_000));
        let mut options = Options::new(9, Duration::MAX);
        options.max_wait = Some(Duration::MAX);
        assert_eq!(options.problems().len(), 1 + 9 + 2);
        let error = options.validate().unwrap_err();
        assert!(error.to_string().contains("9 sides cannot be joined: give 2 to 8\nthe window of side 0"));
    }
}
