//! The Kafka adapter against a real broker, judged by Kafka's own Java tools.
//!
//! Start one with `tests/brokers/kafka/start.sh`, name it in `SYNCLINE_KAFKA`, and run with `--include-ignored`.
//! What each family would catch: a reader that skips, repeats or does not end; a split called caught up that is not; a
//! committed offset that is off by one; a record with another key, or on another partition than Java would choose.

use std::io::Write as _;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use syncline::ErrorKind;
use syncline::broker::{BrokerOptions, kafka};
use syncline::message::{Message, Offset, Offsets, Split, SplitId};
use syncline::sink::{Entity, OutputRecord, RunNumber, Slot, Writer, WriterContext};
use syncline::source::{Assignment, Batch, Evidence, Position, Progress, Reader, Source};

const START: &str = "tests/brokers/kafka/start.sh DATA 9092 && export SYNCLINE_KAFKA=127.0.0.1:9092";
/// No test waits longer for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const WAIT: Duration = Duration::from_millis(100);

pub(crate) fn broker() -> String {
    let hosts = std::env::var("SYNCLINE_KAFKA").unwrap_or_else(|_| panic!("no broker is named; start one: {START}"));
    let reached = hosts.split(',').any(|host| std::net::TcpStream::connect(host).is_ok());
    assert!(reached, "no Kafka answers at {hosts}; start one: {START}");
    hosts
}

pub(crate) fn tool(arguments: &[&str], input: &str) -> String {
    tool_at(&broker(), arguments, input)
}

/// The same on another broker.
pub(crate) fn tool_at(hosts: &str, arguments: &[&str], input: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/brokers/kafka/tool.sh");
    let mut command = Command::new(path);
    command.args(&arguments[..1]).args(["--bootstrap-server", hosts]).args(&arguments[1..]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tool.sh starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("the tool reads");
    let output = child.wait_with_output().expect("tool.sh ends");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?} failed: {error}");
    String::from_utf8(output.stdout).expect("text")
}

/// Arranging is not judging: topics are made by our own client, which is a hundred times faster than a Java tool.
pub(crate) fn admin() -> AdminClient<DefaultClientContext> {
    admin_at(&broker())
}

