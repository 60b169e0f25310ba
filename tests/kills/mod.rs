//! Processes of a job with a store that are killed, at named points and at random moments, and started again with other numbers of
//! workers and processes: nothing is lost, and nothing is made up.
//!
//! Would catch: an output that is published and in no checkpoint, an offset that is ahead of the state beside it, a cut that
//! differs between workers, state that does not move with the number of workers, an outbox that nobody publishes.
//!
//! Outputs in a broker are in `kafka.rs`, runs that are stopped and wake up after another one has taken over in `zombie.rs`.
//!
//! `SYNCLINE_KILLS` is the number of kills (default 150), `SYNCLINE_SEED` where the dice begin.

#[cfg(feature = "kafka")]
mod kafka;
mod zombie;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
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
const POINTS: [&str; 18] = [
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
    "publish.records",
    "publish.done",
];

const OUTPUTS: [&str; 3] = ["joined", "delay", "dead"];

/// What a child is told.
const CHILD: &str = "SYNCLINE_CHILD";
/// Its arguments for timely.
const TIMELY: &str = "SYNCLINE_TIMELY";

/// Not a test: the job that is killed, in a process of its own. Small epochs, segments and bases, so that everything happens often.
#[test]
#[ignore = "is run by the other tests of this file, in processes of its own"]
fn child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let result = job(&serde_json::from_str(&told).unwrap());
    if let Err(error) = &result {
        eprintln!("{}", error.report());
    }
    std::process::exit(i32::from(result.is_err()));
}

/// A run of the job.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    /// The folder with the topics.
    data: PathBuf,
    /// The URL of the outputs, and what comes before their names.
    out: String,
    prefix: String,
    /// The folder of checkpoints, if there are any.
    store: Option<PathBuf>,
    workers: usize,
    processes: usize,
    /// Read on for ever.
    follow: bool,
    take_over: bool,
}

