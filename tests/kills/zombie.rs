//! Runs that are stopped in the middle, are taken over by another one, and wake up: they can neither append nor publish what was
//! not durable when they were taken over; and they end by themselves and say why.
//!
//! Would catch: an old run whose frames or compaction are taken for those of the new one, that removes what the new one needs, that
//! publishes what is in no checkpoint, that cuts or tears what the new one has published, or that lives on.
//!
//! `SYNCLINE_STOPPED` is how many seconds they stay stopped at least (default 0: until the new run has published), `SYNCLINE_ZOMBIES`
//! how many are stopped at random moments (default 3), `SYNCLINE_SEED` where the dice begin.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use syncline::checkpoint::{LocalDisk, inspect};

use super::{DEADLINE, Dice, Outputs, Plan, Scene, compare, make_data, number, undisturbed};

/// Where runs are stopped. The first two are inside compaction.
const POINTS: [&str; 6] = [
    "checkpoint.base_written",
    "checkpoint.replaced",
    "checkpoint.rolled",
    "checkpoint.appended:10",
    "checkpoint.synced:10",
    "publish.records:4",
];

/// Into so many parts the topics are cut, which come one after the other.
const PARTS: usize = 300;

/// Topics that grow, up to a part at a time.
struct Feed {
    folder: PathBuf,
    upto: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    fn start(data: &Path, folder: PathBuf) -> Self {
        fs::create_dir(&folder).unwrap();
        let mut files = vec![];
        for entry in fs::read_dir(data).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                let text = fs::read(&path).unwrap();
                let lines: Vec<Vec<u8>> = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
                let grows = folder.join(path.file_name().unwrap());
                files.push((lines, OpenOptions::new().create_new(true).append(true).open(grows).unwrap()));
            }
        }
        assert_eq!(files.len(), 6, "two topics of three splits");
        let upto = Arc::new(AtomicUsize::new(0));
        let allowed = Arc::clone(&upto);
        let thread = std::thread::spawn(move || {
            let mut part = 0;
            while part < PARTS {
                if part < allowed.load(Ordering::SeqCst) {
                    for (lines, file) in &mut files {
                        let at = |part: usize| lines.len() * part / PARTS;
                        file.write_all(&lines[at(part)..at(part + 1)].concat()).unwrap();
                    }
                    part += 1;
                }
                std::thread::sleep(Duration::from_millis(5)); // so that it is a stream, not a backlog
            }
        });
        Feed { folder, upto, thread: Some(thread) }
    }

    /// Lets so many hundredths come.
    fn allow(&self, hundredths: usize) {
        self.upto.fetch_max(PARTS * hundredths / 100, Ordering::SeqCst);
    }

    /// Lets one part more come, if that leaves enough for later.
    fn trickle(&self) {
        let _ = self
            .upto
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |upto| (upto < PARTS * 8 / 10).then_some(upto + 1));
    }

    fn finish(&mut self) {
        self.allow(100);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            self.finish();
        }
    }
}

/// Processes that are killed if they still run at the end.
struct Run(Vec<Child>);

impl Run {
    fn signal(&self, signal: Signal) {
        for child in &self.0 {
            kill_process(Pid::from_child(child), signal).unwrap();
        }
    }

    fn has_stopped(&self, process: usize) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(Pid::from_child(&self.0[process])), options).unwrap();
        status.is_some_and(|status| status.stopped())
    }

    fn has_ended(&mut self) -> bool {
        self.0.iter_mut().any(|child| child.try_wait().unwrap().is_some())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill(); // it may have ended
            let _ = child.wait();
        }
    }
}

