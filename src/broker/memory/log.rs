//! Log mode: splits that are read from any offset.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::MemoryMessage;
use super::source::{Client, MAX_BYTES, MAX_MESSAGES, Reading, assign, pause};
use super::state::{State, Topic};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Offset, Offsets, Reason, SplitId};
use crate::source::{Assignment, Batch, Committer, Evidence, Lost, OnLost, Progress, Reader};

/// A topic of a log.
#[derive(Debug)]
pub(super) struct Log {
    pub splits: Vec<LogSplit>,
    /// The next offset by group and split.
    groups: BTreeMap<String, BTreeMap<u32, u64>>,
}

/// A split of a log.
#[derive(Debug, Default)]
pub(super) struct LogSplit {
    /// The offset of the oldest message that is left.
    pub first: u64,
    pub messages: VecDeque<MemoryMessage>,
}

impl Log {
    pub fn new(splits: u32) -> Self {
        Log { splits: (0..splits).map(|_| LogSplit::default()).collect(), groups: BTreeMap::new() }
    }

    pub fn committed(&self, group: &str, split: u32) -> Option<u64> {
        self.groups.get(group)?.get(&split).copied()
    }

    /// The split that a key is written to; without a key the one that `slot` names.
    pub fn split_of(&mut self, key: Option<&[u8]>, slot: usize) -> Option<&mut LogSplit> {
        let count = self.splits.len().max(1);
        let number = key.map_or(slot % count, |key| (xxhash_rust::xxh3::xxh3_64(key) % count as u64) as usize);
        self.splits.get_mut(number)
    }
}

impl LogSplit {
    /// Behind the newest message.
    pub fn end(&self) -> u64 {
        self.first + self.messages.len() as u64
    }

    /// The first message that is not older.
    pub fn at(&self, timestamp: u64) -> u64 {
        let not_older = |message: &MemoryMessage| message.timestamp.is_some_and(|at| at >= timestamp);
        self.messages.iter().position(not_older).map_or(self.end(), |index| self.first + index as u64)
    }

    pub fn trim(&mut self, below: u64) {
        let trimmed = below.min(self.end()).saturating_sub(self.first);
        self.messages.drain(..trimmed as usize);
        self.first += trimmed;
    }
}

pub(super) struct LogReader {
    client: Client,
    readings: Vec<Reading>,
    /// The split that is looked at first, so that all get their turn.
    turn: usize,
    told: Progress,
    on_lost: OnLost,
}

impl LogReader {
    pub fn new(client: Client, readings: Vec<Reading>, on_lost: OnLost) -> Self {
        LogReader { client, readings, turn: 0, told: Progress::Open, on_lost }
    }
}

impl Reader for LogReader {
    fn read(&mut self, batch: &mut Batch, wait: Duration) -> Result<Progress> {
        let Client { shared, topic, connection } = &mut self.client;
        let (turn, on_lost) = (self.turn, self.on_lost);
        self.turn += 1;
        shared.read(&mut self.readings, connection, &mut self.told, batch, wait, |state, readings, batch| {
            poll(state, topic, readings, turn, on_lost, batch)
        })
    }

    fn assign(&mut self, add: &[Assignment], remove: &[SplitId]) -> Result<()> {
        assign(&mut self.readings, add, remove);
        Ok(())
    }

    fn pause(&mut self, splits: &[SplitId], paused: bool) -> Result<()> {
        pause(&mut self.readings, splits, paused);
        Ok(())
    }
}

fn poll(
    state: &mut State,
    topic: &str,
    readings: &mut [Reading],
    turn: usize,
    on_lost: OnLost,
    batch: &mut Batch,
) -> Result<()> {
    let log = match state.topics.get(topic) {
        Some(Topic::Log(log)) => Some(log),
        _ => None,
    };
    let mut bytes = 0;
    let count = readings.len();
    for index in 0..count {
        let reading = &mut readings[(turn + index) % count];
        let Some(split) = log.and_then(|log| log.splits.get(reading.split.ordinal as usize)) else {
            reading.evidence = Evidence::Ended;
            continue;
        };
        if reading.paused {
            reading.behind();
            continue;
        }
        let (first, end) = (split.first, split.end());
        let until = reading.until.unwrap_or(end).min(end);
        if reading.next < until && reading.next < first || reading.next > end {
            let to = match on_lost {
                OnLost::Earliest if reading.next <= end => first.min(until),
                OnLost::Latest if reading.next <= end => until,
                _ => {
                    let text = format!(
                        "offset {} of split {:?} is lost: it holds [{first}, {end})",
                        reading.next, reading.split.name
                    );
                    return Err(Error::new(ErrorKind::OffsetLost, text));
                }
            };
            batch.lost.push(Lost { split: reading.split.id, from: Offset(reading.next), to: Offset(to) });
            reading.next = to;
        }
        while reading.next < until && batch.messages.len() < MAX_MESSAGES && bytes < MAX_BYTES {
            let message = reading.give(&split.messages[(reading.next - first) as usize]);
            bytes += message.size();
            batch.messages.push(message);
        }
        reading.evidence = match reading.next {
            _ if reading.is_over() => Evidence::Ended,
            next if next == end => Evidence::CaughtUp,
            _ => Evidence::Behind,
        };
    }
    Ok(())
}

pub(super) struct LogCommitter {
    client: Client,
    group: String,
}

impl LogCommitter {
    pub fn new(client: Client, group: &str) -> Self {
        LogCommitter { client, group: group.into() }
    }
}

impl Committer for LogCommitter {
    fn commit(&mut self, offsets: &Offsets, rejected: &[(SplitId, Offset, Reason)]) -> Result<()> {
        let (topic, group) = (self.client.topic.clone(), &self.group);
        self.client.change(|state| {
            if let Some(Topic::Log(log)) = state.topics.get_mut(&topic) {
                let numbers = 0..log.splits.len() as u32;
                let committed = log.groups.entry(group.clone()).or_default();
                committed.extend(numbers.filter_map(|n| Some((n, offsets.get(&SplitId::numbered(&topic, n))?.0))));
            }
            let rejected = rejected.iter().map(|(_, offset, reason)| (*offset, *reason));
            state.rejected.entry(topic).or_default().extend(rejected);
            Ok(())
        })
    }
}
