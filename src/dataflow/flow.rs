//! A dataflow under construction, and the worker that runs it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use differential_dataflow::{AsCollection, ExchangeData, VecCollection};
use timely::Container;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::vec::{Broadcast, Filter, Map};
use timely::dataflow::operators::{Concat, Input as _, Probe};
use timely::dataflow::{ProbeHandle, Scope, Stream};
use timely::worker::Worker;

use crate::checkpoint::{Identity, NewStore, Restored, Store};
use crate::control::Control;
use crate::dataflow::clock::{Alarms, Heard, Report, alarms, clock};
use crate::dataflow::dedup::{Aside, BatchCodec, Deduplicated, IDS, Place};
use crate::dataflow::driver::{Driver, farewell};
use crate::dataflow::durable::{Restore, RestoreInput};
use crate::dataflow::input::{Data, IntakeSpec, TypedIntake};
use crate::dataflow::keeper::Keeper;
use crate::dataflow::output::{WriterSpec, WriterThread, completion, write};
use crate::dataflow::patience::Patience;
use crate::dataflow::progress::{Mark, SharedIntakes, Stages, StoreThread, stages};
use crate::dataflow::ranges::RangePace;
use crate::dataflow::spec::Input;
use crate::dataflow::start;
use crate::dataflow::wake::Waker;
use crate::dataflow::{Arrived, Gauges, Read, Rejected, TIMED, Tick};
use crate::epoch::{Clock, Epoch, SteadyClock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Status;
use crate::pacing::{Pacer, Pacing};
use crate::reader::ReaderSpec;
use crate::retry::RetryPolicy;
use crate::sink::{Entity, NewSink, OutputRecord, Slot, WriterContext};
use crate::source::Replay;
use crate::split_time::TimeMode;

/// What all workers of a process share.
pub(crate) struct JobContext {
    pub clock: Arc<SteadyClock>,
    pub control: Control,
    pub status: Arc<Status>,
    pub pacing: Pacing,
    pub mode: TimeMode,
    pub max_ahead: Duration,
    pub max_state_bytes: Option<usize>,
    /// How far splits may be ahead of the clock, if that was said: `Some(None)` is any time.
    pub max_drift: Option<Option<Duration>>,
    pub stuck_after: Duration,
    pub max_records: Option<u64>,
    pub retry: RetryPolicy,
    pub new_store: NewStore,
    /// Which job it is, so that no other one's state is taken for its own.
    pub identity: Identity,
    pub take_over: bool,
    pub accept_changes: bool,
    /// The least time from range to range.
    pub checkpoint_every: Duration,
}

impl JobContext {
    /// How long the threads that publish and checkpoint try.
    pub fn patience(&self) -> Patience {
        let (clock, control, status) = (self.clock.clone(), self.control.clone(), Arc::clone(&self.status));
        Patience { retry: self.retry, clock, control, status }
    }
}

/// A dataflow under construction on one worker.
pub struct Flow<'s> {
    pub(super) context: Arc<JobContext>,
    pub(super) scope: Scope<'s, Epoch>,
    wake: Waker,
    intakes: SharedIntakes,
    dedup: Deduplicated<'s>,
    reports: Stream<'s, Epoch, Vec<Report>>,
    ticks: Stream<'s, Epoch, Vec<Tick>>,
    pub(super) marks: Vec<Stream<'s, Epoch, Vec<Mark>>>,
    writers: Vec<Rc<WriterThread>>,
    waiting: Vec<ProbeHandle<Epoch>>,
    gauges: Vec<Rc<Gauges>>,
    pub(super) store: Box<dyn Store>,
    run: crate::sink::RunNumber,
    /// What the last run has left.
    pub(super) restored: Arc<Restored>,
    pub(super) keeper: Rc<Keeper>,
    /// Where the items of durable collections enter.
    pub(super) restores: Vec<Box<dyn Restore>>,
}

impl std::fmt::Debug for Flow<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flow").field("worker", &self.scope.index()).field("workers", &self.scope.peers()).finish()
    }
}

