//! The disk in an object store, and stores of checkpoints on it, in memory.
//!
//! Would catch: an answer that was lost and is taken for somebody else's object, or the other way round; two writers that both
//! append; parts behind a gap that count; what is left of a file that is taken for a part of the next one; a store that does not keep
//! to conditions; a cache that shows what is gone.

mod trouble;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::path::Path as Key;
use proptest::prelude::*;

use super::*;
use crate::checkpoint::compact::Sizes as StoreSizes;
use crate::checkpoint::sim::Random;
use crate::checkpoint::tests::histories::{World, cases, many, run_in};
use crate::checkpoint::tests::{SMALL, begin, frame, items, start, store, together};
use crate::checkpoint::{Frame, Store, inspect};
use crate::error::ErrorKind;
use trouble::{Fate, Trouble};

const URL: &str = "/store";

fn disk(trouble: &Trouble, part: usize, block: u64) -> Arc<ObjectDisk> {
    let store: Arc<dyn ObjectStore> = Arc::new(trouble.clone());
    Arc::new(ObjectDisk::new(store, URL.into(), Key::from("a/b"), Sizes { part, block }).unwrap())
}

/// A disk of a process, as stores want it.
fn of_process(trouble: &Trouble) -> Arc<dyn Disk> {
    disk(trouble, 40, 16)
}

fn at(name: &str) -> PathBuf {
    Path::new(URL).join(name)
}

/// The names of all objects, sorted.
fn objects(trouble: &Trouble) -> Vec<String> {
    let listed = trouble.inner.list(None).map_ok(|object| object.location.to_string()).try_collect::<Vec<_>>();
    let mut names = futures_util::FutureExt::now_or_never(listed).unwrap().unwrap();
    names.sort();
    names
}

fn remove_object(trouble: &Trouble, key: &str) {
    futures_util::FutureExt::now_or_never(trouble.inner.delete(&Key::from(key))).unwrap().unwrap();
}

fn kind<T>(result: io::Result<T>) -> io::ErrorKind {
    result.err().expect("an error").kind()
}

#[test]
fn files_are_made_appended_to_listed_and_removed() {
    let trouble = Trouble::new(1);
    let disk = disk(&trouble, 4, 3);
    disk.create_folder(&at("f")).unwrap();
    assert!(disk.list(&at("f")).unwrap().is_empty());
    disk.create_new(&at("f/x"), b"head").unwrap();
    assert_eq!(kind(disk.create_new(&at("f/x"), b"other")), io::ErrorKind::AlreadyExists);
    let (mut file, len) = disk.open_append(&at("f/x"), Advice::Normal).unwrap();
    assert_eq!(len, 4);
    file.append(b"abcde").unwrap();
    file.append(b"fg").unwrap();
    assert_eq!(disk.read_from(&at("f/x"), 0).unwrap()[..], *b"head"); // nothing was synced
    file.sync().unwrap();
    file.sync().unwrap();
    let parts = ["a/b/f/x", "a/b/f/x.parts/00000000000000000004", "a/b/f/x.parts/00000000000000000008"];
    assert_eq!(objects(&trouble), parts);
    assert_eq!(disk.read_from(&at("f/x"), 0).unwrap()[..], *b"headabcdefg");
    assert_eq!(disk.read_at(&at("f/x"), 3, 6, Advice::Normal).unwrap()[..], *b"dabcde");
    assert_eq!(disk.read_at(&at("f/x"), 11, 6, Advice::Normal).unwrap()[..], *b"");
    assert_eq!(disk.read_at(&at("f/x"), 99, 6, Advice::Normal).unwrap()[..], *b"");
    assert_eq!(disk.open_append(&at("f/x"), Advice::Normal).unwrap().1, 11);
    let (mut empty, len) = disk.open_append(&at("f/y"), Advice::Normal).unwrap();
    assert_eq!(len, 0);
    empty.append(b"z").unwrap();
    empty.sync().unwrap();
    assert_eq!(disk.read_from(&at("f/y"), 0).unwrap()[..], *b"z");
    assert_eq!(kind(empty.truncate(0)), io::ErrorKind::Unsupported);
    disk.create_new(&at("g"), b"").unwrap();
    assert_eq!(disk.list(&at("f")).unwrap(), ["x", "y"]);
    assert_eq!((disk.list(&at("")).unwrap(), disk.folders(&at("")).unwrap()), (vec!["g".into()], vec!["f".into()]));
    disk.sync_folder(&at("f")).unwrap();
    disk.sync_file(&at("f/x")).unwrap();
    disk.remove(&at("f/x")).unwrap();
    assert_eq!(kind(disk.read_at(&at("f/x"), 3, 6, Advice::Normal)), io::ErrorKind::NotFound);
    assert_eq!(disk.list(&at("f")).unwrap(), ["y"]);
    assert_eq!(kind(disk.read_from(Path::new("/elsewhere/x"), 0)), io::ErrorKind::InvalidInput);
}

