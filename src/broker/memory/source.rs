//! The source of a topic in either mode.

use std::sync::Arc;
use std::time::Duration;

use super::log::{LogCommitter, LogReader};
use super::queue::{QueueCommitter, QueueReader};
use super::state::{Shared, State, Topic};
use super::{MemoryBroker, MemoryMessage};
use crate::broker::BrokerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Message, Offset, Offsets, Split, SplitId};
use crate::source::{Assignment, Committer, Evidence, OnLost, Otherwise, Position, Reader, Replay, Source};

/// The most messages of one read.
pub(super) const MAX_MESSAGES: usize = 4_096;
/// The most bytes of one read, unless a single message is larger.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// How often splits may appear: what a test waits for, against the looks of an idle job.
const DISCOVERY: Duration = Duration::from_millis(500);

pub(super) struct MemorySource {
    name: String,
    topic: String,
    group: String,
    broker: MemoryBroker,
    replay: Replay,
    discovery: Option<Duration>,
    on_lost: OnLost,
}

impl MemorySource {
    pub fn new(broker: &MemoryBroker, topic: &str, options: &BrokerOptions) -> Self {
        let replay = broker.shared.look(|state| state.topics.get(topic).map_or(Replay::Seek, replay_of));
        let name = format!("memory:{}/{topic}", broker.name);
        MemorySource {
            name,
            topic: topic.into(),
            group: options.group.clone(),
            broker: broker.clone(),
            replay,
            discovery: options.discovery.every(DISCOVERY),
            on_lost: options.on_lost_offset,
        }
    }

    /// Looks at the topic, if the broker can be reached.
    fn look<R>(&self, look: impl FnOnce(&mut Topic) -> Result<R>) -> Result<R> {
        self.broker.shared.look(|state| {
            let mut connection = state.connection;
            state.serve(&mut connection)?;
            look(state.topics.get_mut(&self.topic).ok_or_else(|| self.broker.no_topic(&self.topic))?)
        })
    }
}

impl Source for MemorySource {
    fn name(&self) -> &str {
        &self.name
    }

    fn splits(&mut self) -> Result<Vec<Split>> {
        let (count, replay) = self.look(|topic| {
            let count = match topic {
                Topic::Log(log) => log.splits.len() as u32,
                Topic::Queue(queue) => queue.links,
            };
            Ok((count, replay_of(topic)))
        })?;
        self.replay = replay; // the topic may have been made after this source
        let split = |number| {
            let id = SplitId::numbered(&self.topic, number);
            Split { id, ordinal: number, name: format!("{}[{number}]", self.topic) }
        };
        Ok((0..count).map(split).collect())
    }

    fn discovery(&self) -> Option<Duration> {
        self.discovery
    }

    fn resolve(&mut self, position: &Position, splits: &[Split]) -> Result<Offsets> {
        self.look(|topic| match topic {
            Topic::Log(log) => {
                let mut resolve = |split: &Split| {
                    let found = log.splits.get(split.ordinal as usize);
                    let found = found.ok_or_else(|| self.broker.no_split(&self.topic, split.ordinal))?;
                    let offset = match position {
                        Position::Earliest => found.first,
                        Position::Latest => found.end(),
                        Position::Committed { otherwise } => {
                            log.committed(&self.group, split.ordinal).unwrap_or_else(|| match otherwise {
                                Otherwise::Earliest => found.first,
                                Otherwise::Latest => found.end(),
                            })
                        }
                        Position::Timestamp(timestamp) => found.at(*timestamp),
                        Position::Exact(offsets) => offsets.get(&split.name).map_or(found.first, |offset| offset.0),
                    };
                    Ok((split.id, Offset(offset)))
                };
                splits.iter().map(&mut resolve).collect()
            }
            Topic::Queue(_) => match position {
                Position::Earliest | Position::Committed { otherwise: Otherwise::Earliest } => {
                    Ok(splits.iter().map(|s| (s.id, Offset(0))).collect())
                }
                Position::Exact(offsets) => {
                    Ok(splits.iter().map(|s| (s.id, offsets.get(&s.name).copied().unwrap_or_default())).collect())
                }
                _ => Err(Error::new(
                    ErrorKind::Config,
                    format!("{:?} is a queue: it has no position {position:?}, only what was not committed", self.name),
                )),
            },
        })
    }

