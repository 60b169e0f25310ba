//! Runs the job in processes of its own, watches them, and starts them again.
//!
//! A process is this program with the same options. Its standard input is a pipe that nobody writes to: when it ends, the supervisor
//! is gone, however it went, and the process stops. It has a process group of its own, so that a signal of the terminal comes once,
//! from the supervisor.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::ops::Range;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::config::{Supervision, Workers};
use super::restart::Restarts;
use super::{DONE, FAILED, USAGE};
use crate::epoch::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};

/// Set for a process whose supervisor holds its standard input.
const SUPERVISED: &str = "SYNCLINE_SUPERVISED";

/// The first port of timely's own addresses.
const FIRST_PORT: u16 = 2101;

/// Where others are looked for, beginning anywhere, as several jobs may look at a time. The system's own begin above.
const OTHER_PORTS: Range<u16> = 10_000..32_000;

/// How long the others may take to notice that one is gone, and to say so, before they are told to stop.
const NOTICE_WITHIN: Duration = Duration::from_secs(2);

/// How long a process that is told to stop may take, which ends by itself after ten seconds, before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(15);

/// How often processes are looked at, besides at every signal.
const LOOK: Duration = Duration::from_secs(1);

/// Runs the job until it is done, stopped, or not to be started again.
///
/// # Errors
///
/// How the last run failed: [`ErrorKind::Config`] if a process said that it is of no use to start it again.
pub(super) fn run(supervision: &Supervision, workers: &Workers) -> Result<()> {
    let failed = |error| Error::new(ErrorKind::Cluster, "signals cannot be handled").with_source(error);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1, SIGCHLD]).map_err(failed)?;
    let (send, received) = unbounded();
    thread::spawn(move || signals.forever().try_for_each(|signal| send.send(signal)));
    let cannot = |error| Error::new(ErrorKind::Cluster, "this program cannot be found").with_source(error);
    let program = std::env::current_exe().map_err(cannot)?;
    let supervisor = Supervisor { supervision, workers, program, signals: received, clock: SystemClock::new() };
    let mut restarts = Restarts::new(supervision.restarts, supervision.restart_delay);
    let mut args = supervision.args.clone();
    loop {
        let start = supervisor.clock.monotonic();
        let (failure, stopped) = match supervisor.run(&args) {
            Ok(run) => match run.failure() {
                None => return Ok(()),
                Some(failure) if run.codes().any(|code| code == i32::from(USAGE)) => {
                    let text = format!("{failure}: it is of no use to start it again as it is");
                    return Err(Error::new(ErrorKind::Config, text));
                }
                Some(failure) => (failure, run.stopped),
            },
            Err(error) => (error.report(), false),
        };
        let wait = restarts.failed(supervisor.clock.monotonic().saturating_sub(start)).filter(|_| !stopped);
        let Some(wait) = wait else {
            let text = match supervision.restarts {
                Some(most @ 1..) if !stopped => format!("{failure}, and --restart {most} allows no more in a row"),
                _ => failure,
            };
            return Err(Error::new(ErrorKind::Cluster, text));
        };
        tracing::warn!("{failure}; restart {} in {wait:?}", restarts.count());
        if supervisor.rests(wait) {
            let text = format!("{failure}, and it was told to stop before the restart");
            return Err(Error::new(ErrorKind::Cluster, text));
        }
        // The folder is this job's now: if a newer run takes it over, that one is not to be fenced in turn.
        args.retain(|arg| arg != "--take_over");
    }
}

/// Whether a supervisor has started this process.
pub(super) fn is_supervised() -> bool {
    std::env::var_os(SUPERVISED).is_some()
}

/// Calls when the supervisor is gone.
pub(super) fn when_alone(call: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        let mut buffer = [0; 64];
        // Nothing is written; whatever else happens to it is the end of it.
        while std::io::stdin().read(&mut buffer).is_ok_and(|read| read > 0) {}
        call();
    });
}

struct Supervisor<'a> {
    supervision: &'a Supervision,
    workers: &'a Workers,
    program: PathBuf,
    signals: Receiver<i32>,
    clock: SystemClock,
}

