//! Processes of a job with a store that are killed, at named points and at random moments, and started again with other numbers of
//! workers and processes: nothing is lost, and nothing is made up.
//!
//! Would catch: an output that is published and in no checkpoint, an offset that is ahead of the state beside it, a cut that
//! differs between workers, state that does not move with the number of workers, an outbox that nobody publishes.
//!
//! `SYNCLINE_KILLS` is the number of kills (default 150), `SYNCLINE_SEED` where the dice begin.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use syncline::broker::{self, BrokerOptions};
use syncline::checkpoint::{FolderStore, LocalDisk, Store};
use syncline::dataflow::Input;
use syncline::pacing::Pacing;
use syncline::reader::{OnBad, Until};
use syncline::split_time::TimeMode;
use syncline::sync::topics::{TopicOutputs, key_codec, synchronize_topics};
use syncline::sync::{KeyTypes, Options, Tally};
use syncline::{Job, Result};

const DEADLINE: Duration = Duration::from_secs(120);

/// Where a process can be told to die.
const POINTS: [&str; 17] = [
    "checkpoint.claim_created",
    "checkpoint.claimed",
    "checkpoint.segments_created",
    "checkpoint.manifest_created",
    "checkpoint.begun",
    "start.claimed",
    "start.begun",
    "start.loaded",
    "checkpoint.appended",
    "checkpoint.synced",
    "checkpoint.durable",
    "checkpoint.segment_created",
    "checkpoint.rolled",
    "checkpoint.base_written",
    "checkpoint.replaced",
    "publish.begins",
    "publish.done",
];

const OUTPUTS: [&str; 3] = ["joined", "delay", "dead"];

/// What a child is told.
const CHILD: &str = "SYNCLINE_CHILD";

/// Not a test: the job that is killed, in a process of its own. Small epochs, segments and bases, so that everything happens often.
#[test]
#[ignore = "is run by the other tests of this file, in processes of its own"]
fn child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let told: Vec<&str> = told.split('|').collect();
    let [data, out, store, workers] = told[..] else { panic!("{told:?}") };
    let result = job(Path::new(data), Path::new(out), Path::new(store), workers);
    if let Err(error) = &result {
        eprintln!("{}", error.report());
    }
    std::process::exit(i32::from(result.is_err()));
}

fn job(data: &Path, out: &Path, store: &Path, workers: &str) -> Result<()> {
    let options = BrokerOptions::default();
    let topics = [
        ("fasten.callgraph.out", ["input.input.groupId", "input.input.artifactId", "input.input.version"]),
        (
            "fasten.metadata.out",
            ["input.input.input.groupId", "input.input.input.artifactId", "input.input.input.version"],
        ),
    ];
    let mut sides = vec![];
    for (topic, keys) in topics {
        let source = broker::source(&format!("file:{}", data.display()), topic, &options)?;
        let keys = keys.iter().map(|key| key.parse().unwrap()).collect();
        let codec = key_codec(keys, Some("timestamp".parse().unwrap()), KeyTypes::Typed)?;
        sides.push((topic.to_owned(), Input::new(topic, source, codec).until(Until::End).on_bad(OnBad::DeadLetter)));
    }
    let sink = broker::sink(&format!("file:{}", out.display()), &options)?;
    let [joined, delay, dead] = OUTPUTS.map(str::to_owned);
    let outputs = TopicOutputs { sink, joined, delay: Some(delay), dead_letter: Some(dead) };
    let mut job = Job::new("kills")
        .connect_timeout(Duration::from_secs(5)) // one may be killed before the others know it
        .time_mode(TimeMode::Event { max_disorder: Duration::from_secs(5), idle_after: Duration::from_secs(60) })
        .pacing(Pacing { max_records: 128, ..Pacing::default() });
    if !store.as_os_str().is_empty() {
        let store = store.to_owned();
        job = job.store(Arc::new(move |slot| {
            let store = FolderStore::new(store.clone(), Arc::new(LocalDisk), slot);
            Box::new(store.with_segment_bytes(64 << 10).with_slack_bytes(128 << 10)) as Box<dyn Store>
        }));
    }
    let timely = timely::Config::from_args(workers.split_whitespace().map(str::to_owned)).unwrap();
    let (window, tally) = (Options::new(2, Duration::from_secs(60)), Arc::new(Tally::default()));
    job.run(timely, move |flow| synchronize_topics(flow, &sides, &window, &outputs, &tally))
}

/// A job on a folder of its own.
struct Scene {
    data: PathBuf,
    dir: tempfile::TempDir,
}

impl Scene {
    fn new(data: &Path) -> Self {
        Scene { data: data.to_owned(), dir: tempfile::tempdir().unwrap() }
    }

