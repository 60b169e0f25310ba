//! De-duplication: what a broker delivers again is dropped, and acknowledged like everything else.
//!
//! A broker of queues ([`Replay::Redeliver`](crate::source::Replay)) delivers a message until it has taken its acknowledgement: to a
//! restarted job, to another worker when a connection breaks, and even after an acknowledgement that it had confirmed, if it was killed
//! and forgot. So the ids of what was delivered are remembered, in checkpoints too. There is one such operator in a job, for all
//! inputs; adapters only fill [`Message::id`](crate::message::Message::id).
//!
//! ```text
//! records --------------------------------------------------------> Withhold --> Flow::read
//! ids, with the places of their messages ==by id==> Ids ==places==>
//! refused messages -----------------------------------------------> Withhold --> Flow::rejected
//! ```
//!
//! Ids travel to the worker that remembers them, and the places of messages that came before travel back: records, which are larger
//! and many, stay where they were read until the epoch is decided. The first delivery passes; of several in the same epoch it is the
//! one with the smallest split and offset. All others are counted as [`Reason::Redelivered`], and so it does not matter whether the codec
//! refuses the message: it becomes one dead letter, and is counted once. A message that is dropped belongs to its epoch like any
//! other: its offset is committed when the epoch is published, which is not before the first delivery's epoch is. Messages without an
//! id pass.
//!
//! # How long
//!
//! An id is remembered for `remember_ids` ([`Input::remember_ids`](super::Input::remember_ids)) of uptime after its last delivery was
//! acknowledged: after the broker has taken the commit, on whatever worker, not after we were ready to send it; while a broker takes
//! none, nothing is forgotten. Uptime is what passes on the monotonic clocks of workers: no wall clock that is turned can make the job
//! forget, and downtime does not count. Every worker says in the report of each epoch ([`Report`]) how long it is up and what its
//! brokers have taken; everybody hears that, so all agree, by epoch, on what is known:
//!
//! - *acknowledged below b* is the least of what the workers have said, and it was so not later than the *latest* of their uptimes: the
//!   worker that acknowledged last was up for so long when it said so;
//! - *now* is at least the *earliest* of their uptimes.
//!
//! An id is forgotten when *earliest* is `remember_ids` above the *latest* of its acknowledgement. Let worker w, up since s, have sent the
//! acknowledgement at t: *latest* was at least t - s, and *earliest* is at most now - s; so now - t is at least `remember_ids`.
//!
//! Over a restart uptime goes on from the last delivery of an id: each item says the moment in which it was made, so going through
//! the restored items in the order of their epochs tells what was acknowledged, and when at the latest. What was not counts as
//! acknowledged when the run begins: its old acknowledgement can be sent no more, and if the broker has not got it, the message
//! comes again. Errors are on the side of remembering longer, so are forgetting in strides and only while epochs are closed: an idle
//! job forgets nothing and uses no CPU for it.
//!
//! # What it costs
//!
//! About 70 bytes of memory for an id (24 in a hash table that is between half full and full, and 16 in the order of epochs): 12
//! million ids, which is ten minutes of 20,000 messages a second, take 0.8 GiB over all workers. In a checkpoint 16 bytes; the ids of an
//! epoch are one item, so that forgetting them is one short change.

mod item;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::core::OkErr;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::{Operator, OutputBuilder};
use timely::dataflow::operators::{Capability, Exchange as _, InputCapability};
use timely::dataflow::{Scope, Stream};
use timely::progress::Antichain;

use crate::dataflow::clock::Report;
use crate::dataflow::input::Data;
use crate::dataflow::{Read, Rejected, TIMED};
use crate::epoch::Epoch;
use crate::message::{MessageId, Offset, Reason, SplitId};
use crate::observe::Status;

pub(crate) use self::item::BatchCodec;
use self::item::{Batch, Id, Moment, Name};
use self::table::{Outcome, Remember, Table};

/// The collection of ids in checkpoints.
pub(crate) const IDS: &str = "ids";

/// How long ids are remembered if nobody says it.
pub(crate) const DEFAULT_REMEMBER_IDS: Duration = Duration::from_secs(600);

