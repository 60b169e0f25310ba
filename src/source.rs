//! What a broker must be able to do to be read: the contracts [`Source`], [`Reader`] and [`Committer`].
//!
//! Adapters know messages and offsets. They never see timely, epochs, checkpoints or other adapters. All contracts are
//! synchronous: each object lives on a thread of its own and may block there, for a bounded time. An adapter whose client
//! is asynchronous keeps a runtime handle and blocks on it.
//!
//! | object | thread | may block |
//! |---|---|---|
//! | [`Source`] | one per worker and source ("source") | seconds |
//! | [`Reader`] | one per worker and source ("reader") | up to the wait it was given |
//! | [`Committer`] | one per worker and source ("committer") | seconds; nothing waits for it but the end of the job |

use std::collections::BTreeMap;
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
    /// Where the name we commit under stands.
    Committed {
        /// What holds for splits where it stands nowhere.
        otherwise: Otherwise,
    },
    /// The first message that is not older, in milliseconds since the Unix epoch; [`Position::Latest`] if there is none.
    Timestamp(u64),
    /// These offsets, by the names of splits; [`Position::Earliest`] for splits that are not named. Nobody asks the broker
    /// whether they are there: the reader finds out. A job that is started with the name of no split ends with an error. Where
    /// messages are delivered again it is where the numbers of deliveries begin: that is for checkpoints, and no start of a job.
    Exact(BTreeMap<String, Offset>),
}

impl Position {
    /// Where the name we commit under stands; [`Position::Earliest`] where it stands nowhere.
    pub const COMMITTED: Position = Position::Committed { otherwise: Otherwise::Earliest };
}

/// What a [`Position::Committed`] is for a split of which nothing was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// [`Position::Earliest`].
    Earliest,
    /// [`Position::Latest`].
    Latest,
}

/// How often splits are looked for that were not there at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discovery {
    /// As the adapter does if it is told nothing.
    #[default]
    Usual,
    /// So often. More often costs the broker a question each, less often delays what is in the new splits.
    Every(Duration),
    /// Never: splits that come later are not read.
    Off,
}

impl Discovery {
    /// The time between two looks, of an adapter that usually waits so long.
    pub fn every(self, usual: Duration) -> Option<Duration> {
        match self {
            Discovery::Usual => Some(usual),
            Discovery::Every(every) => Some(every),
            Discovery::Off => None,
        }
    }
}

/// What a reader does when the messages at its offset are no longer there, because the broker keeps them for a while only.
///
/// An offset beyond the end is an error in any case: it is one of another topic that had the name before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLost {
    /// [`ErrorKind::OffsetLost`](crate::ErrorKind::OffsetLost).
    #[default]
    Fail,
    /// It goes on with the oldest message there is, and says so in [`Batch::lost`].
    Earliest,
    /// It goes on behind the newest message there is, and says so in [`Batch::lost`].
    Latest,
}

/// Offsets that were skipped, as [`OnLost`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The split.
    pub split: SplitId,
    /// The first offset that was skipped.
    pub from: Offset,
    /// Where it goes on.
    pub to: Offset,
}

impl Lost {
    /// How many offsets were skipped: at least as many as there were messages.
    pub fn offsets(&self) -> u64 {
        self.to.0.saturating_sub(self.from.0)
    }
}

/// How a source gives messages again that were read but not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// It can be read from any offset, as often as wanted.
    Seek,
    /// It delivers again what was not committed, when and to whom it likes; also what was, if the broker has forgotten it. Every
    /// message has an [id](Message::id), and a second delivery is dropped by it.
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
    /// Offsets that were skipped before these messages. Nothing is ever skipped without a word here.
    pub lost: Vec<Lost>,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.evidence.clear();
        self.lost.clear();
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
    ///
    /// Called once; again, with the offsets that the last one has reached, if that reader gave nothing although there is a
    /// backlog. That one is dropped before, and what committed for it after this call.
    fn open(&mut self, assignments: &[Assignment]) -> Result<(Box<dyn Reader>, Box<dyn Committer>)>;

    /// How messages come again after a crash. Fixed.
    fn replay(&self) -> Replay;

    /// How many messages the broker still holds for these splits at or above these offsets, or `None` if it does not say.
    ///
    /// Asked about every ten seconds of splits that are not known to be caught up, to tell idle from stuck, and for lag; more
    /// rarely where it takes long.
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
