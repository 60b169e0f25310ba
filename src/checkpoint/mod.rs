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

pub mod disk;

use crate::epoch::Epoch;
use crate::error::Result;
use crate::message::Offsets;
use crate::sink::RunNumber;

pub use disk::{Disk, LocalDisk};

/// The right of one run to write to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Larger than that of every earlier run.
    pub run: RunNumber,
    /// What all processes of the run must see, so that a folder that is not shared is noticed.
    pub nonce: u128,
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
    /// The next offset of every split of this worker at `upper`, by source in the order of the job's inputs.
    pub offsets: Vec<Offsets>,
    /// What the sinks' writers gave to be published later, in the order of the sinks.
    pub prepared: Vec<Vec<u8>>,
    /// Everything below this epoch was published when the frame was written.
    pub published: Epoch,
}

/// What a store gives back at start: nothing at the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The frames of all workers that make up the newest whole state, oldest first.
    pub frames: Vec<Frame>,
    /// The epochs of the new run begin here or above: above the highest epoch found in any log, cut tails included.
    pub above: Epoch,
}

/// Where checkpoints are kept. One object per worker. Every method may block: `append` has a thread of its own, the others are
/// called before anything is read.
pub trait Store: Send {
    /// Whether anything is kept at all.
    fn keeps(&self) -> bool;

    /// Claims the next run of a job, by an atomic step that only one can win.
    ///
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) if a live run holds the store and is not to be taken over.
    fn claim(&mut self, job: &str, take_over: bool) -> Result<Claim>;

    /// Reads the newest whole state. Called once, after `claim`.
    fn load(&mut self) -> Result<Restored>;

    /// Writes a new manifest of `num_slots` writers: the list of what exists, without which nothing does.
    fn manifest(&mut self, num_slots: usize) -> Result<()>;

    /// Appends a frame and returns when it is durable and the claim still names this run.
    ///
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) if it does not. Frames come in the order of their ranges, without gaps.
    fn append(&mut self, frame: &Frame) -> Result<()>;

    /// Replaces what was appended by something smaller that means the same. May do nothing.
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
    fn claim(&mut self, _job: &str, _take_over: bool) -> Result<Claim> {
        Ok(Claim { run: self.run, nonce: u128::from(self.run.0) })
    }
    fn load(&mut self) -> Result<Restored> {
        Ok(Restored::default())
    }
    fn manifest(&mut self, _num_slots: usize) -> Result<()> {
        Ok(())
    }
    fn append(&mut self, _frame: &Frame) -> Result<()> {
        Ok(())
    }
    fn compact(&mut self) -> Result<()> {
        Ok(())
    }
}
