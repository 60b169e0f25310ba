//! The topics of a sink: whether they are there and may be written, how they are made, how much a record may have.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, Producer};

use super::client::{Context, LISTEN, PATIENCE};
use super::error::classify;
use super::ffi::rights;
use super::writer::Deliveries;
use crate::broker::CreateTopics;
use crate::epoch::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};

/// How long a topic that is denied may still come into being by itself.
const AUTO_CREATION: Duration = Duration::from_secs(1);

/// How often is looked whether a new topic is there.
const LOOK: Duration = Duration::from_millis(20);

/// Asks about topics, with the client that will write to them.
pub(super) struct OutputTopics<'a> {
    pub name: &'a str,
    pub config: &'a ClientConfig,
    pub producer: &'a BaseProducer<Deliveries>,
}

impl OutputTopics<'_> {
    /// Checks that topics are there and may be written. Those that are missing are made, if that is wanted.
    pub(super) fn check(&self, topics: &[String], create: Option<CreateTopics>) -> Result<()> {
        let mut missing = Vec::new();
        // A broker that makes topics by itself begins to do so with the first question, and may deny them meanwhile.
        let grace = if create.is_some() { Duration::ZERO } else { AUTO_CREATION };
        for topic in topics {
            if !self.is_there(topic, grace)? {
                missing.push(topic.as_str());
            }
        }
        match create {
            _ if missing.is_empty() => {}
            Some(create) => {
                self.create(&missing, create)?;
                for topic in missing {
                    if !self.is_there(topic, PATIENCE)? {
                        return Err(absent(self.name, &[topic]));
                    }
                }
            }
            None => return Err(absent(self.name, &missing)),
        }
        let refused = rights::may_write(self.producer.client(), topics, PATIENCE);
        match refused.into_iter().find(|(_, may_write)| !may_write) {
            Some((topic, _)) => {
                let error = KafkaError::MessageProduction(Code::TopicAuthorizationFailed);
                Err(classify(error, ErrorKind::Write, format!("cannot write to topic {topic:?} of {}", self.name)))
            }
            None => Ok(()),
        }
    }

    /// Whether a topic is there, and has leaders, or is within a time of grace because it was just made.
    fn is_there(&self, topic: &str, grace: Duration) -> Result<bool> {
        let clock = SystemClock::new();
        let (deadline, grace) = (clock.monotonic() + PATIENCE, clock.monotonic() + grace);
        let client = self.producer.client();
        let context = &client.context().client;
        loop {
            let metadata =
                context.ask(|| self.producer.poll(LISTEN), |patience| client.fetch_metadata(Some(topic), patience));
            let metadata = metadata.map_err(|error| {
                let tried = format!("cannot ask {} for topic {topic:?}", self.name);
                context.explain_first(error, ErrorKind::Write, tried)
            })?;
            let found = metadata.topics().iter().find(|found| found.name() == topic);
            let mut error = found.map_or(Some(Code::UnknownTopicOrPartition), |found| found.error().map(Into::into));
            if let (None, Some(found)) = (error, found) {
                error = found.partitions().iter().find_map(|partition| partition.error()).map(Into::into);
            }
            let late = clock.monotonic() >= deadline;
            match error {
                None => return Ok(true),
                Some(Code::LeaderNotAvailable) if late => return Ok(true), // the partitions that have leaders can be written
                Some(Code::LeaderNotAvailable) => self.producer.poll(LOOK),
                Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) if clock.monotonic() >= grace => {
                    return Ok(false);
                }
                Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => self.producer.poll(LOOK),
                Some(code) => {
                    let tried = format!("cannot write to topic {topic:?} of {}", self.name);
                    return Err(classify(KafkaError::MetadataFetch(code), ErrorKind::Write, tried));
                }
            }
        }
    }

    /// Makes topics. That another worker was faster is as good.
    fn create(&self, topics: &[&str], create: CreateTopics) -> Result<()> {
        let tried = |topic: &str| format!("cannot make topic {topic:?} of {}", self.name);
        let partitions = i32::try_from(create.partitions).unwrap_or(i32::MAX);
        let replication = create.replication.map_or(-1, i32::from); // -1: as the broker does
        let topics: Vec<NewTopic<'_>> =
            topics.iter().map(|topic| NewTopic::new(topic, partitions, TopicReplication::Fixed(replication))).collect();
        let options = AdminOptions::new().request_timeout(Some(PATIENCE)).operation_timeout(Some(PATIENCE));
        let made = admin(self.config).and_then(|admin| block_on(admin.create_topics(&topics, &options)));
        for result in made.map_err(|error| classify(error, ErrorKind::Write, tried(topics[0].name)))? {
            match result {
                Ok(topic) => tracing::info!(sink = self.name, topic, partitions, "made a topic"),
                Err((_, Code::TopicAlreadyExists)) => {}
                Err((topic, code @ (Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed))) => {
                    let text = format!(
                        "{}: this user has not the right to; an administrator gives it by: kafka-acls.sh --bootstrap-server \
                         HOST:PORT --add --allow-principal User:NAME --operation Create --topic {topic}",
                        tried(&topic)
                    );
                    return Err(Error::new(ErrorKind::Auth, text).with_source(KafkaError::AdminOp(code)));
                }
                Err((topic, code)) => {
                    return Err(classify(KafkaError::AdminOp(code), ErrorKind::Write, tried(&topic)));
                }
            }
        }
        Ok(())
    }
}

/// The largest batch that a topic takes, in bytes, after compression. `None`: the broker does not say, or not to us.
pub(super) fn max_message_bytes(config: &ClientConfig, topic: &str) -> Option<u64> {
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    let asked = admin(config)
        .and_then(|admin| block_on(admin.describe_configs(&[ResourceSpecifier::Topic(topic)], &options)))
        .map_err(|error| tracing::debug!(topic, %error, "the broker does not say how large records may be"))
        .ok()?;
    let topic = asked.into_iter().next()?.ok()?;
    topic.get("max.message.bytes")?.value.as_deref()?.parse().ok()
}

fn absent(name: &str, topics: &[&str]) -> Error {
    let list = topics.iter().map(|topic| format!("{topic:?}")).collect::<Vec<_>>().join(", ");
    let text = format!(
        "{name} has no topic {list}, or it may not be seen; let the job make what is missing (--create_topics PARTITIONS), or \
         make it: kafka-topics.sh --bootstrap-server HOST:PORT --create --topic {} --partitions N",
        topics[0]
    );
    Error::new(ErrorKind::NotFound, text)
}

fn admin(config: &ClientConfig) -> Result<AdminClient<Context>, KafkaError> {
    config.create_with_context(Context::default())
}

/// Waits for an answer of the admin client, which has a thread of its own.
fn block_on<T>(answer: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut answer = pin!(answer);
    loop {
        match answer.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
