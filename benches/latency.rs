//! From the arrival of the second side to the joined record in the output, at 20,000 records a second.
//!
//! `cargo bench --bench latency` (about a minute; with `--features kafka` Kafka too, which needs Java); `-- --smoke` takes a second
//! for each broker and judges nothing.
//!
//! A thread appends records every millisecond, both sides of a key 100 ms apart; another follows the output. The time of a
//! record is taken before it is appended, so the producer's own delay counts. What it consists of: the reader's wait (a
//! followed file is looked at every millisecond while lines come, a memory topic wakes its reader), the epoch (at least a
//! millisecond), and three short ways through threads. What would make it worse: larger epochs, more of them in flight.

#[cfg(feature = "kafka")]
#[path = "support/kafka_broker.rs"]
mod kafka_broker;
#[path = "support/mod.rs"]
mod support;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use support::{Better, Target, latencies, latency_line, machine, note};
use syncline::broker::memory::MemoryBroker;
use syncline::broker::{self, BrokerOptions};
use syncline::dataflow::Input;
use syncline::job::Job;
use syncline::source::{Assignment, Batch, Position, Reader};
use syncline::sync::topics::{TopicOutputs, key_codec, synchronize_topics};
use syncline::sync::{KeyTypes, Options, Tally};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: syncline::allocator::MiMalloc = syncline::allocator::MiMalloc;

