//! checkpoint -> publish -> commit, as operators in a row.
//!
//! ```text
//! marks --> Ranges (worker 0 decides) ==broadcast==> Prepare --> Checkpoint --> Publish --> the bound
//! ```
//!
//! A range [lower, upper) begins where the last one ended, and travels at a time in it that is not above its content; each operator holds that capability until a thread has answered. So the
//! frontier behind Checkpoint says what is durable on all workers, and the one behind Publish is the bound.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use serde::{Deserialize, Serialize};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::vec::Broadcast;
use timely::dataflow::operators::{Capability, Probe};
use timely::dataflow::{ProbeHandle, Stream};
use timely::scheduling::Activator;

use crate::checkpoint::{Frame, SplitMark, Store};
use crate::control::Wake;
use crate::crash;
use crate::dataflow::TIMED;
use crate::dataflow::clock::Heard;
use crate::dataflow::flow::JobContext;
use crate::dataflow::keeper::Keeper;
use crate::dataflow::output::WriterThread;
use crate::epoch::Epoch;
use crate::error::Result;
use crate::observe::Status;
use crate::reader::spawn_thread;
use crate::sink::{Prepared, Undelivered};

/// Epochs [lower, upper) that are checkpointed and published together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Range {
    pub lower: Epoch,
    pub upper: Epoch,
}

/// An epoch has content: so many bytes of output, perhaps none.
pub(crate) type Mark = u64;

/// What the stages need of their worker.
pub(crate) struct Stages {
    pub writers: Vec<Rc<WriterThread>>,
    /// `None`: a store that keeps nothing is durable at once.
    pub store: Option<StoreThread>,
    pub keeper: Rc<Keeper>,
    /// How far the splits of every input have come at a bound, those that moved since the last one.
    pub marks_at: Box<dyn Fn(Epoch) -> Vec<SplitMark>>,
    pub heard: Rc<Heard>,
    /// The epoch at which the state of a checkpoint enters, if there was one: ranges begin there.
    pub rebuild: Option<Epoch>,
    /// Whether a range may be decided now, if that is not always so; the one that decides it says no.
    pub may_decide: Option<Rc<Cell<bool>>>,
    /// Where outputs that became dead letters are counted.
    pub status: Arc<Status>,
}

/// What the worker watches.
pub(crate) struct Watch {
    /// What is durable on all workers.
    pub durable: ProbeHandle<Epoch>,
    /// What is published on all workers: the bound.
    pub published: ProbeHandle<Epoch>,
    /// To be activated when `durable` or `published` has moved (on worker 0, which decides the next range then).
    pub ranges: Activator,
    /// The operators to be activated when a thread has answered.
    pub answers: Vec<Rc<[usize]>>,
}

/// Builds the stages behind the marks of content.
pub(crate) fn stages<'s>(marks: Stream<'s, Epoch, Vec<Mark>>, stages: Stages) -> Watch {
    let Stages { writers, store, keeper, marks_at, heard, rebuild, may_decide, status } = stages;
    let (durable, published) = (ProbeHandle::new(), ProbeHandle::new());
    let (ranges, ranges_activator) = decide(marks, durable.clone(), published.clone(), rebuild, may_decide);
    let mut answers = vec![];
    let (prepared, address) = prepare(ranges.broadcast(), writers.clone());
    answers.push(address);
    let (frames, address) = checkpoint(prepared, store, keeper, marks_at, heard, published.clone());
    answers.push(address);
    let (done, address) = publish(frames.probe_with(&durable), writers);
    answers.push(address);
    count(done, status).probe_with(&published);
    Watch { durable, published, ranges: ranges_activator, answers }
}

/// How many ranges may be unpublished until the next one waits, and grows: one is being published, the next is at hand.
const MOST_UNPUBLISHED: usize = 2;

/// Bytes of output from which on a range is put at hand while another one is published. What is less waits and grows: small ranges
/// would stand in a queue, each with the cost and the delay of a whole one.
const LARGE: Mark = 512 << 10;

