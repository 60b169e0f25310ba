//! Writes records with an idempotent producer that the writer's own thread polls.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, Producer, ProducerContext};

use super::client::Context;
use super::config::topic_problem;
use super::error::classify;
use super::ffi::lend::Lender;
use super::output_topics::{OutputTopics, max_message_bytes};
use crate::broker::{CreateTopics, dead_letter, outbox};
use crate::epoch::{Clock, Epoch, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::message::Reason;
use crate::sink::{Entity, Guarantee, OutputRecord, Prepared, Sink, Undelivered, Writer, WriterContext};

/// How long one call of `publish` tries before it says that the broker has not answered, and is to be called again.
const PUBLISH: Duration = Duration::from_secs(30);
/// How long to sleep while the broker confirms, at first and at most: twice as long each time that nothing came. The client's
/// own wait would burn it in a loop, as it is less than its milliseconds.
const NAP: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(1));
/// How much of a key is shown in an error, in characters.
const MAX_KEY: usize = 200;

/// Topics of a Kafka cluster.
pub(super) struct KafkaSink {
    name: String,
    config: ClientConfig,
    create: Option<CreateTopics>,
}

impl KafkaSink {
    pub(super) fn new(name: String, config: ClientConfig, create: Option<CreateTopics>) -> Self {
        KafkaSink { name, config, create }
    }
}

impl Sink for KafkaSink {
    fn name(&self) -> &str {
        &self.name
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::AtLeastOnce
    }

    fn open(&mut self, context: &WriterContext) -> Result<Box<dyn Writer>> {
        let problems: Vec<String> = context.entities.iter().filter_map(|topic| topic_problem(topic)).collect();
        if !problems.is_empty() {
            return Err(Error::config(&problems));
        }
        // Checked names hold no zero bytes.
        let native = context.entities.iter().map(|topic| CString::new(topic.as_str()).unwrap_or_default()).collect();
        let producer: BaseProducer<Deliveries> = self
            .config
            .create_with_context(Deliveries::default())
            .map_err(|error| classify(error, ErrorKind::Config, "the Kafka client cannot be made"))?;
        OutputTopics { name: &self.name, config: &self.config, producer: &producer }
            .check(&context.entities, self.create)?;
        Ok(Box::new(KafkaWriter {
            name: self.name.clone(),
            config: self.config.clone(),
            topics: context.entities.clone(),
            native,
            dead_letter: context.dead_letter,
            limits: BTreeMap::new(),
            outbox: context.outbox,
            producer: Lender::new(producer),
            clock: SystemClock::new(),
            open: Vec::new(),
            ranges: VecDeque::new(),
            prepared: 0,
            published: 0,
        }))
    }
}

/// Hears of every record's delivery, on the thread that polls.
#[derive(Default)]
pub(super) struct Deliveries {
    pub(super) client: Context,
    failed: Mutex<Vec<(usize, KafkaError)>>,
}

impl Deliveries {
    fn take(&self) -> Vec<(usize, KafkaError)> {
        std::mem::take(&mut *self.failed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.client.log(level, facility, text);
    }
    fn error(&self, error: KafkaError, reason: &str) {
        self.client.error(error, reason);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, index: usize) {
        if let Err((error, _)) = result {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).push((index, error.clone()));
        }
    }
}

/// Records of a range on their way.
#[derive(Default)]
struct Range {
    upper: Epoch,
    records: Vec<(Entity, OutputRecord)>,
    /// How many of them were handed to the producer at least once.
    sent: usize,
    /// Those that the producer gave back: the last one is sent first.
    again: Vec<usize>,
    /// Those that were refused together with others.
    suspects: VecDeque<usize>,
    /// The one of them that is on its way alone.
    alone: Option<usize>,
    /// How many records were written; behind them are dead letters of those that were refused.
    written: usize,
    /// How many suspects were sent alone.
    resent: u64,
    undelivered: Undelivered,
}

impl Range {
    fn new(upper: Epoch, records: Vec<(Entity, OutputRecord)>) -> Self {
        Range { upper, written: records.len(), records, ..Range::default() }
    }

    /// The next one to be handed to the producer.
    fn next(&self) -> Option<usize> {
        self.again.last().copied().or((self.sent < self.records.len()).then_some(self.sent))
    }

    fn handed_over(&mut self) {
        if self.again.pop().is_none() {
            self.sent += 1;
        }
    }

    /// How many have yet to be handed over.
    fn left(&self) -> usize {
        self.again.len() + self.records.len() - self.sent
    }

    /// Nothing is on its way: lets a suspect follow.
    fn send_next_alone(&mut self) -> bool {
        self.alone = self.suspects.pop_front();
        self.again.extend(self.alone);
        self.resent += u64::from(self.alone.is_some());
        self.alone.is_some()
    }

    /// How many suspects were good records in batches that were refused.
    fn unjustly(&self) -> u64 {
        self.resent.saturating_sub(self.undelivered.iter().sum())
    }
}