#[test]
fn of_two_who_append_one_fails() {
    let trouble = Trouble::new(1);
    let (here, there) = (disk(&trouble, 4, 3), disk(&trouble, 9, 3));
    here.create_new(&at("x"), b"head").unwrap();
    let ((mut one, _), (mut two, _)) =
        (here.open_append(&at("x"), Advice::Normal).unwrap(), there.open_append(&at("x"), Advice::Normal).unwrap());
    one.append(b"one").unwrap();
    two.append(b"two").unwrap();
    one.sync().unwrap();
    let error = two.sync().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert_eq!(
        error.to_string(),
        "somebody else has appended to it: object \"a/b/x.parts/00000000000000000004\" has other bytes"
    );
    assert_eq!(there.read_from(&at("x"), 0).unwrap()[..], *b"headone");
}

#[test]
fn an_answer_that_was_lost_is_found_out() {
    let trouble = Trouble::new(1);
    let disk = disk(&trouble, 4, 3);
    disk.create_new(&at("tried"), b"").unwrap();
    trouble.fates(&[Fate::AnswerLost]);
    disk.create_new(&at("x"), b"head").unwrap();
    trouble.fates(&[Fate::AnswerLost]);
    assert_eq!(kind(disk.create_new(&at("x"), b"other")), io::ErrorKind::AlreadyExists);
    trouble.fates(&[Fate::Fails]);
    assert_eq!(kind(disk.create_new(&at("y"), b"head")), io::ErrorKind::Other);
    trouble.fates(&[Fate::Conflict, Fate::Conflict]);
    disk.create_new(&at("y"), b"head").unwrap();
    trouble.fates(&[Fate::Conflict; TRIES]);
    assert_eq!(kind(disk.create_new(&at("z"), b"head")), io::ErrorKind::Other);

    // What was not sent is sent by the next sync, and what was is known again.
    let (mut file, _) = disk.open_append(&at("x"), Advice::Normal).unwrap();
    file.append(b"abcdefghij").unwrap();
    trouble.fates(&[Fate::AnswerLost, Fate::Fails, Fate::AnswerLost]);
    assert_eq!(kind(file.sync()), io::ErrorKind::Other);
    file.append(b"k").unwrap();
    file.sync().unwrap();
    assert_eq!(disk.read_from(&at("x"), 0).unwrap()[..], *b"headabcdefghijk");
}

#[test]
fn a_file_ends_where_a_part_is_missing() {
    let trouble = Trouble::new(1);
    let writer = disk(&trouble, 2, 3);
    writer.create_new(&at("x"), b"head").unwrap();
    let (mut file, _) = writer.open_append(&at("x"), Advice::Normal).unwrap();
    file.append(b"abcdef").unwrap();
    file.sync().unwrap();
    remove_object(&trouble, "a/b/x.parts/00000000000000000006");
    assert_eq!(objects(&trouble).len(), 3);
    for still in [false, true] {
        let disk = disk(&trouble, 2, 3);
        let disk = if still { Arc::new(disk.still()) } else { disk };
        assert_eq!(disk.read_from(&at("x"), 0).unwrap()[..], *b"headab");
        assert_eq!(disk.read_at(&at("x"), 6, 1, Advice::Normal).unwrap()[..], *b"");
    }
    assert_eq!(disk(&trouble, 2, 3).open_append(&at("x"), Advice::Normal).unwrap().1, 6);
}

