//! Runs the synchronization job of a command line.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::config::{ClockMode, SyncConfig};
use super::progress::{Conservation, Status};
use super::{supervise, units};
use crate::broker;
use crate::control::Control;
use crate::dataflow::Input;
use crate::epoch::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::job::Job;
use crate::observe::Snapshot;
use crate::split_time::TimeMode;
use crate::sync::topics::{Keyed, TopicOutputs, key_codec, synchronize_topics};
use crate::sync::{Options, Tally};

/// A variable that moves the wall clock of this process, such as `-10s`: to try what skew between processes does.
const CLOCK_OFFSET: &str = "SYNCLINE_CLOCK_OFFSET";

/// How long a job that is told to stop may take.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// How often the progress line is written.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Everything that was made of a configuration before anything is connected.
struct Plan {
    sides: Vec<(String, Input<Keyed>)>,
    outputs: TopicOutputs,
    options: Options,
    timely: timely::Config,
    clock: Arc<dyn Clock>,
}

/// Runs the job to its end; prints to `out` where the output is and what became of every record.
///
/// # Errors
///
/// Every problem of the configuration at once, before anything is connected; then the first failure of the job.
pub fn run(config: SyncConfig, out: &mut dyn Write) -> Result<()> {
    super::log::start().map_err(|problem| Error::config(&[problem.to_string()]))?;
    let Plan { sides, outputs, options, timely, clock } = plan(&config)?;
    if let Some(supervision) = &config.supervision {
        // What is wrong with the plan was said, once and before any process is started.
        return supervise::run(supervision, &config.workers);
    }
    let mode = match config.clock {
        ClockMode::Auto => TimeMode::Auto { window: config.window },
        ClockMode::Event { max_disorder, idle_after } => TimeMode::Event { max_disorder, idle_after },
    };
    let mut job = Job::new(config.group.clone()).clock(Arc::clone(&clock)).time_mode(mode).max_ahead(config.max_ahead);
    job = job.max_drift(config.max_drift).stuck_after(config.stuck_after.unwrap_or(Duration::MAX));
    job = job.connect_timeout(config.connect_timeout).peer_timeout(config.peer_timeout.unwrap_or(Duration::MAX));
    job = job.settings(config.settings());
    if let Some(bytes) = config.max_state_bytes {
        job = job.max_state_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    if let Some(records) = config.max_records {
        job = job.max_records(records);
    }
    match config.job_location()? {
        Some(location) => {
            let every = config.checkpoint_every.unwrap_or(location.checkpoint_every());
            tracing::info!(folder = %location.folder().display(), ?every, "checkpoints are kept");
            job = job.store(location.new_store()).take_over(config.take_over).accept_changes(config.accept_changes);
            job = job.checkpoint_every(every);
        }
        None => tracing::info!(
            "no --backendFolder: nothing is kept, a restart reads again from the committed offsets and may repeat output"
        ),
    }
    let tally = Arc::new(Tally::default());
    let status = job.status();
    let started = Arc::new(AtomicBool::new(config.workers.processes > 1)); // who has others tells them
    handle_signals(job.control(), Arc::clone(&tally), Arc::clone(&status), Arc::clone(&started))?;
    if supervise::is_supervised() {
        let control = job.control();
        supervise::when_alone(move || {
            tracing::warn!("the supervisor is gone");
            stop(&control);
        });
    }
    let leads = config.workers.process == 0;
    let progress = leads.then(|| Progress::start(&job, Arc::clone(&tally), clock)).flatten();
    let counted = Arc::clone(&tally);
    let result = job.run(timely, move |flow| {
        started.store(true, Ordering::SeqCst);
        synchronize_topics(flow, &sides, &options, &outputs, &counted)
    });
    if let Some(progress) = progress {
        progress.stop();
    }
    if leads {
        // A reader that has seen enough (head) is no error.
        let _ = write_summary(&config, &tally, &status, out);
        let _ = write_troubles(&status.snapshot(), out);
    }
    result
}

fn plan(config: &SyncConfig) -> Result<Plan> {
    let mut problems = vec![];
    let mut keep = |error: Error| problems.extend(error.to_string().lines().map(str::to_owned));
    let mut sides = vec![];
    for input in &config.inputs {
        let source =
            broker::source(&input.broker, &input.topic, &config.broker_options(&input.broker)).map_err(&mut keep);
        let codec = key_codec(input.keys.clone(), config.timestamp_field.clone(), config.key_types).map_err(&mut keep);
        if let (Ok(source), Ok(codec)) = (source, codec) {
            let side = Input::new(input.name.clone(), source, codec)
                .start(config.start_of(input))
                .until(config.until)
                .on_bad(config.on_bad_record)
                .on_null(config.on_null)
                .remember_ids(config.remember_ids);
            sides.push((input.name.clone(), side));
        }
    }
    let sink = broker::sink(&config.output_broker, &config.broker_options(&config.output_broker)).map_err(&mut keep);
    let options = config.options();
    options.validate().unwrap_or_else(&mut keep);
    let timely = timely::Config::from_args(config.workers.args.iter().cloned())
        .map_err(|text| keep(Error::new(ErrorKind::Config, format!("workers: {text}"))));
    let clock = clock().map_err(&mut keep);
    match (sink, timely, clock) {
        (Ok(sink), Ok(timely), Ok(clock)) if problems.is_empty() => {
            let outputs = TopicOutputs {
                sink,
                joined: config.joined_topic.clone(),
                delay: config.delay_topic.clone(),
                dead_letter: config.dead_letter_topic.clone(),
            };
            Ok(Plan { sides, outputs, options, timely, clock })
        }
        _ => Err(Error::config(&problems)),
    }
}

fn clock() -> Result<Arc<dyn Clock>> {
    let Ok(text) = std::env::var(CLOCK_OFFSET) else {
        return Ok(Arc::new(SystemClock::new()));
    };
    let (sign, size) = match text.strip_prefix('-') {
        Some(size) => (-1, size),
        None => (1, text.strip_prefix('+').unwrap_or(&text)),
    };
    let offset = units::duration(size)
        .map_err(|fix| Error::new(ErrorKind::Config, format!("{CLOCK_OFFSET}=\"{text}\": {fix}")))?;
    Ok(Arc::new(SystemClock::with_offset(sign * offset.as_millis() as i64)))
}

/// The first signal stops the job, the second ends the process; SIGUSR1 prints the conservation line.
fn handle_signals(
    control: Control,
    tally: Arc<Tally>,
    status: Arc<crate::observe::Status>,
    started: Arc<AtomicBool>,
) -> Result<()> {
    let failed = |error| Error::new(ErrorKind::Cluster, "signals cannot be handled").with_source(error);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]).map_err(failed)?;
    thread::spawn(move || {
        let mut told = false; // by a signal: a job that has read --max_records stops too
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                say(&conservation(&tally, &status).to_string());
            } else if std::mem::replace(&mut told, true) {
                std::process::exit(i32::from(super::FAILED));
            } else {
                stop(&control);
                if !started.load(Ordering::SeqCst) {
                    std::process::exit(i32::from(super::DONE)); // nothing was read
                }
            }
        }
    });
    Ok(())
}

