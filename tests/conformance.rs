//! Every promise of the contracts, tried on the adapters that need no server.

use syncline::broker::BrokerOptions;
use syncline::broker::memory::{MemoryBroker, MemoryMessage};
use syncline::conformance::{self, Ability, Harness, Produced};
use syncline::message::Offset;
use syncline::sink::NewSink;
use syncline::source::NewSource;

/// Runs the suite; `at_least` is how many promises must have been kept, so that none is lost by accident.
fn keeps_its_promises(mut harness: impl Harness, at_least: usize) {
    let report = conformance::run(&mut harness, &mut std::io::stdout());
    assert!(report.broken.is_empty(), "{:#?}", report.broken);
    assert!(report.kept >= at_least, "only {} promises were tried, of {at_least}: {:#?}", report.kept, report.skipped);
}

fn options(group: &str) -> BrokerOptions {
    BrokerOptions { group: group.into(), properties: vec![] }
}

struct Memory {
    broker: MemoryBroker,
    queue: bool,
    topics: usize,
}

impl Harness for Memory {
    fn name(&self) -> &str {
        if self.queue { "memory: (queue)" } else { "memory: (log)" }
    }
    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        match (self.queue, ability) {
            (true, Ability::Seek) => Some("a queue cannot be read twice"),
            (true, Ability::Groups) => Some("a queue deletes what is committed"),
            (false, Ability::Redelivery) => Some("a log does not delete"),
            _ => None,
        }
    }
    fn topic(&mut self, splits: u32) -> String {
        self.topics += 1;
        let topic = format!("topic-{}", self.topics);
        if self.queue {
            self.broker.create_queue(&topic, splits);
        } else {
            self.broker.create_topic(&topic, splits);
        }
        topic
    }
    fn produce(&mut self, topic: &str, split: u32, messages: &[Produced]) {
        for message in messages.iter().cloned() {
            let Produced { key, value, timestamp, headers } = message;
            self.broker.append(topic, split, MemoryMessage { key, value, timestamp, headers }).unwrap();
        }
    }
    fn read_back(&mut self, topic: &str) -> Vec<Produced> {
        let produced = |message| {
            let MemoryMessage { key, value, timestamp, headers } = message;
            Produced { key, value, timestamp, headers }
        };
        self.broker.messages(topic).into_iter().flatten().map(produced).collect()
    }
    fn source(&mut self, topic: &str, group: &str) -> NewSource {
        self.broker.source(topic, &options(group)).unwrap()
    }
    fn sink(&mut self, group: &str) -> NewSink {
        self.broker.sink(&options(group)).unwrap()
    }
    fn committed(&mut self, topic: &str, split: u32, group: &str) -> Option<Offset> {
        self.broker.committed(topic, split, group)
    }
    fn add_split(&mut self, topic: &str) {
        self.broker.add_split(topic).unwrap();
    }
    fn interrupt(&mut self) {
        self.broker.crash_clients();
    }
}

#[test]
fn memory_log_keeps_its_promises() {
    keeps_its_promises(Memory { broker: MemoryBroker::new(), queue: false, topics: 0 }, 45);
}

#[test]
fn memory_queue_keeps_its_promises() {
    keeps_its_promises(Memory { broker: MemoryBroker::new(), queue: true, topics: 0 }, 30);
}
