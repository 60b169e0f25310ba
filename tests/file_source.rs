//! What the file source promises beyond the suite: byte positions, line ends, compression, and every way in which a followed
//! file can change under it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use syncline::broker::BrokerOptions;
use syncline::broker::file;
use syncline::message::{Message, Offset, Offsets};
use syncline::source::{Assignment, Batch, Evidence, Position, Progress, Reader, Source};
use syncline::{Error, ErrorKind};

const PATIENCE: Duration = Duration::from_secs(20);

fn append(folder: &Path, name: &str, text: &str) {
    OpenOptions::new().create(true).append(true).open(folder.join(name)).unwrap().write_all(text.as_bytes()).unwrap();
}

fn source(folder: &Path) -> Box<dyn Source> {
    file::source(folder.to_str().unwrap(), "one", &BrokerOptions::default()).unwrap()().unwrap()
}

/// Opens all files of topic `one` at the same offset.
fn open(folder: &Path, from: u64, bounded: bool) -> Result<Box<dyn Reader>, Error> {
    let mut source = source(folder);
    let splits = source.splits()?;
    let until = if bounded { source.resolve(&Position::Latest, &splits)? } else { Offsets::new() };
    let assign = |split: &syncline::message::Split| {
        let until = until.get(&split.id).copied();
        Assignment { split: split.clone(), from: Offset(from), until }
    };
    Ok(source.open(&splits.iter().map(assign).collect::<Vec<_>>())?.0)
}

/// Reads until the condition holds for what was read in all, and the newest evidence of the only split.
fn read_until(
    reader: &mut dyn Reader,
    enough: impl Fn(&[Message], Option<Evidence>, Progress) -> bool,
) -> Result<Vec<Message>, Error> {
    let deadline = Instant::now() + PATIENCE;
    let (mut batch, mut messages, mut evidence, mut progress) = (Batch::default(), vec![], None, Progress::Open);
    while !enough(&messages, evidence, progress) {
        assert!(Instant::now() < deadline, "waited too long: {} messages, {evidence:?}, {progress:?}", messages.len());
        batch.clear();
        progress = reader.read(&mut batch, Duration::from_millis(100))?;
        messages.append(&mut batch.messages);
        evidence = batch.evidence.last().map(|(_, evidence)| *evidence).or(evidence);
    }
    Ok(messages)
}

fn read_to_end(reader: &mut dyn Reader) -> Result<Vec<Message>, Error> {
    read_until(reader, |_, _, progress| progress == Progress::Ended)
}

fn read_until_caught_up(reader: &mut dyn Reader) -> Result<Vec<Message>, Error> {
    read_until(reader, |_, evidence, _| evidence == Some(Evidence::CaughtUp))
}

fn values(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| std::str::from_utf8(message.value.as_ref().unwrap()).unwrap()).collect()
}

/// Reads until an error comes, which is not one to be retried.
fn error(mut reader: Box<dyn Reader>) -> Error {
    let error = read_until(&mut *reader, |_, _, progress| progress == Progress::Ended).expect_err("it fails");
    assert!(!error.is_retryable(), "{error:?}");
    error
}

#[test]
fn offsets_are_byte_positions() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), "one.jsonl", "{\"ü\":1}\n\n  \r\n{}\r\nlast");
    let messages = read_to_end(&mut *open(folder.path(), 0, true).unwrap()).unwrap();
    assert_eq!(values(&messages), ["{\"ü\":1}", "{}", "last"]);
    let positions: Vec<_> = messages.iter().map(|message| (message.offset.0, message.next.0)).collect();
    assert_eq!(positions, [(0, 9), (14, 18), (18, 22)]);
    for start in [9, 10, 14] {
        let messages = read_to_end(&mut *open(folder.path(), start, true).unwrap()).unwrap();
        assert_eq!(values(&messages), ["{}", "last"], "from {start}");
    }
}

