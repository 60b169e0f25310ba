//! The synchronization as a timely operator.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use differential_dataflow::hashable::Hashable;
use differential_dataflow::operators::arrange::{Arranged, TraceAgent};
use differential_dataflow::trace::{Description, ExertionLogic, Span, Trace, TraceReader};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::{Capability, InputCapability};
use timely::progress::{Antichain, Stamp};

use super::batch::{StateBatch, StateSpine};
use super::counts::Counts;
use super::details::Details;
use super::kept::{Kept, KeptCodec};
use super::options::Options;
use super::record::{Output, Payload, Record};
use super::store::Store;
use super::synchronizer::{Done, Synchronizer};
use crate::dataflow::{Flow, Gauges, Keeping, Mark, TIMED, Tick};
use crate::epoch::Epoch;

/// What the synchronization gives back.
pub struct Synchronized<'s, P> {
    /// The states of all keys, by hash, spread over the workers like any arrangement by [`KeyHash`](super::KeyHash).
    ///
    /// The trace keeps all epochs apart that this handle has not given up: whoever does not read it drops it, and whoever
    /// does follows within an epoch or two (`set_logical_compaction`, `set_physical_compaction`).
    pub states: Arranged<'s, TraceAgent<StateSpine>>,
    /// Joins and delays, in each epoch in the order of their keys.
    pub outputs: Stream<'s, Epoch, Vec<Output<P>>>,
    /// One value for each epoch in which this worker received records or a tick.
    pub counts: Stream<'s, Epoch, Vec<Counts>>,
    /// Never sends anything. Its frontier is held at the epoch of the oldest record that waits, on any worker; also when all
    /// input has ended and records still wait. Such a dataflow does not end by itself: it is dropped, as a
    /// [`Job`](crate::Job) does.
    pub waiting: Stream<'s, Epoch, Vec<()>>,
    /// A mark for each epoch in which what checkpoints keep of the keys of this worker has changed.
    kept: Stream<'s, Epoch, Vec<Mark>>,
    /// How things stand on this worker.
    pub gauges: Rc<Gauges>,
    /// What is known about the keys of this worker.
    pub details: Details<P>,
}

/// The outputs of the operator, in their order.
const STATES: usize = 0;
const OUTPUTS: usize = 1;
const COUNTS: usize = 2;
const WAITING: usize = 3;
const KEPT: usize = 4;

/// An epoch that is not complete.
struct Pending<P> {
    /// One for each output: a capability is good for one only.
    capabilities: [Capability<Epoch>; 5],
    /// What came is the state of a checkpoint.
    restores: bool,
    tick: Option<Tick>,
    records: Vec<Option<Record<P>>>,
}

impl<P> Pending<P> {
    fn at<'e>(epochs: &'e mut BTreeMap<Epoch, Self>, capability: &InputCapability<Epoch>) -> &'e mut Self {
        let time = *capability.least().expect(TIMED);
        epochs.entry(time).or_insert_with(|| Pending {
            capabilities: [STATES, OUTPUTS, COUNTS, WAITING, KEPT]
                .map(|output| capability.retain_least(output).expect(TIMED)),
            restores: false,
            tick: None,
            records: Vec::new(),
        })
    }
}

/// How much the trace merges while nothing is written to it: only when it has become much larger than what lives in it.
///
/// So memory follows the keys down even if nothing arrives any more; and in the ordinary course nothing is merged early.
fn exertion(keys: Arc<AtomicUsize>) -> ExertionLogic {
    /// Updates merged at once: fewer cost wake-ups, more delay the worker.
    const EFFORT: usize = 1 << 12;
    /// Updates that are too few to care about while some key lives.
    const FEW: usize = 1 << 12;
    Arc::new(move |layers| {
        let keys = keys.load(Ordering::Relaxed);
        let spans: usize = layers.iter().filter(|(_, _, len)| *len > 0).map(|(_, count, _)| count).sum();
        let updates: usize = layers.iter().map(|(_, _, len)| len).sum();
        let enough = if keys == 0 { 0 } else { 4 * keys + FEW };
        (spans > 1 && updates > enough).then_some(EFFORT)
    })
}

