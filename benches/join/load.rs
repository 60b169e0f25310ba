//! The records that both operators get, and the loop that feeds them and takes the time.
//!
//! Nine of eleven keys get a record on every side within ten epochs, one key of a hundred gets one record more within forty. The
//! others wait for their window, which is chosen so that always about `live` keys wait and as many are remembered. The run
//! begins with `live` keys that wait already.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use syncline::dataflow::Tick;
use syncline::epoch::Epoch;
use syncline::message::{Offset, Reason, SplitId};
use syncline::sync::{Counts, Key, KeyBuilder, KeyTypes, Options, Output, Record, synchronize};
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::{Input, Probe};
use timely::dataflow::{ProbeHandle, Stream};

use super::map;
use super::support::thread_cpu;

/// Bytes of a payload.
const PAYLOAD: usize = 100;
/// Bytes of the block that payloads are slices of, as a reader's are.
const BLOCK: usize = 256 << 10;
/// The share of new keys that get all sides.
const COMPLETE: (u64, u64) = (45, 55);

/// Which operator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The one of the crate.
    Ours,
    /// The hand-written one.
    Map,
}

/// What is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) sides: usize,
    /// Records of an epoch, over all workers.
    pub(crate) epoch: u64,
    /// Records in all; the first fifth does not count.
    pub(crate) records: u64,
    /// Keys that wait.
    pub(crate) live: u64,
    pub(crate) workers: usize,
    /// Epochs that are open at once.
    pub(crate) in_flight: usize,
}

/// What came out, in one number for each kind, so that two operators can be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) joined: u64,
    pub(crate) delayed: u64,
    pub(crate) duplicates: u64,
    pub(crate) overridden: u64,
    pub(crate) expired: u64,
    /// Over keys, positions and payloads of all outputs.
    pub(crate) check: u64,
}

impl Sums {
    fn add(&mut self, other: Sums) {
        self.joined += other.joined;
        self.delayed += other.delayed;
        self.duplicates += other.duplicates;
        self.overridden += other.overridden;
        self.expired += other.expired;
        self.check = self.check.wrapping_add(other.check);
    }

    fn output(&mut self, output: &Output<Bytes>) {
        let mut check = output.key().hash().0 as u64;
        let mut entry = |side: usize, offset: Offset, payload: &Bytes| {
            check ^= mix(offset.0 << 4 | side as u64) ^ u64::from(payload[0]) << 32;
        };
        match output {
            Output::Joined { records, .. } => {
                self.joined += 1;
                records.iter().enumerate().for_each(|(side, e)| entry(side, e.offset, &e.payload));
            }
            Output::Delayed { records, .. } => {
                self.delayed += 1;
                let present = records.iter().enumerate().filter_map(|(side, e)| Some((side, e.as_ref()?)));
                present.for_each(|(side, e)| entry(side, e.offset, &e.payload));
            }
        }
        self.check = self.check.wrapping_add(mix(check));
    }

    fn counts(&mut self, counts: &Counts) {
        self.duplicates += counts.dropped(Reason::Duplicate);
        self.overridden += counts.dropped(Reason::Overridden);
        self.expired += counts.expired_records;
    }
}

/// What a run took, without the making of the records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    /// CPU time of all workers.
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
    /// Records that were measured.
    pub(crate) records: u64,
    pub(crate) sums: Sums,
}

impl Ran {
    pub(crate) fn per_cpu_second(&self) -> f64 {
        self.records as f64 / self.cpu.as_secs_f64()
    }
}

/// A bijection that looks random (splitmix64).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The records of one worker.
struct Generator {
    worker: u64,
    peers: u64,
    sides: u8,
    keys: u64,
    offset: u64,
    random: u64,
    owed: f64,
    /// Records that are to come, by epoch modulo the length: key number and side.
    coming: Vec<Vec<(u64, u8)>>,
    builder: KeyBuilder,
    text: String,
    block: Bytes,
    splits: Vec<SplitId>,
}

