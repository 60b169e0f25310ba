//! What source, reader, committer and writer share of the client: its log, and questions about offsets.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use rdkafka::{Offset, TopicPartitionList};

use crate::error::{Error, ErrorKind, Result};

use super::error::classify;

/// How long a question to the broker may take. Longer hides an outage, shorter calls a slow cluster broken.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A consumer that talks through [`Context`].
pub(super) type KafkaConsumer = BaseConsumer<Context>;

/// Where the client's own log goes, and the last complaint in it: calls fail with a bare code, the log says why.
#[derive(Debug, Default)]
pub(super) struct Context {
    complaint: Mutex<Option<String>>,
}

impl Context {
    /// Remembers nothing of what was said before.
    pub(super) fn forget(&self) {
        *self.complaint.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The client's error as one of ours, with the last complaint in the log where the code alone says too little.
    pub(super) fn explain(&self, error: KafkaError, other: ErrorKind, context: String) -> Error {
        let complaint = self.complaint.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(complaint) = complaint else { return classify(error, other, context) };
        let refused =
            ["uthentication", "SSL handshake failed", "certificate verify"].iter().any(|s| complaint.contains(s));
        let plain = classify(error.clone(), other, context.clone());
        match plain.kind() {
            ErrorKind::Connect if refused => Error::new(ErrorKind::Auth, context).with_source(complaint),
            ErrorKind::Connect => {
                Error::new(ErrorKind::Connect, format!("{context}: {error}")).with_source(complaint).retryable()
            }
            _ => plain,
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
                *self.complaint.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.to_string());
                tracing::warn!(facility, "kafka client: {text}");
            }
            // One list of properties serves consumers and producers: that one ignores the other's is no news.
            _ => tracing::debug!(facility, "kafka client: {text}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        *self.complaint.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_string());
        tracing::warn!(%error, "kafka client: {reason}");
    }
}

impl ConsumerContext for Context {}

/// A consumer of this configuration. Connects in the background.
pub(super) fn new_consumer(config: &ClientConfig) -> Result<KafkaConsumer> {
    config
        .create_with_context(Context::default())
        .map_err(|error| classify(error, ErrorKind::Config, "the Kafka client cannot be made"))
}

/// Asks for the offsets of partitions at symbolic positions or timestamps: one request per broker. The answers are in the order
/// of the partitions; `None` stands for "behind the newest message", which is all that is said of a time that is too late.
///
/// [`Offset::End`] is the last stable offset for a consumer that reads only what is committed: the question tells the broker
/// what is to be read, unlike the client's own query of watermarks.
pub(super) fn ask_offsets<'a>(
    consumer: &KafkaConsumer,
    partitions: impl IntoIterator<Item = (&'a str, i32)>,
    at: Offset,
    patience: Duration,
) -> KafkaResult<Vec<KafkaResult<Option<u64>>>> {
    let mut list = TopicPartitionList::new();
    for (topic, partition) in partitions {
        list.add_partition_offset(topic, partition, at)?;
    }
    let count = list.count();
    if count == 0 {
        return Ok(Vec::new());
    }
    match consumer.offsets_for_times(list, patience) {
        Ok(answer) => {
            let answer = answer.elements();
            Ok(answer.iter().map(|element| element.error().and_then(|()| number(element.offset()))).collect())
        }
        // Said of none in particular when it is true of all.
        Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownPartition) => {
            Ok(vec![Err(error); count])
        }
        Err(error) => Err(error),
    }
}

/// An offset as a number. `None` stands for "behind the newest message".
fn number(offset: Offset) -> KafkaResult<Option<u64>> {
    match offset {
        Offset::Offset(offset) => {
            u64::try_from(offset).map(Some).map_err(|_| KafkaError::OffsetFetch(RDKafkaErrorCode::InvalidArgument))
        }
        Offset::End => Ok(None),
        _ => Err(KafkaError::OffsetFetch(RDKafkaErrorCode::NoOffset)),
    }
}

/// What the broker says about the partitions of a topic.
pub(super) fn ask_partitions(consumer: &KafkaConsumer, topic: &str, patience: Duration) -> KafkaResult<Vec<u32>> {
    let metadata = consumer.fetch_metadata(Some(topic), patience)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition));
    };
    match found.error() {
        Some(error) => Err(KafkaError::MetadataFetch(error.into())),
        None => Ok(numbers(found)),
    }
}

/// Topics that a test chooses, with their partitions; those that the broker has trouble with are left out.
pub(super) fn ask_topics(
    consumer: &KafkaConsumer,
    choose: impl Fn(&str) -> bool,
    patience: Duration,
) -> KafkaResult<Vec<(String, Vec<u32>)>> {
    let metadata = consumer.fetch_metadata(None, patience)?;
    let chosen = metadata.topics().iter().filter(|topic| topic.error().is_none() && choose(topic.name()));
    Ok(chosen.map(|topic| (topic.name().to_owned(), numbers(topic))).collect())
}

fn numbers(topic: &MetadataTopic) -> Vec<u32> {
    topic.partitions().iter().filter_map(|partition| u32::try_from(partition.id()).ok()).collect()
}