#[test]
fn what_is_left_of_a_file_is_seen_and_removed() {
    let trouble = Trouble::new(1);
    let writer = disk(&trouble, 2, 3);
    writer.create_new(&at("f/x"), b"head").unwrap();
    let (mut file, _) = writer.open_append(&at("f/x"), Advice::Normal).unwrap();
    file.append(b"abcdef").unwrap();
    file.sync().unwrap();
    // A removal that fails leaves the name taken.
    trouble.plan(0, Some(2));
    assert_eq!(kind(writer.remove(&at("f/x"))), io::ErrorKind::Other);
    trouble.restart();
    let disk = disk(&trouble, 2, 3);
    assert_eq!(kind(disk.create_new(&at("f/x"), b"new")), io::ErrorKind::AlreadyExists);
    remove_object(&trouble, "a/b/f/x");
    assert!(!objects(&trouble).is_empty());
    assert_eq!(disk.list(&at("f")).unwrap(), ["x"]);
    disk.remove(&at("f/x")).unwrap();
    assert!(objects(&trouble).is_empty() && disk.list(&at("f")).unwrap().is_empty());
}

#[test]
fn a_look_sees_files_as_they_were() {
    let trouble = Trouble::new(1);
    let writer = disk(&trouble, 2, 3);
    writer.create_new(&at("x"), b"head").unwrap();
    let (mut file, _) = writer.open_append(&at("x"), Advice::Normal).unwrap();
    file.append(b"abc").unwrap();
    file.sync().unwrap();
    let still = writer.still();
    assert_eq!(still.read_at(&at("x"), 0, 0, Advice::Normal).unwrap()[..], *b"");
    file.append(b"def").unwrap();
    file.sync().unwrap();
    assert_eq!(still.read_from(&at("x"), 2).unwrap()[..], *b"adabc");
    assert_eq!(still.read_from(&at("x"), 5).unwrap()[..], *b"bc");
    assert_eq!(writer.read_from(&at("x"), 5).unwrap()[..], *b"bcdef");
    let refused = io::ErrorKind::ReadOnlyFilesystem;
    assert_eq!(kind(still.create_new(&at("y"), b"")), refused);
    assert_eq!(kind(still.open_append(&at("x"), Advice::Normal)), refused);
    assert_eq!(kind(still.remove(&at("x"))), refused);
    assert_eq!(kind(still.sync_file(&at("x"))), refused);
    assert_eq!(kind(still.create_folder(&at("x"))), refused);
}

#[test]
fn a_store_that_keeps_to_no_condition_is_refused_before_anything_counts() {
    let trouble = Trouble::new(1);
    trouble.keeps_to_nothing();
    let error = start(&of_process(&trouble), Path::new(URL), 1, false, SMALL).err().unwrap();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, false));
    assert!(error.report().contains("it does not keep to If-None-Match"), "{}", error.report());
    assert_eq!(objects(&trouble), ["a/b/claims/0000000001"]);
}

#[test]
fn what_a_server_refuses_does_not_pass_and_other_answers_may() {
    let kind = |answer: &str| {
        let source = format!("Server returned non-2xx status code: {answer}: text").into();
        failed(Error::Generic { store: "S3", source }).kind()
    };
    assert_eq!(["403 Forbidden", "404 Not Found"].map(kind), [io::ErrorKind::InvalidInput; 2]);
    assert_eq!(["500 Internal", "429 Too Many", "400 Bad"].map(kind), [io::ErrorKind::Other; 3]);
}

proptest! {
    /// A file reads as what was appended to it, whoever reads which part of it, with whatever sizes and failures.
    #[test]
    fn files_are_what_was_appended(
        seed: u64, part in 1usize..9, block in 1u64..9, head in 0usize..5,
        steps in prop::collection::vec((0usize..20, 0u64..60, 0u64..30), 1..40),
    ) {
        let trouble = Trouble::new(seed);
        let (writer, reader) = (disk(&trouble, part, block), disk(&trouble, part + 1, block + 1));
        let mut model: Vec<u8> = (0..head as u8).collect();
        writer.create_new(&at("x"), &model).unwrap();
        let (mut file, _) = writer.open_append(&at("x"), Advice::Normal).unwrap();
        for (append, position, most) in steps {
            let bytes: Vec<u8> = (0..append).map(|at| (model.len() + at) as u8).collect();
            file.append(&bytes).unwrap();
            model.extend_from_slice(&bytes);
            trouble.plan(3, None);
            while file.sync().is_err() {}
            trouble.plan(0, None);
            let from = model.len().min(position as usize);
            let to = model.len().min((position + most) as usize);
            for disk in [&writer, &reader] {
                prop_assert_eq!(&disk.read_at(&at("x"), position, most, Advice::Normal).unwrap(), &model[from..to]);
            }
        }
        prop_assert_eq!(reader.read_from(&at("x"), 0).unwrap(), model.clone());
        prop_assert_eq!(writer.open_append(&at("x"), Advice::Normal).unwrap().1, model.len() as u64);
    }
}

