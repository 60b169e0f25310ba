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
use crate::dataflow::marks::{Marks, Time};
use crate::dataflow::{Arrived, Rejected};
use crate::epoch::Epoch;
use crate::ledger::Ledger;
use crate::message::{Offset, Reason, SplitId};
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
    fn take(&mut self, epoch: Epoch, clock: u64, rejected: &mut Handle<Rejected>) -> Taken;
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

/// An input whose records are `T`s.
pub(crate) struct TypedIntake<T: Data> {
    name: String,
    index: usize,
    reader: ReaderThread<T>,
    committer: Option<CommitThread>,
    /// `None` once nothing will enter any more.
    input: Option<Handle<Arrived<T>>>,
    /// Records on their way into `input`; empty between calls.
    buffer: Vec<Arrived<T>>,
    mode: TimeMode,
    max_ahead: Duration,
    on_bad: OnBad,
    on_null: OnBad,
    splits: Vec<SplitState>,
    ledger: Ledger,
    /// What the last run has left.
    restored: Arc<Restored>,
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
    /// Of the open epoch: records that entered, records refused by reason, timestamps not believed.
    records: u64,
    refused: [u64; Reason::ALL.len()],
    ahead: u64,
}

impl<T: Data> TypedIntake<T> {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        name: String,
        index: usize,
        reader: ReaderThread<T>,
        input: Handle<Arrived<T>>,
        mode: TimeMode,
        max_ahead: Duration,
        on_bad: OnBad,
        on_null: OnBad,
        restored: Arc<Restored>,
        keeps: bool,
    ) -> Self {
        TypedIntake {
            name,
            index,
            reader,
            committer: None,
            input: Some(input),
            buffer: Vec::new(),
            mode,
            max_ahead,
            on_bad,
            on_null,
            splits: Vec::new(),
            ledger: Ledger::new(),
            restored,
            marks: keeps.then(|| Marks::new(index)),
            unmarked: false,
            rejections: BTreeMap::new(),
            opened: false,
            ended: false,
            gone: InputTimes::default(),
            left: Vec::new(),
            records: 0,
            refused: Default::default(),
            ahead: 0,
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
            let mut time = SplitTime::new(self.mode, self.max_ahead);
            if let Some(mark) = self.restored.mark(self.index, id) {
                time.restore((mark.time, mark.timed));
            }
            self.splits.push(SplitState { id, time, paused: false });
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
        at: Now,
        epoch: Epoch,
        clock: u64,
        rejected: &mut Handle<Rejected>,
    ) -> Taken {
        let (mut bytes, count) = (0, items.len());
        self.buffer.reserve(count);
        let mut run: Option<(SplitId, Offset, usize)> = None; // the split of the last item, its next offset, its index
        for item in items {
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
                        tracing::warn!(source = self.name, split = %id, "a message of a split that is not read is dropped");
                        run = None;
                        continue;
                    };
                    index
                }
            };
            run = Some((id, next, index));
            match item {
                Item::Record { split, offset, size, timestamp, data, .. } => {
                    let arrival = self.splits[index].time.read(timestamp, at, clock);
                    self.ahead += u64::from(arrival.ahead);
                    self.records += 1;
                    bytes += size;
                    let (timestamp, base) = (arrival.timestamp, arrival.base);
                    self.buffer.push(Arrived { split, offset, timestamp, base, data });
                }
                Item::Refused { reason, error, split, message } => {
                    self.refused[reason as usize] += 1;
                    self.splits[index].time.refuse();
                    bytes += message.size();
                    self.rejections.entry(epoch).or_default().push((id, message.offset, reason));
                    let policy = if reason == Reason::Tombstone { self.on_null } else { self.on_bad };
                    if policy == OnBad::DeadLetter {
                        rejected.send(Rejected { input: self.index, reason, error, split, message: *message });
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

    fn take(&mut self, epoch: Epoch, clock: u64, rejected: &mut Handle<Rejected>) -> Taken {
        if self.committer.is_none() {
            self.committer = self.reader.committer.try_recv().ok();
        }
        match self.reader.batches.try_recv() {
            Ok(FromReader::Batch { items, evidence, at }) => {
                let taken = self.take_items(items, at, epoch, clock, rejected);
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
        &self.name
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
                tracing::debug!(source = self.name, split = %split.id, paused = pauses, "alignment");
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
        let refused: u64 = self.refused.iter().sum();
        // Where a new split begins must be durable even if nothing comes: the next run is to begin there too.
        report.dirty |= self.records + refused > 0 || std::mem::take(&mut self.unmarked);
        report.records += std::mem::take(&mut self.records) + refused;
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
        if let Some(committer) = &self.committer {
            committer.commit(Done { offsets, rejected });
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
