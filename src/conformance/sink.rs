//! Promises of sinks and writers.

use bytes::Bytes;

use super::probe::{ensure, publish, text, visible, write, writer};
use super::{Ability, Harness, Verdict};
use crate::error::{Error, ErrorKind};
use crate::sink::{Entity, Guarantee, OutputRecord};

/// What is written and prepared is seen by nobody until it is published.
pub fn nothing_is_visible_before_publish(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let mut writer = writer(harness, &[&topic], 0, 1, false)?;
    write(&mut *writer, 1, &["1", "2"])?;
    visible(harness, &topic, &[], "written")?;
    writer.prepare(1, 2)?;
    visible(harness, &topic, &[], "prepared")?;
    writer.publish(1, 2, None)?;
    visible(harness, &topic, &["1", "2"], "published")
}

/// Publishing [lower, upper) shows the records of these epochs, in whatever order they were written, and no other.
pub fn publish_shows_exactly_its_range(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let mut writer = writer(harness, &[&topic], 0, 1, false)?;
    for epoch in [12, 11, 14, 13, 12, 11] {
        write(&mut *writer, epoch, &[&format!("{epoch}")])?;
    }
    publish(&mut *writer, 11, 13)?;
    visible(harness, &topic, &["11", "11", "12", "12"], "[11, 13) published")?;
    publish(&mut *writer, 13, 15)?;
    visible(harness, &topic, &["11", "11", "12", "12", "13", "14"], "[13, 15) published")
}

/// While a range waits for its checkpoint the next ones are written and prepared.
pub fn the_next_range_is_written_while_one_waits(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let mut writer = writer(harness, &[&topic], 0, 1, true)?;
    write(&mut *writer, 1, &["1"])?;
    writer.prepare(1, 2)?;
    write(&mut *writer, 2, &["2"])?;
    writer.prepare(2, 3)?;
    write(&mut *writer, 3, &["3"])?;
    writer.publish(1, 2, None)?;
    visible(harness, &topic, &["1"], "[1, 2) published")?;
    writer.publish(2, 3, None)?;
    visible(harness, &topic, &["1", "2"], "[2, 3) published")?;
    publish(&mut *writer, 3, 4)?;
    visible(harness, &topic, &["1", "2", "3"], "[3, 4) published")
}

/// A range without records is published like any other.
pub fn an_empty_range_can_be_published(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let mut writer = writer(harness, &[&topic], 0, 1, true)?;
    publish(&mut *writer, 1, 5)?;
    visible(harness, &topic, &[], "nothing published")?;
    write(&mut *writer, 6, &["6"])?;
    publish(&mut *writer, 5, 7)?;
    visible(harness, &topic, &["6"], "[5, 7) published")
}

/// A publish that is repeated shows what the guarantee says: at least once, or once.
pub fn a_repeated_publish_keeps_the_guarantee(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let guarantee = harness.sink("any")()?.guarantee();
    let mut writer = writer(harness, &[&topic], 0, 1, true)?;
    write(&mut *writer, 1, &["1", "2"])?;
    writer.prepare(1, 2)?;
    writer.publish(1, 2, None)?;
    writer.publish(1, 2, None)?;
    at_least_or_once(harness, &topic, guarantee, &["1", "2"])
}

/// The bytes of `prepare` are enough for another run to publish, and to publish again.
pub fn a_new_run_publishes_what_was_prepared(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let guarantee = harness.sink("any")()?.guarantee();
    let mut first = writer(harness, &[&topic], 0, 1, true)?;
    write(&mut *first, 1, &["1"])?;
    write(&mut *first, 2, &["{\"long\":\"ü\"}"])?;
    let prepared = first.prepare(1, 3)?;
    drop(first);
    let mut second = writer(harness, &[&topic], 0, 2, true)?;
    second.publish(1, 3, Some(&prepared.bytes))?;
    visible(harness, &topic, &["1", "{\"long\":\"ü\"}"], "published by the second run")?;
    drop(second);
    let mut third = writer(harness, &[&topic], 0, 3, true)?;
    third.publish(1, 3, Some(&prepared.bytes))?;
    write(&mut *third, 4, &["4"])?;
    publish(&mut *third, 3, 5)?;
    at_least_or_once(harness, &topic, guarantee, &["1", "{\"long\":\"ü\"}", "4"])
}

/// Each entity gets its own records.
pub fn every_entity_gets_its_own_records(harness: &mut dyn Harness) -> Verdict {
    let (one, two) = (harness.topic(1), harness.topic(2));
    let mut writer = writer(harness, &[&one, &two], 0, 1, false)?;
    for (entity, value) in [(0, "a"), (1, "b"), (0, "c"), (1, "d"), (1, "e")] {
        let record = OutputRecord { value: Bytes::from_static(value.as_bytes()), ..OutputRecord::default() };
        writer.write(1, Entity(entity), record)?;
    }
    publish(&mut *writer, 1, 2)?;
    visible(harness, &one, &["a", "c"], "the first entity")?;
    visible(harness, &two, &["b", "d", "e"], "the second entity")
}

/// Keys are written, and records of one key keep their order.
pub fn keys_are_written(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(3);
    let mut writer = writer(harness, &[&topic], 0, 1, false)?;
    for number in 0..30 {
        let key = Some(Bytes::from(format!("key-{}", number % 5)));
        let value = Bytes::from(format!("{number:02}"));
        writer.write(1, Entity(0), OutputRecord { key, value, ..OutputRecord::default() })?;
    }
    publish(&mut *writer, 1, 2)?;
    let found = harness.read_back(&topic);
    ensure!(found.len() == 30, "{} of 30 records are there", found.len());
    for key in 0..5 {
        let key = Bytes::from(format!("key-{key}"));
        let values: Vec<String> = found.iter().filter(|m| m.key.as_ref() == Some(&key)).cloned().map(text).collect();
        ensure!(values.len() == 6 && values.is_sorted(), "records of {key:?}: {values:?}");
    }
    Ok(())
}

