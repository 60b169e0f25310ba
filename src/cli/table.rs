//! The one table of the options of `syncline sync`: parsing, help, suggestions and checks are all made from it.

/// An option.
#[derive(Debug)]
pub struct Flag {
    /// The long name, without dashes.
    pub name: &'static str,
    /// The letter, if it has one.
    pub letter: Option<char>,
    /// What its value is called in the help; `None` if it takes none.
    pub value: Option<&'static str>,
    /// What holds where it is not given, as the help says it.
    pub default: Option<&'static str>,
    /// Whether it may be given more than once.
    pub repeats: bool,
    /// The part of the help where it stands.
    pub group: Group,
    /// What it does, in one or two sentences.
    pub help: &'static str,
}

/// The parts of the help, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// What nothing works without.
    Required,
    /// Where results go.
    Outputs,
    /// What the fields of a value mean.
    Records,
    /// How long to wait, and on which clock.
    Time,
    /// What happens to records that do not fit.
    Policies,
    /// Where to start and to end.
    Positions,
    /// What survives a restart.
    State,
    /// How brokers are reached.
    Brokers,
    /// Workers and processes: timely's own options, with its letters.
    Workers,
    /// Processes that lose each other, and restarts.
    Cluster,
    /// Options of the FASTEN job that only mean something to Flink.
    Compatibility,
    /// The rest.
    Other,
}

impl Group {
    /// Every group, in the order of the help.
    pub const ALL: [(Group, &str); 12] = [
        (Required, "Required"),
        (Outputs, "Outputs"),
        (Records, "Keys and values"),
        (Time, "Time"),
        (Policies, "Policies"),
        (Positions, "Start and end"),
        (State, "State that survives"),
        (Brokers, "Brokers"),
        (Workers, "Workers and processes (the options and letters of timely)"),
        (Cluster, "Processes that end or lose each other (they talk in plain text: use a network that you trust)"),
        (Compatibility, "Compatibility with the FASTEN job"),
        (Other, "Other"),
    ];
}

