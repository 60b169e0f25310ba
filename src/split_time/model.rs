//! The clock against the promise it makes, on random scripts of reading, silence, outages, ends, late splits, jumps of the wall
//! clock, and restarts from a checkpoint after any downtime. Each family of checks would catch its own fault:
//!
//! * a record is given up while a message that could have matched it still waits in a broker: time passed in a backlog, an
//!   outage or a pause;
//! * a record is given up before its window has really passed: a jump of the wall clock fired deadlines, or downtime did;
//! * a record is never given up although nothing more comes: a silent topic, or an ended split, holds the clock;
//! * the clock goes back;
//! * splits that are ahead wait for others for ever.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::alignment::Alignment;
use super::{EVIDENCE_AGE, JUMP_MS, Now, SplitTime, TimeMode};
use crate::epoch::{Clock, ManualClock, SteadyClock};
use crate::source::Evidence;

const WINDOW: u64 = 20_000;
const STEP: u64 = 250;
const START: u64 = 1_000_000_000;
const HOUR: u64 = 3_600_000;

#[derive(Clone, Debug)]
enum Action {
    /// The producer writes a message, stamped with the true time.
    Produce(usize),
    /// The reader reads so many messages, and says that it is caught up if that was all.
    Read(usize, usize),
    /// The broker is away, or back.
    Outage(usize, bool),
    /// The split ends: nothing is produced any more.
    End(usize),
    /// A split is found that was there all the time.
    Find,
    /// Our wall clock jumps, in milliseconds.
    Jump(i64),
    /// Nothing is done for some steps.
    Sleep(u64),
    /// The workers hear of each other.
    Report,
    /// The state has become large, or small.
    Fill(bool),
    /// What is known now becomes durable.
    Checkpoint,
    /// The job ends, and after so many milliseconds goes on from the last checkpoint, on a machine whose wall clock is off by so many.
    /// Meanwhile messages are produced, each at a thousandth of the time.
    Restart { down: u64, jump: i64, produced: Vec<(usize, u64)> },
}

struct Split {
    time: SplitTime,
    /// True times of production, in order.
    log: Vec<u64>,
    read: usize,
    away: bool,
    ended: bool,
    known: bool,
    /// The largest timestamp read, as far as the wall clock lets it be believed.
    past: u64,
}

/// A record that waits for its deadline.
#[derive(Clone)]
struct Waiting {
    deadline: u64,
    /// The uptime when it was read, if its split was caught up then: its window counts from there.
    live_since: Option<u64>,
}

/// What a checkpoint keeps. Splits that were not known then are not in it.
#[derive(Clone, Default)]
struct Kept {
    wall: u64,
    clock: u64,
    up: u64,
    splits: Vec<Option<KeptSplit>>,
    waiting: Vec<Waiting>,
}

#[derive(Clone, Copy)]
struct KeptSplit {
    time: (u64, Option<bool>),
    read: usize,
    past: u64,
}

struct World {
    splits: Vec<Split>,
    kept: Kept,
    /// True milliseconds since the start.
    now: u64,
    /// How long the job has been up in all, as far as checkpoints and this run know.
    up: u64,
    hands: ManualClock,
    steady: SteadyClock,
    clock: u64,
    waiting: Vec<Waiting>,
    fired: usize,
    alignment: Alignment,
}

impl World {
    fn now(&self) -> Now {
        Now { wall: self.steady.wall(), monotonic: self.steady.monotonic() }
    }

    fn pass(&mut self, ms: u64) {
        self.now += ms;
        self.up += ms;
        self.hands.advance(Duration::from_millis(ms));
        self.steady.wall(); // somebody looks at it all the time
    }

    /// Pauses what is ahead, as far as the workers know, or once they have told each other.
    fn align(&mut self, report: bool) -> Result<(), TestCaseError> {
        let now = self.now();
        let splits = self.splits.iter_mut().map(|split| split.known.then_some(&mut split.time));
        let mut splits: Vec<_> = splits.collect();
        if report {
            prop_assert!(self.alignment.report(splits, self.clock, now), "all wait for each other");
        } else {
            self.alignment.align(&mut splits, self.clock, now);
        }
        Ok(())
    }

