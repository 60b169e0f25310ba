//! Jobs of a user's own with a store: what goes through `durable` survives, with any number of workers.
//!
//! Would catch: results of a new record that are taken for those of restored state, items that come back twice or on two workers,
//! state that a job of other settings takes for its own.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use syncline::broker::memory::MemoryBroker;
use syncline::checkpoint::{Advice, Disk, DiskFile, FolderStore, LocalDisk, NewStore, inspect};
use syncline::codec::Json;
use syncline::dataflow::{Bincode, Flow, Input};
use syncline::epoch::Clock;
use syncline::message::Offset;
use syncline::pacing::Pacing;
use syncline::sink::NewSink;
use syncline::source::NewSource;
use syncline::{ErrorKind, Job, OutputRecord, Result};
use timely::dataflow::operators::vec::Map;

use super::pair::Pair;
use super::support::{GROUP, Running, eager, options, turn_until, until};

/// A disk that is full while it is told to be.
#[derive(Clone, Default)]
struct FullDisk(LocalDisk, Arc<AtomicBool>);

struct FullFile(Box<dyn DiskFile>, Arc<AtomicBool>);

impl FullDisk {
    fn room(&self) -> io::Result<()> {
        if self.1.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl DiskFile for FullFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.1.load(Ordering::SeqCst) {
            self.0.append(&bytes[..bytes.len() / 2])?; // what has room is there
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.append(bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }
}

impl Disk for FullDisk {
    fn open_append(&self, path: &Path, advice: Advice) -> io::Result<(Box<dyn DiskFile>, u64)> {
        let (file, len) = self.0.open_append(path, advice)?;
        Ok((Box::new(FullFile(file, Arc::clone(&self.1))), len))
    }
    fn create_new(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        self.room().and_then(|()| self.0.create_new(path, contents))
    }
    fn read_at(&self, path: &Path, position: u64, most: u64, advice: Advice) -> io::Result<Bytes> {
        self.0.read_at(path, position, most, advice)
    }
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.0.sync_file(path)
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.0.list(folder)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        self.room().and_then(|()| self.0.create_folder(folder))
    }
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.0.sync_folder(folder)
    }
}

fn store(folder: &Path) -> NewStore {
    let folder = folder.to_owned();
    Arc::new(move |slot| Box::new(FolderStore::new(folder.clone(), Arc::new(LocalDisk), slot)))
}

/// How often each word has come.
fn count(source: &NewSource, sink: &NewSink) -> impl for<'s> Fn(&mut Flow<'s>) -> Result<()> + Send + Sync + use<> {
    let input = Input::new("words", Arc::clone(source), Json::<String>::codec());
    let sink = Arc::clone(sink);
    move |flow| {
        let words = flow.collection(&input)?;
        let counts = flow.durable(words, "words", Bincode).count();
        let counted = counts.inner.flat_map(|((word, count), _epoch, diff)| {
            let text = format!("{word} {count}");
            (diff > 0).then(|| OutputRecord::from(text))
        });
        flow.write(&sink, vec![("counts".into(), counted)])
    }
}

#[test]
fn counts_go_on_over_restarts_with_other_numbers_of_workers() {
    let (broker, folder) = (MemoryBroker::new(), tempfile::tempdir().unwrap());
    broker.create_topic("words", 3);
    broker.create_topic("counts", 1);
    let (source, sink) = (broker.source("words", &options()).unwrap(), broker.sink(&options()).unwrap());
    for round in 1..=40 {
        let words = ["one", "two", "three", "four"];
        for (split, word) in words.iter().enumerate() {
            broker.append("words", split as u32 % 3, format!("{word:?}")).unwrap();
        }
        let job = Job::new("count").store(store(folder.path())).retry(eager());
        let running = Running::start(job, 1 + round % 3, count(&source, &sink));
        let said = || broker.values("counts").into_iter().collect::<BTreeSet<_>>();
        until("every word is counted", || words.iter().all(|word| said().contains(&format!("{word} {round}"))));
        running.stop().unwrap();
        assert_eq!(said().len(), words.len() * round);
    }
}