/// Synchronizes the sides of `records` on their keys.
///
/// `clock` holds at most one tick for each epoch and worker, the same on all; an epoch without one keeps the last. The rules
/// are those of [`Options`] and of the [module](super). Results depend neither on the order of records within an epoch nor
/// on the number of workers.
///
/// # Panics
///
/// If the options are not valid (see [`Options::validate`]), or a record's side is not below their number of sides.
pub fn synchronize<'s, P: Payload>(
    records: Stream<'s, Epoch, Vec<Record<P>>>,
    clock: Stream<'s, Epoch, Vec<Tick>>,
    options: &Options,
) -> Synchronized<'s, P> {
    build(records, clock, None, None, options)
}

/// The same as part of a job: on the job's clock, watched by it, and durable where the job has a store. The name is the one of the
/// durable collection (see [`Flow::durable`]).
pub fn synchronize_durably<'s, P: Payload>(
    flow: &mut Flow<'s>,
    records: Stream<'s, Epoch, Vec<Record<P>>>,
    name: &str,
    options: &Options,
) -> Synchronized<'s, P> {
    let codec = Rc::new(KeptCodec);
    let restored = flow.restored(name, &codec);
    let synchronized = build(records, flow.clock(), restored, flow.keeping(name), options);
    flow.mark(synchronized.kept.clone());
    flow.watch(Rc::clone(&synchronized.gauges));
    flow.hold_commits(synchronized.waiting.clone());
    synchronized
}

