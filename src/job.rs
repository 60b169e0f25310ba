//! A job: a dataflow between sources and sinks, on the workers of one process or of many.

use std::sync::Arc;
use std::time::Duration;

use crate::checkpoint::{Identity, NewStore, NullStore};
use crate::cluster::{self, CONNECT_TIMEOUT, End, PEER_TIMEOUT, Terms};
use crate::control::Control;
use crate::dataflow::{Flow, JobContext, run_worker};
use crate::epoch::{Clock, SteadyClock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Status;
use crate::pacing::Pacing;
use crate::retry::RetryPolicy;
use crate::split_time::TimeMode;

/// A job to be run.
///
/// # Examples
///
/// ```
/// use syncline::Job;
/// use syncline::broker::{self, BrokerOptions};
/// use syncline::codec::Raw;
/// use syncline::dataflow::Input;
/// use syncline::reader::Until;
/// use timely::dataflow::operators::vec::Map;
///
/// # fn main() -> syncline::Result<()> {
/// broker::memory::MemoryBroker::named("example").create_topic("words", 1);
/// let source = broker::source("memory:example", "words", &BrokerOptions::default())?;
/// let words = Input::new("words", source, std::sync::Arc::new(|| Box::new(Raw))).until(Until::End);
/// Job::new("count words").run(timely::Config::thread(), move |flow| {
///     let words = flow.read(&words)?;
///     flow.complete(words.map(|word| word.data.size()));
///     Ok(())
/// })
/// # }
/// ```
pub struct Job {
    context: JobContext,
    peer_timeout: Duration,
    connect_timeout: Duration,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("name", &self.context.identity.job).field("pacing", &self.context.pacing).finish()
    }
}

impl Job {
    /// A job with the system's clock, no store, and the clock of `--clock auto` with a window of a minute.
    pub fn new(name: impl Into<String>) -> Self {
        let clock = Arc::new(SteadyClock::new(Arc::new(SystemClock::new())));
        let started = clock.wall();
        Job {
            context: JobContext {
                clock,
                control: Control::new(),
                status: Arc::default(),
                pacing: Pacing::default(),
                mode: TimeMode::Auto { window: Duration::from_secs(60) },
                max_ahead: Duration::from_secs(3600),
                max_state_bytes: None,
                max_drift: None,
                stuck_after: Duration::from_secs(60),
                max_records: None,
                retry: RetryPolicy::default(),
                new_store: Arc::new(move |_slot| Box::new(NullStore::new(started))),
                identity: Identity { job: name.into(), settings: vec![] },
                take_over: false,
                accept_changes: false,
                checkpoint_every: Duration::ZERO,
            },
            peer_timeout: PEER_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
        }
    }

