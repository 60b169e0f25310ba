//! checkpoint(e) -> publish(e) -> commit(e), for every range of epochs, on all workers.
//!
//! Would catch: output that is visible before its checkpoint, or before that of another worker; commits that overtake either;
//! frames that leave epochs out, differ between workers, or whose offsets are not those of their end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use syncline::checkpoint::Frame;
use syncline::epoch::Epoch;
use syncline::message::{Offset, SplitId};
use syncline::{ErrorKind, Job};

use super::pair::{Pair, record};
use super::support::{Event, GROUP, Gate, Log, Running, Trouble, copy, eager, sink, source, stores, turn_until, until};
use syncline::broker::memory::MemoryBroker;

const WORKERS: usize = 3;

/// A broker with topics `a` and `b` of two splits each.
fn broker() -> MemoryBroker {
    let broker = MemoryBroker::new();
    broker.create_topic("a", 2);
    broker.create_topic("b", 2);
    broker
}

/// Appends records that say where they are.
fn feed(broker: &MemoryBroker, records: u64) {
    for number in 0..records {
        let (topic, split) = [("a", 0), ("a", 1), ("b", 0), ("b", 1)][number as usize % 4];
        let offset = broker.messages(topic)[split as usize].len();
        broker.append(topic, split, format!("{topic}[{split}]@{offset}")).unwrap();
    }
}

fn outputs(broker: &MemoryBroker) -> Vec<String> {
    ["out-0", "out-1"].iter().flat_map(|topic| broker.values(topic)).collect()
}

fn start(broker: &MemoryBroker, log: &Log, gate: &Gate, fail_after: Option<usize>, workers: usize) -> Running {
    let (quiet, open) = (Trouble::default(), Gate::new(true));
    let sources = ["a", "b"].map(|topic| source(broker, topic, log, &quiet));
    let job = Job::new(GROUP).store(stores(log, gate, fail_after)).retry(eager());
    Running::start(job, workers, copy(&sources, &sink(broker, log, &open, &quiet)))
}

/// The frames of each worker, in order.
fn frames(events: &[Event]) -> BTreeMap<usize, Vec<Frame>> {
    let mut frames: BTreeMap<usize, Vec<Frame>> = BTreeMap::new();
    for event in events {
        if let Event::Durable { worker, frame } = event {
            frames.entry(*worker).or_default().push(frame.clone());
        }
    }
    frames
}

/// The next offset of a split of an input as these frames of a worker say it.
fn offset(frames: &[Frame], input: usize, split: SplitId) -> Option<Offset> {
    let marks = frames.iter().rev().flat_map(|frame| &frame.splits);
    marks.filter(|mark| (mark.source as usize, mark.split) == (input, split)).map(|mark| mark.offset).next()
}

#[test]
fn every_range_is_checkpointed_published_and_committed_in_this_order() {
    let (broker, log) = (broker(), Log::default());
    let running = start(&broker, &log, &Gate::new(true), None, WORKERS);
    for round in 1..=20 {
        feed(&broker, 40);
        until("the output is there", || outputs(&broker).len() == 40 * round);
    }
    running.stop().unwrap();
    let events = log.events();

    // All workers write the same ranges, which chain.
    let frames = frames(&events);
    assert_eq!(frames.len(), WORKERS);
    let ranges = |frames: &Vec<Frame>| frames.iter().map(|frame| (frame.lower, frame.upper)).collect::<Vec<_>>();
    let first = ranges(&frames[&0]);
    assert!(first.len() >= 20, "{first:?}");
    assert!(frames.values().all(|others| ranges(others) == first));
    assert!(first.windows(2).all(|pair| pair[0].1 == pair[1].0), "{first:?}");
    assert!(first.iter().all(|(lower, upper)| lower < upper));

    // The order of every range, and that commits say only what is published.
    let mut durable: BTreeMap<Epoch, usize> = BTreeMap::new();
    let mut published: BTreeMap<Epoch, usize> = BTreeMap::new();
    let mut committed: BTreeMap<SplitId, Offset> = BTreeMap::new();
    for event in &events {
        match event {
            Event::Durable { frame, .. } => *durable.entry(frame.lower).or_default() += 1,
            Event::Published { lower } => {
                assert_eq!(durable.get(lower), Some(&WORKERS), "published before all frames were durable");
                *published.entry(*lower).or_default() += 1;
            }
            Event::Committed { offsets } => {
                let done = first.iter().filter(|(lower, _)| published.get(lower) == Some(&WORKERS)).count();
                let done = done.checked_sub(1).expect("a commit before anything was published");
                let known = |split: &SplitId| {
                    frames.values().find_map(|frames| (0..2).find_map(|input| offset(&frames[..=done], input, *split)))
                };
                for (split, offset) in offsets {
                    assert!(Some(*offset) <= known(split), "{split} at {offset} was not published");
                    committed.insert(*split, *offset);
                }
            }
            Event::Wrote { .. } => {}
        }
    }
    assert_eq!(committed.values().map(|offset| offset.0).collect::<Vec<_>>(), [200; 4]);

    // The offsets of a frame are exact: below them is what was written in epochs below its end, and nothing else.
    for (index, (_, upper)) in first.iter().enumerate() {
        let written: BTreeSet<String> = events
            .iter()
            .filter_map(|event| match event {
                Event::Wrote { epoch, value, .. } if epoch < upper => Some(value.clone()),
                _ => None,
            })
            .collect();
        let mut below = BTreeSet::new();
        for (input, topic) in ["a", "b"].iter().enumerate() {
            for split in 0..2 {
                let id = SplitId::numbered(topic, split);
                // A worker whose reader is not open yet names no offset: nothing of its splits is in the range.
                let offset = frames.values().find_map(|frames| offset(&frames[..=index], input, id));
                below.extend((0..offset.unwrap_or_default().0).map(|offset| format!("{topic}[{split}]@{offset}")));
            }
        }
        assert_eq!(written, below);
    }
}