    fn act(&mut self, action: &Action) -> Result<(), TestCaseError> {
        let (now, true_now) = (self.now(), START + self.now);
        let count = self.splits.len();
        match action {
            Action::Produce(split) => {
                let split = &mut self.splits[split % count];
                if !split.ended {
                    split.log.push(true_now);
                }
            }
            Action::Read(split, most) => {
                let index = split % count;
                let split = &mut self.splits[index];
                if !split.known || split.away || self.alignment.is_paused(index) {
                    return Ok(());
                }
                for timestamp in split.log[split.read..].iter().take(*most) {
                    let live = split.time.is_caught_up(now);
                    let arrival = split.time.read(Some(*timestamp), now, self.clock);
                    let deadline = (arrival.base + WINDOW).max(self.clock);
                    self.waiting.push(Waiting { deadline, live_since: live.then_some(self.up) });
                    split.past = split.past.max((*timestamp).min(now.wall));
                    split.read += 1;
                }
                if split.read == split.log.len() {
                    split.time.evidence(if split.ended { Evidence::Ended } else { Evidence::CaughtUp }, now);
                }
                self.align(false)?;
            }
            Action::Outage(split, away) => {
                let split = &mut self.splits[split % count];
                split.away = *away;
                if *away && split.known {
                    split.time.evidence(Evidence::Behind, now);
                }
            }
            Action::End(split) => self.splits[split % count].ended = true,
            Action::Find => {
                if let Some(split) = self.splits.iter_mut().find(|split| !split.known) {
                    split.known = true;
                }
            }
            Action::Jump(by) => self.hands.jump(*by),
            Action::Sleep(steps) => self.pass(steps * STEP),
            Action::Report => self.align(true)?,
            Action::Fill(full) => self.alignment.full = *full,
            Action::Checkpoint => {
                let keep = |split: &Split| KeptSplit { time: split.time.saved(), read: split.read, past: split.past };
                let splits = self.splits.iter().map(|split| split.known.then(|| keep(split))).collect();
                self.kept =
                    Kept { wall: now.wall, clock: self.clock, up: self.up, splits, waiting: self.waiting.clone() };
            }
            Action::Restart { down, jump, produced } => self.restart(*down, *jump, produced),
        }
        Ok(())
    }

    fn restart(&mut self, down: u64, jump: i64, produced: &[(usize, u64)]) {
        let count = self.splits.len();
        let mut produced: Vec<_> =
            produced.iter().map(|(split, at)| (self.now + down * at / 1_000, split % count)).collect();
        produced.sort_unstable();
        for (at, split) in produced {
            if !self.splits[split].ended {
                self.splits[split].log.push(START + at);
            }
        }
        self.now += down;
        self.hands.jump(down as i64 + jump);
        self.hands = ManualClock::new(self.hands.wall()); // the monotonic clock is another one, too
        self.steady = SteadyClock::new(Arc::new(self.hands.clone()));
        let Kept { wall, clock, up, splits, waiting } = self.kept.clone();
        self.steady.raise(wall);
        (self.clock, self.up, self.waiting) = (clock, up, waiting);
        self.alignment = Alignment::new(self.alignment.max.map(|max| max.as_millis() as u64), count);
        for (index, split) in self.splits.iter_mut().enumerate() {
            split.time = new_time();
            (split.read, split.past) = (0, 0);
            if let Some(kept) = splits.get(index).copied().flatten() {
                split.time.restore(kept.time);
                (split.read, split.past) = (kept.read, kept.past);
            }
        }
    }

