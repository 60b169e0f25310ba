//! The synchronization of two topics of a memory broker, `one` and `two`, on the member `k`.

use std::sync::Arc;
use std::time::Duration;

use syncline::broker::memory::{MemoryBroker, MemoryMessage};
use syncline::dataflow::{Flow, Input};
use syncline::epoch::{Clock, ManualClock};
use syncline::pacing::Pacing;
use syncline::reader::{OnBad, Until};
use syncline::source::NewSource;
use syncline::split_time::TimeMode;
use syncline::sync::topics::{TopicOutputs, key_codec, synchronize_topics};
use syncline::sync::{KeyTypes, Options, Tally};
use syncline::{Job, Result};

use super::support::{GROUP, Gate, Log, Running, START, Trouble, eager, sink, source, turn_until, until};

/// Everything that a test may want to change before it starts.
pub struct Pair {
    pub broker: MemoryBroker,
    pub clock: ManualClock,
    pub options: Options,
    pub mode: TimeMode,
    pub max_drift: Option<Duration>,
    pub pacing: Pacing,
    pub until: Until,
    pub on_bad: OnBad,
    pub on_null: OnBad,
    pub dead_letters: bool,
    /// Records say their own time, in member `t`.
    pub timestamp_field: bool,
    pub log: Log,
    pub gate: Gate,
    /// Of side two.
    pub trouble: Trouble,
    pub sink_trouble: Trouble,
    pub tally: Arc<Tally>,
}

impl Pair {
    /// Topics of so many splits, and a window on the clock of `--clock auto`.
    pub fn new(splits: [u32; 2], window: Duration) -> Self {
        let broker = MemoryBroker::new();
        broker.create_topic("one", splits[0]);
        broker.create_topic("two", splits[1]);
        Pair {
            broker,
            clock: ManualClock::new(START),
            options: Options::new(2, window),
            mode: TimeMode::Auto { window },
            max_drift: Some(window),
            pacing: Pacing::default(),
            until: Until::Never,
            on_bad: OnBad::DeadLetter,
            on_null: OnBad::Skip,
            dead_letters: true,
            timestamp_field: false,
            log: Log::default(),
            gate: Gate::new(true),
            trouble: Trouble::default(),
            sink_trouble: Trouble::default(),
            tally: Arc::default(),
        }
    }

    pub fn job(&self) -> Job {
        let job = Job::new(GROUP).clock(Arc::new(self.clock.clone())).time_mode(self.mode).retry(eager());
        job.max_drift(self.max_drift).pacing(self.pacing)
    }

    /// The dataflow on these sources in place of its own topics.
    pub fn build_on(
        &self,
        sources: [NewSource; 2],
    ) -> impl for<'s> Fn(&mut Flow<'s>) -> Result<()> + Send + Sync + use<> {
        let side = |topic: &str, source: NewSource| {
            let timestamp = self.timestamp_field.then(|| "t".parse().unwrap());
            let codec = key_codec(vec!["k".parse().unwrap()], timestamp, KeyTypes::Typed).unwrap();
            let input = Input::new(topic, source, codec).until(self.until).on_bad(self.on_bad).on_null(self.on_null);
            (topic.to_owned(), input)
        };
        let [one, two] = sources;
        let sides = vec![side("one", one), side("two", two)];
        let outputs = TopicOutputs {
            sink: sink(&self.broker, &self.log, &self.gate, &self.sink_trouble),
            joined: "joined".into(),
            delay: Some("delay".into()),
            dead_letter: self.dead_letters.then(|| "dead".into()),
        };
        let (options, tally) = (self.options.clone(), Arc::clone(&self.tally));
        move |flow| synchronize_topics(flow, &sides, &options, &outputs, &tally)
    }

    pub fn build(&self) -> impl for<'s> Fn(&mut Flow<'s>) -> Result<()> + Send + Sync + use<> {
        let quiet = Trouble::default();
        self.build_on(
            [("one", &quiet), ("two", &self.trouble)]
                .map(|(topic, trouble)| source(&self.broker, topic, &self.log, trouble)),
        )
    }

    pub fn start(&self, workers: usize) -> Running {
        Running::start(self.job(), workers, self.build())
    }

    /// Appends a record of a key to split 0 of a topic.
    pub fn give(&self, topic: &str, key: u64) {
        self.broker.append(topic, 0, record(key)).unwrap();
    }

    /// Waits for a state while time passes as it does.
    pub fn until(&self, what: &str, mut reached: impl FnMut() -> bool) {
        until(what, || {
            self.clock.advance(Duration::from_millis(1));
            reached()
        });
    }

    /// Waits until so many messages were read in closed epochs.
    pub fn wait_read(&self, running: &Running, records: u64) {
        self.until("records are read", || running.status.snapshot().records_read >= records);
    }

    /// Lets so much time pass.
    pub fn pass(&self, time: Duration) {
        let end = self.clock.wall() + time.as_millis() as u64;
        turn_until(&self.clock, "time passes", || self.clock.wall() >= end);
    }

    /// Waits until the job's clock is the wall clock, or close to it.
    pub fn wait_live(&self, running: &Running) {
        turn_until(&self.clock, "the clock is live", || running.status.snapshot().clock > START);
    }

    /// Appends a pair, and waits until it is joined: everything that was there before has been read.
    pub fn join(&self, key: u64) {
        self.give("one", key);
        self.give("two", key);
        let joined = format!("{{\"key\":\"{key}\",");
        self.until("the pair is joined", || self.values("joined").iter().any(|value| value.starts_with(&joined)));
    }

    pub fn values(&self, topic: &str) -> Vec<String> {
        self.broker.values(topic)
    }

    pub fn has_delayed(&self, key: u64) -> bool {
        self.values("delay").iter().any(|value| value.starts_with(&format!("{{\"key\":\"{key}\",")))
    }
}

pub fn record(key: u64) -> MemoryMessage {
    MemoryMessage::new(format!("{{\"k\":{key}}}"))
}
