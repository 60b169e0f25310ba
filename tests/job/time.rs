//! The promise of the job's clock, on a job that runs: a record is given up only after every split had its window.
//!
//! Would catch: a silent topic that waits for ever; a backlog, an outage or a pause that gives records up.

use std::time::Duration;

use syncline::broker::memory::MemoryMessage;
use syncline::epoch::Clock;
use syncline::split_time::TimeMode;

use super::pair::Pair;
use super::support::{START, turn_until, until};

const WINDOW: Duration = Duration::from_secs(4); // longer than evidence lasts
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn t04_a_silent_topic_times_out_after_the_window() {
    let pair = Pair::new([1, 1], WINDOW);
    let running = pair.start(2);
    for key in [1, 2] {
        let given = pair.clock.wall();
        pair.give("one", key);
        turn_until(&pair.clock, "the delay", || pair.has_delayed(key));
        assert!(pair.clock.wall() >= given + 4_000, "key {key} after {} ms", pair.clock.wall() - given);
        pair.wait_live(&running); // the second one is read live
    }
    running.stop().unwrap();
    assert_eq!(pair.values("delay").len(), 2);
}

#[test]
fn a_source_without_splits_does_not_count() {
    let pair = Pair::new([1, 0], WINDOW);
    let running = pair.start(2);
    pair.give("one", 1);
    turn_until(&pair.clock, "the delay", || pair.has_delayed(1));
    running.stop().unwrap();
}

#[test]
fn a_backlog_gives_nothing_up() {
    let pair = Pair::new([1, 1], WINDOW);
    pair.trouble.stay_behind(true);
    let running = pair.start(2);
    pair.give("one", 1);
    pair.wait_read(&running, 1);
    pair.pass(2 * WINDOW);
    pair.clock.advance(HOUR);
    pair.join(2);
    pair.pass(2 * WINDOW);
    pair.join(3);
    assert!(!pair.has_delayed(1));
    pair.trouble.stay_behind(false);
    turn_until(&pair.clock, "the delay", || pair.has_delayed(1));
    running.stop().unwrap();
}

#[test]
fn an_outage_gives_nothing_up() {
    // The first window is shorter than evidence lasts: there the readers must have said that they know nothing.
    for window in [Duration::from_secs(1), WINDOW] {
        let pair = Pair::new([1, 1], window);
        let running = pair.start(2);
        pair.join(0);
        pair.wait_live(&running);
        pair.trouble.be_unreachable(true);
        let retries = running.status.snapshot().retries;
        // More than fit between the reader and its worker, so the worker has heard of it.
        until("the reader has noticed", || running.status.snapshot().retries > retries + 20);
        pair.give("one", 1);
        pair.wait_read(&running, 3);
        pair.pass(2 * window);
        pair.clock.advance(HOUR);
        pair.pass(window);
        pair.give("one", 2);
        pair.wait_read(&running, 4);
        pair.give("one", 3);
        pair.wait_read(&running, 5);
        assert!(pair.values("delay").is_empty());
        pair.trouble.be_unreachable(false);
        let back = pair.clock.wall();
        turn_until(&pair.clock, "the delays", || pair.values("delay").len() == 3);
        assert!(pair.clock.wall() - back >= window.as_millis() as u64);
        running.stop().unwrap();
    }
}

#[test]
fn a_process_that_was_stopped_gives_nothing_up() {
    let pair = Pair::new([1, 1], WINDOW);
    let running = pair.start(2);
    pair.join(0);
    pair.wait_live(&running);
    pair.give("one", 1);
    pair.wait_read(&running, 3);
    pair.clock.advance(HOUR); // nothing was asked meanwhile
    pair.join(2);
    assert!(!pair.has_delayed(1));
    turn_until(&pair.clock, "the delay", || pair.has_delayed(1));
    running.stop().unwrap();
}

#[test]
fn the_event_clock_leaves_idle_splits_out_and_stands_when_all_are_idle() {
    let mut pair = Pair::new([1, 1], WINDOW);
    let (max_disorder, idle_after) = (Duration::from_millis(100), Duration::from_secs(1));
    pair.mode = TimeMode::Event { max_disorder, idle_after };
    let running = pair.start(2);
    let give = |key: u64, timestamp: u64| {
        let message = MemoryMessage::new(format!("{{\"k\":{key}}}")).with_timestamp(START + timestamp);
        pair.broker.append("one", 0, message).unwrap();
    };
    // Records keep coming; the other topic never has any.
    let mut key = 0;
    until("the delay", || {
        key += 1;
        give(key, if key == 1 { 0 } else { 4_101 });
        pair.pass(Duration::from_millis(200));
        pair.has_delayed(1)
    });
    pair.pass(3 * WINDOW);
    assert_eq!(pair.values("delay").len(), 1); // nothing moves the clock
    give(key + 1, 8_202);
    turn_until(&pair.clock, "the delays", || pair.values("delay").len() as u64 == key);
    running.stop().unwrap();
}
