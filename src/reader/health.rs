//! Whether a silent split is idle or stuck. Pure: time is handed in.
//!
//! A split is idle while the reader says that it is caught up. Where it says nothing of the kind and gives nothing, the broker is
//! asked what it holds. If it holds something for `stuck_after` without a break while nothing comes, the client is stuck: known
//! clients stop for good after a rebalance, or after some thousand messages. Then the reader is opened anew. What the broker
//! counts may be no messages (markers of transactions, what compaction took away), so each time that brings nothing
//! doubles the wait.
//!
//! Time counts only while the split could have given something: not while it is paused, not while the worker is slow, not while
//! the broker does not answer, and not while we did not look.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::message::{Offset, Offsets, SplitId};
use crate::source::{Assignment, Evidence};
use crate::split_time::EVIDENCE_AGE;

/// How often the broker is asked at most.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// How often it is looked whether there is something to ask.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A time without a look in which nobody can say what the split would have given.
const LOOKED_AWAY: Duration = EVIDENCE_AGE;

/// Questions take at most this part of the time of the thread that asks.
const PART_OF_TIME: u32 = 100;

/// What is known of a split.
#[derive(Debug)]
struct State {
    next: Offset,
    /// When it was last said to be caught up.
    caught_up: Option<Duration>,
    /// Since when it could have given something, and has not.
    since: Duration,
    /// When the broker first said that it holds something, since then.
    held_since: Option<Duration>,
    /// How long that may last.
    patience: Duration,
    paused: bool,
    ended: bool,
}

impl State {
    fn is_behind(&self, now: Duration) -> bool {
        !self.ended && self.caught_up.is_none_or(|said| now.saturating_sub(said) > EVIDENCE_AGE)
    }

    fn could_give(&mut self, since: Duration) {
        self.since = since;
        self.held_since = None;
    }
}

/// What to ask a broker.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// The positions of all splits that are not known to be caught up.
    pub all: Offsets,
    /// Those of them that have been silent for some time.
    pub silent: Offsets,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing.
    Later,
    /// Nothing, and everything was read.
    CaughtUp,
    /// To ask the broker, and to tell [`Health::answer`].
    Ask(Question),
}

/// The health of the splits of a reader.
#[derive(Debug)]
pub(super) struct Health {
    stuck_after: Duration,
    ask_every: Duration,
    splits: BTreeMap<SplitId, State>,
    look_at: Duration,
    ask_at: Duration,
    last: Duration,
    /// When the question was asked that is not answered, and of which silent splits.
    asked: Option<(Duration, Vec<SplitId>)>,
}

impl Health {
    pub fn new(stuck_after: Duration, now: Duration) -> Self {
        let ask_every = ASK_EVERY.min(stuck_after / 4);
        let splits = BTreeMap::new();
        Health { stuck_after, ask_every, splits, look_at: now, ask_at: now + ask_every, last: now, asked: None }
    }

    pub fn add(&mut self, assignment: &Assignment, now: Duration) {
        let state = State {
            next: assignment.from,
            caught_up: None,
            since: now,
            held_since: None,
            patience: self.stuck_after,
            paused: false,
            ended: false,
        };
        self.splits.insert(assignment.split.id, state);
    }

    pub fn remove(&mut self, split: SplitId) {
        self.splits.remove(&split);
    }

    /// The position to read a split from.
    pub fn next(&self, split: SplitId) -> Option<Offset> {
        self.splits.get(&split).map(|state| state.next)
    }

    /// Whether a split may still give something.
    pub fn is_open(&self, split: SplitId) -> bool {
        self.splits.get(&split).is_some_and(|state| !state.ended)
    }

    /// Messages of a split came.
    pub fn read(&mut self, split: SplitId, next: Offset, now: Duration) {
        if let Some(state) = self.splits.get_mut(&split) {
            state.next = next;
            state.patience = self.stuck_after;
            state.could_give(now);
        }
    }

    /// Offsets of a split were lost.
    pub fn skip(&mut self, split: SplitId, to: Offset) {
        if let Some(state) = self.splits.get_mut(&split) {
            state.next = state.next.max(to);
        }
    }