/// Where a message was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Place {
    input: u32,
    split: SplitId,
    offset: Offset,
}

impl Place {
    pub fn new(input: usize, split: SplitId, offset: Offset) -> Self {
        Place { input: input as u32, split, offset } // inputs are few
    }
}

/// A delivery of a message that has an id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Delivery {
    id: Id,
    place: Place,
    /// Who read it.
    worker: u32,
    /// Why its codec refused it, if it did.
    refused: Option<Reason>,
}

impl Delivery {
    pub fn new(id: MessageId, place: Place, worker: usize, refused: Option<Reason>) -> Self {
        Delivery { id: id.into(), place, worker: worker as u32, refused } // workers are few
    }
}

/// What the reader of an input gives beside its records.
#[derive(Clone, Debug)]
pub(crate) enum Aside {
    /// A message that its codec refused and that becomes a dead letter.
    Rejected(Box<Rejected>),
    /// A message that the broker may deliver again.
    Delivered(Delivery),
}

/// A delivery that does not pass, for the worker that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Repeated {
    worker: u32,
    place: Place,
}

/// What one worker needs of a restored batch. All get one, so that all agree on times.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    to: usize,
    name: Name,
    moment: Moment,
    ids: Vec<Id>,
    /// It takes the batch out of the checkpoint.
    takes: bool,
}

impl Part {
    /// What each of so many workers needs of a batch that this one was given.
    fn cut(batch: Batch, worker: usize, peers: usize) -> impl Iterator<Item = Part> {
        let Batch { name, moment, ids } = batch;
        let mut shares = vec![vec![]; peers];
        ids.into_iter().for_each(|id| shares[(id.route() % peers as u64) as usize].push(id));
        shares.into_iter().enumerate().map(move |(to, ids)| Part { to, name, moment, ids, takes: to == worker })
    }
}

/// The streams around the operator.
pub(crate) struct Deduplicated<'s> {
    /// Refused messages that pass.
    pub rejected: Stream<'s, Epoch, Vec<Rejected>>,
    /// What is counted of messages that have an id.
    pub counted: Stream<'s, Epoch, Vec<Read>>,
    /// The changes of what checkpoints keep.
    pub kept: Stream<'s, Epoch, Vec<(Batch, Epoch, isize)>>,
    repeated: Stream<'s, Epoch, Vec<Repeated>>,
    remember: Remember,
}

impl<'s> Deduplicated<'s> {
    /// Builds the operator. `reports` are those of all workers, `restored` is what a checkpoint has of ids, if there may be one.
    pub fn new(
        scope: Scope<'s, Epoch>,
        asides: Stream<'s, Epoch, Vec<Aside>>,
        reports: Stream<'s, Epoch, Vec<Report>>,
        restored: Option<Stream<'s, Epoch, Vec<(Batch, isize)>>>,
        status: Arc<Status>,
    ) -> Self {
        let remember = Remember::default();
        let (rejected, delivered) = asides.ok_err(|aside| match aside {
            Aside::Rejected(rejected) => Ok(*rejected),
            Aside::Delivered(delivery) => Err(delivery),
        });
        let restored = restored.map(|restored| parts(scope, restored));
        let (repeated, counted, kept) = ids(scope, delivered, reports, restored, Rc::clone(&remember), status);
        let repeated = repeated.exchange(|repeated: &Repeated| u64::from(repeated.worker));
        let place = |rejected: &Rejected| {
            let message = &rejected.message;
            message.id.map(|_| Place::new(rejected.input, message.split, message.offset))
        };
        let rejected = withhold(rejected, repeated.clone(), place);
        Deduplicated { rejected, counted, kept, repeated, remember }
    }

    /// The next input, in their order: how long its ids are remembered if its source delivers again.
    pub fn add_input(&self, remember: Option<Duration>) {
        self.remember.borrow_mut().push(remember);
    }

