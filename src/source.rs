//! What a broker must be able to do to be read: the contracts [`Source`], [`Reader`] and [`Committer`].
//!
//! Adapters know messages and offsets. They never see timely, epochs, checkpoints or other adapters. All contracts are
//! synchronous: each object lives on a thread of its own and may block there, for a bounded time. An adapter whose client
//! is asynchronous keeps a runtime handle and blocks on it.
//!
//! | object | thread | may block |
//! |---|---|---|
//! | [`Source`] | one per worker and source ("discovery") | seconds |
//! | [`Reader`] | one per worker and source ("reader") | up to the wait it was given |
//! | [`Committer`] | one per worker and source ("committer") | seconds; nothing waits for it but the end of the job |

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::message::{Message, Offset, Offsets, Reason, Split, SplitId};

/// A symbolic position. It is made numbers once, by [`Source::resolve`]; only numbers are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// The oldest message that the broker still has.
    Earliest,
    /// Behind the newest message that the broker has now.
    Latest,
    /// Where the name we commit under stands; [`Position::Earliest`] where it stands nowhere.
    Committed,
    /// The first message that is not older, in milliseconds since the Unix epoch; [`Position::Latest`] if there is none.
    Timestamp(u64),
}

/// How a source gives messages again that were read but not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// It can be read from any offset, as often as wanted.
    Seek,
    /// It delivers again what was not committed, when and to whom it likes.
    Redeliver,
    /// It does not.
    Lost,
}

/// A split to read: from where, and up to where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The split.
    pub split: Split,
    /// The first offset to read.
    pub from: Offset,
    /// Where to end: messages at this offset and above are not read. `None` reads for ever.
    pub until: Option<Offset>,
}

/// What a reader knows about how far it is in a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// There may be more to read now, or nobody knows: the broker is not reachable, or was not asked.
    Behind,
    /// The broker said, during this very call, that there is nothing more.
    CaughtUp,
    /// Everything below `until` was read, or the split is gone: nothing will come any more.
    Ended,
}

/// Whether a reader may give messages again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It may.
    Open,
    /// Every assigned split has ended. The reader may be called again, after [`Reader::assign`] or in vain.
    Ended,
}

/// What one call of [`Reader::read`] gives.
#[derive(Debug, Default)]
pub struct Batch {
    /// Messages, those of a split in the order of their offsets.
    pub messages: Vec<Message>,
    /// What is known about splits after these messages. A split that is not named is as it was: [`Evidence::CaughtUp`] holds
    /// for two seconds after it was last said.
    pub evidence: Vec<(SplitId, Evidence)>,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.evidence.clear();
    }
}

/// Makes the [`Source`] of a worker; every worker makes its own, on its own thread. Connects to nothing.
pub type NewSource = Arc<dyn Fn() -> Result<Box<dyn Source>> + Send + Sync>;

/// A topic (or several) of a broker, as one input of a job.
pub trait Source: Send {
    /// What people call it: a URL without secrets. Fixed.
    fn name(&self) -> &str;

    /// Lists the splits there are now. Splits may appear and disappear between calls; ids and ordinals never change.
    ///
    /// Called before anything else, and again every [`Source::discovery`]. At the first call a retryable error is tried again
    /// and any other ends the job; later ones are logged, and the list stays as it was. An empty list is not an error.
    fn splits(&mut self) -> Result<Vec<Split>>;

    /// How often the list of splits may change, or `None` if never.
    fn discovery(&self) -> Option<Duration>;

    /// Makes a symbolic position numbers, one for every split that is given. May be repeated.
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a position that this broker cannot find.
    fn resolve(&mut self, position: &Position, splits: &[Split]) -> Result<Offsets>;

    /// Opens a reader of these splits (perhaps none), and what commits for it.
    fn open(&mut self, assignments: &[Assignment]) -> Result<(Box<dyn Reader>, Box<dyn Committer>)>;

    /// How messages come again after a crash. Fixed.
    fn replay(&self) -> Replay;

    /// How many messages the broker still holds for these splits at or above these offsets, or `None` if it does not say.
    ///
    /// Asked when nothing has come for a while, to tell idle from stuck, and for lag.
    fn backlog(&mut self, from: &Offsets) -> Result<Option<u64>>;
}

/// Reads the splits that it was given.
pub trait Reader: Send {
    /// Appends messages to the batch, and what is known about the splits behind them.
    ///
    /// Returns as soon as it has something to say, messages or changed evidence, at the latest after `wait` and a bounded time
    /// more, so that the caller can stop. While it is caught up it says so at least every second. It gives at most a few
    /// thousand messages or about a mebibyte at a time (a single larger message alone).
    ///
    /// A retryable error means: call again later, messages may have been lost to us but not to the broker, and they will come.
    /// Any other error ends the job.
    fn read(&mut self, batch: &mut Batch, wait: Duration) -> Result<Progress>;

    /// Adds splits, and stops reading others. A removed split gives no message after this call.
    fn assign(&mut self, add: &[Assignment], remove: &[SplitId]) -> Result<()>;

    /// Stops (or goes on) giving messages of these splits, without losing any. A paused split is [`Evidence::Behind`].
    fn pause(&mut self, splits: &[SplitId], paused: bool) -> Result<()>;
}

/// Tells the broker what is done.
pub trait Committer: Send {
    /// Everything below these offsets is done; the rejected ones are done in a way that the broker may want to know.
    ///
    /// Splits that are not named stay as they are. May be repeated, may be skipped, may come with smaller offsets after a
    /// restart. For a log it moves the offset of a group, for tools to look at; for a queue it is the acknowledgement that
    /// deletes. An error is a warning and a counter: the next call brings these offsets or larger ones again.
    fn commit(&mut self, offsets: &Offsets, rejected: &[(SplitId, Offset, Reason)]) -> Result<()>;
}