/// One producer for all outputs of a worker. Records wait here until their range is published. How many do is bounded by
/// the worker, which stops reading when too much is not published, and on the way by the producer's queue.
struct KafkaWriter {
    name: String,
    config: ClientConfig,
    topics: Vec<String>,
    /// The same for the client.
    native: Vec<CString>,
    dead_letter: Option<Entity>,
    /// The largest batches that topics take, as far as they were asked for.
    limits: BTreeMap<Entity, Option<u64>>,
    outbox: bool,
    producer: Lender<Deliveries>,
    clock: SystemClock,
    /// Written, not yet prepared.
    open: Vec<(Epoch, Entity, OutputRecord)>,
    /// Prepared, not yet published, oldest first, but for those without records. The first one may be on its way.
    ranges: VecDeque<Range>,
    /// Everything below was prepared by this writer.
    prepared: Epoch,
    /// Everything below was published by this writer.
    published: Epoch,
}

impl KafkaWriter {
    fn topic(&self, entity: Entity) -> Result<&str> {
        let unknown =
            || Error::new(ErrorKind::Write, format!("{} was opened without an output {}", self.name, entity.0));
        self.topics.get(entity.0).map(String::as_str).ok_or_else(unknown)
    }

    fn failure(&self, error: KafkaError, entity: Entity) -> Error {
        let topic = self.topics.get(entity.0).map_or("", String::as_str);
        let tried = format!("cannot write to topic {topic:?} of {}", self.name);
        let client = self.producer.producer().client();
        match client.fatal_error().filter(|_| error.rdkafka_error_code() == Some(Code::Fatal)) {
            Some((code, text)) => {
                classify(KafkaError::MessageProduction(code), ErrorKind::Write, format!("{tried}: {text}"))
            }
            None => client.context().client.explain(error, ErrorKind::Write, tried),
        }
    }

    /// Hands a record to the producer. `false`: its queue is full.
    fn send(&mut self, index: usize, entity: Entity, record: &OutputRecord) -> Result<Result<bool, KafkaError>> {
        self.topic(entity)?;
        Ok(match self.producer.send(&self.native[entity.0], record, index) {
            Ok(()) => Ok(true),
            Err(Code::QueueFull) => Ok(false),
            Err(code) => Err(KafkaError::MessageProduction(code)),
        })
    }

    /// Hands to the producer what is left of a range, until its queue is full.
    fn hand_over(&mut self, range: &mut Range) -> Result<()> {
        while let Some(index) = range.next() {
            let (entity, record) = &range.records[index];
            match self.send(index, *entity, record)? {
                Ok(true) => range.handed_over(),
                Ok(false) => break,
                Err(error) if refuses(&error) => {
                    range.handed_over();
                    self.refuse(range, index, &error, Refuser::Client)?;
                }
                Err(error) => return Err(self.failure(error, *entity)),
            }
        }
        Ok(())
    }

    /// Sends what is left of a range and waits until the broker has it.
    fn deliver(&mut self, range: &mut Range) -> Result<()> {
        let deadline = self.clock.monotonic() + PUBLISH;
        let mut nap = NAP.0;
        loop {
            self.hand_over(range)?;
            let producer = self.producer.producer();
            let before = producer.in_flight_count();
            producer.poll(Duration::ZERO);
            let on_the_way = producer.in_flight_count();
            if on_the_way > 0 && on_the_way == before {
                std::thread::sleep(nap);
                nap = (nap * 2).min(NAP.1);
            } else {
                nap = NAP.0;
            }
            self.take_failures(range)?;
            let left = range.left();
            if on_the_way == 0 && left == 0 && !range.send_next_alone() {
                self.producer.settle();
                return Ok(());
            }
            if self.clock.monotonic() > deadline {
                let waiting = left + usize::try_from(on_the_way).unwrap_or(0);
                let text = format!("{} has not confirmed {waiting} records for {} s", self.name, PUBLISH.as_secs());
                return Err(Error::new(ErrorKind::Connect, text).retryable());
            }
        }
    }

    /// Looks at the records that were not delivered. Some are sent again by the next call, if what happened may pass; those that
    /// the broker refuses are sent once more, each alone, as a batch is refused for one of its records.
    fn take_failures(&mut self, range: &mut Range) -> Result<()> {
        let mut first = None;
        let mut again = Vec::new();
        for (index, error) in self.producer.producer().context().take() {
            if !refuses(&error) {
                again.push(index);
                first.get_or_insert((error, range.records[index].0));
            } else if range.alone == Some(index) {
                self.refuse(range, index, &error, Refuser::Topic)?;
            } else {
                range.suspects.push_back(index);
            }
        }
        range.again.extend(again.into_iter().rev());
        match first {
            Some((error, entity)) => Err(self.failure(error, entity)),
            None => Ok(()),
        }
    }

