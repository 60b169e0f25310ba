//! The source of the Kafka adapter in full, against a real broker: which topics are read, where reading begins, what happens when
//! positions, topics and transactions are not as one expects.
//!
//! What it would catch: a topic of a list that is mixed up with another one of the same partition; a late partition read from
//! its end; a position that is silently moved; a deleted topic that looks like an idle one; a split called caught up behind an
//! open transaction.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::admin::{AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};
use syncline::broker::{BrokerOptions, kafka};
use syncline::message::{Message, Offset, Offsets, SplitId, TimestampType};
use syncline::source::{Batch, Discovery, Evidence, Lost, OnLost, Otherwise, Position, Progress, Reader, Source};
use syncline::{Error, ErrorKind};

use crate::kafka::{PATIENCE, Topic, WAIT, admin, assignments, block_on, broker, read_all, read_until, text, tool};

/// A source of topics as they are written.
fn source_of(topics: &str, options: BrokerOptions) -> Box<dyn Source> {
    kafka::source(&broker(), topics, &options).expect("good options")().expect("a source")
}

fn source(topics: &str) -> Box<dyn Source> {
    source_of(topics, BrokerOptions::default())
}

fn losing(topic: &Topic, on_lost_offset: OnLost) -> Box<dyn Source> {
    source_of(&topic.0, BrokerOptions { on_lost_offset, ..BrokerOptions::default() })
}

pub(crate) fn producer() -> BaseProducer {
    ClientConfig::new()
        .set("bootstrap.servers", broker())
        .set("message.max.bytes", "50000000")
        .create()
        .expect("a client")
}

/// Writes values to a partition.
pub(crate) fn write(topic: &str, partition: i32, values: impl IntoIterator<Item = impl ToString>) {
    let producer = producer();
    for value in values {
        let value = value.to_string();
        let record = BaseRecord::to(topic).partition(partition).key("k").payload(&value);
        producer.send(record).map_err(|(error, _)| error).expect("room in the queue");
    }
    producer.flush(PATIENCE).expect("the broker has them");
}

/// Removes what is below an offset, as retention does.
pub(crate) fn remove_below(topic: &str, partition: i32, offset: i64) {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, KafkaOffset::Offset(offset)).unwrap();
    let removed = block_on(admin().delete_records(&list, &AdminOptions::new())).expect("an answer");
    removed.elements()[0].error().expect("removed");
}

pub(crate) fn add_partitions(topic: &str, count: usize) {
    let made = block_on(admin().create_partitions(&[NewPartitions::new(topic, count)], &AdminOptions::new()));
    made.expect("an answer")[0].as_ref().expect("more partitions");
}

fn delete(topic: &str) {
    block_on(admin().delete_topics(&[topic], &AdminOptions::new())).expect("an answer")[0].as_ref().expect("deleted");
}

/// A topic of its own with properties.
fn topic_with(name: &str, properties: &[(&str, &str)]) -> Topic {
    let name = format!("{name}-{}-{}", std::process::id(), std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos());
    let new = NewTopic::new(&name, 1, TopicReplication::Fixed(1));
    let new = properties.iter().fold(new, |new, (property, value)| new.set(property, value));
    block_on(admin().create_topics([&new], &AdminOptions::new())).unwrap()[0].as_ref().expect("it is made");
    Topic(name)
}

fn values(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| text(&message.value)).collect()
}

fn sorted(mut values: Vec<&str>) -> Vec<&str> {
    values.sort_unstable();
    values
}

fn opened(source: &mut dyn Source, from: impl Into<Offsets>) -> Box<dyn Reader> {
    let (splits, from) = (source.splits().expect("splits"), from.into());
    let mine: Vec<_> = splits.into_iter().filter(|split| from.contains_key(&split.id)).collect();
    source.open(&assignments(&mine, &from, None)).expect("opens").0
}

