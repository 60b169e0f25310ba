//! Two processes of one job, as threads of this one: what one of them knows the other must hear.
//!
//! Would catch: a process that hangs because the other could not build its dataflow, or that ignores a stop because its own inputs
//! have ended; reading that goes on while another worker cannot write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use syncline::broker::memory::MemoryBroker;
use syncline::codec::Raw;
use syncline::dataflow::{Arrived, Input};
use syncline::epoch::Epoch;
use syncline::message::Message;
use syncline::pacing::Pacing;
use syncline::reader::Until;
use syncline::sink::{Entity, Guarantee, NewSink, OutputRecord, Prepared, Sink, Undelivered, Writer, WriterContext};
use syncline::timely::dataflow::operators::Exchange;
use syncline::timely::dataflow::operators::vec::Map;
use syncline::{Error, ErrorKind, Job, Result};

use super::support::{GROUP, Gate, Log, Running, Trouble, copy, copy_inputs, options, sink, source, until};
use crate::cluster::free_ports;

/// Two processes of one worker each.
pub fn configs() -> [timely::Config; 2] {
    let addresses: Vec<String> = free_ports(2).iter().map(|port| format!("127.0.0.1:{port}")).collect();
    [0, 1].map(|process| timely::Config {
        communication: timely::CommunicationConfig::Cluster {
            threads: 1,
            process,
            addresses: addresses.clone(),
            report: false,
            zerocopy: false,
        },
        worker: timely::WorkerConfig::default(),
    })
}

#[test]
fn a_process_that_cannot_build_its_dataflow_ends_the_other() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 2);
    let (log, quiet) = (Log::default(), Trouble::default());
    let copying = || copy(&[source(&broker, "topic", &log, &quiet)], &sink(&broker, &log, &Gate::new(true), &quiet));
    let [one, two] = configs();
    let first = Running::start_as(Job::new(GROUP), one, copying());
    let second = Running::start_as(Job::new(GROUP), two, |_flow: &mut syncline::dataflow::Flow<'_>| {
        Err(Error::new(ErrorKind::NotFound, "a file is missing here"))
    });
    assert_eq!(second.join().expect_err("it fails").to_string(), "a file is missing here");
    assert_eq!(first.join().expect_err("it fails too").kind(), ErrorKind::Cluster);
}

#[test]
fn processes_of_different_jobs_are_told_and_a_stop_ends_the_waiting() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 2);
    let (log, quiet) = (Log::default(), Trouble::default());
    let copying = || copy(&[source(&broker, "topic", &log, &quiet)], &sink(&broker, &log, &Gate::new(true), &quiet));
    let settings = |window: &str| vec![("window".to_owned(), window.to_owned())];
    let [one, two] = configs();
    let first = Running::start_as(Job::new(GROUP).settings(settings("1m")), one, copying());
    let second = Running::start_as(Job::new(GROUP).settings(settings("2m")), two.clone(), copying());
    let error = second.join().expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::Cluster);
    assert!(error.to_string().ends_with("process 1 was started with other settings than process 0: window"), "{error}");
    let job = Job::new(GROUP).settings(settings("1m")).connect_timeout(Duration::from_millis(200));
    let alone = Running::start_as(job, configs()[1].clone(), copying());
    let error = alone.join().expect_err("nobody is there");
    assert!(error.to_string().contains("have not met within 200ms: process 0 (127.0.0.1:"), "{error}");
    first.stop().unwrap();
}

#[test]
fn a_stop_reaches_everybody_from_a_process_whose_inputs_have_ended() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 2);
    let (log, quiet) = (Log::default(), Trouble::default());
    let copying = |until| {
        let input = Input::new("topic", source(&broker, "topic", &log, &quiet), Arc::new(|| Box::new(Raw)));
        copy_inputs(vec![input.until(until)], &sink(&broker, &log, &Gate::new(true), &quiet))
    };
    for split in 0..2 {
        broker.append("topic", split, "value").unwrap();
    }
    let [one, two] = configs();
    let ended = Running::start_as(Job::new(GROUP), one, copying(Until::End));
    let follows = Running::start_as(Job::new(GROUP), two, copying(Until::Never));
    until("both are written", || broker.values("out-0").len() == 2);
    ended.stop().unwrap();
    follows.join().unwrap();
}

