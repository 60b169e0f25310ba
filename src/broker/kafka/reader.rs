//! Reads partitions that were assigned by hand, and knows when it has caught up.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _, Timestamp};
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::client::{KafkaConsumer, PATIENCE, ask_offsets, number, partition_of};
use super::error::classify;
use crate::epoch::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Message, Offset, SplitId};
use crate::source::{Assignment, Batch, Evidence, Progress, Reader};

/// Messages per call. More makes the caller wait for the first one, fewer cost a call each.
const MAX_MESSAGES: usize = 4096;
/// Bytes of keys and values per call, and of a block that they are copied to.
const MAX_BYTES: usize = 1 << 20;
/// Larger values get memory of their own: no block holds them and no block is thrown away half empty for them.
const LARGE_BYTES: usize = MAX_BYTES / 8;
/// How often a split that has nothing to read asks for the end offset: twice within the life of the evidence.
const PROBE: Duration = Duration::from_millis(900);
/// How long such a question may take before the broker counts as away.
const PROBE_PATIENCE: Duration = Duration::from_secs(1);

/// The client counts in milliseconds, and burns what is less of them in a loop.
fn whole_millis(wait: Duration) -> Duration {
    Duration::from_secs(wait.as_secs()) + Duration::from_millis(u64::from(wait.subsec_millis()))
}

/// What a split is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Messages come, or may come at any moment.
    Reading,
    /// The broker said "end of partition", and nothing has come since.
    AtEnd,
    /// The caller wants no messages for now. Not assigned to the client.
    Paused,
    /// Everything below `until` was read. Not assigned to the client.
    Ended,
}

/// A split, with everything about its position.
#[derive(Debug)]
struct State {
    id: SplitId,
    /// The next offset to give. Grows with every message.
    next: u64,
    /// Everything below was read, offsets without messages included. At least `next`.
    read: u64,
    /// The end offset that was asked for before the client began to fetch from `next`: at the end of the partition everything
    /// below it is read, even if no message says so.
    asked: u64,
    until: Option<u64>,
    phase: Phase,
    /// What the caller was told last.
    told: Evidence,
}

impl State {
    fn gives(&self) -> bool {
        matches!(self.phase, Phase::Reading | Phase::AtEnd)
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| self.read >= until)
    }

    fn evidence(&self) -> Evidence {
        match self.phase {
            Phase::Reading | Phase::Paused => Evidence::Behind,
            Phase::AtEnd => Evidence::CaughtUp,
            Phase::Ended => Evidence::Ended,
        }
    }
}

/// Reads splits of one topic. Waits in the client's queue, so a message ends the wait at once.
pub(super) struct KafkaReader {
    client: Arc<KafkaConsumer>,
    name: String,
    topic: String,
    /// By partition.
    splits: Vec<Option<State>>,
    /// Partitions whose evidence may have changed in this call.
    touched: Vec<i32>,
    /// An error that came behind messages: it is the answer to the next call.
    failed: Option<Error>,
    /// Where keys and values go: messages share it, so that none costs an allocation.
    block: BytesMut,
    clock: SystemClock,
    /// When splits without messages ask for their ends again, on the monotonic clock.
    probe_at: Duration,
}

impl KafkaReader {
    /// A reader without splits.
    pub(super) fn new(client: Arc<KafkaConsumer>, name: String, topic: String) -> Self {
        KafkaReader {
            client,
            name,
            topic,
            splits: Vec::new(),
            touched: Vec::new(),
            failed: None,
            block: BytesMut::new(),
            clock: SystemClock::new(),
            probe_at: Duration::ZERO,
        }
    }

    fn states(&mut self) -> impl Iterator<Item = (i32, &mut State)> {
        self.splits.iter_mut().zip(0..).filter_map(|(state, partition)| Some((partition, state.as_mut()?)))
    }

    /// Lets the client fetch a split from its next offset. What it had fetched before is thrown away.
    fn attach(&self, partition: i32, next: u64) -> Result<()> {
        let list = self.list(partition, KafkaOffset::Offset(i64::try_from(next).unwrap_or(i64::MAX)))?;
        self.client.incremental_assign(&list).map_err(|error| self.refused(error, partition))
    }

    fn detach(&self, partition: i32) -> Result<()> {
        let list = self.list(partition, KafkaOffset::Invalid)?;
        self.client.incremental_unassign(&list).map_err(|error| self.refused(error, partition))
    }

