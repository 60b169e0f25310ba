//! The loop of the reader thread.

use std::collections::BTreeSet;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};

use super::health::{Health, Look};
use super::source_thread::{Answer, Ask, SourceThread};
use super::{FromReader, Item, OnBad, READ_WAIT, ReaderSpec, Until};
use crate::codec::Codec;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Reason, Split, SplitId};
use crate::retry::Retry;
use crate::source::{Assignment, Batch, Committer, Evidence, Progress, Reader, Replay};

/// How long one read may wait while some splits are paused: as long, a split may stay paused that need not.
const PAUSED_WAIT: Duration = Duration::from_millis(10);

/// What the loop has in its hands.
pub(super) struct Reading<'a, T> {
    spec: &'a ReaderSpec<T>,
    source: SourceThread,
    batches: &'a Sender<FromReader<T>>,
    /// Where the committer of a new reader goes.
    committers: Sender<Box<dyn Committer>>,
    pauses: &'a Receiver<(SplitId, bool)>,
    codec: Box<dyn Codec<Record = T>>,
    assignments: Vec<Assignment>,
    paused: BTreeSet<SplitId>,
    health: Health,
    retry: Retry,
    batch: Batch,
}

/// Whether the loop goes on.
enum Then {
    GoOn,
    End,
}