/// Reads until an error that ends a job; others are to be tried again.
fn read_to_error(reader: &mut dyn Reader, longest: Duration) -> (Vec<Message>, Error) {
    let (start, mut messages) = (Instant::now(), Vec::new());
    loop {
        let mut batch = Batch::default();
        let read = reader.read(&mut batch, WAIT);
        messages.append(&mut batch.messages);
        match read {
            Err(error) if !error.is_retryable() => return (messages, error),
            _ => assert!(start.elapsed() < longest, "no error, but {} messages", messages.len()),
        }
    }
}

/// Reads until so many messages came; what was skipped for them.
fn read_losing(reader: &mut dyn Reader, count: usize) -> (Vec<Message>, Vec<Lost>) {
    let (start, mut messages, mut lost) = (Instant::now(), Vec::new(), Vec::new());
    while messages.len() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count} messages", messages.len());
        let mut batch = Batch::default();
        reader.read(&mut batch, WAIT).expect("the broker answers");
        messages.append(&mut batch.messages);
        lost.append(&mut batch.lost);
    }
    (messages, lost)
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn lists_partitions_and_patterns_are_read_as_they_are_written() {
    let (one, two) = (Topic::new("fit.one", 3), Topic::new("fit.two", 2));
    let all =
        |topic: &Topic, count| (0..count).map(|p| (topic.split(p), format!("{}[{p}]", topic.0))).collect::<Vec<_>>();
    let fill =
        |topic: &Topic, count: u32| (0..count).for_each(|p| write(&topic.0, p as i32, [format!("{}/{p}", topic.0)]));
    fill(&one, 3);
    fill(&two, 2);
    let read = |text: &str, expected: &[(SplitId, String)]| {
        let mut source = source(text);
        let mut splits: Vec<_> = source.splits().unwrap().into_iter().map(|split| (split.id, split.name)).collect();
        let mut expected = expected.to_vec();
        splits.sort();
        expected.sort();
        assert_eq!(splits, expected, "{text}");
        // Every message came from where its split says.
        for message in read_all(&mut *source) {
            let (_, name) = splits.iter().find(|(id, _)| *id == message.split).expect("a split that was listed");
            assert_eq!(*name, text_of_split(&message), "{text}");
        }
    };
    fn text_of_split(message: &Message) -> String {
        let (topic, partition) = text(&message.value).rsplit_once('/').expect("written so");
        format!("{topic}[{partition}]")
    }
    read(&one.0, &all(&one, 3));
    read(&format!("{},{}", one.0, two.0), &[all(&one, 3), all(&two, 2)].concat());
    read(
        &format!("{}[0,2],{}", one.0, two.0),
        &[vec![all(&one, 3)[0].clone(), all(&one, 3)[2].clone()], all(&two, 2)].concat(),
    );
    read(&format!("^({}|{})", one.0, two.0), &[all(&one, 3), all(&two, 2)].concat());

    let mut source = source_of(&format!("^{}.*", one.0), BrokerOptions::default());
    assert_eq!(source.splits().unwrap().len(), 3);
    let late = Topic::named(&format!("{}.late", one.0), 2);
    fill(&late, 2);
    let start = Instant::now();
    let splits = loop {
        let splits = source.splits().unwrap();
        if splits.len() == 5 {
            break splits;
        }
        assert!(start.elapsed() < PATIENCE, "{splits:?}");
    };
    assert_eq!(splits.iter().filter(|split| split.name.starts_with(&late.0)).count(), 2);
    assert_eq!(read_all(&mut *source).len(), 5);

    let error = source_of(&format!("{}[1,7]", one.0), BrokerOptions::default()).splits().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains(&one.0) && error.to_string().contains("no partitions [7]: it has 3"), "{error}");
    let error = source_of(&format!("{},not-there", one.0), BrokerOptions::default()).splits().unwrap_err();
    assert!(error.to_string().contains("has no topic \"not-there\""), "{error}");
}

