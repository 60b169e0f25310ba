//! Apache Kafka: a log of topics, read by partition and offset, written by an idempotent producer.
//!
//! | Kafka's word | ours |
//! |---|---|
//! | partition of a topic | split, named `topic[3]`; its number is the ordinal |
//! | offset of the next message to read | offset |
//! | consumer group | a name to commit under and to start from; partitions are assigned by us, never by the group |
//! | committing an offset | commit, with the metadata text `syncline`; for lag tools, recovery does not need it |
//! | order | within a partition |
//! | timestamp (create time or log append time, as the topic has it) | timestamp, milliseconds since the Unix epoch |
//! | tombstone (null value) | a message without a value |
//!
//! **Replay** is [`Replay::Seek`]: any offset that retention has left can be read again, as often as wanted. **Guarantee** is
//! [`Guarantee::AtLeastOnce`](crate::sink::Guarantee): within a run retries neither repeat nor reorder records (idempotent
//! producer, all replicas acknowledge), but a range that is published again after a crash is there twice. Transactions come
//! with exactly-once.
//!
//! What happens when
//! - *the connection is lost*: the client reconnects by itself; `read` returns retryable errors or says that its splits are
//!   behind, until the broker answers again. Nothing is lost or read twice.
//! - *partitions are added*: found within five minutes, read from their beginning.
//! - *the topic is missing or deleted*: [`ErrorKind::NotFound`] with its name.
//! - *the position is older than what retention left, or beyond the end (a topic made anew)*: [`ErrorKind::OffsetLost`],
//!   never a silent jump.
//! - *somebody's transaction is open*: messages behind it are not given until it ends (`isolation.level=read_committed`).
//!   Known gap: the split counts as caught up meanwhile.
//! - *rebalances*: there are none, as no group is joined.
//! - *the broker refuses us* (user, mechanism, certificate, a right on a topic or the group) or hangs up on the first question,
//!   as it does to a client that speaks no TLS: [`ErrorKind::Auth`] or [`ErrorKind::Connect`] within about ten seconds, with what
//!   to do. The right to write is asked for when the sink is opened, that to read shows with the first fetch.
//! - *a topic of the sink is missing*: [`ErrorKind::NotFound`], or it is made (`create_topics` of [`BrokerOptions`]), by
//!   whichever worker is first. A broker with `auto.create.topics.enable` makes it before we can say anything.
//! - *a record is refused by itself* (larger than the topic's `max.message.bytes` or the client's `message.max.bytes`; without key
//!   for a compacted topic; a timestamp that is not accepted): it becomes a dead letter with its key, size and limit, or ends the
//!   job where there is no output for these. Others of its batch are sent again, each alone, and so after later ones: `batch.size`
//!   should not be above what the topic takes.
//!
//! Being caught up is evidence, not a guess: the broker's "end of partition", and while nothing comes a question for the last
//! stable offset every second. A broker that does not answer leaves its splits [`Behind`](crate::source::Evidence::Behind).
//! Offsets without messages at the end of a partition (markers of transactions, compaction) are seen as read only after the
//! broker said "end of partition" once more, from where we stand.
//!
//! Limits: a message of at most 50,000,000 bytes (the broker's `message.max.bytes` and the topic's `max.message.bytes` must
//! allow it); read-ahead of 16 MiB and one answer (50 MB at most) per partition; 128 MiB on their way to the broker; 2^24
//! partitions. All compressions are read and written.
//!
//! Security: TLS, certificates of the client, SASL PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, by the client's own properties
//! (`security.protocol`, `ssl.*`, `sasl.*`). GSSAPI (needs libsasl2) and OAUTHBEARER (needs an HTTP client) are refused by name.
//! No value of a property is logged or in a `Debug`.
//!
//! Tested against Apache Kafka 4.1.2 (`tests/brokers/kafka`). Client: rdkafka 0.39 with librdkafka 2.12, built from source;
//! every property of its [list](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md) can be set but those
//! that the promises above rest on. Protocol: <https://kafka.apache.org/protocol>.

mod client;
mod committer;
mod config;
mod error;
#[allow(unsafe_code)] // each block says why it may
mod ffi;
mod reader;
mod security;
mod topics;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use rdkafka::Offset as KafkaOffset;
use rdkafka::TopicPartitionList;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use self::client::{KafkaConsumer, PATIENCE, ask_offsets, listen, new_consumer, number, partition_of};
use self::committer::KafkaCommitter;
use self::error::classify;
use self::reader::KafkaReader;
use self::writer::KafkaSink;
use crate::broker::BrokerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Offset, Offsets, Split, SplitId};
use crate::sink::NewSink;
use crate::source::{Assignment, Committer, NewSource, Position, Reader, Replay, Source};

