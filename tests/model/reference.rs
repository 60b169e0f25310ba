//! The same synchronization as differential collections: state, time and matching all go through `join_core` and stock
//! arrangements; what one key becomes is [`naive::step`](super::naive::step). Slow, and with a feedback edge, but every
//! operator of it is differential's own.
//!
//! ```text
//! records of the epoch --arrange by key--+--join_core--+-- arriving, known
//! states --arrange by key----------------+--antijoin---+-- arriving, new       --> step --> outputs
//!   ^  `--arrange by ()--join_core with the clock------+-- due, not arriving         |
//!   +----------------------------- changes of state, one epoch later ----------------+
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use differential_dataflow::AsCollection;
use differential_dataflow::input::Input as _;
use serde::{Deserialize, Serialize};
use syncline::dataflow::Tick;
use syncline::epoch::Epoch;
use syncline::message::{Offset, SplitId};
use syncline::sync::{AtEnd, Counts, Key, Output, Record};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::ProbeHandle;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::{ConnectLoop, Feedback, Probe};
use timely::worker::Worker;

use super::naive::{Life, Seen, step};
use super::script::Script;

/// A record in a form that collections can hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
struct Arrival {
    side: u8,
    split: SplitId,
    offset: Offset,
    timestamp: u64,
    base: u64,
    payload: Bytes,
}

/// Hashed by its bytes: collisions are the operator's business.
type KeyBytes = (u128, Bytes);
/// A key that something happens to: its state, what arrives, and the clock (time, end).
type Decision = (KeyBytes, Option<Life>, Vec<Arrival>, (u64, bool));
type Updates<D> = Vec<(D, Epoch, isize)>;

fn to_key(key: &KeyBytes) -> Key {
    Key::with_hash(syncline::sync::KeyHash(key.0), key.1.clone())
}

fn arrival(record: &Record<Bytes>) -> (KeyBytes, Arrival) {
    let Record { key, side, split, offset, timestamp, base, payload } = record.clone();
    ((key.hash().0, key.bytes().clone()), Arrival { side, split, offset, timestamp, base, payload })
}

fn to_record(key: &Key, arrival: &Arrival) -> Record<Bytes> {
    let Arrival { side, split, offset, timestamp, base, payload } = arrival.clone();
    Record { key: key.clone(), side, split, offset, timestamp, base, payload }
}

