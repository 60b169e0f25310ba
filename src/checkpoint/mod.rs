//! Checkpoints: what makes state, offsets and pending output survive.
//!
//! For every range of epochs the job goes through the same steps in the same order, with every store:
//!
//! ```text
//! checkpoint [lower, upper)  ->  publish [lower, upper)  ->  commit below upper
//! ```
//!
//! A crash between any two repeats the later ones, so publish and commit can be repeated. No sink shows anything before the
//! checkpoint. [`NullStore`] keeps nothing and is durable at once: the steps are the same, and a crash loses what waits.
//!
//! # Frames
//!
//! Worker 0 decides each range and tells it to all; every worker appends one [`Frame`], possibly empty, for exactly that range, and
//! nothing passes `upper` before all frames are durable. Logs are cut only at the ends of frames, so the smallest last `upper`
//! over the logs of a run is a state that was whole.
//!
//! State is kept as items of named collections: a frame holds the net changes of its range, each by the item's [`ItemId`], and the
//! bytes of those that were added. Sums of changes do not depend on their order nor on the log that holds them; so a run may have
//! another number of workers than the one before.
//!
//! The outbox is what the sinks' writers have prepared to publish. It does not hold once more what a log has anyway: it names items,
//! such as the payload of a record that waited ([`ItemRef`]), and a restart puts them in. They are still there: who compacts drops an
//! item only together with the frame that took it away, and only when all up to that frame is published.
//!
//! # Compaction
//!
//! Segments whose frames are all published are replaced by a base with their net content, when there are much more of them than of
//! bases; older bases stay as they are until a part of them is gone. It reads the indexes of frames, in which every change stands with the place of its item, and of the payloads only sections
//! in which something lives; small and large items have sections of their own, because mostly they live for different times. So the
//! cost follows the number of changes and what lives, not the bytes that came and went.
//!
//! # Start
//!
//! 1. Worker 0 claims the next run ([`Store::claim`]), which only one can win.
//! 2. Sinks fence what earlier runs have left open.
//! 3. Worker 0 reads the logs, decides where they are cut, and writes that down ([`Store::begin`]).
//! 4. The other workers see the same claim ([`Store::join`]); each reads its share of the state ([`Store::load`],
//!    [`Store::items`]).
//! 5. Writers publish what is missing from the outbox.
//! 6. Sources go on at the stored offsets.
//!
//! A frame counts as durable only if after its append the claim still names this run: an older run that wakes up is
//! [`Fenced`](crate::ErrorKind::Fenced), and what it had appended after the cut does not exist.
//!
//! [`FolderStore`] keeps all of it in a folder, and [`open`](open()) finds where that is: on the machine or in an object store.
//! [`inspect`](inspect()) and [`verify`](verify()) read one that belongs to somebody else, whose job may be running.

mod claim;
mod compact;
pub mod disk;
mod folder;
mod frame;
mod identity;
mod inspect;
mod location;
mod log;
mod manifest;
#[cfg(feature = "object-store")]
mod object;
mod outbox;
mod place;
mod recover;
#[cfg(test)]
pub(crate) mod sim;
mod still;
#[cfg(test)]
mod tests;
mod verify;
mod view;

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;
use crate::error::Result;
use crate::message::{Offset, Offsets, SplitId};
use crate::sink::{Prepared, RunNumber, Slot};

pub use crate::item::{CollectionId, ItemId, ItemRef};
pub use disk::{Advice, Disk, DiskFile, LocalDisk};
pub use folder::FolderStore;
pub use inspect::{HolderInfo, Inspection, SegmentInfo, inspect};
pub use location::{Location, open};
pub use still::inspect_beside;
pub use verify::{Verified, VerifyStep, verify};

/// The right of one run to write to a store. Travels from worker 0 to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Larger than that of every earlier run.
    pub run: RunNumber,
    /// What all processes of the run must see, so that a folder that is not shared is noticed.
    pub nonce: u128,
}

