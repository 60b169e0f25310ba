//! Brokers that deliver again: nothing is put out twice, within a run and over restarts.
//!
//! Would catch: an id that is not in the checkpoint of its message, or that another number of workers does not find; a second
//! delivery that passes on another worker, that nobody acknowledges or counts; two dead letters of one message; ids that are kept for
//! ever.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use syncline::broker::memory::MemoryBroker;
use syncline::checkpoint::{FolderStore, LocalDisk, NewStore};
use syncline::codec::Raw;
use syncline::dataflow::Input;
use syncline::epoch::ManualClock;
use syncline::message::Reason;
use syncline::{ErrorKind, Job};

use super::cluster::configs;
use super::pair::Pair;
use super::support::{GROUP, Gate, Log, Running, START, Trouble, copy_inputs, eager, sink, source, turn_until, until};
use crate::model::random::Random;

fn store(folder: &Path) -> NewStore {
    let folder = folder.to_owned();
    Arc::new(move |slot| Box::new(FolderStore::new(folder.clone(), Arc::new(LocalDisk), slot)))
}

/// A queue `jobs` that is copied to `out-0` of the same broker.
struct Copy {
    broker: MemoryBroker,
    folder: tempfile::TempDir,
    /// Of the source.
    trouble: Trouble,
    sink_trouble: Trouble,
    gate: Gate,
    clock: ManualClock,
}

impl Copy {
    fn new(messages: u64) -> Self {
        let copy = Copy {
            broker: MemoryBroker::new(),
            folder: tempfile::tempdir().unwrap(),
            trouble: Trouble::default(),
            sink_trouble: Trouble::default(),
            gate: Gate::new(true),
            clock: ManualClock::new(START),
        };
        copy.broker.create_queue("jobs", 2);
        copy.give(0..messages);
        copy
    }

    fn give(&self, numbers: std::ops::Range<u64>) {
        self.broker.extend("jobs", 0, numbers.map(|number| number.to_string())).unwrap();
    }

    fn job(&self) -> Job {
        Job::new(GROUP).retry(eager())
    }

    fn run(&self, job: Job, workers: usize) -> Running {
        self.run_as(job, timely::Config::process(workers))
    }

    fn run_as(&self, job: Job, config: timely::Config) -> Running {
        let jobs = source(&self.broker, "jobs", &Log::default(), &self.trouble);
        let sink = sink(&self.broker, &Log::default(), &self.gate, &self.sink_trouble);
        let input = Input::new("jobs", jobs, Arc::new(|| Box::new(Raw))).remember_ids(Duration::from_secs(2));
        Running::start_as(job, config, copy_inputs(vec![input], &sink))
    }

    /// Two processes, as threads of this one.
    fn run_two(&self, job: impl Fn() -> Job) -> [Running; 2] {
        configs().map(|config| self.run_as(job(), config))
    }

    /// With a store.
    fn start(&self, workers: usize) -> Running {
        self.run(self.job().store(store(self.folder.path())), workers)
    }

    fn wait_drained(&self) {
        until("all is acknowledged", || self.broker.waiting("jobs") == (0, 0));
    }

    /// How often each number was put out.
    fn counts(&self) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        for value in self.broker.values("out-0") {
            *counts.entry(value.parse().unwrap()).or_default() += 1;
        }
        counts
    }

    fn check_once(&self, messages: u64) {
        assert_eq!(self.counts(), (0..messages).map(|number| (number, 1)).collect());
    }
}

fn redelivered(running: &Running) -> u64 {
    running.status.snapshot().refused[Reason::Redelivered as usize]
}

#[test]
fn what_was_put_out_but_not_acknowledged_is_dropped_by_the_next_run_with_any_number_of_workers() {
    for (one, two) in [(1, 3), (3, 2), (2, 2)] {
        let copy = Copy::new(100);
        copy.trouble.fail_commits(true);
        let running = copy.start(one);
        until("all is put out", || copy.counts().len() == 100);
        assert_eq!(copy.broker.waiting("jobs"), (0, 100));
        running.stop().unwrap();
        until("all is taken back", || copy.broker.waiting("jobs") == (100, 0));
        copy.trouble.fail_commits(false);
        copy.give(100..110);
        let running = copy.start(two);
        copy.wait_drained();
        until("it is counted", || redelivered(&running) == 100);
        assert_eq!(running.status.snapshot().remembered_ids, 110);
        running.stop().unwrap();
        copy.check_once(110);
    }
}

