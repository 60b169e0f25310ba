//! What is refused, and with which words; and that nothing else is taken for a store.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::super::compact::Sizes;
use super::super::*;
use super::sim::SimDisk;
use super::{SMALL, begin, frame, items, start, store};
use crate::error::{Error, ErrorKind};

fn local() -> Arc<dyn Disk> {
    Arc::new(LocalDisk)
}

pub(super) const FOLDER: &str = "/store";
const SEGMENT: &str = "/store/segments/0000000001-00000-000000";

/// A store of one worker on a simulated disk, with frames `a`, `b` and `c`, of a run that has ended.
fn three_frames(sizes: Sizes) -> (SimDisk, Arc<dyn Disk>) {
    let sim = SimDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let mut stores = start(&disk, Path::new(FOLDER), 1, false, sizes).unwrap();
    for (lower, item) in [(0, "a"), (10, "b"), (20, "c")] {
        stores[0].append(&frame(lower, lower + 10, item)).unwrap();
    }
    (sim, disk)
}

fn restart(disk: &Arc<dyn Disk>) -> Result<Vec<String>> {
    let mut stores = start(disk, Path::new(FOLDER), 1, false, SMALL)?;
    stores[0].load()?;
    stores[0].items(Share { index: 0, peers: 1 }, &mut |_, _, _| Ok(()))?;
    Ok(items(&mut stores[0]))
}

fn refused(disk: &Arc<dyn Disk>) -> String {
    let error = restart(disk).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, false));
    error.to_string()
}

/// The bytes of a frame of these.
const LENGTH: usize = 68;

/// A byte of the index of a frame, and one of its payload, from its beginning.
const INDEX: usize = 40;
const PAYLOAD: usize = 59;

/// Where each of them begins, in one segment, and where the last one ends.
const PLACES: [usize; 4] = [56, 56 + LENGTH, 56 + 2 * LENGTH, 56 + 3 * LENGTH];

#[test]
fn what_a_crash_tears_is_cut_off() {
    for (edit, left) in [
        ((|data| data.truncate(PLACES[3] - 1)) as fn(&mut Vec<u8>), "ab"),
        (|data| data[PLACES[2] + INDEX] ^= 1, "ab"),
        (|data| data[PLACES[2] + PAYLOAD] ^= 1, "ab"),
        (|data| data[PLACES[2]] ^= 1, "ab"),
        (|data| data[PLACES[2]..].fill(0), "ab"),
        (|data| data.truncate(PLACES[2] + 3), "ab"),
        (|data| data.truncate(PLACES[0]), ""),
        (|data| data.extend_from_slice(&[0; 100]), "abc"),
    ] {
        let (sim, disk) = three_frames(Sizes::default());
        sim.edit(Path::new(SEGMENT), |data| {
            assert_eq!(data.len(), PLACES[3]);
            edit(data);
        });
        assert_eq!(inspect(FOLDER.into(), Arc::clone(&disk)).unwrap().torn.len(), usize::from(!left.is_empty()));
        assert_eq!(restart(&disk).unwrap().concat(), left);
        // What was cut off is not read again, whatever it is.
        assert_eq!(restart(&disk).unwrap().concat(), left);
    }
}

