//! The yardstick: the same job written by hand on timely, for this one shape of records: a worker reads its files, parses with
//! serde_json into borrowed structs, exchanges by a hash of the key, and a frontier-driven operator with a hash map joins and
//! times out. What it leaves out: brokers, all options, late joins, forgetting (its map only grows), bad records, accounting.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BinaryHeap, HashMap};
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::{Input, Probe};

#[derive(Deserialize)]
struct Coordinate<'a> {
    #[serde(borrow, rename = "groupId")]
    group: Cow<'a, str>,
    #[serde(borrow, rename = "artifactId")]
    artifact: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Inner<'a> {
    #[serde(borrow)]
    input: Coordinate<'a>,
}

#[derive(Deserialize)]
struct Outer<'a> {
    #[serde(borrow)]
    input: Inner<'a>,
}

#[derive(Deserialize)]
struct One<'a> {
    timestamp: u64,
    #[serde(borrow)]
    input: Inner<'a>,
}

#[derive(Deserialize)]
struct Two<'a> {
    timestamp: u64,
    #[serde(borrow)]
    input: Outer<'a>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Record {
    key: String,
    side: u8,
    time: u64,
    line: Vec<u8>,
}

fn parse(side: u8, line: &[u8]) -> Record {
    let (time, coordinate) = if side == 0 {
        let value: One<'_> = serde_json::from_slice(line).expect("a good record");
        (value.timestamp, value.input.input)
    } else {
        let value: Two<'_> = serde_json::from_slice(line).expect("a good record");
        (value.timestamp, value.input.input.input)
    };
    let key = format!("{}:{}:{}", coordinate.group, coordinate.artifact, coordinate.version);
    Record { key, side, time, line: line.to_vec() }
}

/// What is known of a key.
enum State {
    Waiting { side: u8, time: u64, line: Vec<u8> },
    Done,
}

/// The state of a worker and its two output files.
struct Join {
    states: HashMap<String, State>,
    timers: BinaryHeap<Reverse<(u64, String)>>,
    joined: BufWriter<File>,
    delayed: BufWriter<File>,
    window: u64,
}

const WRITES: &str = "the output can be written";

impl Join {
    fn arrive(&mut self, Record { key, side, time, line }: Record) {
        match self.states.get_mut(&key) {
            None => {
                self.timers.push(Reverse((time + self.window, key.clone())));
                self.states.insert(key, State::Waiting { side, time, line });
            }
            Some(State::Done) => {}
            Some(State::Waiting { side: waits, time: old, line: waiting }) if *waits == side => {
                (*old, *waiting) = (time, line);
                self.timers.push(Reverse((time + self.window, key)));
            }
            Some(state) => {
                if let State::Waiting { line: waiting, .. } = std::mem::replace(state, State::Done) {
                    let (one, two) = if side == 1 { (&waiting, &line) } else { (&line, &waiting) };
                    let out = &mut self.joined;
                    out.write_all(b"{\"key\":").expect(WRITES);
                    serde_json::to_writer(&mut *out, &key).expect(WRITES);
                    for part in [&b",\"one\":"[..], one, b",\"two\":", two, b"}\n"] {
                        out.write_all(part).expect(WRITES);
                    }
                }
            }
        }
    }

    /// Gives up what was due before `now`.
    fn expire(&mut self, now: u64) {
        while self.timers.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            let Some(Reverse((due, key))) = self.timers.pop() else { return };
            if let Some(State::Waiting { side, time, line }) = self.states.get(&key)
                && time + self.window == due
            {
                let out = &mut self.delayed;
                let (missing, present) = if *side == 0 { ("two", "one") } else { ("one", "two") };
                out.write_all(b"{\"key\":").expect(WRITES);
                serde_json::to_writer(&mut *out, &key).expect(WRITES);
                write!(out, ",\"error\":\"Missing information from {missing}.\",\"{present}\":").expect(WRITES);
                out.write_all(line).expect(WRITES);
                out.write_all(b"}\n").expect(WRITES);
            }
        }
    }
}

/// Reads one file of each topic for each worker, and writes `joined-wN.jsonl` and `delayed-wN.jsonl`. Times are in milliseconds.
pub(crate) fn run(data: &Path, topics: [&'static str; 2], out: &Path, workers: usize, window: u64, disorder: u64) {
    let (data, out) = (data.to_owned(), out.to_owned());
    let ran = timely::execute(timely::Config::process(workers), move |worker| {
        let me = worker.index();
        let create = |name: &str| {
            let file = File::create(out.join(format!("{name}-w{me}.jsonl"))).expect(WRITES);
            BufWriter::with_capacity(1 << 20, file)
        };
        let mut join = Join {
            states: HashMap::new(),
            timers: BinaryHeap::new(),
            joined: create("joined"),
            delayed: create("delayed"),
            window,
        };
        let (mut input, probe) = worker.dataflow::<u64, _, _>(|scope| {
            let (handle, stream) = scope.new_input::<Vec<Record>>();
            let route = Exchange::new(|record: &Record| {
                let mut hasher = DefaultHasher::new();
                record.key.hash(&mut hasher);
                hasher.finish()
            });
            let joined = stream.unary_frontier::<CapacityContainerBuilder<Vec<()>>, _, _, _>(
                route,
                "Join",
                move |_capability, _info| {
                    move |(input, frontier), _output| {
                        input.for_each(|_, data| data.drain(..).for_each(|record| join.arrive(record)));
                        // The input's time is in seconds; its end lets everything expire.
                        let now = frontier.frontier().first().map_or(u64::MAX, |seconds| seconds * 1000);
                        join.expire(now);
                    }
                },
            );
            (handle, joined.probe().0)
        });
        let open = |topic: &str| {
            let path = data.join(format!("{topic}-p{me}.jsonl"));
            Some(BufReader::with_capacity(1 << 18, File::open(path).expect("the dataset is there")))
        };
        let mut files = topics.map(open);
        let mut newest = [0u64; 2];
        let mut line = Vec::new();
        while files.iter().any(Option::is_some) {
            for side in 0..2 {
                for _ in 0..500 {
                    let Some(file) = &mut files[side] else { break };
                    line.clear();
                    if file.read_until(b'\n', &mut line).expect("the dataset can be read") == 0 {
                        (files[side], newest[side]) = (None, u64::MAX);
                        break;
                    }
                    let record = parse(side as u8, line.trim_ascii_end());
                    newest[side] = newest[side].max(record.time);
                    input.send(record);
                }
            }
            let now = newest[0].min(newest[1]);
            let seconds = now.saturating_sub(disorder) / 1000;
            if now != u64::MAX && seconds > *input.time() {
                input.advance_to(seconds);
            }
            worker.step();
            let least = input.time().saturating_sub(5); // bounds what is in flight
            while least > 0 && probe.less_than(&least) {
                worker.step();
            }
        }
        input.close();
        while worker.step() {}
    });
    ran.expect("timely starts").join().into_iter().for_each(|worker| worker.expect("no worker panics"));
}