impl World for Trouble {
    fn disk(&self) -> Arc<dyn Disk> {
        of_process(self)
    }
    fn plan(&self, fault: u64, crash_after: Option<u64>) {
        self.plan(fault, crash_after);
    }
    fn has_crashed(&self) -> bool {
        self.has_crashed()
    }
    fn restart(&self, _machine: bool) {
        self.restart();
    }
}

/// The histories of stores on a disk, with requests in place of its calls.
#[test]
fn every_start_finds_a_state_that_was_whole() {
    many(cases(150).min(10_000), &|seed| {
        let mut random = Random(seed);
        let trouble = Arc::new(Trouble::new(random.next()));
        run_in(random, trouble)
    });
}

#[test]
fn workers_write_manifests_at_the_same_time() {
    together::run(&of_process(&Trouble::new(1)), Path::new(URL));
}

#[test]
fn the_latest_claim_wins_and_the_older_run_is_fenced() {
    let trouble = Trouble::new(1);
    let mut old = start(&of_process(&trouble), Path::new(URL), 2, false, SMALL).unwrap();
    for store in &mut old {
        store.append(&frame(0, 10, "a")).unwrap();
    }
    // It lives, and nothing shows that.
    let mut new = start(&of_process(&trouble), Path::new(URL), 1, false, SMALL).unwrap();
    assert_eq!(items(&mut new[0]), ["a", "a"]);
    new[0].append(&frame(10, 20, "b")).unwrap();
    for store in &mut old {
        let error = store.append(&frame(10, 20, "late")).unwrap_err();
        let text = format!("run 1 is fenced by run 2 in folder {URL:?}");
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Fenced, text));
    }
    drop(new);
    let mut stores = start(&of_process(&trouble), Path::new(URL), 1, false, SMALL).unwrap();
    assert_eq!(items(&mut stores[0]), ["a", "a", "b"]);
}

#[test]
fn of_runs_that_start_at_the_same_time_the_others_are_fenced() {
    let trouble = Trouble::new(1);
    let appended: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..6)
            .map(|name| {
                let disk = of_process(&trouble);
                scope.spawn(move || {
                    let mut stores = start(&disk, Path::new(URL), 1, false, SMALL)?;
                    let upper = stores[0].load()?.upper;
                    stores[0].append(&frame(upper, upper + 10, &format!("{name}"))).map(|()| format!("{name}"))
                })
            })
            .collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    for error in appended.iter().filter_map(|appended| appended.as_ref().err()) {
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error:?}");
    }
    // Who was told that it is durable is right, be it one or several in turn.
    let done: Vec<_> = appended.iter().flatten().collect();
    let found = items(&mut start(&of_process(&trouble), Path::new(URL), 1, false, SMALL).unwrap()[0]);
    assert!(!done.is_empty() && done.iter().all(|name| found.contains(name)), "{appended:?}, {found:?}");
}

#[test]
fn a_torn_frame_is_cut_off_and_a_missing_part_is_named() {
    let trouble = Trouble::new(1);
    let mut stores = start(&of_process(&trouble), Path::new(URL), 1, false, StoreSizes::default()).unwrap();
    for (lower, item) in [(0, "a"), (10, "b"), (20, "c")] {
        stores[0].append(&frame(lower, lower + 10, item)).unwrap();
    }
    drop(stores);
    let part = "a/b/segments/0000000001-00000-000000.parts/00000000000000000";
    let parts: Vec<String> = objects(&trouble).into_iter().filter(|name| name.starts_with(part)).collect();
    assert_eq!(parts.len(), 6, "{parts:?}"); // a frame of 68 bytes is 40 and 28
    remove_object(&trouble, &parts[4]);
    let disk = of_process(&trouble);
    assert_eq!(items(&mut start(&disk, Path::new(URL), 1, false, SMALL).unwrap()[0]).concat(), "ab");
    remove_object(&trouble, &parts[3]);
    let error = |disk: &Arc<dyn Disk>| {
        start(disk, Path::new(URL), 1, false, SMALL).and_then(|mut stores| stores[0].load()).unwrap_err()
    };
    let text = error(&of_process(&trouble)).to_string();
    assert!(text.contains("/store/segments/0000000001-00000-000000\" is damaged at byte "), "{text}");
    remove_object(&trouble, "a/b/segments/0000000001-00000-000000");
    let text = error(&of_process(&trouble)).to_string();
    assert!(text.contains("is missing though the newest manifest lists it"), "{text}");
}

