//! What the file sink promises beyond the suite: names, appends, and a disk that fails.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use syncline::broker::BrokerOptions;
use syncline::broker::file;
use syncline::checkpoint::{Advice, Disk, DiskFile, LocalDisk};
use syncline::sink::{Entity, OutputRecord, RunNumber, Slot, Writer, WriterContext};
use syncline::{Error, ErrorKind};

/// A disk that counts, and fails on demand: an append after it has written half.
#[derive(Default)]
struct Faults {
    appends: AtomicUsize,
    syncs: AtomicUsize,
    /// Of these kinds the next calls fail, in order of the list.
    fail: Mutex<Vec<&'static str>>,
}

impl Faults {
    fn hit(&self, kind: &str) -> io::Result<()> {
        let mut fail = self.fail.lock().unwrap();
        match fail.first() {
            Some(next) if *next == kind => {
                fail.remove(0);
                Err(io::Error::other("disk full"))
            }
            _ => Ok(()),
        }
    }
}

struct FaultyDisk(Arc<Faults>);
struct FaultyFile(Box<dyn DiskFile>, Arc<Faults>);

impl DiskFile for FaultyFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.1.appends.fetch_add(1, Ordering::SeqCst);
        match self.1.hit("append") {
            Ok(()) => self.0.append(bytes),
            error => self.0.append(&bytes[..bytes.len() / 2]).and(error),
        }
    }
    fn sync(&mut self) -> io::Result<()> {
        self.1.syncs.fetch_add(1, Ordering::SeqCst);
        self.1.hit("sync")?;
        self.0.sync()
    }
    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.1.hit("truncate")?;
        self.0.truncate(len)
    }
}

impl Disk for FaultyDisk {
    fn open_append(&self, path: &Path, advice: Advice) -> io::Result<(Box<dyn DiskFile>, u64)> {
        let (file, len) = LocalDisk.open_append(path, advice)?;
        Ok((Box::new(FaultyFile(file, Arc::clone(&self.0))), len))
    }
    fn create_new(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        LocalDisk.create_new(path, contents)
    }
    fn read_at(&self, path: &Path, position: u64, most: u64, advice: Advice) -> io::Result<Bytes> {
        LocalDisk.read_at(path, position, most, advice)
    }
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        LocalDisk.sync_file(path)
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        LocalDisk.list(folder)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        LocalDisk.remove(path)
    }
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        LocalDisk.create_folder(folder)
    }
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        LocalDisk.sync_folder(folder)
    }
}

struct Test {
    folder: tempfile::TempDir,
    faults: Arc<Faults>,
}

impl Test {
    fn new() -> Self {
        Test { folder: tempfile::tempdir().unwrap(), faults: Arc::default() }
    }

    fn open(&self, entities: &[&str], outbox: bool) -> Result<Box<dyn Writer>, Error> {
        self.open_run(1, entities, outbox)
    }

    fn open_run(&self, run: u64, entities: &[&str], outbox: bool) -> Result<Box<dyn Writer>, Error> {
        let disk = Arc::new(FaultyDisk(Arc::clone(&self.faults)));
        let folder = self.folder.path().join("out");
        let sink = file::sink_on(disk, folder.to_str().unwrap(), &BrokerOptions::default()).unwrap();
        let entities = entities.iter().map(|entity| String::from(*entity)).collect();
        sink().unwrap().open(&WriterContext {
            slot: Slot(3),
            output: 0,
            run: RunNumber(run),
            entities,
            dead_letter: None,
            outbox,
        })
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join("out").join(name)).unwrap()
    }

    fn fail(&self, kinds: &[&'static str]) {
        *self.faults.fail.lock().unwrap() = kinds.to_vec();
    }
}

fn write(writer: &mut dyn Writer, epoch: u64, entity: usize, value: &str) {
    let record = OutputRecord { value: Bytes::copy_from_slice(value.as_bytes()), ..OutputRecord::default() };
    writer.write(epoch, Entity(entity), record).unwrap();
}