    /// Takes time from another clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.context.clock = Arc::new(SteadyClock::new(clock));
        self
    }

    /// What makes the job's clock move.
    #[must_use]
    pub fn time_mode(mut self, mode: TimeMode) -> Self {
        self.context.mode = mode;
        self
    }

    /// How far timestamps may be ahead of the wall clock and be believed. Default: an hour.
    #[must_use]
    pub fn max_ahead(mut self, max_ahead: Duration) -> Self {
        self.context.max_ahead = max_ahead;
        self
    }

    /// How much state a worker may hold, in bytes; above it the worker stops reading, and then the job ends. Default: no limit.
    #[must_use]
    pub fn max_state_bytes(mut self, bytes: usize) -> Self {
        self.context.max_state_bytes = Some(bytes);
        self
    }

    /// How far a split may be ahead of the job's clock before it is paused until the others follow, or `None` for any time.
    /// Default: the window with [`TimeMode::Auto`], a minute with [`TimeMode::Event`].
    #[must_use]
    pub fn max_drift(mut self, max_drift: Option<Duration>) -> Self {
        self.context.max_drift = Some(max_drift);
        self
    }

    /// How long a reader may give nothing while its broker has something before it is opened anew. Default: a minute;
    /// [`Duration::MAX`] is never.
    #[must_use]
    pub fn stuck_after(mut self, stuck_after: Duration) -> Self {
        self.context.stuck_after = stuck_after;
        self
    }

    /// Stops the job, as [`Control::stop`] does, after the epoch in which a process has read this many messages.
    #[must_use]
    pub fn max_records(mut self, records: u64) -> Self {
        self.context.max_records = Some(records);
        self
    }

    /// The limits of epochs.
    #[must_use]
    pub fn pacing(mut self, pacing: Pacing) -> Self {
        self.context.pacing = pacing;
        self
    }

    /// How long what fails is tried again.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.context.retry = retry;
        self
    }

    /// Keeps checkpoints: a restart goes on from the last one, with any number of workers. Every worker makes its own store, of the
    /// same place. Only what goes through [`Flow::durable`] survives, offsets and outputs apart.
    #[must_use]
    pub fn store(mut self, new_store: NewStore) -> Self {
        self.context.new_store = new_store;
        self
    }

    /// The least time from checkpoint to checkpoint; the default is none: as fast as the device and the sinks allow. What is read in
    /// between is published no earlier, so latency grows by it, and less is written: what came and went within it.
    #[must_use]
    pub fn checkpoint_every(mut self, every: Duration) -> Self {
        self.context.checkpoint_every = every;
        self
    }

    /// What the state depends on, by name, such as the fields of a key: a checkpoint of other settings is refused, unless changes are
    /// accepted, and so is another process of the job that was started with other settings.
    #[must_use]
    pub fn settings(mut self, settings: Vec<(String, String)>) -> Self {
        self.context.identity.settings = settings;
        self
    }

    /// Goes on from the checkpoint of other settings; what this job does not have any more is left out.
    #[must_use]
    pub fn accept_changes(mut self, accept: bool) -> Self {
        self.context.accept_changes = accept;
        self
    }

    /// Takes the store from a run that lives, or seems to: that one is fenced.
    #[must_use]
    pub fn take_over(mut self, take_over: bool) -> Self {
        self.context.take_over = take_over;
        self
    }

    /// How long nothing may be heard of another process of the job before this one ends (see [`cluster`]). Default: 30 seconds;
    /// [`Duration::MAX`] is for ever.
    #[must_use]
    pub fn peer_timeout(mut self, peer_timeout: Duration) -> Self {
        self.peer_timeout = peer_timeout;
        self
    }

    /// How long the processes of the job may take to meet. Default: a minute; [`Duration::MAX`] is for ever.
    #[must_use]
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// A handle to stop the job with.
    pub fn control(&self) -> Control {
        self.context.control.clone()
    }

    /// A handle to look at the job with.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.context.status)
    }

    /// Runs the job under the options of timely: `-w` workers, `-n` processes, `-p` process, `-h` hostfile (see [`Job::run`]).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for arguments that are no such options, else as [`Job::run`].
    pub fn run_from_args<F>(self, args: impl Iterator<Item = String>, build: F) -> Result<()>
    where
        F: for<'s> Fn(&mut Flow<'s>) -> Result<()> + Send + Sync + 'static,
    {
        let mut options = getopts::Options::new();
        timely::Config::install_options(&mut options);
        let config =
            options.parse(args).map_err(|error| error.to_string()).and_then(|matches| match &matches.free[..] {
                [] => timely::Config::from_matches(&matches),
                [argument, ..] => Err(format!("\"{argument}\" is no option")),
            });
        let config = config.map_err(|text| Error::new(ErrorKind::Config, format!("workers: {text}")))?;
        self.run(config, build)
    }

    /// Runs the job until its inputs end, it is stopped, or it fails. Every worker builds the same dataflow.
    ///
    /// The configuration is timely's: [`timely::Config::from_args`] reads it from `-w`, `-n`, `-p` and `-h`. How several processes
    /// find each other, and what happens when one is gone, is on the page of [`cluster`]. A job that is stopped before its processes
    /// have met has done nothing, and that is no error.
    ///
    /// # Errors
    ///
    /// The first failure of any worker or thread of this process; [`ErrorKind::Cluster`] if the processes do not meet, or one is
    /// lost.
    pub fn run<F>(self, config: timely::Config, build: F) -> Result<()>
    where
        F: for<'s> Fn(&mut Flow<'s>) -> Result<()> + Send + Sync + 'static,
    {
        let Job { context, peer_timeout, connect_timeout } = self;
        let Identity { job, settings } = context.identity.clone();
        let terms = Terms { job, settings, peer_timeout, connect_timeout };
        let context = Arc::new(context);
        let shared = Arc::clone(&context);
        let end = cluster::run(config, &terms, &context.control, move |worker| run_worker(worker, &shared, &build));
        if let Some(error) = context.control.take_failure() {
            return Err(error);
        }
        match end? {
            End::Ended | End::NotBegun => Ok(()),
            End::Panicked => {
                let text = "a worker panicked; its message is on standard error";
                Err(Error::new(ErrorKind::Cluster, text))
            }
        }
    }
}