#[test]
fn damage_that_is_no_crash_is_refused_by_file_and_byte() {
    let mend = "bring the folder back from a copy, or give the job a new one";
    let place = |at: usize, why: &str| format!("{SEGMENT:?} is damaged at byte {at}: {why}; {mend}");
    let later = |at: usize, why: &str| {
        place(at, &format!("{why}, but a whole frame follows at byte {}: this was not a crash", at + LENGTH))
    };
    let (no_head, no_body) =
        ("what stands here is not the head of a frame", "the checksum of this frame is not that of its bytes");
    let cases: [(fn(&mut Vec<u8>), String); 7] = [
        (|data| data[PLACES[1] + INDEX] ^= 1, later(PLACES[1], no_body)),
        (|data| data[PLACES[1] + PAYLOAD] ^= 1, later(PLACES[1], no_body)),
        (|data| data[PLACES[1]] ^= 1, later(PLACES[1], no_head)),
        (|data| data[0] ^= 1, place(0, "it does not begin as a segment does")),
        (|data| data[30] ^= 1, place(30, "its head is not the one that was written")),
        (|data| data.truncate(20), place(20, "its head is not the one that was written")),
        (
            |data| data[8] = 2,
            format!(
                "{SEGMENT:?} has format 2, and this version of syncline reads up to 1: go on with the version that wrote it"
            ),
        ),
    ];
    for (edit, text) in cases {
        let (sim, disk) = three_frames(Sizes::default());
        sim.edit(Path::new(SEGMENT), edit);
        assert_eq!(refused(&disk), text);
    }
    // Behind the end that a manifest knows nothing counts; before it nothing may be missing.
    let cases: [(fn(&mut Vec<u8>), Option<String>); 5] = [
        (|data| data[PLACES[2] + INDEX] ^= 1, Some(place(PLACES[2], no_body))),
        (|data| data[PLACES[2] + PAYLOAD] ^= 1, Some(place(PLACES[2], no_body))),
        (|data| data.truncate(PLACES[3] - 1), Some(place(PLACES[3], "its last frame is cut off"))),
        (
            |data| data.truncate(PLACES[2]),
            Some(place(PLACES[2], &format!("it ends here, but {} bytes were durable", PLACES[3]))),
        ),
        (|data| data.extend_from_slice(b"anything"), None),
    ];
    for (edit, text) in cases {
        let (sim, disk) = three_frames(Sizes::default());
        restart(&disk).unwrap();
        sim.edit(Path::new(SEGMENT), edit);
        match text {
            Some(text) => assert_eq!(refused(&disk), text),
            None => assert_eq!(restart(&disk).unwrap().concat(), "abc"),
        }
    }
    let (_, disk) = three_frames(Sizes::default());
    disk.remove(Path::new(SEGMENT)).unwrap();
    assert_eq!(refused(&disk), format!("{SEGMENT:?} is missing though the newest manifest lists it; {mend}"));
}

proptest! {
    /// Whatever is done to a file: a start refuses it by name, or finds a state that was there.
    #[test]
    fn any_change_of_a_file_is_named_or_finds_an_earlier_state(
        small: bool, restarted: bool, which: usize, at: usize, bit in 0u32..8, cut: bool, junk in prop::option::of(prop::collection::vec(any::<u8>(), 0..99)),
    ) {
        let (sim, disk) = three_frames(if small { Sizes { segment: 100, ..SMALL } } else { Sizes::default() });
        if restarted {
            restart(&disk).unwrap();
        }
        let paths: Vec<PathBuf> = sim.paths(Path::new(FOLDER));
        let path = &paths[which % paths.len()];
        sim.edit(path, |data| match junk {
            Some(junk) => *data = junk,
            None if cut => data.truncate(at % data.len()),
            None => {
                let at = at % data.len();
                data[at] ^= 1 << bit;
            }
        });
        match restart(&disk) {
            Ok(items) => prop_assert!(["", "a", "ab", "abc"].contains(&items.concat().as_str())),
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Store);
                prop_assert!(error.to_string().contains(FOLDER), "{}", error);
            }
        }
    }
}

#[test]
fn more_taken_away_than_there_was_is_refused_by_collection() {
    let (_, disk) = three_frames(SMALL);
    let mut stores = start(&disk, Path::new(FOLDER), 1, false, SMALL).unwrap();
    let mut wrong = frame(30, 40, "nobody");
    wrong.changes[0].updates[0].diff = -1;
    stores[0].append(&wrong).unwrap();
    drop(stores);
    assert!(refused(&disk).starts_with("collection \"items\" has an item, "));
}

#[test]
fn another_job_and_other_settings_are_refused() {
    let (_, disk) = three_frames(SMALL);
    let try_begin = |begin: &Begin| {
        let mut store = store(&disk, Path::new(FOLDER), 0, SMALL);
        store.claim(false)?;
        store.begin(begin)?;
        assert_eq!(items(&mut store).concat(), "abc");
        Ok::<_, Error>(())
    };
    let mut other = begin(1);
    other.identity.job = "other".to_owned();
    assert_eq!(try_begin(&other).unwrap_err().kind(), ErrorKind::Config);
    let mut changed = begin(1);
    changed.identity.settings[0].1 = "name".to_owned();
    let error = try_begin(&changed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().ends_with("\n  changed  key  \"id\" -> \"name\""), "{error}");
    changed.accept_changes = true;
    try_begin(&changed).unwrap();
    changed.accept_changes = false;
    try_begin(&changed).unwrap();
}

