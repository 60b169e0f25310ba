//! The whole job on a real Kafka, `syncline sync` as a process, against what is possible and what one would write by hand.
//!
//! `cargo bench --features kafka --bench kafka` (about 6 minutes, 8 GB of disk, Java); `-- --smoke` checks answers on a small set.
//!
//! (i) A bare loop on the client that consumes both topics and produces as many bytes: the floor. (ii) The same job by hand, on one
//! thread: the client, serde_json, a hash map. Ours with one worker. The broker runs on the same machine; CPU is that of each process
//! alone. Records of the FASTEN shape: 580 bytes, 1 M keys, 2 topics of 2 partitions, 2 % duplicates, 5 % + 5 % unmatched, a window
//! of 300 s of event time. "Our own cost" is CPU per record less that of the floor.

#[path = "../support/hand_written.rs"]
mod hand_written;
#[path = "../support/kafka_broker.rs"]
mod kafka_broker;
#[path = "../support/mod.rs"]
mod support;

mod bare;
mod peer;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use kafka_broker::Broker;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use support::{Better, Pairs, Target, Usage, machine, median, mib, rounds, run_child};
use xxhash_rust::xxh3::xxh3_64;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: syncline::allocator::MiMalloc = syncline::allocator::MiMalloc;

const ROUNDS: usize = 5;
const WINDOW_SECONDS: u64 = 300;
const DISORDER_SECONDS: u64 = 10;
const PARTITIONS: i32 = 2;
const FILES: [&str; 2] = ["fasten.callgraph.out", "fasten.metadata.out"];
const TOPICS: [&str; 2] = ["one", "two"];
const OUTPUTS: [&str; 2] = ["fasten.joined.out", "fasten.delayed.out"];