    /// Lets a step of time pass, and what waits expire.
    fn step(&mut self) -> Result<(), TestCaseError> {
        self.pass(STEP);
        let now = self.now();
        let times = self.splits.iter_mut().filter(|split| split.known).filter_map(|split| split.time.time(now));
        let clock = self.clock.max(times.min().unwrap_or(0));
        prop_assert!(clock >= self.clock);
        self.clock = clock;
        let (due, waiting): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(|record| record.deadline < clock);
        self.waiting = waiting;
        for record in due {
            self.fired += 1;
            // What was produced since a split was last known to be caught up may be unknown to us for the age of evidence;
            // everything else that could have matched must have been read. Our wall clock, and so the deadline, may be far
            // ahead of the producer's.
            let age = EVIDENCE_AGE.as_millis() as u64;
            let settled = record.deadline.saturating_sub(age).min(START + self.now.saturating_sub(age));
            for split in self.splits.iter().filter(|split| split.known) {
                let unread = split.log[split.read..].iter().find(|t| **t < settled);
                prop_assert!(unread.is_none(), "deadline {} at {}: unread {unread:?}", record.deadline, self.now);
            }
            // Where some split was not even read past the beginning of the window, the window has really passed; but for what is
            // taken for slewing, which may have been one way when the record was read and the other way now.
            let base = record.deadline - WINDOW;
            let quiet = self.splits.iter().any(|split| split.known && !split.ended && split.past <= base);
            if let Some(since) = record.live_since.filter(|_| quiet) {
                prop_assert!(self.up - since + 2 * JUMP_MS >= WINDOW, "read at {since}, given up at {}", self.up);
            }
        }
        Ok(())
    }
}

fn new_time() -> SplitTime {
    SplitTime::new(TimeMode::Auto { window: Duration::from_millis(WINDOW) }, Duration::from_millis(HOUR))
}

fn restart(split: impl Strategy<Value = usize>) -> impl Strategy<Value = Action> {
    let down = prop_oneof![0u64..5_000, Just(HOUR), 0..3 * HOUR];
    let jump = prop_oneof![2 => Just(0), 1 => Just(HOUR as i64), 1 => Just(-(HOUR as i64)), 1 => -30_000i64..30_000];
    let produced = prop::collection::vec((split, 0u64..1_000), 0..5);
    (down, jump, produced).prop_map(|(down, jump, produced)| Action::Restart { down, jump, produced })
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let split = 0usize..3;
    let action = prop_oneof![
        8 => split.clone().prop_map(Action::Produce),
        16 => (split.clone(), 1usize..6).prop_map(|(split, most)| Action::Read(split, most)),
        2 => (split.clone(), any::<bool>()).prop_map(|(split, away)| Action::Outage(split, away)),
        1 => split.clone().prop_map(Action::End),
        1 => Just(Action::Find),
        1 => prop_oneof![Just(HOUR as i64), Just(-(HOUR as i64)), -30_000i64..30_000].prop_map(Action::Jump),
        2 => (1u64..60).prop_map(Action::Sleep),
        8 => Just(Action::Report),
        1 => any::<bool>().prop_map(Action::Fill),
        3 => Just(Action::Checkpoint),
        1 => restart(split),
    ];
    prop::collection::vec(action, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn keeps_its_promise(
        actions in actions(),
        backlog in prop::collection::vec(0u64..600_000, 0..20),
        drift in prop_oneof![Just(None), (1u64..40_000).prop_map(Some)],
    ) {
        let new = |known: bool| Split {
            time: new_time(),
            log: vec![],
            read: 0,
            away: false,
            ended: false,
            known,
            past: 0,
        };
        let hands = ManualClock::new(START);
        let mut world = World {
            splits: vec![new(true), new(true), new(false)],
            kept: Kept::default(),
            now: 0,
            up: 0,
            steady: SteadyClock::new(Arc::new(hands.clone())),
            hands,
            clock: 0,
            waiting: vec![],
            fired: 0,
            alignment: Alignment::new(drift, 3),
        };
        // Old messages that were there before the job.
        let mut old: Vec<u64> = backlog.iter().map(|age| START - age).collect();
        old.sort_unstable();
        for (index, timestamp) in old.into_iter().enumerate() {
            world.splits[index % 2].log.push(timestamp);
        }
        for action in &actions {
            world.act(action)?;
            world.step()?;
        }
        // Then silence, and brokers that answer: whatever waits is given up. Where memory is full the splits may have to be
        // silent for a window one after the other.
        for _ in 0..5 * WINDOW / STEP {
            for split in 0..3 {
                world.act(&Action::Outage(split, false))?;
                world.act(&Action::Find)?;
                world.act(&Action::Read(split, 100))?;
            }
            world.act(&Action::Report)?;
            world.step()?;
        }
        let ended = world.splits.iter().all(|split| split.ended);
        prop_assert!(world.splits.iter().all(|split| split.read == split.log.len()), "something is never read");
        prop_assert!(ended || world.waiting.is_empty(), "{} records still wait", world.waiting.len());
    }
}
