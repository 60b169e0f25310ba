//! A Kafka broker that is frozen or killed and comes back: reader and writer go on by themselves, and so does the whole job.
//!
//! Has a broker of its own, so it can be killed. What it would catch: a reader that stops or skips, a split called caught up
//! while nobody answers, a publish that loses or reorders the records of a key, a job that ends, loses or repeats something.

use std::io::Read as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::admin::TopicReplication;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};
use syncline::broker::{BrokerOptions, kafka};
use syncline::message::Offset;
use syncline::sink::{Entity, OutputRecord, RunNumber, Slot, Writer, WriterContext};
use syncline::source::{Assignment, Batch, Evidence, Position, Reader};

const PATIENCE: Duration = Duration::from_secs(90);

struct Broker {
    folder: tempfile::TempDir,
    port: u16,
}

impl Broker {
    fn start() -> Broker {
        Broker::start_as(None)
    }

    /// A broker of its own, or the second one of a cluster.
    fn start_as(first: Option<&Broker>) -> Broker {
        static NEXT: AtomicU16 = AtomicU16::new(29_500); // brokers of other tests may be about to listen
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        let mut ports = std::iter::from_fn(|| Some(NEXT.fetch_add(2, Ordering::SeqCst)).filter(|port| *port < 29_600));
        let port = ports.find(|port| is_free(*port) && is_free(port + 1)).expect("two free ports");
        let broker = Broker { folder: tempfile::tempdir().expect("a folder"), port };
        match first {
            None => broker.script("start.sh", &broker.port.to_string()),
            Some(first) => {
                let mut command = broker.command("start.sh", &broker.port.to_string());
                run(command.env("KAFKA_JOIN", first.folder.path()));
            }
        }
        broker
    }

    fn command(&self, name: &str, argument: &str) -> Command {
        let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/brokers/kafka", name].iter().collect();
        let mut command = Command::new(path);
        command.arg(self.folder.path()).arg(argument);
        command
    }

    fn script(&self, name: &str, argument: &str) {
        run(&mut self.command(name, argument));
    }

    /// Sends the broker a signal.
    fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.folder.path().join("pid")).expect("its process id");
        let status = Command::new("kill").args(["-s", signal, pid.trim()]).status().expect("kill starts");
        assert!(status.success(), "{signal}");
    }

    fn hosts(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(self.folder.path().join("pid")) {
            let _ = Command::new("kill").args(["-s", "CONT", pid.trim()]).status(); // a test may have failed meanwhile
            self.script("stop.sh", "-9");
        }
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("the script starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn write(writer: &mut dyn Writer, epoch: u64, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let (key, value) = (Some(Bytes::from_static(b"key")), Bytes::from(number.to_string()));
        writer.write(epoch, Entity(0), OutputRecord { key, value, ..OutputRecord::default() }).expect("written");
    }
    writer.prepare(epoch, epoch + 1).expect("prepared");
}

/// Publishes as the job does: again while that may help.
fn publish(writer: &mut dyn Writer, epoch: u64) {
    let start = Instant::now();
    while let Err(error) = writer.publish(epoch, epoch + 1, None) {
        assert!(error.is_retryable() && start.elapsed() < PATIENCE, "{error:?}");
    }
}

/// Reads on until `done`, which sees the values so far and what was said last. Errors must be worth a retry.
fn read(reader: &mut dyn Reader, values: &mut Vec<String>, mut done: impl FnMut(&[String], Option<Evidence>) -> bool) {
    let (start, mut said) = (Instant::now(), None);
    while !done(values, said) {
        assert!(start.elapsed() < PATIENCE, "{} values, {said:?}", values.len());
        let mut batch = Batch::default();
        match reader.read(&mut batch, Duration::from_millis(100)) {
            Ok(_) => said = batch.evidence.last().map(|(_, evidence)| *evidence).or(said),
            Err(error) if error.is_retryable() => said = Some(Evidence::Behind), // as the job takes it
            Err(error) => panic!("{error:?}"),
        }
        let text = |value: Option<Bytes>| String::from_utf8(value.expect("a value").to_vec()).expect("text");
        values.extend(batch.messages.into_iter().map(|message| text(message.value)));
    }
}