impl<'s> Flow<'s> {
    /// The scope, to build operators in.
    pub fn scope(&self) -> Scope<'s, Epoch> {
        self.scope
    }

    /// The records of an input, those of the splits that this worker reads. Every call reads the input once more.
    ///
    /// Of messages that a broker delivers several times the first alone is there (see [`Input::remember_ids`]).
    pub fn read<T: Data>(&mut self, input: &Input<T>) -> Result<Stream<'s, Epoch, Vec<Arrived<T>>>> {
        let (handle, stream) = self.scope.new_input::<Vec<Arrived<T>>>();
        let context = &self.context;
        let index = self.intakes.borrow().len();
        let replay = (input.new_source)()?.replay();
        let redelivers = replay == Replay::Redeliver;
        let reader = ReaderSpec {
            name: input.name.clone(),
            new_source: Arc::clone(&input.new_source),
            new_codec: Arc::clone(&input.new_codec),
            start: input.start.clone(),
            until: input.until,
            on_bad: input.on_bad,
            on_null: input.on_null,
            replay,
            retry: context.retry,
            stuck_after: context.stuck_after,
            ordinal: index,
            worker: self.scope.index(),
            peers: self.scope.peers(),
            clock: context.clock.clone(),
            control: context.control.clone(),
            status: Arc::clone(&context.status),
            wake: self.wake.nudge(),
            resume: self.restored.offsets(index),
        };
        let reader = reader.spawn()?;
        let spec = IntakeSpec {
            name: input.name.clone(),
            index,
            worker: self.scope.index(),
            mode: context.mode,
            max_ahead: context.max_ahead,
            on_bad: input.on_bad,
            on_null: input.on_null,
            redelivers,
            restored: Arc::clone(&self.restored),
        };
        let intake = TypedIntake::new(spec, reader, handle, self.store.keeps());
        self.intakes.borrow_mut().push(Box::new(intake));
        self.dedup.add_input(redelivers.then_some(input.remember_ids));
        if !redelivers {
            return Ok(stream);
        }
        let place = move |arrived: &Arrived<T>| Place::new(index, arrived.split, arrived.offset);
        Ok(self.dedup.first(stream, place))
    }

    /// The records of an input as a differential collection that only grows.
    pub fn collection<T: Data + ExchangeData>(
        &mut self,
        input: &Input<T>,
    ) -> Result<VecCollection<'s, Epoch, T, isize>> {
        let updates = self.read(input)?.unary::<CapacityContainerBuilder<Vec<(T, Epoch, isize)>>, _, _, _>(
            Pipeline,
            "Collection",
            |_capability, _info| {
                move |input, output| {
                    input.for_each(|capability, records| {
                        let epoch = *capability.least().expect(TIMED);
                        let updates = records.drain(..).map(|record| (record.data, epoch, 1));
                        output.session(&capability).give_iterator(updates);
                    })
                }
            },
        );
        Ok(updates.as_collection())
    }

    /// The records that are added to a collection, each as often as it is added.
    ///
    /// A record that is taken away again is an error of the job: an output that only appends cannot take it back.
    pub fn appended(
        &self,
        records: VecCollection<'s, Epoch, OutputRecord, isize>,
    ) -> Stream<'s, Epoch, Vec<OutputRecord>> {
        let control = self.control();
        records.consolidate().inner.flat_map(move |(record, epoch, diff)| {
            if diff < 0 {
                let value = String::from_utf8_lossy(&record.value);
                let text = format!("epoch {epoch} takes back what was put out before: {value}");
                control.fail(Error::new(ErrorKind::Write, text));
            }
            std::iter::repeat_n(record, usize::try_from(diff).unwrap_or(0))
        })
    }

    /// How many inputs are read so far: the next one gets this number.
    pub fn inputs(&self) -> usize {
        self.intakes.borrow().len()
    }

    /// The messages that codecs refused and that are to be dead letters, of all inputs of this worker.
    pub fn rejected(&self) -> Stream<'s, Epoch, Vec<Rejected>> {
        self.dedup.rejected.clone()
    }

    /// The job's clock: a tick in every epoch that somebody closed.
    pub fn clock(&self) -> Stream<'s, Epoch, Vec<Tick>> {
        self.ticks.clone()
    }

    /// What was read on this worker, by epoch.
    pub fn reads(&self) -> Stream<'s, Epoch, Vec<Read>> {
        let reads = self.reports.clone().map(|report| Read { messages: report.records, refused: report.refused });
        reads.concat(self.dedup.counted.clone())
    }

    /// Writes outputs of this worker to a sink, each under its name. One writer carries them all. A record that the broker
    /// refuses by itself ends the job.
    pub fn write(
        &mut self,
        sink: &NewSink,
        outputs: Vec<(String, Stream<'s, Epoch, Vec<OutputRecord>>)>,
    ) -> Result<()> {
        self.write_to(sink, outputs, None)
    }

    /// The same with an output for dead letters: where a record that the broker refuses by itself leaves one, too.
    pub fn write_with_dead_letters(
        &mut self,
        sink: &NewSink,
        mut outputs: Vec<(String, Stream<'s, Epoch, Vec<OutputRecord>>)>,
        dead_letters: (String, Stream<'s, Epoch, Vec<OutputRecord>>),
    ) -> Result<()> {
        let dead_letter = Entity(outputs.len());
        outputs.push(dead_letters);
        self.write_to(sink, outputs, Some(dead_letter))
    }

    fn write_to(
        &mut self,
        sink: &NewSink,
        outputs: Vec<(String, Stream<'s, Epoch, Vec<OutputRecord>>)>,
        dead_letter: Option<Entity>,
    ) -> Result<()> {
        let (entities, streams) = outputs.into_iter().unzip();
        let (slot, output) = (Slot(self.scope.index()), self.writers.len());
        let spec = WriterSpec {
            new_sink: Arc::clone(sink),
            context: WriterContext { slot, output, run: self.run, entities, dead_letter, outbox: self.store.keeps() },
            patience: self.context.patience(),
            peers: self.scope.peers(),
            restored: Arc::clone(&self.restored),
        };
        let name = format!("write-{output}-{}", slot.0);
        let writer = Rc::new(WriterThread::spawn(spec, name, self.wake.answer())?);
        self.writers.push(Rc::clone(&writer));
        self.marks.push(write(streams, writer, self.rebuild(), self.scope));
        Ok(())
    }

    /// Counts an epoch as done only when this stream is past it: for results that go elsewhere than to a sink.
    pub fn complete<C: Container + Clone + 'static>(&mut self, stream: Stream<'s, Epoch, C>) {
        self.marks.push(completion(stream));
    }

    /// Holds commits back at the frontier of this stream while nothing is stored: records wait that would be lost.
    pub fn hold_commits<C: Container + Clone + 'static>(&mut self, stream: Stream<'s, Epoch, C>) {
        let probe = ProbeHandle::new();
        completion(stream).probe_with(&probe);
        if !self.store.keeps() {
            self.waiting.push(probe);
        }
    }

    /// Makes the worker look at what an operator tells.
    pub fn watch(&mut self, gauges: Rc<Gauges>) {
        self.gauges.push(gauges);
    }

    /// Where to tell what is counted.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.context.status)
    }

    /// What ends the job.
    pub fn control(&self) -> Control {
        self.context.control.clone()
    }
}

