//! The synchronization job on topics of JSON documents: from inputs to the topics of joined records, delays and dead letters.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Concat;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::vec::Map;

use super::conserve::{Tally, conserve};
use super::document::{Documents, Spliced, dead_letter};
use super::json::{Extractor, KeySink, Path};
use super::kept::KEYS;
use super::key::{Key, KeyBuilder, KeyTypes};
use super::operator::synchronize_durably;
use super::options::Options;
use super::record::{Entry, Output, Record};
use crate::blocks::Blocks;
use crate::checkpoint::{CollectionId, ItemId, ItemRef};
use crate::codec::{Codec, Decoded, NewCodec, Refusal};
use crate::dataflow::{Arrived, Flow, Input, Rejected};
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Message, Reason};
use crate::sink::{NewSink, OutputRecord, Stored};

/// A JSON document and the key that was found in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Keyed {
    /// The key.
    pub key: Key,
    /// The document, as it came.
    pub value: Bytes,
}

/// Finds keys and timestamps in documents.
#[derive(Debug)]
struct KeyCodec {
    extractor: Extractor,
    builder: KeyBuilder,
    has_timestamp: bool,
}

impl KeySink for KeyBuilder {
    fn text(&mut self, text: &str) {
        KeyBuilder::text(self, text);
    }
    fn number(&mut self, number: &str) {
        KeyBuilder::number(self, number);
    }
    fn boolean(&mut self, boolean: bool) {
        KeyBuilder::boolean(self, boolean);
    }
}

/// A codec of documents whose key stands in these fields, and the event time in that one, if any.
///
/// # Errors
///
/// [`ErrorKind::Config`] if the fields exclude each other (see [`Extractor::new`]).
pub fn key_codec(keys: Vec<Path>, timestamp: Option<Path>, types: KeyTypes) -> Result<NewCodec<Keyed>> {
    let new = move || -> Result<KeyCodec> {
        let extractor = Extractor::new(&keys, timestamp.as_ref())?;
        Ok(KeyCodec { extractor, builder: KeyBuilder::new(types), has_timestamp: timestamp.is_some() })
    };
    new()?;
    Ok(Arc::new(move || Box::new(new().expect("the same fields were accepted before"))))
}

impl Codec for KeyCodec {
    type Record = Keyed;
    fn decode(&mut self, mut message: Message) -> Result<Decoded<Keyed>, Refusal> {
        let Some(value) = message.value.take() else {
            let error = "the value is null".to_owned();
            return Err(Refusal { reason: Reason::Tombstone, error, message: Box::new(message) });
        };
        match self.extractor.extract(&value, &mut self.builder) {
            Ok(timestamp) => {
                let timestamp = if self.has_timestamp { timestamp } else { message.timestamp };
                Ok(Decoded { timestamp, data: Keyed { key: self.builder.build(), value } })
            }
            Err(refused) => {
                message.value = Some(value);
                Err(Refusal { reason: refused.reason, error: refused.error, message: Box::new(message) })
            }
        }
    }
}

/// The outputs of a job on topics.
#[derive(Clone)]
pub struct TopicOutputs {
    /// Where they are.
    pub sink: NewSink,
    /// The topic of joined records.
    pub joined: String,
    /// The topic of delays, if they are put out.
    pub delay: Option<String>,
    /// The topic of dead letters, if they are put out.
    pub dead_letter: Option<String>,
}

impl std::fmt::Debug for TopicOutputs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("TopicOutputs");
        debug.field("joined", &self.joined).field("delay", &self.delay).field("dead_letter", &self.dead_letter).finish()
    }
}

/// Members of documents that are no sides.
pub(crate) const RESERVED: [&str; 3] = ["key", "error", "late"];

