//! From the reader threads into the dataflow: the worker's side of one input.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::TryRecvError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;

use crate::checkpoint::{Restored, SplitMark};
use crate::commit::{CommitThread, Done, LastCommit, MOST_REJECTED};
use crate::dataflow::align::InputTimes;
use crate::dataflow::clock::Report;
use crate::dataflow::dedup::{Aside, Delivery, Place};
use crate::dataflow::marks::{Marks, Time};
use crate::dataflow::{Arrived, Rejected};
use crate::epoch::Epoch;
use crate::ledger::Ledger;
use crate::message::{MessageId, Offset, Reason, SplitId};
use crate::reader::{FromReader, Item, OnBad, ReaderThread};
use crate::source::Evidence;
use crate::split_time::{Limit, Low, Now, SplitTime, TimeMode};

/// An input handle of vectors.
pub(crate) type Handle<D> = InputHandle<Epoch, CapacityContainerBuilder<Vec<D>>>;

/// What may travel between workers. Between processes it does so in timely's form, bincode: a type whose `Deserialize` asks the
/// format what comes (`serde_json::Value`, untagged enums, flattened fields) may be read from JSON, but must not be exchanged.
pub trait Data: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {}
impl<T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static> Data for T {}

/// What taking a batch did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Records and bytes were put into the open epoch, perhaps none.
    Some(usize, usize),
    /// Nothing waits.
    Nothing,
}

/// One input of one worker, whatever its records are.
pub(crate) trait Intake {
    /// Whether the reader has opened its source. Until then nothing else comes from it.
    fn open(&mut self) -> bool;
    /// Puts what the reader thread has sent, one batch, into the open epoch. `clock` is the job's clock as far
    /// as it is known.
    fn take(&mut self, epoch: Epoch, clock: u64, asides: &mut Handle<Aside>) -> Taken;
    /// Whether nothing will come any more.
    fn has_ended(&self) -> bool;
    /// What people call it.
    fn name(&self) -> &str;
    /// How far its splits have come.
    fn times(&mut self, now: Now) -> InputTimes;
    /// Pauses the splits that are further ahead, and lets the others go on; says how many are paused.
    fn align(&mut self, limit: &Limit, now: Now) -> u64;
    /// Closes the epoch: adds what is to be reported of it, and the split times.
    fn close(&mut self, epoch: Epoch, now: Now, report: &mut Report);
    /// Moves to the next epoch.
    fn advance_to(&mut self, epoch: Epoch);
    /// Closes the dataflow's input: nothing will enter any more.
    fn close_input(&mut self);
    /// Whether it has splits whose beginnings no checkpoint has yet.
    fn is_unmarked(&self) -> bool;
    /// What a checkpoint at this bound must say of its splits, as far as it is new.
    fn marks_at(&mut self, bound: Epoch) -> Vec<SplitMark>;
    /// Everything below the bound is done.
    fn retire(&mut self, bound: Epoch);
    /// Keeps little of what waits to be retired, where commits are held back and nothing is stored.
    fn thin(&mut self);
    /// Ends. What is still to be committed is on its way then.
    fn finish(self: Box<Self>) -> Option<LastCommit>;
}

/// The time and the progress of a split.
struct SplitState {
    id: SplitId,
    time: SplitTime,
    /// It is ahead, and its reader was told to wait.
    paused: bool,
}

/// What an intake is told.
pub(crate) struct IntakeSpec {
    pub name: String,
    /// The index of the input in the job.
    pub index: usize,
    pub worker: usize,
    pub mode: TimeMode,
    pub max_ahead: Duration,
    pub on_bad: OnBad,
    pub on_null: OnBad,
    /// Its broker delivers again what was not acknowledged, and perhaps more.
    pub redelivers: bool,
    /// What the last run has left.
    pub restored: Arc<Restored>,
}

/// An input whose records are `T`s.
pub(crate) struct TypedIntake<T: Data> {
    spec: IntakeSpec,
    reader: ReaderThread<T>,
    committer: Option<CommitThread>,
    /// `None` once nothing will enter any more.
    input: Option<Handle<Arrived<T>>>,
    /// Records on their way into `input`; empty between calls.
    buffer: Vec<Arrived<T>>,
    splits: Vec<SplitState>,
    ledger: Ledger,
    /// Everything below it is done; and below that one everything that the broker was told.
    retired: Epoch,
    told: Epoch,
    /// Where checkpoints are kept.
    marks: Option<Marks>,
    /// Splits were opened whose offsets no checkpoint has.
    unmarked: bool,
    /// Rejected messages whose epochs are not done; shrinks with the bound.
    rejections: BTreeMap<Epoch, Vec<(SplitId, Offset, Reason)>>,
    opened: bool,
    ended: bool,
    /// The largest time of splits that have gone.
    gone: InputTimes,
    /// The times of those that went in the open epoch.
    left: Vec<(SplitId, Time)>,
    /// Of the open epoch: messages that came, those refused by reason (without those that have an id, which are counted where it is
    /// known whether they came before), timestamps not believed.
    messages: u64,
    refused: [u64; Reason::ALL.len()],
    ahead: u64,
}

