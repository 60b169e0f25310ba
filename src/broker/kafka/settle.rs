//! What a reader asks the broker beside messages: whether its positions are there, and whether it is still caught up.

use std::time::Duration;

use rdkafka::Offset as KafkaOffset;
use rdkafka::error::KafkaError;

use super::client::{ask_offsets, ask_partitions};
use super::error::classify;
use super::reader::KafkaReader;
use super::splits::{Phase, Place};
use crate::epoch::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Offset;
use crate::source::{Batch, Evidence, Lost, OnLost};

/// How often a split that has nothing to read asks for the end offset: twice within the life of the evidence. Splits whose
/// positions are in doubt ask as often.
const PROBE: Duration = Duration::from_millis(900);
/// How long such a question may take, while other splits are read, before the broker counts as away.
const PROBE_PATIENCE: Duration = Duration::from_secs(1);
/// How long it may take if nothing is read yet: the client may not even be connected.
const FIRST_PATIENCE: Duration = Duration::from_secs(3);
/// How long the broker must say that a partition does not exist until that is believed. Just after a start brokers do not know
/// everything.
const GONE_AFTER: Duration = Duration::from_secs(10);

type Answers = Vec<Result<Option<u64>, KafkaError>>;

impl KafkaReader {
    /// The client or the broker says that a split's position, or the whole partition, is not there. Nothing more is read of it
    /// until that is known for sure.
    pub(super) fn doubt(&mut self, place: Place, kind: ErrorKind, why: &str) -> Result<()> {
        let now = self.clock.monotonic();
        let split = self.splits.name(place);
        let Some(state) = self.splits.get(place).filter(|state| state.gives() || state.phase == Phase::Unsettled)
        else {
            return Ok(());
        };
        let gives = state.gives();
        state.phase = Phase::Unsettled;
        state.settled = false;
        match kind {
            ErrorKind::NotFound if state.unknown_since.is_none() => {
                state.unknown_since = Some(now);
                tracing::warn!(source = self.name, split, "the broker does not know this split now: {why}");
            }
            ErrorKind::OffsetLost => state.refused = true,
            _ => {}
        }
        tracing::debug!(source = self.name, split, %kind, "the position is looked at again: {why}");
        if gives {
            self.settle_at = Duration::ZERO;
            self.detach(place)?;
        }
        Ok(())
    }

    fn ask(&self, places: &[Place], at: KafkaOffset, patience: Duration) -> Result<Answers, KafkaError> {
        let places = places.iter().map(|place| (&**self.splits.topic_name(*place), place.partition));
        ask_offsets(&self.client, places, at, patience)
    }

    /// Compares positions that nobody has compared yet, or that turned out wrong, with what the broker has; then reads.
    pub(super) fn settle(&mut self, batch: &mut Batch) -> Result<()> {
        if self.clock.monotonic() < self.settle_at {
            return Ok(());
        }
        let mut places = self.splits.in_phase(Phase::Unsettled);
        if places.is_empty() {
            return Ok(());
        }
        let patience = match self.splits.iter().any(|(_, state)| state.gives()) {
            true => PROBE_PATIENCE,
            false => FIRST_PATIENCE,
        };
        self.keep_known(&mut places, patience)?;
        let firsts = self.ask(&places, KafkaOffset::Beginning, patience);
        let answers = firsts.and_then(|firsts| Ok((firsts, self.ask(&places, KafkaOffset::End, patience)?)));
        self.settle_at = self.clock.monotonic() + PROBE;
        let (firsts, ends) = match answers {
            Ok(answers) => answers,
            Err(error) => return self.later(error),
        };
        for ((place, first), end) in places.into_iter().zip(firsts).zip(ends) {
            match (first, end) {
                (Ok(Some(first)), Ok(Some(end))) => self.compare(place, first, end, batch)?,
                (Err(error), _) | (_, Err(error)) => self.unanswered(place, error)?,
                (Ok(_), Ok(_)) => {} // no number, so it is asked again
            }
        }
        Ok(())
    }

    /// A question came back without an answer: an error that will pass is no error, the client tells of connections itself.
    fn later(&self, error: KafkaError) -> Result<()> {
        let said = format!("cannot ask {} for offsets", self.name);
        let error = self.client_error(error, said);
        if !error.is_retryable() {
            return Err(error);
        }
        tracing::debug!(source = self.name, error = %error.report(), "positions are settled later");
        Ok(())
    }

    fn client_error(&self, error: KafkaError, context: String) -> Error {
        use rdkafka::consumer::Consumer;
        self.client.context().explain(error, ErrorKind::Read, context)
    }

    /// The broker has no answer for one split.
    fn unanswered(&mut self, place: Place, error: KafkaError) -> Result<()> {
        match classify(error.clone(), ErrorKind::Read, "").kind() {
            kind @ ErrorKind::NotFound => self.doubt(place, kind, &error.to_string()),
            _ => self.later(error),
        }
    }

