//! Stopping a running job, and what its threads have in common: the first failure, and how to wake its workers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// Wakes whoever waits.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Inner {
    stop: AtomicBool,
    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    wakes: Mutex<Vec<Wake>>,
    /// Signalled when the job stops or fails, with `wakes` as its mutex.
    changed: Condvar,
}

/// A handle to a running job, shared by all its threads in this process.
#[derive(Clone, Default)]
pub struct Control(Arc<Inner>);

/// See [`Control::alarm`].
pub(crate) struct Alarm {
    thread: Option<String>,
    control: Control,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        match &self.thread {
            Some(thread) => {
                let text = format!("thread \"{thread}\" panicked; its message is on standard error");
                self.control.fail(Error::new(ErrorKind::Cluster, text));
            }
            None => {
                self.control.0.failed.store(true, Ordering::SeqCst);
                self.control.wake();
            }
        }
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("stopping", &self.is_stopping()).field("failed", &self.has_failed()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    /// The handle of a job that is not running yet.
    pub fn new() -> Self {
        Control::default()
    }

    /// Asks the job, in all its processes, to stop reading, to publish and commit what was read, and to end.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Ends the job with this error, unless another one came first.
    pub fn fail(&self, error: Error) {
        tracing::error!(kind = %error.kind(), error = %error.report(), "job failed");
        lock(&self.0.failure).get_or_insert(error);
        self.0.failed.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether the job was asked to stop.
    pub fn is_stopping(&self) -> bool {
        self.0.stop.load(Ordering::SeqCst)
    }

    /// Whether something went wrong for good.
    pub fn has_failed(&self) -> bool {
        self.0.failed.load(Ordering::SeqCst)
    }

    /// Whether threads should go on.
    pub(crate) fn is_running(&self) -> bool {
        !self.is_stopping() && !self.has_failed()
    }

    /// Takes the first failure.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        lock(&self.0.failure).take()
    }

    /// A guard that ends the job if its thread panics: nobody else would notice.
    pub(crate) fn alarm(&self, thread: String) -> Alarm {
        Alarm { thread: Some(thread), control: self.clone() }
    }

    /// The same for a worker, whose panic is found where it is waited for: it may come of a connection that broke.
    pub(crate) fn worker_alarm(&self) -> Alarm {
        Alarm { thread: None, control: self.clone() }
    }

    /// Registers somebody to be woken by a stop or a failure.
    pub(crate) fn on_wake(&self, wake: Wake) {
        lock(&self.0.wakes).push(wake);
    }

    /// Sleeps so long, or until the job fails, or, if it is not stopping yet, until it is asked to.
    pub(crate) fn sleep(&self, wait: Duration) {
        let stopping = self.is_stopping();
        let calm = |_: &mut Vec<Wake>| !self.has_failed() && self.is_stopping() == stopping;
        drop(self.0.changed.wait_timeout_while(lock(&self.0.wakes), wait, calm));
    }

    fn wake(&self) {
        let wakes = lock(&self.0.wakes);
        self.0.changed.notify_all();
        for wake in wakes.iter() {
            wake();
        }
    }
}
