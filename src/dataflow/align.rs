//! How far the inputs of all workers have come, and so which splits have to wait for others.

use serde::{Deserialize, Serialize};

use crate::split_time::{Low, Now, SplitTime};

/// How far the splits of an input have come, those of one worker or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InputTimes {
    /// The smallest times of those that count.
    pub low: Low,
    /// The smallest time of those that count and have said a time.
    pub timed: Option<u64>,
    /// The largest time that any has said.
    pub high: Option<u64>,
}

impl InputTimes {
    /// Adds a split.
    pub fn add(&mut self, split: &mut SplitTime, now: Now) {
        let reached = split.reached();
        let timed = split.time(now).filter(|_| reached.is_some());
        *self = self.and(InputTimes { low: Low::of(split, now), timed, high: reached });
    }

    /// The same of more workers.
    pub fn and(self, other: InputTimes) -> InputTimes {
        InputTimes {
            low: self.low.and(other.low),
            timed: self.timed.into_iter().chain(other.timed).min(),
            high: self.high.max(other.high),
        }
    }

    /// How far the input as a whole has come: the slowest of its splits, or the last that it said before all ended.
    fn position(&self) -> Option<u64> {
        self.timed.or(self.high)
    }
}

/// What each worker said last.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// By worker: its inputs and how many of its splits are paused.
    workers: Vec<Option<(Vec<InputTimes>, u64)>>,
    /// Somebody has said something since the last look.
    news: bool,
}

/// Of two inputs, which one is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub input: usize,
    pub other: usize,
    /// By so many milliseconds of event time; `None` if the other one has said no time yet.
    pub by: Option<u64>,
}

impl Told {
    /// Nothing was said by so many workers.
    pub fn new(peers: usize) -> Self {
        Told { workers: vec![None; peers], news: true }
    }

    pub fn hear(&mut self, worker: usize, times: &[InputTimes], paused: u64) {
        self.news = true;
        let (known, was) = self.workers[worker].get_or_insert_default();
        known.clear();
        known.extend_from_slice(times);
        *was = paused;
    }

    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// The times of all workers but this one.
    pub fn low_of_others(&self, worker: usize) -> Low {
        let others = self.workers.iter().enumerate().filter(|(other, _)| *other != worker);
        others.fold(Low::default(), |low, (_, told)| match told {
            Some((times, _)) => times.iter().fold(low, |low, times| low.and(times.low)),
            None => low.and(Low::UNKNOWN),
        })
    }

    /// How many splits are paused, on all workers.
    pub fn paused(&self) -> u64 {
        self.workers.iter().flatten().map(|(_, paused)| paused).sum()
    }

    /// The input that is ahead of all others, and the one that is behind them.
    pub fn ahead(&self) -> Option<Ahead> {
        let mut inputs: Vec<InputTimes> = vec![];
        for (times, _) in self.workers.iter().flatten() {
            inputs.resize(inputs.len().max(times.len()), InputTimes::default());
            inputs.iter_mut().zip(times).for_each(|(all, times)| *all = all.and(*times));
        }
        let positions = || inputs.iter().map(InputTimes::position).enumerate();
        let (input, first) = positions().max_by_key(|(_, position)| *position)?;
        let (other, last) = positions().min_by_key(|(_, position)| *position)?;
        let first = first?;
        match last {
            Some(last) if last == first => None,
            last => Some(Ahead { input, other, by: last.map(|last| first - last) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(all: Option<u64>, high: Option<u64>) -> InputTimes {
        InputTimes { low: Low { all, behind: all }, timed: all, high }
    }

    #[test]
    fn the_slowest_worker_counts_and_an_unknown_one_holds() {
        let mut told = Told::new(3);
        told.hear(1, &[times(Some(50), Some(70)), times(Some(90), Some(90))], 2);
        assert_eq!(told.low_of_others(0), Low::UNKNOWN);
        told.hear(2, &[times(Some(60), Some(60)), times(None, None)], 1);
        assert_eq!(told.low_of_others(0), Low { all: Some(50), behind: Some(50) });
        told.hear(0, &[times(Some(20), Some(20)), times(None, None)], 0);
        assert_eq!(told.low_of_others(0).all, Some(50));
        assert_eq!((told.paused(), told.take_news(), told.take_news()), (3, true, false));
    }

    #[test]
    fn the_input_ahead_is_named_with_the_one_behind() {
        let mut told = Told::new(2);
        assert_eq!(told.ahead(), None);
        told.hear(0, &[times(Some(50), Some(70)), times(None, None)], 0);
        assert_eq!(told.ahead(), Some(Ahead { input: 0, other: 1, by: None }));
        told.hear(1, &[times(Some(60), Some(90)), times(Some(45), Some(50))], 0);
        assert_eq!(told.ahead(), Some(Ahead { input: 0, other: 1, by: Some(5) }));
        told.hear(1, &[times(None, None), times(None, Some(80))], 0); // it has ended
        assert_eq!(told.ahead(), Some(Ahead { input: 1, other: 0, by: Some(30) }));
        told.hear(1, &[times(None, None), times(None, Some(50))], 0);
        assert_eq!(told.ahead(), None);
    }
}
