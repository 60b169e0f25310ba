//! Random histories of the sink on a simulated disk: runs of one to three writers that prepare ranges, have them in a checkpoint,
//! publish them and forget that they did; crashes of the process and of the machine, faults of the disk. After every start the
//! files hold what the checkpoints say, each line once and in its order, and nothing else; at no time do they hold what no checkpoint
//! has.
//!
//! Would catch: a torn line, or zeros where blocks were not written, between whole lines; a range that is published in part, twice or
//! not at all; a file whose name does not survive; an error of the disk that ends the job or that hides one.
//!
//! `SYNCLINE_MODEL_CASES` sets the number of histories, `SYNCLINE_MODEL_SEED` runs one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::sink::FileSink;
use crate::checkpoint::sim::{Random, SimDisk};
use crate::epoch::Epoch;
use crate::error::Result;
use crate::sink::{Entity, OutputRecord, Prepared, RunNumber, Sink, Slot, Writer, WriterContext};

const FOLDER: &str = "/out";
const ENTITIES: [&str; 2] = ["joined", "delay"];

/// A range that is durable: what each writer has prepared.
struct Range {
    lower: Epoch,
    upper: Epoch,
    prepared: Vec<Vec<u8>>,
}

/// What the histories have met, so that the test can see that it tests something.
#[derive(Debug, Default)]
struct Stats {
    ranges: u64,
    crashes: u64,
    /// Starts that found something unpublished.
    recovered: u64,
    /// Files that were not whole after a crash.
    torn: u64,
    retried: u64,
}

struct History {
    random: Random,
    sim: SimDisk,
    fault: u64,
    run: u64,
    /// The checkpoint, which is durable at once: its ranges, and up to where it knows that they are published.
    ranges: Vec<Range>,
    published: Epoch,
    /// What each file is to hold when all ranges are published.
    expected: BTreeMap<PathBuf, Vec<u8>>,
    /// All lines of durable ranges.
    durable: BTreeSet<Vec<u8>>,
    epoch: Epoch,
    stats: Stats,
}

/// All bytes of what was prepared; nothing in it refers to items here.
fn whole(prepared: &Prepared) -> Vec<u8> {
    prepared.pieces().flat_map(<[u8]>::iter).copied().collect()
}