    pub fn evidence(&mut self, split: SplitId, evidence: Evidence, now: Duration) {
        if let Some(state) = self.splits.get_mut(&split) {
            state.ended |= evidence == Evidence::Ended;
            state.caught_up = (evidence == Evidence::CaughtUp).then_some(now);
            if state.caught_up.is_some() {
                state.could_give(now);
            }
        }
    }

    pub fn pause(&mut self, split: SplitId, paused: bool, now: Duration) {
        if let Some(state) = self.splits.get_mut(&split) {
            state.paused = paused;
            state.could_give(now);
        }
    }

    /// Nothing could be given until now, by no fault of the client.
    pub fn excuse(&mut self, now: Duration) {
        self.splits.values_mut().for_each(|state| state.could_give(now));
    }

    /// To be called all the time: says what to do.
    pub fn look(&mut self, now: Duration) -> Look {
        if now.saturating_sub(std::mem::replace(&mut self.last, now)) > LOOKED_AWAY {
            self.excuse(now);
        }
        if now < self.look_at || self.asked.is_some() {
            return Look::Later;
        }
        self.look_at = now + LOOK_EVERY.min(self.ask_every);
        let behind = || self.splits.iter().filter(|(_, state)| state.is_behind(now));
        if behind().next().is_none() {
            return Look::CaughtUp;
        }
        if now < self.ask_at {
            return Look::Later;
        }
        let is_silent = |state: &State| !state.paused && now.saturating_sub(state.since) >= self.ask_every;
        let silent: Offsets = behind().filter(|(_, s)| is_silent(s)).map(|(id, s)| (*id, s.next)).collect();
        let all = behind().map(|(id, state)| (*id, state.next)).collect();
        self.asked = Some((now, silent.keys().copied().collect()));
        Look::Ask(Question { all, silent })
    }

