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
        let disk = Arc::new(FaultyDisk(Arc::clone(&self.faults)));
        let folder = self.folder.path().join("out");
        let sink = file::sink_on(disk, folder.to_str().unwrap(), &BrokerOptions::default()).unwrap();
        let entities = entities.iter().map(|entity| String::from(*entity)).collect();
        sink().unwrap().open(&WriterContext {
            slot: Slot(3),
            output: 0,
            run: RunNumber(1),
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
