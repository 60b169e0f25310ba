//! Stuck against idle: a reader that gives nothing although its broker has messages is opened anew, and no other one is.
//!
//! Would catch: a client that stops for good and a job that waits for it for ever; an idle topic whose reader is opened again and
//! again; messages that are lost or repeated when a reader is opened anew; commits that end with the first reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use syncline::Result;
use syncline::broker::memory::MemoryBroker;
use syncline::epoch::ManualClock;
use syncline::message::{Offset, Offsets, Split};
use syncline::source::{Assignment, Batch, Committer, NewSource, Position, Progress, Reader, Replay, Source};
use syncline::{Job, message::SplitId};

use super::support::{GROUP, Gate, Log, Running, START, Trouble, copy, eager, options, sink, source, until};

const STUCK_AFTER: Duration = Duration::from_secs(1);

/// What a source of the memory broker does wrong.
#[derive(Clone, Default)]
struct Fault(Arc<Faults>);

#[derive(Default)]
struct Faults {
    /// Each reader gives so many batches and then nothing for ever; 0 is no limit.
    batches: AtomicUsize,
    /// The broker counts so many more than there are.
    phantoms: AtomicU64,
    /// No reader says how far it is.
    mute: AtomicBool,
    opened: AtomicUsize,
    asked: AtomicUsize,
}

struct Faulty(Box<dyn Source>, Fault);

fn faulty(broker: &MemoryBroker, fault: &Fault) -> NewSource {
    let (inner, fault) = (broker.source("topic", &options()).unwrap(), fault.clone());
    Arc::new(move || Ok(Box::new(Faulty(inner()?, fault.clone()))))
}

impl Source for Faulty {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn splits(&mut self) -> Result<Vec<Split>> {
        self.0.splits()
    }
    fn discovery(&self) -> Option<Duration> {
        self.0.discovery()
    }
    fn resolve(&mut self, position: &Position, splits: &[Split]) -> Result<Offsets> {
        self.0.resolve(position, splits)
    }
    fn open(&mut self, assignments: &[Assignment]) -> Result<(Box<dyn Reader>, Box<dyn Committer>)> {
        self.1.0.opened.fetch_add(1, Ordering::SeqCst);
        let (reader, committer) = self.0.open(assignments)?;
        let left = match self.1.0.batches.load(Ordering::SeqCst) {
            0 => usize::MAX,
            left => left,
        };
        Ok((Box::new(FaultyReader { reader, fault: self.1.clone(), left }), committer))
    }
    fn replay(&self) -> Replay {
        self.0.replay()
    }
    fn backlog(&mut self, from: &Offsets) -> Result<Option<u64>> {
        self.1.0.asked.fetch_add(1, Ordering::SeqCst);
        let phantoms = self.1.0.phantoms.load(Ordering::SeqCst);
        Ok(self.0.backlog(from)?.map(|messages| messages + phantoms))
    }
}

struct FaultyReader {
    reader: Box<dyn Reader>,
    fault: Fault,
    left: usize,
}

impl Reader for FaultyReader {
    fn read(&mut self, batch: &mut Batch, wait: Duration) -> Result<Progress> {
        if self.left == 0 {
            std::thread::sleep(wait.min(Duration::from_millis(10)));
            return Ok(Progress::Open);
        }
        let progress = self.reader.read(batch, wait)?;
        if !batch.messages.is_empty() {
            self.left -= 1;
        }
        if self.left == 0 || self.fault.0.mute.load(Ordering::SeqCst) {
            batch.evidence.clear();
        }
        Ok(progress)
    }
    fn assign(&mut self, add: &[Assignment], remove: &[SplitId]) -> Result<()> {
        self.reader.assign(add, remove)
    }
    fn pause(&mut self, splits: &[SplitId], paused: bool) -> Result<()> {
        self.reader.pause(splits, paused)
    }
}

/// A job that copies a topic of one split, on a clock turned by hand.
struct Copying {
    broker: MemoryBroker,
    clock: ManualClock,
    fault: Fault,
    gate: Gate,
}

impl Copying {
    fn new() -> Self {
        let broker = MemoryBroker::new();
        broker.create_topic("topic", 1);
        Copying { broker, clock: ManualClock::new(START), fault: Fault::default(), gate: Gate::new(true) }
    }

    fn start(&self, source: NewSource) -> Running {
        let job = Job::new(GROUP).clock(Arc::new(self.clock.clone())).retry(eager()).stuck_after(STUCK_AFTER);
        let sink = sink(&self.broker, &Log::default(), &self.gate, &Trouble::default());
        Running::start(job, 1, copy(&[source], &sink))
    }

    fn start_faulty(&self) -> Running {
        self.start(faulty(&self.broker, &self.fault))
    }

    fn give(&self, numbers: std::ops::Range<u64>) {
        self.broker.extend("topic", 0, numbers.map(|number| number.to_string())).unwrap();
    }