fn job(plan: &Plan) -> Result<()> {
    let options = BrokerOptions::default();
    let topics = [
        ("fasten.callgraph.out", ["input.input.groupId", "input.input.artifactId", "input.input.version"]),
        (
            "fasten.metadata.out",
            ["input.input.input.groupId", "input.input.input.artifactId", "input.input.input.version"],
        ),
    ];
    let until = if plan.follow { Until::Never } else { Until::End };
    let mut sides = vec![];
    for (topic, keys) in topics {
        let source = broker::source(&format!("file:{}", plan.data.display()), topic, &options)?;
        let keys = keys.iter().map(|key| key.parse().unwrap()).collect();
        let codec = key_codec(keys, Some("timestamp".parse().unwrap()), KeyTypes::Typed)?;
        sides.push((topic.to_owned(), Input::new(topic, source, codec).until(until).on_bad(OnBad::DeadLetter)));
    }
    let sink = broker::sink(&plan.out, &options)?;
    let [joined, delay, dead] = OUTPUTS.map(|output| format!("{}{output}", plan.prefix));
    let outputs = TopicOutputs { sink, joined, delay: Some(delay), dead_letter: Some(dead) };
    let hour = Duration::from_secs(3600); // a topic that is silent for a moment decides nothing
    let mut job = Job::new("kills")
        .connect_timeout(Duration::from_secs(5)) // one may be killed before the others know it
        .time_mode(TimeMode::Event { max_disorder: Duration::from_secs(5), idle_after: hour })
        .pacing(Pacing { max_records: 128, ..Pacing::default() })
        .take_over(plan.take_over);
    if let Some(store) = plan.store.clone() {
        job = job.store(Arc::new(move |slot| {
            let store = FolderStore::new(store.clone(), Arc::new(LocalDisk), slot);
            Box::new(store.with_segment_bytes(64 << 10).with_slack_bytes(128 << 10)) as Box<dyn Store>
        }));
    }
    let timely = std::env::var(TIMELY).unwrap();
    let timely = timely::Config::from_args(timely.split_whitespace().map(str::to_owned)).unwrap();
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

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A run with a store, into files.
    fn plan(&self, workers: usize, processes: usize) -> Plan {
        Plan {
            data: self.data.clone(),
            out: format!("file:{}", self.path("out").display()),
            prefix: String::new(),
            store: Some(self.path("state")),
            workers,
            processes,
            follow: false,
            take_over: false,
        }
    }

    /// Starts the processes of a run, whose words go into files of this name. One of them has a variable set: it dies or stops
    /// at a point.
    fn start(&self, name: &str, plan: &Plan, point: Option<(usize, &str, &str)>) -> Vec<Child> {
        let hosts = self.path(&format!("hosts-{name}"));
        let ports = crate::cluster::free_ports(plan.processes);
        fs::write(&hosts, ports.iter().map(|port| format!("127.0.0.1:{port}\n")).collect::<String>()).unwrap();
        let start = |process: usize| {
            let timely = match plan.processes {
                1 => format!("-w {}", plan.workers),
                _ => format!("-w {} -n {} -p {process} -h {}", plan.workers, plan.processes, hosts.display()),
            };
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "kills::child", "--include-ignored", "--nocapture"]);
            command.env(CHILD, serde_json::to_string(plan).unwrap()).env(TIMELY, timely);
            command.env_remove("SYNCLINE_CRASH").env_remove("SYNCLINE_STOP");
            if let Some((_, variable, point)) = point.filter(|(chosen, ..)| *chosen == process) {
                command.env(variable, point);
            }
            let said = fs::File::create(self.path(&format!("said-{name}-{process}"))).unwrap();
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).spawn().unwrap()
        };
        (0..plan.processes).map(start).collect()
    }

    /// Runs to the end.
    fn complete(&self, plan: &Plan) {
        let codes = self.wait(self.start("complete", plan, None));
        assert!(codes.iter().all(|code| *code == Some(0)), "{codes:?}: {}", self.said());
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

    /// What all runs have said, the last one of each name.
    fn said(&self) -> String {
        self.said_by("")
    }

    fn said_by(&self, name: &str) -> String {
        let names =
            fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|file| file.starts_with(&format!("said-{name}"))).collect();
        names.sort();
        names.iter().map(|file| format!("{file}: {}\n", fs::read_to_string(self.path(file)).unwrap())).collect()
    }

    /// The lines of each output, and how many there are, with those that are repeated.
    fn outputs(&self) -> Outputs {
        OUTPUTS.map(|output| {
            let (mut lines, mut count) = (BTreeSet::new(), 0);
            for entry in fs::read_dir(self.path("out")).unwrap() {
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

/// Makes the topics below this folder. Nothing in them depends on how files interleave: neither duplicates nor late records.
fn make_data(folder: &Path) -> PathBuf {
    let data = folder.join("fasten");
    let make = "make fasten --keys 3000 --seed 7 --partitions 3 --payload 60 --rate 10 --window 60s --gap 20s --disorder 5s \
                --duplicates 0 --late 0 --bad 0.02 --ambiguous 0.02 --out";
    let mut args: Vec<String> = make.split_whitespace().map(str::to_owned).collect();
    args.push(data.display().to_string());
    syncline::datasets::run(&args, &mut vec![]).unwrap();
    data
}

/// The lines of each output, and how many there are.
type Outputs = [(BTreeSet<String>, usize); 3];

/// What a run gives that nobody disturbs.
fn undisturbed(data: &Path) -> Outputs {
    let scene = Scene::new(data);
    scene.complete(&Plan { store: None, ..scene.plan(1, 1) });
    let expected = scene.outputs();
    assert!(expected.iter().all(|(lines, count)| lines.len() > 50 && lines.len() == *count));
    expected
}

/// Checks that nothing is lost and nothing made up; how many lines are repeated.
fn compare(expected: &Outputs, found: &Outputs, story: impl Fn() -> String) -> usize {
    let mut repeated = 0;
    for ((output, (lines, _)), (found, count)) in OUTPUTS.iter().zip(expected).zip(found) {
        let (lost, made_up) = (lines.difference(found).count(), found.difference(lines).count());
        assert!(lost == 0 && made_up == 0, "{output}: {lost} lost, {made_up} made up; {}", story());
        repeated += count - found.len();
    }
    repeated
}

#[test]
fn whatever_is_killed_nothing_is_lost_and_nothing_made_up() {
    let folder = tempfile::tempdir().unwrap();
    let data = make_data(folder.path());
    let expected = undisturbed(&data);

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
            let dies = point.as_deref().map(|point| (victim, "SYNCLINE_CRASH", point));
            let mut children = scene.start("run", &scene.plan(workers, processes), dies);
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
        repeated += compare(&expected, &scene.outputs(), || format!("seed {seed}, {story:?}: {}", scene.said()));
    }
    println!(
        "{kills} kills in {runs} runs of {scenes} jobs: none lost, {repeated} outputs repeated; never at: {unused:?}"
    );
    assert!(wanted < 150 || unused.is_empty(), "points that were never reached: {unused:?}");
}