#[test]
fn a_publish_is_one_append_a_file() {
    let test = Test::new();
    let mut writer = test.open(&["sync", "delay", "never"], false).unwrap();
    for number in 0..1_000 {
        write(&mut *writer, 1 + number % 3, (number % 2) as usize, &format!("{number}"));
    }
    assert!(writer.prepare(1, 4).unwrap().is_empty());
    assert_eq!(test.text("sync-w3.jsonl"), "");
    writer.publish(1, 4, None).unwrap();
    assert_eq!(test.faults.appends.load(Ordering::SeqCst), 2);
    assert_eq!(test.faults.syncs.load(Ordering::SeqCst), 0, "without an outbox nothing is durable anyway");
    assert_eq!(test.text("sync-w3.jsonl").lines().count() + test.text("delay-w3.jsonl").lines().count(), 1_000);
    // Epochs follow each other in the file.
    assert!(test.text("sync-w3.jsonl").starts_with("0\n6\n12\n"));
    assert_eq!(test.text("never-w3.jsonl"), "");
}

#[test]
fn what_was_there_stays() {
    let test = Test::new();
    for run in 1..3 {
        let mut writer = test.open(&["sync"], true).unwrap();
        write(&mut *writer, run, 0, &format!("run {run}"));
        writer.prepare(run, run + 1).unwrap();
        writer.publish(run, run + 1, None).unwrap();
    }
    assert_eq!(test.text("sync-w3.jsonl"), "run 1\nrun 2\n");
    assert_eq!(test.faults.syncs.load(Ordering::SeqCst), 2);
}

#[test]
fn a_failed_append_is_cut_back_and_repeated() {
    for faults in [
        &["append"][..],
        &["append", "truncate"],
        &["append", "truncate", "truncate"],
        &["sync"],
        &["sync", "truncate"],
    ] {
        let test = Test::new();
        let mut writer = test.open(&["sync", "delay"], true).unwrap();
        write(&mut *writer, 1, 0, "before");
        writer.prepare(1, 2).unwrap();
        writer.publish(1, 2, None).unwrap();
        write(&mut *writer, 2, 0, "a long enough line");
        write(&mut *writer, 2, 1, "another long line");
        writer.prepare(2, 3).unwrap();
        write(&mut *writer, 3, 0, "later");
        test.fail(faults);
        let mut tries = 1;
        while let Err(error) = writer.publish(2, 3, None) {
            assert!(error.kind() == ErrorKind::Write && error.is_retryable(), "{error:?}");
            assert!(error.report().contains("-w3.jsonl") && error.report().contains("disk full"), "{}", error.report());
            if faults.len() == 1 {
                assert_eq!(test.text("sync-w3.jsonl"), "before\n", "{faults:?}");
                assert_eq!(test.text("delay-w3.jsonl"), "", "{faults:?}");
            }
            tries += 1;
            assert!(tries < 5, "{faults:?}");
        }
        writer.prepare(3, 4).unwrap();
        writer.publish(3, 4, None).unwrap();
        assert_eq!(test.text("sync-w3.jsonl"), "before\na long enough line\nlater\n", "{faults:?}");
        assert_eq!(test.text("delay-w3.jsonl"), "another long line\n", "{faults:?}");
        assert!(test.faults.fail.lock().unwrap().is_empty(), "{faults:?}: not all faults were met");
    }
}

/// What a crash has left of two prepared ranges, `one`, `two` and `three`, and what is there when they are published again.
fn recovered(left: &str) -> String {
    let test = Test::new();
    let mut writer = test.open(&["sync"], true).unwrap();
    write(&mut *writer, 1, 0, "before");
    writer.prepare(1, 2).unwrap();
    for (epoch, lines) in [(2, &["one", "two"][..]), (3, &["three"][..])] {
        lines.iter().for_each(|line| write(&mut *writer, epoch, 0, line));
    }
    let ranges = [2, 3].map(|epoch| (epoch, writer.prepare(epoch, epoch + 1).unwrap().bytes));
    writer.publish(1, 2, None).unwrap();
    drop(writer);
    std::fs::write(test.folder.path().join("out/sync-w3.jsonl"), left).unwrap();
    let mut writer = test.open(&["sync"], true).unwrap();
    for (epoch, bytes) in &ranges {
        writer.publish(*epoch, epoch + 1, Some(bytes)).unwrap();
    }
    write(&mut *writer, 4, 0, "after");
    writer.prepare(4, 5).unwrap();
    writer.publish(4, 5, None).unwrap();
    test.text("sync-w3.jsonl")
}