/// Headers are written in their order.
pub fn headers_are_written(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let mut writer = writer(harness, &[&topic], 0, 1, false)?;
    let header = |name: &str, value: &'static str| (name.to_owned(), Some(Bytes::from_static(value.as_bytes())));
    let headers = vec![header("b", "1"), header("a", "2"), header("b", "3")];
    let record = OutputRecord { value: Bytes::from_static(b"1"), headers: headers.clone(), ..OutputRecord::default() };
    writer.write(1, Entity(0), record)?;
    publish(&mut *writer, 1, 2)?;
    let found = harness.read_back(&topic);
    ensure!(found.len() == 1 && found[0].headers == headers, "{headers:?} became {found:?}");
    Ok(())
}

/// What a run wrote and prepared but never published is not shown by the next run.
pub fn an_abandoned_range_is_never_seen(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let mut first = writer(harness, &[&topic], 0, 1, false)?;
    write(&mut *first, 1, &["abandoned"])?;
    first.prepare(1, 2)?;
    drop(first);
    let mut second = writer(harness, &[&topic], 0, 2, false)?;
    write(&mut *second, 3, &["kept"])?;
    publish(&mut *second, 2, 4)?;
    visible(harness, &topic, &["kept"], "the second run published")
}

/// Writers of several slots write to the same entities without harm to each other.
pub fn writers_of_all_slots_are_heard(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(2);
    let mut one = writer(harness, &[&topic], 0, 1, false)?;
    let mut two = writer(harness, &[&topic], 1, 1, false)?;
    write(&mut *one, 1, &["one"])?;
    write(&mut *two, 1, &["two"])?;
    publish(&mut *two, 1, 2)?;
    publish(&mut *one, 1, 2)?;
    visible(harness, &topic, &["one", "two"], "both published")
}

/// `published` is the upper bound of the last publish, for the next run too; before the first one it is nothing.
pub fn published_is_a_mark_that_lasts(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let mut first = writer(harness, &[&topic], 0, 1, true)?;
    let mark = first.published()?;
    ensure!(mark.is_none(), "nothing was published, the mark is {mark:?}");
    write(&mut *first, 1, &["1"])?;
    publish(&mut *first, 1, 5)?;
    let mark = first.published()?;
    ensure!(mark == Some(5), "[1, 5) was published, the mark is {mark:?}");
    drop(first);
    let mark = writer(harness, &[&topic], 0, 2, true)?.published()?;
    ensure!(mark == Some(5), "the next run finds the mark {mark:?}");
    Ok(())
}

/// A range that the mark covers is not written again, one that it covers in part only from the mark on.
pub fn what_is_below_the_mark_is_not_written_again(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let mut first = writer(harness, &[&topic], 0, 1, true)?;
    write(&mut *first, 1, &["1"])?;
    write(&mut *first, 2, &["2"])?;
    let one = first.prepare(1, 2)?;
    let two = first.prepare(2, 3)?;
    first.publish(1, 2, None)?;
    drop(first);
    let mut second = writer(harness, &[&topic], 0, 2, true)?;
    second.publish(1, 2, Some(&one.bytes))?;
    visible(harness, &topic, &["1"], "the first range repeated")?;
    second.publish(2, 3, Some(&two.bytes))?;
    second.publish(2, 3, Some(&two.bytes))?;
    visible(harness, &topic, &["1", "2"], "the second range published and repeated")
}

/// When a newer run has opened its slot, the older writer can show nothing more and is told so.
pub fn an_older_run_is_fenced(harness: &mut dyn Harness) -> Verdict {
    let topic = harness.topic(1);
    let mut old = writer(harness, &[&topic], 0, 1, true)?;
    write(&mut *old, 1, &["old"])?;
    old.prepare(1, 2)?;
    let mut new = writer(harness, &[&topic], 0, 2, true)?;
    fenced(old.publish(1, 2, None).map(drop))?;
    write(&mut *new, 2, &["new"])?;
    publish(&mut *new, 2, 3)?;
    fenced(writer(harness, &[&topic], 0, 1, true).map(drop))?;
    visible(harness, &topic, &["new"], "the new run published")
}

fn fenced(result: Result<(), Error>) -> Verdict {
    match result {
        Err(error) if error.kind() == ErrorKind::Fenced && !error.is_retryable() => Ok(()),
        other => Err(format!("expected \"fenced\", not {other:?}").into()),
    }
}

fn at_least_or_once(harness: &mut dyn Harness, topic: &str, guarantee: Guarantee, expected: &[&str]) -> Verdict {
    if guarantee != Guarantee::AtLeastOnce {
        return visible(harness, topic, expected, "published twice");
    }
    let found: Vec<String> = harness.read_back(topic).into_iter().map(text).collect();
    let all = expected.iter().all(|value| found.iter().any(|found| found == value));
    ensure!(
        all && found.iter().all(|value| expected.contains(&value.as_str())),
        "expected {expected:?}, found {found:?}"
    );
    let marks = harness.lacks(Ability::Transactions).is_some();
    ensure!(marks, "a sink that is at least once cannot have transactions");
    Ok(())
}