#[test]
fn another_job_and_other_settings_are_refused_unless_they_are_accepted() {
    let (broker, folder) = (MemoryBroker::new(), tempfile::tempdir().unwrap());
    broker.create_topic("words", 1);
    broker.create_topic("counts", 1);
    let (source, sink) = (broker.source("words", &options()).unwrap(), broker.sink(&options()).unwrap());
    let job = |name: &str, window: &str| {
        let settings = vec![("window".to_owned(), window.to_owned())];
        Job::new(name).store(store(folder.path())).retry(eager()).settings(settings)
    };
    broker.append("words", 0, "\"some\"").unwrap();
    let running = Running::start(job("count", "1m"), 1, count(&source, &sink));
    until("it is counted", || !broker.values("counts").is_empty());

    let second = Running::start(job("count", "1m"), 1, count(&source, &sink)).join().unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Fenced);
    assert!(second.to_string().contains("--take_over"), "{second}");
    running.stop().unwrap();

    let changed = Running::start(job("count", "2m"), 1, count(&source, &sink)).join().unwrap_err();
    assert_eq!(changed.kind(), ErrorKind::Config);
    assert!(
        ["window", "1m", "2m", "--accept_changes"].iter().all(|part| changed.to_string().contains(part)),
        "{changed}"
    );
    let other = Running::start(job("sum", "1m"), 1, count(&source, &sink)).join().unwrap_err();
    assert!(["count", "sum"].iter().all(|part| other.to_string().contains(part)), "{other}");

    broker.append("words", 0, "\"some\"").unwrap();
    let running = Running::start(job("count", "2m").accept_changes(true), 2, count(&source, &sink));
    until("it is counted", || broker.values("counts").contains(&"some 2".to_owned()));
    running.stop().unwrap();
}

#[test]
fn a_run_that_is_taken_over_ends_and_publishes_no_more() {
    let (broker, folder) = (MemoryBroker::new(), tempfile::tempdir().unwrap());
    broker.create_topic("words", 1);
    broker.create_topic("counts", 1);
    let (source, sink) = (broker.source("words", &options()).unwrap(), broker.sink(&options()).unwrap());
    let job = || Job::new("count").store(store(folder.path())).retry(eager());
    broker.append("words", 0, "\"some\"").unwrap();
    let first = Running::start(job(), 1, count(&source, &sink));
    until("it is counted", || !broker.values("counts").is_empty());
    let second = Running::start(job().take_over(true), 2, count(&source, &sink));
    until("it goes on", || second.status.snapshot().bound > 0 || folder.path().join("claims/0000000002").exists());
    broker.append("words", 0, "\"some\"").unwrap();
    assert_eq!(first.join().unwrap_err().kind(), ErrorKind::Fenced);
    until("it is counted", || broker.values("counts").contains(&"some 2".to_owned()));
    second.stop().unwrap();
    let twice = broker.values("counts").iter().filter(|value| *value == "some 2").count();
    assert_eq!(twice, 1, "the first run has published what it could not make durable");
}

#[test]
fn while_the_disk_is_full_nothing_is_published_and_nothing_is_lost() {
    let (broker, folder, disk) = (MemoryBroker::new(), tempfile::tempdir().unwrap(), FullDisk::default());
    broker.create_topic("words", 2);
    broker.create_topic("counts", 1);
    let (source, sink) = (broker.source("words", &options()).unwrap(), broker.sink(&options()).unwrap());
    let (path, full) = (folder.path().to_owned(), Arc::clone(&disk.1));
    let store: NewStore = Arc::new(move |slot| Box::new(FolderStore::new(path.clone(), Arc::new(disk.clone()), slot)));
    // Room is looked for between epochs, so they must be small.
    let pacing = Pacing { max_undurable_bytes: 4 << 10, max_records: 50, ..Pacing::default() };
    let job = Job::new("count").store(store).retry(eager()).pacing(pacing);
    let running = Running::start(job, 2, count(&source, &sink));
    broker.append("words", 0, "\"first\"").unwrap();
    until("it is counted", || broker.values("counts") == ["first 1"]);

    full.store(true, Ordering::SeqCst);
    let (read, retries) = (|| running.status.snapshot().records_read, || running.status.snapshot().retries);
    let mut words = 0;
    // A reader gives all that is there as one batch, so they come by and by.
    let stopped = (0..200).any(|_| {
        for word in words..words + 20 {
            broker.append("words", word % 2, format!("\"word {word}\"")).unwrap();
        }
        words += 20;
        let before = retries();
        until("they are read, or nothing is", || read() == 1 + u64::from(words) || retries() > before + 20);
        read() < 1 + u64::from(words)
    });
    assert!(stopped, "all was read while nothing could be kept of it");
    assert_eq!(broker.values("counts"), ["first 1"]);
    assert_eq!(broker.committed("words", 1, GROUP).unwrap_or_default().0, 0);

    full.store(false, Ordering::SeqCst);
    until("all are counted", || broker.values("counts").len() == words as usize + 1);
    running.stop().unwrap();
}

