//! Trying again on the threads that publish and checkpoint.

use std::sync::Arc;
use std::time::Duration;

use crate::control::Control;
use crate::epoch::Clock;
use crate::error::Result;
use crate::observe::Status;
use crate::retry::{Retry, RetryPolicy, persist};

/// How long a job that is stopping still tries.
const AT_STOP: Duration = Duration::from_secs(5);

/// How long what fails is tried again, and who hears of it.
#[derive(Clone)]
pub(crate) struct Patience {
    pub retry: RetryPolicy,
    pub clock: Arc<dyn Clock>,
    pub control: Control,
    pub status: Arc<Status>,
}

impl Patience {
    /// Tries until it works, cannot work, or the job has failed: then it gives the default. A job that is stopping still tries, but
    /// gives up sooner. `seed` spreads those who fail together; `what` is said of each failure.
    pub fn persist<R: Default>(&self, seed: u64, what: &str, call: impl FnMut() -> Result<R>) -> Result<R> {
        let mut stopping_since = None;
        let retry = Retry::new(self.retry, self.clock.wall() ^ seed);
        let answer = persist(retry, &*self.clock, call, |error, wait| {
            self.status.retry();
            tracing::warn!(error = %error.report(), "{what} again in {wait:?}");
            self.control.sleep(wait.min(AT_STOP));
            let now = self.clock.monotonic();
            let since = self.control.is_stopping().then(|| *stopping_since.get_or_insert(now));
            !self.control.has_failed() && since.is_none_or(|since| now - since <= AT_STOP)
        });
        match answer {
            Err(error) if error.is_retryable() && self.control.has_failed() => Ok(R::default()),
            other => other,
        }
    }
}
