//! Random scripts: options, and what comes in each epoch. Few keys and small windows, so that everything collides.

use std::time::Duration;

use bytes::Bytes;
use syncline::dataflow::Tick;
use syncline::epoch::Epoch;
use syncline::message::{Offset, SplitId};
use syncline::sync::{AtEnd, Duplicates, Key, KeyHash, Late, Options, Record};

use super::random::{Random, mix};

/// What comes in one epoch.
#[derive(Clone, Debug)]
pub struct Step {
    pub epoch: Epoch,
    /// In no order at all.
    pub records: Vec<Record<Bytes>>,
    pub tick: Option<Tick>,
}

#[derive(Clone, Debug)]
pub struct Script {
    pub options: Options,
    pub steps: Vec<Step>,
}

/// How keys are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashing {
    /// As they should.
    Spread,
    /// Different hashes that share one bucket of every index.
    Crowded,
    /// Three bits of hash for all keys.
    Colliding,
}

fn key(number: u64, hashing: Hashing) -> Key {
    let key = Key::builder().text("key").number(&number.to_string()).build();
    let hash = match hashing {
        Hashing::Spread => return key,
        Hashing::Crowded => u128::from(number),
        Hashing::Colliding => u128::from(mix(number) % 8) << 125 | u128::from(mix(number) % 8),
    };
    Key::with_hash(KeyHash(hash), key.bytes().clone())
}

fn options(random: &mut Random) -> Options {
    let sides = random.pick(&[2, 2, 2, 3, 3, 4]);
    let mut options = Options::new(sides, Duration::ZERO);
    for window in &mut options.windows {
        *window = Duration::from_millis(random.below(12));
    }
    options.remember = Duration::from_millis(random.below(16));
    options.late = random.pick(&[Late::Join, Late::Join, Late::Drop]);
    options.duplicates = random.pick(&[Duplicates::Last, Duplicates::Last, Duplicates::First]);
    options.at_end = random.pick(&[AtEnd::Delay, AtEnd::Keep]);
    options.max_wait = random.one_in(3).then(|| Duration::from_millis(random.below(16)));
    options.emit_delays = !random.one_in(4);
    options
}

pub fn script(seed: u64) -> Script {
    let mut random = Random::new(seed);
    let hashing = random.pick(&[Hashing::Spread, Hashing::Spread, Hashing::Crowded, Hashing::Colliding]);
    let options = options(&mut random);
    let sides = options.windows.len() as u64;
    let (keys, most, splits) = (1 + random.below(12), 1 + random.below(24), 1 + random.below(3));
    let (same_times, late_base) = (1 + random.below(5), random.below(8));
    let mut epoch = 1_000 + random.below(10);
    let mut clock = random.pick(&[0, 63, 4_090, 1 << 40]) + random.below(8);
    let mut offset = 0;
    let length = 8 + random.below(40);
    let ends = random.one_in(2);
    let mut steps: Vec<Step> = Vec::new();
    for number in 0..length {
        epoch += random.pick(&[1, 1, 1, 2, 50]);
        clock += random.pick(&[0, 0, 1, 1, 1, 2, 3, 20, 5_000]);
        let quiet = random.one_in(6);
        let records = (0..if quiet { 0 } else { random.below(most) }).map(|_| {
            offset += 1;
            let (side, split) = (random.below(sides) as u8, random.below(splits) as u32);
            Record {
                key: key(random.below(keys), hashing),
                side,
                split: SplitId::numbered(&format!("side{side}"), split),
                offset: Offset(offset),
                timestamp: 100 + random.below(same_times),
                base: (clock + random.below(6)).saturating_sub(random.below(late_base + 1)),
                payload: Bytes::from(format!("{side}.{split}.{offset}")),
            }
        });
        let mut records: Vec<_> = records.collect();
        for at in (1..records.len()).rev() {
            records.swap(at, random.below(at as u64 + 1) as usize);
        }
        let end = ends && number + 1 == length;
        let tick = (end || !random.one_in(8)).then_some(Tick { time: clock, end });
        steps.push(Step { epoch, records, tick });
    }
    Script { options, steps }
}