#[test]
fn nothing_is_visible_or_committed_before_the_store_has_it() {
    let (broker, log, gate) = (broker(), Log::default(), Gate::new(false));
    let running = start(&broker, &log, &gate, None, 2);
    feed(&broker, 100);
    running.wait_read(100);
    let wrote = || log.events().iter().filter(|event| matches!(event, Event::Wrote { .. })).count();
    until("the writers have everything", || wrote() == 100);
    assert!(outputs(&broker).is_empty());
    assert_eq!(broker.committed("a", 0, GROUP), None);
    gate.open();
    until("the output is there", || outputs(&broker).len() == 100);
    until("it is committed", || broker.committed("a", 0, GROUP) == Some(Offset(25)));
    running.stop().unwrap();
}

/// Runs a job whose first publish stands still until `feed` is done; how many ranges were published.
fn ranges(records: usize, feed: impl FnOnce(&MemoryBroker, &Running)) -> usize {
    let (broker, log, gate, quiet) = (broker(), Log::default(), Gate::new(false), Trouble::default());
    let sources = ["a", "b"].map(|topic| source(&broker, topic, &log, &quiet));
    let job = Job::new(GROUP).retry(eager());
    let running = Running::start(job, 1, copy(&sources, &sink(&broker, &log, &gate, &quiet)));
    feed(&broker, &running);
    gate.open();
    until("the output is there", || outputs(&broker).len() == records);
    running.stop().unwrap();
    log.events().iter().filter(|event| matches!(event, Event::Published { .. })).count()
}

#[test]
fn while_publishing_stands_still_what_follows_becomes_one_range() {
    let published = ranges(80, |broker, running| {
        for round in 1..=20 {
            feed(broker, 4);
            running.wait_read(4 * round); // so each round has epochs of its own
        }
    });
    // One that was being published, the rest, and perhaps an epoch that was not complete yet when the publishing went on.
    assert!(published <= 3, "{published} ranges");
}

#[test]
fn while_publishing_stands_still_one_large_range_is_put_at_hand() {
    let large = "x".repeat(300 << 10);
    let published = ranges(8, |broker, running| {
        for records in 1..=8 {
            broker.append("b", 0, large.clone()).unwrap();
            running.wait_read(records);
        }
    });
    // The same, and the one at hand.
    assert!((3..=4).contains(&published), "{published} ranges");
}

/// Would catch: waits for the last commits of several inputs one after the other, longer than the end of a job may take.
#[test]
fn a_job_stops_in_time_though_no_input_can_commit() {
    let (broker, log, trouble) = (broker(), Log::default(), Trouble::default());
    let sources = ["a", "b", "a", "b"].map(|topic| source(&broker, topic, &log, &trouble));
    let job = Job::new(GROUP).retry(eager());
    let running = Running::start(job, 1, copy(&sources, &sink(&broker, &log, &Gate::new(true), &Trouble::default())));
    trouble.hang_commits(true);
    feed(&broker, 8);
    until("the output is there", || outputs(&broker).len() == 8);
    let stopped = Instant::now();
    running.stop().unwrap();
    let took = stopped.elapsed();
    trouble.hang_commits(false);
    assert!(took < Duration::from_secs(10), "it took {took:?}"); // one after the other, it is 20 s
}

