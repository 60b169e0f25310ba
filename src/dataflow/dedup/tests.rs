//! The tables of all workers against a list of what was delivered and when it was acknowledged.
//!
//! Would catch: an id that is forgotten while its message may come again (between epochs, on another worker, over a restart with
//! another number of workers, with clocks of workers that began at different times), a first message that is dropped, two that pass in
//! one epoch, an item that is added or taken twice, ids that are never forgotten.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use bytes::BytesMut;
use proptest::prelude::*;

use super::table::{Outcome, Remember, Table};
use super::*;
use crate::checkpoint::{ItemId, Share};
use crate::dataflow::durable::ItemCodec;

/// By input, in milliseconds.
const REMEMBER: [u64; 2] = [100, 40];

type Message = (u32, u128);

#[derive(Clone, Copy, Debug)]
enum Step {
    Deliver {
        worker: usize,
        message: Message,
        refused: bool,
    },
    /// Time passes.
    Pass(u64),
    /// A worker says what it knows, for the report of the open epoch.
    Say(usize),
    /// A worker does not report of the open epoch: it closes another one.
    Silent(usize),
    /// The open epoch is complete.
    Close,
    /// The broker takes a commit of a worker: all but so many of the closed epochs.
    Ack {
        worker: usize,
        input: u32,
        but: u64,
    },
    /// A crash; the last checkpoint is so many epochs old, or as old as it may be.
    Restart {
        workers: usize,
        lost: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let message = || (0..2u32, (0..6u128).prop_map(|id| id << 60));
    prop_oneof![
        8 => (0..3usize, message(), any::<bool>()).prop_map(|(worker, message, refused)| Step::Deliver { worker, message, refused }),
        3 => (1..60u64).prop_map(Step::Pass),
        1 => (0..3usize).prop_map(Step::Say),
        1 => (0..3usize).prop_map(Step::Silent),
        5 => Just(Step::Close),
        4 => (0..3usize, 0..2u32, 0..3u64).prop_map(|(worker, input, but)| Step::Ack { worker, input, but }),
        1 => (1..4usize, 0..4u64).prop_map(|(workers, lost)| Step::Restart { workers, lost }),
    ]
}

struct Worker {
    table: Table,
    started: u64,
    /// What its brokers have taken, by input.
    acked: [Epoch; 2],
    said: Option<(u64, [Epoch; 2])>,
    silent: bool,
}

struct World {
    /// Uptime, as nobody knows it.
    now: u64,
    epoch: Epoch,
    workers: Vec<Worker>,
    open: Vec<Delivery>,
    offsets: u64,
    /// The changes of each epoch.
    changes: BTreeMap<Epoch, Vec<(Batch, isize)>>,
    /// The last epoch of each message, at the end of each epoch.
    last: BTreeMap<Epoch, BTreeMap<Message, Epoch>>,
    /// When all that is below an epoch was acknowledged, by input.
    acked: [Vec<(Epoch, u64)>; 2],
}

fn remember() -> Remember {
    Rc::new(RefCell::new(REMEMBER.map(|millis| Some(Duration::from_millis(millis))).into()))
}

impl World {
    fn new() -> Self {
        let mut world = World {
            now: 1_000,
            epoch: 10,
            workers: vec![],
            open: vec![],
            offsets: 0,
            changes: BTreeMap::new(),
            last: BTreeMap::new(),
            acked: Default::default(),
        };
        world.start(2, 0);
        world
    }

    fn start(&mut self, workers: usize, upper: Epoch) {
        let worker = |index: usize| Worker {
            table: Table::new(index, workers, remember()),
            started: self.now - 7 * index as u64, // not all at once
            acked: [upper; 2],
            said: None,
            silent: false,
        };
        self.workers = (0..workers).map(worker).collect();
    }

    fn deliver(&mut self, worker: usize, message: Message, refused: bool) {
        let worker = worker % self.workers.len();
        self.offsets += 1;
        let place = Place::new(message.0 as usize, SplitId::numbered("t", worker as u32), Offset(self.offsets));
        let reason = refused.then_some(Reason::KeyNull);
        self.open.push(Delivery::new(MessageId(message.1), place, worker, reason));
    }

