//! Event time against a plain model of its rules, on random scripts of reading with disorder, silence, outages, ends, late
//! splits, timestamps of the future, jumps of the wall clock, and restarts from a checkpoint after any downtime. Each family of
//! checks would catch its own fault:
//!
//! * the clock is not what the text says: a silent split holds it too long or too short a time, an outage, a pause or downtime
//!   counts as silence, the wall clock or a timestamp of the future moves it;
//! * a record is given up while a message within the disorder that could have matched it waits in a broker;
//! * a record is never given up although time goes on elsewhere: a silent or ended split holds the clock;
//! * the clock goes back, or goes on where every split is silent;
//! * splits that are ahead wait for others for ever.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::alignment::Alignment;
use super::{EVIDENCE_AGE, Now, SplitTime, TimeMode};
use crate::epoch::{Clock, ManualClock, SteadyClock};
use crate::source::Evidence;

const WINDOW: u64 = 20_000;
const DISORDER: u64 = 4_000;
const IDLE_AFTER: u64 = 7_000;
const AGE: u64 = EVIDENCE_AGE.as_millis() as u64;
const MAX_AHEAD: u64 = 2 * HOUR;
const HOUR: u64 = 3_600_000;
const STEP: u64 = 250;
const START: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
enum Action {
    /// The producer writes a message, stamped with the true time less so much.
    Produce(usize, u64),
    /// The producer writes a message whose timestamp nobody can believe.
    Nonsense(usize),
    /// The reader reads so many messages, and says that it is caught up if that was all.
    Read(usize, usize),
    /// The broker is away, or back.
    Outage(usize, bool),
    /// The split ends: nothing is produced any more. Never the first one.
    End(usize),
    /// A split is found that was there all the time.
    Find,
    /// Our wall clock jumps, in milliseconds, to at most an hour from the true time.
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
    /// Meanwhile messages are produced, each at a thousandth of the time and less a disorder.
    Restart { down: u64, jump: i64, produced: Vec<(usize, u64, u64)> },
}

/// A message in a broker: its timestamp, and when it was produced.
#[derive(Clone, Copy)]
struct Stored {
    timestamp: u64,
    produced: u64,
}

struct Split {
    time: SplitTime,
    log: Vec<Stored>,
    read: usize,
    away: bool,
    ended: bool,
    known: bool,
    /// The largest timestamp read and believed.
    largest: u64,
    /// Since when it has had nothing to give without a break, and when that was last said.
    silent: Option<(u64, u64)>,
}

impl Split {
    fn is_over(&self) -> bool {
        self.ended && self.time.is_ended()
    }

    /// What the text says of it: left out when it has been silent, and been asked, for long enough.
    fn is_idle(&self, now: u64) -> bool {
        self.silent.is_some_and(|(since, said)| now <= said + AGE && now - since >= IDLE_AFTER)
    }
}

/// What a checkpoint keeps: the clock, of each split that was known the time, how far it was read and the largest timestamp, and
/// what waits.
#[derive(Clone, Default)]
struct Kept {
    wall: u64,
    clock: u64,
    splits: Vec<Option<((u64, Option<bool>), usize, u64)>>,
    waiting: Vec<(u64, bool)>,
}

struct World {
    splits: Vec<Split>,
    kept: Kept,
    /// True milliseconds since the start.
    now: u64,
    jumped: i64,
    hands: ManualClock,
    steady: SteadyClock,
    clock: u64,
    /// Deadlines of records that wait, and whether their own timestamps were believed.
    waiting: Vec<(u64, bool)>,
    alignment: Alignment,
}

impl World {
    fn now(&self) -> Now {
        Now { wall: self.steady.wall(), monotonic: self.steady.monotonic() }
    }

    fn pass(&mut self, ms: u64) {
        self.now += ms;
        self.hands.advance(Duration::from_millis(ms));
        self.steady.wall(); // somebody looks at it all the time
    }

    fn produce(&mut self, split: usize, timestamp: u64) {
        let produced = self.now;
        let count = self.splits.len();
        let split = &mut self.splits[split % count];
        if !split.ended {
            split.log.push(Stored { timestamp, produced });
        }
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
        for (index, split) in self.splits.iter_mut().enumerate() {
            if self.alignment.is_paused(index) {
                split.silent = None;
            }
        }
        Ok(())
    }

