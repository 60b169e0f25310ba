//! What a broker must be able to do to be written: the contracts [`Sink`] and [`Writer`].
//!
//! For every range of epochs [lower, upper) of a run, in this order, on the one thread that owns the writer:
//!
//! ```text
//! write(e, ..)*  ->  prepare(lower, upper)  ->  [the checkpoint is durable]  ->  publish(lower, upper, None)
//! ```
//!
//! Nothing may be visible to anybody before `publish`. Ranges do not overlap and follow each other; while one waits for its
//! checkpoint the next may be written, and even prepared. After a crash a new run calls `publish` with the bytes that the
//! checkpoint kept, without `write` and `prepare`: the bytes alone must do.
//!
//! What is written often holds what the checkpoints have already: the payload of a record that waited. A record says so
//! ([`Stored`]), and what a writer prepares may refer to it ([`Insert`]) instead of holding it once more.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;
use crate::error::Result;
use crate::item::ItemRef;
use crate::message::{Headers, Reason};

/// What a sink promises if `publish` is repeated for a range after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Records of the range may be there twice.
    AtLeastOnce,
    /// Records of the range replace themselves.
    Idempotent,
    /// The range is there once: [`Writer::published`] knows.
    Transactional,
}

/// The number of a writer among those of all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub usize);

/// Grows at each start of a job; fences older runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunNumber(pub u64);

/// The index of an output (joined, delay, dead letter) in the list that the sink was opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entity(pub usize);

/// A record to write.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OutputRecord {
    /// The key, for brokers that have one.
    pub key: Option<Bytes>,
    /// The value. One line of text without line ends where `framed` sinks are to hold it (see [`crate::sync::document`]).
    pub value: Bytes,
    /// In milliseconds since the Unix epoch.
    pub timestamp: Option<u64>,
    /// Headers, in order.
    pub headers: Headers,
    /// Parts of the value that checkpoints have anyway, in order.
    pub stored: Vec<Stored>,
}

/// A part of a value that is also the end of an item of a durable collection, which was there before the epoch of the record, or
/// was added in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stored {
    /// Where it begins in the value, in bytes.
    pub at: usize,
    /// How long it is, in bytes.
    pub length: usize,
    /// The item whose last bytes these are.
    pub item: ItemRef,
}

/// A record of a value alone.
impl<V: Into<Bytes>> From<V> for OutputRecord {
    fn from(value: V) -> Self {
        OutputRecord { value: value.into(), ..OutputRecord::default() }
    }
}

/// What a writer is opened for.
#[derive(Clone, Debug)]
pub struct WriterContext {
    /// Which of the writers of this output it is: one for each worker.
    pub slot: Slot,
    /// Which of the outputs of the job, in the order of [`Flow::write`](crate::dataflow::Flow::write): what a transactional sink
    /// remembers of a writer is named by this and the slot.
    pub output: usize,
    /// The run.
    pub run: RunNumber,
    /// The names of the outputs: topics, or files without their ends. [`Entity`] is an index into it.
    pub entities: Vec<String>,
    /// The output among them that takes dead letters, if there is one.
    pub dead_letter: Option<Entity>,
    /// Whether a checkpoint will keep what `prepare` returns. If not, `prepare` may return nothing.
    pub outbox: bool,
}

/// What a checkpoint must keep so that a later run can publish a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// All but what is inserted.
    pub bytes: Vec<u8>,
    /// What is inserted into the bytes, in order.
    pub inserts: Vec<Insert>,
}

/// A part of what was prepared that stands elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Insert {
    /// Before which of the bytes it comes, these counted without what is inserted.
    pub at: usize,
    /// What it is.
    pub what: Inserted,
}

/// See [`Insert`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// These bytes, which are shared and not copied.
    Bytes(Bytes),
    /// The end of an item.
    Item {
        /// The item.
        item: ItemRef,
        /// How many of its last bytes.
        length: usize,
    },
}

impl Insert {
    /// The item, if it is one.
    pub(crate) fn item(&self) -> Option<ItemRef> {
        match self.what {
            Inserted::Bytes(_) => None,
            Inserted::Item { item, .. } => Some(item),
        }
    }
}

impl Prepared {
    /// Whether there is nothing to publish.
    pub fn is_empty(&self) -> bool {
        self.own_bytes() == 0 && self.inserts.iter().all(|insert| insert.item().is_none())
    }

