//! What source, reader, committer and writer share of the client: its log, and questions about offsets.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use rdkafka::{Offset, TopicPartitionList};

use crate::epoch::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};

use super::error::{Obstacle, classify, kind, obstacle};

/// How long a question to the broker may take. Longer hides an outage, shorter calls a slow cluster broken.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The parts in which that time is spent: in between one looks whether waiting is of any use.
const TRIES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(7)];

/// A consumer that talks through [`Context`].
pub(super) type KafkaConsumer = BaseConsumer<Context>;

/// Where the client's own log goes, and the last complaint in it: calls fail with a bare code, the log says why.
#[derive(Debug, Default)]
pub(super) struct Context {
    complaint: Mutex<Option<Complaint>>,
    clock: SystemClock,
}

/// A complaint explains no error that comes later than this. The client says the same again after 30 s.
const FORGOTTEN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
struct Complaint {
    /// `None` for a line of the log.
    error: Option<KafkaError>,
    text: String,
    /// On the monotonic clock.
    at: Duration,
}

impl Context {
    fn complaint(&self) -> MutexGuard<'_, Option<Complaint>> {
        let mut complaint = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        let since = self.clock.monotonic().saturating_sub(FORGOTTEN);
        if complaint.as_ref().is_some_and(|complaint| complaint.at < since) {
            *complaint = None;
        }
        complaint
    }

    fn complain(&self, error: Option<KafkaError>, text: &str) {
        *self.complaint() = Some(Complaint { error, text: text.to_string(), at: self.clock.monotonic() });
    }

    /// Remembers nothing of what was said before.
    pub(super) fn forget(&self) {
        *self.complaint() = None;
    }

    /// Asks until there is an answer, [`PATIENCE`] is over, or the log says that waiting is of no use. `listen` serves the
    /// client's queue, through which the log comes.
    pub(super) fn ask<T>(
        &self,
        listen: impl Fn(),
        mut question: impl FnMut(Duration) -> KafkaResult<T>,
    ) -> KafkaResult<T> {
        self.forget();
        let mut answer = Err(KafkaError::MetadataFetch(RDKafkaErrorCode::OperationTimedOut));
        for patience in TRIES {
            answer = question(patience);
            match &answer {
                Err(error) if is_connection(error) => listen(),
                _ => return answer,
            }
            let complaint = self.complaint();
            if complaint.as_ref().is_some_and(|complaint| complaint.error.as_ref().is_some_and(is_refusal))
                || complaint.as_ref().and_then(|complaint| obstacle(&complaint.text)).is_some_and(|found| found.sure)
            {
                break;
            }
        }
        answer
    }

    /// The client's error as one of ours, with the last complaint in the log where the code alone says too little.
    pub(super) fn explain(&self, error: KafkaError, other: ErrorKind, context: String) -> Error {
        let Some(Complaint { error: said, text, .. }) = self.complaint().clone() else {
            return classify(error, other, context);
        };
        if !is_connection(&error) {
            return classify(error, other, context);
        }
        match (obstacle(&text), said) {
            (Some(Obstacle { advice, sure: true }), _) => {
                Error::new(ErrorKind::Auth, format!("{context}: {advice}")).with_source(text)
            }
            (_, Some(said)) if is_refusal(&said) => classify(said, other, context),
            _ => Error::new(ErrorKind::Connect, format!("{context}: {error}")).with_source(text).retryable(),
        }
    }

    /// The same for the first question of a client: if the broker hangs up on it, the configuration is to blame.
    pub(super) fn explain_first(&self, error: KafkaError, other: ErrorKind, context: String) -> Error {
        let text = self.complaint().as_ref().map(|complaint| complaint.text.clone());
        match text.as_deref().and_then(obstacle) {
            Some(Obstacle { advice, sure: false }) if is_connection(&error) => {
                Error::new(ErrorKind::Connect, format!("{context}: {advice}")).with_source(text.unwrap_or_default())
            }
            _ => self.explain(error, other, context),
        }
    }
}

fn is_connection(error: &KafkaError) -> bool {
    error.rdkafka_error_code().is_some_and(|code| kind(code, ErrorKind::Read) == (ErrorKind::Connect, true))
}

/// Whether the broker has refused who we are or what we may do. TLS alone does not say so: its connections break, too.
fn is_refusal(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| code != RDKafkaErrorCode::SSL && kind(code, ErrorKind::Read).0 == ErrorKind::Auth)
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
                self.complain(None, text);
                tracing::warn!(facility, "kafka client: {text}");
            }
            // A broker that hangs up is no error to the client, but it may say more than what follows.
            _ if facility == "FAIL" => {
                self.complain(None, text);
                tracing::debug!(facility, "kafka client: {text}");
            }
            // One list of properties serves consumers and producers: that one ignores the other's is no news.
            _ => tracing::debug!(facility, "kafka client: {text}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // "All brokers are down" follows every reason, and is none.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            return tracing::debug!("kafka client: {reason}");
        }
        tracing::warn!(%error, "kafka client: {reason}");
        self.complain(Some(error), reason);
    }
}

impl ConsumerContext for Context {}

/// Serves the queue of a consumer that reads nothing, so that its log and its errors are heard.
pub(super) fn listen(client: &KafkaConsumer) {
    while client.poll(LISTEN).is_some() {}
}

/// How long the queue must be silent for all to be heard that was said.
pub(super) const LISTEN: Duration = Duration::from_millis(2);

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