/// A process, and how it has ended.
struct Process {
    name: String,
    child: Child,
    status: Option<ExitStatus>,
}

/// How the processes of a run have ended.
struct Run {
    processes: Vec<Process>,
    /// The one that failed first.
    first: Option<usize>,
    /// A signal has told the job to stop.
    stopped: bool,
}

impl Run {
    fn codes(&self) -> impl Iterator<Item = i32> {
        self.processes.iter().filter_map(|process| process.status?.code())
    }

    /// What has failed, if anything has.
    fn failure(&self) -> Option<String> {
        // One that was killed says more than those that have lost it.
        let special = |process: &&Process| {
            let code = process.status.and_then(|status| status.code());
            ![i32::from(DONE), i32::from(FAILED)].map(Some).contains(&code)
        };
        let process = self.processes.iter().find(special).unwrap_or(&self.processes[self.first?]);
        let status = process.status?;
        Some(match (status.code(), status.signal()) {
            (Some(code), _) if code == i32::from(FAILED) => format!("{} has failed, it says why above", process.name),
            (Some(code), _) => format!("{} has ended with exit code {code}", process.name),
            (None, Some(signal)) => format!("{} was killed by signal {signal}", process.name),
            (None, None) => format!("{} was killed", process.name),
        })
    }
}

impl Supervisor<'_> {
    /// Runs the processes once, to their end.
    fn run(&self, args: &[String]) -> Result<Run> {
        let hosts = self.hosts()?;
        let processes = match self.supervision.all {
            Some(_) => 0..self.workers.processes,
            None => self.workers.process..self.workers.process + 1,
        };
        let mut run = Run { processes: vec![], first: None, stopped: false };
        for index in processes {
            match self.start(args, index, hosts.as_ref()) {
                Ok(process) => run.processes.push(process),
                Err(error) => {
                    tell(&run.processes, SIGTERM);
                    self.watch(&mut run);
                    return Err(error);
                }
            }
        }
        self.watch(&mut run);
        Ok(run)
    }

    fn start(&self, args: &[String], index: usize, hosts: Option<&Hosts>) -> Result<Process> {
        let failed = |error| Error::new(ErrorKind::Cluster, "a process cannot be started").with_source(error);
        let mut command = Command::new(&self.program);
        command.arg("sync").args(args);
        if self.supervision.all.is_some() {
            command.arg(format!("--process={index}"));
        }
        if let Some(Hosts(path)) = hosts {
            command.arg("--hostfile").arg(path);
        }
        command.env(SUPERVISED, "1").stdin(Stdio::piped()).process_group(0);
        let child = command.spawn().map_err(failed)?;
        let name = match self.workers.processes {
            1 => "the job".to_owned(),
            _ => format!("process {index} of the job"),
        };
        tracing::info!(pid = child.id(), "{name} is started");
        Ok(Process { name, child, status: None })
    }

    /// Waits for the end of all processes, passes signals on, and ends the others when one has failed.
    fn watch(&self, run: &mut Run) {
        let mut since: Option<Duration> = None;
        let (mut told, mut killed) = (false, false);
        loop {
            for (index, process) in run.processes.iter_mut().enumerate().filter(|(_, process)| process.status.is_none())
            {
                process.status = process.child.try_wait().ok().flatten();
                let Some(status) = process.status else { continue };
                // One that is told to stop before it can hear signals has done nothing yet.
                let unheard = run.stopped && [SIGINT, SIGTERM].map(Some).contains(&status.signal());
                if status.code() != Some(i32::from(DONE)) && !unheard {
                    run.first.get_or_insert(index);
                }
            }
            if run.processes.iter().all(|process| process.status.is_some()) {
                return;
            }
            let now = self.clock.monotonic();
            if run.first.is_some() {
                since.get_or_insert(now);
            }
            let waited = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
            if waited >= NOTICE_WITHIN && !std::mem::replace(&mut told, true) && !run.stopped {
                tell(&run.processes, SIGTERM);
            }
            if waited >= STOP_WITHIN + NOTICE_WITHIN && !std::mem::replace(&mut killed, true) {
                for process in run.processes.iter_mut().filter(|process| process.status.is_none()) {
                    tracing::warn!("{} does not stop and is killed", process.name);
                    let _ = process.child.kill(); // it may have ended just now
                }
            }
            let look = if since.is_some() { LOOK / 10 } else { LOOK };
            match self.signals.recv_timeout(look) {
                Ok(SIGCHLD) | Err(_) => {}
                Ok(signal) => {
                    if signal != SIGUSR1 {
                        run.stopped = true;
                        since.get_or_insert(now);
                    }
                    tell(&run.processes, signal);
                }
            }
        }
    }

    /// Waits so long; whether the job is told to stop meanwhile.
    fn rests(&self, wait: Duration) -> bool {
        let until = self.clock.monotonic() + wait;
        loop {
            let left = until.saturating_sub(self.clock.monotonic());
            match self.signals.recv_timeout(left) {
                Ok(SIGINT | SIGTERM) => return true,
                Ok(_) if !left.is_zero() => {}
                Ok(_) | Err(_) => return false,
            }
        }
    }

    /// Where the processes find each other, if they need to be told.
    fn hosts(&self) -> Result<Option<Hosts>> {
        let Some(addresses) = self.supervision.all.as_ref().filter(|_| self.workers.processes > 1) else {
            return Ok(None);
        };
        let failed = |error| Error::new(ErrorKind::Cluster, "no ports for the processes of the job").with_source(error);
        let addresses = match addresses {
            Some(addresses) => addresses.clone(),
            None => free_addresses(self.workers.processes).map_err(failed)?,
        };
        Hosts::write(&addresses).map(Some)
    }
}