#[test]
fn a_last_line_without_an_end_waits_when_followed() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), "one.jsonl", "1\n22");
    let mut reader = open(folder.path(), 0, false).unwrap();
    assert_eq!(values(&read_until_caught_up(&mut *reader).unwrap()), ["1"]);
    append(folder.path(), "one.jsonl", "2");
    assert_eq!(values(&read_until_caught_up(&mut *reader).unwrap()), [""; 0]);
    append(folder.path(), "one.jsonl", "2\n3\n4");
    let messages = read_until(&mut *reader, |messages, _, _| messages.len() == 2).unwrap();
    assert_eq!(values(&messages), ["2222", "3"]);
    assert_eq!((messages[0].offset, messages[0].next), (Offset(2), Offset(7)));
}

#[test]
fn a_line_that_was_taken_without_its_end_is_not_taken_again() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), "one.jsonl", "1\n22");
    let mut reader = open(folder.path(), 4, false).unwrap();
    assert!(read_until_caught_up(&mut *reader).unwrap().is_empty());
    append(folder.path(), "one.jsonl", "22\n3\n");
    assert_eq!(values(&read_until(&mut *reader, |messages, _, _| !messages.is_empty()).unwrap()), ["3"]);
    // The line got its end only after it was read: the next run goes on behind it.
    fs::write(folder.path().join("one.jsonl"), "1\n22\n3\n").unwrap();
    assert_eq!(values(&read_to_end(&mut *open(folder.path(), 4, true).unwrap()).unwrap()), ["3"]);
}

#[test]
fn a_start_inside_of_a_line_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), "one.jsonl", "12345\n6\n");
    let error = error(open(folder.path(), 3, true).unwrap());
    assert_eq!(error.kind(), ErrorKind::OffsetLost);
    assert!(error.to_string().contains("one.jsonl\", offset 3: that is inside of a line"), "{error}");
    let error = open(folder.path(), 9, false).err().expect("the file is shorter");
    assert_eq!(error.kind(), ErrorKind::OffsetLost);
    assert!(error.to_string().contains("offset 9: it has only 8 bytes"), "{error}");
}

#[test]
fn a_truncated_file_is_an_error_with_offset_and_size() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), "one.jsonl", "1\n2\n3\n");
    let mut reader = open(folder.path(), 0, false).unwrap();
    read_until_caught_up(&mut *reader).unwrap();
    OpenOptions::new().write(true).open(folder.path().join("one.jsonl")).unwrap().set_len(2).unwrap();
    let error = error(reader);
    assert_eq!(error.kind(), ErrorKind::OffsetLost);
    assert!(error.to_string().contains("one.jsonl\", offset 6: it has only 2 bytes"), "{error}");
}

#[test]
fn a_bounded_file_that_became_shorter_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), "one.jsonl", "1\n2\n3\n");
    let reader = open(folder.path(), 0, true).unwrap();
    OpenOptions::new().write(true).open(folder.path().join("one.jsonl")).unwrap().set_len(4).unwrap();
    let error = error(reader);
    assert_eq!(error.kind(), ErrorKind::OffsetLost);
    assert!(error.to_string().contains("offset 4: it was to be read up to 6"), "{error}");
}

#[test]
fn a_rotated_file_is_read_to_its_end_and_then_an_error() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), "one.jsonl", "1\n");
    let mut reader = open(folder.path(), 0, false).unwrap();
    read_until_caught_up(&mut *reader).unwrap();
    append(folder.path(), "one.jsonl", "2\n");
    fs::rename(folder.path().join("one.jsonl"), folder.path().join("old")).unwrap();
    append(folder.path(), "old", "3\n");
    append(folder.path(), "one.jsonl", "4\n5\n6\n7\n");
    let messages = read_until(&mut *reader, |messages, _, _| messages.len() == 2).unwrap();
    assert_eq!(values(&messages), ["2", "3"]);
    let error = error(reader);
    assert_eq!(error.kind(), ErrorKind::OffsetLost);
    assert!(error.to_string().contains("one.jsonl\", offset 6: it was read to its end and then replaced"), "{error}");
}

