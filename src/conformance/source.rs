//! Promises of sources, readers and committers.

use std::sync::mpsc;
use std::time::Duration;

use super::probe::{Probe, WAIT, assignments, ensure, group, numbered, offsets, same_values};
use super::{Ability, Harness, PATIENCE, Produced, Verdict};
use crate::epoch::{Clock, SystemClock};
use crate::error::ErrorKind;
use crate::message::{Message, Offset, Offsets, Reason, SplitId};
use crate::source::{Assignment, Evidence, Otherwise, Position, Progress};

/// How much later than promised a thing may happen on a busy machine.
const SLACK: Duration = Duration::from_secs(2);

/// The name of a source is not empty and never changes.
pub fn the_name_is_fixed(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let new_source = harness.source(&topic, &group(&topic));
    let (mut one, two) = (new_source()?, new_source()?);
    let name = one.name().to_owned();
    one.splits()?;
    ensure!(!name.is_empty(), "the name is empty");
    ensure!(name == one.name() && name == two.name(), "{name:?} is also {:?} and {:?}", one.name(), two.name());
    Ok(())
}

/// All sources of a topic see the same splits, with the same ids, ordinals and names; no two alike.
pub fn splits_are_the_same_for_every_source(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(3);
    (0..3).for_each(|split| harness.produce(&topic, split, &numbered(0..1)));
    let new_source = harness.source(&topic, &group(&topic));
    let (mut one, mut two) = (new_source()?, new_source()?);
    let splits = one.splits()?;
    ensure!(splits.len() == 3, "there are 3 splits, not {splits:?}");
    ensure!(splits == two.splits()? && splits == one.splits()?, "another call gives other splits than {splits:?}");
    for (index, split) in splits.iter().enumerate() {
        let alike = |other: &&_| {
            let other: &&crate::message::Split = other;
            other.id == split.id || other.ordinal == split.ordinal || other.name == split.name
        };
        ensure!(splits[..index].iter().find(alike).is_none(), "{split:?} is like another one");
    }
    Ok(())
}

/// The first look at a topic that was never made fails and says so.
pub fn an_unknown_topic_is_not_found(harness: &mut dyn Harness) -> Verdict {
    let topic = format!("{}-never-made", harness.topic(1));
    match harness.source(&topic, &group(&topic))()?.splits() {
        Ok(splits) => Err(format!("an unknown topic has the splits {splits:?}").into()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            ensure!(error.report().contains(&topic), "the error does not name the topic: {}", error.report());
            Ok(())
        }
        Err(error) => Err(format!("expected \"not found\", not {error:?}").into()),
    }
}

/// Every split that is given gets a number, the same one again while nothing changes.
pub fn resolve_gives_every_split_a_number_and_may_be_repeated(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(2);
    harness.produce(&topic, 0, &numbered(0..3));
    harness.produce(&topic, 1, &numbered(0..1));
    let mut source = harness.source(&topic, &group(&topic))()?;
    let splits = source.splits()?;
    for position in [Position::Earliest, Position::Latest, Position::COMMITTED] {
        let first = match source.resolve(&position, &splits) {
            Err(error) if error.kind() == ErrorKind::Config && harness.lacks(Ability::Seek).is_some() => continue,
            result => result?,
        };
        ensure!(first.len() == 2 && splits.iter().all(|s| first.contains_key(&s.id)), "{position:?}: {first:?}");
        ensure!(first == source.resolve(&position, &splits)?, "{position:?} is another number the second time");
        let one = source.resolve(&position, &splits[..1])?;
        ensure!(one.len() == 1, "{position:?}: one split was asked for, {one:?} given");
    }
    Ok(())
}

/// From the earliest position everything comes, each split in its order.
pub fn earliest_reads_everything_in_order(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(2);
    let produced = [numbered(0..300), numbered(300..350)];
    (0..2).for_each(|split| harness.produce(&topic, split, &produced[split as usize]));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let messages = probe.drain()?;
    for (split, produced) in probe.splits.iter().zip(&produced) {
        same_values(&of_split(&messages, split.id), produced)?;
    }
    Ok(())
}