impl Scene {
    fn until(&self, what: &str, mut reached: impl FnMut() -> bool) {
        let start = Instant::now();
        while !reached() {
            assert!(start.elapsed() < DEADLINE, "not reached: {what}: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The length of every file of output.
    fn lengths(&self) -> BTreeMap<PathBuf, u64> {
        let entries = fs::read_dir(self.path("out")).into_iter().flatten().map(Result::unwrap);
        entries.map(|entry| (entry.path(), entry.metadata().unwrap().len())).collect()
    }

    /// All lines of output.
    fn lines(&self) -> BTreeSet<String> {
        self.outputs().into_iter().flat_map(|(lines, _)| lines).collect()
    }

    fn verify(&self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        let verified = command.args(["state", "verify"]).arg(self.path("state")).output().unwrap();
        let said = String::from_utf8_lossy(&verified.stdout);
        assert!(verified.status.success() && said.contains("whole: "), "{said}{}", self.said());
    }
}

/// What was in checkpoints and perhaps not published, when the folder stands still: nothing else may be published by whom it
/// belonged to.
fn outbox(state: PathBuf) -> Vec<u8> {
    let restored = inspect(state, Arc::new(LocalDisk)).and_then(|inspection| inspection.restored()).unwrap();
    restored.outbox.iter().flat_map(|pending| &pending.prepared).flat_map(|bytes| bytes.iter().copied()).collect()
}

/// How many bytes the old run has published after it woke up.
fn zombie(data: &Path, expected: &Outputs, point: Option<&str>, dice: &mut Dice, story: &str) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let mut feed = Feed::start(data, folder.path().join("live"));
    let scene = Scene::new(&feed.folder);
    let plan =
        |dice: &mut Dice| Plan { follow: true, ..scene.plan([1, 1, 2, 3][dice.below(4)], [1, 1, 2][dice.below(3)]) };

    // It is stopped while it is at work: at a point, or at any moment.
    feed.allow(if point.is_some() { 20 } else { 60 });
    let old_plan = plan(dice);
    let at = point.map(|point| (0, "SYNCLINE_STOP", point));
    let mut old = Run(scene.start("old", &old_plan, at));
    if point.is_none() {
        scene.until("it has published", || scene.lengths().values().any(|length| *length > 0));
        std::thread::sleep(Duration::from_millis(dice.below(600) as u64)); // the moment to be stopped at
    } else {
        scene.until("the point", || {
            assert!(!old.has_ended(), "{story}: {}", scene.said());
            feed.trickle(); // a slow machine makes fewer ranges of what came
            old.has_stopped(0)
        });
    }
    old.signal(Signal::STOP);
    let stopped = Instant::now();
    for process in 0..old.0.len() {
        scene.until("it has stopped", || old.has_stopped(process));
    }
    let (held, pending, seen) = (scene.lengths(), outbox(scene.path("state")), scene.lines());
    feed.allow(85);

    // Nobody gets by it who does not say so.
    if point.is_none() {
        let refused = plan(dice);
        let codes = scene.wait(scene.start("refused", &refused, None));
        assert!(codes.iter().all(|code| *code == Some(1)), "{codes:?}: {}", scene.said());
        let said = scene.said_by("refused");
        let holder = format!("is held by run 1, process {} on host ", old.0[0].id());
        assert!(said.contains(&holder) && said.contains("--take_over"), "{said}");
    }

    // Another one takes over and works.
    let new = Run(scene.start("new", &Plan { take_over: true, ..plan(dice) }, None));
    scene.until("the new run publishes what the old one has not seen", || {
        let lines = scene.lines();
        let is_new =
            |line: &&String| !seen.contains(*line) && memchr::memmem::find(&pending, line.as_bytes()).is_none();
        lines.iter().filter(is_new).count() > 100
    });
    assert_eq!(
        scene.lengths().into_iter().filter(|(path, _)| held.contains_key(path)).collect::<BTreeMap<_, _>>(),
        held
    );
    std::thread::sleep(Duration::from_secs(number("SYNCLINE_STOPPED", 0)).saturating_sub(stopped.elapsed()));

    // The old one wakes up, and ends.
    feed.allow(95);
    old.signal(Signal::CONT);
    let codes = scene.wait(std::mem::take(&mut old.0));
    assert!(codes.iter().all(|code| *code == Some(1)), "{story}: {codes:?}: {}", scene.said());
    let said = scene.said_by("old");
    assert!(said.contains("run 1 is fenced by run 2 in folder") && !said.contains("panicked"), "{story}: {said}");
    let mut repeated = 0;
    for (path, length) in &held {
        let text = fs::read(path).unwrap();
        let after = &text[*length as usize..];
        assert!(after.is_empty() || after.ends_with(b"\n"), "{path:?} has a torn line");
        for line in after.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            assert!(memchr::memmem::find(&pending, line).is_some(), "{path:?} has a line that was not durable");
        }
        repeated += after.len() as u64;
    }

    // Nothing of it is in the way of the new one.
    let before = scene.lines().len();
    feed.finish();
    scene.until("the new run goes on", || scene.lines().len() > before);
    scene.verify();
    drop(new);
    scene.complete(&scene.plan(2, 1));
    scene.verify();
    compare(expected, &scene.outputs(), || format!("{story}: {}", scene.said()));
    repeated
}

#[test]
fn a_run_that_was_stopped_and_taken_over_changes_nothing_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let data = make_data(folder.path());
    let expected = undisturbed(&data);
    let (seed, random) = (number("SYNCLINE_SEED", 1), number("SYNCLINE_ZOMBIES", 3));
    let mut dice = Dice(seed << 1 | 1);
    let moments = POINTS.map(Some).into_iter().chain((0..random).map(|_| None));
    for (index, point) in moments.enumerate() {
        let story = format!("seed {seed}, {index}: {point:?}");
        let start = Instant::now();
        let repeated = zombie(&data, &expected, point, &mut dice, &story);
        println!("{story}: {repeated} bytes repeated by the old run; {:?}", start.elapsed());
    }
}
