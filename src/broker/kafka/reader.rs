//! Reads partitions that were assigned by hand, and knows when it has caught up.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::client::KafkaConsumer;
use super::error::classify;
use super::ffi::{self, Failure, MessageRef, Queue, What};
use super::splits::{Phase, Place, Splits, State};
use super::topics::Names;
use crate::blocks::Blocks;
use crate::epoch::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Message, Offset, SplitId};
use crate::source::{Assignment, Batch, Evidence, OnLost, Progress, Reader};

/// Messages per call. More makes the caller wait for the first one, fewer cost a call each.
const MAX_MESSAGES: usize = 4096;
/// Bytes of keys and values per call, and of a block that they are copied to. More is memory on its way; less costs a wake-up of
/// the worker each.
const MAX_BYTES: usize = 256 << 10;

/// The client counts in milliseconds, and burns what is less of them in a loop.
fn whole_millis(wait: Duration) -> Duration {
    Duration::from_secs(wait.as_secs()) + Duration::from_millis(u64::from(wait.subsec_millis()))
}

/// Reads splits of topics. Waits in the client's queue, so a message ends the wait at once.
pub(super) struct KafkaReader {
    pub(super) queue: Queue,
    pub(super) client: Arc<KafkaConsumer>,
    pub(super) name: String,
    names: Names,
    pub(super) on_lost: OnLost,
    pub(super) splits: Splits,
    /// Splits whose evidence may have changed in this call.
    pub(super) touched: Vec<Place>,
    /// An error that came behind messages: it is the answer to the next call.
    failed: Option<Error>,
    /// Where keys and values go: messages share them, so that none costs an allocation.
    blocks: Blocks,
    pub(super) clock: SystemClock,
    /// When splits without messages ask for their ends again, on the monotonic clock.
    pub(super) probe_at: Duration,
    /// When splits whose positions are not settled ask again.
    pub(super) settle_at: Duration,
}

impl KafkaReader {
    /// A reader without splits.
    pub(super) fn new(client: Arc<KafkaConsumer>, name: String, names: Names, on_lost: OnLost) -> Result<Self> {
        let no_queue = || Error::new(ErrorKind::Config, "the Kafka client has no queue: it has no group");
        Ok(KafkaReader {
            queue: Queue::new(Arc::clone(&client)).ok_or_else(no_queue)?,
            client,
            name,
            names,
            on_lost,
            splits: Splits::default(),
            touched: Vec::new(),
            failed: None,
            blocks: Blocks::new(MAX_BYTES),
            clock: SystemClock::new(),
            probe_at: Duration::ZERO,
            settle_at: Duration::ZERO,
        })
    }

    /// Lets the client fetch a split from its next offset. What it had fetched before is thrown away.
    pub(super) fn attach(&self, place: Place, next: u64) -> Result<()> {
        let list = self.list(place, KafkaOffset::Offset(i64::try_from(next).unwrap_or(i64::MAX)))?;
        self.client.incremental_assign(&list).map_err(|error| self.refused(error, place))
    }

    pub(super) fn detach(&self, place: Place) -> Result<()> {
        let list = self.list(place, KafkaOffset::Invalid)?;
        self.client.incremental_unassign(&list).map_err(|error| self.refused(error, place))
    }

