//! A broker inside this process: the reference implementation of the contracts, and the test double of all brokers.
//!
//! | here | in the contracts |
//! |---|---|
//! | a topic of a log, `orders` | topic |
//! | a numbered list of messages, `orders[3]` | split; its ordinal is the number |
//! | the position in the list, dense from 0 | offset |
//! | a topic of a queue | topic; its links are the splits |
//! | the number of a delivery on its link | offset, and the receipt that a commit acknowledges |
//! | the sequence number of a message in its queue | [`MessageId`](crate::message::MessageId) |
//!
//! **Log mode** ([`MemoryBroker::create_topic`]): [`Replay::Seek`](crate::source::Replay::Seek). All positions are known; a
//! group has one committed offset a split. An offset that was trimmed is [`ErrorKind::OffsetLost`] or skipped, as
//! [`BrokerOptions::on_lost_offset`] says; one beyond the end is an error.
//!
//! **Queue mode** ([`MemoryBroker::create_queue`]): [`Replay::Redeliver`](crate::source::Replay::Redeliver). Readers compete. A
//! commit deletes what was delivered below it. When the reader and the committer of an opened source are both dropped, or
//! when connections break, what was delivered and not committed goes back to the front of the queue and its
//! delivery count grows. Offsets begin where the reader was told to begin, so they grow over restarts. A queue has no latest
//! position and no timestamps.
//!
//! **Sink**: [`Guarantee::Transactional`](crate::sink::Guarantee::Transactional). All records of a range become visible at once,
//! together with the mark of their group and slot. A writer whose slot was opened by a newer run is fenced. A record with
//! a key goes to the split that the hash of the key names, one without to the split that its slot names. A missing
//! topic is made when the writer is opened, as a log of one split.
//!
//! **Trouble** on demand: [`MemoryBroker::crash_clients`], [`MemoryBroker::set_unreachable`], [`MemoryBroker::forget_acks`],
//! [`MemoryBroker::trim`], [`MemoryBroker::remove_topic`], [`MemoryBroker::add_split`].
//!
//! Limits: memory alone. Nothing survives the process. A blocked read wakes at once; nothing polls.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};

use bytes::Bytes;

use super::BrokerOptions;
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Headers, Offset, Reason};
use crate::sink::{NewSink, RunNumber, Slot};
use crate::source::NewSource;

mod log;
mod queue;
mod sink;
mod source;
mod state;

use state::{Shared, Topic};

/// A message as it lies in a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryMessage {
    /// The key.
    pub key: Option<Bytes>,
    /// The value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// In milliseconds since the Unix epoch.
    pub timestamp: Option<u64>,
    /// Headers, in order.
    pub headers: Headers,
}

impl MemoryMessage {
    /// A message with a value and nothing else.
    pub fn new(value: impl Into<Bytes>) -> Self {
        MemoryMessage { value: Some(value.into()), ..MemoryMessage::default() }
    }

    /// Adds a key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a timestamp, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn with_timestamp(mut self, timestamp: u64) -> Self {
        self.timestamp = Some(timestamp);
        self
    }
}

impl<T: Into<Bytes>> From<T> for MemoryMessage {
    fn from(value: T) -> Self {
        MemoryMessage::new(value)
    }
}

/// A handle to a broker. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct MemoryBroker {
    name: String,
    shared: Arc<Shared>,
}

static NAMED: LazyLock<Mutex<BTreeMap<String, MemoryBroker>>> = LazyLock::new(Mutex::default);

impl Default for MemoryBroker {
    fn default() -> Self {
        MemoryBroker::new()
    }
}

impl MemoryBroker {
    /// An empty broker that no URL names.
    pub fn new() -> Self {
        MemoryBroker { name: "test".into(), shared: Arc::default() }
    }

    /// The broker of the URL `memory:NAME`, of which there is one in the process. It is made when it is first asked for.
    pub fn named(name: &str) -> Self {
        let mut named = NAMED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let make = || MemoryBroker { name: name.into(), shared: Arc::default() };
        named.entry(name.into()).or_insert_with(make).clone()
    }

    /// A source of a topic.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`]: a memory broker has no properties.
    pub fn source(&self, topic: &str, options: &BrokerOptions) -> Result<NewSource> {
        super::no_properties("a memory broker", options)?;
        let (broker, topic, options) = (self.clone(), topic.to_owned(), options.clone());
        Ok(Arc::new(move || Ok(Box::new(source::MemorySource::new(&broker, &topic, &options)))))
    }

    /// A sink; its entities are topics.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`]: a memory broker has no properties.
    pub fn sink(&self, options: &BrokerOptions) -> Result<NewSink> {
        super::no_properties("a memory broker", options)?;
        let (broker, group) = (self.clone(), options.group.clone());
        Ok(Arc::new(move || Ok(Box::new(sink::MemorySink::new(&broker, &group)))))
    }

    /// Makes a topic of a log with this many splits, in place of one of the same name.
    pub fn create_topic(&self, topic: &str, splits: u32) {
        self.shared.change(|state| state.topics.insert(topic.into(), Topic::Log(log::Log::new(splits))));
    }

    /// Makes a topic of a queue with this many links, in place of one of the same name.
    pub fn create_queue(&self, topic: &str, links: u32) {
        self.shared.change(|state| state.topics.insert(topic.into(), Topic::Queue(queue::Queue::new(links))));
    }

    /// Appends a message, to a split of a log or to a queue, and returns its offset or sequence number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such topic or split.
    pub fn append(&self, topic: &str, split: u32, message: impl Into<MemoryMessage>) -> Result<Offset> {
        self.extend(topic, split, [message])
    }