    fn close(&mut self) -> Result<(), TestCaseError> {
        let (epoch, peers) = (self.epoch, self.workers.len());
        self.epoch += 1;
        let mut reports = vec![];
        for (index, worker) in self.workers.iter_mut().enumerate() {
            if std::mem::take(&mut worker.silent) {
                continue;
            }
            let (uptime, acked) = worker.said.take().unwrap_or((self.now - worker.started, worker.acked));
            reports.push((index, uptime, [(0, acked[0]), (1, acked[1])]));
        }
        let mut deliveries = std::mem::take(&mut self.open);
        let (mut repeated, mut refused) = (vec![], [0; Reason::ALL.len()]);
        for (index, worker) in self.workers.iter_mut().enumerate() {
            let mut mine: Vec<Delivery> =
                deliveries.iter().filter(|d| d.id.route() % peers as u64 == index as u64).cloned().collect();
            reports.iter().for_each(|(from, uptime, acked)| worker.table.hear(*from, *uptime, acked));
            let Outcome { repeated: places, refused: counts, changes } = worker.table.epoch(epoch, &mut mine);
            repeated.extend(places);
            refused.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
            self.changes.entry(epoch).or_default().extend(changes);
        }
        let mut last = self.last.last_key_value().map(|(_, last)| last.clone()).unwrap_or_default();
        deliveries.sort_by_key(|delivery| delivery.place);
        let repeated: BTreeSet<(u32, Place)> = repeated.iter().map(|r| (r.worker, r.place)).collect();
        let mut passed = BTreeSet::new();
        let (mut dropped, mut dead) = (0, 0);
        for delivery in &deliveries {
            let passes = !repeated.contains(&(delivery.worker, delivery.place));
            if passes {
                dead += u64::from(delivery.refused.is_some());
                prop_assert!(passed.insert(message_of(delivery)), "two of {delivery:?} pass in epoch {epoch}");
            } else {
                dropped += 1;
            }
        }
        let delivered: BTreeSet<Message> = deliveries.iter().map(message_of).collect();
        for message in delivered {
            let first = deliveries.iter().find(|delivery| message_of(delivery) == message).expect("it was delivered");
            let first_passes = !repeated.contains(&(first.worker, first.place));
            let any = passed.contains(&message);
            prop_assert_eq!(first_passes, any, "another than the first of {:?} passes", message);
            match last.get(&message) {
                None => prop_assert!(any, "{message:?} never came before"),
                Some(known) if self.must_know(message.0, *known) => prop_assert!(!any, "{message:?} was in {known}"),
                Some(_) => {} // it may be remembered longer
            }
            last.insert(message, epoch);
        }
        prop_assert_eq!(refused[Reason::Redelivered as usize], dropped);
        prop_assert_eq!(refused[Reason::KeyNull as usize], dead);
        self.last.insert(epoch, last);
        self.check_items(&self.items(self.epoch))
    }

    /// Whether what came last in this epoch must be remembered now.
    fn must_know(&self, input: u32, epoch: Epoch) -> bool {
        let acked = self.acked[input as usize].iter().find(|(below, _)| epoch < *below);
        acked.is_none_or(|(_, at)| self.now - at < REMEMBER[input as usize])
    }

    fn ack(&mut self, worker: usize, input: u32, but: u64) {
        let (worker, input) = (worker % self.workers.len(), input as usize);
        let known = &mut self.workers[worker].acked[input];
        *known = (*known).max(self.epoch.saturating_sub(but));
        let all = self.workers.iter().map(|worker| worker.acked[input]).min().unwrap_or_default();
        if self.acked[input].last().is_none_or(|(below, _)| *below < all) {
            self.acked[input].push((all, self.now));
        }
    }

    /// What a checkpoint of everything below this epoch has.
    fn items(&self, upper: Epoch) -> BTreeMap<ItemId, (isize, Option<Batch>)> {
        let mut items: BTreeMap<ItemId, (isize, Option<Batch>)> = BTreeMap::new();
        for (batch, diff) in self.changes.range(..upper).flat_map(|(_, changes)| changes) {
            let (count, known) = items.entry(BatchCodec.id(batch)).or_default();
            *count += diff;
            if *diff > 0 {
                *known = Some(batch.clone());
            }
        }
        items
    }