#[test]
fn what_is_wrong_with_topics_is_said_before_any_connection() {
    let options = BrokerOptions { properties: vec![("acks".into(), "1".into())], ..BrokerOptions::default() };
    let error = kafka::source("127.0.0.1:1", "a b,c[x]", &options).err().expect("it is refused");
    assert_eq!((error.kind(), error.to_string().lines().count()), (ErrorKind::Config, 3), "{error}");
    let error = kafka::source("127.0.0.1:1", "^a(", &BrokerOptions::default()).err().expect("it is refused");
    assert!(error.to_string().contains("regular expression"), "{error}");
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn every_start_is_a_number() {
    let topic = Topic::new("start", 2);
    let producer = producer();
    let base = 1_700_000_000_000;
    for (partition, count) in [(0, 10), (1, 4)] {
        for number in 0..count {
            let record =
                BaseRecord::to(&topic.0).partition(partition).key("k").payload("v").timestamp(base + number * 1000);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
    }
    producer.flush(PATIENCE).unwrap();
    remove_below(&topic.0, 0, 2);
    let group = format!("{}.group", topic.0);
    let mut source = topic.source(&group);
    let splits = source.splits().unwrap();
    let mut at = |position| {
        let offsets = source.resolve(&position, &splits).unwrap();
        assert_eq!(offsets, source.resolve(&position, &splits).unwrap(), "{position:?}");
        [offsets[&topic.split(0)].0, offsets[&topic.split(1)].0]
    };
    let or_latest = Position::Committed { otherwise: Otherwise::Latest };
    assert_eq!(at(Position::Earliest), [2, 0]);
    assert_eq!(at(Position::Latest), [10, 4]);
    assert_eq!(at(Position::Timestamp(base as u64 + 3500)), [4, 4], "one has it, of the other that is the end");
    assert_eq!(at(Position::Timestamp(1)), [2, 0]);
    assert_eq!(at(Position::Exact([(format!("{}[1]", topic.0), Offset(3))].into())), [2, 3]);
    assert_eq!(at(Position::COMMITTED), [2, 0]);
    assert_eq!(at(or_latest.clone()), [10, 4]);
    // Java's tool commits for one partition.
    let at_five = [
        "groups",
        "--group",
        &group,
        "--topic",
        &format!("{}:0", topic.0),
        "--reset-offsets",
        "--to-offset",
        "5",
        "--execute",
    ];
    tool(&at_five, "");
    assert_eq!(at(Position::COMMITTED), [5, 0]);
    assert_eq!(at(or_latest), [5, 4]);
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn answers_that_name_less_take_nothing_away() {
    let topic = Topic::new("less", 2);
    let options = BrokerOptions { discovery: Discovery::Every(Duration::from_millis(1)), ..BrokerOptions::default() };
    let mut source = source_of(&topic.0, options);
    assert_eq!(source.discovery(), Some(Duration::from_millis(1)));
    let splits = source.splits().unwrap();
    delete(&topic.0);
    let start = Instant::now();
    // The broker forgets it within moments; the list stays all the while.
    while partitions(&topic.0).is_some() {
        assert_eq!(source.splits().unwrap(), splits);
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(source.splits().unwrap(), splits);
    Topic::named(&topic.0, 1);
    assert_eq!(source.splits().unwrap(), splits, "made anew with fewer");
}

/// How many partitions the broker says a topic has.
fn partitions(topic: &str) -> Option<usize> {
    let metadata = producer().client().fetch_metadata(None, PATIENCE).expect("metadata");
    metadata.topics().iter().find(|found| found.name() == topic).map(|found| found.partitions().len())
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_deleted_topic_is_an_error_and_others_are_read_meanwhile() {
    let (gone, stays) = (Topic::new("gone", 1), Topic::new("stays", 1));
    write(&gone.0, 0, 0..3);
    let mut source = source(&format!("{},{}", gone.0, stays.0));
    let mut reader = opened(&mut *source, [(gone.split(0), Offset(0)), (stays.split(0), Offset(0))]);
    read_until(&mut *reader, |messages, said, _| {
        messages.len() == 3 && said.iter().filter(|(_, said)| *said == Evidence::CaughtUp).count() == 2
    });
    delete(&gone.0);
    let (writes, name) = (Instant::now(), stays.0.clone());
    let writing = std::thread::spawn(move || {
        for number in 0..20 {
            write(&name, 0, [number]);
            std::thread::sleep(Duration::from_millis(200)); // nothing to wait for: it shall take a while
        }
    });
    let (messages, error) = read_to_error(&mut *reader, PATIENCE);
    writing.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    let expected = format!("{}[0] of kafka://{}/{},{} is gone", gone.0, broker(), gone.0, stays.0);
    assert!(error.to_string().starts_with(&expected) && error.to_string().contains("up to offset 3"), "{error}");
    assert!(writes.elapsed() > Duration::from_secs(10), "that was believed after {:?}", writes.elapsed());
    assert_eq!(values(&messages), (0..20).map(|number| number.to_string()).collect::<Vec<_>>());
    std::mem::forget(gone); // it is deleted already
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_topic_that_was_made_anew_is_an_error() {
    let topic = Topic::new("anew", 1);
    write(&topic.0, 0, 0..10);
    let mut source = topic.source("");
    let mut reader = opened(&mut *source, [(topic.split(0), Offset(0))]);
    assert_eq!(read_until(&mut *reader, |messages, _, _| messages.len() == 10).len(), 10);
    delete(&topic.0);
    while partitions(&topic.0).is_some() {}
    let topic = Topic::named(&topic.0, 1);
    write(&topic.0, 0, 100..104);
    let (messages, error) = read_to_error(&mut *reader, PATIENCE);
    assert_eq!((messages.len(), error.kind()), (0, ErrorKind::OffsetLost), "{error:?}");
    let expected =
        format!("offset 10 of {}[0] of kafka://{}/{} is beyond the end, which is 4", topic.0, broker(), topic.0);
    assert!(error.to_string().starts_with(&expected), "{error}");
    // At the start it is the same, also where there is nothing to read up to the end; no option makes it good.
    for (on_lost, until) in [(OnLost::Fail, None), (OnLost::Earliest, None), (OnLost::Latest, Some(Offset(4)))] {
        let mut source = losing(&topic, on_lost);
        let splits = source.splits().unwrap();
        let (from, until) =
            ([(topic.split(0), Offset(10))].into(), until.map(|until| [(topic.split(0), until)].into()));
        let (mut reader, _) = source.open(&assignments(&splits, &from, until.as_ref())).unwrap();
        let (_, error) = read_to_error(&mut *reader, PATIENCE);
        assert_eq!(error.kind(), ErrorKind::OffsetLost, "{error:?}");
    }
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_position_that_is_gone_fails_or_is_counted() {
    let topic = Topic::new("lost", 1);
    write(&topic.0, 0, 0..10);
    remove_below(&topic.0, 0, 4);
    let split = topic.split(0);
    let read = |on_lost| opened(&mut *losing(&topic, on_lost), [(split, Offset(1))]);
    let (_, error) = read_to_error(&mut *read(OnLost::Fail), PATIENCE);
    assert_eq!(error.kind(), ErrorKind::OffsetLost);
    let said = error.to_string();
    for part in [
        &format!("offset 1 of {}[0]", topic.0),
        "still has is 4",
        "--on_lost_offset earliest (from 4) or latest (from 10)",
    ] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    let (messages, lost) = read_losing(&mut *read(OnLost::Earliest), 6);
    assert_eq!(values(&messages), ["4", "5", "6", "7", "8", "9"]);
    assert_eq!((lost[0].offsets(), &lost[..]), (3, &[Lost { split, from: Offset(1), to: Offset(4) }][..]));
    let mut reader = read(OnLost::Latest);
    let nothing = read_until(&mut *reader, |_, said, _| said == [(split, Evidence::CaughtUp)]);
    assert!(nothing.is_empty(), "{nothing:?}");
    write(&topic.0, 0, [10]);
    assert_eq!(values(&read_losing(&mut *reader, 1).0), ["10"]);

    // A bounded split loses no more than it would have read.
    let mut source = losing(&topic, OnLost::Latest);
    let splits = source.splits().unwrap();
    let (from, until) = ([(split, Offset(1))].into(), [(split, Offset(3))].into());
    let (mut reader, _) = source.open(&assignments(&splits, &from, Some(&until))).unwrap();
    let mut batch = Batch::default();
    while reader.read(&mut batch, WAIT).unwrap() != Progress::Ended {}
    assert_eq!(batch.lost, [Lost { split, from: Offset(1), to: Offset(3) }]);
    assert!(batch.messages.is_empty());
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_position_that_goes_while_it_is_read_fails_or_is_counted() {
    for on_lost in [OnLost::Fail, OnLost::Earliest, OnLost::Latest] {
        let topic = Topic::new("going", 1);
        write(&topic.0, 0, 0..10);
        let split = topic.split(0);
        let mut reader = opened(&mut *losing(&topic, on_lost), [(split, Offset(0))]);
        assert_eq!(read_losing(&mut *reader, 10).0.len(), 10);
        // A pause that is longer than the retention.
        reader.pause(&[split], true).unwrap();
        write(&topic.0, 0, 10..30);
        remove_below(&topic.0, 0, 25);
        reader.pause(&[split], false).unwrap();
        let lost = |to| vec![Lost { split, from: Offset(10), to: Offset(to) }];
        match on_lost {
            OnLost::Fail => {
                let (messages, error) = read_to_error(&mut *reader, PATIENCE);
                assert_eq!((messages.len(), error.kind()), (0, ErrorKind::OffsetLost), "{error:?}");
                assert!(error.to_string().contains("offset 10 of"), "{error}");
            }
            OnLost::Earliest => {
                let (messages, found) = read_losing(&mut *reader, 5);
                assert_eq!((values(&messages), found), (vec!["25", "26", "27", "28", "29"], lost(25)));
            }
            OnLost::Latest => {
                let mut batch = Batch::default();
                while batch.lost.is_empty() {
                    reader.read(&mut batch, WAIT).unwrap();
                }
                write(&topic.0, 0, [30]);
                let (messages, more) = read_losing(&mut *reader, 1);
                assert_eq!((values(&messages), batch.lost, more), (vec!["30"], lost(30), vec![]));
            }
        }
    }
}

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn behind_an_open_transaction_nothing_is_caught_up_and_a_warning_says_why() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let warnings = || log.text().matches("somebody's transaction is open").count();

    let topic = Topic::new("open", 1);
    let split = topic.split(0);
    write(&topic.0, 0, ["before"]);
    let transactional: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", broker()).set("transactional.id", &topic.0).create().unwrap();
    transactional.init_transactions(PATIENCE).unwrap();
    let mut reader = opened(&mut *topic.source(""), [(split, Offset(0))]);
    let caught_up = |_: &[Message], said: &[(SplitId, Evidence)], _| said == [(split, Evidence::CaughtUp)];
    assert_eq!(values(&read_until(&mut *reader, caught_up)), ["before"]);
    let mut stable = 1;
    for (round, commits) in [true, false].into_iter().enumerate() {
        transactional.begin_transaction().unwrap();
        transactional.send(BaseRecord::to(&topic.0).key("k").payload("inside")).map_err(|(error, _)| error).unwrap();
        transactional.flush(PATIENCE).unwrap();
        write(&topic.0, 0, ["behind"]);
        // The client's own query of watermarks follows its isolation level too.
        for (level, high) in [("read_committed", stable), ("read_uncommitted", stable + 2)] {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", broker()).set("group.id", "watermarks").set("isolation.level", level);
            let consumer: BaseConsumer = config.create().unwrap();
            assert_eq!(consumer.fetch_watermarks(&topic.0, 0, PATIENCE).unwrap(), (0, high), "{level}");
        }
        let held =
            read_until(&mut *reader, |_, said, _| said == [(split, Evidence::Behind)] && warnings() == round + 1);
        assert!(held.is_empty(), "{held:?}");
        // It stays so, and is not said again.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(3) {
            let mut batch = Batch::default();
            reader.read(&mut batch, WAIT).unwrap();
            assert!(batch.messages.is_empty());
            assert!(batch.evidence.iter().all(|(_, said)| *said == Evidence::Behind), "{:?}", batch.evidence);
        }
        assert_eq!(warnings(), round + 1, "{}", log.text());
        let named = format!("split=\"{}[0]\" last_stable_offset={stable} high_watermark={}", topic.0, stable + 2);
        assert!(log.text().contains(&named), "{named} is not in: {}", log.text());
        let expected = if commits { vec!["inside", "behind"] } else { vec!["behind"] };
        match commits {
            true => transactional.commit_transaction(PATIENCE).unwrap(),
            false => transactional.abort_transaction(PATIENCE).unwrap(),
        }
        let count = expected.len();
        let messages = read_until(&mut *reader, |messages, said, _| {
            messages.len() >= count && said == [(split, Evidence::CaughtUp)]
        });
        assert_eq!(values(&messages), expected);
        stable += 3; // two messages and a marker
    }
    let start = Instant::now();
    while !log.text().contains("the transaction has ended") {
        reader.read(&mut Batch::default(), WAIT).unwrap();
        assert!(start.elapsed() < PATIENCE, "{}", log.text());
    }
    assert!(!log.text().contains("kafka client"), "an end of a partition is no complaint: {}", log.text());
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn key_headers_and_timestamp_with_its_type_reach_the_message() {
    let by_producer = topic_with("create", &[("message.timestamp.type", "CreateTime")]);
    let by_broker = topic_with("append", &[("message.timestamp.type", "LogAppendTime")]);
    let headers = [("a", Some("1")), ("b", None), ("a", Some("2")), ("", Some(""))];
    let owned = headers.iter().fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: *value }));
    let producer = producer();
    for topic in [&by_producer, &by_broker] {
        let record =
            BaseRecord::to(&topic.0).key("key").payload("value").timestamp(1_700_000_000_123).headers(owned.clone());
        producer.send(record).map_err(|(error, _)| error).unwrap();
        let bare = BaseRecord::<(), ()>::to(&topic.0).timestamp(1_700_000_000_124);
        producer.send(bare).map_err(|(error, _)| error).unwrap();
        producer.flush(PATIENCE).unwrap();
    }
    let messages = read_all(&mut *by_producer.source(""));
    let expected: Vec<_> =
        headers.iter().map(|(key, value)| (key.to_string(), value.map(|v| Bytes::from_static(v.as_bytes())))).collect();
    assert_eq!(messages[0].headers, expected);
    assert_eq!((text(&messages[0].key), text(&messages[0].value)), ("key", "value"));
    assert_eq!(
        (messages[0].timestamp, messages[0].timestamp_type),
        (Some(1_700_000_000_123), Some(TimestampType::Create))
    );
    assert_eq!((&messages[1].key, &messages[1].value, messages[1].headers.len()), (&None, &None, 0));
    let messages = read_all(&mut *by_broker.source(""));
    assert_eq!(messages[0].headers, expected);
    assert_eq!(messages[0].timestamp_type, Some(TimestampType::Append));
    assert!(messages[0].timestamp > Some(1_700_000_000_123), "the broker's own time: {:?}", messages[0].timestamp);
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn every_compression_of_java_is_read() {
    let lines: Vec<String> = (0..500).map(|number| format!("{number}: {}", "the same again ".repeat(20))).collect();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = Topic::new(codec, 1);
        tool(&["produce", "--topic", &topic.0, "--compression-codec", codec], &(lines.join("\n") + "\n"));
        let messages = read_all(&mut *topic.source(""));
        assert_eq!(sorted(values(&messages)), sorted(lines.iter().map(String::as_str).collect()), "{codec}");
    }
}