    fn read(&mut self, split: usize, most: usize) -> Result<(), TestCaseError> {
        let (now, true_now) = (self.now(), self.now);
        let count = self.splits.len();
        let index = split % count;
        let split = &mut self.splits[index];
        if !split.known || split.away || self.alignment.is_paused(index) {
            return Ok(());
        }
        for stored in split.log[split.read..].iter().take(most) {
            let arrival = split.time.read(Some(stored.timestamp), now, self.clock);
            let believed = stored.timestamp <= now.wall + MAX_AHEAD;
            let timestamp = if believed { stored.timestamp } else { now.wall };
            prop_assert_eq!((arrival.base, arrival.timestamp, arrival.ahead), (timestamp, timestamp, !believed));
            if believed {
                split.largest = split.largest.max(timestamp);
            }
            self.waiting.push(((timestamp + WINDOW).max(self.clock), believed));
            split.read += 1;
            split.silent = match split.silent {
                Some((_, said)) if true_now <= said + AGE => Some((true_now, said)),
                _ => None,
            };
        }
        if split.read == split.log.len() {
            let since = split.silent.filter(|(_, said)| true_now <= said + AGE).map_or(true_now, |silent| silent.0);
            split.silent = Some((since, true_now));
            split.time.evidence(if split.ended { Evidence::Ended } else { Evidence::CaughtUp }, now);
        }
        self.align(false)
    }

    fn act(&mut self, action: &Action) -> Result<(), TestCaseError> {
        let now = self.now();
        let count = self.splits.len();
        match action {
            Action::Produce(split, back) => self.produce(*split, START + self.now - back),
            Action::Nonsense(split) => self.produce(*split, START + self.now + 1_000 * HOUR),
            Action::Read(split, most) => self.read(*split, *most)?,
            Action::Outage(split, away) => {
                let split = &mut self.splits[split % count];
                split.away = *away;
                if *away && split.known {
                    split.time.evidence(Evidence::Behind, now);
                    split.silent = None;
                }
            }
            Action::End(split) => self.splits[1 + split % (count - 1)].ended = true,
            Action::Find => {
                if let Some(split) = self.splits.iter_mut().find(|split| !split.known) {
                    split.known = true;
                }
            }
            Action::Jump(by) => self.jump(*by),
            Action::Sleep(steps) => self.pass(steps * STEP),
            Action::Report => self.align(true)?,
            Action::Fill(full) => self.alignment.full = *full,
            Action::Checkpoint => {
                let keep = |split: &Split| (split.time.saved(), split.read, split.largest);
                let splits = self.splits.iter().map(|split| split.known.then(|| keep(split))).collect();
                self.kept = Kept { wall: now.wall, clock: self.clock, splits, waiting: self.waiting.clone() };
            }
            Action::Restart { down, jump, produced } => self.restart(*down, *jump, produced),
        }
        Ok(())
    }

    fn jump(&mut self, by: i64) {
        let by = (self.jumped + by).clamp(-(HOUR as i64), HOUR as i64) - self.jumped;
        self.jumped += by;
        self.hands.jump(by);
    }

    fn restart(&mut self, down: u64, jump: i64, produced: &[(usize, u64, u64)]) {
        let (begin, count) = (self.now, self.splits.len());
        let mut produced: Vec<_> =
            produced.iter().map(|(split, at, back)| (begin + down * at / 1_000, split % count, back)).collect();
        produced.sort_unstable();
        for (at, split, back) in produced {
            self.now = at;
            self.produce(split, START + at - back);
        }
        self.now = begin + down;
        self.hands.jump(down as i64);
        self.jump(jump);
        self.hands = ManualClock::new(self.hands.wall()); // the monotonic clock is another one, too
        self.steady = SteadyClock::new(Arc::new(self.hands.clone()));
        let Kept { wall, clock, splits, waiting } = self.kept.clone();
        self.steady.raise(wall);
        (self.clock, self.waiting) = (clock, waiting);
        self.alignment = Alignment::new(self.alignment.max.map(|max| max.as_millis() as u64), count);
        for (index, split) in self.splits.iter_mut().enumerate() {
            split.time = new_time();
            (split.read, split.largest, split.silent) = (0, 0, None);
            if let Some((time, read, largest)) = splits.get(index).copied().flatten() {
                split.time.restore(time);
                (split.read, split.largest) = (read, largest);
            }
        }
    }

