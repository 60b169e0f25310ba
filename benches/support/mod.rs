//! What every bench needs: CPU time, peak memory, pairs of runs, medians, latencies, the machine, and verdicts.
//!
//! How to measure with it: compare two things within one process run, alternately (`paired`), and report the median of the
//! ratios, because a shared machine drifts by tens of percent within minutes while neighbours in time see the same drift.
//! Throughput is per CPU-second (`Usage::cpu`), not per second of wall time, wherever the claim is about cost. Anything about
//! peak memory runs in a child process of its own (`run_child`): an allocator gives little back.
//!
//! Linux; elsewhere peak memory and the machine line know less.

#![allow(dead_code)] // each bench uses its part
#![allow(unsafe_code)] // CPU clocks and the usage of one child: libc has no safe form of either

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// CPU time of all threads of this process so far, those that have ended included.
pub(crate) fn process_cpu() -> Duration {
    cpu_clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread so far.
pub(crate) fn thread_cpu() -> Duration {
    cpu_clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn cpu_clock(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill; the clock is one that every Unix has.
    let status = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(status, 0, "the CPU clock cannot be read");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The most memory this process ever had resident, in bytes, or since `reset_peak`.
pub(crate) fn peak_bytes() -> u64 {
    field("/proc/self/status", "VmHWM").and_then(|text| kib(&text)).unwrap_or(0)
}

/// The memory this process has resident now, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    field("/proc/self/status", "VmRSS").and_then(|text| kib(&text)).unwrap_or(0)
}

/// Lets `peak_bytes` start again from what is resident now; says whether the system allows it.
pub(crate) fn reset_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
    Some(line.trim().to_string())
}

fn kib(text: &str) -> Option<u64> {
    Some(text.strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// What a piece of work has used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Time on the wall.
    pub(crate) wall: Duration,
    /// CPU time of all threads, user and system.
    pub(crate) cpu: Duration,
    /// Peak resident memory, in bytes.
    pub(crate) peak_bytes: u64,
}

impl Usage {
    /// So many per CPU-second.
    pub(crate) fn per_cpu_second(&self, count: u64) -> f64 {
        count as f64 / self.cpu.as_secs_f64()
    }
}

/// Runs work in this process. Other threads of the process are counted too; the peak is that of the process so far where it
/// cannot be reset.
pub(crate) fn measure<T>(work: impl FnOnce() -> T) -> (T, Usage) {
    reset_peak();
    let (start, cpu) = (Instant::now(), process_cpu());
    let result = work();
    let usage = Usage { wall: start.elapsed(), cpu: process_cpu() - cpu, peak_bytes: peak_bytes() };
    (result, usage)
}

/// Runs a command to its end and says what it alone has used.
///
/// # Errors
/// If the command cannot be started or waited for.
pub(crate) fn run_child(command: &mut Command) -> io::Result<(ExitStatus, Usage)> {
    use std::os::unix::process::ExitStatusExt;

    let start = Instant::now();
    // Waited for below, by wait4: the only call that tells the usage of one child.
    let child = command.spawn()?;
    let (mut status, mut used) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    let used = loop {
        // SAFETY: the pointers are valid for writes, the child is ours and nobody else waits for it.
        let pid = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, used.as_mut_ptr()) };
        if pid > 0 {
            // SAFETY: all zeros is a valid rusage, and wait4 has filled it.
            break unsafe { used.assume_init() };
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    let time = |value: libc::timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1_000);
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    let usage = Usage {
        wall: start.elapsed(),
        cpu: time(used.ru_utime) + time(used.ru_stime),
        peak_bytes: used.ru_maxrss as u64 * unit,
    };
    Ok((ExitStatus::from_raw(status), usage))
}

/// The median; the mean of the middle two of an even number. NaN of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

/// How many rounds count: the number behind `--rounds`, for a quick look, else as many as the bench wants.
pub(crate) fn rounds(default: usize) -> usize {
    let mut args = std::env::args().skip_while(|arg| arg != "--rounds").skip(1);
    args.next().map_or(default, |number| number.parse().expect("--rounds takes a number"))
}

/// Figures of two things that were measured in turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    /// Figures of the first, by round.
    pub(crate) a: Vec<f64>,
    /// Figures of the second, by round.
    pub(crate) b: Vec<f64>,
}

/// Measures A and B in turns, `rounds` times, after one round that does not count. The order swaps with every round
/// (A B, B A, A B ...), so that neither always runs on what the other has left in the caches.
pub(crate) fn paired(rounds: usize, mut a: impl FnMut() -> f64, mut b: impl FnMut() -> f64) -> Pairs {
    let mut pairs = Pairs::default();
    for round in 0..=rounds {
        let (first, second) = if round % 2 == 0 {
            let first = a();
            (first, b())
        } else {
            let second = b();
            (a(), second)
        };
        if round > 0 {
            pairs.a.push(first);
            pairs.b.push(second);
        }
    }
    pairs
}

impl Pairs {
    /// A over B, round by round.
    pub(crate) fn ratios(&self) -> Vec<f64> {
        self.a.iter().zip(&self.b).map(|(a, b)| a / b).collect()
    }

    /// The median of the ratios A over B.
    pub(crate) fn ratio(&self) -> f64 {
        median(&self.ratios())
    }

    /// Medians and the range of the ratios, on one line.
    pub(crate) fn line(&self, name: &str, unit: &str) -> String {
        let ratios = self.ratios();
        let (least, most) = ratios.iter().fold((f64::INFINITY, 0f64), |(least, most), r| (least.min(*r), most.max(*r)));
        format!(
            "{name}: {} against {} {unit}, ratio {:.1} % ({:.1} to {:.1} in {} pairs)",
            short(median(&self.a)),
            short(median(&self.b)),
            100.0 * self.ratio(),
            100.0 * least,
            100.0 * most,
            ratios.len()
        )
    }
}