fn build<'s, P: Payload>(
    records: Stream<'s, Epoch, Vec<Record<P>>>,
    clock: Stream<'s, Epoch, Vec<Tick>>,
    restored: Option<Stream<'s, Epoch, Vec<(Kept<P>, isize)>>>,
    keeping: Option<Keeping>,
    options: &Options,
) -> Synchronized<'s, P> {
    let problems = options.problems();
    assert!(problems.is_empty(), "options were not validated: {}", problems.join("; "));
    let sides = options.windows.len();

    // 1. The ports. Keys go where any arrangement by their hash would send them, so that the states can be joined.
    let scope = records.scope();
    let mut builder = OperatorBuilder::new("Synchronize".to_owned(), scope);
    let info = builder.operator_info();
    let mut records = builder.new_input(records, Exchange::new(|record: &Record<P>| record.key.hash().hashed()));
    let mut clock = builder.new_input(clock, Pipeline);
    let to_key = Exchange::new(|(kept, _): &(Kept<P>, isize)| kept.key_hash().hashed());
    let mut restored = restored.map(|restored| builder.new_input(restored, to_key));
    let (states, state_stream) = builder.new_output::<Vec<Span<Epoch, Rc<StateBatch>>>>();
    let (outputs, output_stream) = builder.new_output::<Vec<Output<P>>>();
    let (counts, count_stream) = builder.new_output::<Vec<Counts>>();
    let (_waiting, waiting_stream) = builder.new_output::<Vec<()>>();
    let (kept, kept_stream) = builder.new_output::<Vec<Mark>>();
    let mut states = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(states);
    let mut outputs = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(outputs);
    let mut counts = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(counts);
    let mut kept = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(kept);

    // 2. The trace.
    let keys = Arc::new(AtomicUsize::new(0));
    let logger = scope
        .worker()
        .logger_for::<differential_dataflow::logging::DifferentialEventBuilder>("differential/arrange")
        .map(Into::into);
    let activator = Some(scope.activator_for(Rc::clone(&info.address)));
    let mut spine = StateSpine::new(info.clone(), logger.clone(), activator);
    spine.set_exert_logic(exertion(Arc::clone(&keys)));
    let (reader, mut writer) = TraceAgent::new(spine, info, logger);
    let mut trace = reader.clone();

    let gauges = Rc::new(Gauges::default());
    let store = Rc::new(RefCell::new(Store::new(sides)));
    let details = Details::new(Rc::clone(&store), sides);
    let mut synchronizer = Synchronizer::new(options, store, keeping);

    let gauges_out = Rc::clone(&gauges);
    builder.build(move |_| {
        // Epochs that are not complete, with what came for them; each is removed when both inputs have passed it.
        let mut epochs: BTreeMap<Epoch, Pending<P>> = BTreeMap::new();
        // An empty buffer of records, to be used again.
        let mut spare: Vec<Option<Record<P>>> = Vec::new();
        // Holds `waiting` at the epoch of the oldest record that waits; none if none waits.
        let mut held: Option<Capability<Epoch>> = None;
        // The epochs in the trace: all below it.
        let mut upper = Antichain::from_elem(0);
        move |frontiers| {
            let (mut states, mut outputs, mut counts) = (states.activate(), outputs.activate(), counts.activate());
            let mut kept = kept.activate();

            // 3. Take in what came.
            records.for_each(|capability, data| {
                let epoch = Pending::at(&mut epochs, &capability);
                if epoch.records.capacity() == 0 {
                    epoch.records = std::mem::take(&mut spare);
                }
                epoch.records.extend(data.drain(..).map(|record| {
                    assert!(usize::from(record.side) < sides, "side {} of {sides} sides", record.side);
                    Some(record)
                }));
            });
            clock.for_each(|capability, data| {
                let tick = &mut Pending::at(&mut epochs, &capability).tick;
                for new in data.drain(..) {
                    let old = tick.get_or_insert(new);
                    *old = Tick { time: old.time.max(new.time), end: old.end || new.end };
                }
            });

            if let Some(restored) = &mut restored {
                restored.for_each(|capability, items| {
                    Pending::at(&mut epochs, &capability).restores = true;
                    items.drain(..).for_each(|(item, _once)| synchronizer.restore(item));
                });
            }

            // 4. Process the epochs that are complete, one after the other.
            let mut frontier = Antichain::new();
            for input in frontiers {
                frontier.extend(input.frontier().iter().copied());
            }
            while let Some(entry) = epochs.first_entry().filter(|entry| !frontier.less_equal(entry.key())) {
                let (time, mut epoch) = entry.remove_entry();
                let batches = trace.batches_through(upper.borrow()).expect("the trace ends at a batch");
                let mut session = outputs.session_with_builder(&epoch.capabilities[OUTPUTS]);
                let give = |output| session.give(output);
                let Done { updates, counts: counted, oldest } = match epoch.restores {
                    true => synchronizer.restored(time),
                    false => synchronizer.epoch(time, epoch.tick, &mut epoch.records, &batches, give),
                };
                drop(session);
                drop(batches); // so that merges can take their memory
                counts.session_with_builder(&epoch.capabilities[COUNTS]).give(counted);
                if synchronizer.recorder.take_changed() {
                    kept.session_with_builder(&epoch.capabilities[KEPT]).give(0);
                }

                let next = Antichain::from_elem(time + 1);
                let lower = std::mem::replace(&mut upper, next.clone());
                let description = Description::new(lower, next, Antichain::from_elem(0));
                let span = Span::new(description, StateBatch::new(updates, time).map(Rc::new));
                states.session_with_builder(&epoch.capabilities[STATES]).give(span.clone());
                writer.insert(span, Stamp::from_elem(time));
                trace.set_logical_compaction(upper.borrow());
                trace.set_physical_compaction(upper.borrow());

                let [.., waiting, _] = epoch.capabilities;
                match (oldest, &mut held) {
                    (None, _) => held = None,
                    (Some(oldest), Some(held)) if *held.time() < oldest => held.downgrade(&oldest),
                    (Some(_), Some(_)) => {}
                    (Some(_), None) => held = Some(waiting), // nothing waited before, so the oldest is of this epoch
                }

                epoch.records.clear();
                if epoch.records.capacity() <= 8 * counted.arrived as usize + 1024 {
                    spare = epoch.records;
                }
                synchronizer.tidy();
                synchronizer.gauge(&gauges_out);
                keys.store(gauges_out.keys.get(), Ordering::Relaxed);
                let mut bytes = gauges_out.bytes.get();
                trace.map_spans(|span| bytes += span.inner.as_ref().map_or(0, |batch| batch.bytes()));
                gauges_out.bytes.set(bytes);
            }

            // 5. Epochs in which nothing came.
            if frontier != upper && upper.elements().iter().all(|time| !frontier.less_equal(time)) {
                upper.clone_from(&frontier);
                writer.seal(upper.clone());
                trace.set_logical_compaction(upper.borrow());
                trace.set_physical_compaction(upper.borrow());
            }
            writer.exert();
        }
    });

    Synchronized {
        states: Arranged { stream: state_stream, trace: reader },
        outputs: output_stream,
        counts: count_stream,
        waiting: waiting_stream,
        kept: kept_stream,
        gauges,
        details,
    }
}