#[test]
fn a_folder_that_is_not_shared_is_noticed() {
    let here = tempfile::tempdir().unwrap();
    let there = tempfile::tempdir().unwrap();
    let mut first = store(&local(), here.path(), 0, SMALL);
    let claim = first.claim(false).unwrap();
    first.begin(&begin(2)).unwrap();
    let mut second = store(&local(), there.path(), 1, SMALL);
    let error = second.join(claim).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().starts_with("the folder is not shared between the processes"), "{error}");
    // A store of the same job on the other machine is another one, though its runs have the same numbers.
    start(&local(), there.path(), 2, false, SMALL).unwrap();
    assert_eq!(store(&local(), there.path(), 1, SMALL).join(claim).unwrap_err().kind(), ErrorKind::Config);
    assert_eq!(store(&local(), here.path(), 2, SMALL).join(claim).unwrap_err().kind(), ErrorKind::Config);
    store(&local(), here.path(), 1, SMALL).join(claim).unwrap();
}

#[test]
fn calls_out_of_order_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = store(&local(), folder.path(), 0, SMALL);
    assert_eq!(store.begin(&begin(1)).unwrap_err().to_string(), "the store was used before a claim");
    assert_eq!(store.load().unwrap_err().to_string(), "the store was used before begin or join");
    assert_eq!(store.append(&frame(0, 1, "a")).unwrap_err().kind(), ErrorKind::Store);
    assert_eq!(inspect(folder.path().into(), local()).err().unwrap().kind(), ErrorKind::NotFound);
    store.claim(false).unwrap();
    store.begin(&begin(1)).unwrap();
    store.append(&frame(5, 9, "a")).unwrap();
    let error = store.append(&frame(8, 12, "b")).unwrap_err();
    assert!(error.to_string().starts_with("frame [8, 12) does not follow on what is durable below 9"), "{error}");
}

/// Not a test of its own: what the next one runs as another process.
#[test]
fn holds_a_folder_for_another_test() {
    let Some(folder) = std::env::var_os("SYNCLINE_TEST_HOLD") else { return };
    let mut stores = start(&local(), Path::new(&folder), 1, false, SMALL).unwrap();
    stores[0].append(&frame(0, 10, "a")).unwrap();
    std::fs::write(Path::new(&folder).join("ready"), "").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_live_process_is_refused_and_a_killed_one_is_followed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let name = format!("{}::holds_a_folder_for_another_test", module_path!().split_once("::").unwrap().1);
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name])
        .env("SYNCLINE_TEST_HOLD", folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !folder.path().join("ready").exists() {
        assert!(holder.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let error = store(&local(), folder.path(), 0, SMALL).claim(false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let text = format!(
        "folder {:?} is held by run 1, process {} on host {host:?}, which is alive: stop it, or take the folder from it with \
         --take_over",
        folder.path(),
        holder.id()
    );
    assert_eq!(error.to_string(), text);
    holder.kill().unwrap();
    holder.wait().unwrap();
    let mut stores = start(&local(), folder.path(), 1, false, SMALL).unwrap();
    assert_eq!(items(&mut stores[0]), ["a"]);
}

#[test]
fn who_is_taken_over_is_fenced() {
    let folder = tempfile::tempdir().unwrap();
    let mut old = start(&local(), folder.path(), 2, false, SMALL).unwrap();
    for store in &mut old {
        store.append(&frame(0, 10, "a")).unwrap();
    }
    let mut new = start(&local(), folder.path(), 1, true, SMALL).unwrap();
    assert_eq!(items(&mut new[0]), ["a", "a"]);
    for store in &mut old {
        let error = store.append(&frame(10, 20, "late")).unwrap_err();
        let text = format!("run 1 is fenced by run 2 in folder {:?}", folder.path());
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Fenced, text));
    }
    drop(new);
    let mut stores = start(&local(), folder.path(), 1, false, SMALL).unwrap();
    assert_eq!(items(&mut stores[0]), ["a", "a"]);
}

#[test]
fn nothing_is_compacted_before_all_workers_have_read_it() {
    let (_, disk) = three_frames(SMALL);
    let mut stores = start(&disk, Path::new(FOLDER), 2, false, SMALL).unwrap();
    // The first of these says what was published by the run before, which says nothing about the second worker.
    for (lower, published) in [(30, 30), (40, 30)] {
        stores[0].append(&Frame { published, ..frame(lower, lower + 10, "d") }).unwrap();
        assert!(!stores[0].compactor().unwrap().run().unwrap());
    }
    assert_eq!(items(&mut stores[1]).concat(), "abc");
    stores[1].append(&frame(30, 40, "e")).unwrap();
    stores[0].append(&Frame { published: 40, ..frame(50, 60, "d") }).unwrap();
    assert!(stores[0].compactor().unwrap().run().unwrap());
    drop(stores);
    assert_eq!(restart(&disk).unwrap().concat(), "abcde");
}

#[test]
fn a_log_that_is_all_in_the_base_is_not_taken_for_one_that_never_was() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let mut stores = start(&disk, Path::new(FOLDER), 2, false, SMALL).unwrap();
    stores[0].append(&frame(0, 10, "a")).unwrap();
    stores[1].append(&frame(0, 10, "b")).unwrap();
    stores[0].append(&Frame { published: 10, ..frame(10, 20, "c") }).unwrap();
    stores[1].roll().unwrap();
    assert!(stores[0].compactor().unwrap().run().unwrap());
    drop(stores);
    assert_eq!(restart(&disk).unwrap().concat(), "ab");
}

