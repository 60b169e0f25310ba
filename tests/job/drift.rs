//! A topic that is an hour ahead of the other waits in its broker, and nothing else is different.
//!
//! Would catch: state that grows with what one side is ahead; splits that wait for each other, or for one that is silent, for
//! ever; deadlines that pass while a split is paused; results that depend on the limit.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use syncline::ErrorKind;
use syncline::broker::memory::MemoryMessage;
use syncline::broker::{self, BrokerOptions};
use syncline::epoch::Clock;
use syncline::observe::AheadInput;
use syncline::pacing::Pacing;
use syncline::split_time::TimeMode;

use super::pair::Pair;
use super::support::{Running, START, turn_until};

const HOUR: Duration = Duration::from_secs(3600);
const WINDOW: Duration = Duration::from_secs(60);
/// Keys of the backlog: their records are spread over the hour before [`START`].
const KEYS: u64 = 200_000;
/// The slower side comes in so many parts.
const PARTS: u64 = 10;
/// What was read of a split before its reader hears that it should wait: what that has in its hands, the channel, and what was
/// taken from it; 4,096 messages each.
const BEFORE_A_PAUSE: u64 = 8 * 4_096;

fn timestamp(key: u64) -> u64 {
    START - 3_600_000 + key * 3_600_000 / KEYS
}

/// What a part brings to a split.
fn part(keys: std::ops::Range<u64>, split: u32) -> impl Iterator<Item = MemoryMessage> {
    let keys = keys.filter(move |key| key % 2 == u64::from(split));
    keys.map(|key| MemoryMessage::new(format!("{{\"k\":{key}}}")).with_timestamp(timestamp(key)))
}

fn extend(pair: &Pair, topic: &str, keys: std::ops::Range<u64>) {
    for split in 0..2 {
        pair.broker.extend(topic, split, part(keys.clone(), split)).unwrap();
    }
}

/// Topic `one` holds the whole hour, topic `two` nothing yet: what it will give is a backlog, so it is not caught up.
fn hour_ahead(mode: TimeMode, max_drift: Option<Duration>) -> Pair {
    let mut pair = Pair::new([2, 2], WINDOW);
    (pair.mode, pair.max_drift) = (mode, max_drift);
    pair.trouble.stay_behind(true);
    extend(&pair, "one", 0..KEYS);
    pair
}

fn event(max_disorder: Duration, idle_after: Duration) -> TimeMode {
    TimeMode::Event { max_disorder, idle_after }
}

/// Gives the second side part after part, and waits until each is joined; says how many records waited at most.
fn give_parts(pair: &Pair, running: &Running, mut give: impl FnMut(u64)) -> u64 {
    let mut most = 0;
    let mut wait = |what: &str, reached: &dyn Fn() -> bool| {
        pair.until(what, || {
            most = most.max(pair.tally.totals().counts.pending_records);
            reached()
        });
    };
    let joins = || pair.tally.totals().counts.joins;
    for part in 0..PARTS {
        if pair.max_drift.is_some() {
            wait("what is ahead is paused", &|| running.status.snapshot().paused == 2);
        } else {
            wait("all that is ahead waits", &|| pair.tally.totals().counts.pending_records == KEYS - joins());
            assert_eq!(running.status.snapshot().paused, 0);
        }
        give(part);
        wait("the part is joined", &|| joins() >= (part + 1) * KEYS / PARTS);
    }
    pair.trouble.stay_behind(false);
    wait("everything is read", &|| running.status.snapshot().records_read >= 2 * KEYS);
    assert_eq!(joins(), KEYS);
    most
}

fn give_memory(pair: &Pair, number: u64) {
    extend(pair, "two", number * KEYS / PARTS..(number + 1) * KEYS / PARTS);
}

/// Every key was joined once, and none given up.
fn check_results(pair: &Pair) {
    let totals = pair.tally.totals();
    assert_eq!((totals.counts.joins, totals.counts.delays, totals.difference()), (KEYS, 0, 0));
    let mut keys: Vec<u64> = pair.values("joined").iter().map(|value| key_of(value)).collect();
    keys.sort_unstable();
    assert!(keys.into_iter().eq(0..KEYS));
}

fn key_of(value: &str) -> u64 {
    let digits = value.strip_prefix("{\"key\":\"").and_then(|rest| rest.split('"').next());
    digits.unwrap().parse().unwrap()
}

#[test]
fn what_is_an_hour_ahead_waits_in_its_broker_on_any_number_of_workers() {
    let auto = TimeMode::Auto { window: WINDOW };
    for (workers, mode) in [(1, auto), (2, event(Duration::from_secs(5), HOUR)), (3, auto)] {
        let pair = hour_ahead(mode, Some(WINDOW));
        let running = pair.start(workers);
        let most = give_parts(&pair, &running, |number| give_memory(&pair, number));
        let bound = 2 * BEFORE_A_PAUSE + KEYS / 60; // two splits, each a minute ahead
        assert!(most <= bound, "{most} records waited on {workers} workers, at most {bound} should");
        running.stop().unwrap();
        check_results(&pair);
    }
}

#[test]
fn without_a_limit_everything_is_remembered_and_the_results_are_the_same() {
    let pair = hour_ahead(TimeMode::Auto { window: WINDOW }, None);
    let running = pair.start(2);
    let most = give_parts(&pair, &running, |number| give_memory(&pair, number));
    assert_eq!(most, KEYS); // three times the bound of the test above
    running.stop().unwrap();
    check_results(&pair);
}

