//! The whole job on a real Kafka: two topics read to their ends, joined, written, committed; judged by Kafka's own Java tools
//! and by the expected answer of the bundled data.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::kafka::{Topic, broker, tool};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/orders");

/// `KEY=VALUE` lines for the Java producer: all orders or payments that a text tool can carry.
fn lines(topic: &str) -> (String, u64) {
    let (mut lines, mut count) = (String::new(), 0);
    for split in 0..2 {
        let bytes = std::fs::read(format!("{FOLDER}/{topic}-p{split}.jsonl")).unwrap();
        for line in bytes.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()) {
            let Ok(value) = serde_json::from_str::<Value>(line) else { continue };
            if let Some(key) = value["orderId"].as_str() {
                lines.push_str(&format!("{key}={line}\n"));
                count += 1;
            }
        }
    }
    (lines, count)
}

/// The keys of an expected answer, and whether each is sure.
fn expected(file: &str) -> BTreeMap<String, bool> {
    let text = std::fs::read_to_string(format!("{FOLDER}/expected-orders-payments/{file}")).unwrap();
    let keys = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    keys.map(|line| (line["key"].as_str().unwrap().to_owned(), line["maybe_late"] != true)).collect()
}

/// Each key of a topic and how often it is there; checks that the record's key is the join key.
fn keys(topic: &Topic) -> BTreeMap<String, usize> {
    let mut keys = BTreeMap::new();
    for (_, text) in topic.consume(topic.ends().iter().sum::<u64>() as usize) {
        let mut parts = text.splitn(3, '\t');
        let (_headers, key, value) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let value: Value = serde_json::from_str(value).unwrap();
        assert_eq!(value["key"], *key);
        *keys.entry(key.to_owned()).or_default() += 1;
    }
    keys
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn joins_two_topics_to_their_ends_and_commits() {
    let (orders, payments) = (Topic::new("orders", 2), Topic::new("payments", 2));
    for (topic, name) in [(&orders, "orders"), (&payments, "payments")] {
        let (text, count) = lines(name);
        topic.produce(&text);
        assert_eq!(topic.ends().iter().sum::<u64>(), count);
    }
    let prefix = &orders.0; // its own topic, so nobody else has the prefix
    let outputs = ["sync", "delay", "dead"].map(|name| Topic::named(&format!("{prefix}.{name}.out"), 2));
    let group = format!("{prefix}.group");
    let arguments = format!(
        "sync -b {} --topic_one {} --topic_two {} -o sync --topic_prefix {prefix} --delay_topic delay --enable_delay true \
         --dead_letter_topic dead --topic_one_keys orderId --topic_two_keys orderId --name_one orders --name_two payments \
         --window_time 60 --timestamp_field timestamp --clock event --max_disorder 5s --start earliest --until end \
         --group {group} -w 2",
        broker(),
        orders.0,
        payments.0
    );
    let output = Command::new(env!("CARGO_BIN_EXE_syncline")).args(arguments.split(' ')).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains(" difference=0"), "{out}");

    let joined = keys(&outputs[0]);
    assert!(joined.values().all(|count| *count == 1));
    assert_eq!(joined.keys().collect::<Vec<_>>(), expected("joined.jsonl").keys().collect::<Vec<_>>());
    let delayed = keys(&outputs[1]);
    assert!(delayed.values().all(|count| *count == 1));
    let maybe: Vec<String> =
        expected("joined.jsonl").into_iter().filter(|(_, sure)| !sure).map(|(key, _)| key).collect();
    let sure = delayed.keys().filter(|key| !maybe.contains(key));
    assert_eq!(sure.collect::<Vec<_>>(), expected("delayed.jsonl").keys().collect::<Vec<_>>());

    // Nothing waits any more, so everything is committed: Java's tool finds the group at the ends.
    let table = tool(&["groups", "--describe", "--group", &group], "");
    for topic in [&orders, &payments] {
        for (partition, end) in topic.ends().into_iter().enumerate() {
            let row = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let row =
                row.into_iter().find(|row| row.get(1) == Some(&topic.0.as_str()) && row[2] == partition.to_string());
            assert_eq!(row.expect("the group has committed")[3], end.to_string(), "{table}");
        }
    }
}