#[test]
fn a_file_that_is_gone_is_behind_and_then_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (here, away) = (folder.path().join("one.jsonl"), folder.path().join("away"));
    append(folder.path(), "one.jsonl", "1\n");
    let mut reader = open(folder.path(), 0, false).unwrap();
    read_until_caught_up(&mut *reader).unwrap();
    fs::rename(&here, &away).unwrap();
    read_until(&mut *reader, |_, evidence, _| evidence == Some(Evidence::Behind)).unwrap();
    fs::rename(&away, &here).unwrap();
    read_until_caught_up(&mut *reader).unwrap();
    fs::remove_file(&here).unwrap();
    let (start, error) = (Instant::now(), error(reader));
    assert!(start.elapsed() >= Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("one.jsonl\" is gone for 10 s; it was read up to offset 2"), "{error}");
}

fn gzip(path: &Path, parts: &[&str]) {
    let mut file = File::create(path).unwrap();
    for part in parts {
        let mut member = flate2::write::GzEncoder::new(&mut file, flate2::Compression::default());
        member.write_all(part.as_bytes()).unwrap();
        member.finish().unwrap();
    }
}

#[test]
fn packed_files_are_read_and_end_though_they_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    gzip(&folder.path().join("one-p0.jsonl.gz"), &["1\n2", "2\n3\n"]);
    fs::write(folder.path().join("one-1.jsonl.zst"), zstd::encode_all(&b"4\n5"[..], 1).unwrap()).unwrap();
    for bounded in [true, false] {
        let messages = read_to_end(&mut *open(folder.path(), 0, bounded).unwrap()).unwrap();
        let mut found = values(&messages);
        found.sort_unstable();
        assert_eq!(found, ["1", "22", "3", "4", "5"], "bounded: {bounded}");
    }
    let mut source = source(folder.path());
    let splits = source.splits().unwrap();
    let names: Vec<_> = splits.iter().map(|split| (split.ordinal, split.name.as_str())).collect();
    assert_eq!(names, [(0, "one-p0.jsonl.gz"), (1, "one-1.jsonl.zst")]);
    let latest = source.resolve(&Position::Latest, &splits).unwrap();
    assert_eq!(latest.values().copied().collect::<Vec<_>>(), [Offset(7), Offset(3)]);
}

#[test]
fn packed_files_are_read_from_any_line() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..200_000).map(|number| format!("{{\"number\":{number}}}\n")).collect();
    gzip(&folder.path().join("one.jsonl.gz"), &[&lines.concat()]);
    let from: usize = lines[..150_000].iter().map(String::len).sum();
    let mut reader = open(folder.path(), from as u64, true).unwrap();
    let messages = read_to_end(&mut *reader).unwrap();
    assert_eq!((messages.len(), values(&messages)[0]), (50_000, "{\"number\":150000}"));
    assert_eq!(messages[0].offset, Offset(from as u64));
    assert_eq!(error(open(folder.path(), from as u64 + 1, true).unwrap()).kind(), ErrorKind::OffsetLost);
    assert_eq!(error(open(folder.path(), 1 << 40, true).unwrap()).kind(), ErrorKind::OffsetLost);
}

#[test]
fn a_damaged_packed_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.jsonl.gz");
    gzip(&path, &["1\n".repeat(10_000).as_str()]);
    let len = fs::metadata(&path).unwrap().len();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 9).unwrap();
    let error = error(open(folder.path(), 0, false).unwrap());
    assert_eq!(error.kind(), ErrorKind::Read);
    assert!(error.to_string().contains("one.jsonl.gz\" cannot be unpacked behind byte"), "{error}");
}

#[test]
fn a_document_of_40_megabytes_is_one_message() {
    let folder = tempfile::tempdir().unwrap();
    let document = format!("{{\"text\":\"{}\"}}", "x".repeat(40_000_000));
    append(folder.path(), "one.jsonl", &format!("1\n{document}\n2\n"));
    let messages = read_to_end(&mut *open(folder.path(), 0, true).unwrap()).unwrap();
    assert!(values(&messages) == ["1", document.as_str(), "2"]);
}

