//! The sink: transactions with marks and fences.

use std::collections::VecDeque;

use super::state::{SlotState, State, Topic, WriterId};
use super::{MemoryBroker, MemoryMessage};
use crate::broker::outbox;
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{
    Entity, Guarantee, OutputRecord, Prepared, RunNumber, Sink, Slot, Undelivered, Writer, WriterContext,
};

pub(super) struct MemorySink {
    name: String,
    group: String,
    broker: MemoryBroker,
}

impl MemorySink {
    pub fn new(broker: &MemoryBroker, group: &str) -> Self {
        MemorySink { name: format!("memory:{}", broker.name), group: group.into(), broker: broker.clone() }
    }
}

impl Sink for MemorySink {
    fn name(&self) -> &str {
        &self.name
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Transactional
    }

    fn open(&mut self, context: &WriterContext) -> Result<Box<dyn Writer>> {
        let id = (self.group.clone(), context.output, context.slot);
        let connection = self.broker.shared.change(|state| {
            let mut connection = state.connection;
            state.serve(&mut connection)?;
            check_run(state, &id, context.run)?;
            let published = state.slots.get(&id).and_then(|slot| slot.published);
            state.slots.insert(id.clone(), SlotState { run: context.run, published });
            for entity in &context.entities {
                state.topics.entry(entity.clone()).or_insert_with(|| Topic::Log(super::log::Log::new(1)));
            }
            Ok::<_, Error>(connection)
        })?;
        let context = context.clone();
        let (broker, written, prepared) = (self.broker.clone(), vec![], VecDeque::new());
        Ok(Box::new(MemoryWriter { broker, id, context, connection, written, prepared, published: 0 }))
    }
}

/// A slot belongs to the newest run that opened it.
fn check_run(state: &State, id: &WriterId, run: RunNumber) -> Result<()> {
    match state.slots.get(id) {
        Some(slot) if slot.run > run => Err(Error::new(
            ErrorKind::Fenced,
            format!(
                "slot {} of output {} of group {:?} is fenced: run {} has taken over from run {}",
                id.2.0, id.1, id.0, slot.run.0, run.0
            ),
        )),
        _ => Ok(()),
    }
}

struct MemoryWriter {
    broker: MemoryBroker,
    id: WriterId,
    context: WriterContext,
    connection: u64,
    /// What is not published yet, in the order of writing.
    written: Vec<(Epoch, Entity, OutputRecord)>,
    /// The ranges that this writer prepared and that are not published yet: their records are in `written`.
    prepared: VecDeque<(Epoch, Epoch)>,
    /// Everything below was published by this writer.
    published: Epoch,
}

impl MemoryWriter {
    /// The records to publish: those that were written here, else those that an earlier run prepared.
    fn range(&self, lower: Epoch, upper: Epoch, left: Option<&[u8]>) -> Result<Vec<(Epoch, Entity, OutputRecord)>> {
        if self.prepared.contains(&(lower, upper)) {
            return Ok(self.written.iter().filter(|(epoch, ..)| (lower..upper).contains(epoch)).cloned().collect());
        }
        match left {
            None if upper <= self.published => Ok(vec![]),
            left => outbox::left(left, lower, upper),
        }
    }
}

impl Writer for MemoryWriter {
    fn write(&mut self, epoch: Epoch, entity: Entity, record: OutputRecord) -> Result<()> {
        debug_assert!(entity.0 < self.context.entities.len(), "{entity:?} of {:?}", self.context.entities);
        debug_assert!(self.prepared.back().is_none_or(|(_, upper)| epoch >= *upper), "epoch {epoch} is prepared");
        self.written.push((epoch, entity, record));
        Ok(())
    }

    fn prepare(&mut self, lower: Epoch, upper: Epoch) -> Result<Prepared> {
        let mut prepared = Prepared::default();
        if self.context.outbox {
            for (epoch, entity, record) in self.written.iter().filter(|(epoch, ..)| (lower..upper).contains(epoch)) {
                outbox::put(&mut prepared, *epoch, *entity, record)?;
            }
        }
        self.prepared.push_back((lower, upper));
        Ok(prepared)
    }

    fn publish(&mut self, lower: Epoch, upper: Epoch, left: Option<&[u8]>) -> Result<Undelivered> {
        let records = self.range(lower, upper, left)?;
        let MemoryWriter { broker, id, context, connection, .. } = self;
        broker.shared.change(|state| {
            state.serve(connection)?;
            check_run(state, id, context.run)?;
            let published = state.slots.get(id).and_then(|slot| slot.published);
            for (_, entity, record) in records.into_iter().filter(|(epoch, ..)| Some(*epoch) >= published) {
                let topic = context.entities.get(entity.0).ok_or_else(|| no_entity(entity, &context.entities))?;
                append(state, topic, id.2, record)?;
            }
            let published = published.max(Some(upper));
            state.slots.insert(id.clone(), SlotState { run: context.run, published });
            Ok::<_, Error>(())
        })?;
        self.written.retain(|(epoch, ..)| *epoch >= upper);
        self.prepared.retain(|(_, end)| *end > upper);
        self.published = upper;
        Ok(Undelivered::default())
    }

    fn published(&mut self) -> Result<Option<Epoch>> {
        let MemoryWriter { broker, id, context, connection, .. } = self;
        broker.shared.look(|state| {
            state.serve(connection)?;
            check_run(state, id, context.run)?;
            Ok(state.slots.get(id).and_then(|slot| slot.published))
        })
    }
}

fn append(state: &mut State, topic: &str, slot: Slot, record: OutputRecord) -> Result<()> {
    let OutputRecord { key, value, timestamp, headers, .. } = record;
    let message = MemoryMessage { key, value: Some(value), timestamp, headers };
    // A topic that was removed meanwhile is made again, as at `open`.
    let found = state.topics.entry(topic.into()).or_insert_with(|| Topic::Log(super::log::Log::new(1)));
    match found {
        Topic::Log(log) => {
            let none = || {
                Error::new(ErrorKind::Write, format!("topic {topic:?} of the memory broker has no split to write to"))
            };
            log.split_of(message.key.as_deref(), slot.0).ok_or_else(none)?.messages.push_back(message);
        }
        Topic::Queue(queue) => queue.append(message),
    }
    Ok(())
}

fn no_entity(entity: Entity, entities: &[String]) -> Error {
    Error::new(ErrorKind::Store, format!("prepared records name output {}, but the outputs are {entities:?}", entity.0))
}