/// Stops the job; ends the process if that takes too long.
fn stop(control: &Control) {
    control.stop();
    tracing::info!("stopping: nothing more is read, what was read is published and committed");
    thread::spawn(|| {
        thread::sleep(STOP_WITHIN);
        say(&format!("syncline: the job did not stop within {STOP_WITHIN:?}; what was not committed comes again"));
        std::process::exit(i32::from(super::FAILED));
    });
}

/// Prints a line on standard error, if it is still there.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn conservation(tally: &Tally, status: &crate::observe::Status) -> Conservation {
    let totals = tally.totals();
    Conservation {
        records_in: totals.records_in,
        restored: totals.counts.restored_records,
        joined_records: totals.counts.joined_records,
        expired: totals.counts.expired_records,
        pending: totals.counts.pending_records,
        dropped: totals.dropped(),
        joined: totals.counts.joins,
        late: totals.counts.late_joins,
        delayed: totals.counts.delays,
        unmatched: totals.counts.unmatched,
        undelivered: status.snapshot().undelivered,
    }
}

fn write_summary(
    config: &SyncConfig,
    tally: &Tally,
    status: &crate::observe::Status,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let broker = &config.output_broker;
    writeln!(out, "joined records: {broker} {}", config.joined_topic)?;
    for (what, topic) in [("delays", &config.delay_topic), ("dead letters", &config.dead_letter_topic)] {
        if let Some(topic) = topic {
            writeln!(out, "{what}: {broker} {topic}")?;
        }
    }
    writeln!(out, "{}", conservation(tally, status))
}

/// What the job has overcome, if anything.
fn write_troubles(snapshot: &Snapshot, out: &mut dyn Write) -> std::io::Result<()> {
    match snapshot {
        Snapshot { retries: 0, failed_commits: 0, rebuilt: 0, .. } => Ok(()),
        Snapshot { retries, failed_commits, rebuilt, .. } => {
            writeln!(out, "troubles: retries={retries} failed_commits={failed_commits} rebuilt={rebuilt}")
        }
    }
}

/// Writes the progress line of a terminal.
struct Progress {
    stop: crossbeam_channel::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Progress {
    /// Starts writing, if standard error is a terminal.
    fn start(job: &Job, tally: Arc<Tally>, clock: Arc<dyn Clock>) -> Option<Progress> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let status = job.status();
        let (stop, stopped) = crossbeam_channel::bounded(0);
        let thread = thread::spawn(move || {
            let mut last = 0;
            while stopped.recv_timeout(PROGRESS_EVERY).is_err_and(|error| error.is_timeout()) {
                let (totals, now) = (tally.totals(), status.snapshot());
                let rate = (totals.records_in - last) as f64 / PROGRESS_EVERY.as_secs_f64();
                last = totals.records_in;
                let line = Status {
                    records_in: totals.records_in,
                    joined: totals.counts.joins,
                    late: totals.counts.late_joins,
                    waiting: totals.counts.pending_records,
                    delayed: totals.counts.delays,
                    dropped: totals.dropped(),
                    undelivered: now.undelivered.iter().sum(),
                    clock_ms: now.clock,
                    wall_ms: clock.wall(),
                    backlog: now.backlog,
                    remembered_ids: now.remembered_ids,
                    paused: now.paused,
                    ahead: now.ahead_input,
                    rate,
                };
                let _ = write!(std::io::stderr(), "{}", line.line());
            }
            let _ = write!(std::io::stderr(), "{}", super::progress::CLEAR);
        });
        Some(Progress { stop, thread })
    }

    fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join(); // it only writes
    }
}