/// Worker 0 closes a range as soon as finished epochs have content, the last range is durable, few are to be published, and as much
/// time has passed since as was wanted.
fn decide<'s>(
    marks: Stream<'s, Epoch, Vec<Mark>>,
    durable: ProbeHandle<Epoch>,
    published: ProbeHandle<Epoch>,
    rebuild: Option<Epoch>,
    may_decide: Option<Rc<Cell<bool>>>,
) -> (Stream<'s, Epoch, Vec<Range>>, Activator) {
    let scope = marks.scope();
    let decides = scope.index() == 0;
    let mut activator = None;
    let stream = marks.unary_frontier(Exchange::new(|_: &Mark| 0), "Ranges", |capability, info| {
        activator = Some(scope.activator_for(info.address));
        let mut capability = decides.then_some(capability);
        let mut content: BTreeMap<Epoch, Mark> = BTreeMap::new(); // the bytes of epochs at or above the capability
        let mut unpublished: VecDeque<Epoch> = VecDeque::new(); // the times at which ranges travel
        let mut next = rebuild; // the upper end of the last range: the next one begins there, so that none is left out
        move |(input, frontier), output| {
            input.for_each(|capability, marks| {
                *content.entry(*capability.least().expect(TIMED)).or_default() += marks.drain(..).sum::<Mark>();
            });
            let Some(held) = &mut capability else { return };
            while unpublished.front().is_some_and(|time| !published.less_equal(time)) {
                unpublished.pop_front();
            }
            let last = unpublished.back(); // what is published is durable
            if unpublished.len() >= MOST_UNPUBLISHED || last.is_some_and(|time| durable.less_equal(time)) {
                return;
            }
            let time = *held.time();
            let frontier = frontier.frontier().first().copied();
            let upper = frontier.unwrap_or_else(|| content.last_key_value().map_or(time, |(epoch, _)| epoch + 1));
            if content.first_key_value().is_some_and(|(epoch, _)| *epoch < upper) {
                if may_decide.as_ref().is_some_and(|may_decide| !may_decide.get()) {
                    return;
                }
                let bytes: Mark = content.range(..upper).map(|(_, bytes)| bytes).sum();
                if !unpublished.is_empty() && bytes < LARGE {
                    return;
                }
                output.session(&*held).give(Range { lower: next.unwrap_or(time), upper });
                unpublished.push_back(time);
                if let Some(may_decide) = &may_decide {
                    may_decide.set(false);
                }
                next = Some(upper);
                content = content.split_off(&upper);
            }
            match frontier {
                Some(_) => held.downgrade(&upper),
                None => capability = None,
            }
        }
    });
    (stream, activator.expect("the constructor has run"))
}

/// A range and what each writer gave for it.
type WithPrepared = (Range, Vec<Prepared>);

/// Asks the writers what the checkpoint must keep.
fn prepare<'s>(
    ranges: Stream<'s, Epoch, Vec<Range>>,
    writers: Vec<Rc<WriterThread>>,
) -> (Stream<'s, Epoch, Vec<WithPrepared>>, Rc<[usize]>) {
    let mut address = None;
    let stream =
        ranges.unary::<CapacityContainerBuilder<Vec<WithPrepared>>, _, _, _>(Pipeline, "Prepare", |_, info| {
            address = Some(info.address);
            // Ranges that the writers have not all answered: the answers so far, in the order of the writers.
            let mut open: BTreeMap<Epoch, (Capability<Epoch>, Range, Vec<Option<Prepared>>)> = BTreeMap::new();
            move |input, output| {
                input.for_each(|capability, ranges| {
                    for range in ranges.drain(..) {
                        writers.iter().for_each(|writer| writer.prepare(range));
                        let capability = capability.retain_least(0).expect(TIMED);
                        open.insert(range.lower, (capability, range, vec![None; writers.len()]));
                    }
                });
                for (index, writer) in writers.iter().enumerate() {
                    while let Some((lower, prepared)) = writer.poll_prepared() {
                        if let Some((_, _, answers)) = open.get_mut(&lower) {
                            answers[index] = Some(prepared);
                        }
                    }
                }
                while let Some(entry) = open.first_entry().filter(|entry| entry.get().2.iter().all(Option::is_some)) {
                    let (capability, range, answers) = entry.remove();
                    output.session(&capability).give((range, answers.into_iter().flatten().collect()));
                }
            }
        });
    (stream, address.expect("the constructor has run"))
}

/// Makes ranges durable, with this worker's frame.
fn checkpoint<'s>(
    prepared: Stream<'s, Epoch, Vec<WithPrepared>>,
    store: Option<StoreThread>,
    keeper: Rc<Keeper>,
    marks_at: Box<dyn Fn(Epoch) -> Vec<SplitMark>>,
    heard: Rc<Heard>,
    published: ProbeHandle<Epoch>,
) -> (Stream<'s, Epoch, Vec<Range>>, Rc<[usize]>) {
    let mut address = None;
    let stream = prepared.unary::<CapacityContainerBuilder<Vec<Range>>, _, _, _>(Pipeline, "Checkpoint", |_, info| {
        address = Some(info.address);
        let mut open: BTreeMap<Epoch, (Capability<Epoch>, Range)> = BTreeMap::new(); // with the store's thread
        move |input, output| {
            input.for_each(|capability, ranges| {
                let Some(store) = &store else {
                    output.session(&capability).give_iterator(ranges.drain(..).map(|(range, _)| range));
                    return;
                };
                for (range, prepared) in ranges.drain(..) {
                    let frame = Frame {
                        lower: range.lower,
                        upper: range.upper,
                        clock: heard.time_at(range.upper),
                        splits: marks_at(range.upper),
                        changes: keeper.take_below(range.upper, &prepared),
                        prepared,
                        published: published.with_frontier(|frontier| frontier.first().copied().unwrap_or(range.lower)),
                    };
                    store.append(frame);
                    open.insert(range.lower, (capability.retain_least(0).expect(TIMED), range));
                }
            });
            for lower in store.iter().flat_map(StoreThread::durable) {
                if let Some((capability, range)) = open.remove(&lower) {
                    output.session(&capability).give(range);
                }
            }
        }
    });
    (stream, address.expect("the constructor has run"))
}

