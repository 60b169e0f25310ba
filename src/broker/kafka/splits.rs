//! The splits of a reader: what is known of each, and where to find it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;
use std::time::Duration;

use crate::message::SplitId;
use crate::source::Evidence;

/// What a split is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its position is to be compared with what the broker has. Not assigned to the client.
    Unsettled,
    /// Messages come, or may come at any moment.
    Reading,
    /// The broker said "end of partition", and nothing has come since.
    AtEnd,
    /// The caller wants no messages for now. Not assigned to the client.
    Paused,
    /// Everything below `until` was read. Not assigned to the client.
    Ended,
}

/// A split, with everything about its position.
#[derive(Debug)]
pub(super) struct State {
    pub id: SplitId,
    /// The next offset to give. Grows with every message.
    pub next: u64,
    /// Everything below was read, offsets without messages included. At least `next`.
    pub read: u64,
    pub until: Option<u64>,
    pub phase: Phase,
    /// Its position was compared with what the broker has.
    pub settled: bool,
    /// The broker refused to give messages from here.
    pub refused: bool,
    /// It was above the end, so whether there is such an offset is for the broker to say, by an answer from there.
    pub unproven: bool,
    /// Messages are there that cannot be read: the broker keeps them back until somebody's transaction ends. The offset is where
    /// they begin.
    pub held: Option<u64>,
    /// What was said of that to people.
    pub held_told: Option<u64>,
    /// Since when the broker says that there is no such partition, on the monotonic clock.
    pub unknown_since: Option<Duration>,
    /// What the caller was told last.
    pub told: Evidence,
}

impl State {
    /// A split that is to be read from an offset.
    pub fn new(id: SplitId, from: u64, until: Option<u64>) -> Self {
        State {
            id,
            next: from,
            read: from,
            until,
            phase: Phase::Unsettled,
            settled: false,
            refused: false,
            unproven: false,
            held: None,
            held_told: None,
            unknown_since: None,
            told: Evidence::Behind,
        }
    }

    /// Whether the client has it.
    pub fn gives(&self) -> bool {
        matches!(self.phase, Phase::Reading | Phase::AtEnd)
    }

    /// Whether there is nothing more below `until`.
    pub fn is_over(&self) -> bool {
        !self.unproven && self.until.is_some_and(|until| self.read >= until)
    }

    /// The broker said that everything below `offset` was given. `high` is the high watermark that it named, perhaps later: if
    /// it is above, there is more, be it new or kept back.
    pub fn at_end(&mut self, offset: Option<u64>, high: Option<u64>) {
        self.phase = Phase::AtEnd;
        self.unproven = false;
        self.read = self.read.max(offset.unwrap_or_default());
        self.held = high.filter(|high| *high > self.read).map(|_| self.read);
    }

    /// What is known about how far it is.
    pub fn evidence(&self) -> Evidence {
        match self.phase {
            Phase::AtEnd if self.held.is_none() => Evidence::CaughtUp,
            Phase::Unsettled | Phase::Reading | Phase::AtEnd | Phase::Paused => Evidence::Behind,
            Phase::Ended => Evidence::Ended,
        }
    }
}

/// Where a split is found: the number of its topic here, and its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    topic: usize,
    /// The partition.
    pub partition: i32,
}

#[derive(Debug)]
struct TopicSplits {
    name: Arc<str>,
    native: CString,
    /// By partition.
    states: Vec<Option<State>>,
}

/// All splits of a reader.
#[derive(Debug, Default)]
pub(super) struct Splits {
    topics: Vec<TopicSplits>,
    by_name: BTreeMap<Arc<str>, usize>,
    by_id: BTreeMap<SplitId, Place>,
}

impl Splits {
    /// Adds a split, in place of the same one.
    pub fn insert(&mut self, topic: &Arc<str>, partition: i32, state: State) -> Place {
        let next = self.topics.len();
        let topic = *self.by_name.entry(Arc::clone(topic)).or_insert_with(|| {
            // Names of topics hold no zero bytes: the broker said them, or they were checked.
            let native = CString::new(topic.as_bytes()).unwrap_or_default();
            self.topics.push(TopicSplits { name: Arc::clone(topic), native, states: Vec::new() });
            next
        });
        let place = Place { topic, partition };
        let states = &mut self.topics[topic].states;
        let index = usize::try_from(partition).unwrap_or_default(); // ids have no room for less than 0
        if states.len() <= index {
            states.resize_with(index + 1, || None);
        }
        self.by_id.insert(state.id, place);
        states[index] = Some(state);
        place
    }

    /// Takes a split away.
    pub fn remove(&mut self, split: SplitId) -> Option<(Place, State)> {
        let place = self.by_id.remove(&split)?;
        let states = &mut self.topics[place.topic].states;
        Some((place, states.get_mut(usize::try_from(place.partition).ok()?)?.take()?))
    }

    /// The number of a topic.
    pub fn topic(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Where a partition of a topic is found. There may be no split.
    pub fn place(&self, topic: usize, partition: i32) -> Place {
        Place { topic, partition }
    }

    /// Where a split is found.
    pub fn find(&self, split: SplitId) -> Option<Place> {
        self.by_id.get(&split).copied()
    }

    /// The split at a place.
    pub fn get(&mut self, place: Place) -> Option<&mut State> {
        self.topics.get_mut(place.topic)?.states.get_mut(usize::try_from(place.partition).ok()?)?.as_mut()
    }

    /// The topic of a place.
    pub fn topic_name(&self, place: Place) -> &Arc<str> {
        &self.topics[place.topic].name
    }

    /// The topic of a place, for the client.
    pub fn native_name(&self, place: Place) -> &CString {
        &self.topics[place.topic].native
    }

    /// What people call a split.
    pub fn name(&self, place: Place) -> String {
        format!("{}[{}]", self.topic_name(place), place.partition)
    }

    /// Every split, topic after topic.
    pub fn iter(&mut self) -> impl Iterator<Item = (Place, &mut State)> {
        self.topics.iter_mut().enumerate().flat_map(|(topic, splits)| {
            let states = splits.states.iter_mut().zip(0..);
            states.filter_map(move |(state, partition)| Some((Place { topic, partition }, state.as_mut()?)))
        })
    }

    /// The places of the splits that are in a phase.
    pub fn in_phase(&mut self, phase: Phase) -> Vec<Place> {
        self.iter().filter(|(_, state)| state.phase == phase).map(|(place, _)| place).collect()
    }
}
