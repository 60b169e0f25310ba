//! The rules as plain as they can be said: one key, one epoch, lists and maps. Written from the text of the design, not from
//! the operator; every other formulation is held against it.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use syncline::dataflow::Tick;
use syncline::epoch::Epoch;
use syncline::message::{Offset, Reason, SplitId};
use syncline::sync::{AtEnd, Counts, Duplicates, Entry, Key, KeyHash, Late, Options, Output, Phase, Record};

use super::script::Step;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot {
    pub split: SplitId,
    pub offset: Offset,
    pub timestamp: u64,
    pub payload: Bytes,
    pub deadline: u64,
    pub epoch: Epoch,
}

/// What a key is, between epochs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Life {
    /// Waiting, with the latest possible deadline.
    Waiting {
        slots: BTreeMap<u8, Slot>,
        cap: Option<u64>,
    },
    Delayed {
        slots: BTreeMap<u8, Slot>,
        until: u64,
    },
    Done {
        until: u64,
        late: bool,
    },
    Closed {
        until: u64,
        sides: u8,
    },
}

impl Life {
    /// The phase ends when the clock is beyond this.
    pub fn deadline(&self) -> u64 {
        match self {
            Life::Waiting { slots, cap } => slots.values().map(|slot| slot.deadline).chain(*cap).min().unwrap(),
            Life::Delayed { until, .. } | Life::Done { until, .. } | Life::Closed { until, .. } => *until,
        }
    }

    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        let slots = match self {
            Life::Waiting { slots, .. } | Life::Delayed { slots, .. } => Some(slots),
            _ => None,
        };
        slots.into_iter().flat_map(|slots| slots.values())
    }
}

fn entry(slot: &Slot) -> Entry<Bytes> {
    Entry {
        split: slot.split,
        offset: slot.offset,
        timestamp: slot.timestamp,
        payload: slot.payload.clone(),
        item: None,
    }
}

fn window(side: u8, options: &Options) -> u64 {
    options.windows[usize::from(side)].as_millis() as u64
}

/// The deadline passed: the output that tells so, or a count.
fn tell(key: &Key, slots: &BTreeMap<u8, Slot>, options: &Options, counts: &mut Counts) -> Option<Output<Bytes>> {
    if !options.emit_delays {
        counts.unmatched += 1;
        return None;
    }
    counts.delays += 1;
    let sides = 0..options.windows.len() as u8;
    Some(Output::Delayed { key: key.clone(), records: sides.map(|side| slots.get(&side).map(entry)).collect() })
}

/// Everything that happens to a key in an epoch whose clock is `tick`: its next life, and what is said.
pub fn step(
    key: &Key,
    life: Option<Life>,
    arrivals: &[Record<Bytes>],
    tick: Tick,
    epoch: Epoch,
    options: &Options,
    counts: &mut Counts,
) -> (Option<Life>, Option<Output<Bytes>>) {
    let clock = tick.time;
    let remember = options.remember.as_millis() as u64;
    counts.arrived += arrivals.len() as u64;

    // 2, 3: marks take everything.
    let mut output = None;
    let mut life = match life {
        Some(Life::Done { .. }) => {
            counts.dropped[Reason::Duplicate as usize] += arrivals.len() as u64;
            life
        }
        Some(Life::Closed { .. }) => {
            counts.dropped[Reason::Late as usize] += arrivals.len() as u64;
            life
        }
        // 1, 4: one record of each side, into its slot.
        _ => arrive(life, arrivals, clock, epoch, options, counts),
    };

    // 5: all are there.
    let late = matches!(life, Some(Life::Delayed { .. }));
    if let Some(Life::Waiting { slots, .. } | Life::Delayed { slots, .. }) = &life
        && slots.len() == options.windows.len()
    {
        counts.joins += 1;
        counts.late_joins += u64::from(late);
        counts.joined_records += slots.len() as u64;
        output = Some(Output::Joined { key: key.clone(), late, records: slots.values().map(entry).collect() });
        // From the join on, which is not before its newest record: the clock stands still until every split was read.
        let since = slots.iter().map(|(side, slot)| slot.deadline - window(*side, options)).max().unwrap().max(clock);
        life = Some(Life::Done { until: since + remember, late });
    }

    // 6, 7: whose time is over.
    if life.as_ref().is_some_and(|life| life.deadline() < clock) {
        life = match life {
            Some(Life::Waiting { slots, .. }) => {
                output = tell(key, &slots, options, counts);
                match options.late {
                    Late::Join => Some(Life::Delayed { slots, until: clock + remember }),
                    Late::Drop => {
                        counts.expired_records += slots.len() as u64;
                        let sides = slots.keys().map(|side| 1 << side).sum();
                        Some(Life::Closed { until: clock + remember, sides })
                    }
                }
            }
            Some(Life::Delayed { slots, .. }) => {
                counts.expired_records += slots.len() as u64;
                None
            }
            _ => None,
        };
    }

    // 8: the end.
    if tick.end && options.at_end == AtEnd::Delay {
        if let Some(Life::Waiting { slots, .. }) = &life {
            output = tell(key, slots, options, counts);
        }
        counts.expired_records += life.iter().flat_map(Life::slots).count() as u64;
        life = life.filter(|life| matches!(life, Life::Done { .. } | Life::Closed { .. }));
    }
    (life, output)
}

