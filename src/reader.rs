//! The threads of one input on one worker: one that owns the [`Source`], and the reader that fills a bounded channel.
//!
//! ```text
//! Source --splits, offsets--> Reader --messages--> Codec --records, evidence--> bounded channel --> the worker
//! ```
//!
//! A full channel blocks the reader thread: that is the back-pressure. What the broker then says ages, so a split that is held
//! back by us counts as behind.

mod health;
mod reading;
mod source_thread;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::codec::NewCodec;
use crate::commit::CommitThread;
use crate::control::{Control, Wake};
use crate::epoch::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Message, MessageId, Offset, Offsets, Reason, Split, SplitId};
use crate::observe::Status;
use crate::retry::{Retry, RetryPolicy, persist};
use crate::source::{Assignment, Batch, Committer, Evidence, NewSource, Position, Replay, Source};
use crate::split_time::Now;

use self::reading::Reading;

/// Batches that wait for the worker. More: more memory and older evidence; fewer: the reader waits for the worker more often.
const CHANNEL_BATCHES: usize = 4;

/// How long one read may wait for a message: the time in which a reader notices that it should stop.
const READ_WAIT: Duration = Duration::from_millis(250);

/// Where an input ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Nowhere: it is followed.
    Never,
    /// Where each split ended when the job started.
    End,
    /// At the first message that is not older, in milliseconds since the Unix epoch, for brokers that can find it.
    Timestamp(u64),
}

/// What becomes of a message that the codec refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBad {
    /// The job ends with an error that names the message.
    Fail,
    /// It goes to the dead-letter output, and is counted.
    DeadLetter,
    /// It is counted.
    Skip,
}

/// One item of a batch.
#[derive(Debug)]
pub(crate) enum Item<T> {
    Record { split: SplitId, next: Offset, offset: Offset, size: usize, timestamp: Option<u64>, data: T },
    Refused { reason: Reason, error: String, split: String, message: Box<Message> },
}

/// What the reader thread sends.
#[derive(Debug)]
pub(crate) enum FromReader<T> {
    /// Splits are read now, from these offsets.
    Opened(Vec<(SplitId, Offset)>),
    /// Splits are read no more.
    Removed(Vec<SplitId>),
    /// Items, and what was known behind them at that moment. `ids` has one for each item where the source delivers again, else none.
    Batch { items: Vec<Item<T>>, ids: Vec<Option<MessageId>>, evidence: Vec<(SplitId, Evidence)>, at: Now },
    /// Nothing will come any more.
    Ended,
}

/// All that the threads of an input need.
pub(crate) struct ReaderSpec<T> {
    pub name: String,
    pub new_source: NewSource,
    pub new_codec: NewCodec<T>,
    pub start: Position,
    pub until: Until,
    pub on_bad: OnBad,
    pub on_null: OnBad,
    /// What the dataflow was built for.
    pub replay: Replay,
    pub retry: RetryPolicy,
    /// How long the broker may have messages that do not come.
    pub stuck_after: Duration,
    /// The index of the input in the job, so that splits of several topics spread.
    pub ordinal: usize,
    pub worker: usize,
    pub peers: usize,
    pub clock: Arc<dyn Clock>,
    pub control: Control,
    pub status: Arc<Status>,
    pub wake: Wake,
    /// Where a checkpoint says that splits go on; empty if there is none.
    pub resume: Offsets,
}

/// What the worker holds of the threads.
pub(crate) struct ReaderThread<T> {
    pub batches: Receiver<FromReader<T>>,
    /// The committer, as soon as the source is open.
    pub committer: Receiver<CommitThread>,
    /// Where to say that a split is to be paused, or is to go on.
    pub pauses: Sender<(SplitId, bool)>,
}