/// Takes nothing on the second worker until it is allowed to.
struct Stuck(Arc<AtomicBool>);

impl Sink for Stuck {
    fn name(&self) -> &str {
        "stuck"
    }
    fn guarantee(&self) -> Guarantee {
        Guarantee::AtLeastOnce
    }
    fn open(&mut self, context: &WriterContext) -> Result<Box<dyn Writer>> {
        Ok(Box::new(StuckWriter { free: Arc::clone(&self.0), stuck: context.slot.0 == 1 }))
    }
}

struct StuckWriter {
    free: Arc<AtomicBool>,
    stuck: bool,
}

impl Writer for StuckWriter {
    fn write(&mut self, _epoch: Epoch, _entity: Entity, _record: OutputRecord) -> Result<()> {
        Ok(())
    }
    fn prepare(&mut self, _lower: Epoch, _upper: Epoch) -> Result<Prepared> {
        Ok(Prepared::default())
    }
    fn publish(&mut self, _lower: Epoch, _upper: Epoch, _left: Option<&[u8]>) -> Result<Undelivered> {
        if self.stuck && !self.free.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Connect, "nobody takes it").retryable());
        }
        Ok(Undelivered::default())
    }
    fn published(&mut self) -> Result<Option<Epoch>> {
        Ok(None)
    }
}

#[test]
fn reading_stops_while_another_worker_cannot_write() {
    const MESSAGES: u64 = 2_000;
    const BYTES: usize = 16 << 10;
    const CAP: usize = 1 << 20;
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 1); // read by the first worker
    for _ in 0..MESSAGES {
        broker.append("topic", 0, Bytes::from(vec![b'x'; BYTES])).unwrap();
    }
    let free = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&free);
    let new_sink: NewSink = Arc::new(move || Ok(Box::new(Stuck(Arc::clone(&held)))));
    let input = Input::new("topic", broker.source("topic", &options()).unwrap(), Arc::new(|| Box::new(Raw)));
    let pacing = Pacing { max_bytes: CAP / 4, max_undurable_bytes: CAP, ..Pacing::default() };
    let job = Job::new(GROUP).pacing(pacing).retry(super::support::eager());
    let running = Running::start(job, 2, move |flow| {
        let records = flow.read(&input.clone().until(Until::End))?.map(|arrived: Arrived<Message>| OutputRecord {
            value: arrived.data.value.unwrap_or_default(),
            ..OutputRecord::default()
        });
        let second = records.exchange(|_| 1);
        flow.write(&new_sink, vec![("out".into(), second)])
    });
    // Without a limit across workers all of it is read in much less than this.
    let most = (3 * CAP / BYTES) as u64; // twice the cap, and the epochs at its edge
    let patience = Instant::now() + Duration::from_secs(2);
    until("much is read, or time is over", || {
        running.status.snapshot().records_read > most || Instant::now() > patience
    });
    let read = running.status.snapshot().records_read;
    assert!((1..=most).contains(&read), "{read} messages of {BYTES} bytes were read, {most} are allowed");
    free.store(true, Ordering::SeqCst);
    let status = Arc::clone(&running.status);
    running.join().unwrap();
    assert_eq!(status.snapshot().records_read, MESSAGES);
}

#[test]
fn two_outputs_to_one_transactional_sink_lose_nothing() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 1);
    let expected: Vec<String> = (0..500).map(|number| number.to_string()).collect();
    for value in &expected {
        broker.append("topic", 0, value.clone()).unwrap();
    }
    let sink = broker.sink(&options()).unwrap();
    let input = Input::new("topic", broker.source("topic", &options()).unwrap(), Arc::new(|| Box::new(Raw)));
    let running = Running::start(Job::new(GROUP), 1, move |flow| {
        let records = flow.read(&input.clone().until(Until::End))?.map(|arrived: Arrived<Message>| OutputRecord {
            value: arrived.data.value.unwrap_or_default(),
            ..OutputRecord::default()
        });
        flow.write(&sink, vec![("one".into(), records.clone())])?;
        flow.write(&sink, vec![("two".into(), records)])
    });
    running.join().unwrap();
    assert_eq!((broker.values("one"), broker.values("two")), (expected.clone(), expected));
}
