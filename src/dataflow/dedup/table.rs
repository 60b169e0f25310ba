//! Which ids a worker remembers, and until when. Pure: no timely, no clock, no threads.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::rc::Rc;
use std::time::Duration;

use super::item::{Batch, Id, Moment, Name};
use super::{DEFAULT_REMEMBER_IDS, Delivery, Part, Place, Repeated};
use crate::epoch::Epoch;
use crate::message::Reason;

/// How long each input's ids are remembered; `None` for those whose sources do not deliver again. It grows while the dataflow is
/// built.
pub(crate) type Remember = Rc<RefCell<Vec<Option<Duration>>>>;

/// Ids that are forgotten in an epoch in which nothing comes. Fewer: memory follows more slowly; more: the epoch takes longer.
const FORGET: usize = 16_384;

/// Where nothing comes, ids are forgotten this part of their time late, many at once: each time it is a checkpoint.
const PATIENCE: u64 = 16;

/// Ids that came in the same epoch, and are to be forgotten together.
struct Bucket {
    epoch: Epoch,
    ids: Vec<Id>,
    /// This worker takes the item of that maker out of the checkpoint.
    item: Option<u32>,
}

/// The ids of one input.
#[derive(Default)]
struct Ids {
    /// The epoch in which each came last.
    known: HashMap<Id, Epoch, Seed>,
    /// In the order of their epochs: what is not known to be acknowledged.
    open: VecDeque<Bucket>,
    /// Behind it, with the uptime at which it was.
    acked: VecDeque<(u64, Bucket)>,
    /// What each worker has said last: what it was delivered below this epoch is acknowledged.
    bounds: BTreeMap<usize, Epoch>,
}

impl Ids {
    /// What every worker was delivered below this epoch is acknowledged.
    fn bound(&self, peers: usize) -> Epoch {
        let all = self.bounds.len() == peers;
        self.bounds.values().min().copied().filter(|_| all).unwrap_or(0)
    }

    /// Everything below the bound is acknowledged, at this uptime or before.
    fn ack(&mut self, bound: Epoch, at: u64) {
        while self.open.front().is_some_and(|bucket| bucket.epoch < bound) {
            self.acked.extend(self.open.pop_front().map(|bucket| (at, bucket)));
        }
    }

    /// Takes the oldest ids if they were acknowledged at this uptime or before.
    fn forget(&mut self, until: u64) -> Option<Bucket> {
        self.acked.front().filter(|(at, _)| *at <= until)?;
        let (_, bucket) = self.acked.pop_front()?;
        for id in &bucket.ids {
            // One that came again since then stands in a later bucket too.
            if self.known.get(id) == Some(&bucket.epoch) {
                self.known.remove(id);
            }
        }
        Some(bucket)
    }

    /// Gives memory back after many were forgotten.
    fn tidy(&mut self) {
        /// Entries that are too few to care about.
        const FEW: usize = 1 << 12;
        if self.known.capacity() > 4 * self.known.len() + FEW {
            self.known.shrink_to(2 * self.known.len());
        }
    }
}

/// What an epoch did.
pub(crate) struct Outcome {
    /// The deliveries that do not pass.
    pub repeated: Vec<Repeated>,
    /// What is counted here: messages that do not pass, and refused ones that would, by reason.
    pub refused: [u64; Reason::ALL.len()],
    /// The changes of what checkpoints keep.
    pub changes: Vec<(Batch, isize)>,
}

/// The ids of one worker.
pub(crate) struct Table {
    worker: usize,
    peers: usize,
    remember: Remember,
    inputs: BTreeMap<u32, Ids>,
    /// The uptime that each worker has said last, of this run.
    uptimes: Vec<Option<u64>>,
    /// The uptime of earlier runs, as far as it is sure.
    before: u64,
    /// What comes from a checkpoint, until it is all there.
    restoring: Vec<Part>,
}

impl Table {
    pub fn new(worker: usize, peers: usize, remember: Remember) -> Self {
        Table {
            worker,
            peers,
            remember,
            inputs: BTreeMap::new(),
            uptimes: vec![None; peers],
            before: 0,
            restoring: vec![],
        }
    }

    /// How many ids are remembered.
    pub fn len(&self) -> usize {
        self.inputs.values().map(|ids| ids.known.len()).sum()
    }

