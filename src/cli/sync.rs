//! From the values of options to a [`SyncConfig`], with every problem in one list.

use std::time::Duration;

use super::args::{Given, Problem};
use super::config::{self, ClockMode, Input, Property, SyncConfig};
use super::table::{FLAGS, Group, closest};
use super::{Outside, brokers, properties, units, workers};
use crate::broker::{self, CreateTopics};
use crate::checkpoint;
use crate::cluster;
use crate::dataflow::DEFAULT_REMEMBER_IDS;
use crate::reader::{OnBad, Until};
use crate::source::Position;
use crate::split_time::TimeMode;
use crate::sync::json::{Extractor, Path};
use crate::sync::topics::RESERVED;
use crate::sync::{AtEnd, Duplicates, KeyTypes, Late};

/// FASTEN's folder for state, used with `--production`.
const FASTEN_FOLDER: &str = "/mnt/fasten/flink";

/// Makes the configuration, or gives all problems.
pub(super) fn config(args: &[String], outside: &Outside<'_>) -> Result<SyncConfig, Vec<Problem>> {
    let mut given = Given::read(args);
    let problems = std::mem::take(&mut given.problems);
    let mut reader = Reader { given: &given, problems };
    let config = reader.config(outside);
    reader.check_brokers(&config, outside);
    if reader.problems.is_empty() { Ok(config) } else { Err(reader.problems) }
}

/// Reads values; where one is wrong it notes the problem and goes on with something harmless.
pub(super) struct Reader<'a> {
    pub(super) given: &'a Given,
    pub(super) problems: Vec<Problem>,
}