#[test]
#[ignore = "needs kafka: starts one of its own with tests/brokers/kafka/start.sh"]
fn a_killed_broker_costs_time_and_nothing_else() {
    let broker = Broker::start();
    let topic = crate::kafka::make_topic_at(&broker.hosts(), "outage", 1);
    let options = BrokerOptions { group: "outage".to_string(), ..BrokerOptions::default() };
    let mut source = kafka::source(&broker.hosts(), &topic, &options).expect("options")().expect("a source");
    let mut sink = kafka::sink(&broker.hosts(), &options).expect("options")().expect("a sink");
    let context = WriterContext {
        slot: Slot(0),
        output: 0,
        run: RunNumber(1),
        entities: vec![topic.clone()],
        dead_letter: None,
        outbox: false,
    };
    let mut writer = sink.open(&context).expect("a writer");
    write(&mut *writer, 1, 0..1000);
    publish(&mut *writer, 1);

    let splits = source.splits().expect("splits");
    let from = source.resolve(&Position::Earliest, &splits).expect("offsets");
    let assignment = Assignment { split: splits[0].clone(), from: from[&splits[0].id], until: None };
    let (mut reader, mut committer) = source.open(&[assignment]).expect("a reader");
    let mut values = Vec::new();
    read(&mut *reader, &mut values, |values, said| values.len() == 1000 && said == Some(Evidence::CaughtUp));

    broker.script("stop.sh", "-9");
    read(&mut *reader, &mut values, |_, said| said == Some(Evidence::Behind));
    write(&mut *writer, 2, 1000..2000);
    let publishing = std::thread::spawn(move || {
        publish(&mut *writer, 2);
        write(&mut *writer, 3, 2000..3000);
        publish(&mut *writer, 3);
    });
    broker.script("start.sh", &broker.port.to_string());
    read(&mut *reader, &mut values, |values, said| values.len() >= 3000 && said == Some(Evidence::CaughtUp));
    publishing.join().expect("everything is published");
    assert_eq!(values, (0..3000).map(|number| number.to_string()).collect::<Vec<_>>());

    committer.commit(&[(splits[0].id, Offset(3000))].into(), &[]).expect("committed");
    assert_eq!(source.resolve(&Position::COMMITTED, &splits).expect("offsets")[&splits[0].id], Offset(3000));
}

/// How long the broker is frozen. The client gives up each request after two seconds of it.
const FROZEN: Duration = Duration::from_secs(20);

fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < PATIENCE, "not reached: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes pairs to both topics, a thousand a second, until it is told to stop; says how many it has written.
struct Load {
    stop: Arc<AtomicBool>,
    pairs: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Load {
    fn start(hosts: String, topics: [String; 2]) -> Load {
        let (stop, pairs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, written) = (Arc::clone(&stop), Arc::clone(&pairs));
        let thread = std::thread::spawn(move || {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", hosts).set("enable.idempotence", "true").set("socket.timeout.ms", "2000");
            let producer: BaseProducer = config.create().expect("a producer");
            while !stopped.load(Ordering::SeqCst) {
                let pair = written.load(Ordering::SeqCst);
                let (key, value) = (pair.to_string(), format!("{{\"k\":{pair}}}"));
                for topic in &topics {
                    let record = || BaseRecord::to(topic).key(&key).payload(&value);
                    while producer.send(record()).is_err() {
                        producer.poll(Duration::from_millis(10)); // its queue is full
                    }
                }
                written.store(pair + 1, Ordering::SeqCst);
                producer.poll(Duration::from_millis(1));
            }
            until("the load is written", || producer.flush(Duration::from_secs(1)).is_ok());
        });
        Load { stop, pairs, thread }
    }

    fn pairs(&self) -> u64 {
        self.pairs.load(Ordering::SeqCst)
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("all is written");
        self.pairs.load(Ordering::SeqCst)
    }
}

/// The process of a job; killed if the test fails.
struct Job {
    process: Child,
    log: PathBuf,
}

impl Job {
    /// Starts one on topics of two partitions each, with its files in the folder of a broker.
    fn start(broker: &Broker, [one, two]: &[String; 2], prefix: &str) -> Job {
        let arguments = format!(
            "sync -b {} --topic_one {one} --topic_two {two} -o sync --topic_prefix {prefix} --topic_one_keys k --topic_two_keys k \
             --window_time 600 --start earliest --kafka socket.timeout.ms=2000 -w 2",
            broker.hosts()
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        let log = broker.folder.path().join("job.log");
        let to_log = std::fs::File::create(&log).expect("a file");
        command.args(arguments.split(' ')).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(to_log);
        Job { process: command.spawn().expect("the job starts"), log }
    }

    /// It must still run.
    fn check(&mut self) {
        if let Some(status) = self.process.try_wait().expect("a process") {
            panic!("{status}: {}", std::fs::read_to_string(&self.log).expect("its log"));
        }
    }

    /// Stops it, and says what it has printed.
    fn stop(&mut self) -> String {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &id]).status().expect("kill starts").success());
        let mut out = String::new();
        self.process.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
        let status = self.process.wait().expect("it ends");
        assert!(status.success(), "{out}{}", std::fs::read_to_string(&self.log).expect("its log"));
        out
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
    }
}