    /// Appends bytes; many are shared, few are copied.
    pub fn push(&mut self, bytes: &Bytes) {
        self.push_part(bytes, 0..bytes.len());
    }

    /// Appends some of these bytes, as [`push`](Self::push).
    ///
    /// # Panics
    ///
    /// If the range is not one of the bytes.
    pub fn push_part(&mut self, bytes: &Bytes, range: Range<usize>) {
        if range.len() < WORTH_SHARING {
            self.bytes.extend_from_slice(&bytes[range]);
        } else {
            self.inserts.push(Insert { at: self.bytes.len(), what: Inserted::Bytes(bytes.slice(range)) });
        }
    }

    /// Appends the last bytes of an item.
    pub fn push_item(&mut self, item: ItemRef, length: usize) {
        self.inserts.push(Insert { at: self.bytes.len(), what: Inserted::Item { item, length } });
    }

    /// How many bytes there are without those of items.
    pub(crate) fn own_bytes(&self) -> usize {
        let shared = self.inserts.iter().map(|insert| match &insert.what {
            Inserted::Bytes(bytes) => bytes.len(),
            Inserted::Item { .. } => 0,
        });
        self.bytes.len() + shared.sum::<usize>()
    }

    /// All but the items, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.inserts.iter().map(|insert| insert.at));
        let ends = self.inserts.iter().map(Some).chain([None]);
        starts.zip(ends).flat_map(|(start, end)| {
            let own = &self.bytes[start..end.map_or(self.bytes.len(), |insert| insert.at)];
            let shared = end.map_or(&[][..], |insert| match &insert.what {
                Inserted::Bytes(bytes) => bytes,
                Inserted::Item { .. } => &[],
            });
            [own, shared]
        })
    }
}

/// Copying less than this costs less than sharing it, in bytes.
const WORTH_SHARING: usize = 192;

impl From<Vec<u8>> for Prepared {
    fn from(bytes: Vec<u8>) -> Self {
        Prepared { bytes, inserts: vec![] }
    }
}

/// Records that a broker refused one by one and that became dead letters, by [`Reason`].
pub type Undelivered = [u64; Reason::ALL.len()];

/// Makes the [`Sink`] of a worker; every worker makes its own, on its own thread. Connects to nothing.
pub type NewSink = Arc<dyn Fn() -> Result<Box<dyn Sink>> + Send + Sync>;

/// A broker, a folder or a table to write to. One writer per worker carries all its outputs, so that one transaction can.
pub trait Sink: Send {
    /// What people call it: a URL without secrets. Fixed.
    fn name(&self) -> &str;

    /// What it promises. Fixed.
    fn guarantee(&self) -> Guarantee;

    /// Opens a writer. Checks what can be checked: that the topics or folders are there and may be written.
    fn open(&mut self, context: &WriterContext) -> Result<Box<dyn Writer>>;
}

/// Writes the outputs of one worker. Lives on a thread of its own; may block for a bounded time, which is back-pressure.
pub trait Writer: Send {
    /// Takes a record of an epoch that is not below the last prepared `upper`. May buffer it, may send it into an open
    /// transaction; shows it to nobody.
    fn write(&mut self, epoch: Epoch, entity: Entity, record: OutputRecord) -> Result<()>;

    /// All records of epochs in [lower, upper) are written. Returns what a checkpoint must keep so that a later run can publish
    /// them: encoded records, names of staged files, or nothing if the context has no outbox.
    fn prepare(&mut self, lower: Epoch, upper: Epoch) -> Result<Prepared>;

    /// The checkpoint is durable: shows the records of [lower, upper), and returns when the broker has them for good.
    ///
    /// May be repeated with the same range. `left` are the bytes of `prepare` if an earlier run made them, with what was to be
    /// inserted; there are none for a range that this writer has prepared.
    ///
    /// A record that the broker refuses by itself, such as one that is too large, becomes a dead letter if the context has an
    /// output for these: the answer counts them. Without such an output it is an error, and not one that passes.
    fn publish(&mut self, lower: Epoch, upper: Epoch, left: Option<&[u8]>) -> Result<Undelivered>;

    /// Everything below this epoch is published, if the broker knows.
    fn published(&mut self) -> Result<Option<Epoch>>;
}
