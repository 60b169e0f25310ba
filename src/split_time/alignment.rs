//! For the models: splits on two workers that pause those that are ahead, and know of each other only what was reported last.

use std::time::Duration;

use super::{Limit, Low, Now, SplitTime};
use crate::source::Evidence;

const WORKERS: usize = 2;

/// How far splits may be ahead, what each worker has said, and which splits are paused.
#[derive(Debug)]
pub struct Alignment {
    pub max: Option<Duration>,
    pub full: bool,
    told: [Low; WORKERS],
    paused: Vec<bool>,
}

impl Alignment {
    pub fn new(max: Option<u64>, splits: usize) -> Self {
        let max = max.map(Duration::from_millis);
        Alignment { max, full: false, told: [Low::UNKNOWN; WORKERS], paused: vec![false; splits] }
    }

    pub fn is_paused(&self, split: usize) -> bool {
        self.paused[split]
    }

    fn low(splits: &mut [Option<&mut SplitTime>], worker: usize, now: Now) -> Low {
        let own = splits.iter_mut().skip(worker).step_by(WORKERS).flatten();
        own.fold(Low::default(), |low, split| low.and(Low::of(split, now)))
    }

    /// Each worker hears of the other, and pauses what is ahead. Says whether some split that counts may go on, if any is paused.
    #[must_use]
    pub fn report(&mut self, mut splits: Vec<Option<&mut SplitTime>>, clock: u64, now: Now) -> bool {
        self.told = [0, 1].map(|worker| Self::low(&mut splits, worker, now));
        self.align(&mut splits, clock, now);
        let mut free = splits.iter_mut().zip(&self.paused).filter(|(_, paused)| !**paused);
        !self.paused.contains(&true) || free.any(|(split, _)| split.as_mut().is_some_and(|s| s.time(now).is_some()))
    }

    /// Each worker pauses what is ahead, as far as it knows.
    pub fn align(&mut self, splits: &mut [Option<&mut SplitTime>], clock: u64, now: Now) {
        let Some(max) = self.max else { return };
        for worker in 0..WORKERS {
            let low = self.told[1 - worker].and(Self::low(splits, worker, now));
            let limit = Limit { max, clock, low, full: self.full };
            for index in (worker..splits.len()).step_by(WORKERS) {
                let Some(split) = &mut splits[index] else { continue };
                let pauses = limit.pauses(split, self.paused[index], now);
                if pauses && !self.paused[index] {
                    split.evidence(Evidence::Behind, now);
                }
                self.paused[index] = pauses;
            }
        }
    }
}