    /// Lets a step of time pass, and what waits expire.
    fn step(&mut self) -> Result<(), TestCaseError> {
        self.pass(STEP);
        let (now, true_now) = (self.now(), self.now);
        let known = || self.splits.iter().filter(|split| split.known);
        let counted = known().filter(|split| !split.is_over() && !split.is_idle(true_now));
        let expected = counted.map(|split| split.largest.saturating_sub(DISORDER)).min();
        let times = self.splits.iter_mut().filter(|split| split.known).filter_map(|split| split.time.time(now));
        let clock = self.clock.max(times.min().unwrap_or(0));
        prop_assert_eq!(clock, self.clock.max(expected.unwrap_or(0)), "at {}", true_now);
        self.clock = clock;
        let (due, waiting): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(|(deadline, _)| *deadline < clock);
        self.waiting = waiting;
        for (deadline, _) in due {
            for split in self.splits.iter().filter(|split| split.known) {
                // What came since an idle split was last asked cannot be known.
                let told = split.silent.filter(|_| split.is_idle(true_now)).map_or(u64::MAX, |(_, said)| said);
                let unread = split.log[split.read..]
                    .iter()
                    .find(|stored| stored.timestamp <= deadline && stored.produced < told);
                prop_assert!(unread.is_none(), "deadline {} at {}: a message is unread", deadline, true_now);
            }
        }
        Ok(())
    }
}

fn new_time() -> SplitTime {
    let mode = TimeMode::Event {
        max_disorder: Duration::from_millis(DISORDER),
        idle_after: Duration::from_millis(IDLE_AFTER),
    };
    SplitTime::new(mode, Duration::from_millis(MAX_AHEAD))
}

fn restart(split: impl Strategy<Value = usize>) -> impl Strategy<Value = Action> {
    let down = prop_oneof![0u64..5_000, Just(HOUR), 0..3 * HOUR];
    let jump = prop_oneof![2 => Just(0), 1 => Just(HOUR as i64), 1 => Just(-(HOUR as i64)), 1 => -30_000i64..30_000];
    let produced = prop::collection::vec((split, 0u64..1_000, 0..=DISORDER), 0..5);
    (down, jump, produced).prop_map(|(down, jump, produced)| Action::Restart { down, jump, produced })
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let split = 0usize..3;
    let action = prop_oneof![
        8 => (split.clone(), 0..=DISORDER).prop_map(|(split, back)| Action::Produce(split, back)),
        1 => split.clone().prop_map(Action::Nonsense),
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
    fn is_what_the_text_says(
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
            largest: 0,
            silent: None,
        };
        let hands = ManualClock::new(START);
        let mut world = World {
            splits: vec![new(true), new(true), new(false)],
            kept: Kept::default(),
            now: 0,
            jumped: 0,
            steady: SteadyClock::new(Arc::new(hands.clone())),
            hands,
            clock: 0,
            waiting: vec![],
            alignment: Alignment::new(drift, 3),
        };
        // Old messages that were there before the job.
        let mut old: Vec<u64> = backlog.iter().map(|age| START - age).collect();
        old.sort_unstable();
        for (index, timestamp) in old.into_iter().enumerate() {
            world.splits[index % 3].log.push(Stored { timestamp, produced: 0 });
        }
        for action in &actions {
            world.act(action)?;
            world.step()?;
        }
        // Then only one split has something to say, and the brokers of the others answer: whatever waits is given up.
        let until = (WINDOW + DISORDER + IDLE_AFTER + 2 * AGE) / STEP + 4;
        for _ in 0..until {
            world.act(&Action::Produce(0, 0))?;
            for split in 0..3 {
                world.act(&Action::Outage(split, false))?;
                world.act(&Action::Find)?;
                world.act(&Action::Read(split, 1_000))?;
            }
            world.act(&Action::Report)?;
            world.step()?;
        }
        let passed = START + world.now - DISORDER - STEP;
        let left = world.waiting.iter().filter(|(deadline, believed)| *believed && *deadline < passed);
        prop_assert_eq!(left.count(), 0);
        // And silence everywhere is no time at all.
        for split in 0..3 * (IDLE_AFTER / STEP) as usize {
            world.act(&Action::Read(split, 1_000))?;
            world.step()?;
        }
        let clock = world.clock;
        for split in 0..60 {
            world.act(&Action::Read(split, 1_000))?;
            world.step()?;
            prop_assert_eq!(world.clock, clock);
        }
    }
}