fn main() -> ExitCode {
    #[cfg(feature = "mimalloc")]
    syncline::allocator::tune(); // as the binary does
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--peer", hosts] => {
            peer::run(hosts, TOPICS, OUTPUTS, 1000 * WINDOW_SECONDS, 1000 * DISORDER_SECONDS);
            return ExitCode::SUCCESS;
        }
        ["--load", hosts, data] => {
            load(hosts, data.as_ref());
            return ExitCode::SUCCESS;
        }
        ["--bare", hosts] => {
            bare::run(hosts, TOPICS, OUTPUTS[0], PARTITIONS);
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let smoke = args.iter().any(|arg| arg == "--smoke");
    let (keys, rounds) = if smoke { (2_000, 0) } else { (1_000_000, rounds(ROUNDS)) };
    println!("kafka: {}", machine());
    let bench = Bench::new(keys);
    let (mut cpu, mut floor, mut own) = (Pairs::default(), vec![], vec![]);
    let (mut peak, mut wall) = (Pairs::default(), Pairs::default());
    for round in 0..=rounds {
        let check = round == 0;
        let ours = bench.ours(check);
        let theirs = bench.process("--peer", check);
        let bare = bench.process("--bare", false);
        if round > 0 {
            let records = bench.records;
            let micros = |usage: &Usage| usage.cpu.as_secs_f64() * 1e6 / records as f64;
            cpu.a.push(ours.per_cpu_second(records));
            cpu.b.push(theirs.per_cpu_second(records));
            wall.a.push(records as f64 / ours.wall.as_secs_f64());
            wall.b.push(records as f64 / theirs.wall.as_secs_f64());
            peak.a.push(ours.peak_bytes as f64);
            peak.b.push(theirs.peak_bytes as f64);
            floor.push(bare.per_cpu_second(records));
            own.push(micros(&ours) - micros(&bare));
        }
    }
    if smoke {
        println!("both give the {} joined and {} delayed keys", bench.joined.0, bench.delayed.0);
        return ExitCode::SUCCESS;
    }
    println!("{}", cpu.line("syncline against the job by hand", "records/CPU-s"));
    println!("{}", wall.line("on the wall, beside the broker", "records/s"));
    println!("peak memory: {} against {}", mib(median(&peak.a) as u64), mib(median(&peak.b) as u64));
    println!("the bare loop: {} records/CPU-s", support::short(median(&floor)));
    let speed = Target { better: Better::High, must: 75.0, goal: 110.0 };
    let cost = Target { better: Better::Low, must: 5.0, goal: 3.0 };
    let (line, reached) =
        speed.verdict("share of the hand-written job's records per CPU-second", 100.0 * cpu.ratio(), " %");
    println!("{line}");
    println!("{}", cost.verdict("our own cost (no must)", median(&own), " us of CPU a record").0);
    if reached { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many keys, and a sum over their hashes.
type Keys = (u64, u64);

struct Bench {
    broker: Broker,
    records: u64,
    joined: Keys,
    delayed: Keys,
}

impl Bench {
    /// Makes the dataset, if it was not made before, starts a broker and loads it.
    fn new(keys: u64) -> Self {
        let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kafka-{keys}"));
        if !data.join("expected/answer.json").exists() {
            println!("making {keys} keys in {data:?}");
            let out = data.to_str().expect("the path of the target folder is text");
            let args =
                ["make", "fasten", "--keys", &keys.to_string(), "--partitions", "2", "--out", out].map(str::to_owned);
            syncline::datasets::run(&args, &mut std::io::sink()).expect("the dataset can be made");
        }
        let answer = fs::read_to_string(data.join("expected/answer.json")).expect("the answer can be read");
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("the answer is JSON");
        let broker = Broker::start();
        broker.create(PARTITIONS, &TOPICS);
        // In a process of its own: the memory that a child has at most begins with that of its parent.
        let mut load = Command::new(std::env::current_exe().expect("the bench has a path"));
        let status = load.args(["--load", &broker.hosts]).arg(&data).status().expect("the process starts");
        assert!(status.success(), "the topics cannot be loaded");
        Bench {
            broker,
            records: answer["totals"]["records"].as_u64().expect("the answer counts records"),
            joined: expected(&data, "joined"),
            delayed: expected(&data, "delayed"),
        }
    }

    fn ours(&self, check: bool) -> Usage {
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        command
            .args(["sync", "--brokers", &self.broker.hosts, "--topic_one", TOPICS[0], "--topic_two", TOPICS[1]])
            .args(["--topic_one_keys", "input.input.groupId,input.input.artifactId,input.input.version"])
            .arg("--topic_two_keys")
            .arg("input.input.input.groupId,input.input.input.artifactId,input.input.input.version")
            .args(["-o", "joined", "--delay_topic", "delayed", "--enable_delay", "true", "--start", "earliest"])
            .args(["--window_time", &WINDOW_SECONDS.to_string(), "--clock", "event"])
            .args(["--max_disorder", &format!("{DISORDER_SECONDS}s"), "--until", "end"]);
        self.measure(command, check)
    }

    fn process(&self, what: &str, check: bool) -> Usage {
        let mut command = Command::new(std::env::current_exe().expect("the bench has a path"));
        command.args([what, &self.broker.hosts]);
        self.measure(command, check)
    }

    /// Runs one side on outputs of its own, and compares what it has written.
    fn measure(&self, mut command: Command, check: bool) -> Usage {
        self.broker.create(PARTITIONS, &OUTPUTS);
        let (status, usage) = run_child(command.stdout(Stdio::null())).expect("the process starts");
        assert!(status.success(), "{command:?} ends with {status}");
        if check {
            let answer = OUTPUTS.map(|topic| {
                let mut keys = (0, 0u64);
                self.broker.read(topic, |document| add(&mut keys, document, "{\"key\":\""));
                keys
            });
            assert_eq!(answer, [self.joined, self.delayed], "the answer of {command:?} is wrong");
        }
        self.broker.delete(&OUTPUTS);
        usage
    }
}

/// Adds the key behind the first `mark` of a line.
fn add(keys: &mut Keys, line: &[u8], mark: &str) {
    let start = memchr::memmem::find(line, mark.as_bytes()).expect("a line has a key") + mark.len();
    let end = start + memchr::memchr(b'"', &line[start..]).expect("a key ends");
    *keys = (keys.0 + 1, keys.1.wrapping_add(xxh3_64(&line[start..end])));
}

fn lines(path: PathBuf, mut each: impl FnMut(&[u8])) {
    let mut lines = BufReader::with_capacity(1 << 20, File::open(path).expect("the file can be read"));
    let mut line = vec![];
    while lines.read_until(b'\n', &mut line).expect("the file can be read") > 0 {
        each(line.trim_ascii_end());
        line.clear();
    }
}

fn expected(data: &Path, name: &str) -> Keys {
    let mut keys = (0, 0);
    lines(data.join("expected").join(format!("{name}.jsonl")), |line| add(&mut keys, line, "\"key\":\""));
    keys
}

/// Puts every file into the partition of its number; the time of a message is that of its record.
fn load(hosts: &str, data: &Path) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", hosts);
    config.set("linger.ms", "20").set("batch.size", "131072").set("queue.buffering.max.messages", "1000000");
    let producer: BaseProducer = config.create().expect("a client");
    for (topic, file) in TOPICS.into_iter().zip(FILES) {
        for partition in 0..PARTITIONS {
            lines(data.join(format!("{file}-p{partition}.jsonl")), |line| {
                let time = time_of(line);
                let mut record = BaseRecord::<(), [u8]>::to(topic).partition(partition).payload(line).timestamp(time);
                while let Err((error, back)) = producer.send(record) {
                    assert!(matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)), "{error}");
                    producer.poll(Duration::from_millis(10));
                    record = back;
                }
            });
        }
    }
    producer.flush(Duration::from_secs(120)).expect("the broker takes everything");
}

/// The number behind `"timestamp":`.
fn time_of(line: &[u8]) -> i64 {
    const MARK: &[u8] = b"\"timestamp\":";
    let start = memchr::memmem::find(line, MARK).expect("a record has a time") + MARK.len();
    line[start..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |time, digit| 10 * time + i64::from(digit - b'0'))
}