/// What a job is, so that another one is not taken for it: its name, and the settings that its state depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The name of the job.
    pub job: String,
    /// Settings by name, such as the fields of the key or the window, in the order in which people want to read them.
    pub settings: Vec<(String, String)>,
}

/// What a run begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begin {
    /// Which job it is.
    pub identity: Identity,
    /// How many workers it has: each is a writer slot and has a log.
    pub num_slots: usize,
    /// Goes on although settings differ from those of the run before.
    pub accept_changes: bool,
}

/// The part of the state that a worker reads: items whose id is `index` modulo `peers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The worker.
    pub index: usize,
    /// How many workers there are.
    pub peers: usize,
}

impl Share {
    /// Whether an item is in it.
    pub fn has(self, id: ItemId) -> bool {
        id.0 % self.peers as u128 == self.index as u128
    }
}

/// A net change of a collection: an item is there so many times more, or less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemUpdate {
    /// Which item.
    pub id: ItemId,
    /// How many times more. 0 if the item came and went in the range, and what is prepared refers to it.
    pub diff: i64,
    /// The item, unless it is there less often than before: these bytes and the rest.
    pub bytes: Bytes,
    /// What comes after the bytes. Apart, so that it may be shared with others and need not be copied; boxed, because few items have
    /// it and updates are many.
    pub rest: Option<Box<Bytes>>,
}

impl ItemUpdate {
    /// Bytes of the item.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    /// Whether there is no item, or one without bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Net changes of a collection in a range. An id that goes is there once; one that comes may be there again if it comes more often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The name of the collection.
    pub collection: String,
    /// The changes.
    pub updates: Vec<ItemUpdate>,
}

/// How far a split has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitMark {
    /// The index of its source among the inputs of the job.
    pub source: u32,
    /// Which split.
    pub split: SplitId,
    /// The next offset to read.
    pub offset: Offset,
    /// The time of the split on the job's clock, in milliseconds since the Unix epoch.
    pub time: u64,
    /// Whether anything that was read said a time that was believed; `None` before anything was read.
    pub timed: Option<bool>,
}

/// One durable append: everything that changed on one worker in a range of epochs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The first epoch of the range.
    pub lower: Epoch,
    /// The first epoch after the range.
    pub upper: Epoch,
    /// The job's clock at the end of the range, in milliseconds since the Unix epoch.
    pub clock: u64,
    /// Everything below this epoch was published, on all workers, when the frame was written.
    pub published: Epoch,
    /// The splits of this worker at `upper`, those that moved since its last frame.
    pub splits: Vec<SplitMark>,
    /// The changes of state, for each collection that changed; in pieces, one behind the other, where there are many.
    pub changes: Vec<Changes>,
    /// What the sinks' writers gave to be published later, in the order of the sinks. It may refer to items of this frame and of
    /// earlier ones, of any worker.
    pub prepared: Vec<Prepared>,
}

/// What a writer prepared in an earlier run and had perhaps not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The writers of this worker of that run.
    pub slot: Slot,
    /// The first epoch of the range.
    pub lower: Epoch,
    /// The first epoch after the range.
    pub upper: Epoch,
    /// What its writers gave, in the order of the sinks, with the items that it refers to.
    pub prepared: Vec<Bytes>,
}

/// What a store gives back at start: nothing at the first one. The items of state come apart, see [`Store::load`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// There was a run before, which had written something.
    pub any: bool,
    /// The state is the one of everything below this epoch. Items enter at it.
    pub upper: Epoch,
    /// The epochs of the new run begin above: it is not below `upper`, nor below any epoch found in a log, cut tails included.
    pub above: Epoch,
    /// The job's clock, in milliseconds since the Unix epoch.
    pub clock: u64,
    /// Everything below this epoch was published.
    pub published: Epoch,
    /// All splits of all workers.
    pub splits: Vec<SplitMark>,
    /// Ranges that were not known to be published, of all slots, by slot and then by range.
    pub outbox: Vec<Pending>,
}

