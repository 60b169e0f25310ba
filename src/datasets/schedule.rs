//! Which records a dataset has, and when each of them happens and arrives.
//!
//! The records of a key that is on time are at most `gap` apart. A duplicate is newer than its record by more than the
//! disorder, so that it also arrives later, and by less than a third of the window. A late record comes more than a window
//! after the others. So the right answer is the same however a job interleaves the files.

use super::line::Fault;
use super::options::Options;
use super::random::{Random, mix};

/// One key in so many is hot.
const HOT_EVERY: u64 = 1_000;

/// One line of the dataset. Ordered by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    /// When it arrives: after its event time, by less than the disorder.
    pub arrival: u64,
    /// The topic, by index.
    pub topic: u8,
    /// What is wrong with the line.
    pub fault: Option<Fault>,
    /// Which key field is wrong.
    pub damaged: u8,
    /// Event time.
    pub time: u64,
    /// The number of the key.
    pub key: u64,
}

/// When a key begins.
pub(super) fn base(key: u64, options: &Options) -> u64 {
    options.start_ms + (key as f64 * 1_000.0 / options.rate) as u64
}

/// Every line, in the order of arrival.
pub(super) fn schedule(fields: &[usize], options: &Options) -> Vec<Event> {
    let mut plan = Plan { events: vec![], bad: 0, random: Random::new(mix(options.seed)), fields, options };
    let limit = options.records.unwrap_or(u64::MAX) as usize;
    let mut key = 0;
    while key < options.keys.unwrap_or(u64::MAX) && plan.events.len() < limit {
        plan.key(key);
        key += 1;
    }
    let mut events = plan.events;
    events.truncate(limit);
    events.sort_unstable();
    events
}

struct Plan<'a> {
    events: Vec<Event>,
    /// Bad lines so far.
    bad: usize,
    random: Random,
    /// How many key fields each topic has.
    fields: &'a [usize],
    options: &'a Options,
}

impl Plan<'_> {
    fn key(&mut self, key: u64) {
        let options = self.options;
        let topics = self.fields.len();
        let base = base(key, options);
        let mut missing = [None, None];
        let mut late = None;
        let fate = self.random.unit();
        if fate < options.unmatched * topics as f64 {
            let first = (fate / options.unmatched) as usize;
            missing[0] = Some(first.min(topics - 1));
            if topics > 2 && self.random.chance(0.25) {
                missing[1] = Some((first + 1) % topics); // two of them are missing
            }
        } else if fate < options.unmatched * topics as f64 + options.late {
            late = Some(self.random.below(topics as u64) as usize);
        }
        let mut first = self.random.below(topics as u64) as usize;
        while missing.contains(&Some(first)) || late == Some(first) {
            first = (first + 1) % topics;
        }
        for topic in (0..topics).filter(|topic| !missing.contains(&Some(*topic))) {
            let distance = match () {
                () if topic == first => 0,
                () if late == Some(topic) => {
                    let window = options.window_ms;
                    window + 2 * options.disorder_ms + 1_000 + self.random.below(window / 2)
                }
                () => self.random.below(options.gap_ms),
            };
            self.record(topic, key, base + distance);
        }
    }

    fn record(&mut self, topic: usize, key: u64, time: u64) {
        let options = self.options;
        self.push(topic, key, time, None);
        let mut duplicates = u64::from(self.random.chance(options.duplicates * (1.0 - options.skew)));
        if key.is_multiple_of(HOT_EVERY) {
            duplicates += (options.duplicates * options.skew * HOT_EVERY as f64) as u64;
        }
        for _ in 0..duplicates {
            let least = options.disorder_ms + 1_000;
            let after = least + self.random.below(options.reach_ms() - least);
            self.push(topic, key, time + after, None);
        }
        if self.random.chance(options.bad) {
            self.push(topic, key, time, Some(Fault::ALL[self.bad % Fault::ALL.len()]));
            self.bad += 1;
        }
    }

    fn push(&mut self, topic: usize, key: u64, time: u64, fault: Option<Fault>) {
        let arrival = time + self.random.below(self.options.disorder_ms);
        let damaged = (self.bad / Fault::ALL.len() % self.fields[topic]) as u8;
        self.events.push(Event { arrival, topic: topic as u8, fault, damaged, time, key });
    }
}