    /// The records of an input that pass.
    pub fn first<D: Data>(
        &self,
        records: Stream<'s, Epoch, Vec<D>>,
        place: impl Fn(&D) -> Place + 'static,
    ) -> Stream<'s, Epoch, Vec<D>> {
        withhold(records, self.repeated.clone(), move |record| Some(place(record)))
    }
}

/// Holds what has a place until it is known which places do not pass; lets go at once what has none.
fn withhold<'s, D: Data>(
    data: Stream<'s, Epoch, Vec<D>>,
    repeated: Stream<'s, Epoch, Vec<Repeated>>,
    place: impl Fn(&D) -> Option<Place> + 'static,
) -> Stream<'s, Epoch, Vec<D>> {
    data.binary_frontier::<_, CapacityContainerBuilder<Vec<D>>, _, _, _, _>(
        repeated,
        Pipeline,
        Pipeline,
        "Withhold",
        move |_capability, _info| {
            let mut held: BTreeMap<Epoch, (Capability<Epoch>, Vec<Vec<D>>)> = BTreeMap::new();
            let mut dropped: BTreeMap<Epoch, BTreeSet<Place>> = BTreeMap::new();
            move |(data, data_frontier), (repeated, frontier), output| {
                data.for_each(|capability, data| {
                    if data.iter().all(|data| place(data).is_none()) {
                        output.session(&capability).give_container(data);
                        return;
                    }
                    let epoch = *capability.least().expect(TIMED);
                    let (_, batches) =
                        held.entry(epoch).or_insert_with(|| (capability.retain_least(0).expect(TIMED), vec![]));
                    batches.push(std::mem::take(data));
                });
                repeated.for_each(|capability, places| {
                    let epoch = *capability.least().expect(TIMED);
                    dropped.entry(epoch).or_default().extend(places.drain(..).map(|repeated| repeated.place));
                });
                let is_over = |epoch: &Epoch| !frontier.less_equal(epoch) && !data_frontier.less_equal(epoch);
                while let Some(entry) = held.first_entry().filter(|entry| is_over(entry.key())) {
                    let (epoch, (capability, batches)) = entry.remove_entry();
                    let dropped = dropped.get(&epoch);
                    for mut batch in batches {
                        if let Some(dropped) = dropped {
                            batch.retain(|data| place(data).is_none_or(|place| !dropped.contains(&place)));
                        }
                        output.session(&capability).give_container(&mut batch);
                    }
                }
                while dropped.first_entry().is_some_and(|entry| is_over(entry.key())) {
                    dropped.pop_first();
                }
            }
        },
    )
}

/// Cuts restored batches into what each worker needs: there may be another number of them.
fn parts<'s>(
    scope: Scope<'s, Epoch>,
    restored: Stream<'s, Epoch, Vec<(Batch, isize)>>,
) -> Stream<'s, Epoch, Vec<Part>> {
    let (worker, peers) = (scope.index(), scope.peers());
    restored.unary::<CapacityContainerBuilder<Vec<Part>>, _, _, _>(Pipeline, "Parts", move |_capability, _info| {
        move |input, output| {
            input.for_each(|capability, batches| {
                for (batch, _once) in batches.drain(..) {
                    output.session(&capability).give_iterator(Part::cut(batch, worker, peers));
                }
            });
        }
    })
}

/// The outputs of the operator, in their order.
const REPEATED: usize = 0;
const COUNTED: usize = 1;
const KEPT: usize = 2;

/// An epoch that is not complete and that may have something to say.
struct Pending {
    /// One for each output.
    capabilities: [Capability<Epoch>; 3],
    deliveries: Vec<Delivery>,
}

impl Pending {
    fn at<'e>(epochs: &'e mut BTreeMap<Epoch, Self>, capability: &InputCapability<Epoch>) -> &'e mut Self {
        let time = *capability.least().expect(TIMED);
        epochs.entry(time).or_insert_with(|| Pending {
            capabilities: [REPEATED, COUNTED, KEPT].map(|output| capability.retain_least(output).expect(TIMED)),
            deliveries: Vec::new(),
        })
    }
}