    /// How many ids there is room for.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.inputs.values().map(|ids| ids.known.capacity()).sum()
    }

    /// Whether there is nothing to forget.
    pub fn is_empty(&self) -> bool {
        self.restoring.is_empty() && self.inputs.values().all(|ids| ids.open.is_empty() && ids.acked.is_empty())
    }

    /// Takes what a checkpoint says of ids.
    pub fn restore(&mut self, part: Part) {
        self.restoring.push(part);
    }

    /// Everything restored is there: goes through it as it once came, so that it is known what was acknowledged, and when. What is
    /// not counts as acknowledged when this run begins: if it was not, the broker delivers it to this run.
    fn settle(&mut self) {
        let mut parts = std::mem::take(&mut self.restoring);
        parts.sort_unstable_by_key(|part| part.name);
        self.before = parts.iter().map(|part| part.moment.earliest).max().unwrap_or(self.before);
        for Part { name: Name { input, epoch, maker }, moment, ids, takes, .. } in parts {
            let known = self.inputs.entry(input).or_default();
            known.ack(moment.acked, moment.latest);
            if takes || !ids.is_empty() {
                known.known.extend(ids.iter().map(|id| (*id, epoch)));
                known.open.push_back(Bucket { epoch, ids, item: takes.then_some(maker) });
            }
        }
    }

    /// What a worker says when it closes an epoch: for how long it is up, in milliseconds, and by input below which epoch everything
    /// that it was delivered is acknowledged.
    pub fn hear(&mut self, worker: usize, uptime: u64, acked: &[(u32, Epoch)]) {
        self.uptimes[worker] = Some(uptime);
        for (input, bound) in acked {
            self.inputs.entry(*input).or_default().bounds.insert(worker, *bound);
        }
    }

    /// The uptime of the job, at least: what the worker has that says the least.
    fn earliest(&self) -> u64 {
        let least: Option<Vec<u64>> = self.uptimes.iter().copied().collect();
        self.before + least.and_then(|uptimes| uptimes.into_iter().min()).unwrap_or(0)
    }

    /// What it was at most when the workers said what is known.
    fn latest(&self) -> u64 {
        self.before + self.uptimes.iter().flatten().max().copied().unwrap_or(0)
    }

    /// How long an input's ids are remembered, in milliseconds; and whether it acknowledges anything in this run.
    fn remember(&self, input: u32) -> (u64, bool) {
        let remember = self.remember.borrow().get(input as usize).copied().flatten();
        (u64::try_from(remember.unwrap_or(DEFAULT_REMEMBER_IDS).as_millis()).unwrap_or(u64::MAX), remember.is_some())
    }

    /// Moves the ids that are acknowledged on all workers.
    fn ack(&mut self) {
        let (peers, latest) = (self.peers, self.latest());
        let live: Vec<(u32, bool)> = self.inputs.keys().map(|input| (*input, self.remember(*input).1)).collect();
        for (input, acks) in live {
            let Some(ids) = self.inputs.get_mut(&input) else { continue };
            // Of an input that is there no more, or that became a log, nothing is acknowledged.
            ids.ack(if acks { ids.bound(peers) } else { Epoch::MAX }, latest);
        }
    }

    /// Everything that came in an epoch is there: says what passes. Epochs come in their order.
    pub fn epoch(&mut self, epoch: Epoch, deliveries: &mut [Delivery]) -> Outcome {
        if !self.restoring.is_empty() {
            self.settle();
        }
        self.ack();
        let mut outcome = Outcome { repeated: vec![], refused: Default::default(), changes: vec![] };
        deliveries.sort_unstable_by_key(|delivery| (delivery.place.input, delivery.id, delivery.place));
        for of_input in deliveries.chunk_by(|one, next| one.place.input == next.place.input) {
            self.deliver(epoch, of_input, &mut outcome);
        }
        self.forget(deliveries.len(), &mut outcome.changes);
        outcome
    }

    /// Takes what an input was delivered in an epoch, sorted by id and then by place.
    fn deliver(&mut self, epoch: Epoch, deliveries: &[Delivery], outcome: &mut Outcome) {
        let Some(Delivery { place: Place { input, .. }, .. }) = deliveries.first() else { return };
        let (earliest, latest) = (self.earliest(), self.latest());
        let known = self.inputs.entry(*input).or_default();
        let mut ids = Vec::with_capacity(deliveries.len());
        for same in deliveries.chunk_by(|one, next| one.id == next.id) {
            let id = same[0].id;
            ids.push(id);
            let passes = usize::from(known.known.insert(id, epoch).is_none()); // the first alone
            let (first, others) = same.split_at(passes);
            for reason in first.iter().filter_map(|delivery| delivery.refused) {
                outcome.refused[reason as usize] += 1;
            }
            outcome.refused[Reason::Redelivered as usize] += others.len() as u64;
            outcome.repeated.extend(others.iter().map(|other| Repeated { worker: other.worker, place: other.place }));
        }
        ids.shrink_to_fit();
        let acked = known.bound(self.peers);
        let name = Name { input: *input, epoch, maker: self.worker as u32 }; // workers are few
        outcome.changes.push((Batch { name, moment: Moment { earliest, latest, acked }, ids: ids.clone() }, 1));
        known.open.push_back(Bucket { epoch, ids, item: Some(name.maker) });
    }

    /// Forgets what was remembered long enough, if it is not too much at once.
    fn forget(&mut self, arrived: usize, changes: &mut Vec<(Batch, isize)>) {
        let earliest = self.earliest();
        let mut most = FORGET + 2 * arrived;
        let inputs: Vec<(u32, u64)> = self.inputs.keys().map(|input| (*input, self.remember(*input).0)).collect();
        for (input, remember) in inputs {
            let Some(ids) = self.inputs.get_mut(&input) else { continue };
            let Some(until) = earliest.checked_sub(remember) else { continue };
            let Some((oldest, _)) = ids.acked.front() else { continue };
            if arrived == 0 && *oldest > until.saturating_sub(remember / PATIENCE) {
                continue;
            }
            while most > 0
                && let Some(Bucket { epoch, ids, item }) = ids.forget(until)
            {
                most = most.saturating_sub(ids.len().max(1));
                if let Some(maker) = item {
                    let name = Name { input, epoch, maker };
                    changes.push((Batch { name, moment: Moment::default(), ids: vec![] }, -1));
                }
            }
            ids.tidy();
        }
    }
}

/// Hashes ids. They are mostly numbers that a broker counts, or what producers have chosen: so with a secret.
#[derive(Clone)]
struct Seed([u64; 2]);

impl Default for Seed {
    fn default() -> Self {
        let random = RandomState::new();
        Seed([random.hash_one(0), random.hash_one(1) | 1])
    }
}

impl BuildHasher for Seed {
    type Hasher = Fold;
    fn build_hasher(&self) -> Fold {
        Fold { state: self.0[0], factor: self.0[1] }
    }
}

/// Multiplies and folds: each half of the product goes into the other.
struct Fold {
    state: u64,
    factor: u64,
}

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.state
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.state ^ number) * u128::from(self.factor);
        self.state = product as u64 ^ (product >> 64) as u64;
    }
}