#[test]
fn a_store_that_fails_ends_the_job_and_its_range_is_never_seen() {
    let (broker, log) = (broker(), Log::default());
    let running = start(&broker, &log, &Gate::new(true), Some(3), 2);
    for round in 1..=3 {
        feed(&broker, 8);
        let seen = || outputs(&broker).len() == 8 * round || running.control.has_failed();
        until("the output is there", seen);
    }
    feed(&broker, 8);
    let error = running.join().unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Store, "the disk is on fire"));
    let events = log.events();
    let frames = frames(&events);
    let upper = frames[&0].last().unwrap().upper;
    assert_eq!(frames[&0].len(), 3);
    let wrote = |event: &Event| matches!(event, Event::Wrote { epoch, .. } if *epoch < upper);
    assert_eq!(outputs(&broker).len(), events.iter().filter(|event| wrote(event)).count());
    assert!(outputs(&broker).len() < 32);
}

#[test]
fn without_a_store_commits_stay_below_the_oldest_record_that_waits() {
    let pair = Pair::new([1, 1], Duration::from_secs(60));
    let running = pair.start(2);
    for key in 0..5 {
        pair.join(key);
    }
    let committed = |topic| pair.broker.committed(topic, 0, GROUP).map(|offset| offset.0);
    pair.until("all is committed", || committed("one") == Some(5) && committed("two") == Some(5));
    pair.give("one", 5);
    pair.wait_read(&running, 11);
    for key in 6..10 {
        pair.join(key);
    }
    let bound = running.status.snapshot().bound;
    assert_eq!((committed("one"), committed("two")), (Some(5), Some(5)));
    pair.give("two", 5);
    pair.until("all is committed", || committed("one") == Some(10) && committed("two") == Some(10));
    assert!(running.status.snapshot().bound > bound);
    running.stop().unwrap();
    assert_eq!(pair.tally.totals().counts.joins, 10);
}

#[test]
fn records_that_wait_when_a_job_is_stopped_are_read_again_by_the_next_run() {
    let pair = Pair::new([1, 1], Duration::from_secs(60));
    let committed = |topic| pair.broker.committed(topic, 0, GROUP).map_or(0, |offset| offset.0);
    for round in 0..3 {
        let running = pair.start(2);
        pair.join(10 * round);
        pair.give("one", 10 * round + 1); // waits for a partner that comes in the next run
        pair.wait_read(&running, if round == 0 { 3 } else { 4 });
        running.stop().unwrap();
        assert!(committed("one") < 2 * round + 2, "round {round}: {} are committed", committed("one"));
        pair.give("two", 10 * round + 1);
    }
    let running = pair.start(2);
    for key in [1, 11, 21] {
        let joined = format!("{{\"key\":\"{key}\",");
        pair.until("what waited is joined", || pair.values("joined").iter().any(|value| value.starts_with(&joined)));
    }
    pair.until("all is committed", || committed("one") == 6 && committed("two") == 6);
    running.stop().unwrap();
}

#[test]
fn t07_delays_are_as_safe_as_joined_records() {
    let pair = Pair::new([1, 1], Duration::from_secs(1));
    let gate = Gate::new(false);
    let running = Running::start(pair.job().store(stores(&pair.log, &gate, None)), 2, pair.build());
    pair.give("one", 1);
    pair.broker.extend("one", 0, [record(2)]).unwrap();
    pair.broker.extend("two", 0, [record(2)]).unwrap();
    pair.wait_read(&running, 3);
    let wrote = |text: &str| {
        let found = |event: &Event| matches!(event, Event::Wrote { value, .. } if value.contains(text));
        pair.log.events().iter().any(found)
    };
    turn_until(&pair.clock, "the delay is written", || wrote("\"error\""));
    assert!(pair.values("joined").is_empty() && pair.values("delay").is_empty());
    pair.broker.set_unreachable(true);
    gate.open();
    pair.until("publishing is tried again", || running.status.snapshot().retries > 3);
    assert!(pair.values("joined").is_empty() && pair.values("delay").is_empty());
    pair.broker.set_unreachable(false);
    pair.until("both are there", || pair.values("joined").len() == 1 && pair.values("delay").len() == 1);
    running.stop().unwrap();
    assert_eq!(pair.values("delay"), [r#"{"key":"1","error":"Missing information from two.","one":{"k":1}}"#]);
    let frames = frames(&pair.log.events());
    let clocks = |worker: usize| frames[&worker].iter().map(|frame| frame.clock).collect::<Vec<_>>();
    assert_eq!(clocks(0), clocks(1));
    assert!(clocks(0).is_sorted() && clocks(0).first() < clocks(0).last());
}
