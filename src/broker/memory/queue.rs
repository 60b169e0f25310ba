//! Queue mode: messages that are delivered until they are committed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use super::MemoryMessage;
use super::source::{Client, MAX_BYTES, MAX_MESSAGES, Reading, assign, pause};
use super::state::{Shared, State, Topic};
use crate::error::Result;
use crate::message::{MessageId, Offset, Offsets, Reason, SplitId};
use crate::source::{Assignment, Batch, Committer, Evidence, Progress, Reader};

/// How many commits can be forgotten.
const MAX_ACKED: usize = 1_024;

/// A message on its way.
#[derive(Clone, Debug)]
struct Delivery {
    sequence: u64,
    /// How often it was delivered.
    count: u32,
    message: MemoryMessage,
}

/// A topic of a queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub links: u32,
    next: u64,
    /// What waits to be delivered, by sequence.
    ready: BTreeMap<u64, Delivery>,
    /// What is delivered and not committed, by session, link and offset.
    receipts: BTreeMap<(u64, SplitId, Offset), Delivery>,
    /// The newest that were committed.
    acked: VecDeque<Delivery>,
}

impl Queue {
    pub fn new(links: u32) -> Self {
        Queue { links, next: 0, ready: BTreeMap::new(), receipts: BTreeMap::new(), acked: VecDeque::new() }
    }

    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    pub fn append(&mut self, message: MemoryMessage) {
        self.ready.insert(self.next, Delivery { sequence: self.next, count: 0, message });
        self.next += 1;
    }

    pub fn messages(&self) -> Vec<MemoryMessage> {
        let mut all: Vec<_> = self.ready.values().chain(self.receipts.values()).collect();
        all.sort_by_key(|delivery| delivery.sequence);
        all.into_iter().map(|delivery| delivery.message.clone()).collect()
    }

    pub fn waiting(&self) -> (usize, usize) {
        (self.ready.len(), self.receipts.len())
    }

    pub fn release_all(&mut self) {
        let released = std::mem::take(&mut self.receipts);
        self.make_ready(released.into_values());
    }

    /// Removes the receipts in a range of (session, link, offset).
    fn take_receipts(&mut self, range: impl RangeBounds<(u64, SplitId, Offset)>) -> Vec<Delivery> {
        let keys: Vec<_> = self.receipts.range(range).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.receipts.remove(key)).collect()
    }

    /// Takes back everything that a session has not committed.
    fn release(&mut self, session: u64) {
        let (released, others) =
            std::mem::take(&mut self.receipts).into_iter().partition(|((owner, ..), _)| *owner == session);
        self.receipts = others;
        self.make_ready(BTreeMap::into_values(released));
    }

    fn make_ready(&mut self, deliveries: impl Iterator<Item = Delivery>) {
        self.ready.extend(deliveries.map(|delivery| (delivery.sequence, delivery)));
    }

    fn acknowledge(&mut self, session: u64, split: SplitId, below: Offset) {
        let acked = self.take_receipts((session, split, Offset(0))..(session, split, below));
        self.acked.extend(acked);
        self.acked.drain(..self.acked.len().saturating_sub(MAX_ACKED));
    }

    pub fn forget_acks(&mut self, messages: usize) {
        let forgotten = self.acked.split_off(self.acked.len().saturating_sub(messages));
        self.make_ready(forgotten.into_iter());
    }
}

/// What the reader and the committer of an opened source have together. When both are gone, the queue takes back what was
/// not committed.
pub(super) struct Session {
    number: u64,
    topic: String,
    shared: Arc<Shared>,
}

impl Session {
    pub fn new(client: &Client) -> Arc<Self> {
        let number = client.shared.look(|state| {
            state.sessions += 1;
            state.sessions
        });
        Arc::new(Session { number, topic: client.topic.clone(), shared: Arc::clone(&client.shared) })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.change(|state| {
            if let Some(Topic::Queue(queue)) = state.topics.get_mut(&self.topic) {
                queue.release(self.number);
            }
        });
    }
}

pub(super) struct QueueReader {
    client: Client,
    session: Arc<Session>,
    readings: Vec<Reading>,
    /// The link that gets the next message, so that all get some.
    turn: usize,
    told: Progress,
}

impl QueueReader {
    pub fn new(client: Client, session: Arc<Session>, readings: Vec<Reading>) -> Self {
        QueueReader { client, session, readings, turn: 0, told: Progress::Open }
    }
}

impl Reader for QueueReader {
    fn read(&mut self, batch: &mut Batch, wait: Duration) -> Result<Progress> {
        let Client { shared, topic, connection } = &mut self.client;
        let (session, turn) = (self.session.number, &mut self.turn);
        shared.read(&mut self.readings, connection, &mut self.told, batch, wait, |state, readings, batch| {
            poll(state, topic, session, readings, turn, batch);
            Ok(())
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

fn poll(state: &mut State, topic: &str, session: u64, readings: &mut [Reading], turn: &mut usize, batch: &mut Batch) {
    let Some(Topic::Queue(queue)) = state.topics.get_mut(topic) else {
        readings.iter_mut().for_each(|reading| reading.evidence = Evidence::Ended);
        return;
    };
    let open: Vec<usize> = (0..readings.len()).filter(|i| !readings[*i].paused).collect();
    let mut bytes = 0;
    while batch.messages.len() < MAX_MESSAGES && bytes < MAX_BYTES && !queue.ready.is_empty() {
        *turn += 1;
        let turns = (0..open.len()).map(|step| open[(*turn + step) % open.len()]);
        let Some(index) = turns.into_iter().find(|index| !readings[*index].is_over()) else { break };
        let Some((_, mut delivery)) = queue.ready.pop_first() else { break };
        let reading = &mut readings[index];
        let mut message = reading.give(&delivery.message);
        message.id = Some(MessageId(u128::from(delivery.sequence)));
        message.delivery_count = delivery.count;
        delivery.count += 1;
        bytes += message.size();
        queue.receipts.insert((session, message.split, message.offset), delivery);
        batch.messages.push(message);
    }
    for reading in readings {
        reading.evidence = match () {
            () if reading.is_over() => Evidence::Ended,
            () if reading.paused || !queue.ready.is_empty() => Evidence::Behind,
            () => Evidence::CaughtUp,
        };
    }
}

pub(super) struct QueueCommitter {
    client: Client,
    session: Arc<Session>,
}

impl QueueCommitter {
    pub fn new(client: Client, session: Arc<Session>) -> Self {
        QueueCommitter { client, session }
    }
}

impl Committer for QueueCommitter {
    fn commit(&mut self, offsets: &Offsets, rejected: &[(SplitId, Offset, Reason)]) -> Result<()> {
        let (topic, session) = (self.client.topic.clone(), self.session.number);
        self.client.change(|state| {
            if let Some(Topic::Queue(queue)) = state.topics.get_mut(&topic) {
                offsets.iter().for_each(|(split, below)| queue.acknowledge(session, *split, *below));
            }
            let rejected = rejected.iter().map(|(_, offset, reason)| (*offset, *reason));
            state.rejected.entry(topic).or_default().extend(rejected);
            Ok(())
        })
    }
}