/// Runs a script; what was seen in each step, of all workers if there is one.
pub fn run(worker: &mut Worker, script: &Script) -> Vec<Seen> {
    let seen = Rc::new(RefCell::new(BTreeMap::<Epoch, (Vec<Output<Bytes>>, Counts, i64)>::new()));
    let seen_in = Rc::clone(&seen);
    let options = script.options.clone();
    let retires = options.at_end == AtEnd::Delay;
    let probe = ProbeHandle::new();
    let (mut records, mut clock) = worker.dataflow::<Epoch, _, _>(|scope| {
        let (records_in, records) = scope.new_collection::<(KeyBytes, Arrival), isize>();
        let (clock_in, clock) = scope.new_collection::<(u64, bool), isize>();
        let (loop_handle, changes) = scope.feedback::<Updates<(KeyBytes, Life)>>(1);
        let states = changes.as_collection();

        // The records of the epoch, one list for each key; gone in the next epoch.
        let arriving = records.reduce(|_, input, output| {
            let list: Vec<Arrival> = input.iter().map(|(arrival, _)| (*arrival).clone()).collect();
            output.push((list, 1));
        });
        let by_key = arriving.clone().arrange_by_key();
        let states_by_key = states.clone().arrange_by_key();
        let clock = clock.map(|tick| ((), tick)).arrange_by_key();

        let known =
            states_by_key.join_core(by_key, |key, life, list| Some((key.clone(), Some(life.clone()), list.clone())));
        let new = arriving.clone().antijoin(states.clone().map(|(key, _)| key)).map(|(key, list)| (key, None, list));
        let arriving_keys = arriving.map(|(key, _)| key);
        let due = states
            .map(|state| ((), state))
            .arrange_by_key()
            .join_core(clock.clone(), move |(), state, tick| {
                (state.1.deadline() < tick.0 || tick.1 && retires && state.1.slots().next().is_some())
                    .then(|| state.clone())
            })
            .antijoin(arriving_keys)
            .map(|(key, life)| (key, Some(life), Vec::new()));
        let decisions = known
            .concat(new)
            .concat(due)
            .map(|decision| ((), decision))
            .arrange_by_key()
            .join_core(clock, |(), (key, life, list), tick| Some((key.clone(), life.clone(), list.clone(), *tick)))
            .consolidate();

        // What is decided anew at an epoch is carried out; that it is decided no more one epoch later says nothing.
        let mut builder = OperatorBuilder::new("Step".to_owned(), scope);
        let mut input = builder.new_input(decisions.inner, Pipeline);
        let (output, changes) = builder.new_output::<Updates<(KeyBytes, Life)>>();
        let mut output = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(output);
        builder.build(move |_| {
            move |_| {
                let mut output = output.activate();
                input.for_each(|capability, data: &mut Updates<Decision>| {
                    let mut session = output.session(&capability);
                    for ((key_bytes, life, list, (time, end)), epoch, diff) in data.drain(..) {
                        if diff < 0 {
                            continue;
                        }
                        let key = to_key(&key_bytes);
                        let list: Vec<_> = list.iter().map(|arrival| to_record(&key, arrival)).collect();
                        let mut seen = seen_in.borrow_mut();
                        let (outputs, counts, pending) = seen.entry(epoch).or_default();
                        let waits = |life: &Option<Life>| life.iter().flat_map(Life::slots).count() as i64;
                        *pending -= waits(&life);
                        let tick = Tick { time, end };
                        let (next, said) = step(&key, life.clone(), &list, tick, epoch, &options, counts);
                        *pending += waits(&next);
                        outputs.extend(said);
                        let old = life.map(|life| ((key_bytes.clone(), life), epoch + 1, -1));
                        let new = next.map(|life| ((key_bytes.clone(), life), epoch + 1, 1));
                        old.into_iter().chain(new).for_each(|update| session.give(update));
                    }
                });
            }
        });
        changes.clone().probe_with(&probe);
        changes.connect_loop(loop_handle);
        (records_in, clock_in)
    });

    // Epochs lie two apart, so that the records of one are gone and its changes are in before the next.
    let mut now = None;
    for (place, step) in script.steps.iter().enumerate() {
        let epoch = 2 * place as Epoch + 1;
        records.advance_to(epoch);
        clock.advance_to(epoch);
        for record in &step.records {
            records.update(arrival(record), 1);
        }
        // The clock is a collection of one value, which is replaced.
        let old: (u64, bool) = now.unwrap_or_default();
        let tick = step.tick.map_or((old.0, false), |tick| (old.0.max(tick.time), tick.end));
        if now != Some(tick) {
            now.into_iter().for_each(|old| clock.update(old, -1));
            clock.update(tick, 1);
            now = Some(tick);
        }
        records.advance_to(epoch + 1);
        clock.advance_to(epoch + 1);
        for record in &step.records {
            records.update(arrival(record), -1);
        }
        records.flush();
        clock.flush();
        worker.step_while(|| probe.less_than(&(epoch + 1)));
    }
    records.close();
    clock.close();
    worker.step_while(|| !probe.done());
    let mut pending = 0;
    let mut seen = seen.take();
    let steps = (0..script.steps.len()).map(|place| {
        let (mut outputs, mut counts, change) = seen.remove(&(2 * place as Epoch + 1)).unwrap_or_default();
        pending += change;
        outputs.sort();
        counts.pending_records = pending as u64;
        Seen { outputs, counts }
    });
    let steps: Vec<Seen> = steps.collect();
    assert!(seen.is_empty(), "something happened between steps: {seen:?}");
    steps
}
