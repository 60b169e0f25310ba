//! What a broker must be able to do to be written: the contracts [`Sink`] and [`Writer`].
//!
//! For every range of epochs [lower, upper) of a run, in this order, on the one thread that owns the writer:
//!
//! ```text
//! write(e, ..)*  ->  prepare(lower, upper)  ->  [the checkpoint is durable]  ->  publish(lower, upper, bytes)
//! ```
//!
//! Nothing may be visible to anybody before `publish`. Ranges do not overlap and follow each other; while one waits for its
//! checkpoint the next may be written, and even prepared. After a crash a new run calls `publish` with the bytes that the
//! checkpoint kept, without `write`: the bytes alone must do.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;
use crate::error::Result;
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
    fn prepare(&mut self, lower: Epoch, upper: Epoch) -> Result<Vec<u8>>;

    /// The checkpoint is durable: shows the records of [lower, upper), and returns when the broker has them for good.
    ///
    /// May be repeated with the same range. The bytes are those of `prepare`, perhaps of an earlier run.
    ///
    /// A record that the broker refuses by itself, such as one that is too large, becomes a dead letter if the context has an
    /// output for these: the answer counts them. Without such an output it is an error, and not one that passes.
    fn publish(&mut self, lower: Epoch, upper: Epoch, prepared: &[u8]) -> Result<Undelivered>;

    /// Everything below this epoch is published, if the broker knows.
    fn published(&mut self) -> Result<Option<Epoch>>;
}