    /// Starts the processes of a run; one of them dies at a point.
    fn start(&self, stored: bool, workers: usize, processes: usize, dies: Option<(usize, &str)>) -> Vec<Child> {
        let hosts = self.dir.path().join("hosts");
        let ports = crate::cluster::free_ports(processes);
        fs::write(&hosts, ports.iter().map(|port| format!("127.0.0.1:{port}\n")).collect::<String>()).unwrap();
        let store = if stored { self.dir.path().join("state") } else { PathBuf::new() };
        let start = |process: usize| {
            let workers = match processes {
                1 => format!("-w {workers}"),
                _ => format!("-w {workers} -n {processes} -p {process} -h {}", hosts.display()),
            };
            let paths = [&self.data, &self.dir.path().join("out"), &store].map(|path| path.display().to_string());
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "kills::child", "--include-ignored", "--nocapture"]);
            command.env(CHILD, format!("{}|{workers}", paths.join("|"))).env_remove("SYNCLINE_CRASH");
            if let Some((_, point)) = dies.filter(|(dies, _)| *dies == process) {
                command.env("SYNCLINE_CRASH", point);
            }
            let said = fs::File::create(self.dir.path().join(format!("said-{process}"))).unwrap();
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).spawn().unwrap()
        };
        (0..processes).map(start).collect()
    }

    /// Waits for the end of all processes; their exit codes.
    fn wait(&self, mut children: Vec<Child>) -> Vec<Option<i32>> {
        let start = Instant::now();
        loop {
            let states: Vec<_> = children.iter_mut().map(|child| child.try_wait().unwrap()).collect();
            if states.iter().all(Option::is_some) {
                return states.into_iter().map(|status| status.unwrap().code()).collect();
            }
            if start.elapsed() > DEADLINE {
                children.iter_mut().for_each(|child| child.kill().unwrap());
                panic!("the job does not end: {}", self.said());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn said(&self) -> String {
        let said = |process| fs::read_to_string(self.dir.path().join(format!("said-{process}"))).unwrap_or_default();
        (0..3).map(said).collect()
    }

    /// The lines of each output, and how many there are, with those that are repeated.
    fn outputs(&self) -> [(BTreeSet<String>, usize); 3] {
        OUTPUTS.map(|output| {
            let (mut lines, mut count) = (BTreeSet::new(), 0);
            for entry in fs::read_dir(self.dir.path().join("out")).unwrap() {
                let path = entry.unwrap().path();
                if path.file_name().unwrap().to_str().unwrap().starts_with(output) {
                    for line in fs::read_to_string(path).unwrap().lines() {
                        lines.insert(line.to_owned());
                        count += 1;
                    }
                }
            }
            (lines, count)
        })
    }
}

/// Dice.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13; // xorshift64
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}=\"{text}\"")))
}

#[test]
fn whatever_is_killed_nothing_is_lost_and_nothing_made_up() {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().join("fasten");
    let make = "make fasten --keys 3000 --seed 7 --partitions 3 --payload 60 --rate 10 --window 60s --gap 20s --disorder 5s \
                --duplicates 0 --late 0 --bad 0.02 --ambiguous 0.02 --out";
    let mut args: Vec<String> = make.split_whitespace().map(str::to_owned).collect();
    args.push(data.display().to_string());
    syncline::datasets::run(&args, &mut vec![]).unwrap();

    let undisturbed = Scene::new(&data);
    assert_eq!(undisturbed.wait(undisturbed.start(false, 1, 1, None)), [Some(0)], "{}", undisturbed.said());
    let expected = undisturbed.outputs();
    assert!(expected.iter().all(|(lines, count)| lines.len() > 50 && lines.len() == *count));

    let (wanted, seed) = (number("SYNCLINE_KILLS", 150), number("SYNCLINE_SEED", 1));
    let mut dice = Dice(seed << 1 | 1);
    let (mut kills, mut runs, mut repeated, mut scenes) = (0, 0, 0, 0);
    let mut unused: BTreeSet<&str> = POINTS.into();
    while kills < wanted {
        let scene = Scene::new(&data);
        scenes += 1;
        let mut story = vec![]; // how it came, if it fails
        for last in (0..8).map(|run| run == 7) {
            let (workers, processes) = ([1, 1, 2, 3][dice.below(4)], [1, 1, 1, 1, 2, 3][dice.below(6)]);
            let victim = dice.below(processes);
            let point = match dice.below(3) {
                0 => None,
                1 => unused.first().copied(), // every point comes, in its turn
                _ => Some(POINTS[dice.below(POINTS.len())]),
            }
            .filter(|_| !last);
            let point = point.map(|point| match point.starts_with("start") || point.contains("claim") {
                true => point.to_owned(), // it comes once in a run
                false => format!("{point}:{}", 1 + dice.below(3) * dice.below(2)),
            });
            story.push(format!("{processes} x {workers} {victim} {point:?}"));
            let dies = point.as_deref().map(|point| (victim, point));
            let mut children = scene.start(true, workers, processes, dies);
            runs += 1;
            let mut shot = false;
            if point.is_none() && !last {
                std::thread::sleep(Duration::from_millis(5 + dice.below(200) as u64)); // the moment to be killed at
                shot = children[victim].try_wait().unwrap().is_none();
                let _ = children[victim].kill(); // it may have ended meanwhile
            }
            let codes = scene.wait(children);
            if codes[victim].is_none() {
                kills += 1;
                let name = point.as_deref().and_then(|point| point.split(':').next()).unwrap_or_default();
                unused.remove(name);
            }
            let complete = codes.iter().all(|code| *code == Some(0));
            assert!(complete || shot || codes[victim].is_none(), "seed {seed}, {story:?}: {codes:?}: {}", scene.said());
            if complete {
                break;
            }
        }
        for ((output, (lines, _)), (found, count)) in OUTPUTS.iter().zip(&expected).zip(scene.outputs()) {
            let (lost, made_up) = (lines.difference(&found).count(), found.difference(lines).count());
            assert!(
                lost == 0 && made_up == 0,
                "{output}: {lost} lost, {made_up} made up; seed {seed}, {story:?}: {}",
                scene.said()
            );
            repeated += count - found.len();
        }
    }
    println!(
        "{kills} kills in {runs} runs of {scenes} jobs: none lost, {repeated} outputs repeated; never at: {unused:?}"
    );
    assert!(wanted < 150 || unused.is_empty(), "points that were never reached: {unused:?}");
}