/// From the latest position only what is produced later comes.
pub fn latest_reads_only_what_comes_after(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    harness.produce(&topic, 0, &numbered(0..5));
    let mut probe = Probe::open(harness, &topic, &Position::Latest, None)?;
    let early = probe.drain()?;
    harness.produce(&topic, 0, &numbered(5..8));
    let messages = probe.take(3)?;
    ensure!(early.is_empty(), "{} old messages were read", early.len());
    same_values(&messages, &numbered(5..8))
}

/// A timestamp is made an offset where messages have timestamps, and is a configuration error where they have none.
pub fn a_timestamp_is_found_or_refused(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let has_timestamps = harness.lacks(Ability::Timestamps).is_none();
    let at = |number: usize| 1_700_000_000_000 + 1_000 * number as u64;
    let mut produced = numbered(0..10);
    for (number, message) in produced.iter_mut().enumerate().filter(|_| has_timestamps) {
        message.timestamp = Some(at(number));
    }
    harness.produce(&topic, 0, &produced);
    if has_timestamps {
        let mut probe = Probe::open(harness, &topic, &Position::Timestamp(at(4) - 1), None)?;
        same_values(&probe.drain()?, &produced[4..])?;
        let mut probe = Probe::open(harness, &topic, &Position::Timestamp(at(100)), None)?;
        return same_values(&probe.drain()?, &[]);
    }
    match Probe::open(harness, &topic, &Position::Timestamp(at(4)), None) {
        Ok(_) => Err("a broker without timestamps found one".into()),
        Err(error) if error.kind() == ErrorKind::Config && !error.is_retryable() => Ok(()),
        Err(error) => Err(format!("expected a configuration error, not {error:?}").into()),
    }
}

/// An exact position is taken as it is, and one that names a split says nothing of the others: they begin at their beginnings.
pub fn an_exact_position_is_taken_as_it_is(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(2);
    let produced = [numbered(0..10), numbered(10..13)];
    (0..2).for_each(|split| harness.produce(&topic, split, &produced[split as usize]));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let (one, two) = (probe.splits[0].clone(), probe.splits[1].clone());
    let next = of_split(&probe.drain()?, one.id)[3].next;
    let exact = Position::Exact([(one.name.clone(), next)].into());
    let mut probe = Probe::open(harness, &topic, &exact, None)?;
    ensure!(probe.from[&one.id] == next, "{next} of {:?} became {:?}", one.name, probe.from);
    let messages = probe.drain()?;
    same_values(&of_split(&messages, one.id), &produced[0][4..])?;
    same_values(&of_split(&messages, two.id), &produced[1])
}

/// `next` is above `offset`, and no later message of the split is below it.
pub fn offsets_are_next_positions(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    harness.produce(&topic, 0, &numbered(0..50));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let messages = probe.drain()?;
    let mut next = probe.from[&probe.splits[0].id];
    for message in &messages {
        ensure!(message.offset >= next, "offset {} was given after {next} was the next", message.offset);
        ensure!(message.next > message.offset, "next {} of offset {}", message.next, message.offset);
        next = message.next;
    }
    let latest = probe.source.resolve(&Position::Latest, &probe.splits)?[&probe.splits[0].id];
    ensure!(messages.len() == 50 && next <= latest, "{} messages, next {next}, latest {latest}", messages.len());
    Ok(())
}

/// A reader that begins where another message ended gives exactly the rest.
pub fn any_offset_can_be_read_from(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let produced = numbered(0..20);
    harness.produce(&topic, 0, &produced);
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let messages = probe.drain()?;
    for (index, message) in messages.iter().enumerate().step_by(5) {
        let mut source = harness.source(&topic, &group(&topic))()?;
        let splits = source.splits()?;
        let from = Offsets::from([(message.split, message.next)]);
        let mut again = Probe::with(source, splits.clone(), from.clone(), &assignments(&splits, &from, None))?;
        same_values(&again.drain()?, &produced[index + 1..])?;
    }
    Ok(())
}

