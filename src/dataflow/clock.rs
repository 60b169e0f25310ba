//! The job's clock in the dataflow: every worker reports its split times when it closes an epoch, everybody hears every report,
//! and so everybody computes the same time for the epoch.
//!
//! The same broadcast carries the epochs themselves: whoever hears that an epoch was closed closes its own up to it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::vec::Broadcast;
use timely::dataflow::operators::{Capability, Input};
use timely::worker::Worker;

use crate::dataflow::align::{InputTimes, Told};
use crate::dataflow::input::Handle;
use crate::dataflow::{TIMED, Tick};
use crate::epoch::Epoch;
use crate::message::Reason;

/// What a worker says of itself when it closes an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Which worker.
    pub worker: usize,
    /// The epoch it opens next.
    pub opens: Epoch,
    /// The smallest time of its splits that count, if any does.
    pub time: Option<u64>,
    /// It will not report again: its inputs have ended.
    pub ended: bool,
    /// Something was read in the epoch.
    pub dirty: bool,
    /// Messages that were read in the epoch, refused ones too.
    pub records: u64,
    /// Messages that were refused in the epoch, by reason.
    pub refused: [u64; Reason::ALL.len()],
    /// Records of the epoch whose timestamps were too far ahead to be believed.
    pub ahead: u64,
    /// How far its splits have come, by input.
    pub times: Vec<InputTimes>,
    /// How many of its splits wait for others.
    pub paused: u64,
    /// For how long it runs, in milliseconds on its monotonic clock.
    pub uptime: u64,
    /// For inputs whose brokers deliver again: everything that was delivered to it below this epoch is acknowledged.
    pub acked: Vec<(u32, Epoch)>,
}

impl Report {
    /// A split is no further than this.
    pub fn hold(&mut self, time: u64) {
        self.time = Some(self.time.map_or(time, |other| other.min(time)));
    }
}

/// What a worker has heard of all workers.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// The highest epoch that somebody closed.
    pub closed: Cell<Epoch>,
    /// The highest epoch that somebody opened.
    pub opened: Cell<Epoch>,
    /// Somebody was told to stop.
    pub stop: Cell<bool>,
    /// Some worker has failed.
    pub failed: Cell<bool>,
    /// The job's clock at the last finished epoch.
    pub time: Cell<u64>,
    /// The job's clock from these epochs on, oldest first: as far back as a checkpoint may ask.
    times: RefCell<VecDeque<(Epoch, u64)>>,
    /// What each worker said last of its inputs; sooner than the epoch is finished.
    pub told: RefCell<Told>,
}

impl Heard {
    /// Nothing was heard of so many workers.
    pub fn new(peers: usize) -> Self {
        Heard { told: RefCell::new(Told::new(peers)), ..Heard::default() }
    }

    /// Goes on from the clock of a checkpoint, whose state enters at an epoch.
    pub fn restore(&self, rebuild: Option<Epoch>, time: u64) {
        if let Some(epoch) = rebuild {
            self.tick(epoch, time);
        }
    }

    /// An epoch is finished.
    fn tick(&self, epoch: Epoch, time: u64) {
        if self.time.replace(time) != time {
            self.times.borrow_mut().push_back((epoch, time));
        }
    }

    /// The job's clock at the end of the epochs below this one, which are finished.
    pub fn time_at(&self, upper: Epoch) -> u64 {
        self.times.borrow().iter().rev().find(|(epoch, _)| *epoch < upper).map_or(0, |(_, time)| *time)
    }

    /// Nobody will ask for times of epochs below this one but for the last.
    pub fn forget(&self, lower: Epoch) {
        let mut times = self.times.borrow_mut();
        while times.get(1).is_some_and(|(epoch, _)| *epoch < lower) {
            times.pop_front();
        }
    }
}

/// What a worker has to tell the others at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Alarm {
    /// It was told to stop.
    Stop,
    /// Something has failed.
    Failed,
}

