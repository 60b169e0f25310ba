//! What the tests of running jobs share: waiting, jobs on threads of their own, doubles that record and make trouble.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use syncline::broker::BrokerOptions;
use syncline::broker::memory::MemoryBroker;
use syncline::checkpoint::{Begin, Claim, Frame, NewStore, Restored, Share, Store};
use syncline::codec::Raw;
use syncline::control::Control;
use syncline::dataflow::{Arrived, Flow, Input};
use syncline::epoch::{Epoch, ManualClock};
use syncline::message::{Message, Offset, Offsets, Reason, Split, SplitId};
use syncline::observe::Status;
use syncline::retry::RetryPolicy;
use syncline::sink::{
    Entity, Guarantee, NewSink, OutputRecord, Prepared, RunNumber, Sink, Undelivered, Writer, WriterContext,
};
use syncline::source::{Assignment, Batch, Committer, Evidence, NewSource, Position, Progress, Reader, Replay, Source};
use syncline::{Error, Job, Result};
use timely::dataflow::operators::vec::Map;

/// The wall of manual clocks at the start.
pub const START: u64 = 1_700_000_000_000;

/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

pub const GROUP: &str = "group";

/// Waits for a state.
pub fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < DEADLINE, "not reached: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Turns the clock until a state is reached: at five times its speed, so that readers say often enough that they are caught up.
pub fn turn_until(clock: &ManualClock, what: &str, mut reached: impl FnMut() -> bool) {
    until(what, || {
        clock.advance(Duration::from_millis(5));
        reached()
    });
}

pub fn options() -> BrokerOptions {
    BrokerOptions { group: GROUP.into(), ..BrokerOptions::default() }
}

/// Tries again at once, and for ever.
pub fn eager() -> RetryPolicy {
    let millisecond = Duration::from_millis(1);
    RetryPolicy { first: millisecond, longest: 5 * millisecond, give_up_after: Duration::MAX }
}

/// A job that runs.
pub struct Running {
    pub control: Control,
    pub status: Arc<Status>,
    thread: JoinHandle<Result<()>>,
}

impl Running {
    pub fn start<F>(job: Job, workers: usize, build: F) -> Self
    where
        F: for<'s> Fn(&mut Flow<'s>) -> Result<()> + Send + Sync + 'static,
    {
        Running::start_as(job, timely::Config::process(workers), build)
    }

    /// Starts with a configuration of timely, which may be that of one process of several.
    pub fn start_as<F>(job: Job, config: timely::Config, build: F) -> Self
    where
        F: for<'s> Fn(&mut Flow<'s>) -> Result<()> + Send + Sync + 'static,
    {
        let (control, status) = (job.control(), job.status());
        let thread = std::thread::spawn(move || job.run(config, build));
        Running { control, status, thread }
    }

    /// Waits for the end.
    pub fn join(self) -> Result<()> {
        until("the job ends", || self.thread.is_finished());
        self.thread.join().unwrap()
    }

    pub fn stop(self) -> Result<()> {
        self.control.stop();
        self.join()
    }

    /// Waits until so many messages were read in closed epochs.
    pub fn wait_read(&self, records: u64) {
        until("records are read", || self.status.snapshot().records_read >= records);
    }
}

/// Writes every message's value as it came.
pub fn copy(
    sources: &[NewSource],
    sink: &NewSink,
) -> impl for<'s> Fn(&mut Flow<'s>) -> Result<()> + Send + Sync + use<> {
    let input = |source: &NewSource| Input::new("copy", Arc::clone(source), Arc::new(|| Box::new(Raw)));
    copy_inputs(sources.iter().map(input).collect(), sink)
}

pub fn copy_inputs(
    inputs: Vec<Input<Message>>,
    sink: &NewSink,
) -> impl for<'s> Fn(&mut Flow<'s>) -> Result<()> + Send + Sync + use<> {
    let sink = Arc::clone(sink);
    move |flow| {
        let mut outputs = vec![];
        for (index, input) in inputs.iter().enumerate() {
            let records = flow.read(input)?.map(|arrived: Arrived<Message>| OutputRecord {
                value: arrived.data.value.unwrap_or_default(),
                ..OutputRecord::default()
            });
            outputs.push((format!("out-{index}"), records));
        }
        flow.write(&sink, outputs)
    }
}

/// What happened, in order.
#[derive(Clone, Debug)]
pub enum Event {
    Wrote { epoch: Epoch, value: String },
    Durable { worker: usize, frame: Frame },
    Published { lower: Epoch },
    Committed { offsets: Offsets },
}

/// Records events.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<Event>>>);

impl Log {
    pub fn push(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
    pub fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }
}