    /// Leaves out the splits that the broker does not know; an error if that has been so for long.
    fn keep_known(&mut self, places: &mut Vec<Place>, patience: Duration) -> Result<()> {
        let mut doubtful: Vec<(Place, Duration)> = Vec::new();
        for place in places.iter() {
            if let Some(since) = self.splits.get(*place).and_then(|state| state.unknown_since) {
                doubtful.push((*place, since));
            }
        }
        for (place, since) in doubtful {
            let topic = self.splits.topic_name(place).clone();
            let known = match ask_partitions(&self.client, &topic, patience) {
                Ok(partitions) => {
                    partitions.iter().any(|partition| i64::from(*partition) == i64::from(place.partition))
                }
                Err(error) if classify(error.clone(), ErrorKind::Read, "").kind() == ErrorKind::NotFound => false,
                Err(error) => {
                    places.retain(|other| *other != place);
                    self.later(error)?;
                    continue;
                }
            };
            match self.splits.get(place) {
                Some(state) if known => state.unknown_since = None,
                _ if self.clock.monotonic().saturating_sub(since) < GONE_AFTER => {
                    places.retain(|other| *other != place);
                }
                state => {
                    let next = state.map_or(0, |state| state.next);
                    let text = format!(
                        "{} of {} is gone: the broker has not known it for {} s. It was read up to offset {next}; what was \
                         not read is lost. If the topic was deleted on purpose, start the job without it",
                        self.splits.name(place),
                        self.name,
                        GONE_AFTER.as_secs()
                    );
                    return Err(Error::new(ErrorKind::NotFound, text));
                }
            }
        }
        Ok(())
    }

    /// The broker has the offsets from `first` up to `end`: reads on, or says what is lost.
    fn compare(&mut self, place: Place, first: u64, end: u64, batch: &mut Batch) -> Result<()> {
        let (split, on_lost) = (self.splits.name(place), self.on_lost);
        let Some(state) = self.splits.get(place) else { return Ok(()) };
        state.unknown_since = None;
        let next = state.next;
        // Above the last stable offset may still be inside of the log: only if the broker refuses it, it is not.
        if next > end && std::mem::take(&mut state.refused) {
            let text = format!(
                "offset {next} of {split} of {} is beyond the end, which is {end}: another topic has the name now, or its log \
                 was cut. Nothing was read of it; to read it from its beginning: --start earliest",
                self.name
            );
            return Err(Error::new(ErrorKind::OffsetLost, text));
        }
        (state.refused, state.unproven) = (false, next > end);
        if next < first && state.until.is_none_or(|until| next < until) {
            let to = match on_lost {
                OnLost::Fail => {
                    let text = format!(
                        "offset {next} of {split} of {} is lost: the first one that the broker still has is {first}. To go on \
                         without what is between: --on_lost_offset earliest (from {first}) or latest (from {end})",
                        self.name
                    );
                    return Err(Error::new(ErrorKind::OffsetLost, text));
                }
                OnLost::Earliest => first,
                OnLost::Latest => end,
            };
            let to = state.until.map_or(to, |until| to.min(until));
            batch.lost.push(Lost { split: state.id, from: Offset(next), to: Offset(to) });
            (state.next, state.read) = (to, to);
        }
        state.settled = true;
        self.touched.push(place);
        if state.is_over() {
            state.phase = Phase::Ended;
            return Ok(());
        }
        state.phase = Phase::Reading;
        let next = state.next;
        self.attach(place, next)
    }

    /// Asks for the end offsets of the splits that have nothing to read: are they still caught up?
    pub(super) fn probe(&mut self, batch: &mut Batch) -> Result<()> {
        if self.clock.monotonic() < self.probe_at {
            return Ok(());
        }
        let idle = self.splits.in_phase(Phase::AtEnd);
        if idle.is_empty() {
            return Ok(());
        }
        let answer = self.ask(&idle, KafkaOffset::End, PROBE_PATIENCE);
        self.probe_at = self.clock.monotonic() + PROBE;
        let ends = answer.unwrap_or_else(|error| {
            tracing::debug!(source = self.name, %error, "the broker does not name end offsets");
            vec![Ok(None); idle.len()]
        });
        for (place, end) in idle.into_iter().zip(ends) {
            match end {
                Ok(end) => self.judge(place, end, batch)?,
                Err(error) => {
                    self.judge(place, None, batch)?;
                    self.unanswered(place, error)?;
                }
            }
        }
        Ok(())
    }

    /// Says what the last stable offset means for a split that had nothing to read.
    fn judge(&mut self, place: Place, end: Option<u64>, batch: &mut Batch) -> Result<()> {
        let high = self.queue.high_watermark(self.splits.native_name(place), place.partition);
        let split = self.splits.name(place);
        let Some(state) = self.splits.get(place) else { return Ok(()) };
        let (mut evidence, read) = (Evidence::Behind, state.read);
        match end {
            Some(end) if end > state.read => state.phase = Phase::Reading, // a message, or the next "end", is on its way
            Some(end) if end < state.read => {}
            Some(end) => {
                // The watermark is older than the answer: if it is higher, the broker does keep something back.
                state.held = high.filter(|high| *high > end).map(|_| end);
                evidence = state.evidence();
                if state.held != state.held_told {
                    state.held_told = state.held;
                    match state.held {
                        Some(stable) => tracing::warn!(
                            source = self.name,
                            split,
                            last_stable_offset = stable,
                            high_watermark = high,
                            "messages are there, but somebody's transaction is open: they cannot be read until it ends"
                        ),
                        None => tracing::info!(source = self.name, split, "the transaction has ended"),
                    }
                }
            }
            None => {}
        }
        if evidence != state.told || evidence == Evidence::CaughtUp {
            state.told = evidence;
            batch.evidence.push((state.id, evidence));
        }
        match end {
            // A log that was cut, or another one: the client may go on waiting for what comes behind our position.
            Some(end) if end < read => self.doubt(place, ErrorKind::Read, "it ends before our position"),
            _ => Ok(()),
        }
    }
}
