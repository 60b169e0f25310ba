//! Everything that is timely: how messages enter a dataflow at their epochs, how time passes in it, how results leave it.

use serde::{Deserialize, Serialize};

use crate::message::{Message, Offset, Reason, SplitId};

/// A record as it enters a dataflow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Arrived<T> {
    /// The split it was read from.
    pub split: SplitId,
    /// Its position there.
    pub offset: Offset,
    /// Its timestamp as far as it is believed, in milliseconds since the Unix epoch (see [`crate::split_time`]).
    pub timestamp: u64,
    /// The time its deadline counts from, on the job's clock, in milliseconds since the Unix epoch.
    pub base: u64,
    /// What the codec made of the message.
    pub data: T,
}

/// A message that its codec refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// The index of the input it came from.
    pub input: usize,
    /// Why, as it is counted.
    pub reason: Reason,
    /// Why, in words.
    pub error: String,
    /// The message, as it came.
    pub message: Message,
}

/// The job's clock at the end of an epoch: the same value on every worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tick {
    /// Milliseconds since the Unix epoch. Never goes back.
    pub time: u64,
    /// Every input of every worker has ended: nothing will come after this epoch.
    pub end: bool,
}
