//! FASTEN's own command line on a real Kafka, in two processes that are killed and started again; judged by Kafka's Java tools.
//!
//! Would catch: a flag of FASTEN's that means something else here, a document that is not JSON-equal to FASTEN's, records that are
//! lost by a kill because their offsets were committed while they waited, and processes that do not end when they are told to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::admin::AdminOptions;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use serde_json::{Value, json};

use crate::kafka::{Topic, admin, block_on, broker, tool};

const DEADLINE: Duration = Duration::from_secs(90);
const METADATA: &str = "fasten.metadata.out";
const CALLGRAPH: &str = "fasten.callgraph.out";
const GROUP: &str = "fasten.fasten.metadata.out.fasten.callgraph.out.sync";

/// A topic of FASTEN's name, new even where an earlier run has left one.
fn fresh(name: &str, partitions: usize) -> Topic {
    let _ = block_on(admin().delete_topics(&[name], &AdminOptions::new())); // mostly there is none
    let start = Instant::now();
    while exists(name) {
        assert!(start.elapsed() < DEADLINE, "{name} is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
    Topic::named(name, partitions)
}

fn client() -> BaseConsumer {
    ClientConfig::new().set("bootstrap.servers", broker()).set("group.id", GROUP).create().expect("a client")
}

/// Whether so many messages of a topic are committed.
fn is_committed(client: &BaseConsumer, topic: &str, partitions: i32, messages: i64) -> bool {
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition(topic, partition);
    }
    let list = client.committed_offsets(list, DEADLINE).expect("the broker answers");
    list.elements().iter().map(|element| element.offset().to_raw().unwrap_or(0).max(0)).sum::<i64>() == messages
}

fn exists(name: &str) -> bool {
    let metadata = client().fetch_metadata(None, DEADLINE).expect("the broker answers");
    metadata.topics().iter().any(|topic| topic.name() == name)
}

/// Messages in a topic of two partitions.
fn count(client: &BaseConsumer, topic: &Topic) -> u64 {
    let ends =
        (0..2).map(|partition| client.fetch_watermarks(&topic.0, partition, DEADLINE).expect("the broker answers").1);
    ends.sum::<i64>() as u64
}

fn value(number: usize, plugin: &str, text: &str) -> Value {
    json!({
        "plugin_name": plugin,
        "input": {"groupId": "org.example", "artifactId": format!("library-{number}"), "version": format!("1.{number}")},
        "payload": {"text": text, "number": 1e3},
    })
}

fn key(number: usize) -> String {
    format!("org.example:library-{number}:1.{number}")
}

fn lines(numbers: impl Iterator<Item = usize>, plugin: &str, text: &str) -> String {
    numbers.map(|number| format!("{number}={}\n", value(number, plugin, text))).collect()
}

/// The two processes of the job. Killed at the end, if they still run.
struct Processes(Vec<Child>, tempfile::TempDir);

impl Processes {
    /// The command line of the issue, word for word, but for the port.
    fn start() -> Self {
        let keys = "input.groupId,input.artifactId,input.version";
        let arguments = format!(
            "sync -b {} --topic_one {METADATA} --topic_two {CALLGRAPH} -o sync --topic_one_keys {keys} --topic_two_keys {keys} \
             --window_time 10 --delay_topic delay --enable_delay true -n 2 -w 1",
            broker()
        );
        let dir = tempfile::tempdir().expect("a folder");
        let children = (0..2).map(|process| {
            let file = |name: &str| File::create(dir.path().join(format!("{name}-{process}"))).expect("a file");
            let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
            command.args(arguments.split(' ')).args(["-p", &process.to_string()]);
            command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr")).spawn().expect("it starts")
        });
        Processes(children.collect(), dir)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.1.path().join(name)).expect("a file")
    }

    fn logs(&self) -> String {
        format!("{}\n--\n{}", self.text("stderr-0"), self.text("stderr-1"))
    }

    /// Waits until a state is reached, while both run.
    fn until(&mut self, what: &str, mut reached: impl FnMut() -> bool) {
        let start = Instant::now();
        while !reached() {
            let ended = self.0.iter_mut().any(|child| child.try_wait().expect("a child").is_some());
            assert!(!ended && start.elapsed() < DEADLINE, "{what}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends both with a signal and gives their exit codes.
    fn end(&mut self, signal: &str) -> Vec<Option<i32>> {
        for child in &self.0 {
            let sent = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().expect("kill runs");
            assert!(sent.success());
        }
        self.0.iter_mut().map(|child| child.wait().expect("it ends").code()).collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill(); // it may have ended
            let _ = child.wait();
        }
    }
}

/// Every document of an output by its key, each as often as it is there; the record's key is the join key.
fn documents(topic: &Topic) -> BTreeMap<String, Vec<Value>> {
    let mut documents: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (_, text) in topic.consume(topic.ends().iter().sum::<u64>() as usize) {
        let mut parts = text.splitn(3, '\t');
        let (_headers, key, value) = (parts.next(), parts.next().expect("a key"), parts.next().expect("a value"));
        let value: Value = serde_json::from_str(value).expect("a document");
        assert_eq!(value["key"], *key);
        documents.entry(key.to_owned()).or_default().push(value);
    }
    documents
}

/// What Java's tool says is committed, by partition; nothing where it says "-".
fn committed(topic: &Topic) -> Vec<u64> {
    let table = tool(&["groups", "--describe", "--group", GROUP], "");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut rows: Vec<(u32, u64)> = rows
        .filter(|row| row.get(1) == Some(&topic.0.as_str()))
        .map(|row| (row[2].parse().expect("a partition"), row[3].parse().unwrap_or(0)))
        .collect();
    rows.sort_unstable();
    assert_eq!(rows.len(), topic.ends().len(), "{table}");
    rows.into_iter().map(|(_, offset)| offset).collect()
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn fastens_command_line_survives_a_kill() {
    let (metadata, callgraph) = (fresh(METADATA, 3), fresh(CALLGRAPH, 2));
    let (joined, delayed) = (fresh("fasten.sync.out", 2), fresh("fasten.delay.out", 2));
    // 0..200 on both sides, 200..230 only on side one, 230..250 only on side two; 0..10 twice on side one.
    metadata.produce(&lines(0..100, "metadata", "one"));
    metadata.produce(&lines(0..10, "metadata", "one again"));
    callgraph.produce(&lines(0..100, "callgraph", "two"));
    let client = client();
    let mut first = Processes::start();
    // Nothing waits, so all of it is committed: the second run begins behind it.
    first.until("the first pairs are joined and committed", || {
        count(&client, &joined) >= 100 && is_committed(&client, &metadata.0, 3, 110)
    });
    metadata.produce(&lines(100..230, "metadata", "one"));
    callgraph.produce(&lines((100..200).chain(230..250), "callgraph", "two"));
    first.until("every pair is joined", || count(&client, &joined) >= 200);
    // What waits now must come again: its window is not over.
    first.end("KILL");
    let repeats = count(&client, &joined) as usize - 100;
    metadata.produce(&lines(250..280, "metadata", "one"));
    let mut second = Processes::start();
    callgraph.produce(&lines(250..270, "callgraph", "two"));
    let (joins, delays) = (220, 60);
    second.until("the rest is joined and delayed", || {
        count(&client, &joined) >= joins && count(&client, &delayed) >= delays
    });
    // At rest, the delayed records hold the offsets back: they may still be joined.
    assert_eq!(second.end("TERM"), [Some(0), Some(0)], "{}", second.logs());
    assert!(second.text("stdout-0").contains(" difference=0"), "{}", second.text("stdout-0"));

    let again = |number: usize| number < 10;
    let found = documents(&joined);
    let numbers: Vec<usize> = (0..200).chain(250..270).collect();
    let expected: BTreeSet<String> = numbers.iter().map(|number| key(*number)).collect();
    assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), expected, "no pair is lost and none is made up");
    for number in numbers {
        let document = |text: &str| json!({"key": key(number), METADATA: value(number, "metadata", text), CALLGRAPH: value(number, "callgraph", "two")});
        for found in &found[&key(number)] {
            assert!(*found == document("one") || again(number) && *found == document("one again"), "{found}");
        }
    }
    let twice: usize = found.values().map(|documents| documents.len() - 1).sum();
    assert!(twice <= repeats, "{twice} repeats, though only {repeats} joins were written since the last commit");

    let found = documents(&delayed);
    let numbers: Vec<usize> = (200..250).chain(270..280).collect();
    assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), numbers.iter().map(|number| key(*number)).collect());
    for number in numbers {
        let (side, other, plugin, text) = match number {
            230..250 => (CALLGRAPH, METADATA, "callgraph", "two"),
            _ => (METADATA, CALLGRAPH, "metadata", "one"),
        };
        let error = format!("Missing information from {other}.");
        let document = json!({"key": key(number), "error": error, side: value(number, plugin, text)});
        assert_eq!(found[&key(number)], [document]);
    }

    // Nothing that waits is below what is committed.
    for topic in [&metadata, &callgraph] {
        let committed = committed(topic);
        let waits = |text: &str| (200..250).chain(270..280).any(|n| text.contains(&format!("\"library-{n}\"")));
        for (partition, committed) in committed.into_iter().enumerate() {
            assert!(committed > 0, "the first pairs were committed");
            let below = tool(
                &[
                    "consume",
                    "--topic",
                    &topic.0,
                    "--partition",
                    &partition.to_string(),
                    "--offset",
                    "earliest",
                    "--max-messages",
                    &committed.max(1).to_string(),
                    "--timeout-ms",
                    "20000",
                ],
                "",
            );
            let waiting = below.lines().take(committed as usize).filter(|line| waits(line)).count();
            assert_eq!(waiting, 0, "{topic:?} partition {partition} is committed up to {committed}", topic = topic.0);
        }
    }
}
