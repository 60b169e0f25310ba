//! Out of the dataflow: the thread that owns a sink's writer, and the operator that feeds it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

use crate::checkpoint::{Pending, Restored};
use crate::control::Wake;
use crate::crash;
use crate::dataflow::TIMED;
use crate::dataflow::patience::Patience;
use crate::dataflow::progress::{Mark, Range};
use crate::epoch::Epoch;
use crate::error::Result;
use crate::reader::spawn_thread;
use crate::sink::{Entity, NewSink, OutputRecord, Prepared, Slot, Undelivered, Writer, WriterContext};

enum Command {
    Write { epoch: Epoch, entity: Entity, records: Vec<OutputRecord>, bytes: usize },
    Prepare(Range),
    Publish(Range),
}

/// What the threads of writers share with their worker.
#[derive(Clone)]
pub(crate) struct WriterSpec {
    pub new_sink: NewSink,
    pub context: WriterContext,
    pub patience: Patience,
    pub peers: usize,
    /// What the last run has left to be published.
    pub restored: Arc<Restored>,
}

/// The worker's side of a writer's thread.
pub(crate) struct WriterThread {
    commands: Sender<Command>,
    ready: Receiver<()>,
    prepared: Receiver<(Epoch, Prepared)>,
    published: Receiver<(Epoch, Undelivered)>,
    undurable: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<()>,
}

impl WriterThread {
    /// Starts the thread, which opens the writer. `wake` is called when it has answered.
    pub fn spawn(spec: WriterSpec, name: String, wake: Wake) -> Result<Self> {
        let (commands, queue) = unbounded();
        let (ready_in, ready) = unbounded();
        let (prepared_in, prepared) = unbounded();
        let (published_in, published) = unbounded();
        let undurable = Arc::new(AtomicUsize::new(0));
        let held = Arc::clone(&undurable);
        let thread = spawn_thread(name, &spec.patience.control.clone(), move || {
            let answers = Answers { ready: ready_in, prepared: prepared_in, published: published_in, held, wake };
            let control = spec.patience.control.clone();
            if let Err(error) = spec.run(&queue, &answers) {
                control.fail(error);
            }
        })?;
        Ok(WriterThread { commands, ready, prepared, published, undurable, thread })
    }

    /// Whether the writer has been opened. Says yes only once.
    pub fn poll_ready(&self) -> bool {
        self.ready.try_recv().is_ok()
    }

    /// Bytes that were written and not published.
    pub fn undurable_bytes(&self) -> usize {
        self.undurable.load(Ordering::Relaxed)
    }

    // The thread ends after its senders, or because the job has failed: then nobody needs an answer.

    fn write(&self, epoch: Epoch, entity: Entity, records: Vec<OutputRecord>) -> usize {
        let bytes = records.iter().map(|r| r.value.len() + r.key.as_ref().map_or(0, |key| key.len())).sum();
        self.undurable.fetch_add(bytes, Ordering::Relaxed);
        let _ = self.commands.send(Command::Write { epoch, entity, records, bytes });
        bytes
    }

    /// Asks for what the checkpoint must keep of a range.
    pub fn prepare(&self, range: Range) {
        let _ = self.commands.send(Command::Prepare(range));
    }

    /// The next answer to `prepare`: the lower end of the range, and what the checkpoint must keep.
    pub fn poll_prepared(&self) -> Option<(Epoch, Prepared)> {
        self.prepared.try_recv().ok()
    }

    /// Asks to publish a range.
    pub fn publish(&self, range: Range) {
        let _ = self.commands.send(Command::Publish(range));
    }

    /// The next answer to `publish`: the lower end of the range, and what became dead letters.
    pub fn poll_published(&self) -> Option<(Epoch, Undelivered)> {
        self.published.try_recv().ok()
    }

    /// Lets the thread end, and waits for it.
    pub fn finish(self) {
        drop(self.commands);
        let _ = self.thread.join(); // a panic there was already reported by the panic hook
    }
}

struct Answers {
    ready: Sender<()>,
    prepared: Sender<(Epoch, Prepared)>,
    published: Sender<(Epoch, Undelivered)>,
    held: Arc<AtomicUsize>,
    wake: Wake,
}

