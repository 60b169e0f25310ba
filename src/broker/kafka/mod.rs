//! Apache Kafka: a log of topics, read by partition and offset, written by an idempotent producer.
//!
//! | Kafka's word | ours |
//! |---|---|
//! | a topic, several, or all that a regular expression describes | topic of a source, see below |
//! | partition of a topic | split, named `topic[3]`; of one topic its number is the ordinal |
//! | offset of the next message to read | offset |
//! | consumer group | a name to commit under and to start from; partitions are assigned by us, never by the group |
//! | committing an offset | commit, with a remark (metadata) that names the job; for lag tools, recovery does not need it |
//! | order | within a partition |
//! | timestamp (create time or log append time, as the topic has it) | timestamp, milliseconds since the Unix epoch, and its type |
//! | tombstone (null value) | a message without a value |
//!
//! **Topics** are written as `orders`; as a list, `orders,payments`; with partitions, `orders[0,2]`, in lists too; or as a
//! regular expression for whole names, which begins with `^`: `^orders-.*`. Topics that come to fit it are found like partitions.
//! Topics of Kafka itself are never meant.
//!
//! **Replay** is [`Replay::Seek`](crate::source::Replay::Seek): any offset that retention has left can be read again, as often as wanted. **Guarantee** is
//! [`Guarantee::AtLeastOnce`](crate::sink::Guarantee): within a run retries neither repeat nor reorder records (idempotent
//! producer, all replicas acknowledge), but a range that is published again after a crash is there twice. Transactions come
//! with exactly-once.
//!
//! What happens when
//! - *the connection is lost*: the client reconnects by itself; `read` returns retryable errors or says that its splits are
//!   behind, until the broker answers again. Nothing is lost or read twice.
//! - *partitions or topics are added*: found within five minutes ([`BrokerOptions::discovery`]), read from their beginning. An
//!   answer that names fewer than before takes none away.
//! - *a topic is missing at the start*: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) with its name.
//! - *a topic is deleted*: its splits are behind, others are read on. If brokers say for ten seconds that it is not there, that is
//!   [`ErrorKind::NotFound`](crate::ErrorKind::NotFound); if it comes back meanwhile, reading goes on.
//! - *a topic is made anew under the same name*: [`ErrorKind::OffsetLost`](crate::ErrorKind::OffsetLost) if our position is beyond
//!   its end.
//! - *the position is older than what retention left*: [`ErrorKind::OffsetLost`](crate::ErrorKind::OffsetLost) with both offsets,
//!   or what is gone is skipped and counted ([`BrokerOptions::on_lost_offset`]).
//! - *somebody's transaction is open*: messages behind it are not given until it ends (`isolation.level=read_committed`), the
//!   split is not caught up, and a warning names it with the last stable offset and the high watermark.
//! - *rebalances*: there are none, as no group is joined.
//! - *the broker refuses us* (user, mechanism, certificate, a right on a topic or the group) or hangs up on the first question,
//!   as it does to a client that speaks no TLS: [`ErrorKind::Auth`](crate::ErrorKind::Auth) or [`ErrorKind::Connect`](crate::ErrorKind::Connect) within about ten seconds, with what
//!   to do. The right to write is asked for when the sink is opened, that to read shows with the first fetch.
//! - *a topic of the sink is missing*: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound), or it is made (`create_topics` of [`BrokerOptions`]), by
//!   whichever worker is first. A broker with `auto.create.topics.enable` makes it before we can say anything.
//! - *a record is refused by itself* (larger than the topic's `max.message.bytes` or the client's `message.max.bytes`; without key
//!   for a compacted topic; a timestamp that is not accepted): it becomes a dead letter with its key, size and limit, or ends the
//!   job where there is no output for these. Others of its batch are sent again, each alone, and so after later ones: `batch.size`
//!   should not be above what the topic takes.
//!
//! Being caught up is evidence, not a guess: the broker's "end of partition", and while nothing comes a question for the last
//! stable offset every second. A broker that does not answer leaves its splits [`Behind`](crate::source::Evidence::Behind).
//! Offsets without messages at the end of a partition (markers of transactions, compaction) are read when "end of partition"
//! names an offset behind them. Positions are compared with what the broker has when a reader is opened, and when the broker
//! refuses one.
//!
//! Limits: a message of at most 50,000,000 bytes (the broker's `message.max.bytes` and the topic's `max.message.bytes` must
//! allow it); read-ahead of 2 MiB per partition, and one answer of 256 KiB, or one larger message; 16,384 records or 128 MiB on
//! their way to the broker; 2^24 partitions. gzip, snappy, lz4 and zstd are read and written.
//!
//! One answer per round trip, and none while the last one is not taken: a broker that is far away wants larger ones
//! (`fetch.message.max.bytes`) or more of them (`queued.min.messages`, `queued.max.messages.kbytes`), which cost memory for every
//! partition. The pause between answers, `fetch.queue.backoff.ms`, trades latency for CPU of the broker, the client and the job.
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
#[allow(unsafe_code)] // the client's queue, of which rdkafka's wrapper hides too much
mod ffi;
mod output_topics;
mod reader;
mod security;
mod settle;
mod source;
mod splits;
mod topics;
mod writer;

