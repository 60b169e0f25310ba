//! Random histories on a simulated disk: runs of one to four workers, crashes of the process and of the machine, faults of the disk,
//! compaction, runs that wake up after another one has taken over. After every start the state must be that of the cut, whole; and
//! no range may be missing that every worker was told is durable.
//!
//! `SYNCLINE_MODEL_CASES` sets the number of histories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::super::compact::Sizes;
use super::super::*;
use super::model::{self, Range};
use super::sim::{Random, SimDisk};
use super::{SMALL, start};
use crate::error::ErrorKind;

pub(in crate::checkpoint) fn cases(default: u64) -> u64 {
    std::env::var("SYNCLINE_MODEL_CASES").map_or(default, |cases| cases.parse().expect("a number of cases"))
}

/// How often each item was found, by collection and bytes.
type Found = BTreeMap<(String, Vec<u8>), i64>;

/// The stores of a run that goes on although it should not.
struct Zombie {
    run: u64,
    stores: Vec<FolderStore>,
    /// For each worker, the next range.
    next: Vec<usize>,
    /// What the run has appended or was about to.
    ranges: Vec<Range>,
}

/// What a history happens to.
pub(in crate::checkpoint) trait World {
    /// The disk as a new process sees it.
    fn disk(&self) -> Arc<dyn Disk>;
    /// From here on one in `fault` calls fails (0: none), and after `crash_after` calls everything does until the next restart.
    fn plan(&self, fault: u64, crash_after: Option<u64>);
    fn has_crashed(&self) -> bool;
    /// All processes are gone; the machine perhaps too.
    fn restart(&self, machine: bool);
}

impl World for SimDisk {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }
    fn plan(&self, fault: u64, crash_after: Option<u64>) {
        self.plan(fault, crash_after);
    }
    fn has_crashed(&self) -> bool {
        self.has_crashed()
    }
    fn restart(&self, machine: bool) {
        self.restart(machine);
    }
}

struct History {
    random: Random,
    sim: Arc<dyn World>,
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    sizes: Sizes,
    fault: u64,
    /// What a start has found.
    kept: Vec<Range>,
    /// What the last run has appended, or tried to.
    ranges: Vec<Range>,
    /// The end of what was kept, also where no range is.
    upper: Epoch,
    /// How many runs have appended something.
    run: u64,
    zombie: Option<Zombie>,
    stats: Stats,
}

/// What the histories have met, so that the test can see that it tests something.
#[derive(Debug, Default)]
pub(in crate::checkpoint) struct Stats {
    ranges: u64,
    compactions: u64,
    lost: u64,
    crashes: u64,
    retried: u64,
    fenced: u64,
}

impl History {
    fn new(mut random: Random, sim: Arc<dyn World>) -> Self {
        let segment = [80, 200, 2_000][random.below(3) as usize];
        let sizes = Sizes { segment, slack: [0, 300][random.below(2) as usize], ..SMALL };
        let fault = [0, 0, 60, 15][random.below(4) as usize];
        let (disk, folder) = (sim.disk(), PathBuf::from(super::named::FOLDER));
        let (kept, ranges, stats) = (vec![], vec![], Stats::default());
        History { random, sim, disk, folder, sizes, fault, kept, ranges, upper: 0, run: 0, zombie: None, stats }
    }

    /// Whether an error is one that the disk was told to make.
    fn expect_fault(&self, error: &crate::Error) {
        assert!(self.sim.has_crashed() || self.fault > 0 && error.is_retryable(), "{error:?}");
    }

    fn schedule(&mut self, calls: u64) {
        let crash = self.random.one_in(2).then(|| self.random.below(calls));
        self.sim.plan(self.fault, crash);
    }

    /// After a crash: nothing of a process is left, and perhaps not all of the disk.
    fn revive(&mut self) {
        if self.sim.has_crashed() {
            self.zombie = None;
            self.stats.crashes += 1;
            let machine = self.random.one_in(2);
            self.sim.restart(machine);
        }
    }

    /// The stores of the next run, after as many tries as it takes.
    fn start(&mut self, calm: bool) -> Vec<FolderStore> {
        for attempt in 0.. {
            self.revive();
            if calm || attempt > 4 {
                self.fault = 0;
                self.sim.plan(0, None);
            } else {
                self.schedule(150);
            }
            let workers = 1 + self.random.below(4) as usize;
            self.disk = self.sim.disk();
            match self.try_start(workers) {
                Ok(stores) => return stores,
                Err(error) => self.expect_fault(&error),
            }
        }
        unreachable!("without faults it starts")
    }