#[test]
fn a_part_that_comes_late_counts_for_nothing_and_is_removed() {
    let trouble = Trouble::new(1);
    let mut stores = start(&of_process(&trouble), Path::new(URL), 1, false, StoreSizes::default()).unwrap();
    stores[0].append(&frame(0, 10, "a")).unwrap();
    trouble.fates(&[Fate::Late]);
    let error = stores[0].append(&frame(10, 20, "b")).unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    stores[0].append(&frame(10, 20, "b")).unwrap(); // in a new segment
    trouble.land();
    stores[0].append(&frame(20, 30, "c")).unwrap();
    drop(stores);
    assert_eq!(items(&mut start(&of_process(&trouble), Path::new(URL), 1, false, SMALL).unwrap()[0]).concat(), "abc");

    // A segment in which nothing counts was removed when its first frame comes.
    let mut stores = start(&of_process(&trouble), Path::new(URL), 1, false, StoreSizes::default()).unwrap();
    trouble.fates(&[Fate::Late]);
    stores[0].append(&frame(30, 40, "d")).unwrap_err();
    stores[0].append(&frame(30, 40, "d")).unwrap();
    trouble.land();
    drop(stores);
    let left =
        |trouble: &Trouble| objects(trouble).iter().filter(|name| name.contains("0000000003-00000-000000")).count();
    assert_eq!(left(&trouble), 1);
    let mut stores = start(&of_process(&trouble), Path::new(URL), 1, false, SMALL).unwrap();
    assert_eq!((items(&mut stores[0]).concat(), left(&trouble)), ("abcd".to_owned(), 0));
}

#[test]
fn small_frames_are_put_together_before_there_are_too_many() {
    let trouble = Trouble::new(1);
    let disk: Arc<dyn Disk> = disk(&trouble, 1 << 20, 1 << 20);
    let sizes = StoreSizes { segment: 2_000, slack: 10_000, least: 100, ..StoreSizes::default() };
    let mut stores = start(&disk, Path::new(URL), 1, false, sizes).unwrap();
    for round in 0..1_000 {
        let mut frame = frame(round * 10, round * 10 + 10, "a");
        frame.published = round * 10;
        if round % 2 == 1 {
            frame.changes[0].updates[0].diff = -1;
        }
        stores[0].append(&frame).unwrap();
        stores[0].compactor().unwrap().run().unwrap();
    }
    let most = 20 * (10_000 / 2_000 + 5); // frames of a segment, segments before there is a compaction
    let num_objects = objects(&trouble).len();
    assert!(num_objects < most, "{num_objects} objects");
    drop(stores);
    let mut stores = start(&disk, Path::new(URL), 1, false, sizes).unwrap();
    assert_eq!((items(&mut stores[0]).len(), stores[0].load().unwrap().upper), (0, 10_000));
}

/// What the page of this module says of costs.
#[test]
fn a_checkpoint_is_one_object_and_three_looks_at_the_claim() {
    let trouble = Trouble::new(1);
    let disk: Arc<dyn Disk> = disk(&trouble, 8 << 20, 1 << 20);
    let mut stores = start(&disk, Path::new(URL), 1, false, StoreSizes::default()).unwrap();
    stores[0].append(&frame(0, 10, "a")).unwrap();
    trouble.counts();
    stores[0].append(&frame(10, 20, "b")).unwrap();
    assert_eq!(trouble.counts(), [("get", 2), ("list", 1), ("put", 1)].into());
    let big = "x".repeat(20 << 20);
    stores[0].append(&Frame { clock: 7, ..frame(20, 30, &big) }).unwrap();
    assert_eq!(trouble.counts(), [("get", 2), ("list", 1), ("put", 3)].into());
    drop(stores);

    let disk: Arc<dyn Disk> = self::disk(&trouble, 8 << 20, 1 << 20);
    let mut again = store(&disk, Path::new(URL), 0, StoreSizes::default());
    again.claim(false).unwrap();
    again.begin(&begin(1)).unwrap();
    trouble.counts();
    assert_eq!(again.load().unwrap().clock, 7);
    assert!(trouble.counts()["get"] <= 12);
    let whole = inspect(URL.into(), disk).unwrap();
    assert_eq!(whole.verify().unwrap().0, 3);
}
