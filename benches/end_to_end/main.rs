//! The whole job on files, `syncline sync` as a process, against a hand-written timely operator with serde_json and a hash map.
//!
//! `cargo bench --bench end_to_end` (about 5 minutes, 4 GB of disk); `-- --smoke` checks answers on a small set in a second.
//!
//! Records of the FASTEN shape: 580 bytes, 1 M keys, 2 % duplicates, 5 % + 5 % unmatched, a window of 300 s. Both sides are
//! processes of their own, with the same allocator; CPU is user and system time of each. What should be fast: finding key and
//! time in the bytes of a record, waiting without a copy of more than the record, writing by splicing. What cannot be: the
//! system's part, which reads and writes every byte for both.

#[path = "../support/fasten_files.rs"]
mod fasten_files;
#[path = "../support/hand_written.rs"]
mod hand_written;
#[path = "../support/mod.rs"]
mod support;

mod peer;

use std::process::{Command, ExitCode};

use fasten_files::{DISORDER_SECONDS, Files, TOPICS, WINDOW_SECONDS};
use support::{Better, Pairs, Target, Usage, machine, median, mib, rounds};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: syncline::allocator::MiMalloc = syncline::allocator::MiMalloc;

/// Rounds that count.
const ROUNDS: usize = 5;
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
    let bench = Files::new(keys);
    let (mut cpu, mut peak, mut wall) = (Pairs::default(), Pairs::default(), Pairs::default());
    for round in 0..=rounds {
        let (ours, theirs) = if round % 2 == 0 {
            let ours = bench.ours(&[]);
            (ours, theirs(&bench))
        } else {
            let theirs = theirs(&bench);
            (bench.ours(&[]), theirs)
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

/// Runs the hand-written side.
fn theirs(files: &Files) -> Usage {
    let mut command = Command::new(std::env::current_exe().expect("the bench has a path"));
    command.arg(PEER).arg(&files.data).arg(&files.out);
    files.measure(command, ["joined", "delayed"])
}
