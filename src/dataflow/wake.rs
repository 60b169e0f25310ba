//! How other threads wake a worker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use timely::scheduling::SyncActivator;
use timely::worker::Worker;

use crate::control::Wake;

/// Wakes the worker of the thread that made it.
#[derive(Clone)]
pub(crate) struct Waker(Arc<State>);

struct State {
    thread: Thread,
    /// It will look at its inputs by itself, very soon.
    naps: AtomicBool,
    /// Of the operators that take answers, once the dataflow is there.
    activators: OnceLock<Vec<SyncActivator>>,
}

impl Waker {
    /// Of the worker that calls it.
    pub fn new() -> Self {
        let (naps, activators) = (AtomicBool::new(false), OnceLock::new());
        Waker(Arc::new(State { thread: thread::current(), naps, activators }))
    }

    /// The dataflow is there: these operators take answers.
    pub fn set(&self, activators: Vec<SyncActivator>) {
        let _ = self.0.activators.set(activators); // it was never set before
    }

    /// For those whose answers operators take: schedules the operators.
    pub fn answer(&self) -> Wake {
        let state = Arc::clone(&self.0);
        Arc::new(move || {
            for activator in state.activators.get().into_iter().flatten() {
                let _ = activator.activate(); // an error says that the worker has ended
            }
        })
    }

    /// For readers, which the driver looks at itself: schedules nothing, and disturbs no nap.
    ///
    /// Whoever finds that the worker naps has sent its batch before, and the worker looks after its nap.
    pub fn nudge(&self) -> Wake {
        let state = Arc::clone(&self.0);
        Arc::new(move || {
            if !state.naps.load(Ordering::SeqCst) {
                state.thread.unpark();
            }
        })
    }

    /// Lets the worker step, or wait so long for something to do, or for ever; for a nap, batches of readers are nothing to do.
    pub fn step_or_park(&self, worker: &mut Worker, wait: Option<Duration>, nap: bool) {
        self.0.naps.store(nap, Ordering::SeqCst);
        worker.step_or_park(wait);
        self.0.naps.store(false, Ordering::SeqCst);
    }
}
