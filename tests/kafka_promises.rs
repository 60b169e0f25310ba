//! Every promise of the contracts, tried on the Kafka adapter and a real broker.
//!
//! The harness uses bare librdkafka calls, which take milliseconds; that Java's own tools see the same is shown in `kafka.rs`.

use std::collections::BTreeMap;

use bytes::Bytes;
use rdkafka::admin::{AdminOptions, NewPartitions};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};
use syncline::broker::{BrokerOptions, kafka};
use syncline::conformance::{self, Ability, Harness, PATIENCE, Produced};
use syncline::message::Offset;
use syncline::sink::NewSink;
use syncline::source::NewSource;

use crate::kafka::{admin, block_on, broker, make_topic};

struct Kafka {
    hosts: String,
    producer: BaseProducer,
    topics: Vec<String>,
}

impl Kafka {
    fn consumer(&self, group: &str) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.hosts).set("group.id", group).set("enable.auto.commit", "false");
        config.set("enable.partition.eof", "true").create().expect("a consumer")
    }

    fn options(&self, group: &str) -> BrokerOptions {
        BrokerOptions { group: group.to_string(), ..BrokerOptions::default() }
    }

    fn partitions(&self, topic: &str) -> usize {
        let metadata = self.producer.client().fetch_metadata(Some(topic), PATIENCE).expect("metadata");
        metadata.topics()[0].partitions().len()
    }
}

impl Harness for Kafka {
    fn name(&self) -> &str {
        "kafka:"
    }
    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::Redelivery => Some("a log does not delete"),
            Ability::Transactions => Some("at least once: transactions come with exactly-once"),
            Ability::Interruption => {
                Some("other tests use the same broker, and nothing stands between it and its clients")
            }
            _ => None,
        }
    }
    fn topic(&mut self, splits: u32) -> String {
        self.topics.push(make_topic("promise", splits as usize));
        self.topics.last().expect("pushed").clone()
    }
    fn produce(&mut self, topic: &str, split: u32, messages: &[Produced]) {
        for Produced { key, value, timestamp, headers } in messages {
            let headers = headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value: value.as_deref() })
            });
            let mut record = BaseRecord::<[u8], [u8]>::to(topic).partition(split as i32).headers(headers);
            record.key = key.as_deref();
            record.payload = value.as_deref();
            record.timestamp = timestamp.map(|time| time as i64);
            self.producer.send(record).map_err(|(error, _)| error).expect("room in the queue");
        }
        self.producer.flush(PATIENCE).expect("the broker has them");
    }
    fn read_back(&mut self, topic: &str) -> Vec<Produced> {
        let consumer = self.consumer("read-back");
        let partitions = self.partitions(topic);
        let mut list = TopicPartitionList::new();
        for partition in 0..partitions {
            list.add_partition_offset(topic, partition as i32, KafkaOffset::Beginning).expect("an offset");
        }
        consumer.assign(&list).expect("assigned");
        let (mut found, mut ends) = (BTreeMap::<i32, Vec<Produced>>::new(), 0);
        while ends < partitions {
            let message = match consumer.poll(PATIENCE).expect("an answer in time") {
                Err(KafkaError::PartitionEOF(_)) => {
                    ends += 1;
                    continue;
                }
                message => message.expect("a message"),
            };
            let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
            found.entry(message.partition()).or_default().push(Produced {
                key: message.key().map(Bytes::copy_from_slice),
                value: message.payload().map(Bytes::copy_from_slice),
                timestamp: message.timestamp().to_millis().map(|time| time as u64),
                headers: headers.map(|h| (h.key.to_string(), h.value.map(Bytes::copy_from_slice))).collect(),
            });
        }
        found.into_values().flatten().collect()
    }
    fn source(&mut self, topic: &str, group: &str) -> NewSource {
        kafka::source(&self.hosts, topic, &self.options(group)).expect("good options")
    }
    fn sink(&mut self, group: &str) -> NewSink {
        kafka::sink(&self.hosts, &self.options(group)).expect("good options")
    }
    fn committed(&mut self, topic: &str, split: u32, group: &str) -> Option<Offset> {
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, split as i32);
        let found = self.consumer(group).committed_offsets(list, PATIENCE).expect("offsets");
        match found.elements()[0].offset() {
            KafkaOffset::Offset(offset) => Some(Offset(offset as u64)),
            _ => None,
        }
    }
    fn add_split(&mut self, topic: &str) {
        let count = self.partitions(topic) + 1;
        let made = block_on(admin().create_partitions(&[NewPartitions::new(topic, count)], &AdminOptions::new()));
        made.expect("an answer")[0].as_ref().expect("one more partition");
        while self.partitions(topic) < count {}
    }
    fn interrupt(&mut self) {
        unreachable!("lacking")
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        if !std::thread::panicking() {
            block_on(admin().delete_topics(&topics, &AdminOptions::new())).expect("the topics can be removed");
        }
    }
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn kafka_keeps_its_promises() {
    let hosts = broker();
    let producer = ClientConfig::new().set("bootstrap.servers", &hosts).set("message.max.bytes", "50000000").create();
    let mut harness = Kafka { hosts, producer: producer.expect("a producer"), topics: Vec::new() };
    let report = conformance::run(&mut harness, &mut std::io::stdout());
    assert!(report.broken.is_empty(), "{:#?}", report.broken);
    assert!(report.kept >= 42, "only {} promises were tried: {:#?}", report.kept, report.skipped);
}