/// Builds the dataflow of a worker and runs it to its end.
pub(crate) fn run_worker(
    worker: &mut Worker,
    context: &Arc<JobContext>,
    build: &dyn for<'s> Fn(&mut Flow<'s>) -> Result<()>,
) {
    let _alarm = context.control.worker_alarm();
    let heard = Rc::new(Heard::new(worker.peers()));
    let alarms = alarms(worker, Rc::clone(&heard));
    match build_worker(worker, context, build, heard, &alarms) {
        Ok(driver) => driver.run(worker),
        Err(error) => {
            context.control.fail(error);
            farewell(&alarms, worker);
            for dataflow in worker.installed_dataflows() {
                worker.drop_dataflow(dataflow);
            }
        }
    }
}

fn build_worker(
    worker: &mut Worker,
    context: &Arc<JobContext>,
    build: &dyn for<'s> Fn(&mut Flow<'s>) -> Result<()>,
    heard: Rc<Heard>,
    alarms: &Alarms,
) -> Result<Driver> {
    let mut store = (context.new_store)(Slot(worker.index()));
    let (claim, restored) = start::begin(worker, &mut *store, context, &heard)?;
    let keeps = store.keeps();
    let index = worker.index();
    let wake = Waker::new();
    // Epochs are wall time. Where the wall clock was turned back meanwhile, a split that is new or was silent would hold the job's
    // clock, and so every deadline, until it comes to where it was.
    context.clock.raise(restored.above);
    let epoch = context.clock.wall().max(restored.above + 1);
    let rebuild = restored.any.then_some(restored.upper);
    heard.restore(rebuild, restored.clock);
    let ((driver, addresses), (mut store, start_store), restores) =
        worker.dataflow::<Epoch, _, _>(|scope| -> Result<_> {
            let (mut reports_in, reports) = scope.new_input::<Vec<Report>>();
            let (mut asides_in, asides) = scope.new_input::<Vec<Aside>>();
            let (all_reports, mut restores) = (reports.clone().broadcast(), vec![]);
            let ids_codec = Rc::new(BatchCodec);
            let restored_ids = keeps.then(|| {
                let (input, stream) = RestoreInput::new(scope, IDS, &ids_codec, restored.upper);
                restores.push(Box::new(input) as Box<dyn Restore>);
                stream
            });
            let mut flow = Flow {
                context: Arc::clone(context),
                scope,
                wake: wake.clone(),
                intakes: Rc::new(RefCell::new(vec![])),
                ticks: clock(all_reports.clone(), Rc::clone(&heard), restored.clock),
                dedup: Deduplicated::new(scope, asides, all_reports, restored_ids, Arc::clone(&context.status)),
                reports,
                marks: vec![],
                writers: vec![],
                waiting: vec![],
                gauges: vec![],
                store,
                run: claim.run,
                restored: Arc::clone(&restored),
                keeper: Rc::default(),
                restores,
            };
            build(&mut flow)?;
            if flow.marks.is_empty() {
                let text =
                    "the dataflow has neither an output nor a completion: nobody could tell when an epoch is done";
                return Err(Error::new(ErrorKind::Config, text));
            }
            if keeps {
                flow.keep(flow.dedup.kept.clone(), IDS, &ids_codec);
            }
            flow.keeper.check()?;
            let complete = ProbeHandle::new();
            let read = flow.reports.filter(|report| report.dirty).map(|_| 0);
            let marks = flow.marks.into_iter().fold(read, |all, marks| all.concat(marks)).probe_with(&complete);
            let (thread, start_store) = StoreThread::new();
            let intakes = Rc::clone(&flow.intakes);
            let marks_at =
                move |bound| intakes.borrow_mut().iter_mut().flat_map(|intake| intake.marks_at(bound)).collect();
            let ranges = RangePace::new(context.checkpoint_every);
            let watch = stages(
                marks,
                Stages {
                    writers: flow.writers.clone(),
                    store: keeps.then_some(thread),
                    keeper: Rc::clone(&flow.keeper),
                    marks_at: Box::new(marks_at),
                    rebuild,
                    may_decide: ranges.may_decide(),
                    heard: Rc::clone(&heard),
                    status: Arc::clone(&context.status),
                },
            );
            reports_in.advance_to(epoch);
            asides_in.advance_to(epoch);
            flow.intakes.borrow_mut().iter_mut().for_each(|intake| intake.advance_to(epoch));
            let driver = Driver {
                worker: index,
                clock: context.clock.clone(),
                control: context.control.clone(),
                pacer: Pacer::new(context.pacing, context.clock.monotonic()),
                pacing: context.pacing,
                max_state_bytes: context.max_state_bytes,
                max_drift: context.max_drift.unwrap_or(Some(context.mode.max_drift())),
                paused: 0,
                reported_paused: 0,
                unaligned: 0,
                standing: None,
                max_records: context.max_records,
                epoch,
                intakes: flow.intakes,
                opened: false,
                started: context.clock.monotonic(),
                inputs: Some((reports_in, asides_in)),
                alarms: Rc::clone(alarms),
                stops: false,
                unpublished: Default::default(),
                heard: Rc::clone(&heard),
                complete,
                waiting: flow.waiting,
                writers: flow.writers,
                writers_ready: 0,
                gauges: flow.gauges,
                bound: 0,
                stages: None.into(),
                ranges,
                waker: wake.clone(),
                drained: None,
                threads_clock: SystemClock::new(),
                naps: false,
                status: Arc::clone(&context.status),
                watch,
                rebuild,
                keeper: flow.keeper,
            };
            Ok(((driver, vec![scope.addr()]), (flow.store, start_store), flow.restores))
        })?;
    let mut paths: Vec<Vec<usize>> = addresses.iter().map(|address| address.to_vec()).collect();
    paths.extend(driver.watch.answers.iter().map(|path| path.to_vec()));
    let activators = paths.into_iter().map(|path| worker.sync_activator_for(path)).collect();
    wake.set(activators);
    context.control.on_wake(wake.answer());
    if keeps {
        start::restore(worker, &mut *store, restores, context)?;
        start_store.start(store, index, context, wake.answer())?;
    }
    Ok(driver)
}