impl<'a, T: Send + 'static> Reading<'a, T> {
    pub fn new(
        spec: &'a ReaderSpec<T>,
        source: SourceThread,
        batches: &'a Sender<FromReader<T>>,
        committers: Sender<Box<dyn Committer>>,
        pauses: &'a Receiver<(SplitId, bool)>,
        assignments: Vec<Assignment>,
    ) -> Self {
        let now = spec.clock.monotonic();
        let mut health = Health::new(spec.stuck_after, now);
        assignments.iter().for_each(|assignment| health.add(assignment, now));
        Reading {
            source,
            batches,
            committers,
            pauses,
            codec: (spec.new_codec)(),
            assignments,
            paused: BTreeSet::new(),
            health,
            retry: Retry::new(spec.retry, spec.seed()),
            batch: Batch::default(),
            spec,
        }
    }

    fn now(&self) -> Duration {
        self.spec.clock.monotonic()
    }

    /// Reads until everything has ended, the job ends, or something is wrong.
    pub fn run(mut self, mut reader: Box<dyn Reader>) -> Result<()> {
        while self.spec.control.is_running() {
            self.batch.clear();
            self.pause(&mut *reader)?;
            if self.take_answers(&mut *reader)? {
                drop(reader);
                let Some(opened) = self.reopen()? else { return Ok(()) };
                reader = opened;
            }
            if let Then::End = self.read(&mut *reader)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Does what the worker has said about splits that are ahead.
    fn pause(&mut self, reader: &mut dyn Reader) -> Result<()> {
        while let Ok((split, paused)) = self.pauses.try_recv() {
            self.apply(reader, split, paused)?;
        }
        Ok(())
    }

    fn apply(&mut self, reader: &mut dyn Reader, split: SplitId, paused: bool) -> Result<()> {
        if !self.assignments.iter().any(|assignment| assignment.split.id == split) {
            return Ok(()); // it has gone
        }
        reader.pause(&[split], paused)?;
        self.health.pause(split, paused, self.now());
        if paused {
            self.paused.insert(split);
            self.batch.evidence.push((split, Evidence::Behind));
        } else {
            self.paused.remove(&split);
        }
        Ok(())
    }

    /// Takes what the source's thread has said; says whether the reader is stuck.
    fn take_answers(&mut self, reader: &mut dyn Reader) -> Result<bool> {
        let now = self.now();
        match self.health.look(now) {
            Look::Later => {}
            Look::CaughtUp => self.tell_backlog(Some(0)),
            Look::Ask(question) => self.source.ask(Ask::Backlog(question)),
        }
        while let Ok(answer) = self.source.answers.try_recv() {
            match answer {
                Answer::Splits { add, remove } => {
                    let ids: Vec<SplitId> = remove.iter().map(|split| split.id).collect();
                    reader.assign(&add, &ids)?;
                    self.change(&add, remove);
                }
                Answer::Backlog { all, silent, took } => {
                    if let Ok(all) = all {
                        self.tell_backlog(all);
                    }
                    if let Err(error) = &silent {
                        tracing::warn!(source = self.spec.name, error = %error.report(), "the backlog cannot be asked for");
                    }
                    let held = silent.as_ref().ok().copied().flatten().unwrap_or_default();
                    let stuck = self.health.answer(silent.map_err(|_| ()), took, now);
                    if !stuck.is_empty() {
                        self.warn(&stuck, held);
                        return Ok(true);
                    }
                }
                Answer::Opened(_) => {} // nobody waits for it any more
            }
        }
        Ok(false)
    }

    fn tell_backlog(&self, backlog: Option<u64>) {
        self.spec.status.backlog(self.spec.ordinal, self.spec.worker, backlog);
    }

    fn warn(&self, stuck: &[(SplitId, Duration)], backlog: u64) {
        let name = |id: &SplitId| self.assignments.iter().find(|a| a.split.id == *id).map(|a| a.split.name.as_str());
        let names: Vec<&str> = stuck.iter().filter_map(|(id, _)| name(id)).collect();
        let silent = stuck.iter().map(|(_, silent)| *silent).max().unwrap_or_default();
        tracing::warn!(
            source = self.spec.name,
            splits = names.join(", "),
            backlog,
            "nothing came for {silent:?} although the broker has messages: the reader is opened anew"
        );
        self.spec.status.rebuilt();
    }

    /// Splits were found or have gone.
    fn change(&mut self, add: &[Assignment], remove: Vec<Split>) {
        let now = self.now();
        let ids: Vec<SplitId> = remove.iter().map(|split| split.id).collect();
        self.assignments.retain(|assignment| !ids.contains(&assignment.split.id));
        self.assignments.extend(add.iter().cloned());
        for split in &ids {
            self.health.remove(*split);
            self.paused.remove(split);
        }
        add.iter().for_each(|assignment| self.health.add(assignment, now));
        for split in remove {
            tracing::warn!(source = self.spec.name, split = split.name, "split is gone");
        }
        let opened = add.iter().map(|assignment| (assignment.split.id, assignment.from)).collect();
        self.spec.send(self.batches, FromReader::Opened(opened));
        self.spec.send(self.batches, FromReader::Removed(ids));
    }

    /// Opens a new reader from where the old one, which is gone, has stopped; `None` if the job ends meanwhile.
    fn reopen(&mut self) -> Result<Option<Box<dyn Reader>>> {
        for assignment in &mut self.assignments {
            assignment.from = self.health.next(assignment.split.id).unwrap_or(assignment.from);
        }
        let evidence = self.assignments.iter().map(|a| (a.split.id, Evidence::Behind)).collect();
        let at = self.spec.now();
        self.spec.send(self.batches, FromReader::Batch { items: vec![], ids: vec![], evidence, at });
        let mut asked = self.assignments.clone();
        self.source.ask(Ask::Open(asked.clone()));
        while self.spec.control.is_running() {
            match self.source.answers.recv_timeout(READ_WAIT) {
                Ok(Answer::Opened(Ok((mut reader, committer)))) => {
                    let _ = self.committers.send(committer); // the thread of the old one has ended only with the job
                    let is_in = |list: &[Assignment], id| list.iter().any(|assignment| assignment.split.id == id);
                    let (now, known) = (&self.assignments, &asked);
                    let add: Vec<Assignment> = now.iter().filter(|a| !is_in(known, a.split.id)).cloned().collect();
                    let gone = known.iter().map(|a| a.split.id).filter(|id| !is_in(now, *id));
                    let gone: Vec<SplitId> = gone.collect();
                    if !(add.is_empty() && gone.is_empty()) {
                        reader.assign(&add, &gone)?;
                    }
                    let paused: Vec<SplitId> = self.paused.iter().copied().collect();
                    reader.pause(&paused, true)?;
                    self.health.excuse(self.now());
                    return Ok(Some(reader));
                }
                Ok(Answer::Opened(Err(error))) if error.is_retryable() => {
                    let Some(wait) = self.retry.failure(self.now()) else { return Err(error) };
                    self.spec.failed(&error, wait);
                    asked = self.assignments.clone();
                    self.source.ask(Ask::Open(asked.clone()));
                }
                Ok(Answer::Opened(Err(error))) => return Err(error),
                Ok(Answer::Splits { add, remove }) => self.change(&add, remove),
                Ok(Answer::Backlog { took, .. }) => {
                    self.health.answer(Err(()), took, self.now()); // it was asked about the old reader
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None), // its thread has failed, and the job with it
            }
        }
        Ok(None)
    }

    /// How long a read may wait. Where every split waits for others it is not the reader that has something to say next.
    fn wait(&mut self, reader: &mut dyn Reader) -> Result<Option<Duration>> {
        if self.paused.is_empty() {
            return Ok(Some(READ_WAIT));
        }
        let mut ids = self.assignments.iter().map(|assignment| assignment.split.id);
        if ids.any(|id| !self.paused.contains(&id) && self.health.is_open(id)) {
            return Ok(Some(PAUSED_WAIT));
        }
        if self.batch.evidence.is_empty() {
            match self.pauses.recv_timeout(READ_WAIT) {
                Ok((split, paused)) => {
                    self.apply(reader, split, paused)?;
                    self.pause(reader)?;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None), // the worker has ended
            }
        }
        Ok(Some(Duration::ZERO))
    }

    /// Reads a batch and sends it on.
    fn read(&mut self, reader: &mut dyn Reader) -> Result<Then> {
        let Some(wait) = self.wait(reader)? else { return Ok(Then::End) };
        let read = reader.read(&mut self.batch, wait);
        self.spec.count_lost(&self.batch, &self.assignments);
        for lost in self.batch.lost.drain(..) {
            self.health.skip(lost.split, lost.to);
        }
        let progress = match read {
            Ok(progress) => {
                self.retry.success();
                progress
            }
            Err(error) if error.is_retryable() => {
                let now = self.now();
                let Some(wait) = self.retry.failure(now) else { return Err(error) };
                let behind = self.assignments.iter().map(|a| (a.split.id, Evidence::Behind));
                self.batch.evidence.extend(behind);
                self.decode()?;
                self.spec.failed(&error, wait);
                self.health.excuse(self.now());
                return Ok(Then::GoOn);
            }
            Err(error) => return Err(error),
        };
        if !self.decode()? {
            return Ok(Then::End);
        }
        if progress == Progress::Ended {
            if self.spec.until != Until::Never {
                self.tell_backlog(Some(0));
                self.spec.send(self.batches, FromReader::Ended);
                return Ok(Then::End);
            }
            self.spec.control.sleep(READ_WAIT); // until a new split is found
        }
        Ok(Then::GoOn)
    }

    /// Decodes a batch and sends it on; says whether the worker still listens.
    fn decode(&mut self) -> Result<bool> {
        if self.batch.messages.is_empty() && self.batch.evidence.is_empty() {
            return Ok(true);
        }
        let (spec, at) = (self.spec, self.spec.now());
        let redelivers = spec.replay == Replay::Redeliver;
        let mut items = Vec::with_capacity(self.batch.messages.len());
        let mut ids = Vec::with_capacity(if redelivers { items.capacity() } else { 0 });
        let mut last = None;
        for mut message in self.batch.messages.drain(..) {
            message.arrival = at.wall;
            if redelivers {
                ids.push(message.id);
            }
            let (split, offset, next, size) = (message.split, message.offset, message.next, message.size());
            if let Some((other, next)) = last.replace((split, next)).filter(|(other, _)| *other != split) {
                self.health.read(other, next, at.monotonic);
            }
            match self.codec.decode(message) {
                Ok(record) => {
                    let (timestamp, data) = (record.timestamp, record.data);
                    items.push(Item::Record { split, next, offset, size, timestamp, data });
                }
                Err(refusal) => {
                    let assigned = self.assignments.iter().find(|assignment| assignment.split.id == split);
                    let split = assigned.map_or_else(|| split.to_string(), |assignment| assignment.split.name.clone());
                    let policy = if refusal.reason == Reason::Tombstone { spec.on_null } else { spec.on_bad };
                    if policy == OnBad::Fail {
                        let text = format!(
                            "message at offset {offset} of split \"{}\" of source \"{}\" is refused ({}): {}",
                            split, spec.name, refusal.reason, refusal.error
                        );
                        return Err(Error::new(ErrorKind::Decode, text));
                    }
                    let (reason, error, message) = (refusal.reason, refusal.error, refusal.message);
                    items.push(Item::Refused { reason, error, split, message });
                }
            }
        }
        if let Some((split, next)) = last {
            self.health.read(split, next, at.monotonic);
        }
        let evidence = std::mem::take(&mut self.batch.evidence);
        evidence.iter().for_each(|(split, evidence)| self.health.evidence(*split, *evidence, at.monotonic));
        let batch = FromReader::Batch { items, ids, evidence, at };
        match self.batches.try_send(batch) {
            Ok(()) => (spec.wake)(),
            Err(TrySendError::Full(batch)) => {
                let sent = spec.send(self.batches, batch);
                self.health.excuse(self.now()); // the worker was slow
                return Ok(sent);
            }
            Err(TrySendError::Disconnected(_)) => return Ok(false),
        }
        Ok(true)
    }
}
