//! The loop of a worker: takes what the readers have sent, closes epochs, follows the bound, ends.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use timely::dataflow::ProbeHandle;
use timely::worker::Worker;

use crate::control::Control;
use crate::dataflow::Gauges;
use crate::dataflow::align::Ahead;
use crate::dataflow::clock::{Alarm, Alarms, Heard, Report, ring};
use crate::dataflow::dedup::Aside;
use crate::dataflow::input::{Handle, Taken};
use crate::dataflow::keeper::Keeper;
use crate::dataflow::output::WriterThread;
use crate::dataflow::progress::{SharedIntakes, Watch};
use crate::dataflow::ranges::RangePace;
use crate::dataflow::wake::Waker;
use crate::epoch::{Clock, Epoch, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::{AheadInput, Status};
use crate::pacing::{Decision, Pacer, Pacing};
use crate::split_time::{Limit, Low, Now};

/// How long the end of a job waits for the last commits of all inputs. With the wait for the last publish it is below the
/// ten seconds in which a process is to end.
const LAST_COMMIT: Duration = Duration::from_secs(4);

/// After how many records it is looked who is ahead, besides after every epoch. A batch of a reader may have more.
const ALIGN_RECORDS: usize = 1_024;

/// How long paused splits may wait for times that stand before somebody is told.
const STANDING: Duration = Duration::from_secs(60);

/// A difference between inputs that explains nothing.
const SMALL_LEAD: Duration = Duration::from_secs(1);

/// How often a worker that has failed steps on, so that the others hear of it.
const FAREWELL_STEPS: usize = 20;

/// The driver of one worker.
pub(crate) struct Driver {
    pub worker: usize,
    pub clock: Arc<dyn Clock>,
    pub control: Control,
    pub pacer: Pacer,
    pub pacing: Pacing,
    pub max_state_bytes: Option<usize>,
    pub max_records: Option<u64>,
    /// How far splits may be ahead, if that is limited.
    pub max_drift: Option<Duration>,
    /// How many splits of this worker are paused because they are ahead, and how many the others know of.
    pub paused: u64,
    pub reported_paused: u64,
    /// How many records were taken since it was last looked who is ahead.
    pub unaligned: usize,
    /// The times that paused splits wait for, and since when they are the same.
    pub standing: Option<(Low, Duration)>,
    /// The open epoch.
    pub epoch: Epoch,
    pub intakes: SharedIntakes,
    /// All of them are open.
    pub opened: bool,
    /// When it began, on the monotonic clock.
    pub started: Duration,
    /// Inputs of the dataflow; `None` once this worker will report no more.
    pub inputs: Option<(Handle<Report>, Handle<Aside>)>,
    /// Tells the other workers what cannot wait.
    pub alarms: Alarms,
    /// It was told to stop, and has told the others.
    pub stops: bool,
    /// Bytes read in closed epochs that are not published on all workers yet, oldest first, and their sum.
    pub unpublished: (VecDeque<(Epoch, usize)>, usize),
    pub heard: Rc<Heard>,
    /// What is complete in the dataflow, on all workers.
    pub complete: ProbeHandle<Epoch>,
    pub watch: Watch,
    /// Holds commits back where nothing is stored: the oldest epoch whose records still wait, on all workers.
    pub waiting: Vec<ProbeHandle<Epoch>>,
    pub writers: Vec<Rc<WriterThread>>,
    pub writers_ready: usize,
    pub gauges: Vec<Rc<Gauges>>,
    /// Everything below it was retired.
    pub bound: Epoch,
    /// The frontiers of what is durable and of what is published, as they were last.
    pub stages: Cell<Option<[Epoch; 2]>>,
    pub ranges: RangePace,
    pub waker: Waker,
    /// When the inputs were found empty after something had come, in the time in which threads wait, whatever the job's clock says.
    pub drained: Option<Duration>,
    pub threads_clock: SystemClock,
    /// The inputs are left alone until a wait ends: readers need not wake the worker.
    pub naps: bool,
    pub status: Arc<Status>,
    /// The epoch at which the state of a checkpoint enters, until it is complete.
    pub rebuild: Option<Epoch>,
    /// Changes of state that wait to be put into a frame.
    pub keeper: Rc<Keeper>,
}

/// The first element of a probe's frontier; the end of time if it is empty.
fn frontier(probe: &ProbeHandle<Epoch>) -> Epoch {
    probe.with_frontier(|frontier| frontier.first().copied().unwrap_or(Epoch::MAX))
}

/// Tells the other workers that something has failed, and lets them hear it.
pub(crate) fn farewell(alarms: &Alarms, worker: &mut Worker) {
    ring(alarms, Alarm::Failed);
    for _ in 0..FAREWELL_STEPS {
        worker.step_or_park(Some(Duration::from_millis(1)));
    }
}

impl Driver {
    /// Runs until everything is published and committed, or something has failed.
    pub fn run(mut self, worker: &mut Worker) {
        while !self.control.has_failed() {
            match self.poll() {
                Ok(Some(wait)) => {
                    let wait = wait.map(|wait| self.clock.patience(wait));
                    self.waker.step_or_park(worker, wait, self.naps);
                }
                Ok(None) => break,
                Err(error) => self.control.fail(error),
            }
        }
        if self.control.has_failed() {
            farewell(&self.alarms, worker);
        }
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow); // lets go of everything the operators hold
        }
        if !self.control.has_failed() {
            self.finish();
        }
    }

    /// Ends the threads.
    fn finish(self) {
        for writer in self.writers {
            if let Ok(writer) = Rc::try_unwrap(writer) {
                writer.finish();
            }
        }
        // All at once: together they take no longer than one.
        let commits: Vec<_> = self.intakes.take().into_iter().filter_map(|intake| intake.finish()).collect();
        let deadline = self.threads_clock.monotonic() + LAST_COMMIT;
        for commit in commits {
            if !commit.wait(deadline.saturating_sub(self.threads_clock.monotonic())) {
                tracing::warn!("the last commit is not confirmed; the next start may read a little again");
            }
        }
    }

    fn now(&self) -> Now {
        Now { wall: self.clock.wall(), monotonic: self.clock.monotonic() }
    }

    /// Does what can be done now; says how long to wait for more, or `None` if all is done.
    fn poll(&mut self) -> Result<Option<Option<Duration>>> {
        self.naps = false;
        self.follow();
        let range = self.pace_ranges();
        if self.heard.failed.get() {
            return Err(Error::new(ErrorKind::Cluster, "a worker of the job has failed; its process says why"));
        }
        self.hear_stop();
        if self.inputs.is_none() {
            let done = self.complete.done() && self.watch.published.done();
            return Ok((!done).then_some(range));
        }
        if self.stops {
            self.end(false);
            return Ok(Some(Some(Duration::ZERO)));
        }
        if self.heard.closed.get() >= self.epoch {
            self.close();
        }
        let stalled = self.is_stalled()?;
        let mut rest = self.rest();
        if !stalled && rest.is_none() {
            self.take_all();
            rest = self.rest();
        }
        self.naps = rest.is_some(); // so the wait must end with the rest, whatever comes meanwhile
        let news = self.heard.told.borrow_mut().take_news();
        if news {
            self.align();
            self.status.align(self.heard.told.borrow().paused(), self.ahead_input());
        }
        if !stalled && self.intakes.borrow().iter().all(|intake| intake.has_ended()) {
            self.end(true);
            return Ok(Some(Some(Duration::ZERO)));
        }
        // Splits that are paused wait for the times of others, which come with their epochs.
        let waits_for_time = self.paused > 0
            || self.paused != self.reported_paused
            || self.gauges.iter().any(|gauges| gauges.waits_for_time.get())
            || self.intakes.borrow().iter().any(|intake| intake.is_unmarked());
        match self.pacer.decide(self.clock.monotonic(), waits_for_time) {
            Decision::Close => {
                self.close();
                Ok(Some(Some(Duration::ZERO)))
            }
            Decision::Wait(wait) => Ok(Some(wait.into_iter().chain(rest).chain(range).min())),
        }
    }

    /// Lets the next range be decided when it is time; else says how long that takes.
    fn pace_ranges(&mut self) -> Option<Duration> {
        let ends = self.inputs.is_none() || self.stops || self.unpublished.1 > self.pacing.max_undurable_bytes / 2;
        let (now, wait) = self.ranges.look(self.threads_clock.monotonic(), ends);
        if now {
            self.watch.ranges.activate();
        }
        wait
    }

    /// A stop of any process is one of all of them, also of those whose inputs have ended: their threads must hear of it.
    fn hear_stop(&mut self) {
        if self.stops || !(self.control.is_stopping() || self.heard.stop.get()) {
            return;
        }
        self.stops = true;
        if !self.control.is_stopping() {
            self.control.stop();
        }
        ring(&self.alarms, Alarm::Stop);
    }

    /// How long the inputs are left alone. While little comes, it comes in very small batches, each of which would cost a wake-up
    /// and a round through the dataflow; so nobody looks for more within the time in which an epoch cannot be closed anyway.
    fn rest(&self) -> Option<Duration> {
        let since = self.threads_clock.monotonic().saturating_sub(self.drained?);
        self.pacing.min_epoch.checked_sub(since).filter(|rest| !rest.is_zero())
    }

    /// Takes what the readers have sent, as far as there is room.
    fn take_all(&mut self) {
        self.drained = None;
        let mut any = false;
        while !self.pacer.is_full() {
            if !self.take() {
                self.drained = any.then(|| self.threads_clock.monotonic());
                break;
            }
            any = true;
            if self.unaligned >= ALIGN_RECORDS {
                self.align();
            }
        }
    }

    /// Takes one batch of every input; says whether there was any.
    fn take(&mut self) -> bool {
        let Some((_, asides)) = &mut self.inputs else { return false };
        let mut any = false;
        for intake in self.intakes.borrow_mut().iter_mut() {
            if let Taken::Some(records, bytes) = intake.take(self.epoch, self.heard.time.get(), asides) {
                self.pacer.add(records, bytes);
                self.unaligned += records;
                any = true;
            }
        }
        any
    }

    /// Whether nothing may be read now: an input or output is not open yet, and perhaps never will be; restored state is not complete; too much waits to be published, or too much is remembered.
    fn is_stalled(&mut self) -> Result<bool> {
        // Operators may put out what belongs to several epochs as one; what follows from restored state must be told apart.
        if self.rebuild.is_some_and(|rebuild| frontier(&self.complete) <= rebuild) {
            return Ok(true);
        }
        self.rebuild = None;
        if self.writers_ready < self.writers.len() {
            self.writers_ready += self.writers.iter().filter(|writer| writer.poll_ready()).count();
            if self.writers_ready < self.writers.len() {
                return Ok(true);
            }
        }
        if !self.opened {
            let mut intakes = self.intakes.borrow_mut();
            self.opened = intakes.iter_mut().all(|intake| intake.open());
            if !self.opened {
                return Ok(true);
            }
        }
        let undurable: usize = self.writers.iter().map(|writer| writer.undurable_bytes()).sum();
        // What was read here may be written by another worker: the frontier knows. Twice, as some of it is still in the dataflow.
        let full = undurable + self.keeper.bytes() > self.pacing.max_undurable_bytes
            || self.unpublished.1 > self.pacing.max_undurable_bytes.saturating_mul(2);
        let state = self.state_bytes();
        match self.max_state_bytes {
            Some(most) if state > most => {
                if self.pacer.num_in_flight() == 0 && self.pacer.is_empty() {
                    return Err(self.too_much(state, most));
                }
                Ok(true)
            }
            _ => Ok(full),
        }
    }

    fn state_bytes(&self) -> usize {
        self.gauges.iter().map(|gauges| gauges.bytes.get()).sum()
    }

    /// The error of a state that is too large: which input is ahead, and what to do.
    fn too_much(&self, state: usize, most: usize) -> Error {
        let ahead = self.ahead_input();
        let why = ahead.as_ref().map_or(String::new(), |ahead| format!("; {ahead}"));
        let apart = ahead.is_some_and(|ahead| ahead.by.is_none_or(|by| by > SMALL_LEAD.as_millis() as u64));
        let fix = match self.max_drift {
            None if apart => {
                "leave out --max_drift off, so that what is ahead waits in its broker, or give more memory"
            }
            Some(_) if apart => {
                "give a smaller --max_drift, so that more of what is ahead waits in its broker, or more memory"
            }
            _ => "give more memory or workers, or a shorter window",
        };
        let text = format!(
            "worker {} remembers {state} bytes of records that wait for their other sides, more than --max_state {most}{why}: \
             {fix}",
            self.worker
        );
        Error::new(ErrorKind::Limit, text)
    }

    /// Which input is ahead, by its name.
    fn ahead_input(&self) -> Option<AheadInput> {
        let Ahead { input, other, by } = self.heard.told.borrow().ahead()?;
        let intakes = self.intakes.borrow();
        let name = |index: usize| intakes.get(index).map(|intake| intake.name().to_owned());
        Some(AheadInput { input: name(input)?, other: name(other)?, by })
    }

    /// Pauses splits that are too far ahead of others, and lets go on those that are not any more.
    fn align(&mut self) {
        self.unaligned = 0;
        let Some(max) = self.max_drift else { return };
        let now = self.now();
        let mut intakes = self.intakes.borrow_mut();
        let others = self.heard.told.borrow().low_of_others(self.worker);
        let low = intakes.iter_mut().fold(others, |low, intake| low.and(intake.times(now).low));
        let full = self.state_bytes() > self.pacing.free_state_bytes;
        let limit = Limit { max, clock: self.heard.time.get(), low, full };
        self.paused = intakes.iter_mut().map(|intake| intake.align(&limit, now)).sum();
        drop(intakes);
        match self.standing {
            _ if self.paused == 0 => self.standing = None,
            Some((last, since)) if last == low => {
                if now.monotonic.saturating_sub(since) >= STANDING {
                    self.standing = Some((low, now.monotonic));
                    let ahead = self.ahead_input().map_or(String::new(), |ahead| ahead.to_string());
                    tracing::warn!(
                        paused = self.paused,
                        "splits are paused, and what they wait for has not moved for {STANDING:?}; {ahead}"
                    );
                }
            }
            _ => self.standing = Some((low, now.monotonic)),
        }
    }

    /// Closes the open epoch and opens the next.
    fn close(&mut self) {
        let (epoch, next) = (self.epoch, self.next_epoch());
        self.report(Report::default(), next);
        if let Some((reports, asides)) = &mut self.inputs {
            reports.advance_to(next);
            asides.advance_to(next);
        }
        for intake in self.intakes.borrow_mut().iter_mut() {
            intake.advance_to(next);
        }
        let bytes = self.pacer.close(epoch, self.clock.monotonic());
        if bytes > 0 {
            self.unpublished.0.push_back((epoch, bytes));
            self.unpublished.1 += bytes;
        }
        self.epoch = next;
    }

    fn next_epoch(&self) -> Epoch {
        self.clock.wall().max(self.epoch + 1).max(self.heard.opened.get()).max(self.heard.closed.get() + 1)
    }

    fn report(&mut self, mut report: Report, next: Epoch) {
        let now = self.now();
        for intake in self.intakes.borrow_mut().iter_mut() {
            intake.close(self.epoch, now, &mut report);
        }
        report.worker = self.worker;
        report.opens = next;
        report.paused = self.paused;
        report.uptime = now.monotonic.saturating_sub(self.started).as_millis() as u64;
        self.reported_paused = self.paused;
        let read = self.status.read(report.records, &report.refused, report.ahead);
        if self.max_records.is_some_and(|most| read >= most) {
            self.control.stop();
        }
        if let Some((reports, _)) = &mut self.inputs {
            reports.send(report);
        }
    }

    /// Closes the last epoch: the inputs have ended, or the job is told to stop.
    fn end(&mut self, ended: bool) {
        let next = self.next_epoch();
        self.report(Report { ended, ..Report::default() }, next);
        self.pacer.close(self.epoch, self.clock.monotonic());
        self.inputs = None;
        for intake in self.intakes.borrow_mut().iter_mut() {
            intake.close_input();
        }
    }

    /// Follows the frontiers that come back.
    fn follow(&mut self) {
        self.pacer.finish(frontier(&self.complete));
        let stages = [&self.watch.durable, &self.watch.published].map(frontier);
        if self.stages.replace(Some(stages)) != Some(stages) {
            self.watch.ranges.activate();
        }
        let waiting = self.waiting.iter().map(frontier).min().unwrap_or(Epoch::MAX);
        let [_, published] = stages;
        self.heard.forget(published);
        while self.unpublished.0.front().is_some_and(|(epoch, _)| *epoch < published) {
            self.unpublished.1 -= self.unpublished.0.pop_front().map_or(0, |(_, bytes)| bytes);
        }
        let bound = published.min(waiting);
        if bound > self.bound {
            self.bound = bound;
            for intake in self.intakes.borrow_mut().iter_mut() {
                intake.retire(bound);
            }
            self.status.follow(self.heard.time.get(), bound);
        }
        if !self.waiting.is_empty() {
            self.intakes.borrow_mut().iter_mut().for_each(|intake| intake.thin()); // there are such only where nothing is stored
        }
    }
}