#[test]
fn compaction_runs_beside_appends_and_keeps_little() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = Sizes { segment: 1_000, slack: 5_000, ..SMALL };
    let mut stores = start(&local(), folder.path(), 1, false, sizes).unwrap();
    for round in 0..2_000 {
        let mut frame = frame(round * 10, round * 10 + 10, "a");
        frame.published = round * 10;
        if round % 2 == 1 {
            frame.changes[0].updates[0].diff = -1;
        }
        stores[0].append(&frame).unwrap();
        stores[0].compact().unwrap();
    }
    drop(stores);
    let inspection = inspect(folder.path().into(), local()).unwrap();
    assert!(inspection.segments.iter().any(|segment| segment.slot.is_none()), "there is no base");
    let mut stores = start(&local(), folder.path(), 1, false, sizes).unwrap();
    assert_eq!((items(&mut stores[0]).len(), stores[0].load().unwrap().upper), (0, 20_000));
    let num_files = std::fs::read_dir(folder.path().join("segments")).unwrap().count();
    assert!(num_files < 120, "{num_files} files of {}", 2_000 * 50 / 1_000);
}

#[test]
fn a_large_base_stays_until_a_part_of_it_is_gone() {
    let disk = local();
    let folder = tempfile::tempdir().unwrap();
    let sizes = Sizes { segment: 4_000, slack: 2_000, ..SMALL };
    let mut stores = start(&disk, folder.path(), 1, false, sizes).unwrap();
    let bases = || -> Vec<String> {
        let names = disk.list(&folder.path().join("segments")).unwrap();
        names.into_iter().filter(|name| name.contains("base")).collect()
    };
    let name = |number: u64| format!("{number:040}");
    let mut round = 0;
    // Appends a frame for each item that is added, or removed, until its log is in a base.
    let mut compact = |items: std::ops::Range<u64>, diff: i64| {
        for number in items {
            let mut frame = Frame { published: round * 10, ..frame(round * 10, round * 10 + 10, &name(number)) };
            let update = &mut frame.changes[0].updates[0];
            update.diff = diff;
            if diff < 0 {
                update.bytes = Bytes::new();
            }
            stores[0].append(&frame).unwrap();
            round += 1;
        }
        loop {
            // Frames without anything, until there is enough.
            for _ in 0..50 {
                let (lower, upper) = (round * 10, round * 10 + 10);
                stores[0].append(&Frame { lower, upper, published: lower, ..Frame::default() }).unwrap();
                round += 1;
            }
            stores[0].roll().unwrap();
            if stores[0].compactor().unwrap().run().unwrap() {
                break;
            }
            assert!(round < 10_000);
        }
        bases()
    };
    let first = compact(0..400, 1);
    assert!(first.len() > 2);
    let large = &first[..first.len() - 1];
    let second = compact(0..60, -1);
    assert!(large.iter().all(|base| second.contains(base)), "{first:?} {second:?}");
    let third = compact(60..160, -1);
    assert!(large.iter().all(|base| third.contains(base)), "there were not so many removals in bases yet: {third:?}");
    let fourth = compact(400..460, 1);
    assert!(first.iter().all(|base| !fourth.contains(base)), "{first:?} {fourth:?}");
    drop(stores);
    let mut stores = start(&disk, folder.path(), 1, false, sizes).unwrap();
    assert_eq!(items(&mut stores[0]), (160..460).map(name).collect::<Vec<_>>());
}