/// Publishes ranges that are durable on all workers. What comes out beside the frontier are counts of what became dead letters.
fn publish<'s>(
    durable: Stream<'s, Epoch, Vec<Range>>,
    writers: Vec<Rc<WriterThread>>,
) -> (Stream<'s, Epoch, Vec<Undelivered>>, Rc<[usize]>) {
    let mut address = None;
    let stream = durable.unary_frontier::<CapacityContainerBuilder<Vec<Undelivered>>, _, _, _>(
        Pipeline,
        "Publish",
        |_, info| {
            address = Some(info.address);
            let mut waiting: BTreeMap<Epoch, (Capability<Epoch>, Range)> = BTreeMap::new(); // for the other workers' frames
            let mut open: BTreeMap<Epoch, (Capability<Epoch>, usize)> = BTreeMap::new(); // how many writers have not answered
            move |(input, frontier), output| {
                input.for_each(|capability, ranges| {
                    for range in ranges.drain(..) {
                        waiting.insert(range.lower, (capability.retain_least(0).expect(TIMED), range));
                    }
                });
                while let Some(entry) = waiting.first_entry().filter(|entry| !frontier.less_equal(entry.get().0.time()))
                {
                    let (capability, range) = entry.remove();
                    writers.iter().for_each(|writer| writer.publish(range));
                    if !writers.is_empty() {
                        open.insert(range.lower, (capability, writers.len()));
                    }
                }
                let answers = writers.iter().flat_map(|writer| std::iter::from_fn(|| writer.poll_published()));
                for (lower, undelivered) in answers {
                    if let Some(entry) = open.get_mut(&lower) {
                        entry.1 -= 1;
                        if undelivered != Undelivered::default() {
                            output.session(&entry.0).give(undelivered);
                        }
                    }
                }
                open.retain(|_, (_, unanswered)| *unanswered > 0);
            }
        },
    );
    (stream, address.expect("the constructor has run"))
}

/// Counts on worker 0 what became dead letters on all of them.
fn count<'s>(undelivered: Stream<'s, Epoch, Vec<Undelivered>>, status: Arc<Status>) -> Stream<'s, Epoch, Vec<()>> {
    let to_first = Exchange::new(|_: &Undelivered| 0);
    undelivered.unary::<CapacityContainerBuilder<Vec<()>>, _, _, _>(to_first, "Undelivered", |_, _| {
        move |input, _output| {
            input.for_each(|_capability, counts| counts.drain(..).for_each(|counts| status.undelivered(&counts)));
        }
    })
}

/// Owns a [`Store`] and calls it on a thread of its own.
pub(crate) struct StoreThread {
    frames: Sender<Frame>,
    durable: Receiver<Epoch>,
}

/// The thread's ends of the channels, until it is started.
pub(crate) struct StartStore {
    queue: Receiver<Frame>,
    durable: Sender<Epoch>,
}

impl StoreThread {
    /// A thread that is not started yet: frames wait until then.
    pub fn new() -> (Self, StartStore) {
        let (frames, queue) = unbounded();
        let (durable_in, durable) = unbounded();
        (StoreThread { frames, durable }, StartStore { queue, durable: durable_in })
    }

    fn append(&self, frame: Frame) {
        let _ = self.frames.send(frame); // the thread ends after the sender, or because the job has failed
    }

    fn durable(&self) -> impl Iterator<Item = Epoch> {
        self.durable.try_iter()
    }
}

impl StartStore {
    /// Starts the thread; `wake` is called when a frame is durable.
    pub fn start(self, mut store: Box<dyn Store>, worker: usize, context: &JobContext, wake: Wake) -> Result<()> {
        let patience = context.patience();
        let StartStore { queue, durable } = self;
        spawn_thread(format!("store-{worker}"), &context.control, move || {
            for frame in queue {
                let appended =
                    patience.persist(worker as u64, "writing a checkpoint", || store.append(&frame).map(Some));
                let compacted = appended.and_then(|appended| match appended {
                    Some(()) if worker == 0 => store.compact().map(Some),
                    other => Ok(other),
                });
                match compacted {
                    Ok(Some(())) => {}
                    Ok(None) => return, // the job has failed
                    Err(error) => {
                        patience.control.fail(error);
                        return;
                    }
                }
                crash::point("checkpoint.durable");
                let _ = durable.send(frame.lower);
                wake();
            }
        })?;
        Ok(())
    }
}

/// Shared offsets of a worker's inputs, as the checkpoint reads them.
pub(crate) type SharedIntakes = Rc<RefCell<Vec<Box<dyn crate::dataflow::input::Intake>>>>;