const fn flag(
    group: Group,
    name: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Flag {
    let value = if value.is_empty() { None } else { Some(value) };
    let default = if default.is_empty() { None } else { Some(default) };
    Flag { name, letter: None, value, default, repeats: false, group, help }
}

impl Flag {
    const fn letter(mut self, letter: char) -> Self {
        self.letter = Some(letter);
        self
    }

    const fn repeats(mut self) -> Self {
        self.repeats = true;
        self
    }
}

use Group::{
    Brokers, Cluster, Compatibility, Other, Outputs, Policies, Positions, Records, Required, State, Time, Workers,
};

/// Every option of `syncline sync`.
#[rustfmt::skip]
pub const FLAGS: &[Flag] = &[
    flag(Required, "brokers", "BROKERS", "", "where the topics are: host:port,host:port for Kafka, or a URL such as file:DIR").letter('b'),
    flag(Required, "topic_one", "TOPIC", "", "the first topic; may be a whole URL that ends with the topic; in Kafka also a list a,b, partitions a[0,2], or a regular expression for whole names: ^a-.*"),
    flag(Required, "topic_two", "TOPIC", "", "the second topic; may be in another broker"),
    flag(Required, "topic_one_keys", "PATHS", "", "the key of the first topic: comma-separated paths into its JSON values, a.b.0.c or /a/b/0/c"),
    flag(Required, "topic_two_keys", "PATHS", "", "the key of the second topic: as many fields as the first has"),
    flag(Required, "output_topic", "NAME", "", "joined records go to PREFIX.NAME.out").letter('o'),
    flag(Required, "window_time", "SECONDS", "", "how long a record waits for its partner"),

    flag(Outputs, "topic_prefix", "PREFIX", "fasten", "the first part of the names of the outputs"),
    flag(Outputs, "enable_delay", "true|false", "false", "whether records whose partner has not come in time are written to the delay topic"),
    flag(Outputs, "delay_topic", "NAME", "", "delays go to PREFIX.NAME.out; needed with --enable_delay true"),
    flag(Outputs, "dead_letter_topic", "NAME", "", "records that cannot be used go to PREFIX.NAME.out, with reason and position"),
    flag(Outputs, "create_topics", "PARTITIONS[:REPLICATION]", "a missing topic is an error", "topics of the outputs that Kafka does not have are made, with so many partitions and replicas: 8 or 8:3"),
    flag(Outputs, "output_brokers", "BROKERS", "where the inputs are", "where the outputs are"),
    flag(Outputs, "name_one", "NAME", "the topic", "what the first side is called in the output; needed for a list or a regular expression"),
    flag(Outputs, "name_two", "NAME", "the topic", "what the second side is called in the output"),

    flag(Records, "key_types", "typed|text", "typed", "typed: 1 = 1.0, but 1 is not \"1\"; text: compare key fields as text, as FASTEN does"),
    flag(Records, "timestamp_field", "PATH", "the message's own", "the field with the time of a record: milliseconds since 1970 or RFC 3339"),

    flag(Time, "clock", "auto|event", "auto", "auto: a partner had the whole window of real opportunity to come; event: the records' timestamps alone decide"),
    flag(Time, "max_disorder", "DURATION", "1h", "with --clock event: how far behind the newest a timestamp may be"),
    flag(Time, "idle_after", "DURATION", "1m", "with --clock event: a split that is silent for so long holds the clock no more"),
    flag(Time, "max_ahead", "DURATION", "1h", "a timestamp further ahead of the wall clock is not believed"),
    flag(Time, "max_drift", "DURATION|off", "the window; 1m with --clock event", "how far a split may be ahead of the job's clock before it waits in its broker for the others"),
    flag(Time, "max_wait", "DURATION", "none", "a key waits no longer, however often its records are replaced"),
    flag(Time, "remember", "DURATION", "10 windows", "how long a finished key is remembered, to drop duplicates and to join late partners"),

    flag(Policies, "duplicates", "last|first", "last", "which of several records of a side and key counts"),
    flag(Policies, "late", "join|drop", "join", "what becomes of a partner that comes after the delay: joined and marked late, or dropped"),
    flag(Policies, "at_end", "delay|keep", "delay", "what becomes of waiting records when all inputs have ended"),
    flag(Policies, "on_null", "skip|dead_letter", "skip", "what becomes of messages without a value"),
    flag(Policies, "on_bad_record", "fail|dead_letter|skip", "dead_letter if there is a --dead_letter_topic, else fail", "what becomes of records without a usable key or timestamp"),
    flag(Policies, "max_state", "BYTES", "no limit", "a worker whose state is larger stops reading, and then the job ends with a text: 512MiB, 2GiB; looked at between epochs of up to 8 MiB"),

    flag(Positions, "start", "POSITION", "committed", "where to start: committed (earliest where nothing is committed), committed-or-latest, earliest, latest, a TIME, or offsets by split: TOPIC[0]=123,TOPIC[1]=7 (earliest for splits that are not named)"),
    flag(Positions, "until", "never|end|TIME", "never", "when to end; end: where the topics end at the start"),
    flag(Positions, "discovery", "DURATION|off", "5m in Kafka, 1s in folders", "how often new topics, partitions or files are looked for; they are read from their beginning; off with --until"),
    flag(Positions, "on_lost_offset", "fail|earliest|latest", "fail", "what happens in Kafka when the messages at a position are gone; earliest, latest: go on there, and count what was lost"),
    flag(Positions, "group", "NAME", "fasten.ONE.TWO.sync", "the name to commit offsets under"),
    flag(Positions, "max_records", "NUMBER", "-1 (all)", "end after so many records"),

    flag(State, "backendFolder", "DIR", "/mnt/fasten/flink with --production, else none", "keep checkpoints in the folder TOPIC-ONE_TOPIC-TWO_sync below it, which all processes share: a restart goes on from the last one, with any number of workers; or in an object store: s3://BUCKET/PATH, abfs://CONTAINER/PATH"),
    flag(State, "checkpoint_every", "DURATION", "as fast as the disk and the outputs allow; 1s in object stores", "the least time from checkpoint to checkpoint: outputs come later by it, and less is written"),
    flag(State, "take_over", "", "", "take the folder from a run that lives, or seems to; that one ends. In an object store the latest run always does"),
    flag(State, "store", "PROPERTY=VALUE", "", "a property of the client of the object store, such as aws_region or azure_storage_account_name, beside those that the environment has (AWS_REGION, AZURE_STORAGE_ACCOUNT_NAME); ${VARIABLE} in a value comes from the environment, @FILE from a file").repeats(),
    flag(State, "accept_changes", "", "", "go on from a checkpoint that was made with other keys, topics, windows or policies"),

    flag(Brokers, "remember_ids", "DURATION", "10m", "how long ids of messages are remembered after a broker of queues has taken their acknowledgements, to drop what it delivers again; downtime does not count"),
    flag(Brokers, "stuck_after", "DURATION|off", "1m", "a reader to which nothing comes for so long, although its broker has messages, is opened anew"),
    flag(Brokers, "kafka", "PROPERTY=VALUE", "", "a property of librdkafka, for inputs and outputs; ${VARIABLE} in a value comes from the environment, @FILE from a file").repeats(),

    flag(Workers, "threads", "NUMBER", "1", "worker threads of each process").letter('w'),
    flag(Workers, "processes", "NUMBER", "1", "processes of the job").letter('n'),
    flag(Workers, "process", "INDEX", "0", "which of them this process is").letter('p'),
    flag(Workers, "hostfile", "FILE", "localhost:2101 and up", "a file with the address of each process, one a line").letter('h'),
    flag(Workers, "report", "", "", "accepted, as timely has it; who has come is always on the log").letter('r'),
    flag(Workers, "zerocopy", "", "", "exchange bytes between the threads of a process").letter('z'),
    flag(Workers, "progress-mode", "eager|demand", "demand", "when progress is told to other workers"),
    flag(Workers, "idle-spin", "MICROSECONDS", "10", "how long an idle worker polls before it sleeps"),

    flag(Cluster, "connect_timeout", "DURATION", "1m", "how long the processes may take to meet; then the job ends, and says who was missing"),
    flag(Cluster, "peer_timeout", "DURATION|off", "30s", "a process of which nothing was heard for so long (stopped, cut off) is given up, and the job ends; one that is killed is noticed at once"),
    flag(Cluster, "supervise", "", "", "start all -n processes of the job here and watch them: when one fails, the others are ended; addresses are those of -h, else on 127.0.0.1, from port 2101 if these are free"),
    flag(Cluster, "restart", "NUMBER|forever", "0", "start a job that has failed, was killed or has lost a process again, so often in a row (a run of 10 minutes counts anew); with --supervise all processes together, else this one; wrong options and configurations are not tried again"),
    flag(Cluster, "restart_delay", "DURATION", "10s", "the longest wait before a restart: 1s, 2s, 4s and so on up to it"),

    flag(Compatibility, "parallelism", "NUMBER", "processes x threads", "the total number of workers"),
    flag(Compatibility, "production", "", "", "keep state in the folder of FASTEN's job: --backendFolder /mnt/fasten/flink"),

    flag(Other, "help", "", "", "print this (-h is timely's hostfile)"),
    flag(Other, "version", "", "", "print the version"),
];

/// The option with this long name.
pub fn by_name(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// The option with this letter.
pub fn by_letter(letter: char) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.letter == Some(letter))
}