#[test]
fn new_files_are_new_splits() {
    let folder = tempfile::tempdir().unwrap();
    let mut source = source(folder.path());
    assert_eq!(source.splits().unwrap(), []);
    append(folder.path(), "one-3.jsonl", "");
    append(folder.path(), "one-x.jsonl", "");
    append(folder.path(), "two.jsonl", "");
    let splits = source.splits().unwrap();
    assert_eq!((splits.len(), splits[0].ordinal, splits[0].name.as_str()), (1, 3, "one-3.jsonl"));
    append(folder.path(), "one.jsonl", "");
    assert_eq!(source.splits().unwrap()[1], splits[0]);
}

#[test]
fn a_file_that_is_gone_stays_listed_until_another_takes_its_place() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), "one-1.jsonl", "");
    let mut source = source(folder.path());
    let splits = source.splits().unwrap();
    fs::remove_file(folder.path().join("one-1.jsonl")).unwrap();
    assert_eq!(source.splits().unwrap(), splits);
    gzip(&folder.path().join("one-1.jsonl.gz"), &["1\n"]);
    let error = source.splits().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OffsetLost);
    assert!(error.to_string().contains("\"one-1.jsonl.gz\" took the place of \"one-1.jsonl\""), "{error}");
}

#[test]
fn lines_come_soon_while_they_keep_coming() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), "one.jsonl", "");
    let mut reader = open(folder.path(), 0, false).unwrap();
    let mut delays = vec![];
    for number in 0..30 {
        let start = Instant::now();
        append(folder.path(), "one.jsonl", &format!("{number}\n"));
        read_until(&mut *reader, |messages, _, _| !messages.is_empty()).unwrap();
        delays.push(start.elapsed());
    }
    delays.sort();
    assert!(delays[15] < Duration::from_millis(20), "{delays:?}");
}

#[test]
fn idle_files_cost_nothing() {
    let folder = tempfile::tempdir().unwrap();
    (0..4).for_each(|number| append(folder.path(), &format!("one-{number}.jsonl"), "1\n"));
    let mut reader = open(folder.path(), 0, false).unwrap();
    let mut batch = Batch::default();
    let mut read = |span| {
        let start = Instant::now();
        while start.elapsed() < span {
            batch.clear();
            reader.read(&mut batch, Duration::from_millis(100)).unwrap();
        }
    };
    read(Duration::from_millis(2_500)); // until it has slowed down
    let (before, span) = (crate::bench_support::thread_cpu(), Duration::from_secs(2));
    read(span);
    let share = (crate::bench_support::thread_cpu() - before).as_secs_f64() / span.as_secs_f64();
    println!("idle: {:.3} % of a core", 100.0 * share);
    assert!(share < 0.004, "{:.3} % of a core", 100.0 * share);
}

#[test]
fn a_silent_file_stays_caught_up_beside_a_busy_one() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), "one-p0.jsonl", "1\n");
    append(folder.path(), "one-p1.jsonl", &"{\"a\":\"some text that fills the file\"}\n".repeat(200_000));
    let mut reader = open(folder.path(), 0, false).unwrap();
    let silent = source(folder.path()).splits().unwrap()[0].id;
    let (deadline, mut batch, mut count, mut said) = (Instant::now() + PATIENCE, Batch::default(), 0, vec![]);
    while count < 200_001 {
        assert!(Instant::now() < deadline, "{count} messages");
        batch.clear();
        reader.read(&mut batch, Duration::from_millis(100)).unwrap();
        count += batch.messages.len();
        said.extend(batch.evidence.iter().filter(|(split, _)| *split == silent).map(|(_, evidence)| *evidence));
    }
    // It may begin behind: it was not looked at yet, or was read just now.
    let from = said.iter().position(|evidence| *evidence == Evidence::CaughtUp).expect("it is caught up");
    assert!(said[from..].iter().all(|evidence| *evidence == Evidence::CaughtUp), "{said:?}");
}