/// Messages at `until` and above are not read, however many come, and then the reader has ended.
pub fn reading_ends_at_until(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(2);
    harness.produce(&topic, 0, &numbered(0..10));
    harness.produce(&topic, 1, &numbered(10..15));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, Some(&Position::Latest))?;
    harness.produce(&topic, 0, &numbered(100..110));
    let messages = probe.read_until("the end", |_, probe| probe.progress == Progress::Ended)?;
    same_values(&of_split(&messages, probe.splits[0].id), &numbered(0..10))?;
    same_values(&of_split(&messages, probe.splits[1].id), &numbered(10..15))?;
    let ended = |split: &crate::message::Split| probe.evidence.get(&split.id) == Some(&Evidence::Ended);
    ensure!(probe.splits.iter().all(ended), "ended, but the evidence is {:?}", probe.evidence);
    let more = probe.step(WAIT)?;
    ensure!(more.is_empty() && probe.progress == Progress::Ended, "it went on: {more:?}, {:?}", probe.progress);
    Ok(())
}

/// A split whose `until` is where it begins ends without a message.
pub fn nothing_to_read_below_until_ends_at_once(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    harness.produce(&topic, 0, &numbered(0..3));
    let mut probe = Probe::open(harness, &topic, &Position::Latest, Some(&Position::Latest))?;
    let messages = probe.read_until("the end", |_, probe| probe.progress == Progress::Ended)?;
    same_values(&messages, &[])
}

/// "Caught up" is said of every split that has nothing more, and again at least every second.
pub fn caught_up_is_said_and_said_again(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(2);
    harness.produce(&topic, 0, &numbered(0..2));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    ensure!(probe.drain()?.len() == 2, "caught up before the messages were given");
    for _ in 0..3 {
        let start = probe.now();
        probe.drain()?;
        let took = probe.now() - start;
        ensure!(took < Duration::from_secs(1) + SLACK, "it took {took:?} until caught up was said again");
    }
    Ok(())
}

/// While messages are left, nobody says "caught up".
pub fn a_backlog_is_not_caught_up(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    harness.produce(&topic, 0, &numbered(0..20_000));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let mut early = None;
    probe.read_until("20000 messages", |messages, probe| {
        if probe.at_end() && messages.len() < 20_000 {
            early = early.or(Some(messages.len()));
        }
        messages.len() >= 20_000
    })?;
    ensure!(early.is_none(), "caught up was said after {early:?} of 20000 messages");
    probe.drain()?;
    Ok(())
}

/// A read without messages returns when its wait is over, or soon after.
pub fn a_read_ends_in_bounded_time(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    probe.drain()?;
    for wait in [Duration::ZERO, Duration::from_millis(10), Duration::from_millis(300)] {
        let start = probe.now();
        probe.step(wait)?;
        let took = probe.now() - start;
        ensure!(took < wait + SLACK, "a read with a wait of {wait:?} took {took:?}");
    }
    Ok(())
}

/// A message that comes during a read is given at once, not when the wait is over.
pub fn a_new_message_ends_the_wait(harness: &mut dyn Harness) -> Verdict {
    const ROUNDS: usize = 5;
    let topic = harness.topic(1);
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    probe.drain()?;
    let clock = SystemClock::new();
    let mut delays = std::thread::scope(|scope| {
        let (waiting, waits) = mpsc::channel();
        let reader = scope.spawn(|| -> Result<Vec<Duration>, Box<dyn std::error::Error + Send + Sync>> {
            let waiting = waiting; // is dropped when this thread fails, so that nobody waits for it
            let mut arrivals = vec![];
            while arrivals.len() < ROUNDS {
                let deadline = clock.monotonic() + PATIENCE;
                // Nobody may listen any more: then the main thread has failed and says why.
                let _ = waiting.send(());
                while probe.step(PATIENCE)?.is_empty() {
                    ensure!(clock.monotonic() < deadline, "no message came within {} s", PATIENCE.as_secs());
                }
                arrivals.push(clock.monotonic());
            }
            Ok(arrivals)
        });
        let mut produced = vec![];
        for number in (0..ROUNDS).take_while(|_| waits.recv().is_ok()) {
            std::thread::sleep(Duration::from_millis(20)); // no state to wait for: the other thread shall be in the read
            produced.push(clock.monotonic());
            harness.produce(&topic, 0, &numbered(number..number + 1));
        }
        let arrivals = reader.join().map_err(|_| "the reader panicked")??;
        let delay = |(arrival, produced): (Duration, Duration)| arrival.saturating_sub(produced);
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(
            arrivals.into_iter().zip(produced).map(delay).collect::<Vec<_>>(),
        )
    })?;
    delays.sort();
    ensure!(delays[ROUNDS / 2] < Duration::from_millis(500), "messages came after {delays:?}");
    Ok(())
}

