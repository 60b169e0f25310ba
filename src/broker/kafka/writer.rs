//! Writes records with an idempotent producer that the writer's own thread polls.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};

use super::client::{Context, PATIENCE};
use super::config::topic_problem;
use super::error::classify;
use super::missing;
use crate::broker::outbox;
use crate::epoch::{Clock, Epoch, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{Entity, Guarantee, OutputRecord, Sink, Writer, WriterContext};

/// How long one call of `publish` tries before it says that the broker has not answered, and is to be called again.
const PUBLISH: Duration = Duration::from_secs(30);
/// How long to sleep while the broker confirms, at first and at most: twice as long each time that nothing came. The client's
/// own wait would burn it in a loop, as it is less than its milliseconds.
const NAP: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(1));

/// Topics of a Kafka cluster.
pub(super) struct KafkaSink {
    name: String,
    config: ClientConfig,
}

impl KafkaSink {
    pub(super) fn new(name: String, config: ClientConfig) -> Self {
        KafkaSink { name, config }
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
        let producer: BaseProducer<Deliveries> = self
            .config
            .create_with_context(Deliveries::default())
            .map_err(|error| classify(error, ErrorKind::Config, "the Kafka client cannot be made"))?;
        let writer = KafkaWriter {
            name: self.name.clone(),
            topics: context.entities.clone(),
            outbox: context.outbox,
            producer,
            clock: SystemClock::new(),
            open: Vec::new(),
            ranges: VecDeque::new(),
            published: 0,
        };
        for topic in &writer.topics {
            writer.find(topic)?;
        }
        Ok(Box::new(writer))
    }
}

/// Hears of every record's delivery, on the thread that polls.
#[derive(Default)]
struct Deliveries {
    client: Context,
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
    /// Those that the producer gave back.
    again: Vec<usize>,
}

/// One producer for all outputs of a worker. Records wait here until their range is published.
struct KafkaWriter {
    name: String,
    topics: Vec<String>,
    outbox: bool,
    producer: BaseProducer<Deliveries>,
    clock: SystemClock,
    /// Written, not yet prepared.
    open: Vec<(Epoch, Entity, OutputRecord)>,
    /// Prepared, not yet published, oldest first. The first one may be on its way.
    ranges: VecDeque<Range>,
    /// Everything below was published by this writer.
    published: Epoch,
}