impl<T: Data> TypedIntake<T> {
    /// `keeps`: there are checkpoints.
    pub fn new(spec: IntakeSpec, reader: ReaderThread<T>, input: Handle<Arrived<T>>, keeps: bool) -> Self {
        TypedIntake {
            reader,
            committer: None,
            input: Some(input),
            buffer: Vec::new(),
            splits: Vec::new(),
            ledger: Ledger::new(),
            retired: spec.restored.upper,
            told: 0,
            marks: keeps.then(|| Marks::new(spec.index)),
            unmarked: false,
            rejections: BTreeMap::new(),
            opened: false,
            ended: false,
            gone: InputTimes::default(),
            left: Vec::new(),
            messages: 0,
            refused: Default::default(),
            ahead: 0,
            spec,
        }
    }

    /// The state of a split, which was opened before anything of it came.
    fn split(splits: &mut [SplitState], id: SplitId) -> Option<&mut SplitState> {
        splits.iter_mut().find(|split| split.id == id)
    }

    fn opened(&mut self, splits: Vec<(SplitId, Offset)>) {
        self.opened = true;
        self.ledger.restore(&splits.iter().copied().collect());
        self.unmarked |= self.marks.is_some() && !splits.is_empty();
        for (id, _) in splits {
            let mut time = SplitTime::new(self.spec.mode, self.spec.max_ahead);
            if let Some(mark) = self.spec.restored.mark(self.spec.index, id) {
                time.restore((mark.time, mark.timed));
            }
            self.splits.push(SplitState { id, time, paused: false });
        }
    }

    /// Everything that was read below it is acknowledged: the broker has taken the commit.
    fn acked(&self) -> Epoch {
        match &self.committer {
            Some(committer) if committer.committed() < self.told => committer.committed(),
            _ => self.retired,
        }
    }

    /// Forgets splits.
    fn leave(&mut self, leaves: impl Fn(&SplitState) -> bool) {
        for split in self.splits.iter().filter(|split| leaves(split)) {
            self.gone.high = self.gone.high.max(split.time.reached());
            self.left.push((split.id, split.time.saved()));
        }
        self.splits.retain(|split| !leaves(split));
    }

    fn take_items(
        &mut self,
        items: Vec<Item<T>>,
        ids: Vec<Option<MessageId>>,
        at: Now,
        epoch: Epoch,
        clock: u64,
        asides: &mut Handle<Aside>,
    ) -> Taken {
        let (mut bytes, count) = (0, items.len());
        let mut ids = ids.into_iter();
        self.buffer.reserve(count);
        let mut run: Option<(SplitId, Offset, usize)> = None; // the split of the last item, its next offset, its index
        for item in items {
            let message_id = ids.next().flatten();
            let (id, next) = match &item {
                Item::Record { split, next, .. } => (*split, *next),
                Item::Refused { message, .. } => (message.split, message.next),
            };
            let index = match run {
                Some((last, _, index)) if last == id => index,
                other => {
                    if let Some((last, next, _)) = other {
                        self.ledger.record(epoch, last, next);
                    }
                    let Some(index) = self.splits.iter().position(|split| split.id == id) else {
                        tracing::warn!(source = self.spec.name, split = %id, "a message of a split that is not read is dropped");
                        run = None;
                        continue;
                    };
                    index
                }
            };
            run = Some((id, next, index));
            self.messages += 1;
            if let Some(message_id) = message_id {
                let (offset, refused) = match &item {
                    Item::Record { offset, .. } => (*offset, None),
                    Item::Refused { message, reason, .. } => (message.offset, Some(*reason)),
                };
                let place = Place::new(self.spec.index, id, offset);
                asides.send(Aside::Delivered(Delivery::new(message_id, place, self.spec.worker, refused)));
            }
            match item {
                Item::Record { split, offset, size, timestamp, data, .. } => {
                    let arrival = self.splits[index].time.read(timestamp, at, clock);
                    self.ahead += u64::from(arrival.ahead);
                    bytes += size;
                    let (timestamp, base) = (arrival.timestamp, arrival.base);
                    self.buffer.push(Arrived { split, offset, timestamp, base, data });
                }
                Item::Refused { reason, error, split, message } => {
                    self.refused[reason as usize] += u64::from(message_id.is_none());
                    self.splits[index].time.refuse();
                    bytes += message.size();
                    self.rejections.entry(epoch).or_default().push((id, message.offset, reason));
                    let policy = if reason == Reason::Tombstone { self.spec.on_null } else { self.spec.on_bad };
                    if policy == OnBad::DeadLetter {
                        let rejected = Rejected { input: self.spec.index, reason, error, split, message: *message };
                        asides.send(Aside::Rejected(Box::new(rejected)));
                    }
                }
            }
        }
        if let Some((last, next, _)) = run {
            self.ledger.record(epoch, last, next);
        }
        if let Some(input) = &mut self.input {
            input.send_batch(&mut self.buffer);
        }
        Taken::Some(count, bytes)
    }
}

