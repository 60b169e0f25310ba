//! Runs a script through the operator, on some workers, beside other readers of its trace.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use differential_dataflow::input::{Input as _, InputSession};
use differential_dataflow::operators::arrange::TraceAgent;
use differential_dataflow::trace::cursor::cursor_list;
use differential_dataflow::trace::{Cursor, TraceReader};
use syncline::dataflow::Gauges;
use syncline::dataflow::Tick;
use syncline::epoch::Epoch;
use syncline::sync::{Counts, KeyHash, Output, Record, State, StateSpine, synchronize};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::{Input, Inspect, Probe};
use timely::progress::Antichain;
use timely::worker::Worker;

use super::naive::{Model, View};
use super::random::mix;
use super::script::Script;

/// How a script is run.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Epochs that are given before the last ones are waited for.
    pub flight: usize,
    /// The first epoch that a reader wants to keep apart, by its place in the script; `None` if there is no reader.
    pub hold: Option<usize>,
    /// Every second hash is joined with the trace, by an ordinary arrangement.
    pub join: bool,
    pub seed: u64,
}

/// What one worker saw.
#[derive(Default)]
pub struct Ran {
    pub outputs: Vec<(Epoch, Output<Bytes>)>,
    pub counts: Vec<(Epoch, Counts)>,
    pub updates: Vec<(Epoch, View, i32)>,
    pub joined: Vec<(Epoch, View, i32)>,
    /// States at the end of each step that the reader keeps apart, by its place.
    pub held: Vec<(usize, View)>,
    /// Keys, records that wait, and bytes, at the end.
    pub gauges: (usize, u64, usize),
}

fn view(key: &KeyHash, state: &State) -> View {
    (*key, state.phase(), state.is_late(), state.sides(), state.deadline())
}

/// Whether a hash takes part in the join.
pub fn in_join(hash: KeyHash) -> bool {
    mix(hash.0 as u64 ^ (hash.0 >> 64) as u64).is_multiple_of(2)
}

/// A script while it runs on one worker. Many run side by side, so that workers wait for each other less often.
struct Running<'a> {
    script: &'a Script,
    manner: Manner,
    model: Model,
    ran: Rc<RefCell<Ran>>,
    probe: ProbeHandle<Epoch>,
    waiting: ProbeHandle<Epoch>,
    inputs: Option<(InputHandle<Record<Bytes>>, InputHandle<Tick>, InputSession<Epoch, KeyHash, i32>)>,
    trace: Option<TraceAgent<StateSpine>>,
    gauges: Rc<Gauges>,
    /// What the probes must reach now.
    goal: (Epoch, Epoch),
}

type InputHandle<T> = timely::dataflow::InputHandle<Epoch, CapacityContainerBuilder<Vec<T>>>;