impl<T: Send + 'static> ReaderSpec<T> {
    /// Starts the threads.
    pub fn spawn(self) -> Result<ReaderThread<T>> {
        let (batches_in, batches) = bounded(CHANNEL_BATCHES);
        let (committer_in, committer) = bounded(1);
        let (pauses, pauses_out) = unbounded();
        let name = format!("read-{}-{}", self.ordinal, self.worker);
        let control = self.control.clone();
        let body = move || {
            let (control, wake) = (self.control.clone(), Arc::clone(&self.wake));
            if let Err(error) = self.run(&batches_in, &committer_in, &pauses_out) {
                control.fail(error);
            }
            drop(batches_in);
            wake();
        };
        spawn_thread(name, &control, body)?;
        Ok(ReaderThread { batches, committer, pauses })
    }

    fn now(&self) -> Now {
        Now { wall: self.clock.wall(), monotonic: self.clock.monotonic() }
    }

    fn is_mine(&self, split: &Split) -> bool {
        is_mine(split, self.ordinal, self.worker, self.peers)
    }

    fn send(&self, batches: &Sender<FromReader<T>>, batch: FromReader<T>) -> bool {
        let sent = batches.send(batch).is_ok();
        (self.wake)();
        sent
    }

    fn run(
        self,
        batches: &Sender<FromReader<T>>,
        committer_in: &Sender<CommitThread>,
        pauses: &Receiver<(SplitId, bool)>,
    ) -> Result<()> {
        let mut source = (self.new_source)()?;
        let Some(found) = self.persist(|| source.splits().map(Some))? else { return Ok(()) };
        check_splits(&self.name, &found)?;
        self.check_replay(source.replay())?;
        self.check_any(&found)?;
        self.check_exact(&found)?;
        let mine: Vec<Split> = found.iter().filter(|split| self.is_mine(split)).cloned().collect();
        let start = match self.resume.is_empty() {
            true => self.start.clone(),
            false => resumed(&self.resume, &mine), // whatever was said: it was said to an earlier run
        };
        if !self.resume.is_empty() && self.start != Position::COMMITTED && self.worker == 0 {
            tracing::warn!(source = self.name, "the checkpoint says where to go on: the start position is not used");
        }
        let Some(assignments) = self.persist(|| self.assignments(&mut *source, &mine, &start).map(Some))? else {
            return Ok(());
        };
        let bounded_input = self.until != Until::Never;
        if bounded_input && assignments.is_empty() {
            self.send(batches, FromReader::Opened(vec![]));
            self.send(batches, FromReader::Ended);
            return Ok(());
        }
        let Some((reader, committer)) = self.persist(|| source.open(&assignments).map(Some))? else {
            return Ok(());
        };
        for Assignment { split, from, until } in &assignments {
            tracing::info!(
                source = self.name,
                split = split.name,
                offset = from.0,
                until = until.map(|u| u.0),
                "reading"
            );
        }
        let committers = self.start_committer(committer, committer_in)?;
        let opened = assignments.iter().map(|assignment| (assignment.split.id, assignment.from)).collect();
        if !self.send(batches, FromReader::Opened(opened)) {
            return Ok(());
        }
        let every = source.discovery().filter(|_| !bounded_input);
        if self.worker == 0 {
            let every = every.map_or_else(|| "never".to_owned(), |every| format!("every {every:?}"));
            tracing::info!(source = self.name, "new splits are looked for {every}");
        }
        let source = source_thread::start(&self, source, found, every)?;
        Reading::new(&self, source, batches, committers, pauses, assignments).run(reader)
    }

    /// Starts the thread that commits; says where to put another committer in place of this one.
    fn start_committer(
        &self,
        committer: Box<dyn Committer>,
        committer_in: &Sender<CommitThread>,
    ) -> Result<Sender<Box<dyn Committer>>> {
        let (committers, others) = unbounded();
        let name = format!("commit-{}-{}", self.ordinal, self.worker);
        let _ = committer_in.send(CommitThread::spawn(
            name,
            self.name.clone(),
            committer,
            others,
            &self.control,
            Arc::clone(&self.status),
        )?);
        Ok(committers)
    }

    /// A topic that was made between two looks may be of another kind than the one that was not there.
    fn check_replay(&self, replay: Replay) -> Result<()> {
        if replay == self.replay {
            return Ok(());
        }
        let (name, before) = (&self.name, self.replay);
        let text = format!("source \"{name}\" was {before:?} and is {replay:?}: it was made anew, start the job again");
        Err(Error::new(ErrorKind::Read, text))
    }

    /// A topic of which there is nothing is mostly one whose name is wrong.
    fn check_any(&self, found: &[Split]) -> Result<()> {
        match (found.is_empty(), self.until) {
            (false, _) => {}
            (true, Until::Never) => {
                tracing::warn!(source = self.name, "there is nothing to read yet: no split was found")
            }
            (true, _) => {
                let text = format!("source \"{}\" has no split to read: is its topic named rightly?", self.name);
                return Err(Error::new(ErrorKind::NotFound, text));
            }
        }
        Ok(())
    }

    /// A position that names a split must mean one: the rest would silently begin at its beginning.
    fn check_exact(&self, found: &[Split]) -> Result<()> {
        let Position::Exact(offsets) = &self.start else { return Ok(()) };
        if !self.resume.is_empty() {
            return Ok(());
        }
        if self.replay == Replay::Redeliver {
            let text = format!("source \"{}\" has no offsets to start at, only what was not acknowledged", self.name);
            return Err(Error::new(ErrorKind::Config, text));
        }
        let unknown: Vec<&String> =
            offsets.keys().filter(|name| found.iter().all(|split| split.name != **name)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let known: Vec<&str> = found.iter().map(|split| split.name.as_str()).take(10).collect();
        let text =
            format!("the start names {unknown:?}, but the splits of source \"{}\" are called {known:?}", self.name);
        Err(Error::new(ErrorKind::NotFound, text))
    }

    /// Counts the offsets that the reader had to skip, and says so.
    fn count_lost(&self, batch: &Batch, assignments: &[Assignment]) {
        for lost in &batch.lost {
            let split = assignments.iter().find(|assignment| assignment.split.id == lost.split);
            let split = split.map_or_else(|| lost.split.to_string(), |assignment| assignment.split.name.clone());
            self.status.lost(lost.offsets());
            tracing::warn!(
                source = self.name,
                split,
                from = lost.from.0,
                to = lost.to.0,
                offsets = lost.offsets(),
                "the broker no longer has these offsets: they are skipped and counted as lost"
            );
        }
    }

    /// Makes positions of splits numbers.
    fn assignments(&self, source: &mut dyn Source, splits: &[Split], start: &Position) -> Result<Vec<Assignment>> {
        if splits.is_empty() {
            return Ok(vec![]);
        }
        let from = source.resolve(start, splits)?;
        let until = match self.until {
            Until::Never => None,
            Until::End => Some(source.resolve(&Position::Latest, splits)?),
            Until::Timestamp(timestamp) => Some(source.resolve(&Position::Timestamp(timestamp), splits)?),
        };
        let missing = |split: &Split| {
            let text = format!("source \"{}\" resolved no offset for split \"{}\"", self.name, split.name);
            Error::new(ErrorKind::Read, text)
        };
        let assignments = splits.iter().map(|split| {
            let offset_in = |offsets: &Offsets| offsets.get(&split.id).copied().ok_or_else(|| missing(split));
            let until = until.as_ref().map(offset_in).transpose()?;
            Ok(Assignment { split: split.clone(), from: offset_in(&from)?, until })
        });
        assignments.collect()
    }

    /// Tries until it works, cannot work, or the job ends: then it gives the default.
    fn persist<R: Default>(&self, call: impl FnMut() -> Result<R>) -> Result<R> {
        let answer = persist(Retry::new(self.retry, self.seed()), &*self.clock, call, |error, wait| {
            self.failed(error, wait);
            self.control.is_running()
        });
        match answer {
            Err(error) if error.is_retryable() && !self.control.is_running() => Ok(R::default()),
            other => other,
        }
    }

    /// The broker failed in a way that may pass: says so, and waits.
    fn failed(&self, error: &Error, wait: Duration) {
        self.status.retry();
        tracing::warn!(source = self.name, error = %error.report(), "reading again in {wait:?}");
        self.control.sleep(wait);
    }

    fn seed(&self) -> u64 {
        self.clock.wall() ^ (self.ordinal as u64) << 32 ^ (self.worker as u64) << 48
    }
}