/// How often partitions that were added are looked for. More often costs a metadata request, less often delays them.
const DISCOVERY: Duration = Duration::from_secs(5 * 60);

/// The source of a topic of the brokers `hosts` (`HOST:PORT`, several with commas). Connects to nothing.
///
/// # Errors
///
/// [`ErrorKind::Config`], with every problem: hosts, the topic's name, unknown properties, bad values, and properties that
/// are not the user's.
pub fn source(hosts: &str, topic: &str, options: &BrokerOptions) -> Result<NewSource> {
    let config = config::consumer(hosts, options);
    if let Some(problem) = config::topic_problem(topic) {
        let mut problems: Vec<String> = config.err().iter().map(Error::to_string).collect();
        problems.push(problem);
        return Err(Error::config(&problems));
    }
    let (config, topic, group) = (config?, topic.to_string(), options.group.clone());
    let name = format!("kafka://{hosts}/{topic}");
    Ok(Arc::new(move || {
        Ok(Box::new(KafkaSource {
            name: name.clone(),
            topic: topic.clone(),
            group: group.clone(),
            config: config.clone(),
            client: None,
        }))
    }))
}

/// The sink of topics of the brokers `hosts` (`HOST:PORT`, several with commas). Connects to nothing.
///
/// # Errors
///
/// [`ErrorKind::Config`], as [`source`].
pub fn sink(hosts: &str, options: &BrokerOptions) -> Result<NewSink> {
    let config = config::producer(hosts, options)?;
    let (name, create) = (format!("kafka://{hosts}"), options.create_topics);
    Ok(Arc::new(move || Ok(Box::new(KafkaSink::new(name.clone(), config.clone(), create)))))
}

/// Checks the name of a topic.
///
/// # Errors
///
/// [`ErrorKind::Config`], with what such a name is made of.
pub fn check_topic(topic: &str) -> Result<()> {
    config::topic_problem(topic).map_or(Ok(()), |problem| Err(Error::config(&[problem])))
}

/// One topic. Its own client asks about partitions and offsets; every reader gets a new one.
struct KafkaSource {
    name: String,
    topic: String,
    group: String,
    config: ClientConfig,
    client: Option<KafkaConsumer>,
}

impl KafkaSource {
    /// Asks the broker something, and says in the error what and of whom.
    fn ask<T>(
        &mut self,
        what: &str,
        question: impl FnOnce(&KafkaConsumer, &str) -> Result<T, KafkaError>,
    ) -> Result<T> {
        let client = match self.client.take() {
            Some(client) => client,
            None => new_consumer(&self.config)?,
        };
        let client = self.client.insert(client);
        client.context().forget();
        question(client, &self.topic).map_err(|error| {
            // What the client has to say about its connection comes through its queue.
            listen(client);
            let unknown = classify(error.clone(), ErrorKind::Read, "").kind() == ErrorKind::NotFound;
            if unknown {
                missing(&self.name, &self.topic).with_source(error)
            } else {
                client.context().explain_first(error, ErrorKind::Read, format!("cannot ask {} for {what}", self.name))
            }
        })
    }

    fn symbolic(&mut self, at: KafkaOffset, splits: &[Split]) -> Result<Offsets> {
        let partitions = partitions(&self.topic, splits.iter().map(|split| split.id))?;
        let found = self.ask("offsets", |client, topic| {
            let mut found = ask_offsets(client, topic, partitions.iter().copied(), at, PATIENCE)?;
            let late: Vec<i32> = found.iter().filter(|(_, o)| **o == KafkaOffset::End).map(|(p, _)| *p).collect();
            found.extend(ask_offsets(client, topic, late.into_iter(), KafkaOffset::End, PATIENCE)?);
            numbers(found.into_iter())
        })?;
        self.every(splits, found.into_iter())
    }

    fn committed(&mut self, splits: &[Split]) -> Result<Offsets> {
        if self.group.is_empty() {
            return self.symbolic(KafkaOffset::Beginning, splits);
        }
        let partitions = partitions(&self.topic, splits.iter().map(|split| split.id))?;
        let found = self.ask("committed offsets", |client, topic| {
            let mut list = TopicPartitionList::new();
            for partition in &partitions {
                list.add_partition(topic, *partition);
            }
            let list = client.committed_offsets(list, PATIENCE)?;
            let mut found = Vec::new();
            for element in list.elements() {
                element.error()?;
                found.extend(match element.offset() {
                    KafkaOffset::Offset(offset) => Some((element.partition(), KafkaOffset::Offset(offset))),
                    _ => None,
                });
            }
            numbers(found.into_iter())
        })?;
        let mut offsets: Offsets = found.into_iter().map(|(p, offset)| (self.split(p), Offset(offset))).collect();
        let rest: Vec<Split> = splits.iter().filter(|split| !offsets.contains_key(&split.id)).cloned().collect();
        offsets.extend(self.symbolic(KafkaOffset::Beginning, &rest)?);
        Ok(offsets)
    }