    fn try_start(&mut self, workers: usize) -> Result<Vec<FolderStore>> {
        let mut stores: Vec<FolderStore> =
            (0..workers).map(|slot| super::store(&self.disk, &self.folder, slot, self.sizes)).collect();
        let claim = stores[0].claim(self.zombie.is_some())?;
        self.wake_zombie(true);
        stores[0].begin(&super::begin(workers))?;
        self.wake_zombie(true);
        stores[1..].iter_mut().try_for_each(|store| store.join(claim))?;
        let restored = stores[0].load()?;
        for store in &mut stores[1..] {
            assert_eq!(store.load()?, restored);
        }
        let mut found = Found::new();
        for (index, store) in stores.iter_mut().enumerate() {
            store.items(Share { index, peers: workers }, &mut |name, times, bytes| {
                *found.entry((name.to_owned(), bytes.to_vec())).or_default() += times;
                Ok(())
            })?;
        }
        self.check(&restored, &found);
        Ok(stores)
    }

    /// Holds what was found against the model, and lets the model forget what was cut off.
    fn check(&mut self, restored: &Restored, found: &Found) {
        let durable = self.ranges.iter().take_while(|range| range.done.iter().all(|done| *done)).count();
        let counted = self.ranges.iter().take_while(|range| range.upper <= restored.upper).count();
        assert!(counted >= durable, "{durable} ranges were durable, {counted} are there");
        assert!(self.ranges[..counted].iter().all(|range| range.tried.iter().all(|tried| *tried)));
        let cut = self.ranges.drain(..).collect::<Vec<_>>();
        self.stats.lost += (cut.len() - counted) as u64;
        for range in &cut {
            assert!(restored.above >= range.upper || range.done.iter().all(|done| !*done));
        }
        self.kept.extend_from_slice(&cut[..counted]);
        self.upper = self.kept.last().map_or(self.upper, |range| range.upper);
        assert_eq!(restored.upper, self.upper);
        let expected = model::restored(&self.kept, self.upper, restored.above, restored.published);
        assert_eq!(*restored, expected);
        assert!(restored.above >= restored.upper && restored.published <= restored.upper);
        let mut count = Found::new();
        for ((name, id), times) in model::count(&self.kept) {
            *count.entry((name, model::bytes(id).to_vec())).or_default() += times;
        }
        assert_eq!(*found, count);
    }

    /// Lets an old run go on: it may do what it likes and changes nothing that counts. `last` if its ranges are still open.
    fn wake_zombie(&mut self, last: bool) {
        let Some(mut zombie) = self.zombie.take() else { return };
        let slot = self.random.below(zombie.stores.len() as u64) as usize;
        if self.random.one_in(3) && slot == 0 {
            let compacted = zombie.stores[0].compactor().and_then(|compactor| compactor.run());
            assert!(!compacted.is_ok_and(|compacted| compacted), "an old run has compacted");
        }
        if let Some(range) = zombie.ranges.get(zombie.next[slot]) {
            if last
                && zombie.run == self.run
                && let Some(range) = self.ranges.iter_mut().find(|other| other.lower == range.lower)
            {
                range.tried[slot] = true;
            }
            match zombie.stores[slot].append(&range.frames[slot]) {
                Ok(()) => panic!("an old run has appended"),
                Err(error) if error.kind() == ErrorKind::Fenced => self.stats.fenced += 1,
                Err(error) => self.expect_fault(&error),
            }
        }
        self.zombie = Some(zombie);
    }

    /// Lets workers append ranges, each as far as it comes.
    fn run(&mut self, mut stores: Vec<FolderStore>) {
        self.schedule(1_500);
        self.run += 1;
        let mut live = model::count(&self.kept);
        let above = stores[0].load().map_or(self.upper, |restored| restored.above);
        let (mut next, mut published) =
            (vec![0; stores.len()], self.upper.min(self.kept.iter().map(|r| r.frames[0].published).max().unwrap_or(0)));
        for _ in 0..self.random.below(60) {
            self.wake_zombie(false);
            if self.random.one_in(8) && !self.compact(&stores[0]) {
                return;
            }
            let slot = self.random.below(stores.len() as u64) as usize;
            let slowest = next.iter().copied().min().unwrap_or_default();
            if next[slot] > slowest + 2 {
                continue;
            }
            if next[slot] == self.ranges.len() {
                let durable = slowest.checked_sub(1).map_or(0, |at| self.ranges[at].upper);
                if self.random.one_in(2) {
                    published = published.max(durable);
                }
                let lower =
                    self.ranges.last().map_or(above.max(self.upper) + self.random.below(3), |range| range.upper);
                self.ranges.push(model::range(&mut self.random, lower, stores.len(), published, &mut live));
                self.stats.ranges += 1;
            }
            if self.append(&mut stores[slot], slot, next[slot]) {
                next[slot] += 1;
            } else if self.sim.has_crashed() || self.random.one_in(4) {
                break;
            }
        }
        if !self.sim.has_crashed() && self.random.one_in(2) {
            self.zombie = Some(Zombie { run: self.run, stores, next, ranges: self.ranges.clone() });
        }
    }

