//! The Kafka sink against a real broker, judged by Kafka's own Java tools.
//!
//! What it would catch: a key on another partition than Java's producer would choose; a topic made twice, or not at all; a
//! compression that is asked for and not used; a record too large that ends the job where a dead letter was wanted, takes its
//! neighbours with it, or is lost without a count; a publish that waits in steps.

use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use serde_json::Value;
use syncline::broker::{BrokerOptions, CreateTopics, kafka};
use syncline::message::Reason;
use syncline::sink::{Entity, OutputRecord, RunNumber, Slot, Undelivered, Writer, WriterContext};
use syncline::{Error, ErrorKind};

use crate::kafka::{Topic, admin, block_on, broker, tool};

/// A name that nobody else uses.
fn unique(name: &str) -> String {
    let since = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos();
    format!("{name}-{since}-{}", std::process::id())
}

fn options(properties: &[(&str, &str)]) -> BrokerOptions {
    let properties = properties.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    BrokerOptions { properties, ..BrokerOptions::default() }
}

/// A writer of topics, the last of which takes dead letters if that is said.
fn open(topics: &[&str], letters: bool, options: &BrokerOptions) -> Result<Box<dyn Writer>, Error> {
    let mut sink = kafka::sink(&broker(), options).expect("good options")().expect("a sink");
    sink.open(&WriterContext {
        slot: Slot(0),
        output: 0,
        run: RunNumber(1),
        entities: topics.iter().map(|topic| topic.to_string()).collect(),
        dead_letter: letters.then(|| Entity(topics.len() - 1)),
        outbox: false,
    })
}

fn record(key: &str, value: impl Into<Bytes>) -> OutputRecord {
    OutputRecord { key: Some(key.to_string().into()), ..OutputRecord::from(value.into()) }
}

/// Publishes records of the first output as one range.
fn publish(writer: &mut dyn Writer, epoch: u64, records: Vec<OutputRecord>) -> Result<Undelivered, Error> {
    for record in records {
        writer.write(epoch, Entity(0), record)?;
    }
    writer.prepare(epoch, epoch + 1)?;
    writer.publish(epoch, epoch + 1, None)
}

/// A topic with properties of its own.
fn make(name: &str, properties: &[(&str, &str)]) -> Topic {
    let name = unique(name);
    let mut topic = NewTopic::new(&name, 1, TopicReplication::Fixed(1));
    for (property, value) in properties {
        topic = topic.set(property, value);
    }
    let made = block_on(admin().create_topics([&topic], &AdminOptions::new())).expect("an answer");
    made[0].as_ref().expect("the topic can be made");
    Topic(name)
}

/// Partition, key and value of every record, as Java reads them.
fn read(topic: &Topic, count: usize) -> Vec<(u32, String, String)> {
    let parts = |(partition, line): (u32, String)| {
        let mut parts = line.splitn(3, '\t').skip(1).map(str::to_owned);
        (partition, parts.next().expect("a key"), parts.next().expect("a value"))
    };
    topic.consume(count).into_iter().map(parts).collect()
}

fn letters(topic: &Topic, count: usize) -> Vec<Value> {
    read(topic, count).iter().map(|(_, _, value)| serde_json::from_str(value).expect("JSON")).collect()
}