impl Restored {
    /// What is known of a split of the input with this number.
    pub fn mark(&self, source: usize, split: SplitId) -> Option<&SplitMark> {
        self.splits.iter().find(|mark| (mark.source as usize, mark.split) == (source, split))
    }

    /// The next offsets of the splits of an input.
    pub fn offsets(&self, source: usize) -> Offsets {
        let marks = self.splits.iter().filter(|mark| mark.source as usize == source);
        marks.map(|mark| (mark.split, mark.offset)).collect()
    }
}

/// Makes the [`Store`] of a worker, which is told its slot; touches nothing.
pub type NewStore = Arc<dyn Fn(Slot) -> Box<dyn Store> + Send + Sync>;

/// Where checkpoints are kept. One object per worker. Every method may block: `append` and `compact` have a thread of their own,
/// the others are called before anything is read.
pub trait Store: Send {
    /// Whether anything is kept at all.
    fn keeps(&self) -> bool;

    /// Claims the next run, by an atomic step that only one can win. On worker 0 only.
    ///
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) if a live run holds the store and is not to be taken over.
    fn claim(&mut self, take_over: bool) -> Result<Claim>;

    /// Reads what the last run has left, decides where its logs are cut, and writes that down. On worker 0 only, after `claim`.
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for the state of another job or of other settings.
    fn begin(&mut self, begin: &Begin) -> Result<()>;

    /// Sees the claim that worker 0 has made, and what it has written down. On the other workers.
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if it is not there: the store is not shared.
    fn join(&mut self, claim: Claim) -> Result<()>;

    /// Reads what the last run has left, but for the items of state. Once, after `begin` or `join`.
    fn load(&mut self) -> Result<Restored>;

    /// Reads the items of state. Once, after `load`. Calls `item` for each item of the share with the name of its collection and how
    /// many times it is there; in no order, and in parts if it was added more than once.
    fn items(&mut self, share: Share, item: &mut dyn FnMut(&str, i64, Bytes) -> Result<()>) -> Result<()>;

    /// Appends a frame and returns when it is durable and the claim still names this run. After `items`.
    ///
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) if it does not. Frames come in the order of their ranges, without gaps. A
    /// retryable error has left nothing behind that counts: the same frame may be appended again.
    fn append(&mut self, frame: &Frame) -> Result<()>;

    /// Replaces what was appended by something smaller that means the same, if that is worth it. On worker 0 only. Returns at once:
    /// the work is done by a thread of the store's own, beside appends.
    fn compact(&mut self) -> Result<()>;
}

/// The store that keeps nothing and is durable at once.
#[derive(Debug)]
pub struct NullStore {
    run: RunNumber,
}

impl NullStore {
    /// A store whose run is numbered by the time of its start, in milliseconds since the Unix epoch, so that it grows.
    pub fn new(now: u64) -> Self {
        NullStore { run: RunNumber(now) }
    }
}

impl Store for NullStore {
    fn keeps(&self) -> bool {
        false
    }
    fn claim(&mut self, _take_over: bool) -> Result<Claim> {
        Ok(Claim { run: self.run, nonce: u128::from(self.run.0) })
    }
    fn begin(&mut self, _begin: &Begin) -> Result<()> {
        Ok(())
    }
    fn join(&mut self, _claim: Claim) -> Result<()> {
        Ok(())
    }
    fn load(&mut self) -> Result<Restored> {
        Ok(Restored::default())
    }
    fn items(&mut self, _share: Share, _item: &mut dyn FnMut(&str, i64, Bytes) -> Result<()>) -> Result<()> {
        Ok(())
    }
    fn append(&mut self, _frame: &Frame) -> Result<()> {
        Ok(())
    }
    fn compact(&mut self) -> Result<()> {
        Ok(())
    }
}
