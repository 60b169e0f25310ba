//! What a valid command line of `syncline sync` says, as plain data.

use std::fmt;
use std::time::Duration;

use super::brokers::is_kafka;
use crate::broker::{self, BrokerOptions, CreateTopics};
use crate::checkpoint::{self, Location};
use crate::error::Result;
use crate::reader::{OnBad, Until};
use crate::source::{Discovery, OnLost, Position};
use crate::sync::json::Path;
use crate::sync::{AtEnd, Duplicates, KeyTypes, Late, Options};

/// Everything that the synchronization job is told. Checked as far as that is possible without connecting to anything.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncConfig {
    /// The sides, in the order of the output.
    pub inputs: Vec<Input>,
    /// Where the outputs are.
    pub output_broker: String,
    /// The topic of joined records, as it is called in the broker.
    pub joined_topic: String,
    /// The topic of delays, as it is called in the broker; there if and only if delays are written.
    pub delay_topic: Option<String>,
    /// The topic of dead letters, as it is called in the broker.
    pub dead_letter_topic: Option<String>,
    /// How long a record waits for its partner.
    pub window: Duration,
    /// How long a finished key is remembered.
    pub remember: Duration,
    /// How long a key can wait at most.
    pub max_wait: Option<Duration>,
    /// Which of several records of a side and key counts.
    pub duplicates: Duplicates,
    /// What becomes of partners that come after the delay.
    pub late: Late,
    /// What becomes of waiting records when all inputs have ended.
    pub at_end: AtEnd,
    /// How key fields are compared.
    pub key_types: KeyTypes,
    /// Where a value has its time; `None` for the message's own.
    pub timestamp_field: Option<Path>,
    /// What time the deadlines follow.
    pub clock: ClockMode,
    /// How long ids of messages are remembered after they were acknowledged.
    pub remember_ids: Duration,
    /// How far a split may be ahead of the clock; `None` for any time.
    pub max_drift: Option<Duration>,
    /// How long a reader may give nothing of what its broker has; `None` for ever.
    pub stuck_after: Option<Duration>,
    /// Timestamps further ahead of the wall clock are not believed.
    pub max_ahead: Duration,
    /// What becomes of messages without a value.
    pub on_null: OnBad,
    /// What becomes of records without a usable key or timestamp.
    pub on_bad_record: OnBad,
    /// The size of the state above which the job ends, in bytes.
    pub max_state_bytes: Option<u64>,
    /// Where to start. An exact position names splits of all inputs; [`SyncConfig::start_of`] has those of one.
    pub start: Position,
    /// Whether that was said, and is no default.
    pub start_given: bool,
    /// When to end.
    pub until: Until,
    /// The name to commit offsets under.
    pub group: String,
    /// End after so many records.
    pub max_records: Option<u64>,
    /// How often new splits are looked for.
    pub discovery: Discovery,
    /// What happens where the messages at a position are gone.
    pub on_lost_offset: OnLost,
    /// How topics of outputs are made that are not there.
    pub create_topics: Option<CreateTopics>,
    /// Properties of Kafka's client.
    pub kafka: Vec<Property>,
    /// Where checkpoints of jobs are kept: a folder or a URL.
    pub backend_folder: Option<String>,
    /// Properties of the client of its object store.
    pub store: Vec<Property>,
    /// Take them from a run that lives.
    pub take_over: bool,
    /// Go on although settings are not those of the checkpoint.
    pub accept_changes: bool,
    /// The least time from checkpoint to checkpoint; `None` for what suits the place where they are kept.
    pub checkpoint_every: Option<Duration>,
    /// The workers of the job.
    pub workers: Workers,
    /// How long the processes of the job may take to meet.
    pub connect_timeout: Duration,
    /// How long nothing may be heard of a process; `None` for ever.
    pub peer_timeout: Option<Duration>,
    /// The job runs in processes of its own, which are watched.
    pub supervision: Option<Supervision>,
    /// What to say at the start, because somebody may expect something else.
    pub warnings: Vec<String>,
}

impl SyncConfig {
    /// The options of the synchronization itself.
    pub fn options(&self) -> Options {
        Options {
            windows: vec![self.window; self.inputs.len()],
            remember: self.remember,
            late: self.late,
            duplicates: self.duplicates,
            at_end: self.at_end,
            max_wait: self.max_wait,
            emit_delays: self.delay_topic.is_some(),
        }
    }

    /// What the adapter of this broker is told; properties of Kafka's client, and what is done about lost positions, are for
    /// Kafka only.
    pub fn broker_options(&self, broker: &str) -> BrokerOptions {
        BrokerOptions {
            group: self.group.clone(),
            properties: if is_kafka(broker) { properties(&self.kafka) } else { vec![] },
            discovery: self.discovery,
            on_lost_offset: if is_kafka(broker) { self.on_lost_offset } else { OnLost::Fail },
            create_topics: self.create_topics,
            keeps_state: self.backend_folder.is_some(),
            despite_state: self.start_given,
        }
    }

    /// Where this job's checkpoints are, called as FASTEN's job calls it.
    ///
    /// # Errors
    ///
    /// Those of [`checkpoint::open`].
    pub fn job_location(&self) -> Result<Option<Location>> {
        let Some(folder) = &self.backend_folder else { return Ok(None) };
        let store = properties(&self.store);
        Ok(Some(checkpoint::open(folder, &store)?.join(&self.job_folder())))
    }