    /// Appends messages all at once, and returns the offset or sequence number of the first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such topic or split.
    pub fn extend<M: Into<MemoryMessage>>(
        &self,
        topic: &str,
        split: u32,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Offset> {
        let messages = messages.into_iter().map(Into::into);
        self.shared.change(|state| match state.topics.get_mut(topic) {
            Some(Topic::Log(log)) => {
                let split = log.splits.get_mut(split as usize).ok_or_else(|| self.no_split(topic, split))?;
                let first = split.end();
                messages.for_each(|message| split.messages.push_back(message));
                Ok(Offset(first))
            }
            Some(Topic::Queue(queue)) => {
                let first = queue.next_sequence();
                messages.for_each(|message| queue.append(message));
                Ok(Offset(first))
            }
            None => Err(self.no_topic(topic)),
        })
    }

    /// Adds a split (of a queue: a link) behind the others, and returns its number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such topic.
    pub fn add_split(&self, topic: &str) -> Result<u32> {
        self.shared.change(|state| match state.topics.get_mut(topic) {
            Some(Topic::Log(log)) => {
                log.splits.push(log::LogSplit::default());
                Ok(log.splits.len() as u32 - 1)
            }
            Some(Topic::Queue(queue)) => {
                queue.links += 1;
                Ok(queue.links - 1)
            }
            None => Err(self.no_topic(topic)),
        })
    }

    /// Removes a topic; its splits end.
    pub fn remove_topic(&self, topic: &str) {
        self.shared.change(|state| state.topics.remove(topic));
    }

    /// Forgets the messages of a split of a log below an offset, as a retention does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such topic or split, or if the topic is a queue.
    pub fn trim(&self, topic: &str, split: u32, below: Offset) -> Result<()> {
        self.shared.change(|state| match state.topics.get_mut(topic) {
            Some(Topic::Log(log)) => {
                let found = log.splits.get_mut(split as usize).ok_or_else(|| self.no_split(topic, split))?;
                found.trim(below.0);
                Ok(())
            }
            _ => Err(self.no_topic(topic)),
        })
    }

    /// Breaks the connections of all clients: the next call of each says so, and what was delivered but not committed is
    /// delivered again. The clients connect again by themselves.
    pub fn crash_clients(&self) {
        self.shared.change(|state| {
            state.connection += 1;
            for topic in state.topics.values_mut() {
                if let Topic::Queue(queue) = topic {
                    queue.release_all();
                }
            }
        });
    }

    /// Makes the broker unreachable, or reachable again: meanwhile read, commit, publish and all that asks the broker give
    /// [`ErrorKind::Connect`], to be retried.
    pub fn set_unreachable(&self, unreachable: bool) {
        self.shared.change(|state| state.unreachable = unreachable);
    }

    /// Forgets the newest commits of a queue, as a killed broker may: so many messages that were deleted are delivered again.
    /// It remembers the last 1024.
    pub fn forget_acks(&self, topic: &str, messages: usize) {
        self.shared.change(|state| {
            if let Some(Topic::Queue(queue)) = state.topics.get_mut(topic) {
                queue.forget_acks(messages);
            }
        });
    }

    /// What lies in a topic: of a log the messages of each split, of a queue one list of those not yet committed. Empty if
    /// there is no such topic.
    pub fn messages(&self, topic: &str) -> Vec<Vec<MemoryMessage>> {
        self.shared.look(|state| match state.topics.get(topic) {
            Some(Topic::Log(log)) => log.splits.iter().map(|split| split.messages.iter().cloned().collect()).collect(),
            Some(Topic::Queue(queue)) => vec![queue.messages()],
            None => vec![],
        })
    }

    /// The values that lie in a topic, split after split, as text.
    pub fn values(&self, topic: &str) -> Vec<String> {
        let values = self.messages(topic).into_iter().flatten().filter_map(|message| message.value);
        values.map(|value| String::from_utf8_lossy(&value).into_owned()).collect()
    }

    /// Where a group stands in a split of a log.
    pub fn committed(&self, topic: &str, split: u32, group: &str) -> Option<Offset> {
        self.shared.look(|state| match state.topics.get(topic) {
            Some(Topic::Log(log)) => log.committed(group, split).map(Offset),
            _ => None,
        })
    }

    /// How many messages of a queue wait to be delivered, and how many are delivered and not committed.
    pub fn waiting(&self, topic: &str) -> (usize, usize) {
        self.shared.look(|state| match state.topics.get(topic) {
            Some(Topic::Queue(queue)) => queue.waiting(),
            _ => (0, 0),
        })
    }

    /// What commits told of messages of a topic that were rejected: offset and reason, oldest first.
    pub fn rejected(&self, topic: &str) -> Vec<(Offset, Reason)> {
        self.shared.look(|state| state.rejected.get(topic).cloned().unwrap_or_default())
    }

    /// The mark of a slot of the first output of a group: everything below it is published.
    pub fn published(&self, group: &str, slot: Slot) -> Option<Epoch> {
        self.shared.look(|state| state.slots.get(&(group.into(), 0, slot)).and_then(|slot| slot.published))
    }

    /// The newest run that opened a slot of the first output of a group.
    pub fn run(&self, group: &str, slot: Slot) -> Option<RunNumber> {
        self.shared.look(|state| state.slots.get(&(group.into(), 0, slot)).map(|slot| slot.run))
    }

    fn no_topic(&self, topic: &str) -> Error {
        Error::new(ErrorKind::NotFound, format!("broker \"memory:{}\" has no topic {topic:?}", self.name))
    }

    fn no_split(&self, topic: &str, split: u32) -> Error {
        Error::new(ErrorKind::NotFound, format!("topic {topic:?} of \"memory:{}\" has no split {split}", self.name))
    }
}