pub(crate) fn admin_at(hosts: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", hosts).create().expect("a client")
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// A topic of its own, removed at the end.
pub(crate) struct Topic(pub(crate) String);

/// Makes a topic with a name that nobody else uses, and returns it.
pub(crate) fn make_topic(name: &str, partitions: usize) -> String {
    make_topic_at(&broker(), name, partitions)
}

/// The same on another broker.
pub(crate) fn make_topic_at(hosts: &str, name: &str, partitions: usize) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let since = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    let name = format!("{name}-{since}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    make_topic_named(hosts, &name, partitions);
    name
}

pub(crate) fn make_topic_named(hosts: &str, name: &str, partitions: usize) {
    make_topic_on(hosts, name, partitions, TopicReplication::Fixed(1));
}

/// The same with replicas where they are wanted.
pub(crate) fn make_topic_on(hosts: &str, name: &str, partitions: usize, replicas: TopicReplication<'_>) {
    let topic = NewTopic::new(name, partitions as i32, replicas);
    block_on(admin_at(hosts).create_topics([&topic], &AdminOptions::new()))
        .and_then(|made| made[0].clone().map_err(|(_, code)| KafkaError::AdminOp(code)))
        .expect("the topic can be made");
    // The answer comes from the controller; the broker's own view of topics follows.
    let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", hosts).create().expect("a client");
    let start = Instant::now();
    loop {
        let metadata = client.fetch_metadata(Some(name), PATIENCE).expect("the broker answers");
        let found = &metadata.topics()[0];
        let led = found.partitions().iter().filter(|partition| partition.error().is_none()).count();
        if found.error().is_none() && led == partitions {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "the broker does not show topic {name}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Topic {
    pub(crate) fn new(name: &str, partitions: usize) -> Topic {
        Topic(make_topic(name, partitions))
    }

    /// A topic with this very name.
    pub(crate) fn named(name: &str, partitions: usize) -> Topic {
        make_topic_named(&broker(), name, partitions);
        Topic(name.to_owned())
    }

    /// Writes `KEY=VALUE` lines with the Java producer.
    pub(crate) fn produce(&self, lines: &str) {
        let (key, separator) = ("parse.key=true", "key.separator==");
        tool(&["produce", "--topic", &self.0, "--property", key, "--property", separator], lines);
    }

    /// Reads everything with the Java consumer: partition, then headers, key and value with tabs between them, sorted.
    pub(crate) fn consume(&self, count: usize) -> Vec<(u32, String)> {
        let count = count.to_string();
        let mut arguments = vec!["consume", "--topic", &self.0, "--from-beginning", "--max-messages", &count];
        arguments.extend(["--timeout-ms", "30000", "--isolation-level", "read_committed"]);
        for property in ["print.partition=true", "print.headers=true", "print.key=true"] {
            arguments.extend(["--property", property]);
        }
        let text = tool(&arguments, "");
        let mut records: Vec<(u32, String)> = text
            .lines()
            .map(|line| {
                let (partition, rest) = line.split_once('\t').expect("a partition");
                (partition.trim_start_matches("Partition:").parse().expect("a number"), rest.to_string())
            })
            .collect();
        records.sort();
        records
    }

    pub(crate) fn ends(&self) -> Vec<u64> {
        let text = tool(&["offsets", "--topic", &self.0], "");
        let mut ends: Vec<(u32, u64)> = text
            .lines()
            .map(|line| {
                let mut parts = line.rsplit(':').map(|part| part.parse::<u64>().expect("a number"));
                let (end, partition) = (parts.next().expect("an end"), parts.next().expect("a partition"));
                (partition as u32, end)
            })
            .collect();
        ends.sort_unstable();
        ends.into_iter().map(|(_, end)| end).collect()
    }

    pub(crate) fn source(&self, group: &str) -> Box<dyn Source> {
        let options = BrokerOptions { group: group.to_string(), ..BrokerOptions::default() };
        kafka::source(&broker(), &self.0, &options).expect("good options")().expect("a source")
    }

    pub(crate) fn split(&self, partition: u32) -> SplitId {
        SplitId::numbered(&self.0, partition)
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            block_on(admin().delete_topics(&[&self.0], &AdminOptions::new())).expect("the topic can be removed");
        }
    }
}

pub(crate) fn assignments(splits: &[Split], from: &Offsets, until: Option<&Offsets>) -> Vec<Assignment> {
    let assignment = |split: &Split| Assignment {
        split: split.clone(),
        from: from[&split.id],
        until: until.map(|until| until[&split.id]),
    };
    splits.iter().map(assignment).collect()
}

/// Reads until `done`, and what was said about every split last.
pub(crate) fn read_until(
    reader: &mut dyn Reader,
    mut done: impl FnMut(&[Message], &[(SplitId, Evidence)], Progress) -> bool,
) -> Vec<Message> {
    let (mut messages, mut evidence) = (Vec::new(), Vec::<(SplitId, Evidence)>::new());
    let start = Instant::now();
    loop {
        let mut batch = Batch::default();
        let progress = reader.read(&mut batch, WAIT).expect("the broker answers");
        for (split, said) in batch.evidence {
            evidence.retain(|(other, _)| *other != split);
            evidence.push((split, said));
        }
        messages.append(&mut batch.messages);
        if done(&messages, &evidence, progress) {
            return messages;
        }
        assert!(start.elapsed() < PATIENCE, "{} messages, {evidence:?}, {progress:?}", messages.len());
    }
}

/// Reads everything there is now.
pub(crate) fn read_all(source: &mut dyn Source) -> Vec<Message> {
    let splits = source.splits().expect("splits");
    let from = source.resolve(&Position::Earliest, &splits).expect("beginnings");
    let until = source.resolve(&Position::Latest, &splits).expect("ends");
    let (mut reader, _) = source.open(&assignments(&splits, &from, Some(&until))).expect("opens");
    read_until(&mut *reader, |_, _, progress| progress == Progress::Ended)
}

pub(crate) fn text(bytes: &Option<Bytes>) -> &str {
    std::str::from_utf8(bytes.as_ref().expect("there")).expect("text")
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn reads_what_java_wrote_to_the_end_offsets() {
    let topic = Topic::new("read", 3);
    let lines: String = (0..500).map(|i| format!("k{i}={{\"n\":{i}}}\n")).collect();
    topic.produce(&lines);
    let mut source = topic.source("");
    let splits = source.splits().unwrap();
    assert_eq!(splits.iter().map(|s| (s.ordinal, s.id)).collect::<Vec<_>>(), [0, 1, 2].map(|p| (p, topic.split(p))));
    assert_eq!(splits[2].name, format!("{}[2]", topic.0));
    let ends: Offsets = topic.ends().into_iter().zip(0..).map(|(end, p)| (topic.split(p), Offset(end))).collect();
    assert_eq!(source.resolve(&Position::Latest, &splits).unwrap(), ends);
    assert_eq!(source.backlog(&source_zero(&splits)).unwrap(), Some(500));

    let messages = read_all(&mut *source);
    let mut found: Vec<String> = messages.iter().map(|m| format!("{}={}\n", text(&m.key), text(&m.value))).collect();
    let mut expected: Vec<String> = lines.split_inclusive('\n').map(str::to_string).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    for split in &splits {
        let offsets: Vec<u64> = messages.iter().filter(|m| m.split == split.id).map(|m| m.offset.0).collect();
        assert_eq!(offsets, (0..ends[&split.id].0).collect::<Vec<_>>());
    }
    assert!(messages.iter().all(|m| m.next.0 == m.offset.0 + 1 && m.timestamp.is_some()));
}

fn source_zero(splits: &[Split]) -> Offsets {
    splits.iter().map(|split| (split.id, Offset(0))).collect()
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn follows_pauses_and_takes_splits_away() {
    let topic = Topic::new("follow", 2);
    let mut source = topic.source("");
    let splits = source.splits().unwrap();
    let from = source.resolve(&Position::Earliest, &splits).unwrap();
    let (mut reader, _committer) = source.open(&assignments(&splits[..1], &from, None)).unwrap();
    let caught_up = |_: &[Message], said: &[(SplitId, Evidence)], _| said.iter().any(|(_, e)| *e == Evidence::CaughtUp);
    assert!(read_until(&mut *reader, caught_up).is_empty());
    // Silence is confirmed again and again, at least every second.
    for _ in 0..3 {
        let start = Instant::now();
        read_until(&mut *reader, caught_up);
        assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
    }
    reader.assign(&assignments(&splits[1..], &from, None), &[]).unwrap();
    topic.produce("a=1\nb=2\nc=3\nd=4\n");
    assert_eq!(read_until(&mut *reader, |messages, _, _| messages.len() == 4).len(), 4);

    reader.pause(&[splits[0].id, splits[1].id], true).unwrap();
    topic.produce("a=5\nb=6\nc=7\nd=8\n");
    let mut batch = Batch::default();
    for _ in 0..5 {
        assert_eq!(reader.read(&mut batch, WAIT).unwrap(), Progress::Open);
    }
    assert!(batch.messages.is_empty());
    assert!(batch.evidence.iter().all(|(_, said)| *said == Evidence::Behind), "{:?}", batch.evidence);
    reader.pause(&[splits[0].id, splits[1].id], false).unwrap();
    let mut values: Vec<String> = read_until(&mut *reader, |messages, _, _| messages.len() == 4)
        .iter()
        .map(|message| text(&message.value).to_string())
        .collect();
    values.sort();
    assert_eq!(values, ["5", "6", "7", "8"]);

    reader.assign(&[], &[splits[0].id]).unwrap();
    let before = topic.ends();
    topic.produce("a=9\nb=10\nc=11\nd=12\n");
    let came = topic.ends()[1] - before[1];
    let messages = read_until(&mut *reader, |messages, _, _| messages.len() as u64 == came);
    assert!(messages.iter().all(|message| message.split == splits[1].id));
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn ends_and_is_caught_up_behind_transaction_markers() {
    let topic = Topic::new("markers", 1);
    let config =
        |id: &str| ClientConfig::new().set("bootstrap.servers", broker()).set("transactional.id", id).to_owned();
    let producer: BaseProducer = config(&topic.0).create().unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    producer.begin_transaction().unwrap();
    producer.send(BaseRecord::to(&topic.0).key("a").payload("1")).map_err(|(error, _)| error).unwrap();
    producer.commit_transaction(PATIENCE).unwrap();
    producer.begin_transaction().unwrap();
    producer.send(BaseRecord::to(&topic.0).key("a").payload("never")).map_err(|(error, _)| error).unwrap();
    producer.flush(PATIENCE).unwrap();
    producer.abort_transaction(PATIENCE).unwrap();
    assert_eq!(topic.ends(), [4]); // two records and two markers

    let mut source = topic.source("");
    let messages = read_all(&mut *source);
    assert_eq!(messages.iter().map(|message| text(&message.value)).collect::<Vec<_>>(), ["1"]);
    // Followed, the split is caught up, again and again, although no message reaches the end offset.
    let splits = source.splits().unwrap();
    let from = source.resolve(&Position::Earliest, &splits).unwrap();
    let (mut reader, _committer) = source.open(&assignments(&splits, &from, None)).unwrap();
    let mut times = 0;
    let messages = read_until(&mut *reader, |_, said, _| {
        times += usize::from(said.iter().any(|(_, evidence)| *evidence == Evidence::CaughtUp));
        times > 25
    });
    assert_eq!(messages.len(), 1);
    // An end that is reached only later by a marker is an end as well.
    producer.begin_transaction().unwrap();
    producer.send(BaseRecord::to(&topic.0).key("a").payload("2")).map_err(|(error, _)| error).unwrap();
    producer.flush(PATIENCE).unwrap();
    let until = Offsets::from([(splits[0].id, Offset(6))]);
    let (mut reader, _committer) = source.open(&assignments(&splits, &from, Some(&until))).unwrap();
    let held_back = read_until(&mut *reader, |messages, _, _| messages.len() == 1);
    producer.commit_transaction(PATIENCE).unwrap();
    let rest = read_until(&mut *reader, |_, _, progress| progress == Progress::Ended);
    assert_eq!((held_back.len(), rest.len()), (1, 1));
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn commits_are_what_javas_group_tool_sees() {
    let topic = Topic::new("commit", 2);
    topic.produce(&(0..40).map(|i| format!("k{i}=v{i}\n")).collect::<String>());
    let group = format!("{}.sync", topic.0);
    let mut source = topic.source(&group);
    let splits = source.splits().unwrap();
    let earliest = source.resolve(&Position::Earliest, &splits).unwrap();
    assert_eq!(source.resolve(&Position::COMMITTED, &splits).unwrap(), earliest, "nothing is committed yet");
    let (_reader, mut committer) = source.open(&assignments(&splits, &earliest, None)).unwrap();
    committer.commit(&Offsets::new(), &[]).unwrap();
    committer.commit(&Offsets::from([(splits[0].id, Offset(3))]), &[]).unwrap();
    committer.commit(&Offsets::from([(splits[0].id, Offset(7))]), &[]).unwrap();
    let committed = source.resolve(&Position::COMMITTED, &splits).unwrap();
    assert_eq!(committed, Offsets::from([(splits[0].id, Offset(7)), (splits[1].id, Offset(0))]));

    let said = tool(&["groups", "--describe", "--group", &group], "");
    let row: Vec<&str> = said.lines().find(|line| line.contains(&topic.0)).expect("a row").split_whitespace().collect();
    let end = topic.ends()[0];
    assert_eq!(row[..6], [&group, &topic.0, "0", "7", &end.to_string(), &(end - 7).to_string()], "{said}");
    // A client of somebody else sees who committed.
    let mut list = rdkafka::TopicPartitionList::new();
    list.add_partition(&topic.0, 0);
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", broker()).set("group.id", &group).create().unwrap();
    let remark = consumer.committed_offsets(list, PATIENCE).unwrap().elements()[0].metadata().to_owned();
    assert_eq!(remark, format!("syncline state=none job={group}"));
    let foreign = Offsets::from([(SplitId::numbered("other", 0), Offset(1))]);
    assert_eq!(committer.commit(&foreign, &[]).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn offsets_of_a_job_that_kept_its_state_are_no_start_without_it() {
    let topic = Topic::new("state", 1);
    topic.produce("a=1\nb=2\n");
    let group = format!("{}.sync", topic.0);
    let source = |keeps_state, despite_state| {
        let options = BrokerOptions { group: group.clone(), keeps_state, despite_state, ..BrokerOptions::default() };
        kafka::source(&broker(), &topic.0, &options).unwrap()().unwrap()
    };
    let mut with_state = source(true, false);
    let splits = with_state.splits().unwrap();
    let start = with_state.resolve(&Position::COMMITTED, &splits).unwrap();
    let (_reader, mut committer) = with_state.open(&assignments(&splits, &start, None)).unwrap();
    committer.commit(&Offsets::from([(splits[0].id, Offset(2))]), &[]).unwrap();
    let error = source(false, false).resolve(&Position::COMMITTED, &splits).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, false));
    for part in [group.as_str(), "--backendFolder", "--start"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let told = source(false, true).resolve(&Position::COMMITTED, &splits).unwrap();
    assert_eq!(told[&splits[0].id], Offset(2));
    assert_eq!(source(false, false).resolve(&Position::Earliest, &splits).unwrap()[&splits[0].id], Offset(0));
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn positions_are_made_numbers() {
    let topic = Topic::new("positions", 1);
    let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", broker()).create().unwrap();
    let base = 1_700_000_000_000;
    for i in 0..10 {
        let record = BaseRecord::to(&topic.0).key("k").payload("v").timestamp(base + i * 1000);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
    let mut source = topic.source("");
    let splits = source.splits().unwrap();
    let mut at = |position| source.resolve(&position, &splits).unwrap()[&splits[0].id].0;
    assert_eq!(at(Position::Earliest), 0);
    assert_eq!(at(Position::Latest), 10);
    assert_eq!(at(Position::Timestamp(base as u64 + 3500)), 4);
    assert_eq!(at(Position::Timestamp(base as u64 + 1_000_000)), 10, "later than everything is the end");
    assert_eq!(at(Position::COMMITTED), 0);
    // Beyond the end, as of a topic that was made anew: named, never a silent jump.
    let from = Offsets::from([(splits[0].id, Offset(99))]);
    let (mut reader, _committer) = source.open(&assignments(&splits, &from, None)).unwrap();
    let start = Instant::now();
    let error = loop {
        match reader.read(&mut Batch::default(), WAIT) {
            Err(error) => break error,
            Ok(_) => assert!(start.elapsed() < PATIENCE),
        }
    };
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::OffsetLost, false), "{error:?}");
}

fn open_sink(topics: &[&Topic], outbox: bool) -> Box<dyn Writer> {
    let entities = topics.iter().map(|topic| topic.0.clone()).collect();
    let mut sink = kafka::sink(&broker(), &BrokerOptions::default()).unwrap()().unwrap();
    sink.open(&WriterContext { slot: Slot(0), output: 0, run: RunNumber(1), entities, dead_letter: None, outbox })
        .unwrap()
}

fn record(key: &str, value: &str) -> OutputRecord {
    let headers = vec![("origin".to_string(), Some(Bytes::from_static(b"test")))];
    OutputRecord {
        key: Some(key.to_string().into()),
        value: value.to_string().into(),
        timestamp: Some(1_700_000_000_000),
        headers,
        ..OutputRecord::default()
    }
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn java_reads_what_was_published_where_it_would_have_put_it() {
    let (ours, javas, delay) = (Topic::new("ours", 4), Topic::new("javas", 4), Topic::new("delay", 1));
    let keys: Vec<String> = (0..100).map(|i| format!("org.example:artifact-{i}:1.{i}")).collect();
    let mut writer = open_sink(&[&ours, &delay], false);
    for (i, key) in keys.iter().enumerate() {
        writer.write(10 + i as u64 % 2, Entity(0), record(key, &format!("v{i}"))).unwrap();
    }
    writer.write(12, Entity(1), record("late", "d")).unwrap();
    assert!(writer.prepare(10, 12).unwrap().is_empty());
    let read = |topic: &Topic| read_all(&mut *topic.source(""));
    assert!(read(&ours).is_empty(), "nothing is visible before it is published");
    writer.publish(10, 12, None).unwrap();
    writer.publish(10, 12, None).unwrap();
    let ends = ours.ends();
    assert_eq!(ends.iter().sum::<u64>(), 100, "{ends:?}");
    assert!(read(&delay).is_empty(), "epoch 12 is in the next range");
    writer.prepare(12, 13).unwrap();
    writer.publish(12, 13, None).unwrap();
    assert_eq!(delay.consume(1), [(0, "origin:test\tlate\td".to_string())]);

    // The Java producer puts the same keys on the same partitions, in the same order.
    javas.produce(&keys.iter().zip(0..).map(|(key, i)| format!("{key}=v{i}\n")).collect::<String>());
    assert_eq!(ends, javas.ends());
    let bare = |(partition, line): (u32, String)| (partition, line.split_once('\t').expect("headers").1.to_string());
    let read = |topic: &Topic| topic.consume(100).into_iter().map(bare).collect::<Vec<_>>();
    assert_eq!(read(&ours), read(&javas));
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_later_run_publishes_from_the_bytes_alone() {
    let topic = Topic::new("outbox", 1);
    let mut writer = open_sink(&[&topic], true);
    writer.write(5, Entity(0), record("a", "1")).unwrap();
    writer.write(5, Entity(0), record("b", "2")).unwrap();
    let prepared = writer.prepare(5, 6).unwrap();
    drop(writer); // a crash before publish
    let mut writer = open_sink(&[&topic], true);
    writer.publish(5, 6, Some(&prepared.bytes)).unwrap();
    let expected = ["origin:test\ta\t1", "origin:test\tb\t2"].map(|line| (0, line.to_string()));
    assert_eq!(topic.consume(2), expected);
    assert_eq!(writer.published().unwrap(), None);
    let read = read_all(&mut *topic.source(""));
    assert_eq!(read[0].headers, [("origin".to_string(), Some(Bytes::from_static(b"test")))]);
    assert_eq!(read[0].timestamp, Some(1_700_000_000_000));
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn forty_megabytes_pass_and_too_much_is_named() {
    let topic = Topic::new("large", 1);
    let (large, too_large) = ("x".repeat(40_000_000), "x".repeat(60_000_000));
    let mut writer = open_sink(&[&topic], false);
    writer.write(1, Entity(0), record("a", &large)).unwrap();
    writer.write(1, Entity(0), record("b", "small")).unwrap();
    writer.prepare(1, 2).unwrap();
    writer.publish(1, 2, None).unwrap();
    let read = read_all(&mut *topic.source(""));
    assert_eq!(read.iter().map(|message| text(&message.value).len()).collect::<Vec<_>>(), [40_000_000, 5]);
    writer.write(2, Entity(0), record("a", &too_large)).unwrap();
    writer.prepare(2, 3).unwrap();
    let error = writer.publish(2, 3, None).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Write, false), "{error:?}");
    assert!(error.report().contains(&topic.0), "{error:?}");
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_missing_topic_is_named_with_what_to_do() {
    let hosts = broker();
    let mut source = kafka::source(&hosts, "not-there", &BrokerOptions::default()).unwrap()().unwrap();
    let error = source.splits().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("--create --topic not-there"), "{error}");
    let mut sink = kafka::sink(&hosts, &BrokerOptions::default()).unwrap()().unwrap();
    let context = WriterContext {
        slot: Slot(0),
        output: 0,
        run: RunNumber(1),
        entities: vec!["not-there".to_string()],
        dead_letter: None,
        outbox: false,
    };
    let Err(error) = sink.open(&context) else { panic!("it is not there") };
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
}

#[test]
fn an_unreachable_broker_is_a_retryable_connection_error() {
    // A port that was just given back: connections to it are refused.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hosts = listener.local_addr().unwrap().to_string();
    drop(listener);
    let mut source = kafka::source(&hosts, "a", &BrokerOptions::default()).unwrap()().unwrap();
    let error = source.splits().unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Connect, true), "{error:?}");
    assert!(error.to_string().contains(&hosts), "{error}");
}