/// Where splits go on that a checkpoint may know; the others begin at their beginning.
fn resumed(resume: &Offsets, splits: &[Split]) -> Position {
    let known = |split: &Split| Some((split.name.clone(), *resume.get(&split.id)?));
    Position::Exact(splits.iter().filter_map(known).collect())
}

/// Which worker reads a split: the same one for ever, also if the split is found late.
fn is_mine(split: &Split, source: usize, worker: usize, workers: usize) -> bool {
    (source + split.ordinal as usize) % workers == worker
}

/// Starts a named thread of a job. If it panics the job fails: others would wait for it for ever.
pub(crate) fn spawn_thread(
    name: String,
    control: &Control,
    body: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>> {
    let alarm = control.alarm(name.clone());
    let failed = format!("thread \"{name}\" cannot be started");
    let guarded = move || {
        let _alarm = alarm;
        body();
    };
    thread::Builder::new().name(name).spawn(guarded).map_err(|e| Error::new(ErrorKind::Cluster, failed).with_source(e))
}

/// Two splits with the same id would share one offset.
fn check_splits(source: &str, splits: &[Split]) -> Result<()> {
    let mut ids: Vec<(SplitId, &str)> = splits.iter().map(|split| (split.id, split.name.as_str())).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => {
            let text = format!("source \"{source}\": splits \"{}\" and \"{}\" have the same id", pair[0].1, pair[1].1);
            Err(Error::new(ErrorKind::Read, text))
        }
        None => Ok(()),
    }
}
