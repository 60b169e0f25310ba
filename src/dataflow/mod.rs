//! Everything that is timely: how messages enter a dataflow at their epochs, how time passes in it, how results leave it.
//!
//! A [`Flow`] is what a program sees of it: streams of its inputs, the job's clock, and where to send results.

mod align;
mod clock;
mod dedup;
mod driver;
mod durable;
mod flow;
mod input;
mod keeper;
mod marks;
mod output;
mod patience;
mod progress;
mod ranges;
mod spec;
mod start;
mod wake;

use std::cell::Cell;

use serde::{Deserialize, Serialize};

use crate::message::{Message, Offset, Reason, SplitId};

pub(crate) use dedup::DEFAULT_REMEMBER_IDS;
pub(crate) use durable::Keeping;
pub use durable::{Bincode, ItemCodec};
pub use flow::Flow;
pub(crate) use flow::{JobContext, run_worker};
pub use input::Data;
#[cfg(test)]
pub(crate) use keeper::Keeper;
pub(crate) use progress::Mark;
pub use spec::Input;

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

impl<T> Arrived<T> {
    /// The same record with something else made of its message.
    pub fn map<U>(self, logic: impl FnOnce(T) -> U) -> Arrived<U> {
        let Arrived { split, offset, timestamp, base, data } = self;
        Arrived { split, offset, timestamp, base, data: logic(data) }
    }
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
    /// The name of its split.
    pub split: String,
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

/// What was read in an epoch on one worker. An epoch may have several of these, to be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// Messages, refused ones and those delivered before too.
    pub messages: u64,
    /// Messages that went no further: refused by their codecs, or delivered before, by [`Reason`].
    pub refused: [u64; Reason::ALL.len()],
}

/// What an operator with state tells the loop of its worker.
#[derive(Debug, Default)]
pub struct Gauges {
    /// It has deadlines ahead: epochs must be closed even if nothing is read.
    pub waits_for_time: Cell<bool>,
    /// About how many bytes its state takes.
    pub bytes: Cell<usize>,
    /// How many keys its state has.
    pub keys: Cell<usize>,
    /// How many records it holds that are not done.
    pub pending: Cell<u64>,
}

/// Why a capability has a time.
pub(crate) const TIMED: &str = "a message that holds data has a time";