#[test]
fn the_status_says_which_input_is_ahead() {
    let pair = hour_ahead(TimeMode::Auto { window: WINDOW }, Some(WINDOW));
    let running = pair.start(2);
    let ahead = || running.status.snapshot().ahead_input;
    pair.until("it is paused", || running.status.snapshot().paused == 2);
    let unknown = AheadInput { input: "one".into(), other: "two".into(), by: None };
    pair.until("it is told", || ahead() == Some(unknown.clone()));
    extend(&pair, "two", 0..2);
    pair.until("it is told by how much", || {
        ahead().is_some_and(|ahead| ahead.by.is_some_and(|by| (60_000..3_600_000).contains(&by)))
    });
    pair.until("nothing else is paused", || running.status.snapshot().paused == 2);
    running.stop().unwrap();
}

#[test]
fn too_much_state_is_an_error_that_says_which_input_is_ahead() {
    let pair = hour_ahead(TimeMode::Auto { window: WINDOW }, None);
    extend(&pair, "two", 0..2);
    let running = Running::start(pair.job().max_state_bytes(4 << 20), 1, pair.build());
    pair.until("it fails", || running.control.has_failed());
    let error = running.join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    let text = error.to_string();
    for expected in ["more than --max_state 4194304; input \"one\" is ", " ahead of \"two\": leave out --max_drift off"]
    {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_silent_side_holds_nothing_while_there_is_memory() {
    // Topic two has a split that never had anything, as there is one in most topics.
    let pair = hour_ahead(TimeMode::Auto { window: WINDOW }, Some(WINDOW));
    pair.trouble.stay_behind(false);
    pair.broker.create_topic("two", 3);
    extend(&pair, "two", 0..KEYS);
    let running = pair.start(2);
    pair.until("all is joined", || pair.tally.totals().counts.joins == KEYS);
    assert!(pair.clock.wall() < START + 60_000, "it has waited for the window");
    running.stop().unwrap();
    check_results(&pair);
}

#[test]
fn a_silent_side_holds_what_memory_has_no_room_for_until_it_has_had_its_time() {
    let short = Duration::from_secs(4); // longer than evidence lasts
    for mode in [TimeMode::Auto { window: short }, event(Duration::ZERO, short)] {
        let mut pair = hour_ahead(mode, Some(Duration::from_secs(1)));
        pair.options.windows = vec![short; 2];
        pair.pacing = Pacing { free_state_bytes: 64 << 10, ..Pacing::default() };
        pair.trouble.stay_behind(false); // topic two never gives anything
        let running = pair.start(2);
        turn_until(&pair.clock, "it is paused", || running.status.snapshot().paused == 2);
        assert!(pair.tally.totals().counts.pending_records <= 2 * BEFORE_A_PAUSE);
        turn_until(&pair.clock, "it goes on", || running.status.snapshot().records_read == KEYS);
        assert!(pair.clock.wall() >= START + 2_000, "before the other side had its time");
        turn_until(&pair.clock, "what can be given up is", || pair.tally.totals().counts.delays > KEYS / 2);
        running.stop().unwrap();
    }
}

#[test]
fn an_outage_of_the_other_side_pauses_and_loses_nothing() {
    let pair = hour_ahead(TimeMode::Auto { window: WINDOW }, Some(WINDOW));
    pair.trouble.stay_behind(false);
    pair.trouble.be_unreachable(true);
    (0..PARTS).for_each(|number| give_memory(&pair, number));
    let running = pair.start(3);
    pair.until("what is ahead is paused", || running.status.snapshot().paused == 2);
    pair.clock.advance(HOUR);
    pair.pass(Duration::from_secs(1));
    assert!(pair.tally.totals().counts.pending_records <= 2 * BEFORE_A_PAUSE);
    pair.trouble.be_unreachable(false);
    pair.until("all is joined", || pair.tally.totals().counts.joins == KEYS);
    running.stop().unwrap();
    check_results(&pair);
}

#[test]
fn files_are_paused_too() {
    let folder = tempfile::tempdir().unwrap();
    let append = |topic: &str, keys: std::ops::Range<u64>| {
        for split in 0..2 {
            let path = folder.path().join(format!("{topic}-p{split}.jsonl"));
            let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
            let pad = "x".repeat(100);
            let line = |key: u64| format!("{{\"k\":{key},\"t\":{},\"pad\":\"{pad}\"}}\n", timestamp(key));
            let lines: String = keys.clone().filter(|key| key % 2 == split).map(line).collect();
            file.write_all(lines.as_bytes()).unwrap();
        }
    };
    append("one", 0..KEYS);
    append("two", 0..0);
    // Files that have nothing more are caught up, so it is memory that makes the other side wait.
    let mut pair = Pair::new([0, 0], WINDOW);
    pair.mode = event(Duration::ZERO, HOUR);
    pair.timestamp_field = true;
    pair.pacing = Pacing { free_state_bytes: 1 << 20, ..Pacing::default() };
    let url = format!("file:{}", folder.path().display());
    let sources = ["one", "two"].map(|topic| broker::source(&url, topic, &BrokerOptions::default()).unwrap());
    let running = Running::start(pair.job(), 2, pair.build_on(sources));
    let give = |number: u64| append("two", number * KEYS / PARTS..(number + 1) * KEYS / PARTS);
    let most = give_parts(&pair, &running, give);
    // A mebibyte of lines is 7,000 records, and so is the state that is free; two readers.
    assert!(most <= KEYS * 3 / 4, "{most} records waited");
    running.stop().unwrap();
    check_results(&pair);
}