/// A number for people: 281k, 1.94M, 12.3.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 999_500.0 => format!("{:.2}M", value / 1e6),
        size if size >= 9_995.0 => format!("{:.0}k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

/// Bytes for people, in MiB.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// A histogram of latencies in microseconds, up to ten minutes, to three digits.
pub(crate) fn latencies() -> Histogram<u64> {
    // The bounds are constants that the crate accepts.
    Histogram::new_with_bounds(1, 600_000_000, 3).expect("1 us to 600 s with 3 digits are valid bounds")
}

/// Notes a latency; what is above ten minutes counts as ten minutes.
pub(crate) fn note(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.saturating_record((latency.as_micros() as u64).max(1));
}

/// The percentiles of a histogram of microseconds, on one line.
pub(crate) fn latency_line(name: &str, histogram: &Histogram<u64>) -> String {
    let mut line = format!("{name}: {} latencies in ms:", histogram.len());
    for (label, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
        // Writing to a String cannot fail.
        let _ = write!(line, " {label} {:.2}", histogram.value_at_quantile(share) as f64 / 1e3);
    }
    line
}

/// Which way a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// More is better.
    High,
    /// Less is better.
    Low,
}

/// What a figure must reach, and what it should reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Which way is better.
    pub(crate) better: Better,
    /// Without it the bench has failed.
    pub(crate) must: f64,
    /// What work on speed aims at.
    pub(crate) goal: f64,
}

impl Target {
    fn reached(&self, value: f64, limit: f64) -> bool {
        match self.better {
            Better::High => value >= limit,
            Better::Low => value <= limit,
        }
    }

    /// The verdict on a figure, on one line, and whether what it must reach is reached.
    pub(crate) fn verdict(&self, name: &str, value: f64, unit: &str) -> (String, bool) {
        let (must, goal) = (self.reached(value, self.must), self.reached(value, self.goal));
        let word = |reached| if reached { "reached" } else { "MISSED" };
        let line = format!(
            "{name}: {value:.2}{unit}; must {}{unit} {}, goal {}{unit} {}",
            self.must,
            word(must),
            self.goal,
            word(goal)
        );
        (line, must)
    }
}

/// The machine and the moment: cores, processor, memory, kernel, load, date, and whether this is an optimized build.
pub(crate) fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_string();
    let known = |text: String| if text.is_empty() { "unknown".to_string() } else { text };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = read("/proc/loadavg").split_whitespace().next().unwrap_or_default().to_string();
    format!(
        "{cores} cores, {}, {}, {} {}, load {}, {}{}",
        known(field("/proc/cpuinfo", "model name").unwrap_or_default()),
        field("/proc/meminfo", "MemTotal").and_then(|text| kib(&text)).map_or("unknown memory".into(), mib),
        std::env::consts::OS,
        known(read("/proc/sys/kernel/osrelease")),
        known(load),
        jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC"),
        if cfg!(debug_assertions) { ", assertions ON: not a measurement" } else { "" },
    )
}

#[cfg(test)]
mod tests {
    #![allow(unused_imports)] // a bench has no harness, and so no tests

    use super::*;

    #[test]
    fn medians_and_ratios() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
        let (order, mut count) = (std::cell::RefCell::new(String::new()), 0.0);
        let pairs = paired(
            3,
            || {
                order.borrow_mut().push('a');
                count += 1.0;
                2.0 * count
            },
            || {
                order.borrow_mut().push('b');
                4.0
            },
        );
        assert_eq!(order.into_inner(), "abbaabba");
        assert_eq!(pairs.line("x", "rows/s"), "x: 6.00 against 4.00 rows/s, ratio 150.0 % (100.0 to 200.0 in 3 pairs)");
        assert_eq!([short(281_400.0), short(1_937_686.0), short(12.3)], ["281k", "1.94M", "12.30"]);
        let target = Target { better: Better::Low, must: 15.0, goal: 5.0 };
        assert_eq!(
            target.verdict("p99", 7.5, " ms"),
            ("p99: 7.50 ms; must 15 ms reached, goal 5 ms MISSED".to_string(), true)
        );
    }

    #[test]
    fn work_costs_cpu_and_memory() {
        let ((), usage) = measure(|| {
            let until = thread_cpu() + Duration::from_millis(20);
            let memory = vec![1u8; 64 << 20];
            while thread_cpu() < until {
                std::hint::black_box(&memory);
            }
        });
        assert!(usage.cpu >= Duration::from_millis(20) && usage.wall > Duration::ZERO, "{usage:?}");
        if cfg!(target_os = "linux") {
            assert!(usage.peak_bytes > 64 << 20 && resident_bytes() > 0, "{usage:?}");
        }
        let (status, usage) = run_child(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(usage.peak_bytes > 100_000 && usage.cpu < Duration::from_secs(5), "{usage:?}");
    }

    #[test]
    fn latencies_and_machine_are_one_line_each() {
        let mut histogram = latencies();
        (1..=100).for_each(|ms| note(&mut histogram, Duration::from_millis(ms)));
        let line = latency_line("join", &histogram);
        assert!(line.starts_with("join: 100 latencies in ms: p50 50.0") && line.contains(" max 100.0"), "{line}");
        assert!(machine().contains(" cores, ") && !machine().contains('\n'), "{}", machine());
    }
}