/// One read gives a few thousand messages or about a mebibyte, not everything.
pub fn a_batch_is_bounded(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let produced: Vec<_> = (0..30_000).map(|n| Produced::value(format!("\"{n} {}\"", "x".repeat(200)))).collect();
    harness.produce(&topic, 0, &produced);
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let (mut count, mut batches) = (0, 0);
    let deadline = probe.now() + PATIENCE;
    while count < produced.len() {
        ensure!(probe.now() < deadline, "only {count} messages came");
        let messages = probe.step(WAIT)?;
        let bytes: usize = messages.iter().map(Message::size).sum();
        ensure!(messages.len() <= 10_000 && bytes <= 4 << 20, "a batch of {} messages, {bytes} bytes", messages.len());
        count += messages.len();
        batches += usize::from(!messages.is_empty());
    }
    ensure!(batches > 1, "everything came at once");
    Ok(())
}

/// A paused split gives nothing and is not caught up; after the pause everything comes, once and in order.
pub fn a_paused_split_is_silent_and_loses_nothing(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(2);
    harness.produce(&topic, 0, &numbered(0..200));
    harness.produce(&topic, 1, &numbered(200..300));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let (paused, other) = (probe.splits[0].id, probe.splits[1].id);
    probe.reader.pause(&[paused], true)?;
    let mut messages =
        probe.read_until("the other split", |_, p| p.evidence.get(&other) == Some(&Evidence::CaughtUp))?;
    ensure!(of_split(&messages, paused).is_empty(), "a paused split gave messages");
    ensure!(probe.evidence.get(&paused) != Some(&Evidence::CaughtUp), "a paused split is caught up");
    harness.produce(&topic, 0, &numbered(300..310));
    messages.extend(probe.step(WAIT)?);
    probe.reader.pause(&[paused], false)?;
    messages.extend(probe.take(210)?);
    messages.extend(probe.drain()?);
    same_values(&of_split(&messages, paused), &[numbered(0..200), numbered(300..310)].concat())?;
    same_values(&of_split(&messages, other), &numbered(200..300))
}

/// A removed split gives nothing more, the others go on, and it may be added again where it was.
pub fn a_removed_split_is_silent(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(2);
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    probe.drain()?;
    let (removed, other) = (probe.splits[0].clone(), probe.splits[1].id);
    probe.reader.assign(&[], &[removed.id])?;
    harness.produce(&topic, 0, &numbered(0..5));
    harness.produce(&topic, 1, &numbered(5..10));
    let messages = probe.take(5)?;
    same_values(&of_split(&messages, other), &numbered(5..10))?;
    let from = probe.from[&removed.id];
    probe.reader.assign(&[Assignment { split: removed.clone(), from, until: None }], &[])?;
    let messages = probe.take(5)?;
    same_values(&of_split(&messages, removed.id), &numbered(0..5))
}

/// A reader of nothing has ended, and takes a split later.
pub fn a_reader_without_splits_takes_one_later(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    harness.produce(&topic, 0, &numbered(0..5));
    let mut source = harness.source(&topic, &group(&topic))()?;
    let splits = source.splits()?;
    let from = source.resolve(&Position::Earliest, &splits)?;
    let mut probe = Probe::with(source, splits.clone(), from.clone(), &[])?;
    let early = probe.read_until("the end of nothing", |_, probe| probe.progress == Progress::Ended)?;
    ensure!(early.is_empty(), "a reader of nothing gave {early:?}");
    probe.reader.assign(&assignments(&splits, &from, None), &[])?;
    same_values(&probe.take(5)?, &numbered(0..5))?;
    ensure!(probe.progress == Progress::Open, "ended, though a split is open");
    Ok(())
}