fn arrive(
    life: Option<Life>,
    arrivals: &[Record<Bytes>],
    clock: u64,
    epoch: Epoch,
    options: &Options,
    counts: &mut Counts,
) -> Option<Life> {
    let last = options.duplicates == Duplicates::Last;
    let loses = if last { Reason::Overridden } else { Reason::Duplicate } as usize;
    let absent = life.is_none();
    let (mut slots, mut cap, until) = match life {
        Some(Life::Waiting { slots, cap }) => (slots, cap, None),
        Some(Life::Delayed { slots, until }) => (slots, None, Some(until)),
        _ => (BTreeMap::new(), None, None),
    };
    let mut first_base = None;
    for side in 0..options.windows.len() as u8 {
        let mut candidates: BTreeMap<SplitId, &Record<Bytes>> = BTreeMap::new();
        for record in arrivals.iter().filter(|record| record.side == side) {
            let candidate = candidates.entry(record.split).or_insert(record);
            if (record.offset > candidate.offset) == last {
                *candidate = record;
            }
        }
        let ranked = candidates.into_values().map(|record| (record.timestamp, record.split, record));
        let rank = |x: &(u64, SplitId, &Record<Bytes>)| (x.0, x.1);
        let Some((_, _, winner)) = (if last { ranked.max_by_key(rank) } else { ranked.min_by_key(rank) }) else {
            continue;
        };
        let all = arrivals.iter().filter(|record| record.side == side).count() as u64;
        counts.dropped[loses] += all - 1;
        if slots.contains_key(&side) {
            counts.dropped[loses] += 1; // the old one, or the new one
            if !last {
                continue;
            }
        }
        first_base = first_base.into_iter().chain([winner.base]).min();
        slots.insert(
            side,
            Slot {
                split: winner.split,
                offset: winner.offset,
                timestamp: winner.timestamp,
                payload: winner.payload.clone(),
                deadline: (winner.base + window(side, options)).max(clock),
                epoch,
            },
        );
    }
    if let (true, Some(base), Some(max_wait)) = (absent, first_base, options.max_wait) {
        cap = Some((base + max_wait.as_millis() as u64).max(clock));
    }
    match until {
        _ if slots.is_empty() => None,
        Some(until) => Some(Life::Delayed { slots, until }),
        None => Some(Life::Waiting { slots, cap }),
    }
}

/// A state as the trace shows it, without the slot.
pub type View = (KeyHash, Phase, bool, u8, u64);

/// All keys.
pub struct Model {
    options: Options,
    lives: BTreeMap<Key, Life>,
    clock: u64,
}

/// What one epoch came to, over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Sorted.
    pub outputs: Vec<Output<Bytes>>,
    pub counts: Counts,
}

impl Model {
    pub fn new(options: &Options) -> Self {
        Model { options: options.clone(), lives: BTreeMap::new(), clock: 0 }
    }

    pub fn step(&mut self, step: &Step) -> Seen {
        self.clock = self.clock.max(step.tick.map_or(0, |tick| tick.time));
        let tick = Tick { time: self.clock, end: step.tick.is_some_and(|tick| tick.end) };
        let mut arrivals: BTreeMap<Key, Vec<Record<Bytes>>> =
            self.lives.keys().map(|key| (key.clone(), Vec::new())).collect();
        for record in &step.records {
            arrivals.entry(record.key.clone()).or_default().push(record.clone());
        }
        let mut seen = Seen::default();
        for (key, arrivals) in arrivals {
            let life = self.lives.remove(&key);
            let (life, output) = self::step(&key, life, &arrivals, tick, step.epoch, &self.options, &mut seen.counts);
            seen.outputs.extend(output);
            self.lives.extend(life.map(|life| (key, life)));
        }
        seen.outputs.sort();
        seen.counts.pending_records = self.lives.values().flat_map(Life::slots).count() as u64;
        seen
    }

    /// The epoch of the oldest record that waits.
    pub fn oldest(&self) -> Option<Epoch> {
        self.lives.values().flat_map(Life::slots).map(|slot| slot.epoch).min()
    }

    /// The states, sorted.
    pub fn views(&self) -> Vec<View> {
        let all = ((1u16 << self.options.windows.len()) - 1) as u8;
        let mask = |slots: &BTreeMap<u8, Slot>| slots.keys().map(|side| 1 << side).sum();
        let view = |life: &Life| match life {
            Life::Waiting { slots, .. } => (Phase::Waiting, false, mask(slots)),
            Life::Delayed { slots, .. } => (Phase::Delayed, false, mask(slots)),
            Life::Done { late, .. } => (Phase::Joined, *late, all),
            Life::Closed { sides, .. } => (Phase::Closed, false, *sides),
        };
        let views = self.lives.iter().map(|(key, life)| {
            let (phase, late, sides) = view(life);
            (key.hash(), phase, late, sides, life.deadline())
        });
        let mut views: Vec<View> = views.collect();
        views.sort();
        views
    }
}
