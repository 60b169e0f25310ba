//! The yardstick: the same job written by hand on timely, for this one shape of records: a worker reads its files, parses,
//! exchanges by a hash of the key, and a frontier-driven operator joins and times out ([`hand_written`](crate::hand_written)).

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::{Input, Probe};

use crate::hand_written::{Join, Output, Record, parse};

/// The two output files of a worker.
struct Files {
    joined: BufWriter<File>,
    delayed: BufWriter<File>,
}

const WRITES: &str = "the output can be written";

fn write(file: &mut BufWriter<File>, parts: &[&[u8]]) {
    parts.iter().chain(&[&b"\n"[..]]).for_each(|part| file.write_all(part).expect(WRITES));
}

impl Output for Files {
    fn joined(&mut self, _key: &str, parts: &[&[u8]]) {
        write(&mut self.joined, parts);
    }
    fn delayed(&mut self, _key: &str, parts: &[&[u8]]) {
        write(&mut self.delayed, parts);
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
        let mut join = Join::new(Files { joined: create("joined"), delayed: create("delayed") }, window);
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