#[test]
fn acknowledgements_that_the_broker_forgot_are_given_again() {
    let copy = Copy::new(100);
    let running = copy.start(2);
    copy.wait_drained();
    running.stop().unwrap();
    copy.broker.forget_acks("jobs", 60);
    // A reader that is about to end may still be given some: they come back when it is gone.
    until("they are ready again", || copy.broker.waiting("jobs") == (60, 0));
    for workers in [3, 1] {
        let running = copy.start(workers);
        copy.wait_drained();
        until("it is counted", || redelivered(&running) == 60);
        // Once more while it runs.
        copy.broker.forget_acks("jobs", 40);
        until("it is counted", || redelivered(&running) == 100);
        copy.wait_drained();
        running.stop().unwrap();
        copy.broker.forget_acks("jobs", 60);
    }
    copy.check_once(100);
}

#[test]
fn a_crash_between_the_checkpoint_and_the_output_repeats_nothing() {
    let copy = Copy::new(100);
    copy.sink_trouble.be_fatal();
    let error = copy.start(2).join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Write);
    until("all is taken back", || copy.broker.waiting("jobs") == (100, 0));
    let copy = Copy { sink_trouble: Trouble::default(), ..copy };
    let running = copy.start(3);
    copy.wait_drained();
    assert!(redelivered(&running) > 0, "what was in the checkpoint came again");
    running.stop().unwrap();
    copy.check_once(100);
}

#[test]
fn another_worker_drops_it_too_also_without_a_store() {
    let copy = Copy { gate: Gate::new(false), ..Copy::new(100) };
    copy.trouble.hide(1);
    let running = copy.run(copy.job(), 2);
    running.wait_read(100); // all on link 0, by worker 0
    copy.trouble.hide(0);
    copy.trouble.show(1);
    until("link 0 is left", || copy.trouble.removed() == 1);
    copy.broker.crash_clients();
    running.wait_read(200); // on link 1, by worker 1
    copy.gate.open();
    copy.wait_drained();
    until("it is counted", || redelivered(&running) == 100);
    running.stop().unwrap();
    copy.check_once(100);
}

fn stop_two([one, two]: [Running; 2]) {
    one.stop().unwrap();
    two.join().unwrap(); // it was told
}

#[test]
fn another_process_drops_it_too() {
    let copy = Copy { gate: Gate::new(false), ..Copy::new(100) };
    copy.trouble.hide(1);
    let running = copy.run_two(|| copy.job());
    running[0].wait_read(100); // all on link 0
    copy.trouble.hide(0);
    copy.trouble.show(1);
    until("link 0 is left", || copy.trouble.removed() == 1);
    copy.broker.crash_clients();
    running[1].wait_read(100); // on link 1
    copy.gate.open();
    copy.wait_drained();
    until("they are counted", || running.iter().map(redelivered).sum::<u64>() == 100);
    stop_two(running);
    copy.check_once(100);
}

#[test]
fn another_number_of_processes_drops_what_was_put_out() {
    let copy = Copy::new(100);
    let stored = || copy.job().store(store(copy.folder.path()));
    copy.trouble.fail_commits(true);
    let running = copy.run_two(stored);
    until("all is put out", || copy.counts().len() == 100);
    stop_two(running);
    until("all is taken back", || copy.broker.waiting("jobs") == (100, 0));
    copy.trouble.fail_commits(false);
    for processes in [2, 1, 2] {
        let running = match processes {
            1 => vec![copy.start(3)],
            _ => copy.run_two(stored).into(),
        };
        copy.wait_drained();
        until("they are counted", || running.iter().map(redelivered).sum::<u64>() == 100);
        running[0].control.stop();
        running.into_iter().for_each(|running| running.join().unwrap());
        copy.broker.forget_acks("jobs", 100);
        until("they are ready again", || copy.broker.waiting("jobs") == (100, 0));
    }
    copy.check_once(100);
}

