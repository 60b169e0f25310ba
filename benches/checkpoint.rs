//! What checkpoints cost: the job on files with and without a store, and a restart with many keys that wait.
//!
//! `cargo bench --bench checkpoint` (about 6 minutes, 6 GB of disk); `-- --smoke` checks answers on a small set.
//!
//! Both runs are processes of their own; CPU is user and system time. The store costs, for every byte that waits or is to be
//! published, one copy into the log by the system, and a little for what is remembered of each key; compaction reads the indexes of
//! frames, and of their payloads only what still lives. What would make it worse: ranges that are so long that their memory is
//! new each time.

#[path = "support/fasten_files.rs"]
mod fasten_files;
#[path = "support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fasten_files::Files;
use support::{Better, Pairs, Target, Usage, machine, median, mib, rounds};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: syncline::allocator::MiMalloc = syncline::allocator::MiMalloc;

/// Rounds that count.
const ROUNDS: usize = 5;
/// Bytes of a record that waits, about.
const RECORD_BYTES: usize = 580;
/// How long a restart may take at most.
const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    #[cfg(feature = "mimalloc")]
    syncline::allocator::tune(); // as the binary does
    let smoke = std::env::args().any(|arg| arg == "--smoke");
    println!("checkpoint: {}", machine());
    let (keys, rounds) = if smoke { (2_000, 1) } else { (1_000_000, rounds(ROUNDS)) };
    let share = on_and_off(keys, rounds);
    let restarts: &[usize] = if smoke { &[1_000] } else { &[100_000, 1_000_000] };
    let times: Vec<f64> = restarts.iter().map(|keys| restart(*keys, if smoke { 1 } else { 3 })).collect();
    if smoke {
        return ExitCode::SUCCESS;
    }
    let cost = Target { better: Better::High, must: 80.0, goal: 90.0 };
    let start = Target { better: Better::Low, must: 3.0, goal: 1.0 };
    let verdicts = [
        cost.verdict("share of the records per CPU-second that is left with checkpoints", 100.0 * share, " %"),
        start.verdict("from the start with a million waiting keys to the first joined record", times[1], " s"),
    ];
    verdicts.iter().for_each(|(line, _)| println!("{line}"));
    println!("ten times the keys take {:.1} times as long", times[1] / times[0]);
    if verdicts.iter().all(|(_, reached)| *reached) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// With checkpoints against without, in records per CPU-second.
fn on_and_off(keys: u64, rounds: usize) -> f64 {
    let files = Files::new(keys);
    let store = files.out.with_file_name("store");
    let (mut cpu, mut wall, mut peak) = (Pairs::default(), Pairs::default(), Pairs::default());
    let mut left = 0;
    let mut on = || {
        let _ = fs::remove_dir_all(&store); // of the last round, if there was one
        let usage = files.ours(&["--backendFolder", store.to_str().expect("a path that is text")]);
        left = size(&store);
        usage
    };
    for round in 0..=rounds {
        let (on, off) = if round % 2 == 0 {
            let on = on();
            (on, files.ours(&[]))
        } else {
            let off = files.ours(&[]);
            (on(), off)
        };
        if round > 0 {
            for (pairs, figure) in [
                (&mut cpu, (|usage, records| usage.per_cpu_second(records)) as fn(&Usage, u64) -> f64),
                (&mut wall, |usage, records| records as f64 / usage.wall.as_secs_f64()),
                (&mut peak, |usage, _| usage.peak_bytes as f64),
            ] {
                pairs.a.push(figure(&on, files.expected.records));
                pairs.b.push(figure(&off, files.expected.records));
            }
        }
    }
    println!("{}", cpu.line("with checkpoints against without", "records/CPU-s"));
    println!("{}", wall.line("on the wall, beside whatever else ran", "records/s"));
    println!("peak memory: {} against {}", mib(median(&peak.a) as u64), mib(median(&peak.b) as u64));
    println!("input {}, the store at the end {}", mib(size(&files.data)), mib(left));
    let _ = fs::remove_dir_all(&store);
    cpu.ratio()
}

/// Bytes of the files below a folder.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => size(&entry.path()),
            _ => entry.metadata().map_or(0, |data| data.len()),
        })
        .sum()
}

/// Seconds from the start of a process, whose store has so many waiting keys, to its first joined record: the median.
fn restart(keys: usize, rounds: usize) -> f64 {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let folder = folder.path();
    let record =
        |key: usize| format!("{{\"id\":\"org.example.group:artifact-{key}\",\"payload\":\"{key:0RECORD_BYTES$}\"}}\n");
    let make = |name: &str, keys: std::ops::Range<usize>| {
        let mut file = BufWriter::new(File::create(folder.join(name)).expect("a file"));
        keys.for_each(|key| file.write_all(record(key).as_bytes()).expect("a line"));
        file.flush().expect("the file");
    };
    make("one.jsonl", 0..keys);
    make("two.jsonl", 0..0);
    assert!(job(folder).args(["--until", "end"]).status().expect("the first run").success());
    let joined: PathBuf = folder.join("out/fasten.joined.out-w0.jsonl");
    let mut times = vec![];
    for round in 0..rounds {
        // Each round joins another key; the file is made anew with one line more, so that earlier ones are known.
        make("two.jsonl", 0..round + 1);
        let before = fs::metadata(&joined).map_or(0, |data| data.len());
        let begin = Instant::now();
        let mut child = job(folder).spawn().expect("the second run");
        while fs::metadata(&joined).map_or(0, |data| data.len()) == before {
            assert!(child.try_wait().expect("a child").is_none(), "the job has ended");
            assert!(begin.elapsed() < PATIENCE, "nothing was joined in {PATIENCE:?}");
            thread::sleep(Duration::from_millis(1));
        }
        times.push(begin.elapsed().as_secs_f64());
        child.kill().expect("it is killed");
        child.wait().expect("it has ended");
    }
    let store = size(&folder.join("store"));
    println!("restart with {keys} waiting keys, {} of store: {:.2} s", mib(store), median(&times));
    median(&times)
}

fn job(folder: &Path) -> Command {
    let path = |name: &str| folder.join(name).display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
    command
        .args(["sync", "--brokers", &format!("file:{}", folder.display())])
        .args(["--output_brokers", &format!("file:{}", path("out")), "--backendFolder", &path("store")])
        .args(["--topic_one", "one", "--topic_two", "two", "--topic_one_keys", "id", "--topic_two_keys", "id"])
        .args(["-o", "joined", "--window_time", "86400", "--at_end", "keep"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}