    /// Every item is there once or no more, and those that are there hold all that must be remembered. Tables may remember longer.
    fn check_items(&self, items: &BTreeMap<ItemId, (isize, Option<Batch>)>) -> Result<(), TestCaseError> {
        prop_assert!(items.values().all(|(count, batch)| [0, 1].contains(count) && batch.is_some()));
        let live = items.values().filter(|(count, _)| *count == 1).filter_map(|(_, batch)| batch.as_ref());
        let kept: BTreeSet<(u32, Id, Epoch)> =
            live.flat_map(|b| b.ids.iter().map(|id| (b.name.input, *id, b.name.epoch))).collect();
        for ((input, id), epoch) in self.last.last_key_value().into_iter().flat_map(|(_, last)| last) {
            let is_kept = kept.contains(&(*input, Id::from(MessageId(*id)), *epoch));
            prop_assert!(is_kept || !self.must_know(*input, *epoch), "{id} of epoch {epoch} is not in the checkpoint");
        }
        Ok(())
    }

    fn restart(&mut self, workers: usize, lost: u64) {
        // What was acknowledged was in a checkpoint before.
        let acked = self.workers.iter().flat_map(|worker| worker.acked).max().unwrap_or_default();
        let upper = self.epoch.saturating_sub(lost).max(acked);
        let items = self.items(upper);
        self.changes.split_off(&upper);
        self.last.split_off(&upper);
        self.open.clear();
        self.epoch += 5;
        self.acked.iter_mut().for_each(|acked| acked.push((self.epoch, self.now)));
        self.start(workers, upper);
        for (id, (count, batch)) in items.into_iter().rev() {
            let Some(batch) = batch.filter(|_| count > 0) else { continue };
            let mut bytes = BytesMut::new();
            BatchCodec.encode(&batch, &mut bytes);
            let batch = BatchCodec.decode(bytes.freeze()).unwrap();
            let index = (0..workers).find(|index| Share { index: *index, peers: workers }.has(id)).unwrap();
            Part::cut(batch, index, workers).for_each(|part| self.workers[part.to].table.restore(part));
        }
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Deliver { worker, message, refused } => self.deliver(worker, message, refused),
            Step::Pass(millis) => self.now += millis,
            Step::Say(worker) => {
                let index = worker % self.workers.len();
                let worker = &mut self.workers[index];
                worker.said = Some((self.now - worker.started, worker.acked));
            }
            Step::Silent(worker) => {
                let index = worker % self.workers.len();
                self.workers[index].silent = true;
            }
            Step::Close => self.close()?,
            Step::Ack { worker, input, but } => self.ack(worker, input, but),
            Step::Restart { workers, lost } => self.restart(workers, lost),
        }
        Ok(())
    }
}

fn message_of(delivery: &Delivery) -> Message {
    let id = (0..6u128).map(|id| id << 60).find(|id| Id::from(MessageId(*id)) == delivery.id);
    (delivery.place.input, id.expect("one of the ids"))
}

proptest! {
    #[test]
    fn nothing_passes_twice_and_everything_once(steps in prop::collection::vec(step(), 0..120)) {
        let mut world = World::new();
        for step in steps {
            world.take(step)?;
        }
        // Nothing is remembered for ever, in memory or in checkpoints.
        world.workers.iter_mut().for_each(|worker| (worker.said, worker.silent) = (None, false));
        world.close()?;
        for worker in 0..world.workers.len() {
            (0..2).for_each(|input| world.ack(worker, input, 0));
        }
        world.close()?;
        world.now += 10 * REMEMBER[0]; // uptime may have stood in what the last run has left
        world.close()?;
        prop_assert!(world.workers.iter().all(|worker| worker.table.is_empty()));
        prop_assert_eq!(world.workers.iter().map(|worker| worker.table.len()).sum::<usize>(), 0);
        prop_assert!(world.items(world.epoch).values().all(|(count, _)| *count == 0));
    }
}

