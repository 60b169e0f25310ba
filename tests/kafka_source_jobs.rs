//! Whole jobs on a real broker, as far as their sources are concerned: where they start and end, what appears while they run, and
//! what large messages do.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rdkafka::producer::{BaseRecord, Producer};
use syncline::Job;
use syncline::broker::memory::MemoryBroker;
use syncline::broker::{BrokerOptions, kafka};
use syncline::codec::Raw;
use syncline::dataflow::Input;
use syncline::source::{Discovery, OnLost, Position};

use crate::job::support::{Running, copy_inputs, until};
use crate::kafka::{PATIENCE, Topic, admin, block_on, broker, tool};
use crate::kafka_source::{add_partitions, producer, remove_below, write};

/// Runs the binary on two topics, with their own prefix for outputs.
fn sync(one: &str, two: &str, prefix: &str, more: &str) -> Output {
    let arguments = format!(
        "sync -b {} --topic_one {one} --topic_two {two} -o sync --topic_prefix {prefix} --topic_one_keys k \
         --topic_two_keys k --name_one one --name_two two --window_time 60 {more}",
        broker()
    );
    Command::new(env!("CARGO_BIN_EXE_syncline")).args(arguments.split_whitespace()).output().expect("it runs")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// How many records a job read, as it says itself at its end.
fn records_in(output: &Output) -> u64 {
    let text = text(output);
    assert!(output.status.success() && text.contains(" difference=0"), "{text}");
    let rest = text.split_once("conservation: in=").expect("a summary").1;
    rest.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn keyed(keys: impl IntoIterator<Item = i32>) -> Vec<String> {
    keys.into_iter().map(|key| format!("{{\"k\":{key}}}")).collect()
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_job_starts_and_ends_where_it_is_told() {
    let (one, two) = (Topic::new("from", 2), Topic::new("to", 1));
    let _out = Topic::named(&format!("{}.sync.out", one.0), 1);
    let (producer, base) = (producer(), 1_700_000_000_000);
    let fill = |topic: &Topic, partition, count: i64| {
        for number in 0..count {
            let value = format!("{{\"k\":{number}}}");
            let record =
                BaseRecord::to(&topic.0).partition(partition).key("k").payload(&value).timestamp(base + number * 1000);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(PATIENCE).unwrap();
    };
    fill(&one, 0, 10);
    fill(&one, 1, 4);
    fill(&two, 0, 6);
    let mut number = 0;
    let mut read = |more: &str| {
        number += 1;
        let group = format!("{}.{number}", one.0); // a new one each time, so that nothing is committed
        records_in(&sync(&one.0, &two.0, &one.0, &format!("--group {group} --until end {more}")))
    };
    assert_eq!(read(""), 20, "committed is earliest where nothing is committed");
    assert_eq!(read("--start committed-or-latest"), 0);
    assert_eq!(read("--start earliest"), 20);
    assert_eq!(read("--start latest"), 0);
    assert_eq!(read(&format!("--start {}", base + 2500)), 7 + 1 + 3);
    let exact = format!("--start {}[0]=8,{}[0]=5", one.0, two.0);
    assert_eq!(read(&exact), 2 + 4 + 1);
    let group = format!("{}.java", one.0);
    let topic = format!("{}:0", one.0);
    tool(&["groups", "--group", &group, "--topic", &topic, "--reset-offsets", "--to-offset", "9", "--execute"], "");
    let more = format!("--group {group} --until end --start committed-or-latest");
    assert_eq!(records_in(&sync(&one.0, &two.0, &one.0, &more)), 1);
    // Up to a time.
    let more = format!("--group {group}.until --start earliest --until {}", base + 3000);
    assert_eq!(records_in(&sync(&one.0, &two.0, &one.0, &more)), 3 + 3 + 3);

    // A split that is not there is an error, not a start at the beginning.
    let more = format!("--group {group} --until end --start {}[7]=1", one.0);
    let failed = sync(&one.0, &two.0, &one.0, &more);
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed).contains(&format!("the start names [\"{}[7]\"]", one.0)), "{}", text(&failed));
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_lost_position_ends_a_job_or_is_counted() {
    let (one, two) = (Topic::new("lost-one", 1), Topic::new("lost-two", 1));
    let _out = Topic::named(&format!("{}.sync.out", one.0), 1);
    write(&one.0, 0, keyed(0..10));
    remove_below(&one.0, 0, 6);
    let start = format!("--until end --start {}[0]=1 --group {}.g", one.0, one.0);
    let failed = sync(&one.0, &two.0, &one.0, &start);
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
    assert!(text(&failed).contains("--on_lost_offset earliest (from 6) or latest (from 10)"), "{}", text(&failed));
    let went_on = sync(&one.0, &two.0, &one.0, &format!("{start} --on_lost_offset earliest"));
    assert_eq!(records_in(&went_on), 4);
    let said = text(&went_on);
    assert!(said.contains("from=1 to=6 offsets=5") && said.contains("skipped and counted as lost"), "{said}");

    // The library counts them.
    let options = BrokerOptions { group: one.0.clone(), on_lost_offset: OnLost::Latest, ..BrokerOptions::default() };
    let source = kafka::source(&broker(), &one.0, &options).unwrap();
    let exact = Position::Exact([(format!("{}[0]", one.0), syncline::message::Offset(1))].into());
    let input = Input::new("one", source, Arc::new(|| Box::new(Raw))).start(exact);
    let out = MemoryBroker::new();
    let running =
        Running::start(Job::new("lost"), 1, copy_inputs(vec![input], &out.sink(&BrokerOptions::default()).unwrap()));
    until("the gap is counted", || running.status.snapshot().lost_offsets == 9);
    running.stop().unwrap();
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn late_partitions_and_topics_are_read_from_their_beginning_by_workers_that_had_none() {
    let first = Topic::new("grows", 1);
    let options = BrokerOptions {
        group: first.0.clone(),
        discovery: Discovery::Every(Duration::from_millis(300)),
        ..BrokerOptions::default()
    };
    let single = kafka::source(&broker(), &first.0, &options).unwrap();
    let pattern = kafka::source(&broker(), &format!("^{}.*", first.0), &options).unwrap();
    let input = |name: &str, source| Input::new(name, source, Arc::new(|| Box::new(Raw))).start(Position::Latest);
    let out = MemoryBroker::new();
    let inputs = vec![input("single", single), input("pattern", pattern)];
    let running =
        Running::start(Job::new("late"), 2, copy_inputs(inputs, &out.sink(&BrokerOptions::default()).unwrap()));
    let came = |output: &str, value: &str| out.values(output).iter().filter(|found| *found == value).count();
    // The job starts at the end, so what is written before it reads is not for it.
    let mut number = 0;
    until("both inputs are read", || {
        number += 1;
        write(&first.0, 0, [format!("first {number}")]);
        !out.values("out-0").is_empty() && !out.values("out-1").is_empty()
    });
    add_partitions(&first.0, 2);
    let late = Topic::named(&format!("{}-late", first.0), 1);
    write(&first.0, 1, ["in the late partition"]);
    write(&late.0, 0, ["in the late topic"]);
    until("the late partition is read by both, the late topic by the pattern", || {
        ["out-0", "out-1"].iter().all(|output| came(output, "in the late partition") == 1)
            && came("out-1", "in the late topic") == 1
    });
    assert_eq!(came("out-0", "in the late topic"), 0);
    running.stop().unwrap();
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_list_and_a_pattern_are_joined() {
    let (a, b) = (Topic::new("joined-a", 2), Topic::new("joined-b", 1));
    let (x, y) = (Topic::new("other-x", 1), Topic::new("other-y", 2));
    let out = Topic::named(&format!("{}.sync.out", a.0), 1);
    write(&a.0, 0, keyed(0..10));
    write(&a.0, 1, keyed(10..20));
    write(&b.0, 0, keyed(20..30));
    write(&x.0, 0, keyed(0..15));
    write(&y.0, 1, keyed(15..30));
    let pattern = format!("^({}|{})", x.0, y.0);
    let output = sync(&format!("{},{}", a.0, b.0), &pattern, &a.0, "--until end -w 3");
    assert_eq!(records_in(&output), 60);
    assert!(text(&output).contains(" joined=30 "), "{}", text(&output));
    assert_eq!(out.ends(), [30]);
    let table = tool(&["groups", "--describe", "--group", "fasten.one.two.sync"], "");
    for (topic, partition, end) in [(&a, "1", "10"), (&b, "0", "10"), (&y, "1", "15")] {
        let row = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = row.into_iter().find(|row| row.get(1) == Some(&topic.0.as_str()) && row[2] == partition);
        assert_eq!(row.expect("the group has committed")[3], end, "{table}");
    }
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn a_message_of_forty_megabytes_is_joined() {
    const LARGE: usize = 40_000_000;
    let topics: Vec<Topic> = ["large", "small"].map(|name| Topic(format!("{name}-{}", std::process::id()))).into();
    let out = Topic(format!("{}.sync.out", topics[0].0));
    for topic in topics.iter().chain([&out]) {
        let new = NewTopic::new(&topic.0, 1, TopicReplication::Fixed(1)).set("max.message.bytes", "50000000");
        block_on(admin().create_topics([&new], &AdminOptions::new())).unwrap()[0].as_ref().expect("it is made");
    }
    let large = format!("{{\"k\":1,\"text\":\"{}\"}}", "x".repeat(LARGE));
    write(&topics[0].0, 0, [&large]);
    write(&topics[1].0, 0, keyed([1]));
    let more = format!("--until end --group {}.g", out.0);
    let output = sync(&topics[0].0, &topics[1].0, &topics[0].0, &more);
    assert_eq!(records_in(&output), 2);
    assert_eq!(out.ends(), [1]);
    let read = crate::kafka::read_all(&mut *out.source(""));
    let expected = format!("{{\"key\":\"1\",\"one\":{large},\"two\":{{\"k\":1}}}}");
    assert!(crate::kafka::text(&read[0].value) == expected, "{} bytes", read[0].value.as_ref().map_or(0, |v| v.len()));
}
