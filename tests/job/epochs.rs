//! How epochs are closed, and who is heard of them.
//!
//! Would catch: an idle job that is busy, a deadline that nobody closes epochs for, a worker without splits that holds the others
//! back or never gets any, a clock that goes back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncline::broker::memory::{MemoryBroker, MemoryMessage};
use syncline::codec::Raw;
use syncline::dataflow::{Flow, Gauges, Input, Tick};
use syncline::epoch::ManualClock;
use syncline::source::Position;
use syncline::split_time::TimeMode;
use syncline::{Job, Result};
use timely::dataflow::operators::vec::Map;

use super::support::{GROUP, Gate, Log, Running, START, Trouble, copy_inputs, sink, source, until};

type Ticks = Arc<Mutex<Vec<u64>>>;

/// Notes the ticks of worker 0.
fn note(flow: &mut Flow<'_>, ticks: &Ticks) {
    let (ticks, first) = (Arc::clone(ticks), flow.scope().index() == 0);
    let noted = flow.clock().map(move |tick: Tick| {
        if first {
            ticks.lock().unwrap().push(tick.time);
        }
    });
    flow.complete(noted);
}

#[test]
fn an_idle_job_closes_epochs_only_while_something_waits() {
    let (broker, clock) = (MemoryBroker::new(), ManualClock::new(START));
    broker.create_topic("topic", 1);
    let topic = source(&broker, "topic", &Log::default(), &Trouble::default());
    let ticks = Ticks::default();
    let noted = Arc::clone(&ticks);
    let build = move |flow: &mut Flow<'_>| -> Result<()> {
        let input = Input::new("topic", Arc::clone(&topic), Arc::new(|| Box::new(Raw)));
        let gauges = std::rc::Rc::new(Gauges::default());
        flow.watch(std::rc::Rc::clone(&gauges));
        let waiting = flow.read(&input)?.map(move |arrived| {
            gauges.waits_for_time.set(arrived.data.value.as_deref() == Some(b"wait"));
        });
        flow.complete(waiting);
        note(flow, &noted);
        Ok(())
    };
    let running = Running::start(Job::new(GROUP).clock(Arc::new(clock.clone())), 1, build);
    let count = || ticks.lock().unwrap().len();
    let mut expected = 0;
    let mut give = |value: &str| {
        broker.append("topic", 0, value.to_owned()).unwrap();
        expected += 1;
        until("the record is read", || {
            clock.advance(Duration::from_millis(1));
            count() >= expected
        });
        assert_eq!(count(), expected);
        clock.advance(Duration::from_secs(3600)); // nobody cares
        expected
    };
    give("a");
    let expected = give("b");
    assert_eq!(expected, 2);

    broker.append("topic", 0, "wait").unwrap();
    until("the record is read", || {
        clock.advance(Duration::from_millis(1));
        count() == 3
    });
    for round in 1..=20 {
        clock.advance(Duration::from_millis(250));
        until("the idle epoch is closed", || count() >= 3 + round);
        assert_eq!(count(), 3 + round);
    }
    running.stop().unwrap();
    assert_eq!(count(), 24); // and the last one, which the stop has closed
}

/// A job that copies a topic, in event time without disorder, from its end on.
fn copying(broker: &MemoryBroker, trouble: &Trouble, workers: usize, ticks: &Ticks) -> Running {
    let (log, open) = (Log::default(), Gate::new(true));
    let topic = source(broker, "topic", &log, trouble);
    let input = Input::new("topic", topic, Arc::new(|| Box::new(Raw))).start(Position::Latest);
    let copy = copy_inputs(vec![input], &sink(broker, &log, &open, &Trouble::default()));
    let mode = TimeMode::Event { max_disorder: Duration::ZERO, idle_after: Duration::from_secs(3600) };
    let ticks = Arc::clone(ticks);
    Running::start(Job::new(GROUP).time_mode(mode), workers, move |flow| {
        note(flow, &ticks);
        copy(flow)
    })
}

/// Appends a message of this timestamp, and waits until it was copied.
fn copied(broker: &MemoryBroker, split: u32, timestamp: u64) {
    let value = format!("{split}@{timestamp}");
    broker.append("topic", split, MemoryMessage::new(value.clone()).with_timestamp(timestamp)).unwrap();
    until("the message is copied", || broker.values("out-0").contains(&value));
}

/// Waits until the job reads: it starts at the end.
fn wait_reading(broker: &MemoryBroker) {
    until("the job reads", || {
        broker.append("topic", 0, MemoryMessage::new("first").with_timestamp(1)).unwrap();
        broker.values("out-0").contains(&"first".to_owned())
    });
}

#[test]
fn a_late_split_on_a_worker_without_any_is_read_from_its_beginning_and_holds_the_clock() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 1);
    let ticks = Ticks::default();
    let last = || ticks.lock().unwrap().last().copied();
    let running = copying(&broker, &Trouble::default(), 3, &ticks);
    wait_reading(&broker);
    copied(&broker, 0, 1_000);
    until("all workers have opened the topic, so that nobody holds the clock", || last() == Some(1_000));
    assert_eq!(broker.add_split("topic").unwrap(), 1);
    copied(&broker, 1, 500);
    copied(&broker, 0, 2_000);
    assert_eq!(last(), Some(1_000));
    copied(&broker, 1, 3_000);
    assert_eq!(last(), Some(2_000));
    running.stop().unwrap();
    assert!(ticks.lock().unwrap().is_sorted());
}

#[test]
fn a_split_that_is_removed_holds_the_clock_no_more() {
    let (broker, trouble) = (MemoryBroker::new(), Trouble::default());
    broker.create_topic("topic", 2);
    let ticks = Ticks::default();
    let last = || ticks.lock().unwrap().last().copied();
    let running = copying(&broker, &trouble, 2, &ticks);
    wait_reading(&broker);
    copied(&broker, 0, 1_000);
    assert_eq!(last(), Some(0));
    trouble.hide(1);
    let mut timestamp = 1_000;
    until("the clock goes on", || {
        timestamp += 1;
        copied(&broker, 0, timestamp);
        last() == Some(timestamp)
    });
    running.stop().unwrap();
}