use std::sync::Arc;

use self::source::KafkaSource;
use self::topics::Topics;
use self::writer::KafkaSink;
use crate::broker::BrokerOptions;
use crate::error::{Error, Result};
use crate::sink::NewSink;
use crate::source::NewSource;

/// The source of topics of the brokers `hosts` (`HOST:PORT`, several with commas); the page of this module says how topics are
/// written. Connects to nothing.
///
/// # Errors
///
/// [`ErrorKind::Config`](crate::ErrorKind::Config), with every problem: hosts, names of topics, partitions, the regular
/// expression, unknown properties, bad values, and properties that are not the user's.
pub fn source(hosts: &str, topics: &str, options: &BrokerOptions) -> Result<NewSource> {
    let name = format!("kafka://{hosts}/{topics}");
    let config = config::consumer(hosts, options);
    let topics = match Topics::parse(topics) {
        Ok(topics) => topics,
        Err(problems) => {
            let others = config.err().map(|error| error.to_string());
            return Err(Error::config(&others.into_iter().chain(problems).collect::<Vec<_>>()));
        }
    };
    let (config, options) = (config?, options.clone());
    Ok(Arc::new(move || Ok(Box::new(KafkaSource::new(name.clone(), topics.clone(), config.clone(), &options)))))
}

/// The name of the topic that a text means, if it can only mean one.
pub fn topic_name(topics: &str) -> Option<String> {
    Topics::parse(topics).ok()?.single().map(str::to_owned)
}

/// Whether two texts mean the same partition of a topic, as far as that can be said without a connection.
pub fn overlap(one: &str, two: &str) -> bool {
    matches!((Topics::parse(one), Topics::parse(two)), (Ok(one), Ok(two)) if one.overlap(&two))
}

/// Whether a text means the split of this name.
pub fn has_split(topics: &str, split: &str) -> bool {
    let place = split.strip_suffix(']').and_then(|rest| rest.rsplit_once('['));
    let place = place.and_then(|(topic, partition)| Some((topic, partition.parse().ok()?)));
    place.is_some_and(|(topic, partition)| Topics::parse(topics).is_ok_and(|topics| topics.reads(topic, partition)))
}

/// The sink of topics of the brokers `hosts` (`HOST:PORT`, several with commas). Connects to nothing.
///
/// # Errors
///
/// [`ErrorKind::Config`](crate::ErrorKind::Config), as [`source`].
pub fn sink(hosts: &str, options: &BrokerOptions) -> Result<NewSink> {
    let config = config::producer(hosts, options)?;
    let (name, create) = (format!("kafka://{hosts}"), options.create_topics);
    Ok(Arc::new(move || Ok(Box::new(KafkaSink::new(name.clone(), config.clone(), create)))))
}

/// Checks the name of a topic.
///
/// # Errors
///
/// [`ErrorKind::Config`](crate::ErrorKind::Config), with what such a name is made of.
pub fn check_topic(topic: &str) -> Result<()> {
    config::topic_problem(topic).map_or(Ok(()), |problem| Err(Error::config(&[problem])))
}
