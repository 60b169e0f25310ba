//! What all handles to a broker share.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::log::Log;
use super::queue::Queue;
use crate::epoch::{Clock, Epoch, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Offset, Reason};
use crate::sink::{RunNumber, Slot};
use crate::source::{Batch, Evidence, Progress};

use super::source::Reading;

/// How long a caught-up reader may be silent.
const SAY_AGAIN: Duration = Duration::from_millis(900);

/// The state and those who wait for it to change.
#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    clock: SystemClock,
}

/// A topic, in one of the two modes.
#[derive(Debug)]
pub(super) enum Topic {
    Log(Log),
    Queue(Queue),
}

/// Group, output and slot of a writer.
pub(super) type WriterId = (String, usize, Slot);

/// What is known of a writer's slot.
#[derive(Debug)]
pub(super) struct SlotState {
    /// The newest run that opened it.
    pub run: RunNumber,
    /// Everything below is published.
    pub published: Option<Epoch>,
}

/// Everything in the broker.
#[derive(Debug, Default)]
pub(super) struct State {
    pub topics: BTreeMap<String, Topic>,
    /// Grows when all connections break.
    pub connection: u64,
    pub unreachable: bool,
    pub slots: BTreeMap<WriterId, SlotState>,
    /// By topic.
    pub rejected: BTreeMap<String, Vec<(Offset, Reason)>>,
    /// How many sources were opened.
    pub sessions: u64,
}

impl State {
    /// Whether a client can be served. `connection` is the one it has; a client that lost it gets a new one, and is told.
    pub fn serve(&self, connection: &mut u64) -> Result<()> {
        let error = |text| Error::new(ErrorKind::Connect, text).retryable();
        if self.unreachable {
            return Err(error("the memory broker is not reachable"));
        }
        if *connection != self.connection {
            *connection = self.connection;
            return Err(error("the connection to the memory broker was lost"));
        }
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Looks at the state.
    pub fn look<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        look(&mut self.lock())
    }

    /// Changes the state, and wakes everybody.
    pub fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// The waiting part of a read, for both modes. `poll` appends what there is and sets the evidence of each split; `told` is
    /// the progress that the caller knows.
    pub fn read(
        &self,
        readings: &mut [Reading],
        connection: &mut u64,
        told: &mut Progress,
        batch: &mut Batch,
        wait: Duration,
        mut poll: impl FnMut(&mut State, &mut [Reading], &mut Batch) -> Result<()>,
    ) -> Result<Progress> {
        let deadline = self.clock.monotonic() + wait.min(SAY_AGAIN);
        let mut state = self.lock();
        loop {
            if let Err(error) = state.serve(connection) {
                for reading in readings.iter_mut() {
                    reading.behind();
                }
                say(readings, batch, false);
                return Err(error);
            }
            poll(&mut state, readings, batch)?;
            let mut changed = say(readings, batch, false);
            let ended = readings.iter().all(|reading| reading.evidence == Evidence::Ended);
            let progress = if ended { Progress::Ended } else { Progress::Open };
            changed |= std::mem::replace(told, progress) != progress;
            let left = deadline.saturating_sub(self.clock.monotonic());
            if changed || !batch.messages.is_empty() || left.is_zero() {
                say(readings, batch, left.is_zero());
                return Ok(progress);
            }
            state = match self.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// Says the evidence that has changed, or all of it that has to be said again. Returns whether there was any.
fn say(readings: &mut [Reading], batch: &mut Batch, again: bool) -> bool {
    let mut any = false;
    for reading in readings {
        let repeat = again && reading.evidence == Evidence::CaughtUp;
        if reading.said != Some(reading.evidence) || repeat {
            reading.said = Some(reading.evidence);
            batch.evidence.push((reading.split.id, reading.evidence));
            any = true;
        }
    }
    any
}