    fn list(&self, partition: i32, offset: KafkaOffset) -> Result<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, partition, offset).map_err(|error| self.refused(error, partition))?;
        Ok(list)
    }

    fn refused(&self, error: KafkaError, partition: i32) -> Error {
        classify(error, ErrorKind::Read, format!("{}[{partition}] cannot be assigned", self.name))
    }

    /// Copies bytes into the shared block, or into memory of their own.
    fn keep(block: &mut BytesMut, bytes: &[u8]) -> Bytes {
        if bytes.len() > LARGE_BYTES {
            return Bytes::copy_from_slice(bytes);
        }
        if block.capacity() < bytes.len() {
            *block = BytesMut::with_capacity(MAX_BYTES);
        }
        block.extend_from_slice(bytes);
        block.split().freeze()
    }

    /// Takes a message that the client gave. Returns its size.
    fn take(
        splits: &mut [Option<State>],
        block: &mut BytesMut,
        from: &BorrowedMessage<'_>,
        batch: &mut Batch,
    ) -> usize {
        let offset = from.offset().unsigned_abs();
        let state = usize::try_from(from.partition()).ok().and_then(|index| splits.get_mut(index)?.as_mut());
        // What the client still had of a split that was detached meanwhile will be, or was, read elsewhere.
        let Some(state) = state.filter(|state| state.gives() && offset >= state.next) else { return 0 };
        state.phase = Phase::Reading;
        if state.until.is_some_and(|until| offset >= until) {
            state.read = offset; // a gap reached over the end
            return 0;
        }
        state.next = offset + 1;
        state.read = state.read.max(state.next);
        let value = from.payload().map(|value| Self::keep(block, value));
        let mut message = Message::new(state.id, Offset(offset), Offset(state.next), value);
        message.key = from.key().map(|key| Self::keep(block, key));
        message.timestamp = match from.timestamp() {
            Timestamp::CreateTime(time) | Timestamp::LogAppendTime(time) => u64::try_from(time).ok(),
            Timestamp::NotAvailable => None,
        };
        if let Some(headers) = from.headers() {
            let header = |header: rdkafka::message::Header<'_, &[u8]>| {
                (header.key.to_string(), header.value.map(|value| Self::keep(block, value)))
            };
            message.headers = headers.iter().map(header).collect();
        }
        let size = message.size();
        batch.messages.push(message);
        size
    }

    /// Takes what the client has, and waits for the first of it until `deadline`.
    fn drain(&mut self, batch: &mut Batch, deadline: Duration) -> Result<()> {
        let client = self.client.clone();
        let (mut messages, mut bytes) = (0, 0);
        let mut last = None;
        while messages < MAX_MESSAGES && bytes < MAX_BYTES {
            let patience = match messages == 0 && self.touched.is_empty() {
                true => whole_millis(deadline.saturating_sub(self.clock.monotonic())),
                false => Duration::ZERO,
            };
            let partition = match client.poll(patience) {
                Some(Ok(message)) => {
                    messages += 1;
                    bytes += Self::take(&mut self.splits, &mut self.block, &message, batch);
                    message.partition()
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    self.at_end(partition);
                    partition
                }
                Some(Err(error)) => return Err(self.failure(error)),
                None if patience.is_zero() => break,
                None => continue,
            };
            if last.replace(partition) != Some(partition) {
                self.touched.push(partition);
            }
        }
        Ok(())
    }

    fn at_end(&mut self, partition: i32) {
        let state = usize::try_from(partition).ok().and_then(|index| self.splits.get_mut(index)?.as_mut());
        if let Some(state) = state.filter(|state| state.gives()) {
            state.phase = Phase::AtEnd;
            state.read = state.read.max(state.asked);
        }
    }

    /// The client's error as one of ours. What was said about splits being caught up is to be said anew.
    fn failure(&mut self, error: KafkaError) -> Error {
        for (_, state) in self.states() {
            if state.told == Evidence::CaughtUp {
                state.told = Evidence::Behind;
            }
        }
        self.client.context().explain(error, ErrorKind::Read, format!("cannot read {}", self.name))
    }

    /// Asks for the end offsets of the splits that have nothing to read: are they still caught up?
    fn probe(&mut self, batch: &mut Batch) -> Result<()> {
        let now = self.clock.monotonic();
        if now < self.probe_at {
            return Ok(());
        }
        let idle: Vec<i32> = self.states().filter(|(_, s)| s.phase == Phase::AtEnd).map(|(p, _)| p).collect();
        if idle.is_empty() {
            return Ok(());
        }
        let answer = ask_offsets(&self.client, &self.topic, idle.iter().copied(), KafkaOffset::End, PROBE_PATIENCE);
        self.probe_at = self.clock.monotonic() + PROBE;
        let ends = answer.unwrap_or_else(|error| {
            tracing::debug!(source = self.name, %error, "the broker does not name end offsets");
            Default::default()
        });
        let mut again = Vec::new();
        for partition in idle {
            let end = ends.get(&partition).and_then(|end| number(*end).ok().flatten());
            let Some(state) = self.splits[partition as usize].as_mut() else { continue };
            let evidence = match end {
                Some(end) if end <= state.read => Evidence::CaughtUp,
                // Either a message is on its way or the rest is gaps: "end of partition" from here will tell.
                Some(end) => {
                    state.asked = end;
                    state.phase = Phase::Reading;
                    again.push((partition, state.next));
                    continue;
                }
                None => Evidence::Behind,
            };
            state.told = evidence;
            batch.evidence.push((state.id, evidence));
        }
        for (partition, next) in again {
            self.detach(partition)?;
            self.attach(partition, next)?;
        }
        Ok(())
    }

    /// Ends the splits that are over, and says what has changed.
    fn report(&mut self, batch: &mut Batch) -> Result<()> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for partition in touched.drain(..) {
            let Some(state) = usize::try_from(partition).ok().and_then(|i| self.splits.get_mut(i)?.as_mut()) else {
                continue;
            };
            let over = state.is_over() && state.phase != Phase::Ended;
            if over {
                state.phase = Phase::Ended;
            }
            let evidence = state.evidence();
            if evidence != state.told || evidence == Evidence::CaughtUp {
                state.told = evidence;
                batch.evidence.push((state.id, evidence));
            }
            if over {
                self.detach(partition)?;
            }
        }
        self.touched = touched;
        Ok(())
    }

    fn progress(&mut self) -> Progress {
        match self.states().all(|(_, state)| state.phase == Phase::Ended) {
            true => Progress::Ended,
            false => Progress::Open,
        }
    }
}

