//! What source, reader, committer and writer share of the client: its log, and questions about offsets.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};

use crate::error::{Error, ErrorKind, Result};
use crate::message::SplitId;

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

/// The partition that a split of this topic stands for.
pub(super) fn partition_of(topic: &str, split: SplitId) -> Result<i32> {
    let number = split.number();
    match i32::try_from(number) {
        Ok(partition) if SplitId::numbered(topic, number) == split => Ok(partition),
        _ => Err(Error::new(ErrorKind::NotFound, format!("split {split} is not one of Kafka topic {topic:?}"))),
    }
}

/// Asks for the offsets of partitions at symbolic positions or timestamps: one request per broker.
///
/// [`Offset::End`] is the last stable offset for a consumer that reads only what is committed.
pub(super) fn ask_offsets(
    consumer: &KafkaConsumer,
    topic: &str,
    partitions: impl Iterator<Item = i32>,
    at: Offset,
    patience: Duration,
) -> KafkaResult<BTreeMap<i32, Offset>> {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition_offset(topic, partition, at)?;
    }
    if list.count() == 0 {
        return Ok(BTreeMap::new());
    }
    let answer = consumer.offsets_for_times(list, patience)?;
    let mut offsets = BTreeMap::new();
    for element in answer.elements() {
        element.error()?;
        offsets.insert(element.partition(), element.offset());
    }
    Ok(offsets)
}

/// An offset as a number. `None` stands for "behind the newest message".
pub(super) fn number(offset: Offset) -> KafkaResult<Option<u64>> {
    match offset {
        Offset::Offset(offset) => {
            u64::try_from(offset).map(Some).map_err(|_| KafkaError::OffsetFetch(RDKafkaErrorCode::InvalidArgument))
        }
        Offset::End => Ok(None),
        _ => Err(KafkaError::OffsetFetch(RDKafkaErrorCode::NoOffset)),
    }
}
