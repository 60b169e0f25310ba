//! What the promises share: an opened source with patience, and records to write.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::{Harness, PATIENCE, Produced, Verdict};
use crate::epoch::{Clock, Epoch, SystemClock};
use crate::error::Result;
use crate::message::{Message, Offset, Offsets, Split, SplitId};
use crate::sink::{Entity, OutputRecord, RunNumber, Slot, Writer, WriterContext};
use crate::source::{Assignment, Batch, Committer, Evidence, Position, Progress, Reader, Source};

/// Breaks the promise unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+).into());
        }
    };
}
pub(super) use ensure;

/// The wait of most reads: short, so that deadlines are looked at.
pub(super) const WAIT: Duration = Duration::from_millis(100);

/// An opened source, and what it has said.
pub(super) struct Probe {
    pub source: Box<dyn Source>,
    pub reader: Box<dyn Reader>,
    pub committer: Box<dyn Committer>,
    pub splits: Vec<Split>,
    pub from: Offsets,
    pub evidence: BTreeMap<SplitId, Evidence>,
    pub progress: Progress,
    batch: Batch,
    clock: SystemClock,
}

/// What to read: every split, from its number in `from`.
pub(super) fn assignments(splits: &[Split], from: &Offsets, until: Option<&Offsets>) -> Vec<Assignment> {
    let assign = |split: &Split| Assignment {
        split: split.clone(),
        from: from.get(&split.id).copied().unwrap_or_default(),
        until: until.and_then(|until| until.get(&split.id)).copied(),
    };
    splits.iter().map(assign).collect()
}

impl Probe {
    /// Opens all splits of a topic.
    pub fn open(harness: &mut dyn Harness, topic: &str, from: &Position, until: Option<&Position>) -> Result<Probe> {
        let mut source = harness.source(topic, &group(topic))()?;
        let splits = source.splits()?;
        let from = source.resolve(from, &splits)?;
        let until = until.map(|until| source.resolve(until, &splits)).transpose()?;
        let assignments = assignments(&splits, &from, until.as_ref());
        Probe::with(source, splits, from, &assignments)
    }

    /// Opens exactly these assignments.
    pub fn with(
        mut source: Box<dyn Source>,
        splits: Vec<Split>,
        from: Offsets,
        assignments: &[Assignment],
    ) -> Result<Probe> {
        let (reader, committer) = source.open(assignments)?;
        let (evidence, batch) = (BTreeMap::new(), Batch::default());
        let (progress, clock) = (Progress::Open, SystemClock::new());
        Ok(Probe { source, reader, committer, splits, from, evidence, progress, batch, clock })
    }

    /// Reads once. An error that is worth a retry is no message.
    pub fn step(&mut self, wait: Duration) -> Result<Vec<Message>> {
        self.batch.clear();
        match self.reader.read(&mut self.batch, wait) {
            Ok(progress) => self.progress = progress,
            Err(error) if error.is_retryable() => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error),
        }
        self.evidence.extend(self.batch.evidence.drain(..));
        Ok(std::mem::take(&mut self.batch.messages))
    }

    /// Reads until `enough` says so, which sees everything read so far.
    pub fn read_until(
        &mut self,
        what: &str,
        mut enough: impl FnMut(&[Message], &Probe) -> bool,
    ) -> Result<Vec<Message>, Box<dyn std::error::Error + Send + Sync>> {
        let deadline = self.clock.monotonic() + PATIENCE;
        let mut messages = vec![];
        while !enough(&messages, self) {
            ensure!(
                self.clock.monotonic() < deadline,
                "waited {} s for {what}; there are {} messages, evidence {:?}, progress {:?}",
                PATIENCE.as_secs(),
                messages.len(),
                self.evidence,
                self.progress
            );
            messages.extend(self.step(WAIT)?);
        }
        Ok(messages)
    }

    /// Reads until there are this many messages.
    pub fn take(&mut self, count: usize) -> Result<Vec<Message>, Box<dyn std::error::Error + Send + Sync>> {
        self.read_until(&format!("{count} messages"), |messages, _| messages.len() >= count)
    }

    /// Reads until every split is caught up or has ended.
    pub fn drain(&mut self) -> Result<Vec<Message>, Box<dyn std::error::Error + Send + Sync>> {
        self.evidence.clear();
        self.read_until("the end", |_, probe| probe.at_end())
    }

    /// Every split is caught up or has ended.
    pub fn at_end(&self) -> bool {
        let at_end = |split: &Split| matches!(self.evidence.get(&split.id), Some(Evidence::CaughtUp | Evidence::Ended));
        self.splits.iter().all(at_end)
    }

    /// Time since an arbitrary moment.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }
}