    fn list(&self, place: Place, offset: KafkaOffset) -> Result<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(self.splits.topic_name(place), place.partition, offset)
            .map_err(|error| self.refused(error, place))?;
        Ok(list)
    }

    fn refused(&self, error: KafkaError, place: Place) -> Error {
        classify(error, ErrorKind::Read, format!("{} of {} cannot be assigned", self.splits.name(place), self.name))
    }

    /// Takes a message that the client gave. Returns its size.
    fn take(state: &mut State, blocks: &mut Blocks, from: MessageRef<'_>, batch: &mut Batch) -> usize {
        let offset = from.offset();
        // What the client still had of a split that was detached meanwhile will be, or was, read elsewhere.
        if !state.gives() || offset < state.next {
            return 0;
        }
        (state.phase, state.unproven) = (Phase::Reading, false);
        if state.until.is_some_and(|until| offset >= until) {
            state.read = offset; // a gap reached over the end
            return 0;
        }
        state.next = offset + 1;
        state.read = state.read.max(state.next);
        let value = from.value().map(|value| blocks.copy(value));
        let mut message = Message::new(state.id, Offset(offset), Offset(state.next), value);
        message.key = from.key().map(|key| blocks.copy(key));
        (message.timestamp, message.timestamp_type) = from.timestamp();
        for (name, value) in from.headers() {
            message.headers.push((name.into_owned(), value.map(|value| blocks.copy(value))));
        }
        let size = message.size();
        batch.messages.push(message);
        size
    }

    /// Takes what the client has, and waits for the first of it until `deadline`.
    fn drain(&mut self, batch: &mut Batch, deadline: Duration) -> Result<()> {
        let (mut messages, mut bytes) = (0, 0);
        let mut last: Option<Place> = None;
        // The topic of the last message: a topic that has a split keeps its address while we are here.
        let mut topic: Option<(usize, usize)> = None;
        while messages < MAX_MESSAGES && bytes < MAX_BYTES {
            let patience = match messages == 0 && self.touched.is_empty() {
                true => whole_millis(deadline.saturating_sub(self.clock.monotonic())),
                false => Duration::ZERO,
            };
            let Some(event) = self.queue.poll(patience) else {
                match patience.is_zero() {
                    true => break,
                    false => continue,
                }
            };
            let failure = match event.what() {
                What::Message(message) => {
                    messages += 1;
                    let id = message.topic_id();
                    if topic.is_none_or(|(known, _)| known != id) {
                        topic = self.splits.topic(&message.topic()).map(|topic| (id, topic));
                    }
                    let place = topic.map(|(_, topic)| self.splits.place(topic, message.partition()));
                    let Some((place, state)) = place.and_then(|place| Some((place, self.splits.get(place)?))) else {
                        continue;
                    };
                    bytes += Self::take(state, &mut self.blocks, message, batch);
                    if last.replace(place) != Some(place) {
                        self.touched.push(place);
                    }
                    continue;
                }
                What::End(end) => {
                    let Some(place) = self.place(&end) else { continue };
                    let high = self.queue.high_watermark(self.splits.native_name(place), place.partition);
                    if let Some(state) = self.splits.get(place).filter(|state| state.gives()) {
                        state.at_end(end.offset, high);
                        self.touched.push(place);
                    }
                    continue;
                }
                What::Failed(failure) => failure,
                What::Log { level, facility, text } => {
                    self.client.context().log(level, &facility, &text);
                    continue;
                }
                What::Other => continue,
            };
            drop(event);
            self.failed_at(failure)?;
        }
        Ok(())
    }

    fn place(&self, at: &ffi::Place) -> Option<Place> {
        Some(self.splits.place(self.splits.topic(&at.topic)?, at.partition))
    }

    /// What the client says about a partition's position is looked into; anything else is an error.
    fn failed_at(&mut self, failure: Failure) -> Result<()> {
        let Failure { code, text, fatal, place } = failure;
        let kind = classify(KafkaError::Global(code), ErrorKind::Read, "").kind();
        match (place.and_then(|place| self.place(&place)), kind) {
            (Some(place), ErrorKind::OffsetLost | ErrorKind::NotFound) => {
                self.touched.push(place);
                self.doubt(place, kind, &text)
            }
            _ => {
                self.client.context().error(KafkaError::Global(code), &text);
                Err(self.failure(match fatal {
                    true => KafkaError::MessageConsumptionFatal(code),
                    false => KafkaError::MessageConsumption(code),
                }))
            }
        }
    }

    /// The client's error as one of ours. What was said about splits being caught up is to be said anew.
    fn failure(&mut self, error: KafkaError) -> Error {
        for (_, state) in self.splits.iter() {
            if state.told == Evidence::CaughtUp {
                state.told = Evidence::Behind;
            }
        }
        self.client.context().explain(error, ErrorKind::Read, format!("cannot read {}", self.name))
    }

    /// Ends the splits that are over, and says what has changed.
    fn report(&mut self, batch: &mut Batch) -> Result<()> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for place in touched.drain(..) {
            let Some(state) = self.splits.get(place) else { continue };
            let over = state.is_over() && state.gives();
            if over {
                state.phase = Phase::Ended;
            }
            let evidence = state.evidence();
            if evidence != state.told || evidence == Evidence::CaughtUp {
                state.told = evidence;
                batch.evidence.push((state.id, evidence));
            }
            if over {
                self.detach(place)?;
            }
        }
        self.touched = touched;
        Ok(())
    }

    fn progress(&mut self) -> Progress {
        match self.splits.iter().all(|(_, state)| state.phase == Phase::Ended) {
            true => Progress::Ended,
            false => Progress::Open,
        }
    }

    /// When to stop waiting for messages.
    fn deadline(&mut self, wait: Duration) -> Duration {
        let now = self.clock.monotonic();
        if self.progress() == Progress::Ended {
            return now; // nothing can come, but the client's queue wants to be served
        }
        let (probe_at, settle_at) = (self.probe_at.max(now), self.settle_at.max(now));
        self.splits.iter().fold(now + wait, |deadline, (_, state)| match state.phase {
            Phase::AtEnd => deadline.min(probe_at),
            Phase::Unsettled => deadline.min(settle_at),
            _ => deadline,
        })
    }
}

impl Reader for KafkaReader {
    fn read(&mut self, batch: &mut Batch, wait: Duration) -> Result<Progress> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let before = batch.messages.len();
        self.settle(batch)?;
        let deadline = self.deadline(wait);
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
            if let Some((place, state)) = self.splits.remove(*split)
                && state.gives()
            {
                self.detach(place)?;
            }
        }
        for Assignment { split, from, until } in add {
            let (topic, partition) = self.names.learn(split)?;
            let state = State::new(split.id, from.0, until.map(|until| until.0));
            self.splits.insert(&topic, partition, state);
            self.settle_at = Duration::ZERO;
        }
        Ok(())
    }

    fn pause(&mut self, splits: &[SplitId], paused: bool) -> Result<()> {
        for place in splits.iter().filter_map(|split| self.splits.find(*split)).collect::<Vec<_>>() {
            let Some(state) = self.splits.get(place) else { continue };
            let (gives, settled, next) = (state.gives(), state.settled, state.next);
            match (state.phase, paused) {
                (Phase::Reading | Phase::AtEnd | Phase::Unsettled, true) => {
                    state.phase = Phase::Paused;
                    self.touched.push(place);
                    if gives {
                        self.detach(place)?;
                    }
                }
                (Phase::Paused, false) if settled => {
                    state.phase = Phase::Reading;
                    self.attach(place, next)?;
                }
                (Phase::Paused, false) => state.phase = Phase::Unsettled,
                _ => {}
            }
        }
        Ok(())
    }
}