    fn open(&mut self, assignments: &[Assignment]) -> Result<(Box<dyn Reader>, Box<dyn Committer>)> {
        let (shared, topic) = (Arc::clone(&self.broker.shared), self.topic.clone());
        let connection = shared.look(|state| state.connection);
        let client = Client { shared, topic, connection };
        let readings = assignments.iter().cloned().map(Reading::new).collect();
        Ok(match self.replay {
            Replay::Redeliver => {
                let session = super::queue::Session::new(&client);
                let committer = QueueCommitter::new(client.clone(), Arc::clone(&session));
                (Box::new(QueueReader::new(client, session, readings)), Box::new(committer))
            }
            Replay::Seek | Replay::Lost => {
                let committer = LogCommitter::new(client.clone(), &self.group);
                (Box::new(LogReader::new(client, readings, self.on_lost)), Box::new(committer))
            }
        })
    }

    fn replay(&self) -> Replay {
        self.replay
    }

    fn backlog(&mut self, from: &Offsets) -> Result<Option<u64>> {
        self.look(|topic| {
            Ok(Some(match topic {
                Topic::Log(log) => {
                    let left = |(number, split): (usize, &super::log::LogSplit)| {
                        let from = from.get(&SplitId::numbered(&self.topic, number as u32))?;
                        Some(split.end().saturating_sub(from.0.max(split.first)))
                    };
                    log.splits.iter().enumerate().filter_map(left).sum()
                }
                Topic::Queue(queue) => queue.waiting().0 as u64,
            }))
        })
    }
}

fn replay_of(topic: &Topic) -> Replay {
    match topic {
        Topic::Log(_) => Replay::Seek,
        Topic::Queue(_) => Replay::Redeliver,
    }
}

/// One end of an opened source: a connection to a topic.
#[derive(Clone)]
pub(super) struct Client {
    pub shared: Arc<Shared>,
    pub topic: String,
    pub connection: u64,
}

impl Client {
    /// Changes the state, if the broker can be reached.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut State) -> Result<R>) -> Result<R> {
        let Client { shared, connection, .. } = self;
        shared.change(|state| {
            state.serve(connection)?;
            change(state)
        })
    }
}

/// A split that is being read.
pub(super) struct Reading {
    pub split: Split,
    /// The next offset: to read in a log, to give out in a queue.
    pub next: u64,
    pub until: Option<u64>,
    pub paused: bool,
    pub evidence: Evidence,
    /// The evidence that the caller knows.
    pub said: Option<Evidence>,
}

impl Reading {
    fn new(assignment: Assignment) -> Self {
        Reading {
            split: assignment.split,
            next: assignment.from.0,
            until: assignment.until.map(|until| until.0),
            paused: false,
            evidence: Evidence::Behind,
            said: None,
        }
    }

    /// Nobody knows more, unless it has ended.
    pub fn behind(&mut self) {
        if self.evidence != Evidence::Ended {
            self.evidence = Evidence::Behind;
        }
    }

    /// There is nothing below `until` any more.
    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| self.next >= until)
    }

    /// Gives a message and takes the next offset.
    pub fn give(&mut self, message: &MemoryMessage) -> Message {
        let offset = self.next;
        self.next += 1;
        let mut given = Message::new(self.split.id, Offset(offset), Offset(self.next), message.value.clone());
        given.key.clone_from(&message.key);
        given.timestamp = message.timestamp;
        given.headers.clone_from(&message.headers);
        given
    }
}

/// [`Reader::assign`] for both modes.
pub(super) fn assign(readings: &mut Vec<Reading>, add: &[Assignment], remove: &[SplitId]) {
    readings.retain(|reading| !remove.contains(&reading.split.id));
    readings.extend(add.iter().cloned().map(Reading::new));
}

/// [`Reader::pause`] for both modes.
pub(super) fn pause(readings: &mut [Reading], splits: &[SplitId], paused: bool) {
    for reading in readings.iter_mut().filter(|reading| splits.contains(&reading.split.id)) {
        reading.paused = paused;
    }
}