/// The name among `names` that somebody most likely meant by `text`.
pub fn closest<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let text = plain(text);
    let distance = |name: &str| strsim::damerau_levenshtein(&text, &plain(name));
    let best = names.into_iter().min_by_key(|name| distance(name))?;
    // A third of the letters may be wrong; or one name is the start of the other.
    let (whole, start) = (plain(best), text.as_str());
    let close = distance(best) * 3 <= text.len().max(3);
    (close || (start.len() >= 4 && (whole.starts_with(start) || start.starts_with(&whole)))).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_letters_are_there_once() {
        for (index, flag) in FLAGS.iter().enumerate() {
            for other in &FLAGS[..index] {
                assert_ne!(flag.name, other.name);
                assert!(flag.letter.is_none() || flag.letter != other.letter, "-{:?}", flag.letter);
            }
            assert!(Group::ALL.iter().any(|(group, _)| *group == flag.group));
        }
    }

    #[test]
    fn suggestions_are_close() {
        let names = || FLAGS.iter().map(|flag| flag.name);
        for (text, expected) in [
            ("topic-one", Some("topic_one")),
            ("window", Some("window_time")),
            ("backendfolder", Some("backendFolder")),
            ("ouput_topic", Some("output_topic")),
            ("progress_mode", Some("progress-mode")),
            ("xyzzy", None),
            ("q", None),
        ] {
            assert_eq!(closest(text, names()), expected, "{text}");
        }
    }
}
