//! The whole job on files, `syncline sync` as a process, against a hand-written timely operator with serde_json and a hash map.
//!
//! `cargo bench --bench end_to_end` (about 5 minutes, 4 GB of disk); `-- --smoke` checks answers on a small set in a second.
//!
//! Records of the FASTEN shape: 580 bytes, 1 M keys, 2 % duplicates, 5 % + 5 % unmatched, a window of 300 s. Both sides are
//! processes of their own, with the same allocator; CPU is user and system time of each. What should be fast: finding key and
//! time in the bytes of a record, waiting without a copy of more than the record, writing by splicing. What cannot be: the
//! system's part, which reads and writes every byte for both.

#[path = "../support/hand_written.rs"]
mod hand_written;
#[path = "../support/mod.rs"]
mod support;

mod peer;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use support::{Better, Pairs, Target, Usage, machine, median, mib, rounds, run_child};
use xxhash_rust::xxh3::xxh3_64;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: syncline::allocator::MiMalloc = syncline::allocator::MiMalloc;

/// Rounds that count.
const ROUNDS: usize = 5;
const WINDOW_SECONDS: u64 = 300;
const DISORDER_SECONDS: u64 = 10;
const TOPICS: [&str; 2] = ["fasten.callgraph.out", "fasten.metadata.out"];
/// The first argument of a process that is the hand-written side.
const PEER: &str = "--peer";