impl<T: Data> Intake for TypedIntake<T> {
    fn open(&mut self) -> bool {
        if !self.opened
            && let Ok(FromReader::Opened(splits)) = self.reader.batches.try_recv()
        {
            self.opened(splits);
        }
        self.opened
    }

    fn take(&mut self, epoch: Epoch, clock: u64, asides: &mut Handle<Aside>) -> Taken {
        if self.committer.is_none() {
            self.committer = self.reader.committer.try_recv().ok();
        }
        match self.reader.batches.try_recv() {
            Ok(FromReader::Batch { items, ids, evidence, at }) => {
                let taken = self.take_items(items, ids, at, epoch, clock, asides);
                for (id, evidence) in evidence {
                    if let Some(split) = Self::split(&mut self.splits, id) {
                        split.time.evidence(evidence, at);
                    }
                }
                taken
            }
            Ok(FromReader::Opened(splits)) => {
                self.opened(splits);
                Taken::Some(0, 0)
            }
            Ok(FromReader::Removed(ids)) => {
                self.leave(|split| ids.contains(&split.id));
                for id in ids {
                    self.ledger.remove(id);
                }
                Taken::Some(0, 0)
            }
            Ok(FromReader::Ended) => {
                self.ended = true;
                self.leave(|_| true);
                Taken::Some(0, 0)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => Taken::Nothing,
        }
    }

    fn name(&self) -> &str {
        &self.spec.name
    }

    fn times(&mut self, now: Now) -> InputTimes {
        let mut times = self.gone;
        if !self.opened {
            times.low = Low::UNKNOWN;
        }
        self.splits.iter_mut().for_each(|split| times.add(&mut split.time, now));
        times
    }

    fn align(&mut self, limit: &Limit, now: Now) -> u64 {
        for split in &mut self.splits {
            let pauses = limit.pauses(&mut split.time, split.paused, now);
            if pauses != split.paused {
                split.paused = pauses;
                if pauses {
                    split.time.evidence(Evidence::Behind, now); // the reader will say so too, behind what it has read already
                }
                tracing::debug!(source = self.spec.name, split = %split.id, paused = pauses, "alignment");
                let _ = self.reader.pauses.send((split.id, pauses)); // its thread has ended with its splits
            }
        }
        self.splits.iter().filter(|split| split.paused).count() as u64
    }

    fn has_ended(&self) -> bool {
        self.ended && self.reader.batches.is_empty()
    }

    fn close(&mut self, epoch: Epoch, now: Now, report: &mut Report) {
        self.ledger.close(epoch);
        // Where a new split begins must be durable even if nothing comes: the next run is to begin there too.
        report.dirty |= self.messages > 0 || std::mem::take(&mut self.unmarked);
        report.records += std::mem::take(&mut self.messages);
        report.ahead += std::mem::take(&mut self.ahead);
        for (total, refused) in report.refused.iter_mut().zip(std::mem::take(&mut self.refused)) {
            *total += refused;
        }
        if !self.opened {
            report.hold(0); // its splits are not known yet
        }
        for split in &mut self.splits {
            if let Some(time) = split.time.time(now) {
                report.hold(time);
            }
        }
        report.times.push(self.times(now));
        if self.spec.redelivers {
            report.acked.push((self.spec.index as u32, self.acked())); // inputs are few
        }
        if let Some(marks) = &mut self.marks {
            let times = self.splits.iter().map(|split| (split.id, split.time.saved()));
            marks.close(epoch, self.left.iter().copied().chain(times).collect());
        }
        self.left.clear();
    }

    fn advance_to(&mut self, epoch: Epoch) {
        if let Some(input) = &mut self.input {
            input.advance_to(epoch);
        }
    }

    fn close_input(&mut self) {
        self.input = None;
    }

    fn is_unmarked(&self) -> bool {
        self.unmarked
    }

    fn marks_at(&mut self, bound: Epoch) -> Vec<SplitMark> {
        let offsets = self.ledger.offsets_at(bound);
        self.marks.as_mut().map_or_else(Vec::new, |marks| marks.at(bound, &offsets))
    }

    fn retire(&mut self, bound: Epoch) {
        let offsets = self.ledger.retire(bound);
        let rest = self.rejections.split_off(&bound);
        let rejected = std::mem::replace(&mut self.rejections, rest).into_values().flatten().collect();
        self.retired = bound;
        if let Some(committer) = &self.committer
            && committer.commit(Done { bound, offsets, rejected })
        {
            self.told = bound;
        }
    }

    fn thin(&mut self) {
        /// Bindings that are kept: more let commits follow more closely, fewer take less memory.
        const MOST: usize = 1_024;
        self.ledger.thin(MOST);
        let mut surplus = self.rejections.values().map(Vec::len).sum::<usize>().saturating_sub(MOST_REJECTED);
        while let Some(oldest) = self.rejections.first_entry().filter(|_| surplus > 0) {
            surplus = surplus.saturating_sub(oldest.remove().len());
        }
    }

    fn finish(self: Box<Self>) -> Option<LastCommit> {
        self.committer.map(CommitThread::finish)
    }
}
