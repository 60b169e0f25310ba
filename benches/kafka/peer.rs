//! The same job by hand, on one thread: the client's poll, serde_json, a hash map ([`hand_written`](crate::hand_written)), an
//! idempotent producer. It commits nothing and starts at the beginning.

use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::hand_written::{Join, Output, parse};
use crate::kafka_broker::PATIENCE;

/// Produces to the two outputs.
struct Topics {
    producer: BaseProducer,
    outputs: [&'static str; 2],
    document: Vec<u8>,
}

impl Topics {
    fn send(&mut self, output: usize, key: &str, parts: &[&[u8]]) {
        self.document.clear();
        parts.iter().for_each(|part| self.document.extend_from_slice(part));
        let mut record = BaseRecord::to(self.outputs[output]).key(key).payload(&self.document);
        while let Err((error, back)) = self.producer.send(record) {
            assert!(matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)), "{error}");
            self.producer.poll(Duration::from_millis(5));
            record = back;
        }
    }
}

impl Output for Topics {
    fn joined(&mut self, key: &str, parts: &[&[u8]]) {
        self.send(0, key, parts);
    }
    fn delayed(&mut self, key: &str, parts: &[&[u8]]) {
        self.send(1, key, parts);
    }
}

/// Reads both topics to their ends as of now. Times are in milliseconds.
pub(crate) fn run(hosts: &str, topics: [&str; 2], outputs: [&'static str; 2], window: u64, disorder: u64) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", hosts);
    let mut reads = config.clone();
    reads.set("group.id", "by-hand").set("enable.auto.commit", "false").set("isolation.level", "read_committed");
    reads.set("fetch.queue.backoff.ms", "10");
    let consumer: BaseConsumer = reads.create().expect("a client");
    let mut writes = config;
    writes.set("enable.idempotence", "true").set("partitioner", "murmur2_random").set("linger.ms", "5");
    writes.set("queue.buffering.max.messages", "100000");
    let producer: BaseProducer = writes.create().expect("a client");
    let mut join = Join::new(Topics { producer, outputs, document: vec![] }, window);

    // By side and partition: the newest time, and how many messages are left.
    let (mut list, mut splits) = (TopicPartitionList::new(), [vec![], vec![]]);
    for (side, topic) in topics.into_iter().enumerate() {
        let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).expect("the broker answers");
        for partition in metadata.topics()[0].partitions() {
            let (low, high) = consumer.fetch_watermarks(topic, partition.id(), PATIENCE).expect("the broker answers");
            list.add_partition_offset(topic, partition.id(), Offset::Beginning).expect("an offset");
            splits[side].push((0u64, high - low));
        }
    }
    consumer.assign(&list).expect("partitions can be assigned");
    let mut left: i64 = splits.iter().flatten().map(|split| split.1).sum();
    while left > 0 {
        let message = consumer.poll(PATIENCE).expect("messages come").expect("the broker answers");
        let side = usize::from(message.topic() == topics[1]);
        let record = parse(side as u8, message.payload().expect("a value"));
        let split = &mut splits[side][message.partition() as usize];
        *split = (split.0.max(record.time), split.1 - 1);
        join.arrive(record);
        left -= 1;
        if left % 1_000 == 0 {
            let open = splits.iter().flatten().filter(|split| split.1 > 0);
            let now = open.map(|split| split.0).min().unwrap_or(0);
            join.expire(now.saturating_sub(disorder));
            join.output.producer.poll(Duration::ZERO);
        }
    }
    join.expire(u64::MAX);
    join.output.producer.flush(PATIENCE).expect("the broker takes everything");
}