fn path(slot: usize, entity: usize) -> PathBuf {
    Path::new(FOLDER).join(format!("{}-w{slot}.jsonl", ENTITIES[entity]))
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let sim = SimDisk::new(random.next());
        let fault = [0, 0, 40, 10][random.below(4) as usize];
        History {
            random,
            sim,
            fault,
            run: 0,
            ranges: vec![],
            published: 0,
            expected: BTreeMap::new(),
            durable: BTreeSet::new(),
            epoch: 1,
            stats: Stats::default(),
        }
    }

    /// Calls until it is done; `None` if everything has crashed, or the job has given up.
    fn persist<R>(&mut self, call: &mut dyn FnMut() -> Result<R>) -> Option<R> {
        for _ in 0..1 + self.random.below(6) {
            match call() {
                Ok(result) => return Some(result),
                Err(error) => {
                    assert!(self.sim.has_crashed() || self.fault > 0 && error.is_retryable(), "{error:?}");
                    if self.sim.has_crashed() {
                        return None;
                    }
                    self.stats.retried += 1;
                }
            }
        }
        None
    }

    fn open(&mut self, slot: usize) -> Option<Box<dyn Writer>> {
        let context = WriterContext {
            slot: Slot(slot),
            output: 0,
            run: RunNumber(self.run),
            entities: ENTITIES.map(String::from).to_vec(),
            dead_letter: None,
            outbox: true,
        };
        let disk = Arc::new(self.sim.clone());
        self.persist(&mut || FileSink::new(disk.clone(), FOLDER).open(&context))
    }

    /// Publishes what a writer of an earlier run has left, in its order.
    fn recover(&mut self, slot: usize, writer: &mut dyn Writer) -> Option<()> {
        let pending =
            |range: &&Range| range.upper > self.published && range.prepared.get(slot).is_some_and(|p| !p.is_empty());
        let left: Vec<_> =
            self.ranges.iter().filter(pending).map(|r| (r.lower, r.upper, r.prepared[slot].clone())).collect();
        self.stats.recovered += u64::from(!left.is_empty());
        for (lower, upper, prepared) in left {
            self.persist(&mut || writer.publish(lower, upper, Some(&prepared)))?;
        }
        Some(())
    }

    /// The writers of a run, as a job starts them.
    fn try_start(&mut self, writers: usize) -> Option<Vec<Box<dyn Writer>>> {
        self.run += 1;
        let slots = self.ranges.iter().map(|range| range.prepared.len()).max().unwrap_or(0);
        let mut started = vec![];
        for own in 0..writers {
            for other in (own + writers..slots).step_by(writers) {
                let mut writer = self.open(other)?;
                self.recover(other, &mut *writer)?;
            }
            let mut writer = self.open(own)?;
            self.recover(own, &mut *writer)?;
            started.push(writer);
        }
        Some(started)
    }

    fn start(&mut self, calm: bool) -> Vec<Box<dyn Writer>> {
        for attempt in 0.. {
            self.revive();
            if calm || attempt > 4 {
                self.fault = 0;
                self.sim.plan(0, None);
            } else {
                let crash = self.random.one_in(2).then(|| self.random.below(40));
                self.sim.plan(self.fault, crash);
            }
            let writers = 1 + self.random.below(3) as usize;
            if let Some(started) = self.try_start(writers) {
                self.check();
                return started;
            }
        }
        unreachable!("without faults it starts")
    }

    /// After a crash: nothing of a process is left, and perhaps not all of the disk.
    fn revive(&mut self) {
        let machine = self.sim.has_crashed() && self.random.one_in(2);
        self.stats.crashes += u64::from(self.sim.has_crashed());
        self.sim.restart(machine);
        if machine {
            let whole = |(path, expected): (&PathBuf, &Vec<u8>)| {
                self.sim.contents(path).is_none_or(|found| expected.starts_with(&found) && found.ends_with(b"\n"))
            };
            self.stats.torn += self.expected.iter().filter(|file| !whole(*file)).count() as u64;
        }
    }

    /// Every whole line that anybody can see is durable.
    fn check_visible(&self) {
        for path in self.sim.paths(Path::new(FOLDER)) {
            let found = self.sim.contents(&path).unwrap_or_default();
            let lines = found.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
            for line in lines {
                assert!(self.durable.contains(line), "{path:?} shows {:?}", String::from_utf8_lossy(line));
            }
        }
    }

    /// Everything durable is published, once.
    fn check(&self) {
        for path in self.sim.paths(Path::new(FOLDER)) {
            let found = self.sim.contents(&path).unwrap_or_default();
            let expected = self.expected.get(&path).map_or(&[][..], Vec::as_slice);
            let text = String::from_utf8_lossy;
            assert!(found == expected, "{path:?}:\n{}\nexpected:\n{}", text(&found), text(expected));
        }
        for (path, expected) in &self.expected {
            assert!(expected.is_empty() || self.sim.contents(path).is_some(), "{path:?} is gone");
        }
    }

    /// Writes some lines of an epoch.
    fn write(&mut self, writers: &mut [Box<dyn Writer>], written: &mut Vec<(usize, usize, Vec<u8>)>) {
        for _ in 0..self.random.below(8) {
            let (slot, entity) = (self.random.below(writers.len() as u64) as usize, self.random.below(2) as usize);
            let length = match self.random.one_in(30) {
                true => 300_000, // more than a block
                false => self.random.below(300),
            };
            let mut line = format!("{}.{}.{} ", self.run, self.epoch, written.len()).into_bytes();
            line.resize(line.len() + length as usize, b'a' + self.random.below(26) as u8);
            let record = OutputRecord::from(line.clone());
            writers[slot].write(self.epoch, Entity(entity), record).unwrap();
            line.push(b'\n');
            written.push((slot, entity, line));
        }
        self.epoch += 1;
    }

    /// A run that makes ranges durable and publishes them, until something goes wrong or it has had enough.
    fn run(&mut self, mut writers: Vec<Box<dyn Writer>>) {
        let crash = self.random.one_in(2).then(|| self.random.below(150));
        self.sim.plan(self.fault, crash);
        let mut published = self.ranges.last().map_or(0, |range| range.upper);
        let mut unpublished: Vec<(Epoch, Epoch)> = vec![];
        self.epoch += self.random.below(3);
        for _ in 0..self.random.below(25) {
            if self.random.one_in(2) && unpublished.len() < 3 {
                let (lower, mut written) = (self.epoch, vec![]);
                for _ in 0..1 + self.random.below(3) {
                    self.write(&mut writers, &mut written);
                }
                let upper = self.epoch;
                let mut prepared = vec![];
                for writer in &mut writers {
                    prepared.push(whole(&writer.prepare(lower, upper).unwrap()));
                }
                if self.sim.has_crashed() || self.random.one_in(20) {
                    return; // before the checkpoint: it never was
                }
                self.ranges.push(Range { lower, upper, prepared });
                self.published = published;
                for (slot, entity, line) in written {
                    self.expected.entry(path(slot, entity)).or_default().extend_from_slice(&line);
                    self.durable.insert(line);
                }
                unpublished.push((lower, upper));
                self.stats.ranges += 1;
            } else if let Some((lower, upper)) = unpublished.first().copied() {
                for writer in &mut writers {
                    if self.persist(&mut || writer.publish(lower, upper, None)).is_none() {
                        return;
                    }
                }
                unpublished.remove(0);
                published = upper;
            }
        }
    }
}

fn run(seed: u64) -> Stats {
    let mut history = History::new(seed);
    for _ in 0..1 + history.random.below(5) {
        let writers = history.start(false);
        history.run(writers);
        history.check_visible();
    }
    history.start(true);
    history.stats
}

#[test]
fn every_start_finds_and_leaves_whole_ranges() {
    if let Ok(seed) = std::env::var("SYNCLINE_MODEL_SEED") {
        run(seed.parse().expect("a seed"));
        return;
    }
    let cases = std::env::var("SYNCLINE_MODEL_CASES").map_or(2_000, |cases| cases.parse().expect("a number of cases"));
    let mut total = [0; 5];
    for seed in 0..cases {
        let ran = std::panic::catch_unwind(|| run(seed));
        let Ok(stats) = ran else { panic!("history {seed} failed: SYNCLINE_MODEL_SEED={seed} runs it alone") };
        let Stats { ranges, crashes, recovered, torn, retried } = stats;
        total.iter_mut().zip([ranges, crashes, recovered, torn, retried]).for_each(|(total, count)| *total += count);
    }
    assert!(total.iter().all(|count| *count > cases / 20), "too little was tested: {total:?}");
}

/// The histories would see a sink that forgets: here the disk does not keep what it has synced.
#[test]
#[should_panic(expected = "a history has noticed")]
fn a_disk_that_lies_is_noticed() {
    for seed in 0..200 {
        let ran = std::panic::catch_unwind(|| {
            let mut history = History::new(seed);
            history.fault = 0;
            let writers = history.start(true);
            history.sim.lie();
            history.run(writers);
            history.sim.restart(true);
            history.start(true);
        });
        assert!(ran.is_ok(), "a history has noticed");
    }
}
