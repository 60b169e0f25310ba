//! The one policy for trying again: exponential, with jitter, for at least five minutes.

use std::time::Duration;

use crate::epoch::Clock;
use crate::error::{Error, Result};

/// How long to wait between tries, and when to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The first wait.
    pub first: Duration,
    /// No wait is longer.
    pub longest: Duration,
    /// After this much time without a success nothing is tried any more.
    pub give_up_after: Duration,
}

impl Default for RetryPolicy {
    /// 100 ms, doubling to 10 s, for five minutes: brokers fail over in less.
    fn default() -> Self {
        RetryPolicy {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(10),
            give_up_after: Duration::from_secs(300),
        }
    }
}

/// A series of failures.
#[derive(Clone, Debug)]
pub struct Retry {
    policy: RetryPolicy,
    failing_since: Option<Duration>,
    tries: u32,
    random: u64,
}

impl Retry {
    /// No failure yet. The seed spreads those who fail together.
    pub fn new(policy: RetryPolicy, seed: u64) -> Self {
        Retry { policy, failing_since: None, tries: 0, random: seed | 1 }
    }

    /// It worked.
    pub fn success(&mut self) {
        self.failing_since = None;
        self.tries = 0;
    }

    /// It failed, at this monotonic time: how long to wait before the next try, or `None` to give up.
    pub fn failure(&mut self, now: Duration) -> Option<Duration> {
        let since = *self.failing_since.get_or_insert(now);
        if now.saturating_sub(since) >= self.policy.give_up_after {
            return None;
        }
        let wait = self.policy.first.saturating_mul(1 << self.tries.min(20)).min(self.policy.longest);
        self.tries += 1;
        self.random ^= self.random << 13; // xorshift64: jitter needs no better
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        Some(wait.mul_f64(0.5 + (self.random % 1024) as f64 / 2048.0))
    }
}

/// Calls until it works, cannot work, or the policy gives up. `again` hears of each failure that may pass and of the wait
/// before the next try, which is its to spend; if it says no, that failure is the answer.
pub(crate) fn persist<R>(
    mut retry: Retry,
    clock: &dyn Clock,
    mut call: impl FnMut() -> Result<R>,
    mut again: impl FnMut(&Error, Duration) -> bool,
) -> Result<R> {
    loop {
        match call() {
            Err(error) if error.is_retryable() => match retry.failure(clock.monotonic()) {
                Some(wait) if again(&error, wait) => {}
                _ => return Err(error),
            },
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_end() {
        let policy = RetryPolicy::default();
        let mut retry = Retry::new(policy, 7);
        let (mut now, mut waits) = (Duration::from_secs(5), vec![]);
        while let Some(wait) = retry.failure(now) {
            now += wait;
            waits.push(wait);
        }
        assert!(waits[0] >= policy.first / 2 && waits[0] <= policy.first);
        assert!(waits.iter().all(|wait| *wait <= policy.longest));
        assert!(*waits.last().unwrap() >= policy.longest / 2);
        assert!(now >= Duration::from_secs(305));
        retry.success();
        assert!(retry.failure(now).is_some_and(|wait| wait <= policy.first));
    }
}
