//! The start of a worker whose job has a store: all workers agree on the run, and what the last one has left enters the dataflow.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Input;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::vec::Broadcast;
use timely::worker::Worker;

use crate::checkpoint::{Begin, Claim, Restored, Share, Store};
use crate::crash;
use crate::dataflow::clock::Heard;
use crate::dataflow::durable::Restore;
use crate::dataflow::flow::JobContext;
use crate::epoch::{Clock, Epoch, SystemClock};
use crate::error::{Error, ErrorKind, Result};

/// How long a worker sleeps between looks while it waits for the first one.
const LOOK: Duration = Duration::from_millis(20);

/// How long a run that was killed may seem to live.
const DYING: Duration = Duration::from_secs(2);

/// Items that enter the dataflow between two steps of it. Fewer: more steps; more: more memory at once.
const ITEMS: usize = 4_096;

/// Claims the run on worker 0 and tells the others; returns what the last run has left.
pub(crate) fn begin(
    worker: &mut Worker,
    store: &mut dyn Store,
    context: &JobContext,
    heard: &Heard,
) -> Result<(Claim, Arc<Restored>)> {
    let claim = if store.keeps() { agree(worker, store, context, heard)? } else { store.claim(false)? };
    let restored = store.load()?;
    crash::point("start.loaded");
    if restored.any && worker.index() == 0 {
        tracing::info!(
            run = claim.run.0,
            upper = restored.upper,
            splits = restored.splits.len(),
            outbox = restored.outbox.len(),
            "going on from a checkpoint"
        );
    }
    Ok((claim, Arc::new(restored)))
}

/// Claims the next run. A run that was killed a moment ago may hold the store for another one: its memory is given back first.
fn claim(store: &mut dyn Store, context: &JobContext) -> Result<Claim> {
    let clock = SystemClock::new(); // for waiting, whatever the clock of the job says
    let start = clock.monotonic();
    loop {
        match store.claim(context.take_over) {
            Err(error) if error.kind() == ErrorKind::Fenced => {
                if clock.monotonic().saturating_sub(start) >= DYING || !context.control.is_running() {
                    return Err(error);
                }
                context.control.sleep(LOOK);
            }
            other => return other,
        }
    }
}

/// The claim of worker 0 travels in a dataflow of its own, which is there before the job's.
fn agree(worker: &mut Worker, store: &mut dyn Store, context: &JobContext, heard: &Heard) -> Result<Claim> {
    let told: Rc<RefCell<Option<Claim>>> = Rc::default();
    let hears = Rc::clone(&told);
    let mut input = worker.dataflow::<Epoch, _, _>(|scope| {
        let (input, claims) = scope.new_input::<Vec<Claim>>();
        claims.broadcast().sink(Pipeline, "Claim", move |(input, _frontier)| {
            input.for_each(|_capability, claims| claims.drain(..).for_each(|claim| *hears.borrow_mut() = Some(claim)));
        });
        input
    });
    if worker.index() == 0 {
        let claim = claim(store, context)?;
        crash::point("start.claimed");
        store.begin(&Begin {
            identity: context.identity.clone(),
            num_slots: worker.peers(),
            accept_changes: context.accept_changes,
        })?;
        crash::point("start.begun");
        input.send(claim);
    }
    drop(input);
    loop {
        worker.step_or_park(Some(LOOK));
        let claim = *told.borrow();
        match claim {
            Some(claim) if worker.index() == 0 => return Ok(claim),
            Some(claim) => return store.join(claim).map(|()| claim),
            None if heard.failed.get() || context.control.has_failed() => {
                return Err(Error::new(ErrorKind::Cluster, "another worker could not start; its process says why"));
            }
            None => {}
        }
    }
}

/// Lets the items of the last run's state enter the dataflow.
pub(crate) fn restore(
    worker: &mut Worker,
    store: &mut dyn Store,
    mut inputs: Vec<Box<dyn Restore>>,
    context: &JobContext,
) -> Result<()> {
    let share = Share { index: worker.index(), peers: worker.peers() };
    let mut since = 0;
    store.items(share, &mut |collection: &str, times: i64, bytes: Bytes| {
        let Some(input) = inputs.iter_mut().find(|input| input.collection() == collection) else {
            if context.accept_changes {
                return Ok(());
            }
            let text = format!(
                "the checkpoint has a collection \"{collection}\" that this job does not have: it would be lost; start with \
                 --accept_changes if it is not needed"
            );
            return Err(Error::new(ErrorKind::Config, text));
        };
        input.take(times, bytes)?;
        since += 1;
        if since == ITEMS {
            since = 0;
            worker.step();
        }
        Ok(())
    })
}