impl Reader<'_> {
    pub(super) fn problem(&mut self, what: impl Into<String>, fix: impl Into<String>) {
        self.problems.push(Problem::new(what, fix));
    }

    /// The value of an option, if it is there and right.
    pub(super) fn read<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let text = self.given.get(name)?;
        let value = match text {
            "" => Err("it is empty, give it a value".to_owned()),
            text => parse(text),
        };
        value.map_err(|fix| self.problem(format!("--{name} \"{text}\""), fix)).ok()
    }

    /// One of several words; the first is the default.
    pub(super) fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> T {
        self.read(name, |text| find_choice(text, choices)).unwrap_or(choices[0].1)
    }

    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.read(name, |text| Ok(text.to_owned()))
    }

    fn duration(&mut self, name: &str) -> Option<Duration> {
        self.read(name, units::duration)
    }

    /// A duration above nothing; `Some(None)` is off.
    fn duration_or_off(&mut self, name: &str) -> Option<Option<Duration>> {
        self.read(name, |text| match text {
            "off" => Ok(None),
            text => match units::duration(text).map_err(|fix| format!("{fix}, or off"))? {
                Duration::ZERO => Err("it must be longer than nothing, or off".to_owned()),
                duration => Ok(Some(duration)),
            },
        })
    }

    fn config(&mut self, outside: &Outside<'_>) -> SyncConfig {
        self.required();
        let inputs = vec![self.input("one"), self.input("two")];
        self.sides(&inputs);
        let output_broker = self.output_broker(&inputs);

        let prefix = self.text("topic_prefix").unwrap_or_else(|| "fasten".to_owned());
        let physical = |name: String| format!("{prefix}.{name}.out");
        let enable_delay = self.choice("enable_delay", &[("false", false), ("true", true)]);
        let delay_name = self.text("delay_topic");
        if enable_delay && !self.given.meant("delay_topic") {
            self.problem("--enable_delay true needs a topic for the delays", "add --delay_topic NAME");
        }
        let joined_topic = physical(self.text("output_topic").unwrap_or_default());
        let delay_topic = delay_name.filter(|_| enable_delay).map(physical);
        let dead_letter_topic = self.text("dead_letter_topic").map(physical);
        self.outputs(&inputs, &output_broker, [Some(&joined_topic), delay_topic.as_ref(), dead_letter_topic.as_ref()]);

        let timestamp_field = self.read("timestamp_field", str::parse::<Path>);
        self.fields(&inputs, timestamp_field.as_ref());

        let window = self.window();
        let max_wait = self.read("max_wait", |text| match units::duration(text)? {
            wait if wait < window => Err("it cannot be shorter than the window".to_owned()),
            wait => Ok(wait),
        });
        let clock = self.clock();
        let max_drift = self.duration_or_off("max_drift").unwrap_or_else(|| match clock {
            ClockMode::Auto => TimeMode::Auto { window }.max_drift().into(),
            ClockMode::Event { max_disorder, idle_after } => {
                TimeMode::Event { max_disorder, idle_after }.max_drift().into()
            }
        });
        let (on_null, on_bad_record) = self.policies(dead_letter_topic.is_some());
        let group = self.group(&inputs);
        let (backend_folder, store) = self.state(outside);
        let at_end = self.choice("at_end", &[("delay", AtEnd::Delay), ("keep", AtEnd::Keep)]);
        let mut warnings = vec![];
        if at_end == AtEnd::Keep && backend_folder.is_none() {
            let what = "--at_end keep without --backendFolder: records that wait at the end are read again only where their offsets \
                        are not committed";
            warnings.push(what.to_owned());
        }
        let workers = workers::read(self);
        let supervision = workers::supervision(self, &workers);
        if backend_folder.is_none() && supervision.as_ref().is_some_and(|supervision| supervision.restarts != Some(0)) {
            let what = "--restart without --backendFolder: a restart reads again what was not committed, or everything from --start, \
                        and may repeat outputs";
            warnings.push(what.to_owned());
        }
        let (start, until) = (self.start(&inputs), self.until());
        self.times_of_files(&inputs, timestamp_field.is_some(), clock, &start, until);
        let kafka = properties::read("kafka", self.given.all("kafka"), outside.env, &mut self.problems);
        let kafka_used =
            inputs.iter().map(|input| &input.broker).chain([&output_broker]).any(|url| brokers::is_kafka(url));
        if !kafka.is_empty() && !kafka_used {
            self.problem("--kafka without a broker that is Kafka", "leave it out, or give --brokers host:port");
        }
        let on_lost_offset = self.on_lost_offset(&inputs);
        let create_topics = self.create_topics(&output_broker);
        SyncConfig {
            output_broker,
            joined_topic,
            delay_topic,
            dead_letter_topic,
            window,
            remember: self.duration("remember").unwrap_or(window * 10),
            max_wait,
            duplicates: self.choice("duplicates", &[("last", Duplicates::Last), ("first", Duplicates::First)]),
            late: self.choice("late", &[("join", Late::Join), ("drop", Late::Drop)]),
            at_end,
            key_types: self.choice("key_types", &[("typed", KeyTypes::Typed), ("text", KeyTypes::Text)]),
            timestamp_field,
            clock,
            remember_ids: self.duration("remember_ids").unwrap_or(DEFAULT_REMEMBER_IDS),
            max_drift,
            stuck_after: self.duration_or_off("stuck_after").unwrap_or(Some(Duration::from_secs(60))),
            max_ahead: self.duration("max_ahead").unwrap_or(Duration::from_secs(3600)),
            on_null,
            on_bad_record,
            max_state_bytes: self.read("max_state", units::bytes),
            start,
            start_given: self.given.get("start").is_some(),
            until,
            group,
            discovery: self.discovery(until),
            on_lost_offset,
            max_records: self.max_records(),
            create_topics,
            kafka,
            backend_folder,
            store,
            take_over: self.given.get("take_over").is_some(),
            accept_changes: self.given.get("accept_changes").is_some(),
            checkpoint_every: self.duration("checkpoint_every"),
            workers,
            connect_timeout: self.duration("connect_timeout").unwrap_or(cluster::CONNECT_TIMEOUT),
            peer_timeout: self.peer_timeout(),
            supervision,
            warnings,
            inputs,
        }
    }

    /// Names every required option that is missing.
    fn required(&mut self) {
        self.text("brokers"); // notes an empty one
        let urls = ["topic_one", "topic_two"].iter().all(|name| self.given.get(name).is_some_and(broker::is_url));
        for flag in FLAGS.iter().filter(|flag| flag.group == Group::Required && !self.given.meant(flag.name)) {
            match flag.name {
                "brokers" if urls => {}
                "window_time" if self.given.by_letter("threads") => {
                    let threads = self.given.get("threads").unwrap_or_default();
                    self.problem(
                        format!("-w {threads} without --window_time"),
                        format!(
                            "-w is timely's number of worker threads here, in FASTEN's job it was the window: \
                             write --window_time {threads} for a window of {threads} seconds, and -w only for workers"
                        ),
                    );
                }
                name => {
                    let value = flag.value.unwrap_or_default();
                    self.problem(format!("--{name} is missing"), format!("add --{name} {value} ({})", flag.help));
                }
            }
        }
    }

    fn input(&mut self, side: &str) -> Input {
        let given = self.text(&format!("topic_{side}")).unwrap_or_default();
        let brokers = self.given.get("brokers").unwrap_or_default();
        let (broker, topic) = broker::split_topic(brokers, &given).unwrap_or_else(|error| {
            self.problem(format!("--topic_{side}"), error.to_string()); // which quotes it, without a password
            Default::default()
        });
        let name = self.text(&format!("name_{side}")).or_else(|| broker::topic_name(&broker, &topic));
        let name = name.unwrap_or_else(|| {
            // A text that is wrong has a name neither; that is said where it is checked.
            if !topic.is_empty()
                && !self.given.meant(&format!("name_{side}"))
                && broker::source(&broker, &topic, &Default::default()).is_ok()
            {
                let fix = format!("say what the side is called in the output: --name_{side} NAME");
                self.problem(format!("--topic_{side} \"{given}\" may be several topics"), fix);
            }
            topic.clone()
        });
        let option = format!("topic_{side}_keys");
        let keys = self.read(&option, |text| Path::list(text).map_err(|problems| problems.join("; ")));
        Input { broker, topic, name, keys: keys.unwrap_or_default() }
    }

    /// What can be wrong between the two sides.
    fn sides(&mut self, inputs: &[Input]) {
        let (one, two) = (&inputs[0], &inputs[1]);
        if one.topic.is_empty() || two.topic.is_empty() {
            // Said already.
        } else if broker::same(&one.broker, &two.broker) && broker::overlap(&one.broker, &one.topic, &two.topic) {
            let what = match one.topic == two.topic {
                true => format!("both sides are topic \"{}\" of the same broker", one.topic),
                false => format!("\"{}\" and \"{}\" mean the same topic of the same broker", one.topic, two.topic),
            };
            self.problem(
                what,
                "a topic cannot be synchronized with itself: give --topic_one and --topic_two different topics",
            );
        } else if one.name == two.name {
            let what = format!("both sides are called \"{}\"", one.name);
            self.problem(what, "give one of them another name in the output: --name_one NAME or --name_two NAME");
        }
        for (side, input) in [("one", one), ("two", two)] {
            if RESERVED.contains(&input.name.as_str()) {
                let what = format!("side {side} is called \"{}\"", input.name);
                self.problem(
                    what,
                    format!("the output has a member of that name already: give another one with --name_{side} NAME"),
                );
            }
        }
        let (one, two) = (one.keys.len(), two.keys.len());
        if one != two && one > 0 && two > 0 {
            self.problem(
                format!("--topic_one_keys has {one} fields and --topic_two_keys has {two}"),
                "both keys need the same number of fields; a comma stands between fields, a dot inside of a path",
            );
        }
    }

    fn output_broker(&mut self, inputs: &[Input]) -> String {
        if let Some(broker) = self.text("output_brokers") {
            return broker;
        }
        match self.given.get("brokers") {
            Some(broker) => broker.to_owned(),
            None => {
                if !broker::same(&inputs[0].broker, &inputs[1].broker) {
                    self.problem(
                        "the inputs are in two brokers",
                        "say where the outputs are: --output_brokers BROKERS",
                    );
                }
                inputs[0].broker.clone()
            }
        }
    }

    /// No two outputs may be the same topic, and none may be an input.
    fn outputs(&mut self, inputs: &[Input], broker: &str, topics: [Option<&String>; 3]) {
        const OPTIONS: [&str; 3] = ["output_topic", "delay_topic", "dead_letter_topic"];
        for (index, topic) in topics.iter().enumerate() {
            let Some(topic) = topic else { continue };
            let option = OPTIONS[index];
            if let Some(other) = topics[..index].iter().position(|other| *other == Some(*topic)) {
                self.problem(
                    format!("--{} and --{option} are both \"{topic}\"", OPTIONS[other]),
                    "give them different names",
                );
            }
            let reads =
                |input: &&Input| broker::same(&input.broker, broker) && broker::overlap(broker, &input.topic, topic);
            if let Some(input) = inputs.iter().find(reads) {
                let fix = "the job would read what it writes: change the name or --topic_prefix";
                let what = match input.topic == **topic {
                    true => format!("--{option} is \"{topic}\", which is an input"),
                    false => format!("--{option} is \"{topic}\", which the input \"{}\" means too", input.topic),
                };
                self.problem(what, fix);
            }
        }
    }

    /// What the adapters say about brokers, topics and properties. Nothing is connected to.
    fn check_brokers(&mut self, config: &SyncConfig, outside: &Outside<'_>) {
        let mut said: Vec<String> = Vec::new();
        let mut usable = !config.output_broker.is_empty();
        let output_option = if self.given.get("output_brokers").is_some() { "--output_brokers" } else { "--brokers" };
        let inputs = ["--topic_one", "--topic_two"].into_iter().zip(&config.inputs);
        let inputs =
            inputs.filter(|(_, input)| !input.topic.is_empty()).map(|(o, i)| (o, &i.broker, Some(i.topic.as_str())));
        for (option, broker, topic) in inputs.chain([(output_option, &config.output_broker, None)]) {
            if broker.is_empty() {
                continue; // said already
            }
            let checked = (outside.broker)(broker, topic, &config.broker_options(broker));
            usable &= topic.is_some() || checked.is_ok();
            // The same is often wrong for both inputs and the output.
            if let Some(text) =
                checked.err().map(|error| error.report().replace('\n', "; ")).filter(|text| !said.contains(text))
            {
                self.problem(option, text.clone());
                said.push(text);
            }
        }
        let broker = &config.output_broker;
        let outputs = [
            ("--output_topic", self.given.get("output_topic").and(Some(&config.joined_topic))),
            ("--delay_topic", config.delay_topic.as_ref()),
            ("--dead_letter_topic", config.dead_letter_topic.as_ref()),
        ];
        for (option, name) in outputs.into_iter().filter_map(|(option, name)| Some((option, name?))) {
            if let (true, Err(error)) = (usable, (outside.output)(broker, name)) {
                self.problem(option, error.to_string());
            }
        }
    }

    fn create_topics(&mut self, output_broker: &str) -> Option<CreateTopics> {
        let create = self.read("create_topics", |text| {
            let (partitions, replication) = match text.split_once(':') {
                Some((partitions, replication)) => (partitions, Some(replication)),
                None => (text, None),
            };
            let partitions = partitions.parse().ok().filter(|number| (1..=100_000).contains(number));
            let replication =
                replication.map(|number| number.parse().ok().filter(|number| (1..=1000).contains(number)));
            match (partitions, replication) {
                (Some(partitions), None) => Ok(CreateTopics { partitions, replication: None }),
                (Some(partitions), Some(Some(number))) => Ok(CreateTopics { partitions, replication: Some(number) }),
                _ => Err("write PARTITIONS or PARTITIONS:REPLICATION, such as 8 or 8:3".to_owned()),
            }
        });
        if create.is_some() && !output_broker.is_empty() && !brokers::is_kafka(output_broker) {
            let what = "--create_topics with outputs that are not in Kafka";
            self.problem(what, "leave it out: files and topics in memory are made by themselves");
        }
        create
    }

    /// What can be wrong with the fields of one side together.
    fn fields(&mut self, inputs: &[Input], timestamp: Option<&Path>) {
        for (side, input) in ["one", "two"].into_iter().zip(inputs) {
            if let (false, Err(error)) = (input.keys.is_empty(), Extractor::new(&input.keys, timestamp)) {
                let text = self.given.get(&format!("topic_{side}_keys")).unwrap_or_default();
                self.problem(format!("--topic_{side}_keys \"{text}\""), error.to_string().replace('\n', "; "));
            }
        }
    }

    fn window(&mut self) -> Duration {
        self.read("window_time", units::seconds).unwrap_or_default()
    }

    fn clock(&mut self) -> ClockMode {
        let event = self.choice("clock", &[("auto", false), ("event", true)]);
        let max_disorder = self.duration("max_disorder");
        let idle_after = self.duration("idle_after");
        if !event {
            for name in ["max_disorder", "idle_after"] {
                if self.given.get(name).is_some() {
                    self.problem(
                        format!("--{name} without --clock event"),
                        "add --clock event, or leave it out: it means nothing else",
                    );
                }
            }
            return ClockMode::Auto;
        }
        ClockMode::Event {
            max_disorder: max_disorder.unwrap_or(Duration::from_secs(3600)),
            idle_after: idle_after.unwrap_or(Duration::from_secs(60)),
        }
    }

    fn policies(&mut self, dead_letters: bool) -> (OnBad, OnBad) {
        let on_null = self.choice("on_null", &[("skip", OnBad::Skip), ("dead_letter", OnBad::DeadLetter)]);
        let default = if dead_letters { OnBad::DeadLetter } else { OnBad::Fail };
        let choices = [("fail", OnBad::Fail), ("dead_letter", OnBad::DeadLetter), ("skip", OnBad::Skip)];
        let on_bad_record = self.read("on_bad_record", |text| find_choice(text, &choices)).unwrap_or(default);
        let asked = [("on_null", on_null == OnBad::DeadLetter), ("on_bad_record", on_bad_record == OnBad::DeadLetter)];
        for (name, _) in asked.into_iter().filter(|(_, asked)| *asked && !dead_letters) {
            if !self.given.meant("dead_letter_topic") {
                self.problem(format!("--{name} dead_letter needs a topic"), "add --dead_letter_topic NAME");
            }
        }
        (on_null, on_bad_record)
    }

    fn peer_timeout(&mut self) -> Option<Duration> {
        const SHORTEST: Duration = Duration::from_secs(1); // a machine under load does not keep to less
        match self.duration_or_off("peer_timeout").unwrap_or(Some(cluster::PEER_TIMEOUT)) {
            Some(timeout) if timeout < SHORTEST => {
                self.problem(format!("--peer_timeout {timeout:?}"), "it must be at least 1s, or off");
                None
            }
            timeout => timeout,
        }
    }

    fn max_records(&mut self) -> Option<u64> {
        let max = self.read("max_records", |text| match text.parse() {
            Ok(-1) => Ok(None),
            Ok(number @ 1..) => Ok(Some(number as u64)),
            Ok(_) | Err::<i64, _>(_) => Err("write -1 for all, or a number from 1".to_owned()),
        });
        max.flatten()
    }

    /// Files say no times of their messages: what needs them is refused before anything is read.
    fn times_of_files(&mut self, inputs: &[Input], has_field: bool, clock: ClockMode, start: &Position, until: Until) {
        let Some(file) = inputs.iter().find(|input| input.broker.starts_with("file:")) else { return };
        let name = &file.name;
        if matches!(clock, ClockMode::Event { .. }) && !has_field {
            let what =
                format!("--clock event, and the messages of \"{name}\" have no times of their own: they are in files");
            self.problem(what, "add --timestamp_field PATH, or leave --clock event out");
        }
        let times = [
            ("start", matches!(start, Position::Timestamp(_)), "committed, earliest, latest or FILE=POSITION"),
            ("until", matches!(until, Until::Timestamp(_)), "end or never"),
        ];
        for (flag, is_time, fix) in times {
            if is_time {
                let what = format!(
                    "--{flag} with a time, and the messages of \"{name}\" have none of their own: they are in files"
                );
                self.problem(what, format!("write --{flag} {fix}"));
            }
        }
    }

    /// FASTEN's options for durable state: accepted, so that its command lines run, and never in silence.
    fn state(&mut self, outside: &Outside<'_>) -> (Option<String>, Vec<Property>) {
        let folder = self.text("backendFolder");
        let production = self.given.get("production").is_some();
        let folder = folder.or_else(|| production.then(|| FASTEN_FOLDER.to_owned()));
        let wrong = self.problems.len();
        let store = properties::read("store", self.given.all("store"), outside.env, &mut self.problems);
        if let Some(folder) = folder.as_ref().filter(|_| self.problems.len() == wrong)
            && let Err(error) = checkpoint::open(folder, &config::properties(&store))
        {
            self.problem("--backendFolder", error.report().replace('\n', "; "));
        }
        for flag in ["take_over", "accept_changes", "checkpoint_every", "store"] {
            if folder.is_none() && self.given.get(flag).is_some() {
                self.problem(
                    format!("--{flag} without a folder of checkpoints"),
                    "add --backendFolder DIR, or leave it out",
                );
            }
        }
        (folder, store)
    }
}

fn find_choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice).ok_or_else(|| {
        match closest(text, names.iter().copied()) {
            Some(name) => format!("did you mean {name}? (possible: {})", names.join(", ")),
            None => format!("write one of {}", names.join(", ")),
        }
    })
}