#[test]
fn a_restart_writes_what_a_crash_has_left_out() {
    let whole = "before\none\ntwo\nthree\nafter\n";
    for left in [
        "",
        "o",
        "one\n",
        "one\ntw",
        "one\ntwo\n",
        "one\ntwo\nth",
        "one\ntwo\nthree\n",
        "\0\0\0\ntwo\n",
        "one\n\0\0o\n",
    ] {
        assert_eq!(recovered(&format!("before\n{left}")), whole, "{left:?}");
    }
    // The lines of the second range are zeros in part; those of the first are as they were.
    assert_eq!(recovered("before\none\ntwo\n\0\0ree\n"), whole);
}

#[test]
fn what_somebody_else_has_put_there_stays_and_lines_are_repeated_rather_than_lost() {
    let all = "one\ntwo\nthree\nafter\n";
    assert_eq!(recovered(""), all, "the file was moved away");
    for left in [
        "bef\n",
        "before\nmine\n",
        "before\none\nmine\n",
        "something that is longer\nthan all of it\n",
        "before\none\ntwo\nthree\nmine\n",
    ] {
        let found = recovered(left);
        let begins = found.strip_prefix(left).unwrap_or_else(|| panic!("{left:?} became {found:?}"));
        let lines: Vec<&str> = found.lines().collect();
        assert!(["one", "two", "three", "after"].iter().all(|line| lines.contains(line)), "{left:?}: {found:?}");
        assert!(all.ends_with(begins), "{left:?}: {begins:?}");
    }
}

#[test]
fn a_file_that_is_held_is_left_alone() {
    let test = Test::new();
    let mut old = test.open(&["sync"], true).unwrap();
    let error = test.open_run(2, &["sync"], false).err().expect("it is refused");
    assert!(error.to_string().contains("is written by another job"), "{error}");
    let mut new = test.open_run(2, &["sync"], true).unwrap();
    write(&mut *old, 1, 0, "from both");
    let left = old.prepare(1, 2).unwrap().bytes;
    new.publish(1, 2, Some(&left)).unwrap();
    assert_eq!((test.text("sync-w3.jsonl").as_str(), test.text("sync-w3-r2.jsonl").as_str()), ("", "from both\n"));
    write(&mut *new, 2, 0, "from the new one");
    let left = new.prepare(2, 3).unwrap().bytes;
    old.publish(1, 2, None).unwrap(); // it woke up
    assert_eq!(test.text("sync-w3.jsonl"), "from both\n");
    // The places in one file mean nothing in another.
    drop((old, new));
    let mut next = test.open_run(3, &["sync"], true).unwrap();
    next.publish(2, 3, Some(&left)).unwrap();
    assert_eq!(test.text("sync-w3.jsonl"), "from both\nfrom the new one\n");
}

#[test]
fn names_that_cannot_be_files_are_refused_all_at_once() {
    let test = Test::new();
    let error = test.open(&["a/b", "sync", "sync"], false).err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("\"a/b\"") && error.to_string().contains("both named \"sync\""), "{error}");
}

#[test]
fn damaged_bytes_are_not_published() {
    let test = Test::new();
    let mut writer = test.open(&["sync"], true).unwrap();
    write(&mut *writer, 1, 0, "one");
    let prepared = writer.prepare(1, 2).unwrap();
    drop(writer);
    let mut writer = test.open(&["sync"], true).unwrap();
    let error = writer.publish(1, 2, Some(&prepared.bytes[..prepared.bytes.len() - 1])).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, false));
    let mut fewer = test.open(&[], true).unwrap();
    assert_eq!(fewer.publish(1, 2, Some(&prepared.bytes)).unwrap_err().kind(), ErrorKind::Store);
    assert_eq!(test.text("sync-w3.jsonl"), "");
}