/// Lets calls pass while it is open; a call that finds it closed waits.
#[derive(Clone, Debug)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn new(open: bool) -> Self {
        Gate(Arc::new((Mutex::new(open), Condvar::new())))
    }
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
    fn pass(&self) {
        let mut open = self.0.0.lock().unwrap();
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
    }
}

/// A store that keeps frames in memory.
pub struct RecordingStore {
    worker: usize,
    log: Log,
    gate: Gate,
    /// How many frames this worker may append before that fails.
    left: Option<usize>,
}

/// Makes recording stores; that of the first worker fails after so many frames, if told.
pub fn stores(log: &Log, gate: &Gate, fail_after: Option<usize>) -> NewStore {
    let (log, gate) = (log.clone(), gate.clone());
    Arc::new(move |slot| {
        let worker = slot.0;
        let left = fail_after.filter(|_| worker == 0);
        Box::new(RecordingStore { worker, log: log.clone(), gate: gate.clone(), left })
    })
}

impl Store for RecordingStore {
    fn keeps(&self) -> bool {
        true
    }
    fn claim(&mut self, _take_over: bool) -> Result<Claim> {
        Ok(Claim { run: RunNumber(1), nonce: 1 })
    }
    fn load(&mut self) -> Result<Restored> {
        Ok(Restored::default())
    }
    fn begin(&mut self, _begin: &Begin) -> Result<()> {
        Ok(())
    }
    fn join(&mut self, _claim: Claim) -> Result<()> {
        Ok(())
    }
    fn items(&mut self, _share: Share, _item: &mut dyn FnMut(&str, i64, Bytes) -> Result<()>) -> Result<()> {
        Ok(())
    }
    fn append(&mut self, frame: &Frame) -> Result<()> {
        self.gate.pass();
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1).ok_or_else(|| Error::new(syncline::ErrorKind::Store, "the disk is on fire"))?;
        }
        self.log.push(Event::Durable { worker: self.worker, frame: frame.clone() });
        Ok(())
    }
    fn compact(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Trouble that a watched source or sink makes.
#[derive(Clone, Debug, Default)]
pub struct Trouble(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    behind: AtomicBool,
    hidden: Mutex<BTreeSet<u32>>,
    fatal: AtomicBool,
    unreachable: AtomicBool,
    commits_hang: AtomicBool,
    commits_fail: AtomicBool,
    removed: AtomicUsize,
}

impl Trouble {
    /// The reader never says that it is caught up.
    pub fn stay_behind(&self, behind: bool) {
        self.0.behind.store(behind, Ordering::SeqCst);
    }
    /// The source lists this split no more.
    pub fn hide(&self, split: u32) {
        self.0.hidden.lock().unwrap().insert(split);
    }
    /// The source lists this split again.
    pub fn show(&self, split: u32) {
        self.0.hidden.lock().unwrap().remove(&split);
    }
    /// How many splits readers were told to leave.
    pub fn removed(&self) -> usize {
        self.0.removed.load(Ordering::SeqCst)
    }
    /// Reading fails, and is worth another try.
    pub fn be_unreachable(&self, unreachable: bool) {
        self.0.unreachable.store(unreachable, Ordering::SeqCst);
    }
    /// Commits are not answered.
    pub fn hang_commits(&self, hang: bool) {
        self.0.commits_hang.store(hang, Ordering::SeqCst);
    }
    /// Commits do not reach the broker, and it says so.
    pub fn fail_commits(&self, fail: bool) {
        self.0.commits_fail.store(fail, Ordering::SeqCst);
    }
    /// The next call fails for good.
    pub fn be_fatal(&self) {
        self.0.fatal.store(true, Ordering::SeqCst);
    }
    fn check(&self, kind: syncline::ErrorKind) -> Result<()> {
        match self.0.fatal.load(Ordering::SeqCst) {
            true => Err(Error::new(kind, "the cable was cut")),
            false => Ok(()),
        }
    }
}

struct WatchedSource(Box<dyn Source>, Log, Trouble);

/// A source of the memory broker that records its commits.
pub fn source(broker: &MemoryBroker, topic: &str, log: &Log, trouble: &Trouble) -> NewSource {
    let (inner, log, trouble) = (broker.source(topic, &options()).unwrap(), log.clone(), trouble.clone());
    Arc::new(move || Ok(Box::new(WatchedSource(inner()?, log.clone(), trouble.clone()))))
}

impl Source for WatchedSource {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn splits(&mut self) -> Result<Vec<Split>> {
        let mut splits = self.0.splits()?;
        splits.retain(|split| !self.2.0.hidden.lock().unwrap().contains(&split.ordinal));
        Ok(splits)
    }
    fn discovery(&self) -> Option<Duration> {
        self.0.discovery()
    }
    fn resolve(&mut self, position: &Position, splits: &[Split]) -> Result<Offsets> {
        self.0.resolve(position, splits)
    }
    fn open(&mut self, assignments: &[Assignment]) -> Result<(Box<dyn Reader>, Box<dyn Committer>)> {
        let (reader, committer) = self.0.open(assignments)?;
        let committer = WatchedCommitter(committer, self.1.clone(), self.2.clone());
        Ok((Box::new(WatchedReader(reader, self.2.clone())), Box::new(committer)))
    }
    fn replay(&self) -> Replay {
        self.0.replay()
    }
    fn backlog(&mut self, from: &Offsets) -> Result<Option<u64>> {
        self.0.backlog(from)
    }
}

struct WatchedReader(Box<dyn Reader>, Trouble);

impl Reader for WatchedReader {
    fn read(&mut self, batch: &mut Batch, wait: Duration) -> Result<Progress> {
        self.1.check(syncline::ErrorKind::Read)?;
        if self.1.0.unreachable.load(Ordering::SeqCst) {
            return Err(Error::new(syncline::ErrorKind::Connect, "nobody answers").retryable());
        }
        let progress = self.0.read(batch, wait)?;
        if self.1.0.behind.load(Ordering::SeqCst) {
            for (_, evidence) in batch.evidence.iter_mut().filter(|(_, evidence)| *evidence == Evidence::CaughtUp) {
                *evidence = Evidence::Behind;
            }
        }
        Ok(progress)
    }
    fn assign(&mut self, add: &[Assignment], remove: &[SplitId]) -> Result<()> {
        self.1.0.removed.fetch_add(remove.len(), Ordering::SeqCst);
        self.0.assign(add, remove)
    }
    fn pause(&mut self, splits: &[SplitId], paused: bool) -> Result<()> {
        self.0.pause(splits, paused)
    }
}

struct WatchedCommitter(Box<dyn Committer>, Log, Trouble);

impl Committer for WatchedCommitter {
    fn commit(&mut self, offsets: &Offsets, rejected: &[(SplitId, Offset, Reason)]) -> Result<()> {
        while self.2.0.commits_hang.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10)); // until the test is over
        }
        if self.2.0.commits_fail.load(Ordering::SeqCst) {
            return Err(Error::new(syncline::ErrorKind::Connect, "nobody answers").retryable());
        }
        self.1.push(Event::Committed { offsets: offsets.clone() });
        self.0.commit(offsets, rejected)
    }
}