type Outputs<'s> =
    (Stream<'s, Epoch, Vec<Repeated>>, Stream<'s, Epoch, Vec<Read>>, Stream<'s, Epoch, Vec<(Batch, Epoch, isize)>>);

/// The operator: a [`Table`] on every worker, which takes epochs when they are complete.
fn ids<'s>(
    scope: Scope<'s, Epoch>,
    delivered: Stream<'s, Epoch, Vec<Delivery>>,
    reports: Stream<'s, Epoch, Vec<Report>>,
    restored: Option<Stream<'s, Epoch, Vec<Part>>>,
    remember: Remember,
    status: Arc<Status>,
) -> Outputs<'s> {
    let worker = scope.index();
    let mut builder = OperatorBuilder::new("Ids".to_owned(), scope);
    let mut delivered = builder.new_input(delivered, Exchange::new(|delivery: &Delivery| delivery.id.route()));
    let mut reports = builder.new_input(reports, Pipeline);
    let keeps = restored.is_some();
    let to_worker = Exchange::new(|part: &Part| part.to as u64);
    let mut restored = restored.map(|restored| builder.new_input(restored, to_worker));
    let (repeated, repeated_stream) = builder.new_output::<Vec<Repeated>>();
    let (counted, counted_stream) = builder.new_output::<Vec<Read>>();
    let (kept, kept_stream) = builder.new_output::<Vec<(Batch, Epoch, isize)>>();
    let mut repeated = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(repeated);
    let mut counted = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(counted);
    let mut kept = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(kept);

    let mut table = Table::new(worker, scope.peers(), remember);
    builder.build(move |_capabilities| {
        // Both shrink as the frontier passes their epochs.
        let mut epochs: BTreeMap<Epoch, Pending> = BTreeMap::new();
        let mut said: BTreeMap<Epoch, Vec<Report>> = BTreeMap::new();
        move |frontiers| {
            let (mut repeated, mut counted, mut kept) = (repeated.activate(), counted.activate(), kept.activate());

            // 1. Take in what came. A report alone matters only where something may be forgotten.
            delivered.for_each(|capability, data| Pending::at(&mut epochs, &capability).deliveries.append(data));
            if let Some(restored) = &mut restored {
                restored.for_each(|_capability, parts| parts.drain(..).for_each(|part| table.restore(part)));
            }
            reports.for_each(|capability, reports| {
                if !(table.is_empty() && epochs.is_empty()) {
                    Pending::at(&mut epochs, &capability);
                }
                said.entry(*capability.least().expect(TIMED)).or_default().append(reports);
            });

            // 2. Process the epochs that are complete, one after the other.
            let mut frontier = Antichain::new();
            for input in frontiers {
                frontier.extend(input.frontier().iter().copied());
            }
            let next = |epochs: &BTreeMap<Epoch, Pending>, said: &BTreeMap<Epoch, Vec<Report>>| {
                let (pending, said) = (epochs.first_key_value(), said.first_key_value());
                let first = pending.map(|(epoch, _)| *epoch).into_iter().chain(said.map(|(epoch, _)| *epoch)).min();
                first.filter(|epoch| !frontier.less_equal(epoch))
            };
            while let Some(epoch) = next(&epochs, &said) {
                for Report { worker, uptime, acked, .. } in said.remove(&epoch).unwrap_or_default() {
                    table.hear(worker, uptime, &acked);
                }
                let Some(Pending { capabilities, mut deliveries }) = epochs.remove(&epoch) else { continue };
                let Outcome { repeated: places, refused, changes } = table.epoch(epoch, &mut deliveries);
                repeated.session_with_builder(&capabilities[REPEATED]).give_iterator(places.into_iter());
                if refused.iter().any(|count| *count > 0) {
                    status.read(0, &refused, 0);
                    counted.session_with_builder(&capabilities[COUNTED]).give(Read { messages: 0, refused });
                }
                if keeps {
                    let changes = changes.into_iter().map(|(batch, diff)| (batch, epoch, diff));
                    kept.session_with_builder(&capabilities[KEPT]).give_iterator(changes);
                }
                status.remember(worker, table.len() as u64);
            }
        }
    });
    (repeated_stream, counted_stream, kept_stream)
}