    /// A record that is refused by itself becomes a dead letter; where there are none, it ends the job.
    fn refuse(&mut self, range: &mut Range, index: usize, error: &KafkaError, refuser: Refuser) -> Result<()> {
        let (entity, record) = &range.records[index];
        let (entity, size) = (*entity, dead_letter::size(record));
        let reason = if is_too_large(error) { Reason::TooLarge } else { Reason::Refused };
        let limit = match (reason, refuser) {
            (Reason::TooLarge, Refuser::Client) => {
                self.config.get("message.max.bytes").and_then(|bytes| bytes.parse().ok())
            }
            (Reason::TooLarge, Refuser::Topic) => self.max_bytes(entity)?,
            _ => None,
        };
        let topic = self.topic(entity)?.to_owned();
        let is_our_letter = index >= range.written;
        if let Some(letters) = self.dead_letter.filter(|_| !is_our_letter) {
            let letter = dead_letter::refused(record, &topic, reason, limit, &error.to_string());
            range.records.push((letters, letter));
            range.undelivered[reason as usize] += 1;
            tracing::warn!(
                sink = self.name,
                topic,
                reason = reason.name(),
                size,
                limit,
                "a record became a dead letter"
            );
            return Ok(());
        }
        let key = record.key.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        let what = format!(
            "topic {topic:?} of {} refuses the record with key {:?} and {size} bytes",
            self.name,
            key.chars().take(MAX_KEY).collect::<String>()
        );
        let number = |limit: Option<u64>| limit.map_or("fewer".to_owned(), |limit| format!("at most {limit}"));
        let why = match (reason, refuser) {
            (Reason::TooLarge, Refuser::Client) => format!(
                "the client sends {}: raise its property message.max.bytes, and the topic's max.message.bytes with it",
                number(limit)
            ),
            (Reason::TooLarge, Refuser::Topic) => format!(
                "it takes {}: raise that by kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics \
                 --entity-name {topic} --add-config max.message.bytes=BYTES",
                number(limit)
            ),
            _ => "see the reason below".to_owned(),
        };
        let text = format!("{what}: {why}; or give the job a topic for dead letters");
        Err(Error::new(ErrorKind::Write, text).with_source(error.clone()))
    }

    /// The largest batch that a topic takes; asked for once.
    fn max_bytes(&mut self, entity: Entity) -> Result<Option<u64>> {
        let topic = self.topic(entity)?.to_owned();
        let config = &self.config;
        Ok(*self.limits.entry(entity).or_insert_with(|| max_message_bytes(config, &topic)))
    }
}

/// Who says no.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refuser {
    Client,
    Topic,
}

/// Whether a record is refused for what it is, so that sending it again is of no use.
fn refuses(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    is_too_large(error)
        || matches!(code, Some(Code::InvalidRecord | Code::InvalidDifferentRecord | Code::InvalidTimestamp))
}

fn is_too_large(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(code, Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize))
}

impl Writer for KafkaWriter {
    fn write(&mut self, epoch: Epoch, entity: Entity, record: OutputRecord) -> Result<()> {
        self.topic(entity)?;
        self.open.push((epoch, entity, record));
        Ok(())
    }

    fn prepare(&mut self, _lower: Epoch, upper: Epoch) -> Result<Prepared> {
        let mut records = Vec::new();
        let mut prepared = Prepared::default();
        let mut later = Vec::new();
        for (epoch, entity, record) in self.open.drain(..) {
            if epoch >= upper {
                later.push((epoch, entity, record));
                continue;
            }
            if self.outbox {
                outbox::put(&mut prepared, epoch, entity, &record)?;
            }
            records.push((entity, record));
        }
        self.open = later;
        if !records.is_empty() {
            self.ranges.push_back(Range::new(upper, records));
        }
        self.prepared = upper;
        Ok(prepared)
    }

    fn publish(&mut self, lower: Epoch, upper: Epoch, left: Option<&[u8]>) -> Result<Undelivered> {
        if upper <= self.published {
            return Ok(Undelivered::default());
        }
        // Only a range of an earlier run has nothing but its bytes.
        let known = self.ranges.front().is_some_and(|range| range.upper == upper);
        let mut range = match known.then(|| self.ranges.pop_front()).flatten() {
            Some(range) => range,
            None if left.is_none() && upper <= self.prepared => Range::new(upper, vec![]),
            None => {
                let left = outbox::left(left, lower, upper)?;
                Range::new(upper, left.into_iter().map(|(_, entity, record)| (entity, record)).collect())
            }
        };
        match self.deliver(&mut range) {
            Ok(()) => {
                self.published = upper;
                if range.unjustly() > 0 {
                    tracing::warn!(
                        sink = self.name,
                        records = range.unjustly(),
                        "batches were refused whose records are not: set batch.size to what the topic takes \
                         (max.message.bytes)"
                    );
                }
                Ok(range.undelivered)
            }
            Err(error) => {
                self.ranges.push_front(range); // the same call goes on where this one stopped
                Err(error)
            }
        }
    }

    fn published(&mut self) -> Result<Option<Epoch>> {
        Ok(None)
    }
}