/// One worker that is delivered these ids of input 0 in an epoch.
fn one(table: &mut Table, epoch: Epoch, uptime: u64, acked: Epoch, ids: std::ops::Range<u128>) -> Outcome {
    let place = |id: u128| Place::new(0, SplitId::numbered("t", 0), Offset((u128::from(epoch) << 32 | id) as u64));
    let mut deliveries: Vec<_> = ids.map(|id| Delivery::new(MessageId(id), place(id), 0, None)).collect();
    table.hear(0, uptime, &[(0, acked)]);
    table.epoch(epoch, &mut deliveries)
}

#[test]
fn time_counts_from_the_acknowledgement_and_a_redelivery_begins_anew() {
    let mut table = Table::new(0, 1, remember());
    assert_eq!(one(&mut table, 1, 0, 0, 0..2).repeated.len(), 0);
    assert_eq!(one(&mut table, 2, 5_000, 0, 0..0).changes.len(), 0); // the broker takes no commit
    assert_eq!(one(&mut table, 3, 5_000, 2, 0..1).repeated.len(), 1); // acknowledged at 5,000, and 0 comes again
    assert_eq!((table.len(), one(&mut table, 4, 5_099, 4, 9..9).changes.len()), (2, 0));
    assert_eq!((one(&mut table, 5, 5_107, 4, 9..9).changes.len(), table.len()), (1, 1)); // the one that came once
    assert_eq!((one(&mut table, 6, 5_198, 4, 9..9).changes.len(), table.len()), (0, 1));
    assert_eq!(one(&mut table, 7, 5_198, 4, 0..2).repeated.len(), 1);
}

#[test]
fn time_goes_on_over_a_restart_from_the_last_delivery() {
    let mut table = Table::new(0, 1, remember());
    let made: Vec<_> = [(1, 0, 0, 0..1), (2, 0, 2, 1..2), (3, 60, 3, 2..3)]
        .into_iter()
        .flat_map(|(epoch, uptime, acked, ids)| one(&mut table, epoch, uptime, acked, ids).changes)
        .collect();
    let mut table = Table::new(0, 1, remember());
    for (batch, _) in made.into_iter().rev() {
        Part::cut(batch, 0, 1).for_each(|part| table.restore(part));
    }
    // One was acknowledged at 0 and one at 60, when the last was delivered; that one is, now, as if this run began with it.
    let left = |(epoch, uptime)| {
        one(&mut table, epoch, uptime, 10, 9..9);
        table.len()
    };
    assert_eq!([(10, 0), (11, 39), (12, 50), (13, 99), (14, 110)].map(left), [3, 3, 2, 2, 0]);
}

#[test]
fn much_is_forgotten_in_steps_and_memory_is_given_back() {
    let mut table = Table::new(0, 1, remember());
    for epoch in 1..=100 {
        let from = u128::from(epoch) * 1_000;
        one(&mut table, epoch, 0, 0, from..from + 1_000);
    }
    one(&mut table, 101, 0, 101, 0..0);
    assert_eq!(table.len(), 100_000);
    let mut left = vec![];
    for epoch in 102.. {
        one(&mut table, epoch, 1_000, 101, 0..0);
        left.push(table.len());
        if table.is_empty() {
            break;
        }
    }
    assert_eq!(left, [83_000, 66_000, 49_000, 32_000, 15_000, 0]);
    assert!(table.capacity() < 10_000, "{}", table.capacity());
}

#[test]
fn an_input_that_is_there_no_more_is_forgotten_too() {
    let mut table = Table::new(0, 1, Remember::default());
    let name = Name { input: 0, epoch: 5, maker: 0 };
    let batch = Batch { name, moment: Moment::default(), ids: vec![MessageId(1).into()] };
    Part::cut(batch, 0, 1).for_each(|part| table.restore(part));
    let default = DEFAULT_REMEMBER_IDS.as_millis() as u64;
    for (uptime, left) in [(0, 1), (default - 1, 1), (default + default / 8, 0)] {
        table.hear(0, uptime, &[]);
        table.epoch(6 + uptime, &mut []);
        assert_eq!(table.len(), left, "at {uptime}");
    }
}