    fn job_folder(&self) -> String {
        let plain = |text: &str| -> String {
            let kept = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
            text.chars().map(kept).collect()
        };
        let topics: Vec<String> = self.inputs.iter().map(|input| plain(&input.topic)).collect();
        format!("{}_sync", topics.join("_"))
    }

    /// What the state of the job depends on, by name.
    pub fn settings(&self) -> Vec<(String, String)> {
        let mut settings = vec![];
        let mut add = |name: &str, value: String| settings.push((name.to_owned(), value));
        for (number, input) in self.inputs.iter().enumerate() {
            let keys: Vec<String> = input.keys.iter().map(ToString::to_string).collect();
            add(&format!("side {number}"), input.name.clone());
            add(&format!("broker of side {number}"), input.broker.clone());
            add(&format!("topic of side {number}"), input.topic.clone());
            add(&format!("keys of side {number}"), keys.join(","));
        }
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
        add("key_types", format!("{:?}", self.key_types).to_lowercase());
        add("timestamp_field", or_none(self.timestamp_field.as_ref().map(ToString::to_string)));
        add("clock", format!("{:?}", self.clock).to_lowercase());
        add("window_time", format!("{:?}", self.window));
        add("remember", format!("{:?}", self.remember));
        add("max_wait", or_none(self.max_wait.map(|wait| format!("{wait:?}"))));
        add("duplicates", format!("{:?}", self.duplicates).to_lowercase());
        add("late", format!("{:?}", self.late).to_lowercase());
        add("output broker", self.output_broker.clone());
        add("output_topic", self.joined_topic.clone());
        add("delay_topic", or_none(self.delay_topic.clone()));
        add("dead_letter_topic", or_none(self.dead_letter_topic.clone()));
        settings
    }

    /// Where an input starts.
    pub fn start_of(&self, input: &Input) -> Position {
        match &self.start {
            Position::Exact(offsets) => {
                let own = offsets.iter().filter(|(split, _)| broker::has_split(&input.broker, &input.topic, split));
                Position::Exact(own.map(|(split, offset)| (split.clone(), *offset)).collect())
            }
            start => start.clone(),
        }
    }
}

/// A side of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The broker, as it was written.
    pub broker: String,
    /// The topic in the broker, or what means several.
    pub topic: String,
    /// What the side is called in the output.
    pub name: String,
    /// The fields of the key.
    pub keys: Vec<Path>,
}

/// A property of a client. `Debug` does not show the value: it may be a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Property {
    /// The name, in the client's words.
    pub name: String,
    /// The value, with variables and files put in.
    pub value: String,
}

/// Names and values, as clients want them.
pub(super) fn properties(properties: &[Property]) -> Vec<(String, String)> {
    properties.iter().map(|property| (property.name.clone(), property.value.clone())).collect()
}

impl fmt::Debug for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=(hidden)", self.name)
    }
}

/// Workers and processes, in the words of timely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Worker threads of each process.
    pub threads: usize,
    /// Processes of the job.
    pub processes: usize,
    /// Which of them this is, from 0.
    pub process: usize,
    /// The same and timely's other options, as arguments for timely's parser.
    pub args: Vec<String>,
}

/// How the processes of a job are watched. `Debug` does not show the arguments: one may be a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Supervision {
    /// The arguments of a process, behind `sync`, without its index and addresses.
    pub args: Vec<String>,
    /// All processes of the job, not only the one of this index: the addresses of the hostfile, or `None` for any.
    pub all: Option<Option<Vec<String>>>,
    /// How many restarts in a row there are at most; `None` for any number.
    pub restarts: Option<u32>,
    /// The longest wait before a restart.
    pub restart_delay: Duration,
}

impl fmt::Debug for Supervision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Supervision { args: _, all, restarts, restart_delay } = self;
        f.debug_struct("Supervision")
            .field("all", all)
            .field("restarts", restarts)
            .field("restart_delay", restart_delay)
            .finish_non_exhaustive()
    }
}

/// What time the deadlines follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockMode {
    /// Every split has had the whole window to bring the partner.
    Auto,
    /// The timestamps of the records alone.
    Event {
        /// How far behind the newest one a timestamp may be.
        max_disorder: Duration,
        /// A split that is silent for so long holds the clock no more.
        idle_after: Duration,
    },
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "azure")]
    #[test]
    fn checkpoints_may_be_in_an_object_store() {
        use super::Duration;
        use crate::cli::tests::{folder, problem, with};

        let account = "--store azure_storage_account_name=a --store azure_storage_account_key=a2V5";
        let config = with(&format!("--backendFolder abfs://c/x {account}"));
        assert_eq!(folder(&config), "abfs://c/x/one_two_sync");
        let every = config.job_location().unwrap().unwrap().checkpoint_every();
        assert_eq!((config.checkpoint_every, every), (None, Duration::from_secs(1)));
        assert!(!format!("{config:?}").contains("a2V5"));
        let wrong = format!("--backendFolder abfs://c/x {account} --store azure_storage_endpont=a");
        problem(&wrong, &["--backendFolder", "did you mean azure_storage_endpoint?"]);
        problem("--backendFolder abfs://c/x --store a=${NOBODY}", &["--store a", "NOBODY"]);
    }
}