/// The name that the suite commits under for a topic: a new one for every topic.
pub(super) fn group(topic: &str) -> String {
    format!("{topic}-group")
}

/// Messages with small JSON values, numbered.
pub(super) fn numbered(numbers: std::ops::Range<usize>) -> Vec<Produced> {
    numbers.map(|number| Produced::value(format!("{{\"number\":{number},\"text\":\"grün €\"}}"))).collect()
}

/// The values of messages, in their order.
pub(super) fn values(messages: &[Message]) -> Vec<Option<Bytes>> {
    messages.iter().map(|message| message.value.clone()).collect()
}

/// The values of what was produced, in its order.
pub(super) fn produced_values(messages: &[Produced]) -> Vec<Option<Bytes>> {
    messages.iter().map(|message| message.value.clone()).collect()
}

/// Compares what was read of one split with what was produced.
pub(super) fn same_values(read: &[Message], produced: &[Produced]) -> Verdict {
    let (read, produced) = (values(read), produced_values(produced));
    if let Some(at) = (0..read.len().max(produced.len())).find(|at| read.get(*at) != produced.get(*at)) {
        let shorten = |value: Option<&Option<Bytes>>| {
            let mut text = format!("{value:?}");
            text.truncate(text.char_indices().nth(120).map_or(text.len(), |(end, _)| end));
            text
        };
        return Err(format!(
            "{} messages were read, {} produced; number {at} is {}, expected {}",
            read.len(),
            produced.len(),
            shorten(read.get(at)),
            shorten(produced.get(at))
        )
        .into());
    }
    Ok(())
}

/// Opens a writer.
pub(super) fn writer(
    harness: &mut dyn Harness,
    entities: &[&str],
    slot: usize,
    run: u64,
    outbox: bool,
) -> Result<Box<dyn Writer>> {
    let entities = entities.iter().map(|entity| String::from(*entity)).collect::<Vec<_>>();
    let mut sink = harness.sink(&group(&entities[0]))()?;
    sink.open(&WriterContext { slot: Slot(slot), output: 0, run: RunNumber(run), entities, dead_letter: None, outbox })
}

/// Writes records with these values to the first entity.
pub(super) fn write(writer: &mut dyn Writer, epoch: Epoch, values: &[&str]) -> Result<()> {
    for value in values {
        let record = OutputRecord { value: Bytes::copy_from_slice(value.as_bytes()), ..OutputRecord::default() };
        writer.write(epoch, Entity(0), record)?;
    }
    Ok(())
}

/// Prepares a range and publishes it.
pub(super) fn publish(writer: &mut dyn Writer, lower: Epoch, upper: Epoch) -> Result<()> {
    writer.prepare(lower, upper)?;
    writer.publish(lower, upper, None).map(drop)
}

/// Reads a topic back and compares its values, in any order, with those expected.
pub(super) fn visible(harness: &mut dyn Harness, topic: &str, expected: &[&str], when: &str) -> Verdict {
    let mut found: Vec<String> = harness.read_back(topic).into_iter().map(text).collect();
    found.sort();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    ensure!(found == expected, "{when}: visible {found:?}, expected {expected:?}");
    Ok(())
}

/// The value as text.
pub(super) fn text(message: Produced) -> String {
    message.value.map_or_else(|| "(none)".into(), |value| String::from_utf8_lossy(&value).into_owned())
}

/// Everything that was read is done.
pub(super) fn offsets(messages: &[Message]) -> Offsets {
    let mut offsets = Offsets::new();
    for message in messages {
        let next = offsets.entry(message.split).or_insert(Offset(0));
        *next = message.next.max(*next);
    }
    offsets
}
