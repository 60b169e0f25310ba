//! A Kafka broker for measurements, and what is asked of it beside the job.

#![allow(dead_code)] // each bench uses its part

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};

/// How long a question to the broker may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// One node with all of the JVM's compilers and a gigabyte of heap, started by the tests' script; stopped and removed at the end.
pub(crate) struct Broker {
    folder: tempfile::TempDir,
    pub(crate) hosts: String,
}

fn script(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/brokers/kafka", name].iter().collect()
}

impl Broker {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        // The controller takes the port above.
        let free = |port: &u16| [*port, port + 1].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
        let port = (29_600..30_000).step_by(2).find(free).expect("two ports are free");
        let mut command = Command::new(script("start.sh"));
        command.arg(folder.path()).arg(port.to_string());
        let status = command.env("KAFKA_TIER", "4").env("KAFKA_HEAP", "-Xms1g -Xmx1g").status();
        assert!(status.expect("start.sh runs").success(), "the broker does not start");
        Broker { folder, hosts: format!("127.0.0.1:{port}") }
    }

    pub(crate) fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.hosts);
        config
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.config().create().expect("a client")
    }

    pub(crate) fn create(&self, partitions: i32, topics: &[&str]) {
        let topics: Vec<_> =
            topics.iter().map(|name| NewTopic::new(name, partitions, TopicReplication::Fixed(1))).collect();
        let made = wait(self.admin().create_topics(&topics, &AdminOptions::new())).expect("the broker answers");
        made.into_iter().for_each(|made| drop(made.expect("the topic can be made")));
    }

    pub(crate) fn delete(&self, topics: &[&str]) {
        wait(self.admin().delete_topics(topics, &AdminOptions::new())).expect("the broker answers");
    }

    /// Every message of a topic as it is now, in the order of its partitions.
    pub(crate) fn read(&self, topic: &str, mut each: impl FnMut(&[u8])) {
        use rdkafka::message::Message as _;
        let mut config = self.config();
        config.set("group.id", "bench").set("enable.auto.commit", "false").set("isolation.level", "read_committed");
        let consumer: BaseConsumer = config.create().expect("a client");
        let (mut list, mut left) = (TopicPartitionList::new(), 0);
        let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).expect("the broker answers");
        for partition in metadata.topics()[0].partitions() {
            list.add_partition_offset(topic, partition.id(), Offset::Beginning).expect("an offset");
            let (low, high) = consumer.fetch_watermarks(topic, partition.id(), PATIENCE).expect("the broker answers");
            left += high - low;
        }
        consumer.assign(&list).expect("partitions can be assigned");
        while left > 0 {
            let message = consumer.poll(PATIENCE).expect("the messages come").expect("the broker answers");
            each(message.payload().unwrap_or_default());
            left -= 1;
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let stopped = Command::new(script("stop.sh")).arg(self.folder.path()).status();
        if !stopped.is_ok_and(|status| status.success()) {
            eprintln!("the broker of {:?} may still run", self.folder.path());
        }
    }
}

/// Waits for an answer of the admin client.
fn wait<T>(answer: impl Future<Output = T>) -> T {
    let mut answer = std::pin::pin!(answer);
    loop {
        if let Poll::Ready(value) = answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