struct WatchedSink(Box<dyn Sink>, Log, Gate, Trouble);

/// A sink of the memory broker that records what it is told, and whose `publish` waits for the gate.
pub fn sink(broker: &MemoryBroker, log: &Log, gate: &Gate, trouble: &Trouble) -> NewSink {
    let inner = broker.sink(&options()).unwrap();
    let (log, gate, trouble) = (log.clone(), gate.clone(), trouble.clone());
    Arc::new(move || Ok(Box::new(WatchedSink(inner()?, log.clone(), gate.clone(), trouble.clone()))))
}

impl Sink for WatchedSink {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn guarantee(&self) -> Guarantee {
        self.0.guarantee()
    }
    fn open(&mut self, context: &WriterContext) -> Result<Box<dyn Writer>> {
        let writer = self.0.open(context)?;
        let (log, gate, trouble) = (self.1.clone(), self.2.clone(), self.3.clone());
        Ok(Box::new(WatchedWriter { writer, log, gate, trouble, written: BTreeSet::new() }))
    }
}

struct WatchedWriter {
    writer: Box<dyn Writer>,
    log: Log,
    gate: Gate,
    trouble: Trouble,
    /// The epochs of records.
    written: BTreeSet<Epoch>,
}

impl Writer for WatchedWriter {
    fn write(&mut self, epoch: Epoch, entity: Entity, record: OutputRecord) -> Result<()> {
        self.written.insert(epoch);
        let value = String::from_utf8_lossy(&record.value).into_owned();
        self.log.push(Event::Wrote { epoch, value });
        self.writer.write(epoch, entity, record)
    }
    fn prepare(&mut self, lower: Epoch, upper: Epoch) -> Result<Prepared> {
        self.writer.prepare(lower, upper)
    }
    fn publish(&mut self, lower: Epoch, upper: Epoch, left: Option<&[u8]>) -> Result<Undelivered> {
        self.gate.pass();
        if left.is_some() || self.written.range(lower..upper).next().is_some() {
            self.trouble.check(syncline::ErrorKind::Write)?; // a range without records, as the first one may be, has none
        }
        let undelivered = self.writer.publish(lower, upper, left)?;
        self.log.push(Event::Published { lower });
        Ok(undelivered)
    }
    fn published(&mut self) -> Result<Option<Epoch>> {
        self.writer.published()
    }
}
