//! The synchronization alone, on records that are decoded already, against a hand-written operator on a hash map.
//!
//! `cargo bench --bench join` (about 10 minutes); `-- --smoke` checks in a second that both give the same; `-- --profile` runs
//! ours alone, for a profiler, and `-- --only 10k` (or `1k`) the first configuration (or the second).
//!
//! Both run in the same harness and get the same records; only their own CPU time counts. The operator sorts what a hash map
//! looks up in random order, and pays with merges of batches. What should not be fast: small epochs, where timely's and the
//! trace's work for each epoch shows. Many waiting keys cost cache misses, the map more than the trace.

#[path = "../support/mod.rs"]
mod support;

mod load;
mod map;

use std::process::ExitCode;

use load::{Kind, Load, Ran, run};
use support::{Better, Pairs, Target, machine, median, rounds, short};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: syncline::allocator::MiMalloc = syncline::allocator::MiMalloc;

/// Rounds that count.
const ROUNDS: usize = 5;

const BASE: Load = Load { sides: 2, epoch: 10_000, records: 2_500_000, live: 1_000_000, workers: 1, in_flight: 1 };

fn main() -> ExitCode {
    #[cfg(feature = "mimalloc")]
    syncline::allocator::tune(); // as the binary does
    if std::env::args().any(|arg| arg == "--smoke") {
        smoke();
        return ExitCode::SUCCESS;
    }
    if std::env::args().any(|arg| arg == "--profile") {
        let ran = run(Kind::Ours, Load { live: 100_000, ..BASE });
        println!("ours alone: {} records/CPU-s", short(ran.per_cpu_second()));
        return ExitCode::SUCCESS;
    }
    println!("join: {}", machine());
    if let Some(only) = std::env::args().skip_while(|arg| arg != "--only").nth(1) {
        let load = if only == "1k" { Load { epoch: 1_000, records: 1_250_000, ..BASE } } else { BASE };
        let mut rates = Pairs::default();
        for round in 0..rounds(ROUNDS) {
            let (ours, map) = both(round, load);
            rates.a.push(ours.per_cpu_second());
            rates.b.push(map.per_cpu_second());
        }
        println!("{}", rates.line("ours against the map", "records/CPU-s"));
        return ExitCode::SUCCESS;
    }
    let configurations = [
        ("10k-record epochs", BASE),
        ("1k-record epochs", Load { epoch: 1_000, records: 1_250_000, ..BASE }),
        ("3 sides", Load { sides: 3, ..BASE }),
        ("10^5 waiting keys", Load { live: 100_000, ..BASE }),
    ];
    let mut rates = vec![Pairs::default(); configurations.len()];
    let mut workers = (Pairs::default(), Pairs::default());
    for round in 0..=rounds(ROUNDS) {
        for (rates, (name, load)) in rates.iter_mut().zip(configurations) {
            let (ours, map) = both(round, load);
            assert_eq!(ours.sums, map.sums, "{name}: the operators differ");
            if round > 0 {
                rates.a.push(ours.per_cpu_second());
                rates.b.push(map.per_cpu_second());
            }
        }
        let load = Load { in_flight: 2, ..BASE };
        let (one, two) = alternate(round, || run(Kind::Ours, load), || run(Kind::Ours, Load { workers: 2, ..load }));
        if round > 0 {
            let cost = |ran: &Ran| ran.cpu.as_secs_f64() / ran.records as f64;
            workers.0.a.push(cost(&two));
            workers.0.b.push(cost(&one));
            workers.1.a.push(one.wall.as_secs_f64() / one.records as f64);
            workers.1.b.push(two.wall.as_secs_f64() / two.records as f64);
        }
    }
    for (rates, (name, _)) in rates.iter().zip(&configurations) {
        println!("{}", rates.line(&format!("{name}, ours against the map"), "records/CPU-s"));
    }
    let lost = |of: fn(&Pairs) -> &Vec<f64>| {
        let losses: Vec<f64> = of(&rates[3]).iter().zip(of(&rates[0])).map(|(few, many)| 1.0 - many / few).collect();
        100.0 * median(&losses)
    };
    println!("10^5 to 10^6 waiting keys: ours loses {:.1} %, the map {:.1} %", lost(|r| &r.a), lost(|r| &r.b));
    println!(
        "1 to 2 workers: CPU for each record {:+.1} %, {} to {} records/s",
        100.0 * (workers.0.ratio() - 1.0),
        short(1.0 / median(&workers.1.a)),
        short(1.0 / median(&workers.1.b))
    );
    let high = |must, goal| Target { better: Better::High, must, goal };
    let low = |must, goal| Target { better: Better::Low, must, goal };
    let verdicts = [
        high(65.0, 90.0).verdict("share of the map's speed, 10k-record epochs", 100.0 * rates[0].ratio(), " %"),
        high(40.0, 65.0).verdict("share of the map's speed, 1k-record epochs", 100.0 * rates[1].ratio(), " %"),
        low(35.0, 15.0).verdict("loss from 10^5 to 10^6 waiting keys", lost(|r| &r.a), " %"),
        low(20.0, 20.0).verdict("growth of CPU from 1 to 2 workers", 100.0 * (workers.0.ratio() - 1.0), " %"),
        high(1.5, 1.8).verdict("times as fast on the wall with 2 workers", workers.1.ratio(), ""),
    ];
    verdicts.iter().for_each(|(line, _)| println!("{line}"));
    if verdicts.iter().all(|(_, reached)| *reached) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs two things, in an order that changes from round to round.
fn alternate<T>(round: usize, a: impl FnOnce() -> T, b: impl FnOnce() -> T) -> (T, T) {
    if round.is_multiple_of(2) {
        let a = a();
        (a, b())
    } else {
        let b = b();
        (a(), b)
    }
}

fn both(round: usize, load: Load) -> (Ran, Ran) {
    alternate(round, || run(Kind::Ours, load), || run(Kind::Map, load))
}

/// Every part of the rules is used, and both operators agree.
fn smoke() {
    for (sides, workers, in_flight) in [(2, 1, 1), (2, 2, 2), (3, 1, 2), (3, 2, 1)] {
        let load = Load { sides, epoch: 200, records: 40_000, live: 1_000, workers, in_flight };
        let (ours, map) = both(0, load);
        assert_eq!(ours.sums, map.sums, "{load:?}: the operators differ");
        let sums = ours.sums;
        let used = [sums.joined, sums.delayed, sums.duplicates, sums.overridden, sums.expired];
        assert!(used.iter().all(|count| *count > 0), "{load:?} does not use everything: {sums:?}");
        println!("{sides} sides, {workers} workers: the same {sums:?}");
    }
}