impl Reader for KafkaReader {
    fn read(&mut self, batch: &mut Batch, wait: Duration) -> Result<Progress> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let before = batch.messages.len();
        let now = self.clock.monotonic();
        let mut deadline = now + wait;
        if self.progress() == Progress::Ended {
            deadline = now; // nothing can come, but the client's queue wants to be served
        } else if self.states().any(|(_, state)| state.phase == Phase::AtEnd) {
            deadline = deadline.min(self.probe_at.max(now));
        }
        let drained = self.drain(batch, deadline);
        self.report(batch)?;
        match drained {
            Err(error) if batch.messages.len() == before => return Err(error),
            Err(error) => self.failed = Some(error),
            Ok(()) => self.probe(batch)?,
        }
        Ok(self.progress())
    }

    fn assign(&mut self, add: &[Assignment], remove: &[SplitId]) -> Result<()> {
        for split in remove {
            let partition = partition_of(&self.topic, *split)?;
            let state = usize::try_from(partition).ok().and_then(|index| self.splits.get_mut(index)?.take());
            if state.is_some_and(|state| state.gives()) {
                self.detach(partition)?;
            }
        }
        let mut added = Vec::with_capacity(add.len());
        for assignment in add {
            added.push((partition_of(&self.topic, assignment.split.id)?, assignment));
        }
        // Bounded splits may end in offsets without messages: the end is asked for before anything is fetched.
        let bounded =
            added.iter().filter(|(_, assignment)| assignment.until.is_some()).map(|(partition, _)| *partition);
        let ends = ask_offsets(&self.client, &self.topic, bounded, KafkaOffset::End, PATIENCE).map_err(|error| {
            self.client.context().explain(error, ErrorKind::Read, format!("cannot ask {} for end offsets", self.name))
        })?;
        for (partition, assignment) in added {
            let index = partition as usize;
            if self.splits.len() <= index {
                self.splits.resize_with(index + 1, || None);
            }
            let from = assignment.from.0;
            let asked = ends.get(&partition).and_then(|end| number(*end).ok().flatten()).unwrap_or(0);
            let mut state = State {
                id: assignment.split.id,
                next: from,
                read: from,
                asked,
                until: assignment.until.map(|until| until.0),
                phase: Phase::Reading,
                told: Evidence::Behind,
            };
            if state.is_over() {
                state.phase = Phase::Ended;
                self.touched.push(partition);
            } else {
                self.attach(partition, from)?;
            }
            self.splits[index] = Some(state);
        }
        Ok(())
    }

    fn pause(&mut self, splits: &[SplitId], paused: bool) -> Result<()> {
        for split in splits {
            let partition = partition_of(&self.topic, *split)?;
            let state = usize::try_from(partition).ok().and_then(|index| self.splits.get_mut(index)?.as_mut());
            let Some(state) = state else { continue };
            let next = state.next;
            match (state.phase, paused) {
                (Phase::Reading | Phase::AtEnd, true) => {
                    state.phase = Phase::Paused;
                    self.touched.push(partition);
                    self.detach(partition)?;
                }
                (Phase::Paused, false) => {
                    state.phase = Phase::Reading;
                    self.attach(partition, next)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
