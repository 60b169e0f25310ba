//! State that is never freed is a bug: after everything has expired, memory is back where it was.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use syncline::dataflow::Gauges;
use syncline::dataflow::Tick;
use syncline::message::{Offset, SplitId};
use syncline::sync::{Key, Late, Options, Record, synchronize};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::{Input, Probe};
use timely::dataflow::{InputHandle, ProbeHandle};
use timely::worker::Worker;

use super::random::Random;

const WINDOW: u64 = 100;

type Handle<T> = InputHandle<u64, CapacityContainerBuilder<Vec<T>>>;

/// The operator alone, given one epoch after the other.
struct Driver<'a> {
    worker: &'a mut Worker,
    records: Handle<Record<Bytes>>,
    clock: Handle<Tick>,
    probe: ProbeHandle<u64>,
    gauges: Rc<Gauges>,
    epoch: u64,
}

/// Records that still wait would keep the dataflow alive.
impl Drop for Driver<'_> {
    fn drop(&mut self) {
        self.worker.installed_dataflows().into_iter().for_each(|dataflow| self.worker.drop_dataflow(dataflow));
    }
}

impl<'a> Driver<'a> {
    fn new(worker: &'a mut Worker, options: &Options) -> Self {
        let probe = ProbeHandle::new();
        let (records, clock, gauges) = worker.dataflow(|scope| {
            let (records_in, records) = scope.new_input();
            let (clock_in, clock) = scope.new_input();
            let sync = synchronize::<Bytes>(records, clock, options);
            sync.outputs.probe_with(&probe);
            sync.counts.probe_with(&probe);
            (records_in, clock_in, sync.gauges)
        });
        Driver { worker, records, clock, probe, gauges, epoch: 0 }
    }

    fn step(&mut self, records: impl IntoIterator<Item = Record<Bytes>>, tick: Tick) {
        records.into_iter().for_each(|record| self.records.send(record));
        self.clock.send(tick);
        self.epoch += 1;
        self.records.advance_to(self.epoch);
        self.clock.advance_to(self.epoch);
        self.worker.step_while(|| self.probe.less_than(&self.epoch));
    }

    /// Lets the trace finish what it merges while nothing comes.
    fn settle(&mut self) -> (usize, usize, u64) {
        for _ in 0..1_000 {
            self.worker.step();
        }
        (self.gauges.bytes.get(), self.gauges.keys.get(), self.gauges.pending.get())
    }
}

/// Random records of many new keys: pairs, lonely ones, duplicates. Their buffers are slices of one large one.
fn records(random: &mut Random, time: u64, count: u64) -> Vec<Record<Bytes>> {
    let mut builder = Key::builder();
    let buffer = Bytes::from(vec![7; 1 << 16]);
    let records = (0..count).map(|n| Record {
        key: builder.text("some key").number(&(time * 1_000 + random.below(count)).to_string()).build(),
        side: random.below(2) as u8,
        split: SplitId::numbered("split", 0),
        offset: Offset(time * 1_000 + n),
        timestamp: time,
        base: time,
        payload: buffer.slice(..100),
    });
    records.collect()
}

fn options(late: Late) -> Options {
    let mut options = Options::new(2, Duration::from_millis(WINDOW));
    options.late = late;
    options.remember = Duration::from_millis(3 * WINDOW);
    options
}

#[test]
fn memory_returns_to_its_floor_after_fifty_windows() {
    for late in [Late::Join, Late::Drop] {
        timely::execute_directly(move |worker| {
            let mut driver = Driver::new(worker, &options(late));
            driver.step([], Tick { time: 0, end: false });
            let floor = driver.settle();
            assert!(!driver.gauges.waits_for_time.get());
            let mut random = Random::new(1);
            let mut busy = [0; 50];
            for window in 0..50 {
                for time in (window * WINDOW..(window + 1) * WINDOW).step_by(10) {
                    driver.step(records(&mut random, time, 200), Tick { time, end: false });
                }
                busy[window as usize] = driver.gauges.bytes.get();
                assert!(driver.gauges.waits_for_time.get());
            }
            let (early, last) = (busy[5..20].iter().max(), busy[35..].iter().max());
            assert!(last.zip(early).is_some_and(|(last, early)| *last < early * 3 / 2), "memory grows: {busy:?}");
            // Nothing comes any more; then the last window, and the time to remember, pass.
            driver.step([], Tick { time: 52 * WINDOW, end: false });
            driver.step([], Tick { time: 60 * WINDOW, end: false });
            driver.step([], Tick { time: 60 * WINDOW, end: false });
            driver.settle();
            driver.step([], Tick { time: 60 * WINDOW, end: false });
            let (bytes, keys, pending) = driver.settle();
            assert_eq!((keys, pending), (0, 0));
            assert!(!driver.gauges.waits_for_time.get());
            assert!(bytes <= floor.0 + (16 << 10), "{bytes} bytes after {} and {busy:?}", floor.0);
        });
    }
}

#[test]
fn the_end_frees_what_waits() {
    timely::execute_directly(|worker| {
        let mut driver = Driver::new(worker, &options(Late::Join));
        driver.step([], Tick::default());
        let floor = driver.settle();
        let mut random = Random::new(2);
        for time in (0..500).step_by(10) {
            driver.step(records(&mut random, time, 100), Tick { time, end: false });
        }
        assert!(driver.gauges.keys.get() > 1_000);
        driver.step([], Tick { time: 500, end: true });
        driver.step([], Tick { time: 500, end: true });
        driver.settle();
        driver.step([], Tick { time: 500, end: true });
        let (_, keys, pending) = driver.settle();
        assert_eq!(pending, 0);
        assert!(keys > 0, "finished keys are forgotten");
        // What is finished is remembered as long as the clock says.
        for _ in 0..3 {
            driver.step([], Tick { time: 60 * WINDOW, end: true });
            driver.settle();
        }
        let (bytes, keys, pending) = driver.settle();
        assert_eq!((keys, pending), (0, 0));
        assert!(bytes <= floor.0 + (16 << 10), "{bytes} bytes after {}", floor.0);
    });
}

#[test]
fn what_waits_does_not_hold_the_buffers_it_came_in() {
    timely::execute_directly(|worker| {
        let mut driver = Driver::new(worker, &options(Late::Join));
        let buffer = Bytes::from(vec![7; 1 << 20]);
        let mut record = records(&mut Random::new(3), 0, 1).remove(0);
        record.payload = buffer.slice(5..10);
        driver.step([record], Tick::default());
        driver.worker.step();
        assert_eq!(driver.gauges.pending.get(), 1);
        assert!(buffer.is_unique(), "the waiting record holds the buffer");
    });
}