impl Generator {
    fn new(load: &Load, worker: u64) -> Self {
        Generator {
            worker,
            peers: load.workers as u64,
            sides: load.sides as u8,
            keys: 0,
            offset: 0,
            random: mix(worker + 77),
            owed: 0.0,
            coming: vec![vec![]; 40],
            builder: KeyBuilder::new(KeyTypes::Typed),
            text: String::new(),
            block: Bytes::new(),
            splits: (0..load.sides).map(|side| SplitId::numbered(&side.to_string(), worker as u32)).collect(),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(1);
        ((u128::from(mix(self.random)) * u128::from(below)) >> 64) as u64
    }

    /// Made anew for every record, as a decoder does.
    fn key(&mut self, number: u64) -> Key {
        use std::fmt::Write;
        let mut text = std::mem::take(&mut self.text);
        for part in ["org.example.g", "artifact-", "1."] {
            text.clear();
            let number = if part == "artifact-" { number } else { mix(number) % 5003 };
            let _ = write!(text, "{part}{number}"); // memory takes everything
            self.builder.text(&text);
        }
        self.text = text;
        self.builder.build()
    }

    fn record(&mut self, number: u64, side: u8, time: u64) -> Record<Bytes> {
        if self.block.len() < PAYLOAD {
            self.block = Bytes::from(vec![mix(self.offset) as u8; BLOCK]);
        }
        self.offset += 1;
        Record {
            key: self.key(number),
            side,
            split: self.splits[usize::from(side)],
            offset: Offset(self.offset),
            timestamp: time,
            base: time,
            payload: self.block.split_to(PAYLOAD),
        }
    }

    /// A key that was not there before, with the side of its first record.
    fn fresh(&mut self) -> (u64, u8) {
        self.keys += 1;
        let sides = u64::from(self.sides);
        (self.keys * self.peers + self.worker, self.random(sides) as u8)
    }

    fn epoch(&mut self, epoch: u64, size: u64, mut send: impl FnMut(Record<Bytes>)) {
        let (complete, of) = COMPLETE;
        let cycle = self.coming.len() as u64;
        let here = (epoch % cycle) as usize;
        let mut now = std::mem::take(&mut self.coming[here]);
        // Each new key brings so many records with it.
        let each = 1.0 + (self.sides - 1) as f64 * complete as f64 / of as f64;
        self.owed += size as f64 / each;
        while self.owed >= 1.0 {
            self.owed -= 1.0;
            let (number, first) = self.fresh();
            now.push((number, first));
            if self.random(of) < complete {
                for side in (0..self.sides).filter(|side| *side != first) {
                    match self.random(10) {
                        0 => now.push((number, side)),
                        after => self.coming[((epoch + after) % cycle) as usize].push((number, side)),
                    }
                }
            }
            if self.random(100) == 0 {
                let (after, side) = (1 + self.random(cycle - 2), self.random(u64::from(self.sides)) as u8);
                self.coming[((epoch + after) % cycle) as usize].push((number, side));
            }
        }
        for (number, side) in now.drain(..) {
            send(self.record(number, side, epoch));
        }
        // What was pushed for this very place meanwhile is none: nothing is further away than the cycle.
        if self.coming[here].is_empty() {
            self.coming[here] = now;
        }
    }
}

fn operator<'s>(
    kind: Kind,
    sides: usize,
    (window, remember): (u64, u64),
    records: Stream<'s, Epoch, Vec<Record<Bytes>>>,
    clock: Stream<'s, Epoch, Vec<Tick>>,
) -> (Stream<'s, Epoch, Vec<Output<Bytes>>>, Stream<'s, Epoch, Vec<Counts>>) {
    match (kind, sides) {
        (Kind::Ours, _) => {
            let mut options = Options::new(sides, Duration::from_millis(window));
            options.remember = Duration::from_millis(remember);
            let synchronized = synchronize(records, clock, &options);
            (synchronized.outputs, synchronized.counts)
        }
        (Kind::Map, 2) => map::synchronize::<2>(records, clock, window, remember),
        (Kind::Map, 3) => map::synchronize::<3>(records, clock, window, remember),
        (Kind::Map, _) => unreachable!("the bench has two or three sides"),
    }
}