/// Addresses of this machine that are free: timely's, else others. Not those that the system gives to connections: one could be gone
/// before a process listens there.
fn free_addresses(processes: usize) -> std::io::Result<Vec<String>> {
    let bind = |port: u16| TcpListener::bind(("127.0.0.1", port));
    let usual = (0..processes).map(|index| bind(FIRST_PORT.saturating_add(index as u16)));
    let bound = usual.collect::<std::io::Result<Vec<_>>>().or_else(|error| {
        let (first, ports) = (std::process::id() as u16 % OTHER_PORTS.len() as u16, OTHER_PORTS);
        let others = ports.clone().skip(usize::from(first)).chain(ports.take(usize::from(first)));
        let bound: Vec<_> = others.filter_map(|port| bind(port).ok()).take(processes).collect();
        if bound.len() == processes { Ok(bound) } else { Err(error) }
    })?;
    bound.iter().map(|listener| listener.local_addr().map(|address| address.to_string())).collect()
}

/// A hostfile of the supervisor, removed at the end.
struct Hosts(PathBuf);

impl Hosts {
    fn write(addresses: &[String]) -> Result<Hosts> {
        let name = |number: u32| std::env::temp_dir().join(format!("syncline-hosts-{}-{number}", std::process::id()));
        let mut number = 0;
        loop {
            let path = name(number);
            let written = OpenOptions::new().write(true).create_new(true).open(&path).and_then(|mut file| {
                let hosts = Hosts(path.clone());
                file.write_all(addresses.iter().map(|address| format!("{address}\n")).collect::<String>().as_bytes())?;
                Ok(hosts)
            });
            match written {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && number < 1000 => number += 1,
                written => {
                    let text = format!("the hostfile {} cannot be written", path.display());
                    return written.map_err(|error| Error::new(ErrorKind::Cluster, text).with_source(error));
                }
            }
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // a leftover harms nobody
    }
}

/// Sends a signal to those that still run.
fn tell(processes: &[Process], signal: i32) {
    let signal = match signal {
        SIGINT => Signal::INT,
        SIGUSR1 => Signal::USR1,
        _ => Signal::TERM,
    };
    for process in processes.iter().filter(|process| process.status.is_none()) {
        if let Some(pid) = Pid::from_raw(process.child.id() as i32) {
            let _ = kill_process(pid, signal); // it may have ended just now, and is not waited for yet
        }
    }
}
