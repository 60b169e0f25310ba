//! A Kafka broker that is killed and comes back: reader and writer go on by themselves.
//!
//! Has a broker of its own, so it can be killed. What it would catch: a reader that stops or skips, a split called caught up
//! while nobody answers, a publish that loses or reorders the records of a key.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
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
        let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port =
            (29500..29600).step_by(2).find(|port| is_free(port) && is_free(&(port + 1))).expect("two free ports");
        let broker = Broker { folder: tempfile::tempdir().expect("a folder"), port };
        broker.script("start.sh", &broker.port.to_string());
        broker
    }

    fn script(&self, name: &str, argument: &str) {
        let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/brokers/kafka", name].iter().collect();
        let output = Command::new(path).arg(self.folder.path()).arg(argument).output().expect("the script starts");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn hosts(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.script("stop.sh", "-9");
    }
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
    while let Err(error) = writer.publish(epoch, epoch + 1, &[]) {
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