/// Reads what a topic gets; a plain client, which goes on by itself.
struct Output {
    consumer: BaseConsumer,
    keys: Vec<u64>,
}

impl Output {
    fn new(hosts: &str, topic: &str) -> Output {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", hosts).set("group.id", "output").set("socket.timeout.ms", "2000");
        let consumer: BaseConsumer = config.set("enable.auto.commit", "false").create().expect("a consumer");
        let mut list = TopicPartitionList::new();
        for partition in 0..2 {
            list.add_partition_offset(topic, partition, KafkaOffset::Beginning).expect("a partition");
        }
        consumer.assign(&list).expect("assigned");
        Output { consumer, keys: vec![] }
    }

    /// Waits until so many joined records are there.
    fn wait(&mut self, what: &str, records: u64, job: &mut Job) {
        until(what, || {
            while let Some(message) = self.consumer.poll(Duration::from_millis(10)) {
                let Ok(message) = message else { continue }; // the broker is away
                let key = std::str::from_utf8(message.key().expect("a key")).expect("text");
                self.keys.push(key.parse().expect("a number"));
            }
            job.check();
            self.keys.len() as u64 >= records
        });
    }
}

#[test]
#[ignore = "needs kafka: starts one of its own with tests/brokers/kafka/start.sh"]
fn the_job_goes_on_by_itself_when_its_broker_was_frozen_or_killed() {
    let broker = Broker::start();
    let hosts = broker.hosts();
    let topics = ["one", "two"].map(|name| crate::kafka::make_topic_at(&hosts, name, 2));
    let prefix = topics[0].clone();
    let joined = format!("{prefix}.sync.out");
    crate::kafka::make_topic_named(&hosts, &joined, 2);
    let mut job = Job::start(&broker, &topics, &prefix);
    let load = Load::start(hosts.clone(), topics);
    let mut output = Output::new(&hosts, &joined);
    output.wait("the job is under load", 1_000, &mut job);

    broker.signal("STOP");
    let frozen = Instant::now();
    until("the broker was frozen for long enough", || frozen.elapsed() >= FROZEN);
    broker.signal("CONT");
    let goal = load.pairs() + 1_000;
    output.wait("the job goes on after the freeze", goal, &mut job);

    broker.script("stop.sh", "-9");
    broker.script("start.sh", &broker.port.to_string());
    let goal = load.pairs() + 1_000;
    output.wait("the job goes on after the kill", goal, &mut job);

    let out = finish(load, output, job);
    let retries = out.split("troubles: retries=").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(retries.is_some_and(|retries| retries.parse::<u64>().is_ok_and(|retries| retries > 0)), "{out}");
}

/// Ends load and job when everything is joined; what the job has printed.
fn finish(load: Load, mut output: Output, mut job: Job) -> String {
    let pairs = load.stop();
    output.wait("everything is joined", pairs, &mut job);
    let out = job.stop();
    assert!(out.contains(&format!(" joined={pairs} ")) && out.contains(" difference=0"), "{out}");
    output.keys.sort_unstable();
    assert!(output.keys.into_iter().eq(0..pairs), "a pair was lost, or joined twice");
    out
}

/// The nodes that lead the partitions of a topic.
fn leaders(hosts: &str, topic: &str) -> Vec<i32> {
    let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", hosts).create().expect("a client");
    let metadata = client.fetch_metadata(Some(topic), PATIENCE).expect("the broker answers");
    metadata.topics()[0].partitions().iter().map(|partition| partition.leader()).collect()
}

#[test]
#[ignore = "needs kafka: starts two of its own with tests/brokers/kafka/start.sh"]
fn the_job_goes_on_by_itself_when_the_leader_of_its_partitions_moves() {
    let first = Broker::start();
    let second = Broker::start_as(Some(&first));
    let hosts = first.hosts();
    let (topics, prefix) = (["one".to_owned(), "two".to_owned()], "moved");
    let joined = format!("{prefix}.sync.out");
    let all = [&topics[0], &topics[1], &joined];
    for topic in all {
        crate::kafka::make_topic_on(&hosts, topic, 2, TopicReplication::Variable(&[&[2, 1], &[2, 1]]));
        assert_eq!(leaders(&hosts, topic), [2, 2]);
    }
    let mut job = Job::start(&first, &topics, prefix);
    let load = Load::start(hosts.clone(), topics.clone());
    let mut output = Output::new(&hosts, &joined);
    output.wait("the job is under load", 1_000, &mut job);

    second.script("stop.sh", "-TERM"); // which hands its partitions over first
    for topic in all {
        until("the leader has moved", || leaders(&hosts, topic) == [1, 1]);
    }
    let goal = load.pairs() + 1_000;
    output.wait("the job goes on with the other leader", goal, &mut job);
    finish(load, output, job);
}