    /// The broker has answered how much it holds for the splits that were silent (`None`: it does not say; an error: it could
    /// not be asked), and how long asking took. Says which splits are stuck, and how long each has given nothing.
    pub fn answer(
        &mut self,
        silent: Result<Option<u64>, ()>,
        took: Duration,
        now: Duration,
    ) -> Vec<(SplitId, Duration)> {
        let Some((asked, ids)) = self.asked.take() else { return vec![] };
        self.ask_at = now + self.ask_every.max(took.saturating_mul(PART_OF_TIME));
        let mut stuck = vec![];
        for id in ids {
            let Some(state) = self.splits.get_mut(&id) else { continue };
            match silent {
                _ if state.since > asked || state.paused || !state.is_behind(now) => {} // it has said something meanwhile
                Err(()) => state.could_give(now),
                Ok(None | Some(0)) => state.held_since = None,
                Ok(Some(_)) => {
                    let since = *state.held_since.get_or_insert(asked);
                    if now.saturating_sub(since) >= state.patience {
                        stuck.push((id, now.saturating_sub(state.since)));
                        state.patience = state.patience.saturating_mul(2);
                    }
                }
            }
        }
        stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Split;

    const SECOND: Duration = Duration::from_secs(1);
    const STUCK_AFTER: Duration = Duration::from_secs(60);

    fn id(number: u32) -> SplitId {
        SplitId::numbered("t", number)
    }

    /// Splits 0 and 1 at offset 0.
    fn health() -> Health {
        let mut health = Health::new(STUCK_AFTER, Duration::ZERO);
        for ordinal in 0..2 {
            let split = Split { id: id(ordinal), ordinal, name: String::new() };
            health.add(&Assignment { split, from: Offset(0), until: None }, Duration::ZERO);
        }
        health
    }

    /// Lets seconds pass in which the reader looks, does this, and the broker answers that of every split that is silent.
    /// Gives the seconds at which split 0 was stuck, and the number of questions.
    fn run(
        health: &mut Health,
        seconds: std::ops::Range<u32>,
        answer: Result<Option<u64>, ()>,
        mut each: impl FnMut(&mut Health, Duration),
    ) -> (Vec<u32>, u32) {
        let (mut stuck, mut questions) = (vec![], 0);
        for second in seconds {
            let now = second * SECOND;
            each(health, now);
            if let Look::Ask(question) = health.look(now) {
                questions += 1;
                let answer = if question.silent.is_empty() { Ok(Some(0)) } else { answer };
                let found = health.answer(answer, Duration::from_millis(5), now);
                stuck.extend(found.iter().filter(|(split, _)| *split == id(0)).map(|_| second));
                if !found.is_empty() {
                    health.excuse(now); // it was opened anew
                }
            }
        }
        (stuck, questions)
    }

    #[test]
    fn a_split_that_gives_nothing_of_what_there_is_is_stuck_and_is_given_more_time_each_time() {
        let (stuck, questions) = run(&mut health(), 0..600, Ok(Some(5)), |_, _| {});
        assert_eq!(stuck.len(), 3, "{stuck:?}");
        assert_eq!(stuck[0], 70); // asked first after 10 s of silence, and 60 s more
        assert_eq!((stuck[1] - stuck[0], stuck[2] - stuck[1]), (130, 250));
        assert!(questions <= 60);
        // What comes makes it short again.
        let mut health = health();
        assert_eq!(run(&mut health, 0..100, Ok(Some(5)), |_, _| {}).0, [70]);
        health.read(id(0), Offset(7), 100 * SECOND);
        let stuck = run(&mut health, 100..200, Ok(Some(5)), |_, _| {}).0;
        assert!(stuck.len() == 1 && stuck[0] >= 170, "{stuck:?}");
        assert_eq!(health.next(id(0)), Some(Offset(7)));
    }

    #[test]
    fn one_split_can_be_stuck_beside_one_that_gives() {
        let mut offset = 0;
        let (stuck, _) = run(&mut health(), 0..100, Ok(Some(5)), |health, now| {
            offset += 1;
            health.read(id(1), Offset(offset), now);
        });
        assert_eq!(stuck, [70]);
    }

    #[test]
    fn nobody_is_stuck_who_could_not_give_anything() {
        let never = |answer, each: &dyn Fn(&mut Health, Duration)| {
            let (stuck, questions) = run(&mut health(), 0..1_000, answer, each);
            assert!(stuck.is_empty(), "{stuck:?}");
            questions
        };
        never(Ok(Some(0)), &|_, _| {});
        never(Ok(None), &|_, _| {});
        never(Err(()), &|_, _| {});
        never(Ok(Some(5)), &|health, now| (0..2).for_each(|split| health.pause(id(split), true, now)));
        never(Ok(Some(5)), &|health, now| {
            if now.as_secs() % 30 == 0 {
                health.excuse(now);
            }
        });
        let caught_up = |health: &mut Health, now| {
            (0..2).for_each(|split| health.evidence(id(split), Evidence::CaughtUp, now));
        };
        assert_eq!(never(Ok(Some(5)), &caught_up), 0, "whoever is caught up is not asked for");
        let ended =
            |health: &mut Health, now| (0..2).for_each(|split| health.evidence(id(split), Evidence::Ended, now));
        assert_eq!(never(Ok(Some(5)), &ended), 0);
    }

    #[test]
    fn nothing_counts_that_was_not_looked_at_or_is_old_news() {
        let mut health = health();
        assert!(run(&mut health, 0..60, Ok(Some(5)), |_, _| {}).0.is_empty());
        assert!(run(&mut health, 4_000..4_060, Ok(Some(5)), |_, _| {}).0.is_empty(), "the process was stopped");
        let Some(Look::Ask(_)) =
            (4_060..4_100).map(|s| health.look(s * SECOND)).find(|look| matches!(look, Look::Ask(_)))
        else {
            panic!("no question")
        };
        health.read(id(0), Offset(1), 4_200 * SECOND);
        health.evidence(id(1), Evidence::CaughtUp, 4_200 * SECOND);
        assert!(health.answer(Ok(Some(5)), 2 * SECOND, 4_200 * SECOND).is_empty());
        let later = (4_201..5_000).find(|second| health.look(*second * SECOND) != Look::Later);
        assert_eq!(later, Some(4_400), "a question that took long is not asked soon again");
    }
}