/// A worker's way to tell the others. It is a dataflow of its own, there before the job's and open until the worker ends: so they
/// hear of it even if the job's could not be built, or while they wait for the last epochs.
pub(crate) fn alarms(worker: &mut Worker, heard: Rc<Heard>) -> Alarms {
    let input = worker.dataflow(|scope| {
        let (input, alarms) = scope.new_input();
        alarms.broadcast().sink(Pipeline, "Alarms", move |(input, _frontier)| {
            input.for_each(|_capability, alarms| {
                for alarm in alarms.drain(..) {
                    match alarm {
                        Alarm::Stop => heard.stop.set(true),
                        Alarm::Failed => heard.failed.set(true),
                    }
                }
            });
        });
        input
    });
    Rc::new(RefCell::new(input))
}

/// Where alarms enter: shared by those who build a job and those who run it.
pub(crate) type Alarms = Rc<RefCell<Handle<Alarm>>>;

/// Tells the other workers.
pub(crate) fn ring(alarms: &Alarms, alarm: Alarm) {
    let mut alarms = alarms.borrow_mut();
    alarms.send(alarm);
    alarms.flush();
}

/// What is known about the time of all workers, as of an epoch.
struct Times {
    /// By worker: `None` before its first report, so that it holds the clock.
    workers: Vec<Option<Report>>,
    now: u64,
}

impl Times {
    fn update(&mut self, reports: Vec<Report>) -> Tick {
        for report in reports {
            let worker = report.worker;
            self.workers[worker] = Some(report);
        }
        let known: Option<Vec<&Report>> = self.workers.iter().map(Option::as_ref).collect();
        if let Some(reports) = &known {
            let live = reports.iter().filter(|report| !report.ended);
            if let Some(time) = live.filter_map(|report| report.time).min() {
                self.now = self.now.max(time);
            }
        }
        let end = known.is_some_and(|reports| reports.iter().all(|report| report.ended));
        Tick { time: self.now, end }
    }
}

/// Computes the clock of every epoch that somebody closed, from the reports of all workers. `start` is where it goes on from.
pub(crate) fn clock<'s>(
    reports: Stream<'s, Epoch, Vec<Report>>,
    heard: Rc<Heard>,
    start: u64,
) -> Stream<'s, Epoch, Vec<Tick>> {
    let peers = reports.scope().peers();
    reports.unary_frontier(Pipeline, "Clock", move |_capability, _info| {
        let mut times = Times { workers: vec![None; peers], now: start };
        let mut waiting: BTreeMap<Epoch, (Capability<Epoch>, Vec<Report>)> = BTreeMap::new();
        move |(input, frontier), output| {
            input.for_each(|capability, reports| {
                let epoch = *capability.least().expect(TIMED);
                for report in reports.iter() {
                    heard.closed.set(heard.closed.get().max(epoch));
                    heard.opened.set(heard.opened.get().max(report.opens));
                    heard.told.borrow_mut().hear(report.worker, &report.times, report.paused);
                }
                let entry = waiting.entry(epoch);
                entry.or_insert_with(|| (capability.retain_least(0).expect(TIMED), vec![])).1.append(reports);
            });
            while let Some(entry) = waiting.first_entry().filter(|entry| !frontier.less_equal(entry.key())) {
                let epoch = *entry.key();
                let (capability, reports) = entry.remove();
                let tick = times.update(reports);
                heard.tick(epoch, tick.time);
                output.session(&capability).give(tick);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(worker: usize, time: Option<u64>, ended: bool) -> Report {
        Report { worker, time, ended, ..Report::default() }
    }

    #[test]
    fn the_clock_is_the_minimum_and_never_goes_back() {
        let mut times = Times { workers: vec![None; 3], now: 0 };
        let mut tick = |reports| times.update(reports);
        assert_eq!(tick(vec![report(0, Some(50), false)]), Tick { time: 0, end: false });
        assert_eq!(tick(vec![report(1, None, false), report(2, Some(40), false)]), Tick { time: 40, end: false });
        assert_eq!(tick(vec![report(2, Some(30), false)]).time, 40); // found late: it holds, it does not turn back
        assert_eq!(tick(vec![report(2, Some(60), false)]).time, 50);
        assert_eq!(tick(vec![report(0, Some(50), true)]).time, 60); // an ended worker counts no more
        assert_eq!(tick(vec![report(2, None, false)]).time, 60); // nobody counts: time stands
        assert_eq!(tick(vec![report(1, None, true), report(2, None, true)]), Tick { time: 60, end: true });
    }
}
