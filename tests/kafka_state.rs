//! The binary with checkpoints on a real Kafka: killed while one side of its keys is missing, started again with other numbers of
//! workers; judged by Kafka's Java tools.
//!
//! Would catch: state that comes back without its offsets or offsets without their state, outputs that were in a checkpoint and are
//! never published, commits ahead of what is durable, a lost folder that nobody notices.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::kafka::{PATIENCE, Topic, broker};

struct Topics {
    one: Topic,
    two: Topic,
    joined: Topic,
    prefix: String,
}

impl Topics {
    fn new(name: &str) -> Self {
        let (one, two) = (Topic::new(name, 2), Topic::new(name, 3));
        let prefix = one.0.clone();
        let joined = Topic::named(&format!("{prefix}.sync.out"), 2);
        Topics { one, two, joined, prefix }
    }

    fn start(&self, dir: &Path, workers: usize, more: &str) -> Job {
        let line = format!(
            "sync -b {} --topic_one {} --topic_two {} --topic_prefix {} -o sync --topic_one_keys k --topic_two_keys k \
             --window_time 3600 --group {} -w {workers} --backendFolder {} {more}",
            broker(),
            self.one.0,
            self.two.0,
            self.prefix,
            self.prefix,
            dir.join("state").display()
        );
        let said = dir.join("said");
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        command.args(line.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(File::create(&said).expect("a file")).spawn().expect("it starts");
        Job { child, said }
    }

    /// Offsets committed under the group, of both topics.
    fn committed(&self) -> u64 {
        let client: BaseConsumer = client().set("group.id", &self.prefix).create().expect("a client");
        let mut list = TopicPartitionList::new();
        for (topic, partitions) in [(&self.one, 2), (&self.two, 3)] {
            for partition in 0..partitions {
                list.add_partition(&topic.0, partition);
            }
        }
        let list = client.committed_offsets(list, PATIENCE).expect("the broker answers");
        list.elements().iter().map(|element| element.offset().to_raw().unwrap_or(0).max(0) as u64).sum()
    }
}

fn client() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker());
    config
}

/// A process of the job, killed if it still runs at the end.
struct Job {
    child: Child,
    said: std::path::PathBuf,
}

impl Job {
    fn said(&self) -> String {
        std::fs::read_to_string(&self.said).expect("a file")
    }

    fn code(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn terminate(&mut self) {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().expect("kill").success());
        assert_eq!(self.code(), Some(0), "{}", self.said());
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// Arranging is not judging: keys go out by our own client.
fn produce(topic: &Topic, keys: std::ops::Range<usize>) {
    let producer: BaseProducer = client().create().expect("a client");
    for key in keys {
        let value = format!("{{\"k\":{key},\"from\":\"{}\"}}", topic.0);
        producer.send(BaseRecord::<(), _>::to(&topic.0).payload(&value).partition(key as i32 % 2)).expect("room");
    }
    producer.flush(PATIENCE).expect("the broker takes it");
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn kills_between_the_sides_of_a_key_lose_nothing() {
    const SLICE: usize = 200;
    const SLICES: usize = 12;
    let (topics, dir) = (Topics::new("state"), tempfile::tempdir().expect("a folder"));
    let mut restored = 0;
    for slice in 0..SLICES {
        // The second side of a key comes a run later than the first.
        produce(&topics.one, slice * SLICE..(slice + 1) * SLICE);
        produce(&topics.two, slice.saturating_sub(1) * SLICE..slice * SLICE);
        let mut job = topics.start(dir.path(), 1 + slice % 3, "");
        let start = Instant::now();
        // Some runs are killed before they have done anything, some in the middle, some when all is committed.
        let enough = (slice * SLICE * 2) as u64 * [0, 1, 1, 1][slice % 4];
        while topics.committed() < enough && job.child.try_wait().expect("it is ours").is_none() {
            assert!(start.elapsed() < PATIENCE, "{} of {enough} are committed: {}", topics.committed(), job.said());
        }
        std::thread::sleep(Duration::from_millis(slice as u64 * 37 % 200)); // the moment to be killed at
        job.child.kill().expect("it runs");
        assert_eq!(job.code(), None, "{}", job.said());
        restored += usize::from(job.said().contains("going on from a checkpoint"));
    }
    assert!(restored >= SLICES / 2, "{restored} runs went on from a checkpoint");
    produce(&topics.two, (SLICES - 1) * SLICE..SLICES * SLICE);
    let mut job = topics.start(dir.path(), 2, "");
    let all = (2 * SLICES * SLICE) as u64;
    let start = Instant::now();
    while topics.committed() < all {
        assert!(start.elapsed() < PATIENCE, "{} of {all} are committed: {}", topics.committed(), job.said());
        std::thread::sleep(Duration::from_millis(20));
    }
    job.terminate();
    let count: u64 = topics.joined.ends().iter().sum();
    let key = |line: &str| -> usize {
        let value: serde_json::Value = serde_json::from_str(line.rsplit('\t').next().expect("a value")).expect("JSON");
        value["key"].as_str().expect("a key").parse().expect("a number")
    };
    let keys: BTreeSet<usize> = topics.joined.consume(count as usize).iter().map(|(_, line)| key(line)).collect();
    assert!(keys.iter().copied().eq(0..SLICES * SLICE), "{} keys of {}", keys.len(), SLICES * SLICE);

    // Who has lost the folder hears of it before anything is read; the group says that there was one.
    std::fs::remove_dir_all(dir.path().join("state")).expect("it is there");
    let mut job = topics.start(dir.path(), 1, "");
    assert_eq!(job.code(), Some(1));
    assert!(job.said().contains("--start"), "{}", job.said());
    let mut job = topics.start(dir.path(), 1, "--start latest");
    let start = Instant::now();
    while !job.said().contains("reading source") {
        assert!(start.elapsed() < PATIENCE, "{}", job.said());
        std::thread::sleep(Duration::from_millis(20));
    }
    job.terminate();
}