fn main() -> ExitCode {
    #[cfg(feature = "mimalloc")]
    syncline::allocator::tune(); // as the binary does
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(PEER) = args.first().map(String::as_str) {
        let (window, disorder) = (1000 * WINDOW_SECONDS, 1000 * DISORDER_SECONDS);
        peer::run(args[1].as_ref(), TOPICS, args[2].as_ref(), 1, window, disorder);
        return ExitCode::SUCCESS;
    }
    let smoke = args.iter().any(|arg| arg == "--smoke");
    let (keys, rounds) = if smoke { (2_000, 0) } else { (1_000_000, rounds(ROUNDS)) };
    println!("end_to_end: {}", machine());
    let bench = Bench::new(keys);
    let (mut cpu, mut peak, mut wall) = (Pairs::default(), Pairs::default(), Pairs::default());
    for round in 0..=rounds {
        let (ours, theirs) = if round % 2 == 0 {
            let ours = bench.ours();
            (ours, bench.theirs())
        } else {
            let theirs = bench.theirs();
            (bench.ours(), theirs)
        };
        if round > 0 {
            for (pairs, figure) in [
                (&mut cpu, (|usage, records| usage.per_cpu_second(records)) as fn(&Usage, u64) -> f64),
                (&mut wall, |usage, records| records as f64 / usage.wall.as_secs_f64()),
                (&mut peak, |usage, _| usage.peak_bytes as f64),
            ] {
                pairs.a.push(figure(&ours, bench.expected.records));
                pairs.b.push(figure(&theirs, bench.expected.records));
            }
        }
    }
    if smoke {
        println!("both give the {} joined and {} delayed keys", bench.expected.joined.0, bench.expected.delayed.0);
        return ExitCode::SUCCESS;
    }
    println!("{}", cpu.line("syncline against the hand-written operator", "records/CPU-s"));
    println!("{}", wall.line("on the wall, beside whatever else ran", "records/s"));
    println!("peak memory: {} against {}", mib(median(&peak.a) as u64), mib(median(&peak.b) as u64));
    let speed = Target { better: Better::High, must: 80.0, goal: 120.0 };
    let memory = Target { better: Better::Low, must: 1.5, goal: 1.0 };
    let verdicts = [
        speed.verdict("share of the hand-written operator's records per CPU-second", 100.0 * cpu.ratio(), " %"),
        memory.verdict("times the hand-written operator's peak memory", peak.ratio(), ""),
    ];
    verdicts.iter().for_each(|(line, _)| println!("{line}"));
    if verdicts.iter().all(|(_, reached)| *reached) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many keys, and a sum over their hashes.
type Keys = (u64, u64);

/// The right answer, as far as it is compared.
#[derive(Debug)]
struct Expected {
    records: u64,
    joined: Keys,
    delayed: Keys,
}

struct Bench {
    data: PathBuf,
    out: PathBuf,
    expected: Expected,
}

impl Bench {
    /// Makes the dataset, if it was not made before.
    fn new(keys: u64) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("end_to_end-{keys}"));
        let (data, out) = (folder.join("data"), folder.join("out"));
        let text = |path: &Path| path.to_str().expect("the path of the target folder is text").to_owned();
        if !data.join("expected/answer.json").exists() {
            println!("making {keys} keys in {data:?}");
            let args = ["make", "fasten", "--keys", &keys.to_string(), "--out", &text(&data)].map(str::to_owned);
            syncline::datasets::run(&args, &mut std::io::sink()).expect("the dataset can be made");
        }
        let answer = fs::read_to_string(data.join("expected/answer.json")).expect("the answer can be read");
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("the answer is JSON");
        let expected = Expected {
            records: answer["totals"]["records"].as_u64().expect("the answer counts records"),
            joined: keys_in(&data.join("expected"), "joined", "\"key\":\""),
            delayed: keys_in(&data.join("expected"), "delayed", "\"key\":\""),
        };
        Bench { data, out, expected }
    }

    fn ours(&self) -> Usage {
        let (data, out) = (self.data.display(), self.out.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        command
            .args(["sync", "--brokers", &format!("file:{data}"), "--output_brokers", &format!("file:{out}")])
            .args(["--topic_one", TOPICS[0], "--topic_two", TOPICS[1], "--name_one", "one", "--name_two", "two"])
            .args(["--topic_one_keys", "input.input.groupId,input.input.artifactId,input.input.version"])
            .arg("--topic_two_keys")
            .arg("input.input.input.groupId,input.input.input.artifactId,input.input.input.version")
            .args(["-o", "joined", "--delay_topic", "delayed", "--enable_delay", "true"])
            .args(["--window_time", &WINDOW_SECONDS.to_string(), "--timestamp_field", "timestamp"])
            .args(["--clock", "event", "--max_disorder", &format!("{DISORDER_SECONDS}s"), "--until", "end"]);
        self.measure(command, ["fasten.joined.out", "fasten.delayed.out"])
    }

    fn theirs(&self) -> Usage {
        let mut command = Command::new(std::env::current_exe().expect("the bench has a path"));
        command.arg(PEER).arg(&self.data).arg(&self.out);
        self.measure(command, ["joined", "delayed"])
    }

    /// Runs one side, and compares what it has written.
    fn measure(&self, mut command: Command, outputs: [&str; 2]) -> Usage {
        if self.out.exists() {
            fs::remove_dir_all(&self.out).expect("the old output can be removed");
        }
        fs::create_dir_all(&self.out).expect("the folder of the output can be made");
        let (status, usage) = run_child(command.stdout(Stdio::null())).expect("the process starts");
        assert!(status.success(), "{command:?} ends with {status}");
        let answer = outputs.map(|name| keys_in(&self.out, name, "{\"key\":\""));
        let Expected { joined, delayed, .. } = self.expected;
        assert_eq!(answer, [joined, delayed], "the answer of {command:?} is wrong");
        fs::remove_dir_all(&self.out).expect("the output can be removed");
        usage
    }
}

/// The keys of the files `NAME*.jsonl` of a folder: each line has one behind the first `mark`.
fn keys_in(folder: &Path, name: &str, mark: &str) -> Keys {
    let mut keys = (0, 0u64);
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let entry = entry.expect("the folder can be read");
        if !entry.file_name().to_str().is_some_and(|file| file.starts_with(name) && file.ends_with(".jsonl")) {
            continue;
        }
        let mut lines = BufReader::with_capacity(1 << 20, File::open(entry.path()).expect("the file can be read"));
        let mut line = vec![];
        while lines.read_until(b'\n', &mut line).expect("the file can be read") > 0 {
            let start = memchr::memmem::find(&line, mark.as_bytes()).expect("a line has a key") + mark.len();
            let end = start + memchr::memchr(b'"', &line[start..]).expect("a key ends");
            keys = (keys.0 + 1, keys.1.wrapping_add(xxh3_64(&line[start..end])));
            line.clear();
        }
    }
    keys
}