impl WriterSpec {
    fn run(self, queue: &Receiver<Command>, answers: &Answers) -> Result<()> {
        // What the last run has left comes first, also of those of its writers that have no worker any more.
        let mut left: BTreeMap<Slot, Vec<&Pending>> = BTreeMap::new();
        for pending in self.restored.outbox.iter().filter(|pending| pending.slot.0 % self.peers == self.context.slot.0)
        {
            left.entry(pending.slot).or_default().push(pending);
        }
        let own = left.remove(&self.context.slot).unwrap_or_default();
        for (slot, pending) in left {
            let Some(mut writer) = self.open(slot)? else { return Ok(()) };
            self.recover(&mut *writer, &pending)?;
        }
        let Some(mut writer) = self.open(self.context.slot)? else { return Ok(()) };
        self.recover(&mut *writer, &own)?;
        let _ = answers.ready.send(());
        (answers.wake)();
        let mut unpublished: VecDeque<(Epoch, usize)> = VecDeque::new();
        for command in queue {
            match command {
                Command::Write { epoch, entity, records, bytes } => {
                    unpublished.push_back((epoch, bytes));
                    for record in records {
                        writer.write(epoch, entity, record)?;
                    }
                }
                Command::Prepare(Range { lower, upper }) => {
                    let prepared = writer.prepare(lower, upper)?;
                    let _ = answers.prepared.send((lower, prepared));
                    (answers.wake)();
                }
                Command::Publish(Range { lower, upper }) => {
                    crash::point("publish.begins");
                    if unpublished.iter().any(|(epoch, _)| *epoch < upper) {
                        crash::point("publish.records");
                    }
                    let Some(undelivered) = self.persist(|| writer.publish(lower, upper, None).map(Some))? else {
                        return Ok(());
                    };
                    // Commands of one worker come in the order of its epochs, but for the outputs of one epoch.
                    let (published, kept): (Vec<_>, Vec<_>) =
                        unpublished.drain(..).partition(|(epoch, _)| *epoch < upper);
                    unpublished.extend(kept);
                    answers.held.fetch_sub(published.iter().map(|(_, bytes)| bytes).sum(), Ordering::Relaxed);
                    crash::point("publish.done");
                    let _ = answers.published.send((lower, undelivered));
                    (answers.wake)();
                }
            }
        }
        Ok(())
    }

    fn persist<R: Default>(&self, call: impl FnMut() -> Result<R>) -> Result<R> {
        self.patience.persist(self.context.slot.0 as u64, "writing", call)
    }

    fn open(&self, slot: Slot) -> Result<Option<Box<dyn Writer>>> {
        let context = WriterContext { slot, ..self.context.clone() };
        self.persist(|| (self.new_sink)()?.open(&context).map(Some))
    }

    /// Publishes what a run before has prepared and the sink does not know.
    fn recover(&self, writer: &mut dyn Writer, pending: &[&Pending]) -> Result<()> {
        let known = self.persist(|| writer.published())?;
        for Pending { lower, upper, prepared, .. } in pending {
            let Some(prepared) = prepared.get(self.context.output).filter(|_| known.is_none_or(|known| known < *upper))
            else {
                continue;
            };
            let undelivered = self.persist(|| writer.publish(*lower, *upper, Some(prepared)))?;
            self.patience.status.undelivered(&undelivered);
        }
        Ok(())
    }
}

/// Hands the records of every output to the writer's thread. What comes out is a mark for each batch, in its epoch: the epoch
/// has content; and when the frontier passes an epoch, all of it is with the writer. What follows from restored state alone was written
/// before: it is left out.
pub(crate) fn write<'s>(
    outputs: Vec<Stream<'s, Epoch, Vec<OutputRecord>>>,
    writer: std::rc::Rc<WriterThread>,
    rebuild: Option<Epoch>,
    scope: timely::dataflow::Scope<'s, Epoch>,
) -> Stream<'s, Epoch, Vec<Mark>> {
    let mut builder = OperatorBuilder::new("Write".to_owned(), scope);
    let mut inputs: Vec<_> = outputs.into_iter().map(|stream| builder.new_input(stream, Pipeline)).collect();
    let (marks, stream) = builder.new_output::<Vec<Mark>>();
    let mut marks = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(marks);
    builder.build(move |_capabilities| {
        move |_frontiers| {
            let mut marks = marks.activate();
            for (index, input) in inputs.iter_mut().enumerate() {
                input.for_each(|capability, records| {
                    let epoch = *capability.least().expect(TIMED);
                    if Some(epoch) == rebuild {
                        return;
                    }
                    let bytes = writer.write(epoch, Entity(index), std::mem::take(records));
                    marks.session(&capability).give(bytes as Mark);
                });
            }
        }
    });
    stream
}

/// The frontier of a stream, without its data.
pub(crate) fn completion<'s, C: timely::Container + Clone + 'static>(
    stream: Stream<'s, Epoch, C>,
) -> Stream<'s, Epoch, Vec<Mark>> {
    use timely::dataflow::operators::generic::Operator;
    stream.unary::<CapacityContainerBuilder<Vec<Mark>>, _, _, _>(Pipeline, "Completion", |_capability, _info| {
        move |input, _output| input.for_each(|_capability, _data| {})
    })
}