    /// Lets time pass as it does until a state is reached.
    fn until(&self, what: &str, mut reached: impl FnMut() -> bool) {
        until(what, || {
            self.clock.advance(Duration::from_millis(1));
            reached()
        });
    }

    fn pass(&self, time: Duration) {
        let mut left = time.as_millis();
        self.until("time passes", || {
            left -= 1;
            left == 0
        });
    }

    /// Whether so many messages were copied, each once and in order, and committed.
    fn is_done(&self, messages: u64) -> bool {
        self.broker.committed("topic", 0, GROUP) == Some(Offset(messages))
            && self.broker.values("out-0").into_iter().eq((0..messages).map(|number| number.to_string()))
    }
}

#[test]
fn a_reader_that_is_stuck_is_opened_anew_and_nothing_is_lost_or_repeated() {
    let job = Copying::new();
    job.fault.0.batches.store(1, Ordering::SeqCst);
    let running = job.start_faulty();
    for round in 0..4 {
        job.give(10 * round..10 * round + 10);
        job.until("it is copied and committed", || job.is_done(10 * round + 10));
        let rebuilt = running.status.snapshot().rebuilt;
        assert_eq!(rebuilt, round, "the first messages come by themselves, the next ones only to a new reader");
        assert_eq!(job.fault.0.opened.load(Ordering::SeqCst) as u64, round + 1);
    }
    running.stop().unwrap();
}

#[test]
fn an_idle_reader_is_never_opened_anew() {
    for mute in [true, false] {
        let job = Copying::new();
        job.fault.0.mute.store(mute, Ordering::SeqCst);
        let running = job.start_faulty();
        job.give(0..10);
        job.until("it is copied", || job.is_done(10));
        job.pass(10 * STUCK_AFTER);
        assert_eq!((running.status.snapshot().rebuilt, job.fault.0.opened.load(Ordering::SeqCst)), (0, 1));
        job.until("the backlog is known", || running.status.snapshot().backlog == Some(0));
        let asked = job.fault.0.asked.load(Ordering::SeqCst);
        assert!(!mute || (5..=60).contains(&asked), "asked {asked} times");
        job.give(10..20);
        job.until("it goes on", || job.is_done(20));
        running.stop().unwrap();
    }
}

#[test]
fn what_is_counted_and_never_comes_is_waited_for_longer_each_time() {
    let job = Copying::new();
    job.fault.0.phantoms.store(2, Ordering::SeqCst);
    job.fault.0.mute.store(true, Ordering::SeqCst);
    let running = job.start_faulty();
    job.give(0..10);
    job.until("it is copied", || job.is_done(10));
    let rebuilt = || running.status.snapshot().rebuilt;
    job.until("it is opened anew", || rebuilt() == 1);
    job.pass(18 * STUCK_AFTER); // 2, 4 and 8 times as long, and what asking takes
    assert!((1..=4).contains(&rebuilt()), "{} times", rebuilt());
    assert_eq!(running.status.snapshot().backlog, Some(2));
    job.give(10..20);
    job.until("what comes is copied", || job.is_done(20));
    running.stop().unwrap();
}

#[test]
fn a_caught_up_reader_is_not_asked_about_what_is_no_message() {
    let job = Copying::new();
    job.fault.0.phantoms.store(2, Ordering::SeqCst);
    let running = job.start_faulty();
    job.give(0..10);
    job.until("it is copied", || job.is_done(10));
    job.pass(10 * STUCK_AFTER);
    assert_eq!((running.status.snapshot().rebuilt, running.status.snapshot().backlog), (0, Some(0)));
    running.stop().unwrap();
}

#[test]
fn an_outage_is_not_stuck() {
    let job = Copying::new();
    let trouble = Trouble::default();
    let running = job.start(source(&job.broker, "topic", &Log::default(), &trouble));
    job.give(0..10);
    job.until("it is copied", || job.is_done(10));
    trouble.be_unreachable(true);
    job.give(10..20);
    job.pass(5 * STUCK_AFTER);
    assert_eq!(running.status.snapshot().rebuilt, 0);
    assert!(running.status.snapshot().retries > 0);
    trouble.be_unreachable(false);
    job.until("it goes on", || job.is_done(20));
    running.stop().unwrap();
}

#[test]
fn a_slow_worker_is_not_stuck() {
    let mut job = Copying::new();
    job.gate = Gate::new(false); // nothing is published, so reading stops
    let value = "x".repeat(10_000);
    let messages = 20_000; // far more than may wait to be published
    job.broker.extend("topic", 0, (0..messages).map(|_| value.clone())).unwrap();
    let running = job.start_faulty();
    job.pass(5 * STUCK_AFTER);
    assert_eq!(running.status.snapshot().rebuilt, 0);
    assert!(running.status.snapshot().records_read < messages);
    job.gate.open();
    job.until("it goes on", || job.broker.committed("topic", 0, GROUP) == Some(Offset(messages)));
    assert_eq!(running.status.snapshot().rebuilt, 0);
    running.stop().unwrap();
}