/// Builds the job: reads each side, synchronizes them, writes the outputs, and keeps the tally. The names are those of the sides
/// in the documents.
///
/// # Errors
///
/// Options that are not valid, or whose number of sides is another; sides with the same or a reserved name (`key`, `error`,
/// `late`); dead letters without a topic; threads that cannot be started.
pub fn synchronize_topics<'s>(
    flow: &mut Flow<'s>,
    sides: &[(String, Input<Keyed>)],
    options: &Options,
    outputs: &TopicOutputs,
    tally: &Arc<Tally>,
) -> Result<()> {
    options.validate()?;
    if sides.len() != options.windows.len() {
        let text = format!("{} sides with {} windows: give one for each", sides.len(), options.windows.len());
        return Err(Error::new(ErrorKind::Config, text));
    }
    check_sides(sides, outputs)?;
    let first = flow.inputs();
    let mut records: Option<Stream<'s, Epoch, Vec<Record<Bytes>>>> = None;
    for (side, (name, input)) in sides.iter().enumerate() {
        let (side, name) = (side as u8, name.clone()); // at most MAX_SIDES
        let stream = flow.read(input)?.map(move |arrived| {
            let Arrived { split, offset, timestamp, base, data: Keyed { key, value } } = arrived;
            tracing::trace!(action = "INCOMING", topic = name, %key, timestamp);
            Record { key, side, split, offset, timestamp, base, payload: value }
        });
        records = Some(match records {
            Some(others) => others.concat(stream),
            None => stream,
        });
    }
    let records = records.expect("valid options have sides");
    let synchronized = synchronize_durably(flow, records, KEYS, options);
    drop(synchronized.states); // nobody reads them, and an unused handle would keep every epoch apart
    conserve(flow, synchronized.counts, tally);

    let names: Vec<String> = sides.iter().map(|(name, _)| name.clone()).collect();
    let (joined, delayed) = documents(synchronized.outputs, Documents::new(&names));
    let mut topics = vec![(outputs.joined.clone(), joined)];
    topics.extend(outputs.delay.clone().map(|topic| (topic, delayed)));
    match &outputs.dead_letter {
        Some(topic) => {
            // Another input of the flow has refusals of its own.
            let letters = flow.rejected().flat_map(move |rejected| {
                let name = rejected.input.checked_sub(first).and_then(|side| names.get(side))?;
                Some(letter(name, &rejected))
            });
            flow.write_with_dead_letters(&outputs.sink, topics, (topic.clone(), letters))
        }
        None => flow.write(&outputs.sink, topics),
    }
}

/// Names that would be twice in a document, and dead letters that nobody writes.
fn check_sides(sides: &[(String, Input<Keyed>)], outputs: &TopicOutputs) -> Result<()> {
    let mut problems = vec![];
    for (side, (name, input)) in sides.iter().enumerate() {
        if RESERVED.contains(&name.as_str()) {
            problems.push(format!("side {side} is called {name:?}, which is a member of every document: rename it"));
        }
        if sides[..side].iter().any(|(other, _)| other == name) {
            problems.push(format!("two sides are called {name:?}: rename one of them"));
        }
        if input.wants_dead_letters() && outputs.dead_letter.is_none() {
            problems.push(format!("side {name:?} has dead letters, but no topic for them is given"));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::config(&problems)) }
}

fn letter(topic: &str, rejected: &Rejected) -> OutputRecord {
    let mut buffer = BytesMut::new();
    let Rejected { reason, error, split, message, .. } = rejected;
    dead_letter(&mut buffer, *reason, error, topic, split, message);
    OutputRecord {
        value: buffer.freeze(),
        key: message.key.clone(),
        timestamp: message.timestamp,
        ..OutputRecord::default()
    }
}

/// Bytes of a buffer that documents share. Smaller: more allocations; larger: more is held by a document that is kept.
const BUFFER_BYTES: usize = 256 << 10;