#[test]
fn ids_are_forgotten_when_their_time_has_passed() {
    let copy = Copy::new(100);
    let running = copy.run(copy.job().clock(Arc::new(copy.clock.clone())).store(store(copy.folder.path())), 2);
    let read = || running.status.snapshot().records_read;
    let ids = || running.status.snapshot().remembered_ids;
    let drained = || copy.broker.waiting("jobs") == (0, 0);
    let mut given = 100;
    turn_until(&copy.clock, "all is acknowledged", || read() == given && drained());
    while ids() >= 20 {
        assert!(given < 200, "{} of {given} ids are remembered", ids());
        // An idle job forgets nothing: it looks when something comes.
        copy.clock.advance(Duration::from_millis(500));
        copy.give(given..given + 1);
        given += 1;
        turn_until(&copy.clock, "it is acknowledged", || read() == given && drained());
    }
    assert!((1..=10).contains(&ids()), "{} ids are left", ids());
    copy.broker.forget_acks("jobs", given as usize);
    turn_until(&copy.clock, "all came again", || read() == 2 * given && drained() && redelivered(&running) > 0);
    running.stop().unwrap();
    let counts = copy.counts();
    assert!((0..100).all(|number| counts[&number] == 2), "these were forgotten: {counts:?}");
    assert_eq!(counts[&(given - 1)], 1);
}

/// Two queues and what was put into them.
struct Queues {
    pair: Pair,
    folder: tempfile::TempDir,
    keys: u64,
    bad: u64,
}

impl Queues {
    fn start(&self, workers: usize) -> Running {
        Running::start(self.pair.job().store(store(self.folder.path())), workers, self.pair.build())
    }

    fn give(&mut self, keys: u64) {
        for key in self.keys..self.keys + keys {
            ["one", "two"].into_iter().for_each(|topic| self.pair.give(topic, key));
        }
        self.keys += keys;
        self.give_bad();
    }

    fn give_bad(&mut self) {
        self.pair.broker.append("one", 0, format!("bad {}", self.bad)).unwrap();
        self.bad += 1;
    }

    fn trouble(&self, running: &Running, random: &mut Random) {
        let broker = &self.pair.broker;
        match random.below(4) {
            0 => broker.crash_clients(),
            1 => broker.forget_acks("one", 1 + random.below(50) as usize),
            2 => broker.forget_acks("two", 1 + random.below(50) as usize),
            _ => self.pair.wait_read(running, 1 + random.below(3)),
        }
    }

    fn sorted(&self, topic: &str) -> Vec<String> {
        let mut values = self.pair.values(topic);
        values.sort();
        values
    }
}

#[test]
fn two_queues_are_joined_exactly_once_with_redeliveries_at_random_moments() {
    const ROUNDS: u64 = 12;
    let mut random = Random::new(5);
    let pair = Pair::new([1, 1], Duration::from_secs(600));
    ["one", "two"].into_iter().for_each(|topic| pair.broker.create_queue(topic, 2));
    let mut queues = Queues { pair, folder: tempfile::tempdir().unwrap(), keys: 0, bad: 0 };
    let mut redelivered = 0;
    for round in 0..ROUNDS {
        let running = queues.start(1 + random.below(3) as usize);
        for _ in 0..10 {
            queues.give(1 + random.below(10));
            queues.trouble(&running, &mut random);
        }
        if round + 1 < ROUNDS && random.one_in(2) {
            queues.pair.sink_trouble.be_fatal();
            queues.give_bad(); // so that there is something to be put out
            queues.pair.until("it fails", || running.control.has_failed());
            assert_eq!(running.join().unwrap_err().kind(), ErrorKind::Write);
            queues.pair.sink_trouble = Trouble::default();
            continue;
        }
        let drained = || ["one", "two"].map(|topic| queues.pair.broker.waiting(topic)) == [(0, 0); 2];
        queues.pair.until("all is acknowledged", drained);
        running.stop().unwrap();
        let totals = queues.pair.tally.totals();
        assert_eq!((totals.difference(), totals.dropped()[Reason::Duplicate as usize]), (0, 0));
        redelivered += totals.dropped()[Reason::Redelivered as usize];
    }
    assert!(redelivered > 100, "{redelivered} came again");
    let document = |key| format!("{{\"key\":\"{key}\",\"one\":{{\"k\":{key}}},\"two\":{{\"k\":{key}}}}}");
    let mut expected: Vec<String> = (0..queues.keys).map(document).collect();
    expected.sort();
    assert_eq!(queues.sorted("joined"), expected);
    let letters = queues.pair.values("dead");
    let about = |number: u64| {
        let value = format!("\"value\":\"bad {number}\"");
        letters.iter().filter(|letter| letter.contains(&value)).count()
    };
    assert_eq!((0..queues.bad).map(about).collect::<Vec<_>>(), vec![1; queues.bad as usize]);
    assert_eq!(letters.len() as u64, queues.bad);
    assert_eq!(queues.sorted("delay"), Vec::<String>::new());
}
