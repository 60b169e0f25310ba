//! Every promise of the contracts, tried on the adapters that need no server.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;

use syncline::broker::BrokerOptions;
use syncline::broker::file;
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
    BrokerOptions { group: group.into(), ..BrokerOptions::default() }
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
    keeps_its_promises(Memory { broker: MemoryBroker::new(), queue: true, topics: 0 }, 36);
}

struct Files {
    folder: tempfile::TempDir,
    topics: usize,
    splits: BTreeMap<String, u32>,
}

impl Harness for Files {
    fn name(&self) -> &str {
        "file:"
    }
    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::Redelivery => Some("files delete nothing"),
            Ability::Keys | Ability::Headers | Ability::Timestamps => Some("a line is a value alone"),
            Ability::Tombstones => Some("a line has a value"),
            Ability::Binary => Some("a line ends at its line end"),
            Ability::Groups => Some("files know no groups"),
            Ability::UnknownTopic => Some("a topic without files may get some later"),
            Ability::Interruption => Some("there are no connections"),
            Ability::Transactions => Some("the sink is at least once"),
            _ => None,
        }
    }
    fn topic(&mut self, splits: u32) -> String {
        self.topics += 1;
        let topic = format!("topic{}", self.topics);
        (0..splits).for_each(|_| self.add_split(&topic));
        topic
    }
    fn produce(&mut self, topic: &str, split: u32, messages: &[Produced]) {
        let mut lines = vec![];
        for message in messages {
            lines.extend_from_slice(message.value.as_ref().unwrap());
            lines.push(b'\n');
        }
        let path = self.folder.path().join(format!("{topic}-p{split}.jsonl"));
        OpenOptions::new().append(true).open(path).unwrap().write_all(&lines).unwrap();
    }
    fn read_back(&mut self, topic: &str) -> Vec<Produced> {
        let mut files: Vec<_> =
            std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{topic}-w")));
        let lines = files.iter().flat_map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            assert!(text.is_empty() || text.ends_with('\n'), "{path:?} ends inside of a line");
            text.lines().map(|line| Produced::value(line.to_owned())).collect::<Vec<_>>()
        });
        lines.collect()
    }
    fn source(&mut self, topic: &str, group: &str) -> NewSource {
        file::source(self.folder.path().to_str().unwrap(), topic, &options(group)).unwrap()
    }
    fn sink(&mut self, group: &str) -> NewSink {
        file::sink(self.folder.path().to_str().unwrap(), &options(group)).unwrap()
    }
    fn committed(&mut self, _topic: &str, _split: u32, _group: &str) -> Option<Offset> {
        None
    }
    fn add_split(&mut self, topic: &str) {
        let number = self.splits.entry(topic.into()).or_default();
        std::fs::write(self.folder.path().join(format!("{topic}-p{number}.jsonl")), "").unwrap();
        *number += 1;
    }
    fn interrupt(&mut self) {
        unreachable!("files lack interruption");
    }
}

#[test]
fn files_keep_their_promises() {
    keeps_its_promises(Files { folder: tempfile::tempdir().unwrap(), topics: 0, splits: BTreeMap::new() }, 32);
}