/// Encodes outputs; gives the joined ones and the delayed ones apart.
fn documents<'s>(
    outputs: Stream<'s, Epoch, Vec<Output<Bytes>>>,
    documents: Documents,
) -> (Stream<'s, Epoch, Vec<OutputRecord>>, Stream<'s, Epoch, Vec<OutputRecord>>) {
    let mut builder = OperatorBuilder::new("Documents".to_owned(), outputs.scope());
    let mut input = builder.new_input(outputs, Pipeline);
    let (joined, joined_stream) = builder.new_output::<Vec<OutputRecord>>();
    let (delayed, delayed_stream) = builder.new_output::<Vec<OutputRecord>>();
    let mut joined = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(joined);
    let mut delayed = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(delayed);
    builder.build(move |_capabilities| {
        let mut blocks = Blocks::new(BUFFER_BYTES);
        let mut spliced = vec![];
        move |_frontiers| {
            let (mut joined, mut delayed) = (joined.activate(), delayed.activate());
            input.for_each(|capability, outputs| {
                let mut joined = joined.session_with_builder(&capability);
                let mut delayed = delayed.session_with_builder(&capability);
                for output in outputs.drain(..) {
                    log(&output);
                    spliced.clear();
                    match output {
                        Output::Joined { key, late, records } => {
                            let values = records.iter().enumerate().map(|(side, entry)| (side, &entry.payload));
                            let room = blocks.room(room(&key, records.iter()));
                            documents.joined(room, &key, late, values, &mut spliced);
                            let stored = stored(&spliced, |side| records[side].item);
                            joined.give(document(&mut blocks, &key, stored, records.iter()));
                        }
                        Output::Delayed { key, records } => {
                            let present = records.iter().enumerate();
                            let values = present.filter_map(|(side, entry)| Some((side, &entry.as_ref()?.payload)));
                            let room = blocks.room(room(&key, records.iter().flatten()));
                            documents.delayed(room, &key, values, &mut spliced);
                            let stored = stored(&spliced, |side| records[side].as_ref()?.item);
                            delayed.give(document(&mut blocks, &key, stored, records.iter().flatten()));
                        }
                    }
                }
            });
        }
    });
    (joined_stream, delayed_stream)
}

/// Bytes that a document and its key take, about: names of sides are short, and little is escaped in keys.
fn room<'a>(key: &Key, entries: impl Iterator<Item = &'a Entry<Bytes>>) -> usize {
    /// For names and punctuation.
    const REST: usize = 256;
    entries.map(|entry| entry.payload.len()).sum::<usize>() + 2 * key.bytes().len() + REST
}

/// Less is not worth naming an item, which takes about 30 bytes.
const WORTH_STORED: usize = 64;

/// The parts of a document that checkpoints have: values that have waited.
fn stored(spliced: &[Spliced], item: impl Fn(usize) -> Option<ItemId>) -> Vec<Stored> {
    let large = spliced.iter().filter(|spliced| spliced.length >= WORTH_STORED);
    let stored = large.filter_map(|&Spliced { side, at, length }| {
        Some(Stored { at, length, item: ItemRef { collection: CollectionId::of(KEYS), id: item(side)? } })
    });
    stored.collect()
}

/// The record of the document that was put into the open block: its key is the join key as it is printed, its time that of its
/// newest side.
fn document<'a>(
    blocks: &mut Blocks,
    key: &Key,
    stored: Vec<Stored>,
    entries: impl Iterator<Item = &'a Entry<Bytes>>,
) -> OutputRecord {
    use std::fmt::Write;
    let value = blocks.split();
    let written = write!(blocks.room(2 * key.bytes().len()), "{key}");
    debug_assert!(written.is_ok(), "memory takes everything");
    let key = Some(blocks.split());
    OutputRecord { key, value, timestamp: entries.map(|entry| entry.timestamp).max(), headers: vec![], stored }
}

/// The actions of the original job's log, for dashboards that read them: these, and at level trace what comes in and is dropped.
fn log(output: &Output<Bytes>) {
    match output {
        Output::Joined { key, late, .. } => tracing::debug!(action = "JOIN", %key, late),
        Output::Delayed { key, .. } => tracing::debug!(action = "DELAY", %key),
    }
}