fn counted(reason: Reason, count: u64) -> Undelivered {
    let mut counts = Undelivered::default();
    counts[reason as usize] = count;
    counts
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_thousand_keys_are_on_javas_partitions() {
    let (ours, javas) = (Topic::new("ours", 8), Topic::new("javas", 8));
    let scripts = ["org.example:artifact", "größe", "κλειδί", "ключ", "鍵", "🔑", "a b\u{301}", "\u{7f}", "x"];
    let mut keys: Vec<String> =
        (1..1000).map(|i| format!("{}-{i}", scripts[i % scripts.len()].repeat(1 + i % 7))).collect();
    keys.push(String::new());
    let mut writer = open(&[&ours.0], false, &options(&[])).unwrap();
    let records = keys.iter().zip(0..).map(|(key, i)| record(key, format!("v{i}"))).collect();
    assert_eq!(publish(&mut *writer, 1, records).unwrap(), Undelivered::default());
    javas.produce(&keys.iter().zip(0..).map(|(key, i)| format!("{key}=v{i}\n")).collect::<String>());
    let (ours, javas) = (read(&ours, 1000), read(&javas, 1000));
    assert_eq!(ours, javas);
    let used: std::collections::BTreeSet<u32> = ours.iter().map(|(partition, ..)| *partition).collect();
    assert_eq!(used.len(), 8, "{used:?}");
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_missing_topic_is_made_once_by_many_workers_or_named() {
    let names = [unique("made"), unique("made-too")];
    let topics = [names[0].as_str(), names[1].as_str()];
    let Err(error) = open(&topics, false, &options(&[])) else { panic!("they are not there") };
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::NotFound, false));
    assert!(names.iter().all(|name| error.to_string().contains(name)), "{error}");
    assert!(error.to_string().contains("--create_topics PARTITIONS"), "{error}");

    let create = |partitions, replication| BrokerOptions {
        create_topics: Some(CreateTopics { partitions, replication }),
        ..BrokerOptions::default()
    };
    let Err(error) = open(&topics, false, &create(2, Some(3))) else { panic!("there is one broker, not three") };
    assert!(!error.is_retryable() && error.report().contains("replication factor"), "{error:?}");

    std::thread::scope(|scope| {
        for worker in 0..6 {
            let (topics, options) = (topics, create(3, None));
            scope.spawn(move || {
                let mut writer = open(&topics, false, &options).expect("the topics are there");
                publish(&mut *writer, 1, vec![record("k", format!("{worker}"))]).expect("they can be written");
            });
        }
    });
    for name in &names {
        let said = tool(&["topics", "--describe", "--topic", name], "");
        assert!(said.contains("PartitionCount: 3") && said.contains("ReplicationFactor: 1"), "{said}");
    }
    let (made, other) = (Topic(names[0].clone()), Topic(names[1].clone()));
    assert_eq!(made.ends().iter().sum::<u64>(), 6);
    assert_eq!(other.ends(), [0, 0, 0]);
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn compression_is_used_and_java_reads_it() {
    const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
    let prefix = unique("squeezed");
    let name = |codec: &str| format!("{prefix}.{codec}");
    let topics = CODECS.map(|codec| Topic::named(&name(codec), 1));
    for (codec, topic) in CODECS.iter().zip(&topics) {
        let mut writer = open(&[&topic.0], false, &options(&[("compression.type", codec)])).unwrap();
        let records = (0..500).map(|i| record(&format!("{codec}-{i}"), format!("{i}-{}", "abcdefgh".repeat(125))));
        publish(&mut *writer, 1, records.collect()).unwrap();
    }
    let list = CODECS.map(name).join(",");
    let said = tool(&["sizes", "--describe", "--topic-list", &list], "");
    let json = said.lines().find(|line| line.starts_with('{')).expect("a line of JSON");
    let said: Value = serde_json::from_str(json).expect("JSON");
    let parts = said["brokers"][0]["logDirs"][0]["partitions"].as_array().expect("partitions");
    let size = |codec: &str| {
        let part = parts.iter().find(|part| part["partition"] == format!("{}-0", name(codec))).expect("is there");
        part["size"].as_u64().expect("a size")
    };
    assert!(size("none") > 500_000, "{said}");
    assert!(CODECS[1..].iter().all(|codec| size(codec) * 5 < size("none")), "{said}");

    let pattern = format!("{prefix}.*");
    let mut arguments = vec!["consume", "--include", &pattern, "--from-beginning", "--max-messages", "2500"];
    arguments.extend(["--timeout-ms", "30000", "--property", "print.key=true"]);
    let text = tool(&arguments, "");
    for codec in CODECS {
        let values = text.lines().filter_map(|line| line.split_once('\t')).filter(|(key, _)| key.starts_with(codec));
        let good = values.filter(|(key, value)| {
            let number = key.rsplit_once('-').expect("a number").1;
            *value == format!("{number}-{}", "abcdefgh".repeat(125))
        });
        assert_eq!(good.count(), 500, "{codec}");
    }
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_record_that_the_topic_finds_too_large_becomes_a_dead_letter_and_its_neighbours_pass() {
    let (topic, dead) = (make("narrow", &[("max.message.bytes", "100000")]), Topic::new("dead", 1));
    let mut writer = open(&[&topic.0, &dead.0], true, &options(&[])).unwrap();
    // 300 records of 1 KB make batches that are refused as well, though no record is too large.
    let mut records: Vec<OutputRecord> = (0..300).map(|i| record(&format!("k{i:03}"), "x".repeat(1000))).collect();
    records.insert(150, record("large", "x".repeat(200_000)));
    assert_eq!(publish(&mut *writer, 1, records).unwrap(), counted(Reason::TooLarge, 1));
    let mut keys: Vec<String> = read(&topic, 300).into_iter().map(|(_, key, _)| key).collect();
    keys.sort();
    assert_eq!(keys, (0..300).map(|i| format!("k{i:03}")).collect::<Vec<_>>());
    assert_eq!(topic.ends(), [300]);

    let letter = &letters(&dead, 1)[0];
    assert_eq!((letter["reason"].as_str(), letter["topic"].as_str()), (Some("too_large"), Some(topic.0.as_str())));
    assert_eq!((letter["key"].as_str(), letter["size"].as_u64()), (Some("large"), Some(200_005)));
    assert_eq!(letter["limit"].as_u64(), Some(100_000), "{letter}");
    assert!(letter["error"].as_str().is_some_and(|error| error.contains("too large")), "{letter}");
    assert_eq!(dead.ends(), [1]);

    // The next range is as if nothing had been.
    assert_eq!(publish(&mut *writer, 2, vec![record("k", "v")]).unwrap(), Undelivered::default());
    assert_eq!(topic.ends(), [301]);

    let mut writer = open(&[&topic.0], false, &options(&[])).unwrap();
    let error = publish(&mut *writer, 1, vec![record("large", "x".repeat(200_000))]).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Write, false), "{error:?}");
    for part in
        [topic.0.as_str(), "\"large\"", "200005", "100000", "max.message.bytes", "kafka-configs.sh", "dead letters"]
    {
        assert!(error.to_string().contains(part), "{part} is not in: {error}");
    }
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn what_the_client_or_the_broker_refuses_otherwise_becomes_a_dead_letter_too() {
    let (topic, dead) = (make("compacted", &[("cleanup.policy", "compact")]), Topic::new("dead", 1));
    let narrow = options(&[("message.max.bytes", "2000")]);
    let mut writer = open(&[&topic.0, &dead.0], true, &narrow).unwrap();
    let keyless = OutputRecord::from("a compacted topic wants keys");
    let records = vec![record("a", "1"), record("large", "x".repeat(3000)), keyless, record("b", "2")];
    let mut expected = counted(Reason::TooLarge, 1);
    expected[Reason::Refused as usize] = 1;
    assert_eq!(publish(&mut *writer, 1, records).unwrap(), expected);
    let keys: Vec<String> = read(&topic, 2).into_iter().map(|(_, key, _)| key).collect();
    assert_eq!((keys, topic.ends().iter().sum::<u64>()), (vec!["a".to_owned(), "b".to_owned()], 2));
    let letters = letters(&dead, 2);
    let found = |reason: &str| letters.iter().find(|letter| letter["reason"] == reason).expect("a letter");
    assert_eq!((found("too_large")["key"].as_str(), found("too_large")["limit"].as_u64()), (Some("large"), Some(2000)));
    assert!(found("refused")["error"].as_str().is_some_and(|error| !error.is_empty()), "{letters:?}");
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn publishing_takes_milliseconds_not_steps() {
    let topic = Topic::new("quick", 1);
    let mut writer = open(&[&topic.0], false, &options(&[])).unwrap();
    publish(&mut *writer, 1, vec![record("k", "first: asks for leaders and a producer id")]).unwrap();
    let start = Instant::now();
    for epoch in 2..102 {
        publish(&mut *writer, epoch, vec![record("k", "v")]).unwrap();
    }
    // In steps of 100 ms it would be ten seconds.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(topic.ends(), [101]);
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn the_job_counts_outputs_that_are_too_large_and_its_line_adds_up() {
    let (one, two) = (Topic::new("one", 2), Topic::new("two", 2));
    let side = |large: usize| {
        let line = |i: usize| format!("{i}={{\"k\":{i},\"x\":\"{}\"}}\n", "x".repeat(if i == 7 { large } else { 10 }));
        (0..40).map(line).collect::<String>()
    };
    one.produce(&side(60_000));
    two.produce(&side(60_000));
    let prefix = unique("counts");
    let joined = Topic::named(&format!("{prefix}.sync.out"), 1);
    let narrow = rdkafka::admin::AlterConfig::new(rdkafka::admin::ResourceSpecifier::Topic(&joined.0));
    let narrow = narrow.set("max.message.bytes", "100000");
    block_on(admin().alter_configs([&narrow], &AdminOptions::new())).expect("an answer")[0].as_ref().expect("altered");
    let dead = Topic::named(&format!("{prefix}.dead.out"), 1);
    let run = |more: &[&str]| {
        let hosts = broker();
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        command.args(["sync", "-b", &hosts, "--topic_one", &one.0, "--topic_two", &two.0, "--topic_prefix", &prefix]);
        command.args(["--topic_one_keys", "k", "--topic_two_keys", "k", "-o", "sync", "--window_time", "10"]);
        command.args(["--start", "earliest", "--until", "end", "-w", "2"]).args(more);
        let output = command.output().expect("the binary ends");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, out, err) = run(&["--dead_letter_topic", "dead"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let line = " joined_records=80 expired=0 pending=0 dropped=0 joined=40 late=0 delayed=0 unmatched=0 undelivered=1 \
                undelivered.too_large=1 difference=0";
    assert!(out.contains(line), "{out}");
    assert_eq!((joined.ends(), dead.ends()), (vec![39], vec![1]));
    let letter = &letters(&dead, 1)[0];
    assert_eq!((letter["key"].as_str(), letter["topic"].as_str()), (Some("7"), Some(joined.0.as_str())));

    let (code, out, err) = run(&[]);
    assert_eq!(code, Some(1), "{out}{err}");
    for part in ["refuses the record with key \"7\"", "at most 100000", "kafka-configs.sh", "dead letters"] {
        assert!(err.contains(part), "{part} is not in: {err}");
    }
}