/// Records a second, over both sides.
const RATE: u64 = 20_000;
/// Bytes of a record, about.
const RECORD_BYTES: usize = 580;
/// How far apart the sides of a key are.
const APART: Duration = Duration::from_millis(100);
/// How often the producer appends, and how often a followed output file is looked at.
const APPEND_EVERY: Duration = Duration::from_millis(1);
const LOOK_EVERY: Duration = Duration::from_micros(200);
/// Joins in this time at the start do not count.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long the last joins may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    #[cfg(feature = "mimalloc")]
    syncline::allocator::tune(); // as the binary does
    let smoke = std::env::args().any(|arg| arg == "--smoke");
    let seconds = if smoke { 1 } else { 30 };
    println!("latency: {}", machine());
    let mut reached = true;
    let low = |must, goal| Target { better: Better::Low, must, goal };
    let here = [low(3.0, 3.0), low(15.0, 5.0)];
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut brokers: Vec<(&str, Ends, [Target; 2])> =
        vec![("memory", memory(), here), ("file", files(folder.path()), here)];
    #[cfg(feature = "kafka")]
    let broker = kafka_broker::Broker::start();
    #[cfg(feature = "kafka")]
    brokers.push(("kafka", kafka(&broker), [low(10.0, 6.0), low(40.0, 25.0)]));
    for (broker, ends, [p50, p99]) in brokers {
        // A broker in Java gets faster for some seconds.
        let warm_up = if broker == "kafka" { Duration::from_secs(seconds) / 4 } else { WARM_UP };
        let histogram = measure(ends, Duration::from_secs(seconds), warm_up);
        println!("{}", latency_line(broker, &histogram));
        let at = |share: f64| histogram.value_at_quantile(share) as f64 / 1e3;
        for (line, judged) in [
            p50.verdict(&format!("{broker}, median"), at(0.5), " ms"),
            p99.verdict(&format!("{broker}, p99"), at(0.99), " ms"),
        ] {
            println!("{line}");
            reached &= judged;
        }
    }
    if reached || smoke { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// When the second side of each key was appended, in nanoseconds since the start; 0 is not yet.
struct Sent {
    start: Instant,
    times: Vec<AtomicU64>,
}

impl Sent {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn latency(&self, key: usize) -> Duration {
        Duration::from_nanos(self.now().saturating_sub(self.times[key].load(Ordering::Acquire)))
    }
}

/// Takes the lines of one side.
type Append = Box<dyn FnMut(usize, Vec<String>) + Send>;
/// Gives lines of the output that are new, perhaps none.
type Follow = Box<dyn FnMut(&mut dyn FnMut(&[u8]))>;
/// The URL of a broker, and both ends of a job on it.
type Ends = (String, Append, Follow);

fn measure((url, append, mut follow): Ends, length: Duration, warm_up: Duration) -> Histogram<u64> {
    let input = |topic: &str| {
        let source = broker::source(&url, topic, &BrokerOptions::default()).expect("a source");
        let codec = key_codec(vec!["k".parse().expect("a path")], None, KeyTypes::Typed).expect("a codec");
        (topic.to_owned(), Input::new(topic, source, codec))
    };
    let sides = ["one", "two"].map(input);
    let sink = broker::sink(&url, &BrokerOptions::default()).expect("a sink");
    let outputs = TopicOutputs { sink, joined: "joined".into(), delay: None, dead_letter: None };
    let options = Options::new(2, Duration::from_secs(300));
    let tally = Arc::new(Tally::default());
    let job = Job::new("latency");
    let control = job.control();
    let running = thread::spawn(move || {
        job.run(timely::Config::thread(), move |flow| synchronize_topics(flow, &sides, &options, &outputs, &tally))
    });

    let keys = (RATE * length.as_millis() as u64 / 2_000) as usize;
    let sent = Arc::new(Sent { start: Instant::now(), times: (0..keys).map(|_| AtomicU64::new(0)).collect() });
    let producer = thread::spawn({
        let sent = Arc::clone(&sent);
        move || produce(&sent, append)
    });
    let (mut histogram, mut joined) = (latencies(), 0);
    let deadline = Instant::now() + length + PATIENCE;
    while joined < keys {
        assert!(Instant::now() < deadline, "only {joined} of {keys} keys are joined");
        follow(&mut |line| {
            let key = key_of(line);
            if sent.times[key].load(Ordering::Acquire) > (warm_up + APART).as_nanos() as u64 {
                note(&mut histogram, sent.latency(key));
            }
            joined += 1;
        });
    }
    producer.join().expect("the producer does not panic");
    control.stop();
    running.join().expect("the job does not panic").expect("the job does not fail");
    histogram
}

/// Appends both sides of all keys at their pace.
fn produce(sent: &Sent, mut append: Append) {
    let pad = "x".repeat(RECORD_BYTES);
    let line = |key: usize| format!("{{\"k\":{key},\"payload\":\"{pad}\"}}");
    let keys = sent.times.len();
    let due = |since: Duration| ((since.as_secs_f64() * RATE as f64 / 2.0) as usize).min(keys);
    let mut done = [0, 0];
    while done[1] < keys {
        let since = sent.start.elapsed();
        let until = [due(since), due(since.saturating_sub(APART))];
        for side in 0..2 {
            let new = done[side]..until[side];
            if new.is_empty() {
                continue;
            }
            let lines = new.clone().map(line).collect();
            if side == 1 {
                let now = sent.now();
                new.for_each(|key| sent.times[key].store(now, Ordering::Release));
            }
            append(side, lines);
            done[side] = until[side];
        }
        thread::sleep(APPEND_EVERY);
    }
}

/// The key of `{"key":"123",...`.
fn key_of(line: &[u8]) -> usize {
    let digits = line.strip_prefix(b"{\"key\":\"").expect("a document begins with its key");
    digits.iter().take_while(|byte| byte.is_ascii_digit()).fold(0, |key, digit| 10 * key + usize::from(digit - b'0'))
}

#[cfg(feature = "kafka")]
fn kafka(broker: &kafka_broker::Broker) -> Ends {
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::message::Message as _;
    use rdkafka::producer::{BaseProducer, BaseRecord};
    use rdkafka::{Offset, TopicPartitionList};

    broker.create(1, &["one", "two", "joined"]);
    let producer: BaseProducer = broker.config().set("acks", "1").set("linger.ms", "1").create().expect("a client");
    // A producer that is dropped throws away what it has not sent, so it lives as long as somebody waits for it.
    let producer = Arc::new(producer);
    let kept = Arc::clone(&producer);
    let append = move |side: usize, lines: Vec<String>| {
        for line in &lines {
            let record = BaseRecord::<(), str>::to(["one", "two"][side]).partition(0).payload(line);
            producer.send(record).map_err(|(error, _)| error).expect("the client takes it");
        }
        producer.poll(Duration::ZERO);
    };
    let mut config = broker.config();
    config.set("group.id", "latency").set("enable.auto.commit", "false").set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.set("fetch.queue.backoff.ms", "1").create().expect("a client");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset("joined", 0, Offset::Beginning).expect("an offset");
    consumer.assign(&list).expect("partitions can be assigned");
    let follow = move |give: &mut dyn FnMut(&[u8])| {
        kept.poll(Duration::ZERO);
        let mut patience = Duration::from_millis(100);
        while let Some(message) = consumer.poll(patience) {
            give(message.expect("the broker answers").payload().expect("a value"));
            patience = Duration::ZERO;
        }
    };
    (broker.hosts.clone(), Box::new(append), Box::new(follow))
}

fn memory() -> Ends {
    let broker = MemoryBroker::named("latency");
    ["one", "two", "joined"].iter().for_each(|topic| broker.create_topic(topic, 1));
    let (mut reader, output) = (memory_reader(&broker), broker.clone());
    let mut batch = Batch::default();
    let follow = move |give: &mut dyn FnMut(&[u8])| {
        batch.clear();
        reader.read(&mut batch, Duration::from_millis(100)).expect("the output can be read");
        batch.messages.iter().filter_map(|message| message.value.as_deref()).for_each(give);
        if let Some(last) = batch.messages.last() {
            output.trim("joined", 0, last.next).expect("the topic is there");
        }
    };
    // Retention: a list that only grows is copied as a whole now and then, while everybody waits.
    let append = move |side: usize, lines: Vec<String>| {
        let topic = ["one", "two"][side];
        broker.extend(topic, 0, lines).expect("the topic is there");
        if let Some(done) = broker.committed(topic, 0, "") {
            broker.trim(topic, 0, done).expect("the topic is there");
        }
    };
    ("memory:latency".to_owned(), Box::new(append), Box::new(follow))
}

fn memory_reader(broker: &MemoryBroker) -> Box<dyn Reader> {
    let source = broker.source("joined", &BrokerOptions::default()).expect("a source");
    let mut source = source().expect("a source");
    let splits = source.splits().expect("the splits of the output");
    let from = source.resolve(&Position::Earliest, &splits).expect("the start of the output");
    let assignments: Vec<Assignment> =
        splits.into_iter().map(|split| Assignment { from: from[&split.id], split, until: None }).collect();
    source.open(&assignments).expect("the output can be read").0
}

fn files(folder: &Path) -> Ends {
    let path = |topic: &str| folder.join(format!("{topic}.jsonl"));
    let create = |topic| OpenOptions::new().create(true).append(true).open(path(topic)).expect("a file can be made");
    let mut inputs = ["one", "two"].map(create);
    let append = move |side: usize, lines: Vec<String>| {
        let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        inputs[side].write_all(text.as_bytes()).expect("the input can be written");
    };
    let mut tail = Tail { path: folder.join("joined-w0.jsonl"), file: None, rest: vec![] };
    let follow = move |give: &mut dyn FnMut(&[u8])| {
        if !tail.poll(give) {
            thread::sleep(LOOK_EVERY);
        }
    };
    (format!("file:{}", folder.display()), Box::new(append), Box::new(follow))
}

/// A file that is followed.
struct Tail {
    path: PathBuf,
    file: Option<File>,
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl Tail {
    /// Gives whole lines; says whether there was anything new.
    fn poll(&mut self, give: &mut dyn FnMut(&[u8])) -> bool {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else { return false };
        let read = file.read_to_end(&mut self.rest).expect("the output can be read");
        let whole = memchr::memrchr(b'\n', &self.rest).map_or(0, |end| end + 1);
        self.rest[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).for_each(give);
        self.rest.drain(..whole);
        read > 0
    }
}
