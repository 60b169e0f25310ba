//! Workers and processes: timely's options, and FASTEN's `--parallelism`.

use super::args::hostfile_problem;
use super::config::Workers;
use super::sync::Reader;

/// Reads and checks the options of timely.
pub(super) fn read(reader: &mut Reader<'_>) -> Workers {
    let threads = reader.read("threads", count);
    let processes = reader.read("processes", count).unwrap_or(1);
    let process = reader.read("process", |text| match text.parse::<usize>() {
        Ok(process) if process < processes => Ok(process),
        Ok(_) => Err(format!("there are {processes} processes (-n), counted from 0")),
        Err(_) => Err("it is a number from 0".to_owned()),
    });
    let process = process.unwrap_or(0);
    let threads = match reader.read("parallelism", count) {
        None => threads.unwrap_or(1),
        Some(total) => parallelism(reader, total, threads, processes),
    };
    hostfile(reader, processes);
    reader.read("progress-mode", |text| match text {
        "eager" | "demand" => Ok(()),
        _ => Err("write eager or demand".to_owned()),
    });
    reader.read("idle-spin", |text| text.parse::<u64>().map_err(|_| "it is a number of microseconds".to_owned()));

    let mut args: Vec<String> = Vec::new();
    for (name, value) in [("--threads", threads), ("--processes", processes), ("--process", process)] {
        args.extend([name.to_owned(), value.to_string()]);
    }
    for name in ["hostfile", "progress-mode", "idle-spin"] {
        if let Some(value) = reader.given.get(name) {
            args.extend([format!("--{name}"), value.to_owned()]);
        }
    }
    args.extend(
        ["report", "zerocopy"].iter().filter(|name| reader.given.get(name).is_some()).map(|name| format!("--{name}")),
    );
    Workers { threads, processes, process, args }
}

/// The most threads, processes and workers: far more than one job can use, so that more is a slip.
const MOST: usize = 4_096;

fn count(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| (1..=MOST).contains(number))
        .ok_or_else(|| format!("it is a number from 1 to {MOST}"))
}

/// Flink's total against timely's threads of each process.
fn parallelism(reader: &mut Reader<'_>, total: usize, threads: Option<usize>, processes: usize) -> usize {
    const MEANING: &str = "--parallelism is the total number of workers, -w the threads of each of the -n processes";
    match threads {
        Some(threads) if threads * processes == total => threads,
        Some(threads) => {
            let what = format!(
                "--parallelism {total} against -w {threads} and -n {processes} ({} workers)",
                threads * processes
            );
            reader.problem(what, format!("{MEANING}: give one of the two, or make them agree"));
            threads
        }
        None if total.is_multiple_of(processes) => total / processes,
        None => {
            let what = format!("--parallelism {total} cannot be shared by {processes} processes (-n)");
            reader.problem(what, format!("{MEANING}: give a multiple of {processes}"));
            1
        }
    }
}

fn hostfile(reader: &mut Reader<'_>, processes: usize) {
    let Some(file) = reader.given.get("hostfile") else { return };
    match std::fs::read_to_string(file) {
        Err(_) => reader.problems.push(hostfile_problem(&format!("-h \"{file}\" is not a file that can be read"))),
        Ok(text) if text.lines().count() < processes => {
            let what = format!("hostfile \"{file}\" has {} lines for {processes} processes (-n)", text.lines().count());
            reader.problem(what, "it needs the address of each process, host:port, one a line");
        }
        Ok(text) => {
            for (index, line) in text.lines().enumerate().take(processes) {
                let port = line
                    .trim()
                    .rsplit_once(':')
                    .filter(|(host, _)| !host.is_empty())
                    .map(|(_, port)| port.parse::<u16>());
                if !matches!(port, Some(Ok(_))) {
                    let what = format!("hostfile \"{file}\", line {}: \"{line}\" is no address", index + 1);
                    reader.problem(what, "write host:port, such as 10.0.0.1:2101");
                }
            }
        }
    }
}
