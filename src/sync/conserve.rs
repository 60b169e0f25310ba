//! Conservation: over all workers, in every epoch, each record that came in is in one place.
//!
//! ```text
//! in + restored  =  records inside joined outputs + expired + pending + dropped for a reason
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::vec::Map;

use super::counts::Counts;
use crate::dataflow::{Flow, Read, TIMED};
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind};
use crate::message::Reason;

/// What happened to all records of all workers, up to an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Everything before the end of this epoch is counted.
    pub epoch: Epoch,
    /// Messages read, refused ones too.
    pub records_in: u64,
    /// Messages refused by codecs, by [`Reason`].
    pub refused: [u64; Reason::ALL.len()],
    /// What became of the others.
    pub counts: Counts,
}

impl Totals {
    /// Records dropped for each reason, by codecs and by the join.
    pub fn dropped(&self) -> [u64; Reason::ALL.len()] {
        std::array::from_fn(|index| self.refused[index] + self.counts.dropped[index])
    }

    /// Records in less records in all places: anything but 0 is an error.
    pub fn difference(&self) -> i128 {
        let refused: u64 = self.refused.iter().sum();
        let unseen = i128::from(self.records_in) - i128::from(refused) - i128::from(self.counts.arrived);
        unseen + self.counts.difference()
    }
}

/// The totals of a job, as worker 0 knows them; other processes know nothing.
#[derive(Debug, Default)]
pub struct Tally(Mutex<Totals>);

impl Tally {
    /// The totals up to the last epoch that is complete.
    pub fn totals(&self) -> Totals {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, totals: Totals) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = totals;
    }
}

/// Adds up on worker 0 what all workers count, and ends the job if it does not add up.
pub(crate) fn conserve<'s>(flow: &mut Flow<'s>, counts: Stream<'s, Epoch, Vec<Counts>>, tally: &Arc<Tally>) {
    let worker = flow.scope().index();
    let reads = flow.reads();
    let counts = counts.map(move |counts| (worker, counts));
    let (control, tally) = (flow.control(), Arc::clone(tally));
    let to_first = Exchange::new(|_: &(usize, Counts)| 0);
    let also = Exchange::new(|_: &Read| 0);
    let done = counts.binary_frontier::<_, CapacityContainerBuilder<Vec<()>>, _, _, _, _>(
        reads,
        to_first,
        also,
        "Conserve",
        move |_capability, _info| {
            let mut open: BTreeMap<Epoch, (Vec<(usize, Counts)>, Vec<Read>)> = BTreeMap::new(); // epochs not complete
            let mut pending: BTreeMap<usize, u64> = BTreeMap::new(); // the level of each worker
            let mut totals = Totals::default();
            move |(counts, counts_frontier), (reads, reads_frontier), _output| {
                counts.for_each(|capability, data| {
                    open.entry(*capability.least().expect(TIMED)).or_default().0.append(data);
                });
                reads.for_each(|capability, data| {
                    open.entry(*capability.least().expect(TIMED)).or_default().1.append(data);
                });
                let mut changed = false;
                while let Some(entry) = open.first_entry() {
                    let epoch = *entry.key();
                    if counts_frontier.less_equal(&epoch) || reads_frontier.less_equal(&epoch) {
                        break;
                    }
                    let (counts, reads) = entry.remove();
                    for (worker, counts) in counts {
                        pending.insert(worker, counts.pending_records);
                        totals.counts += counts;
                    }
                    totals.counts.pending_records = pending.values().sum();
                    for read in reads {
                        totals.records_in += read.messages;
                        for (total, refused) in totals.refused.iter_mut().zip(read.refused) {
                            *total += refused;
                        }
                    }
                    totals.epoch = epoch;
                    changed = true;
                    if totals.difference() != 0 {
                        let text = format!("records in and out differ by {} in epoch {epoch}", totals.difference());
                        control.fail(Error::new(ErrorKind::Conservation, format!("{text}: {totals:?}")));
                        break;
                    }
                }
                if changed {
                    tally.set(totals);
                }
            }
        },
    );
    flow.complete(done);
}
