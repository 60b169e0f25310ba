//! An idle topic of a real Kafka is idle, whatever lies at its end; and a topic that is ahead of the other waits in Kafka.
//!
//! Would catch: a reader that is opened again and again because the end offset counts markers of transactions and records of
//! aborted ones, which never come; a partition that loses or repeats records when it is paused; state that grows with what one
//! topic is ahead.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use syncline::Job;
use syncline::broker::{BrokerOptions, kafka};
use syncline::codec::Raw;
use syncline::dataflow::Input;
use timely::dataflow::operators::vec::Map;

use crate::kafka::{Topic, broker};

const PATIENCE: Duration = Duration::from_secs(60);
const STUCK_AFTER: Duration = Duration::from_secs(1);

fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < PATIENCE, "not reached: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A transaction of ten records; committed, or aborted.
fn transaction(producer: &BaseProducer, topic: &str, commit: bool) {
    producer.begin_transaction().unwrap();
    for number in 0..10 {
        let value = number.to_string();
        producer.send(BaseRecord::<(), str>::to(topic).partition(0).payload(&value)).map_err(|(e, _)| e).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
    match commit {
        true => producer.commit_transaction(PATIENCE).unwrap(),
        false => producer.abort_transaction(PATIENCE).unwrap(),
    }
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn an_idle_topic_that_ends_in_markers_is_not_stuck() {
    let topic = Topic::new("markers", 1);
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker()).set("transactional.id", &topic.0);
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    transaction(&producer, &topic.0, true);
    transaction(&producer, &topic.0, false);

    let source = kafka::source(&broker(), &topic.0, &BrokerOptions::default()).unwrap();
    let input = Input::new("markers", source, Arc::new(|| Box::new(Raw)));
    let job = Job::new("markers").stuck_after(STUCK_AFTER);
    let (control, status) = (job.control(), job.status());
    let running = std::thread::spawn(move || {
        job.run(timely::Config::thread(), move |flow| {
            let read = flow.read(&input)?;
            flow.complete(read.map(|message| message.offset));
            Ok(())
        })
    });
    let snapshot = || status.snapshot();
    until("the committed records are read", || snapshot().records_read == 10);
    until("nothing is left", || snapshot().backlog == Some(0));
    // Long enough for several rebuilds, if each waited twice as long as the one before.
    let idle = Instant::now();
    until("it was idle for a while", || {
        assert_eq!((snapshot().rebuilt, snapshot().backlog), (0, Some(0)));
        idle.elapsed() > 8 * STUCK_AFTER
    });
    transaction(&producer, &topic.0, true);
    until("what comes is read", || snapshot().records_read == 20);
    assert_eq!(snapshot().rebuilt, 0);
    control.stop();
    running.join().unwrap().unwrap();
}

const KEYS: u64 = 100_000;
/// Twice what the job needs, and less than half of the first topic.
const STATE: &str = "20MiB";

/// The same hour in both topics, but the records of the second one are four times as long, so the first one is read faster.
fn write_an_hour(topics: &[Topic; 2]) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker()).set("linger.ms", "20").set("queue.buffering.max.messages", "1000000");
    let producer: BaseProducer = config.create().unwrap();
    let start = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64 - 3_600_000;
    let pads = [370, 1_570].map(|length| "x".repeat(length));
    for key in 0..KEYS {
        let timestamp = (start + key * 3_600_000 / KEYS) as i64;
        for (topic, pad) in topics.iter().zip(&pads) {
            let value = format!("{{\"k\":{key},\"pad\":\"{pad}\"}}");
            let record = || {
                let record = BaseRecord::<(), str>::to(&topic.0).partition((key % 2) as i32);
                record.payload(&value).timestamp(timestamp)
            };
            while producer.send(record()).is_err() {
                producer.poll(Duration::from_millis(10)); // its queue is full
            }
        }
    }
    producer.flush(PATIENCE).unwrap();
}

fn synchronize([one, two]: [&Topic; 2], workers: usize, more: &str) -> Output {
    let (one, two) = (&one.0, &two.0);
    let prefix = format!("{one}.{workers}.{}", more.len());
    let _joined = Topic::named(&format!("{prefix}.sync.out"), 1);
    let arguments = format!(
        "sync -b {} --topic_one {one} --topic_two {two} -o sync --topic_prefix {prefix} --topic_one_keys k --topic_two_keys k \
         --window_time 60 --start earliest --max_state {STATE} -w {workers} --group {prefix} {more}",
        broker(),
    );
    Command::new(env!("CARGO_BIN_EXE_syncline")).args(arguments.split_whitespace()).output().unwrap()
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_topic_that_is_an_hour_ahead_waits_in_kafka() {
    let topics = [Topic::new("ahead", 2), Topic::new("slower", 2)];
    write_an_hour(&topics);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for workers in [1, 2] {
        let output = synchronize(topics.each_ref(), workers, "--until end");
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        assert!(out.contains(&format!(" joined={KEYS} late=0 delayed=0 ")) && out.contains(" difference=0"), "{out}");
    }
    // Without a limit, beside a topic of which nothing can be read: its only records are in a transaction that is open.
    let held = Topic::new("held", 1);
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker()).set("transactional.id", &held.0);
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    producer.begin_transaction().unwrap();
    producer.send(BaseRecord::<(), str>::to(&held.0).payload("{\"k\":0}")).map_err(|(error, _)| error).unwrap();
    producer.flush(PATIENCE).unwrap();
    let output = synchronize([&topics[0], &held], 1, "--max_drift off");
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    let ahead = format!("input \"{}\" is ahead of \"{}\"", topics[0].0, held.0);
    for expected in ["more than --max_state 20971520", &ahead, "leave out --max_drift off"] {
        assert!(err.contains(expected), "{expected}: {err}");
    }
    producer.abort_transaction(PATIENCE).unwrap();
}
