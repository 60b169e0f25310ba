//! When a job that has failed is started again.

use std::time::Duration;

/// The wait before the first restart.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// A run that was longer was a good one: what failed before it counts no more.
const GOOD_RUN: Duration = Duration::from_secs(600);

/// Counts failures in a row.
#[derive(Clone, Debug)]
pub(super) struct Restarts {
    /// `None` is any number.
    most: Option<u32>,
    longest_wait: Duration,
    failures: u32,
}

impl Restarts {
    pub fn new(most: Option<u32>, longest_wait: Duration) -> Self {
        Restarts { most, longest_wait, failures: 0 }
    }

    /// A run of this length has failed: how long to wait before the next one, or `None` if it was the last.
    pub fn failed(&mut self, run: Duration) -> Option<Duration> {
        if run >= GOOD_RUN {
            self.failures = 0;
        }
        if self.most.is_some_and(|most| self.failures >= most) {
            return None;
        }
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(20)).min(self.longest_wait);
        self.failures = self.failures.saturating_add(1);
        Some(wait)
    }

    /// Which restart in a row the next run is, of how many.
    pub fn count(&self) -> String {
        match self.most {
            Some(most) => format!("{} of {most}", self.failures),
            None => self.failures.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(restarts: &mut Restarts, runs: &[u64]) -> Vec<Option<u64>> {
        runs.iter().map(|run| restarts.failed(Duration::from_secs(*run)).map(|wait| wait.as_secs())).collect()
    }

    #[test]
    fn waits_double_up_to_the_longest_and_restarts_end() {
        let mut restarts = Restarts::new(Some(6), Duration::from_secs(10));
        let waited = waits(&mut restarts, &[0, 1, 100, 599, 0, 0, 0, 0]);
        assert_eq!(waited, [Some(1), Some(2), Some(4), Some(8), Some(10), Some(10), None, None]);
        assert_eq!(restarts.count(), "6 of 6");
        assert_eq!(waits(&mut Restarts::new(Some(0), Duration::MAX), &[0]), [None]);
        assert_eq!(Restarts::new(None, Duration::ZERO).failed(Duration::ZERO), Some(Duration::ZERO));
    }

    #[test]
    fn a_good_run_counts_anew() {
        let mut restarts = Restarts::new(Some(2), Duration::from_secs(10));
        assert_eq!(waits(&mut restarts, &[0, 0, 600, 0, 0]), [Some(1), Some(2), Some(1), Some(2), None]);
        let mut for_ever = Restarts::new(None, Duration::from_secs(10));
        assert!(waits(&mut for_ever, &[0; 100]).iter().all(Option::is_some));
        assert_eq!(for_ever.count(), "100");
    }
}