impl<'a> Running<'a> {
    fn new(worker: &mut Worker, script: &'a Script, manner: Manner) -> Self {
        let (probe, waiting) = (ProbeHandle::new(), ProbeHandle::new());
        let ran = Rc::new(RefCell::new(Ran::default()));
        let sees = || Rc::clone(&ran);
        let (records, clock, mut keys, trace, gauges) = worker.dataflow::<Epoch, _, _>(|scope| {
            let (records_in, records) = scope.new_input::<Vec<Record<Bytes>>>();
            let (clock_in, clock) = scope.new_input();
            let (keys_in, keys) = scope.new_collection::<KeyHash, i32>();
            let sync = synchronize(records, clock, &script.options);
            let ran = sees();
            sync.outputs
                .inspect_core(move |event| {
                    let Ok((stamp, outputs)) = event else { return };
                    let time = *stamp.iter().next().expect("outputs have a time");
                    ran.borrow_mut().outputs.extend(outputs.iter().map(|output| (time, output.clone())));
                })
                .probe_with(&probe);
            let ran = sees();
            sync.counts
                .inspect_core(move |event| {
                    let Ok((stamp, counts)) = event else { return };
                    let time = *stamp.iter().next().expect("counts have a time");
                    ran.borrow_mut().counts.extend(counts.iter().map(|counts| (time, *counts)));
                })
                .probe_with(&probe);
            sync.waiting.probe_with(&waiting);
            let ran = sees();
            let states = sync.states;
            states
                .clone()
                .as_collection(view)
                .inspect(move |(view, time, diff)| ran.borrow_mut().updates.push((*time, *view, *diff)))
                .probe_with(&probe);
            let trace = manner.hold.map(|_| states.trace.clone());
            if manner.join {
                let ran = sees();
                states
                    .join_core(keys.arrange_by_self(), |key, state, ()| Some(view(key, state)))
                    .inspect(move |(view, time, diff)| ran.borrow_mut().joined.push((*time, *view, *diff)))
                    .probe_with(&probe);
            }
            (records_in, clock_in, keys_in, trace, sync.gauges)
        });
        if worker.index() == 0 && manner.join {
            let records = script.steps.iter().flat_map(|step| &step.records);
            let hashes: BTreeSet<KeyHash> = records.map(|record| record.key.hash()).collect();
            for hash in hashes.into_iter().filter(|hash| in_join(*hash)) {
                keys.update(hash, 1);
            }
        }
        let inputs = Some((records, clock, keys));
        let model = Model::new(&script.options);
        Running { script, manner, model, ran, probe, waiting, inputs, trace, gauges, goal: (0, 0) }
    }

    /// The first step that the reader keeps apart.
    fn hold(&self) -> usize {
        self.manner.hold.map_or(usize::MAX, |hold| hold.min(self.script.steps.len() - 1))
    }

    /// Gives this worker's part of a step, and moves the inputs to the next one.
    fn feed(&mut self, place: usize, index: usize, peers: usize) {
        let steps = &self.script.steps;
        let (Some(step), Some((records, clock, keys))) = (steps.get(place), &mut self.inputs) else { return };
        let next = steps.get(place + 1).map_or(step.epoch + 1, |step| step.epoch);
        self.model.step(step);
        records.advance_to(step.epoch);
        clock.advance_to(step.epoch);
        for (n, record) in step.records.iter().enumerate() {
            if mix(self.manner.seed ^ step.epoch ^ n as u64) as usize % peers == index {
                records.send(record.clone());
            }
        }
        if let Some(tick) = step.tick {
            clock.send(tick);
        }
        records.advance_to(next);
        clock.advance_to(next);
        keys.advance_to(next);
        keys.flush();
        if (place + 1).is_multiple_of(self.manner.flight) || place + 1 == steps.len() {
            self.goal = (next, self.model.oldest().unwrap_or(next));
        }
        let keep = steps[place.min(self.hold())].epoch;
        if let Some(trace) = &mut self.trace {
            trace.set_logical_compaction(Antichain::from_elem(keep).borrow());
            trace.set_physical_compaction(Antichain::from_elem(self.goal.0).borrow());
        }
    }

    fn is_behind(&self) -> bool {
        self.inputs.is_some() && (self.probe.less_than(&self.goal.0) || self.waiting.less_than(&self.goal.1))
    }

    /// Checks what can be checked when the goal is reached.
    fn check(&self) {
        if self.inputs.is_some() {
            let oldest = self.waiting.with_frontier(|frontier| frontier.first().copied());
            // In front of the goal there may be epochs in flight already.
            assert!(oldest >= Some(self.goal.1), "the oldest record that waits: {oldest:?} of {:?}", self.goal);
        }
    }

