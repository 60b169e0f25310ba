//! Workers and processes: timely's options, and FASTEN's `--parallelism`.

use std::net::{TcpListener, ToSocketAddrs};
use std::time::Duration;

use super::args::hostfile_problem;
use super::config::{Supervision, Workers};
use super::sync::Reader;
use super::units;

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

/// Reads how the processes are to be watched.
pub(super) fn supervision(reader: &mut Reader<'_>, workers: &Workers) -> Option<Supervision> {
    const DELAY: Duration = Duration::from_secs(10);
    let restarts = reader.read("restart", |text| match text {
        "forever" => Ok(None),
        text => text.parse().map(Some).map_err(|_| "write a number of restarts, or forever".to_owned()),
    });
    let delay = reader.read("restart_delay", units::duration);
    if delay.is_some() && !reader.given.meant("restart") {
        reader
            .problem("--restart_delay without --restart", "add --restart forever or --restart NUMBER, or leave it out");
    }
    let all = reader.given.get("supervise").is_some();
    if all && reader.given.get("process").is_some() {
        let fix = "--supervise starts all processes of the job: leave -p out, or --supervise to start one of them";
        reader.problem(format!("--supervise with -p {}", workers.process), fix);
    }
    if !all && restarts.is_none() {
        return None;
    }
    const OWN: [&str; 3] = ["supervise", "restart", "restart_delay"];
    let without = if all { [&OWN[..], &["process", "hostfile"]].concat() } else { OWN.to_vec() };
    Some(Supervision {
        args: reader.given.to_args(&without),
        all: all.then(|| local_addresses(reader, workers.processes)),
        restarts: restarts.unwrap_or(Some(0)),
        restart_delay: delay.unwrap_or(DELAY),
    })
}

/// The addresses of the hostfile, if there is one; all of them must be of this machine.
fn local_addresses(reader: &mut Reader<'_>, processes: usize) -> Option<Vec<String>> {
    let file = reader.given.get("hostfile")?.to_owned();
    let text = std::fs::read_to_string(&file).unwrap_or_default(); // said already
    let lines: Vec<String> = text.lines().take(processes).map(|line| line.trim().to_owned()).collect();
    let is_local = |line: &str| {
        let mut found = line.split_whitespace().flat_map(|address| address.to_socket_addrs().into_iter().flatten());
        found.any(|address| TcpListener::bind((address.ip(), 0)).is_ok())
    };
    if let Some((number, line)) = lines.iter().enumerate().find(|(_, line)| !is_local(line)) {
        let what = format!(
            "--supervise, and line {} of hostfile \"{file}\", \"{line}\", is no address of this machine",
            number + 1
        );
        let fix = "it starts all processes on this machine: start each with its -p where it belongs (--restart works there too)";
        reader.problem(what, fix);
    }
    Some(lines)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::{problem, with};

    fn supervision(more: &str) -> Supervision {
        with(more).supervision.expect("the job is supervised")
    }

    #[test]
    fn a_supervised_job_has_processes_of_the_same_options() {
        assert_eq!(with("-n 2 -p 1").supervision, None);
        let all = supervision("-n 3 -w2 --supervise --kafka a=-1 --restart forever --take_over --backendFolder x");
        assert_eq!((all.all, all.restarts, all.restart_delay), (Some(None), None, Duration::from_secs(10)));
        let processes = with(&format!("-p 2 {}", all.args[7..].join(" "))); // behind those that every test has
        assert_eq!((processes.workers.threads, processes.workers.processes, processes.workers.process), (2, 3, 2));
        assert_eq!((processes.supervision, processes.take_over), (None, true));
        assert_eq!(processes.kafka[0].value, "-1");

        let one = supervision("-n 2 -p 1 --restart 5 --restart_delay 1m");
        assert_eq!((one.all, one.restarts, one.restart_delay), (None, Some(5), Duration::from_secs(60)));
        assert!(one.args.contains(&"--process=1".to_owned()), "{:?}", one.args);
        assert_eq!(supervision("--supervise").restarts, Some(0));
        let folder = |more: &str| with(&format!("--restart 1 {more}")).warnings.len();
        assert_eq!((folder(""), folder("--backendFolder x")), (1, 0));
    }

    #[test]
    fn what_cannot_be_supervised_is_refused() {
        problem("--restart sometimes", &["--restart \"sometimes\"", "or forever"]);
        problem("--restart_delay 1s", &["--restart_delay without --restart"]);
        problem("-n 2 -p 1 --supervise", &["--supervise with -p 1", "leave -p out"]);
        problem("--peer_timeout 999ms", &["--peer_timeout 999ms", "at least 1s, or off"]);
        assert_eq!(
            (with("--peer_timeout off").peer_timeout, with("").peer_timeout),
            (None, Some(Duration::from_secs(30)))
        );
        assert_eq!(with("--connect_timeout 5m").connect_timeout, Duration::from_secs(300));

        let file = tempfile::NamedTempFile::new().expect("a file");
        let options = format!("-n 2 --supervise -h {}", file.path().display());
        std::fs::write(file.path(), "127.0.0.1:1\nlocalhost:2\n").expect("a file");
        assert_eq!(supervision(&options).all, Some(Some(vec!["127.0.0.1:1".to_owned(), "localhost:2".to_owned()])));
        std::fs::write(file.path(), "127.0.0.1:1\n192.0.2.1:2\n").expect("a file"); // of nobody: RFC 5737
        problem(
            &options,
            &["line 2 of hostfile", "\"192.0.2.1:2\", is no address of this machine", "each with its -p"],
        );
    }
}