    fn split(&self, partition: i32) -> SplitId {
        SplitId::numbered(&self.topic, partition.unsigned_abs())
    }

    /// An answer for every split that was asked for, or an error that names the first one without.
    fn every(&self, splits: &[Split], found: impl Iterator<Item = (i32, u64)>) -> Result<Offsets> {
        let offsets: Offsets = found.map(|(partition, offset)| (self.split(partition), Offset(offset))).collect();
        match splits.iter().find(|split| !offsets.contains_key(&split.id)) {
            Some(split) => {
                Err(Error::new(ErrorKind::NotFound, format!("{} has no offset for {}", self.name, split.name)))
            }
            None => Ok(offsets),
        }
    }
}

/// The error for a topic that is not there.
fn missing(name: &str, topic: &str) -> Error {
    let text = format!(
        "{name} has no topic {topic:?}, or it may not be seen; to make it: \
         kafka-topics.sh --bootstrap-server HOST:PORT --create --topic {topic} --partitions N"
    );
    Error::new(ErrorKind::NotFound, text)
}

fn partitions(topic: &str, splits: impl Iterator<Item = SplitId>) -> Result<Vec<i32>> {
    splits.map(|split| partition_of(topic, split)).collect()
}

fn numbers(found: impl Iterator<Item = (i32, KafkaOffset)>) -> Result<Vec<(i32, u64)>, KafkaError> {
    let unknown = KafkaError::OffsetFetch(RDKafkaErrorCode::NoOffset);
    found.map(|(partition, offset)| Ok((partition, number(offset)?.ok_or(unknown.clone())?))).collect()
}

impl Source for KafkaSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn splits(&mut self) -> Result<Vec<Split>> {
        let partitions = self.ask("partitions", |client, topic| {
            let metadata = client.fetch_metadata(Some(topic), PATIENCE)?;
            let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
                return Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition));
            };
            if let Some(error) = found.error() {
                return Err(KafkaError::MetadataFetch(error.into()));
            }
            Ok(found.partitions().iter().map(|partition| partition.id()).collect::<Vec<i32>>())
        })?;
        let mut splits: Vec<Split> = partitions
            .into_iter()
            .map(|p| Split { id: self.split(p), ordinal: p.unsigned_abs(), name: format!("{}[{p}]", self.topic) })
            .collect();
        splits.sort_by_key(|split| split.ordinal);
        Ok(splits)
    }

    fn discovery(&self) -> Option<Duration> {
        Some(DISCOVERY)
    }

    fn resolve(&mut self, position: &Position, splits: &[Split]) -> Result<Offsets> {
        match position {
            Position::Earliest => self.symbolic(KafkaOffset::Beginning, splits),
            Position::Latest => self.symbolic(KafkaOffset::End, splits),
            Position::Committed => self.committed(splits),
            Position::Timestamp(time) => {
                let time = i64::try_from(*time).map_err(|_| {
                    Error::new(ErrorKind::Config, format!("{time} ms is too late to be the time of a message"))
                })?;
                self.symbolic(KafkaOffset::Offset(time), splits)
            }
        }
    }

    fn open(&mut self, assignments: &[Assignment]) -> Result<(Box<dyn Reader>, Box<dyn Committer>)> {
        let client = Arc::new(new_consumer(&self.config)?);
        let group = (!self.group.is_empty()).then(|| self.group.clone());
        let committer = KafkaCommitter::new(client.clone(), self.topic.clone(), group);
        let mut reader = KafkaReader::new(client, self.name.clone(), self.topic.clone());
        reader.assign(assignments, &[])?;
        Ok((Box::new(reader), Box::new(committer)))
    }

    fn replay(&self) -> Replay {
        Replay::Seek
    }

    fn backlog(&mut self, from: &Offsets) -> Result<Option<u64>> {
        let partitions = partitions(&self.topic, from.keys().copied())?;
        let ends = self.ask("end offsets", |client, topic| {
            numbers(ask_offsets(client, topic, partitions.into_iter(), KafkaOffset::End, PATIENCE)?.into_iter())
        })?;
        let left = |(partition, end): (i32, u64)| end.saturating_sub(from[&self.split(partition)].0);
        Ok(Some(ends.into_iter().map(left).sum()))
    }
}
