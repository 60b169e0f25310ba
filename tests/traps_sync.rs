//! The traps of the job that this one replaces, as far as the synchronization itself can fall into them. The number of each
//! test is that of the trap.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use syncline::dataflow::Tick;
use syncline::message::{Offset, Reason, SplitId};
use syncline::sync::{Counts, Detail, Details, Key, KeyHash, Late, Options, Output, Record, State, synchronize};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::{Input, Inspect, Probe};
use timely::dataflow::{InputHandle, ProbeHandle};
use timely::worker::Worker;

const WINDOW: u64 = 100;
const ONE: u8 = 0;
const TWO: u8 = 1;

fn options() -> Options {
    Options::new(2, Duration::from_millis(WINDOW))
}

fn text(key: &str) -> Key {
    Key::builder().text(key).build()
}

fn record(key: &Key, side: u8, base: u64, payload: &'static str) -> Record<Bytes> {
    let split = SplitId::numbered(if side == ONE { "one" } else { "two" }, 0);
    let payload = Bytes::from_static(payload.as_bytes());
    Record { key: key.clone(), side, split, offset: Offset(base), timestamp: base, base, payload }
}

type Handle<T> = InputHandle<u64, CapacityContainerBuilder<Vec<T>>>;

/// The operator on one worker, an epoch at a time.
struct Job<'a> {
    worker: &'a mut Worker,
    inputs: (Handle<Record<Bytes>>, Handle<Tick>),
    probe: ProbeHandle<u64>,
    outputs: Rc<RefCell<Vec<Output<Bytes>>>>,
    total: Rc<RefCell<Counts>>,
    states: Rc<RefCell<Vec<((KeyHash, State), i32)>>>,
    details: Details<Bytes>,
    epoch: u64,
}

impl<'a> Job<'a> {
    fn new(worker: &'a mut Worker, options: &Options) -> Self {
        let probe = ProbeHandle::new();
        let outputs: Rc<RefCell<Vec<Output<Bytes>>>> = Rc::default();
        let (total, states) = (Rc::<RefCell<Counts>>::default(), Rc::<RefCell<Vec<_>>>::default());
        let (seen, counted, changed) = (Rc::clone(&outputs), Rc::clone(&total), Rc::clone(&states));
        let (inputs, details) = worker.dataflow(|scope| {
            let (records_in, records) = scope.new_input();
            let (clock_in, clock) = scope.new_input();
            let sync = synchronize(records, clock, options);
            sync.outputs.inspect(move |output| seen.borrow_mut().push(output.clone())).probe_with(&probe);
            sync.counts.inspect(move |counts| counted.borrow_mut().follow(counts)).probe_with(&probe);
            sync.states
                .as_collection(|hash, state| (*hash, *state))
                .inspect(move |(state, _, diff)| changed.borrow_mut().push((*state, *diff)))
                .probe_with(&probe);
            ((records_in, clock_in), sync.details)
        });
        Job { worker, inputs, probe, outputs, total, states, details, epoch: 0 }
    }

    /// What is put out in an epoch, as text.
    fn epoch<const N: usize>(&mut self, time: u64, records: [Record<Bytes>; N]) -> Vec<String> {
        records.into_iter().for_each(|record| self.inputs.0.send(record));
        self.inputs.1.send(Tick { time, end: false });
        self.epoch += 1;
        self.inputs.0.advance_to(self.epoch);
        self.inputs.1.advance_to(self.epoch);
        self.worker.step_while(|| self.probe.less_than(&self.epoch));
        assert_eq!(self.total.borrow().difference(), 0);
        let say = |output: Output<Bytes>| match output {
            Output::Joined { key, late, records } => {
                let values: Vec<_> = records.iter().map(|entry| String::from_utf8_lossy(&entry.payload)).collect();
                format!("{key} {}{}", values.join("+"), if late { " late" } else { "" })
            }
            Output::Delayed { key, records } => {
                let values = records.iter().flatten().map(|entry| String::from_utf8_lossy(&entry.payload));
                format!("{key} only {}", values.collect::<Vec<_>>().join("+"))
            }
        };
        self.outputs.take().into_iter().map(say).collect()
    }

    fn dropped(&self, reason: Reason) -> u64 {
        self.total.borrow().dropped(reason)
    }

    /// The details of the key that changed last.
    fn last_detail(&self) -> Option<Detail> {
        let (hash, state) = self.last_state()?;
        self.details.get(hash, state)
    }

    fn last_state(&self) -> Option<(KeyHash, State)> {
        self.states.borrow().iter().rev().find(|(_, diff)| *diff > 0).map(|(state, _)| *state)
    }
}

/// Records that still wait would keep the dataflow alive.
impl Drop for Job<'_> {
    fn drop(&mut self) {
        self.worker.installed_dataflows().into_iter().for_each(|dataflow| self.worker.drop_dataflow(dataflow));
    }
}

#[test]
fn t02_a_separator_inside_a_value_joins_nothing() {
    timely::execute_directly(|worker| {
        let mut job = Job::new(worker, &options());
        let (one, two) = (Key::builder().text("a:b").text("c").build(), Key::builder().text("a").text("b:c").build());
        assert_eq!(one.to_string(), two.to_string());
        assert!(job.epoch(0, [record(&one, ONE, 0, "1"), record(&two, TWO, 0, "2")]).is_empty());
        assert_eq!(job.epoch(1, [record(&one, TWO, 1, "3")]), ["a:b:c 1+3"]);
    });
}