/// A split that appears while we read is listed, leaves the others as they are, and can be read from its beginning.
pub fn a_late_split_is_found_and_read(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    harness.produce(&topic, 0, &numbered(0..5));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    ensure!(probe.source.discovery().is_some(), "splits can appear, but nobody is to look for them");
    probe.take(5)?;
    harness.add_split(&topic);
    harness.produce(&topic, 1, &numbered(5..8));
    let deadline = probe.now() + PATIENCE;
    let splits = loop {
        let splits = probe.source.splits()?;
        if splits.len() > 1 {
            break splits;
        }
        ensure!(probe.now() < deadline, "the late split was not found");
        probe.step(WAIT)?;
    };
    ensure!(splits.len() == 2 && splits[0] == probe.splits[0], "{:?} became {splits:?}", probe.splits);
    let from = probe.source.resolve(&Position::Earliest, &splits[1..])?;
    probe.reader.assign(&assignments(&splits[1..], &from, None), &[])?;
    same_values(&of_split(&probe.take(3)?, splits[1].id), &numbered(5..8))
}

/// The backlog is not said, or is above nothing while messages are left and nothing when all are read.
pub fn the_backlog_is_counted_or_not_said(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    harness.produce(&topic, 0, &numbered(0..10));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let before = probe.source.backlog(&probe.from.clone())?;
    let messages = probe.take(10)?;
    let after = probe.source.backlog(&offsets(&messages))?;
    ensure!(before != Some(0), "10 messages wait, the backlog is {before:?}");
    ensure!(after.is_none_or(|after| after == 0), "all was read, the backlog is {after:?}");
    Ok(())
}

/// When connections break, reading goes on after errors that say they are worth a retry, and nothing is missing.
pub fn a_broken_connection_loses_nothing(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    harness.produce(&topic, 0, &numbered(0..50));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let mut messages = probe.take(10)?;
    harness.interrupt();
    harness.produce(&topic, 0, &numbered(50..60));
    let all = numbered(0..60);
    let more = probe.read_until("all messages", |new, _| {
        let came = |produced: &Produced| messages.iter().chain(new).any(|message| message.value == produced.value);
        all.iter().all(came)
    })?;
    messages.extend(more);
    match harness.lacks(Ability::Seek) {
        None => same_values(&messages, &all),
        Some(_) => Ok(()),
    }
}

/// A commit may be repeated, be left out, come with smaller offsets, and name what was rejected.
pub fn a_commit_may_be_repeated_and_skipped(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(2);
    harness.produce(&topic, 0, &numbered(0..10));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let messages = probe.take(10)?;
    let (some, all) = (offsets(&messages[..3]), offsets(&messages));
    probe.committer.commit(&some, &[])?;
    probe.committer.commit(&all, &[(messages[5].split, messages[5].offset, Reason::InvalidJson)])?;
    probe.committer.commit(&all, &[])?;
    probe.committer.commit(&some, &[])?;
    probe.committer.commit(&Offsets::new(), &[])?;
    Ok(())
}

/// What a group committed can be seen in the broker, and is where [`Position::Committed`] stands for it alone; otherwise it is
/// what was asked for.
pub fn a_commit_is_where_the_next_run_starts(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let produced = numbered(0..10);
    harness.produce(&topic, 0, &produced);
    let mut probe = Probe::open(harness, &topic, &Position::COMMITTED, None)?;
    let messages = probe.take(10)?;
    let next = messages[3].next;
    probe.committer.commit(&Offsets::from([(messages[3].split, next)]), &[])?;
    let committed = harness.committed(&topic, 0, &group(&topic));
    ensure!(committed == Some(next), "{next} was committed, the broker has {committed:?}");
    let mut again = Probe::open(harness, &topic, &Position::COMMITTED, None)?;
    same_values(&again.take(6)?, &produced[4..])?;
    let mut other = harness.source(&topic, &format!("{}-other", group(&topic)))()?;
    let from = other.resolve(&Position::COMMITTED, &probe.splits)?;
    let earliest: Option<&Offset> = probe.from.get(&messages[0].split);
    ensure!(from.get(&messages[0].split) == earliest, "another group starts at {from:?}");
    let or_latest = Position::Committed { otherwise: Otherwise::Latest };
    let from = other.resolve(&or_latest, &probe.splits)?;
    let latest = other.resolve(&Position::Latest, &probe.splits)?;
    ensure!(from == latest, "another group starts at {from:?}, the latest is {latest:?}");
    let from = again.source.resolve(&or_latest, &again.splits)?;
    ensure!(from.get(&messages[3].split) == Some(&next), "{next} was committed, the start is {from:?}");
    Ok(())
}

fn of_split(messages: &[Message], split: SplitId) -> Vec<Message> {
    messages.iter().filter(|message| message.split == split).cloned().collect()
}