impl KafkaWriter {
    /// Checks that a topic is there. A broker that makes topics by itself makes it now, which takes it a moment.
    fn find(&self, topic: &str) -> Result<()> {
        let deadline = self.clock.monotonic() + PATIENCE;
        let client = self.producer.client();
        client.context().client.forget();
        loop {
            let metadata = client.fetch_metadata(Some(topic), PATIENCE).map_err(|error| {
                self.producer.poll(Duration::ZERO);
                let context = format!("cannot ask {} for topic {topic:?}", self.name);
                client.context().client.explain(error, ErrorKind::Write, context)
            })?;
            let found = metadata.topics().iter().find(|found| found.name() == topic);
            let error =
                found.map_or(Some(RDKafkaErrorCode::UnknownTopicOrPartition), |found| found.error().map(Into::into));
            match error {
                None => return Ok(()),
                Some(RDKafkaErrorCode::LeaderNotAvailable) if self.clock.monotonic() < deadline => {
                    self.producer.poll(Duration::from_millis(50));
                }
                Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                    return Err(missing(&self.name, topic));
                }
                Some(code) => {
                    let context = format!("{} has no use of topic {topic:?}", self.name);
                    return Err(classify(KafkaError::MetadataFetch(code), ErrorKind::Write, context));
                }
            }
        }
    }

    fn topic(&self, entity: Entity) -> Result<&str> {
        let unknown =
            || Error::new(ErrorKind::Write, format!("{} was opened without an output {}", self.name, entity.0));
        self.topics.get(entity.0).map(String::as_str).ok_or_else(unknown)
    }

    fn failure(&self, error: KafkaError, entity: Entity) -> Error {
        let topic = self.topics.get(entity.0).map_or("", String::as_str);
        self.producer.context().client.explain(
            error,
            ErrorKind::Write,
            format!("cannot write to topic {topic:?} of {}", self.name),
        )
    }

    /// Hands a record to the producer. `false`: its queue is full.
    fn send(&self, index: usize, entity: Entity, record: &OutputRecord) -> Result<bool> {
        let mut message =
            BaseRecord::<[u8], [u8], usize>::with_opaque_to(self.topic(entity)?, index).payload(&record.value);
        if let Some(key) = &record.key {
            message = message.key(key);
        }
        if let Some(time) = record.timestamp.and_then(|time| i64::try_from(time).ok()) {
            message = message.timestamp(time);
        }
        if !record.headers.is_empty() {
            let headers = record.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value: value.as_deref() })
            });
            message = message.headers(headers);
        }
        match self.producer.send(message) {
            Ok(()) => Ok(true),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => Ok(false),
            Err((error, _)) => Err(self.failure(error, entity)),
        }
    }

    /// Sends what is left of a range and waits until the broker has it.
    fn deliver(&self, range: &mut Range) -> Result<()> {
        let deadline = self.clock.monotonic() + PUBLISH;
        let mut nap = NAP.0;
        loop {
            while let Some(index) =
                range.again.last().copied().or((range.sent < range.records.len()).then_some(range.sent))
            {
                let (entity, record) = &range.records[index];
                if !self.send(index, *entity, record)? {
                    break;
                }
                if range.again.pop().is_none() {
                    range.sent += 1;
                }
            }
            let before = self.producer.in_flight_count();
            self.producer.poll(Duration::ZERO);
            let on_the_way = self.producer.in_flight_count();
            if on_the_way > 0 && on_the_way == before {
                std::thread::sleep(nap);
                nap = (nap * 2).min(NAP.1);
            } else {
                nap = NAP.0;
            }
            let failed = self.producer.context().take();
            if let Some((index, error)) = failed.first() {
                let error = self.failure(error.clone(), range.records[*index].0);
                range.again.extend(failed.iter().rev().map(|(index, _)| *index));
                return Err(error);
            }
            let left = range.again.len() + range.records.len() - range.sent;
            if on_the_way == 0 && left == 0 {
                return Ok(());
            }
            if self.clock.monotonic() > deadline {
                let waiting = left + usize::try_from(on_the_way).unwrap_or(0);
                let text = format!("{} has not confirmed {waiting} records for {} s", self.name, PUBLISH.as_secs());
                return Err(Error::new(ErrorKind::Connect, text).retryable());
            }
        }
    }
}

/// The records of a range that an earlier run prepared.
fn restored(prepared: &[u8]) -> Result<Vec<(Entity, OutputRecord)>> {
    Ok(outbox::records(prepared)?.into_iter().map(|(_, entity, record)| (entity, record)).collect())
}

impl Writer for KafkaWriter {
    fn write(&mut self, epoch: Epoch, entity: Entity, record: OutputRecord) -> Result<()> {
        self.topic(entity)?;
        self.open.push((epoch, entity, record));
        Ok(())
    }

    fn prepare(&mut self, _lower: Epoch, upper: Epoch) -> Result<Vec<u8>> {
        let mut range = Range { upper, ..Range::default() };
        let mut prepared = Vec::new();
        let mut later = Vec::new();
        for (epoch, entity, record) in self.open.drain(..) {
            if epoch >= upper {
                later.push((epoch, entity, record));
                continue;
            }
            if self.outbox {
                outbox::put(&mut prepared, epoch, entity, &record)?;
            }
            range.records.push((entity, record));
        }
        self.open = later;
        if !range.records.is_empty() {
            self.ranges.push_back(range);
        }
        Ok(prepared)
    }

    fn publish(&mut self, _lower: Epoch, upper: Epoch, prepared: &[u8]) -> Result<()> {
        if upper <= self.published {
            return Ok(());
        }
        // Only a range of an earlier run has nothing but its bytes.
        let known = self.ranges.front().is_some_and(|range| range.upper == upper);
        let mut range = match known.then(|| self.ranges.pop_front()).flatten() {
            Some(range) => range,
            None => Range { upper, records: restored(prepared)?, ..Range::default() },
        };
        let delivered = self.deliver(&mut range);
        match delivered {
            Ok(()) => self.published = upper,
            Err(_) => self.ranges.push_front(range), // the same call goes on where this one stopped
        }
        delivered
    }

    fn published(&mut self) -> Result<Option<Epoch>> {
        Ok(None)
    }
}