    /// Whether a worker has appended its frame of a range, perhaps not at the first try.
    fn append(&mut self, store: &mut FolderStore, slot: usize, at: usize) -> bool {
        for _ in 0..1 + self.random.below(3) {
            self.ranges[at].tried[slot] = true;
            match store.append(&self.ranges[at].frames[slot].clone()) {
                Ok(()) => {
                    self.ranges[at].done[slot] = true;
                    return true;
                }
                Err(error) => self.expect_fault(&error),
            }
            if self.sim.has_crashed() {
                return false;
            }
            self.stats.retried += 1;
        }
        false
    }

    fn compact(&mut self, store: &FolderStore) -> bool {
        match store.compactor().unwrap().run() {
            Ok(compacted) => self.stats.compactions += u64::from(compacted),
            Err(error) => self.expect_fault(&error),
        }
        !self.sim.has_crashed()
    }
}

fn run(seed: u64) -> Stats {
    let mut random = Random(seed);
    let sim = Arc::new(SimDisk::new(random.next()));
    run_in(random, sim)
}

/// Runs a history.
pub(in crate::checkpoint) fn run_in(random: Random, sim: Arc<dyn World>) -> Stats {
    let mut history = History::new(random, sim);
    for _ in 0..1 + history.random.below(5) {
        let stores = history.start(false);
        history.run(stores);
    }
    if history.random.one_in(2) {
        history.zombie = None;
        history.sim.restart(true);
    }
    let stores = history.start(true);
    history.wake_zombie(false);
    let inspection = inspect(history.folder.clone(), Arc::clone(&history.disk)).unwrap();
    inspection.verify().unwrap();
    assert_eq!((inspection.restored().unwrap().upper, inspection.num_slots), (history.upper, stores.len()));
    history.stats
}

#[test]
fn every_start_finds_a_state_that_was_whole() {
    many(cases(10_000), &run);
}

/// Runs histories of seeds below a number.
pub(in crate::checkpoint) fn many(cases: u64, run: &(dyn Fn(u64) -> Stats + Sync)) {
    if let Ok(seed) = std::env::var("SYNCLINE_MODEL_SEED") {
        run(seed.parse().expect("a seed"));
        return;
    }
    let next = AtomicU64::new(0);
    let total = Mutex::new([0; 6]);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= cases {
                        return;
                    }
                    let Ok(stats) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed))) else {
                        panic!("history {seed} failed: SYNCLINE_MODEL_SEED={seed} runs it alone")
                    };
                    let Stats { ranges, compactions, lost, crashes, retried, fenced } = stats;
                    let counts = [ranges, compactions, lost, crashes, retried, fenced];
                    total.lock().unwrap().iter_mut().zip(counts).for_each(|(total, count)| *total += count);
                }
            });
        }
    });
    let total = total.into_inner().unwrap();
    assert!(total.iter().all(|count| *count > cases / 10), "too little was tested: {total:?}");
}

/// The histories would see a store that forgets: here the disk does not keep what it has synced.
#[test]
#[should_panic(expected = "a history has noticed")]
fn a_disk_that_lies_is_noticed() {
    for seed in 0..200 {
        let ran = std::panic::catch_unwind(|| {
            let mut random = Random(seed);
            let sim = Arc::new(SimDisk::new(random.next()));
            let mut history = History::new(random, Arc::clone(&sim) as Arc<dyn World>);
            history.fault = 0;
            let stores = history.start(true);
            sim.lie();
            history.run(stores);
            history.zombie = None;
            history.sim.restart(true);
            history.start(true);
        });
        assert!(ran.is_ok(), "a history has noticed");
    }
}

#[test]
fn a_run_of_many_workers_is_found_by_few_and_the_other_way_round() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let folder = Path::new("/store");
    for (workers, lower) in [(3, 0), (1, 10), (4, 20)] {
        let mut stores = start(&disk, folder, workers, false, SMALL).unwrap();
        let restored = stores[0].load().unwrap();
        assert_eq!((restored.upper, stores[0].slots_ever().unwrap()), (lower, if lower < 20 { 3 } else { 4 }));
        assert_eq!(super::items(&mut stores[0]).len(), [0, 3, 4][lower as usize / 10]);
        for store in &mut stores {
            store.append(&super::frame(lower, lower + 10, "item")).unwrap();
        }
    }
}