#[test]
fn downtime_lets_no_deadline_pass_and_what_waits_comes_back_once() {
    const HOUR: i64 = 3_600_000;
    // The wall clock of the next run shows what has passed, or it is turned forward or back besides.
    for jump in [0, HOUR, -HOUR, -2 * HOUR] {
        downtime(Duration::from_millis(HOUR as u64), jump);
    }
}

fn downtime(down: Duration, jump: i64) {
    const WINDOW: Duration = Duration::from_secs(20);
    let (pair, folder) = (Pair::new([2, 1], WINDOW), tempfile::tempdir().unwrap());
    let start = |workers| Running::start(pair.job().store(store(folder.path())), workers, pair.build());
    pair.give("one", 1);
    pair.give("one", 2);
    let job = start(1);
    let committed = || pair.broker.committed("one", 0, GROUP) == Some(Offset(2));
    pair.until("it is committed, though it waits: the checkpoint has it", committed);
    job.stop().unwrap();

    pair.clock.advance(down);
    pair.clock.jump(jump);
    pair.give("one", 3);
    let job = start(3);
    pair.until("it is read", || job.status.snapshot().records_read == 1);
    pair.give("two", 1);
    pair.until("the pair is joined", || pair.values("joined").len() == 1);
    assert_eq!(pair.values("delay"), [""; 0], "downtime fired a deadline, jump {jump}");
    assert_eq!(job.status.snapshot().records_read, 2, "what is in the checkpoint is not read again");
    turn_until(&pair.clock, "the others are given up at last", || pair.values("delay").len() == 2);
    job.stop().unwrap();
    let totals = pair.tally.totals();
    assert_eq!((totals.counts.restored_records, totals.difference()), (2, 0), "{totals:?}");
    assert_eq!(pair.values("joined").len(), 1);
}

#[test]
fn a_wall_clock_that_was_turned_back_meanwhile_holds_no_deadline() {
    const WINDOW: Duration = Duration::from_secs(4);
    let (pair, folder) = (Pair::new([1, 2], WINDOW), tempfile::tempdir().unwrap());
    pair.trouble.hide(1);
    let start = || Running::start(pair.job().store(store(folder.path())), 2, pair.build());
    let job = start();
    pair.join(0);
    pair.wait_live(&job);
    let given = pair.clock.wall();
    pair.give("one", 1);
    pair.until("a checkpoint has it", || pair.broker.committed("one", 0, GROUP) == Some(Offset(2)));
    job.stop().unwrap();
    let before = pair.clock.wall() - given;

    pair.clock.jump(-7_200_000);
    pair.trouble.show(1); // silent, and in no checkpoint
    let begun = pair.clock.wall();
    let job = start();
    turn_until(&pair.clock, "it is given up", || pair.has_delayed(1));
    let up = before + pair.clock.wall() - begun;
    assert!(up >= WINDOW.as_millis() as u64, "after {up} ms");
    job.stop().unwrap();
}

#[test]
fn checkpoints_keep_their_distance_and_a_stop_does_not_wait_for_it() {
    let (broker, folder) = (MemoryBroker::new(), tempfile::tempdir().unwrap());
    broker.create_topic("words", 2);
    broker.create_topic("counts", 1);
    let (source, sink) = (broker.source("words", &options()).unwrap(), broker.sink(&options()).unwrap());
    let job = Job::new("count").store(store(folder.path())).retry(eager()).checkpoint_every(Duration::from_secs(3600));
    let running = Running::start(job, 2, count(&source, &sink));
    for word in 0..20u64 {
        broker.append("words", word as u32 % 2, format!("\"word {word}\"")).unwrap();
        running.wait_read(word + 1);
    }
    running.stop().unwrap();
    assert_eq!(broker.values("counts").len(), 20);
    let (frames, _) = inspect(folder.path().into(), Arc::new(LocalDisk)).unwrap().verify().unwrap();
    assert!(frames <= 2 * 3, "{frames} frames: of two workers, at the start, within the hour perhaps, and at the end");
}

#[test]
fn two_collections_of_one_name_are_refused() {
    let (broker, folder) = (MemoryBroker::new(), tempfile::tempdir().unwrap());
    broker.create_topic("words", 1);
    let source = broker.source("words", &options()).unwrap();
    let input = Input::new("words", source, Json::<String>::codec());
    let job = Job::new("twice").store(store(folder.path())).retry(eager());
    let running = Running::start(job, 2, move |flow| {
        let words = flow.collection(&input)?;
        let once = flow.durable(words, "words", Bincode);
        let twice = flow.durable(once, "words", Bincode);
        flow.complete(twice.inner);
        Ok(())
    });
    let error = running.join().unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("\"words\""), "{error}");
}