#[test]
fn t03_an_override_starts_the_deadline_anew() {
    timely::execute_directly(|worker| {
        let mut job = Job::new(worker, &options());
        let key = text("k");
        job.epoch(0, [record(&key, ONE, 0, "old")]);
        job.epoch(60, [record(&key, ONE, 60, "new")]);
        assert_eq!(job.dropped(Reason::Overridden), 1);
        assert!(job.epoch(101, []).is_empty(), "the deadline of the old record is of no effect");
        assert!(job.epoch(160, []).is_empty(), "a deadline has passed only when the clock is beyond it");
        assert_eq!(job.epoch(161, []), ["k only new"]);
        assert!(job.epoch(500, []).is_empty(), "there is one delay");
    });
}

#[test]
fn t05_the_mark_of_a_joined_key_is_forgotten() {
    timely::execute_directly(|worker| {
        let mut job = Job::new(worker, &options());
        let key = text("k");
        assert_eq!(job.epoch(0, [record(&key, ONE, 0, "1"), record(&key, TWO, 0, "2")]), ["k 1+2"]);
        assert!(job.epoch(900, [record(&key, ONE, 900, "3")]).is_empty());
        let detail = job.last_detail().expect("the mark is known");
        assert_eq!((detail.key, detail.dropped), (key, 1));
        let offsets: Vec<_> = detail.sides.iter().flatten().map(|side| side.offset).collect();
        assert_eq!(offsets, [Offset(0), Offset(0)]);
        job.epoch(1_000, []);
        assert_eq!(job.states.borrow().iter().map(|state| state.1).sum::<i32>(), 1);
        job.epoch(1_001, []);
        assert_eq!(job.states.borrow().iter().map(|state| state.1).sum::<i32>(), 0, "duplicates do not extend it");
        assert_eq!(job.last_detail(), None);
        // The slot of the mark is another key's now: who still holds the old state is not told of that one.
        let (hash, state) = job.last_state().expect("there was a mark");
        let heir = text("heir");
        job.epoch(1_002, [record(&heir, ONE, 1_002, "4"), record(&heir, TWO, 1_002, "5")]);
        let (heir_hash, heir_state) = job.last_state().expect("there is a mark");
        assert_eq!(job.details.get(heir_hash, heir_state).map(|detail| detail.key), Some(heir));
        assert_eq!(job.details.get(hash, state), None);
    });
}

#[test]
fn t08_a_key_can_be_joined_again_after_it_was_forgotten() {
    timely::execute_directly(|worker| {
        let mut job = Job::new(worker, &options());
        let key = text("k");
        assert_eq!(job.epoch(0, [record(&key, ONE, 0, "1"), record(&key, TWO, 0, "2")]), ["k 1+2"]);
        assert!(job.epoch(1_000, [record(&key, ONE, 1_000, "3"), record(&key, TWO, 1_000, "4")]).is_empty());
        assert_eq!(job.dropped(Reason::Duplicate), 2);
        job.epoch(1_001, []);
        assert!(job.epoch(1_002, [record(&key, TWO, 1_002, "5")]).is_empty());
        let waits = job.last_detail().and_then(|detail| detail.sides[1].clone()?.waits).expect("it waits");
        assert_eq!((waits.timestamp, waits.clock, waits.deadline, waits.epoch), (1_002, 1_002, 1_102, Some(3)));
        assert_eq!(job.epoch(1_003, [record(&key, ONE, 1_003, "6")]), ["k 6+5"]);
    });
}

#[test]
fn t09_a_completion_after_the_delay_is_marked_or_the_delay_is_final() {
    timely::execute_directly(|worker| {
        let key = text("k");
        let mut job = Job::new(worker, &options());
        job.epoch(0, [record(&key, ONE, 0, "1")]);
        assert_eq!(job.epoch(101, []), ["k only 1"]);
        assert_eq!(job.epoch(102, [record(&key, TWO, 102, "2")]), ["k 1+2 late"]);
        assert_eq!(job.total.borrow().late_joins, 1);
    });
    timely::execute_directly(|worker| {
        let key = text("k");
        let mut job = Job::new(worker, &Options { late: Late::Drop, ..options() });
        job.epoch(0, [record(&key, ONE, 0, "1")]);
        assert_eq!(job.epoch(101, []), ["k only 1"]);
        assert!(job.epoch(102, [record(&key, TWO, 102, "2"), record(&key, ONE, 102, "3")]).is_empty());
        assert_eq!(job.dropped(Reason::Late), 2);
        assert!(job.epoch(1_102, []).is_empty());
        assert_eq!(job.epoch(1_103, [record(&key, ONE, 1_103, "4"), record(&key, TWO, 1_103, "5")]), ["k 4+5"]);
    });
}

#[test]
fn in_one_epoch_the_match_wins_over_the_deadline() {
    timely::execute_directly(|worker| {
        let mut job = Job::new(worker, &options());
        let key = text("k");
        job.epoch(0, [record(&key, ONE, 0, "1")]);
        assert_eq!(job.epoch(5_000, [record(&key, TWO, 5_000, "2")]), ["k 1+2"]);
    });
}