    /// Reads the trace and ends the input.
    fn finish(&mut self) {
        let steps = &self.script.steps;
        if let (Some(_), Some((place, last))) = (&self.inputs, steps.iter().enumerate().next_back()) {
            let oldest = self.waiting.with_frontier(|frontier| frontier.first().copied());
            let expected = self.model.oldest().unwrap_or(last.epoch + 1);
            assert_eq!(oldest, Some(expected), "the oldest record that waits after step {place}");
        }
        self.inputs = None;
        let hold = self.hold();
        let Some(mut trace) = self.trace.take() else { return };
        let batches = trace.batches_through(Antichain::new().borrow()).expect("the whole trace");
        let (mut cursor, storage) = cursor_list(batches);
        let mut held = Vec::new();
        while let Some(key) = cursor.get_key(&storage) {
            while let Some(state) = cursor.get_val(&storage) {
                let mut history = Vec::new();
                cursor.map_times(&storage, |time, diff| history.push((*time, *diff)));
                for (place, step) in steps.iter().enumerate().skip(hold) {
                    let count: i32 = history.iter().filter(|(time, _)| *time <= step.epoch).map(|(_, diff)| diff).sum();
                    assert!(count == 0 || count == 1, "{state:?} at {}: {history:?}", step.epoch);
                    if count == 1 {
                        held.push((place, view(key, state)));
                    }
                }
                cursor.step_val(&storage);
            }
            cursor.step_key(&storage);
        }
        self.ran.borrow_mut().held = held;
    }

    fn into_ran(self) -> Ran {
        let mut ran = self.ran.take();
        ran.gauges = (self.gauges.keys.get(), self.gauges.pending.get(), self.gauges.bytes.get());
        ran
    }
}

/// Runs scripts side by side; for each, what this worker saw.
fn run(worker: &mut Worker, scripts: &[(Script, Manner)]) -> Vec<Ran> {
    let (index, peers) = (worker.index(), worker.peers());
    let mut all: Vec<_> = scripts.iter().map(|(script, manner)| Running::new(worker, script, *manner)).collect();
    let length = scripts.iter().map(|(script, _)| script.steps.len()).max().unwrap_or(0);
    for place in 0..length {
        for running in &mut all {
            running.feed(place, index, peers);
        }
        worker.step_while(|| all.iter().any(Running::is_behind));
        for running in &mut all {
            running.check();
            if place + 1 == running.script.steps.len() {
                running.finish();
            }
        }
    }
    worker.step_while(|| all.iter().any(|running| !running.probe.done()));
    // Records that still wait would keep their dataflows alive.
    worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
    all.into_iter().map(Running::into_ran).collect()
}

/// Runs scripts on some workers; for each, what every worker saw.
pub fn run_all(scripts: Arc<Vec<(Script, Manner)>>, workers: usize) -> Vec<Vec<Ran>> {
    let config = match workers {
        1 => timely::Config::thread(),
        more => timely::Config::process(more),
    };
    let guards = timely::execute(config, move |worker| run(worker, &scripts)).expect("workers start");
    let mut by_script: Vec<Vec<Ran>> = Vec::new();
    for ran in guards.join() {
        let ran = ran.expect("a worker panicked");
        by_script.resize_with(ran.len(), Vec::new);
        for (all, one) in by_script.iter_mut().zip(ran) {
            all.push(one);
        }
    }
    by_script
}

/// Sums of updates up to an epoch.
pub struct Accumulated {
    /// By epoch, the last one first.
    updates: Vec<(Epoch, View, i32)>,
    counts: BTreeMap<View, i32>,
}

impl Accumulated {
    pub fn new<'a>(updates: impl Iterator<Item = &'a (Epoch, View, i32)>) -> Self {
        let mut updates: Vec<_> = updates.copied().collect();
        updates.sort_by_key(|update| std::cmp::Reverse(update.0));
        Accumulated { updates, counts: BTreeMap::new() }
    }

    /// Everything that is there at an epoch, later than the last one asked for.
    pub fn advance(&mut self, at: Epoch) -> Vec<View> {
        while let Some((_, view, diff)) = self.updates.pop_if(|update| update.0 <= at) {
            *self.counts.entry(view).or_default() += diff;
        }
        self.counts.retain(|_, count| *count != 0);
        let mut views = Vec::new();
        for (view, count) in &self.counts {
            assert!(*count > 0, "{view:?} is there {count} times");
            views.extend(std::iter::repeat_n(*view, *count as usize));
        }
        views
    }
}
