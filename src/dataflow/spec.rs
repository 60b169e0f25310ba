//! An input as a program describes it.

use std::time::Duration;

use crate::codec::NewCodec;
use crate::dataflow::dedup::DEFAULT_REMEMBER_IDS;
use crate::reader::{OnBad, Until};
use crate::source::{NewSource, Position};

/// An input of a job: a source, how its messages are decoded, where it begins and ends.
#[derive(Clone)]
pub struct Input<T> {
    pub(super) name: String,
    pub(super) new_source: NewSource,
    pub(super) new_codec: NewCodec<T>,
    pub(super) start: Position,
    pub(super) until: Until,
    pub(super) on_bad: OnBad,
    pub(super) on_null: OnBad,
    pub(super) remember_ids: Duration,
}

impl<T> std::fmt::Debug for Input<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input")
            .field("name", &self.name)
            .field("start", &self.start)
            .field("until", &self.until)
            .finish()
    }
}

impl<T> Input<T> {
    /// An input that starts where it was committed, else at the earliest message, is followed for ever, and ends the job at the
    /// first message that the codec refuses. The name is for people.
    pub fn new(name: impl Into<String>, source: NewSource, codec: NewCodec<T>) -> Self {
        Input {
            name: name.into(),
            new_source: source,
            new_codec: codec,
            start: Position::COMMITTED,
            until: Until::Never,
            on_bad: OnBad::Fail,
            on_null: OnBad::Skip,
            remember_ids: DEFAULT_REMEMBER_IDS,
        }
    }

    /// Starts somewhere else.
    #[must_use]
    pub fn start(mut self, start: Position) -> Self {
        self.start = start;
        self
    }

    /// Ends somewhere.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// What becomes of messages that the codec refuses.
    #[must_use]
    pub fn on_bad(mut self, on_bad: OnBad) -> Self {
        self.on_bad = on_bad;
        self
    }

    /// What becomes of tombstones that the codec refuses.
    #[must_use]
    pub fn on_null(mut self, on_null: OnBad) -> Self {
        self.on_null = on_null;
        self
    }

    /// How long the id of a message is remembered after its broker has taken the acknowledgement, in time in which the job is up; for
    /// sources that deliver again what they have delivered ([`Replay::Redeliver`](crate::source::Replay::Redeliver)), of which a second
    /// delivery is dropped meanwhile and counted as [`Reason::Redelivered`](crate::message::Reason::Redelivered). Longer than a killed
    /// broker may have forgotten acknowledgements, or holds messages back for readers that are gone. An id takes about 70 bytes of
    /// memory. Default: ten minutes. Without a [store](crate::Job::store) ids last as long as the run.
    #[must_use]
    pub fn remember_ids(mut self, remember_ids: Duration) -> Self {
        self.remember_ids = remember_ids;
        self
    }

    /// Whether some message of it may become a dead letter.
    pub(crate) fn wants_dead_letters(&self) -> bool {
        [self.on_bad, self.on_null].contains(&OnBad::DeadLetter)
    }
}
