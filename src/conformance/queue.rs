//! Promises of sources that deliver again what was not committed.

use std::collections::BTreeSet;

use super::probe::{Probe, WAIT, assignments, ensure, group, numbered, offsets, same_values};
use super::{Harness, Verdict};
use crate::message::{Message, Offset, Offsets};
use crate::source::{Evidence, Position, Replay};

/// What one reader took and did not commit, the next one gets: with the same id, which no other message has, and told that it is not the
/// first try.
pub fn what_was_not_committed_is_delivered_again(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let produced = numbered(0..10);
    harness.produce(&topic, 0, &produced);
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    ensure!(probe.source.replay() == Replay::Redeliver, "replay is {:?}", probe.source.replay());
    let first = probe.take(10)?;
    let ids: BTreeSet<_> = first.iter().filter_map(|message| message.id).collect();
    ensure!(ids.len() == first.len(), "{} of {} messages have an id of their own", ids.len(), first.len());
    probe.committer.commit(&offsets(&first[..4]), &[])?;
    drop(probe);
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let mut second = probe.take(6)?;
    second.extend(probe.drain()?);
    second.sort_by(|a, b| a.value.cmp(&b.value));
    same_values(&second, &produced[4..])?;
    for (first, second) in first[4..].iter().zip(&second) {
        ensure!(first.id == second.id, "the id was {:?} and is {:?}", first.id, second.id);
        ensure!(second.delivery_count > first.delivery_count, "delivered again, but counted {}", second.delivery_count);
    }
    Ok(())
}

/// What was committed never comes again.
pub fn what_was_committed_is_gone(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    harness.produce(&topic, 0, &numbered(0..5));
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let messages = probe.take(5)?;
    probe.committer.commit(&offsets(&messages), &[])?;
    drop(probe);
    same_values(&Probe::open(harness, &topic, &Position::Earliest, None)?.drain()?, &[])
}

/// Two readers share what comes; no message goes to both.
pub fn readers_compete(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let mut one = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let mut two = Probe::open(harness, &topic, &Position::Earliest, None)?;
    harness.produce(&topic, 0, &numbered(0..500));
    let deadline = one.now() + super::PATIENCE;
    let mut seen = BTreeSet::new();
    while seen.len() < 500 {
        ensure!(one.now() < deadline, "{} of 500 messages came", seen.len());
        for message in one.step(WAIT)?.into_iter().chain(two.step(WAIT)?) {
            ensure!(seen.insert(message.value.clone()), "{message:?} was given twice");
        }
    }
    Ok(())
}

/// When connections break, what was not committed comes again, at offsets above those that were given.
pub fn a_broken_connection_delivers_again(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let produced = numbered(0..6);
    harness.produce(&topic, 0, &produced);
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let first = probe.take(6)?;
    probe.committer.commit(&offsets(&first[..2]), &[])?;
    harness.interrupt();
    let mut second = probe.take(4)?;
    second.sort_by(|a, b| a.value.cmp(&b.value));
    same_values(&second, &produced[2..])?;
    let highest = first.iter().map(|message| message.next).max();
    let above = |message: &Message| Some(message.offset) >= highest;
    ensure!(second.iter().all(above), "an offset was used again: {second:?}");
    // The committer may have lost its connection too: only the call that succeeds has to count.
    let all = offsets(&second);
    probe.read_until("a commit", |_, _| true)?;
    let deadline = probe.now() + super::PATIENCE;
    while let Err(error) = probe.committer.commit(&all, &[]) {
        ensure!(error.is_retryable() && probe.now() < deadline, "the commit failed: {error:?}");
        probe.step(WAIT)?;
    }
    drop(probe);
    same_values(&Probe::open(harness, &topic, &Position::Earliest, None)?.drain()?, &[])
}

/// Offsets begin at the one that the reader was opened with, so they grow over restarts too.
pub fn offsets_go_on_from_where_they_were(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    harness.produce(&topic, 0, &numbered(0..3));
    let mut source = harness.source(&topic, &group(&topic))()?;
    let splits = source.splits()?;
    let exact = Position::Exact([(splits[0].name.clone(), Offset(1_000))].into());
    let from = source.resolve(&exact, &splits[..1])?;
    ensure!(from == Offsets::from([(splits[0].id, Offset(1_000))]), "{exact:?} is {from:?}");
    let mut probe = Probe::with(source, splits.clone(), from.clone(), &assignments(&splits, &from, None))?;
    let mut next = Offset(1_000);
    for message in probe.take(3)? {
        ensure!(message.offset >= next && message.next > message.offset, "{message:?} after {next}");
        next = message.next;
    }
    probe.drain()?;
    ensure!(probe.evidence[&splits[0].id] == Evidence::CaughtUp, "a queue has no end: {:?}", probe.evidence);
    Ok(())
}