/// Adds up outputs and counts on this worker.
fn sum<'s>(
    outputs: Stream<'s, Epoch, Vec<Output<Bytes>>>,
    counts: Stream<'s, Epoch, Vec<Counts>>,
    sums: std::rc::Rc<std::cell::RefCell<Sums>>,
) -> Stream<'s, Epoch, Vec<()>> {
    use timely::container::CapacityContainerBuilder;
    use timely::dataflow::channels::pact::Pipeline;
    outputs.binary_frontier::<_, CapacityContainerBuilder<Vec<()>>, _, _, _, _>(
        counts,
        Pipeline,
        Pipeline,
        "Sum",
        move |_, _| {
            move |(outputs, _), (counts, _), _| {
                let mut sums = sums.borrow_mut();
                outputs.for_each(|_, data| data.drain(..).for_each(|output| sums.output(&output)));
                counts.for_each(|_, data| data.iter().for_each(|counts| sums.counts(counts)));
            }
        },
    )
}

/// Runs one operator.
pub(crate) fn run(kind: Kind, load: Load) -> Ran {
    let epochs = load.records / load.epoch;
    // In epochs, which are milliseconds here: so that what comes of the unmatched keys keeps `live` of them waiting.
    let (complete, of) = COMPLETE;
    let each = 1.0 + (load.sides - 1) as f64 * complete as f64 / of as f64;
    let fresh = load.epoch as f64 / each;
    let window = (load.live as f64 / (fresh * (of - complete) as f64 / of as f64)).ceil() as u64;
    let remember = (load.live as f64 / (fresh * complete as f64 / of as f64)).ceil() as u64;
    let config = match load.workers {
        1 => timely::Config::thread(),
        workers => timely::Config::process(workers),
    };
    let guards = timely::execute(config, move |worker| {
        let (me, peers) = (worker.index() as u64, worker.peers() as u64);
        let probe = ProbeHandle::new();
        let sums = std::rc::Rc::new(std::cell::RefCell::new(Sums::default()));
        let (mut records, mut clock) = worker.dataflow(|scope| {
            let (records_in, records) = scope.new_input::<Vec<Record<Bytes>>>();
            let (clock_in, clock) = scope.new_input::<Vec<Tick>>();
            let (outputs, counts) = operator(kind, load.sides, (window, remember), records, clock);
            sum(outputs, counts, std::rc::Rc::clone(&sums)).probe_with(&probe);
            (records_in, clock_in)
        });
        let mut generator = Generator::new(&load, me);
        let waiting = load.live / peers;
        for number in 0..waiting {
            let (key, side) = generator.fresh();
            let mut record = generator.record(key, side, 0);
            record.base = 1_000_000 + number * window / waiting; // so that as many are due in every epoch
            records.send(record);
        }
        // Epochs begin where the deadlines of those keys do.
        let start = 1_000_000 + window;
        clock.send(Tick { time: start - 1, end: false });
        records.advance_to(start);
        clock.advance_to(start);
        while probe.less_than(&start) {
            worker.step_or_park(None);
        }
        let (mut cpu, mut began, mut measured) = (Duration::ZERO, Instant::now(), 0);
        let mut open = VecDeque::new();
        for epoch in start..start + epochs {
            if epoch == start + epochs / 5 {
                (cpu, began, measured) = (Duration::ZERO, Instant::now(), 0);
            }
            generator.epoch(epoch, load.epoch / peers, |record| {
                measured += 1;
                records.send(record);
            });
            clock.send(Tick { time: epoch, end: false });
            records.advance_to(epoch + 1);
            clock.advance_to(epoch + 1);
            let before = thread_cpu();
            open.push_back(epoch);
            while open.len() >= load.in_flight || epoch + 1 == start + epochs && !open.is_empty() {
                worker.step_or_park(None);
                while open.front().is_some_and(|epoch| !probe.less_equal(epoch)) {
                    open.pop_front();
                }
            }
            cpu += thread_cpu() - before;
        }
        let wall = began.elapsed();
        let sums = *sums.borrow();
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow); // records wait, so it would not end by itself
        }
        Ran { cpu, wall, records: measured, sums }
    });
    let guards = guards.expect("timely starts");
    let mut total = Ran { cpu: Duration::ZERO, wall: Duration::ZERO, records: 0, sums: Sums::default() };
    for ran in guards.join().into_iter().map(|ran| ran.expect("no worker panics")) {
        total.cpu += ran.cpu;
        total.wall = total.wall.max(ran.wall);
        total.records += ran.records;
        total.sums.add(ran.sums);
    }
    total
}
