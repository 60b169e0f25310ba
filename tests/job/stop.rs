//! How a job ends: told to stop, at a limit, or because something failed.
//!
//! Would catch: a stop that loses or repeats records, an end that takes for ever, an error that is another one's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use syncline::broker::memory::{MemoryBroker, MemoryMessage};
use syncline::codec::{Codec, Decoded, Raw, Refusal};
use syncline::dataflow::{Flow, Input};
use syncline::message::Message;
use syncline::pacing::Pacing;
use syncline::reader::Until;
use syncline::timely::dataflow::operators::vec::Map;
use syncline::{ErrorKind, Job};

use super::pair::Pair;
use super::support::{GROUP, Gate, Log, Running, Trouble, copy, copy_inputs, eager, options, sink, source, until};

const SPLITS: u32 = 3;

fn broker() -> MemoryBroker {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", SPLITS);
    broker
}

fn feed(broker: &MemoryBroker, from: u64, to: u64) {
    for number in from..to {
        let split = number as u32 % SPLITS;
        broker.append("topic", split, format!("{split}@{}", number / u64::from(SPLITS))).unwrap();
    }
}

/// A job on two workers that copies the topic.
fn copying(broker: &MemoryBroker, job: Job, reader: &Trouble, writer: &Trouble) -> Running {
    let log = Log::default();
    let topic = source(broker, "topic", &log, reader);
    Running::start(job.retry(eager()), 2, copy(&[topic], &sink(broker, &log, &Gate::new(true), writer)))
}

fn job() -> Job {
    Job::new(GROUP)
}

fn sorted(broker: &MemoryBroker) -> Vec<String> {
    let mut values = broker.values("out-0");
    values.sort();
    values
}

/// What lies below the committed offsets.
fn committed(broker: &MemoryBroker) -> Vec<String> {
    let mut values: Vec<String> = (0..SPLITS)
        .flat_map(|split| {
            let offset = broker.committed("topic", split, GROUP).map_or(0, |offset| offset.0);
            (0..offset).map(move |offset| format!("{split}@{offset}"))
        })
        .collect();
    values.sort();
    values
}

#[test]
fn a_stop_publishes_and_commits_what_was_read_and_the_next_run_goes_on_there() {
    let broker = broker();
    let (fed, stopped) = (broker.clone(), Arc::new(AtomicBool::new(false)));
    let enough = Arc::clone(&stopped);
    let feeder = std::thread::spawn(move || {
        let mut number = 0;
        while !enough.load(Ordering::SeqCst) {
            feed(&fed, number, number + 30);
            number += 30;
            std::thread::yield_now();
        }
        number
    });
    let quiet = Trouble::default();
    for round in 1..=3 {
        let running = copying(&broker, job(), &quiet, &quiet);
        until("records flow", || broker.values("out-0").len() > 500 * round);
        running.stop().unwrap();
        assert_eq!(sorted(&broker), committed(&broker));
    }
    stopped.store(true, Ordering::SeqCst);
    let number = feeder.join().unwrap();
    let running = copying(&broker, job(), &quiet, &quiet);
    until("all was copied", || broker.values("out-0").len() as u64 >= number);
    running.stop().unwrap();
    assert_eq!(sorted(&broker), committed(&broker));
    assert_eq!(sorted(&broker).len() as u64, number);
}

#[test]
fn a_job_ends_with_the_error_of_what_failed() {
    for (kind, source_fails) in [(ErrorKind::Read, true), (ErrorKind::Write, false)] {
        let (broker, trouble, quiet) = (broker(), Trouble::default(), Trouble::default());
        let (reader, writer) = if source_fails { (&trouble, &quiet) } else { (&quiet, &trouble) };
        let running = copying(&broker, job(), reader, writer);
        feed(&broker, 0, 30);
        until("records are copied", || broker.values("out-0").len() == 30);
        trouble.be_fatal();
        feed(&broker, 30, 60);
        let error = running.join().unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, "the cable was cut"));
        assert!(broker.values("out-0").len() <= 60);
    }
}

#[test]
fn a_failure_is_heard_by_processes_that_only_wait_for_the_last_epochs() {
    let addresses: Vec<String> = crate::cluster::free_ports(2).iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let (broker, log, gate, quiet) = (broker(), Log::default(), Gate::new(false), Trouble::default());
    let topic = source(&broker, "topic", &log, &quiet);
    let troubles = [Trouble::default(), Trouble::default()];
    let processes = [0, 1].map(|process| {
        let communication = timely::CommunicationConfig::Cluster {
            threads: 1,
            process,
            addresses: addresses.clone(),
            report: false,
            zerocopy: false,
        };
        let config = timely::Config { communication, worker: timely::WorkerConfig::default() };
        let sink = sink(&broker, &log, &gate, &troubles[process]);
        Running::start_as(job(), config, copy(&[Arc::clone(&topic)], &sink))
    });
    feed(&broker, 0, 30);
    until("all was read", || processes.iter().map(|process| process.status.snapshot().records_read).sum::<u64>() == 30);
    processes[0].control.stop(); // nothing will be read any more, and what was read waits at the gate
    broker.append("topic", 0, "never read").unwrap();
    troubles[1].be_fatal();
    gate.open();
    let [first, second] = processes.map(|process| process.join().map_err(|error| (error.kind(), error.to_string())));
    assert_eq!(second, Err((ErrorKind::Write, "the cable was cut".to_owned())));
    let heard = "a worker of the job has failed; its process says why";
    assert_eq!(first, Err((ErrorKind::Cluster, heard.to_owned())));
}

#[test]
fn what_can_be_tried_again_is_and_is_counted() {
    let (broker, quiet) = (broker(), Trouble::default());
    let running = copying(&broker, job(), &quiet, &quiet);
    for round in 0..5 {
        feed(&broker, 30 * round, 30 * round + 30);
        broker.set_unreachable(true);
        let retries = running.status.snapshot().retries;
        until("something is tried again", || running.status.snapshot().retries > retries + 2);
        broker.set_unreachable(false);
        broker.crash_clients();
    }
    until("all was copied", || broker.values("out-0").len() >= 150);
    until("all is committed", || committed(&broker).len() == 150);
    running.stop().unwrap();
    assert_eq!(sorted(&broker), committed(&broker));
}

#[test]
fn an_unreachable_broker_does_not_hold_up_a_stop() {
    let (broker, quiet) = (broker(), Trouble::default());
    let running = copying(&broker, job(), &quiet, &quiet);
    feed(&broker, 0, 30);
    until("all was copied", || broker.values("out-0").len() == 30);
    broker.set_unreachable(true);
    running.stop().unwrap();
}

#[test]
fn nothing_is_read_before_every_input_is_open() {
    let (ready, late) = (broker(), broker());
    feed(&ready, 0, 30);
    feed(&late, 30, 60);
    late.set_unreachable(true);
    let sources = [&ready, &late].map(|broker| broker.source("topic", &options()).unwrap());
    let running = Running::start(job().retry(eager()), 2, copy(&sources, &ready.sink(&options()).unwrap()));
    until("the late input is tried often", || running.status.snapshot().retries > 100);
    assert_eq!(running.status.snapshot().records_read, 0);
    assert!(ready.values("out-0").is_empty());
    late.set_unreachable(false);
    until("all was copied", || ready.values("out-0").len() == 30 && ready.values("out-1").len() == 30);
    running.stop().unwrap();
}

#[test]
fn state_above_its_limit_ends_the_job() {
    let pair = Pair::new([1, 1], Duration::from_secs(60));
    let running = Running::start(pair.job().max_state_bytes(500_000), 2, pair.build());
    let padding = "x".repeat(1_000);
    let record = |key: u64| MemoryMessage::new(format!("{{\"k\":{key},\"p\":\"{padding}\"}}"));
    pair.broker.extend("one", 0, (0..3_000).map(record)).unwrap();
    pair.until("the job fails", || running.control.has_failed());
    let error = running.join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.to_string().contains("--max_state 500000"), "{error}");
}

#[test]
fn a_number_of_records_ends_the_job() {
    let (broker, quiet) = (broker(), Trouble::default());
    feed(&broker, 0, 300);
    let pacing = Pacing { max_records: 10, ..Pacing::default() };
    let running = copying(&broker, job().max_records(50).pacing(pacing), &quiet, &quiet);
    running.join().unwrap();
    assert!(broker.values("out-0").len() >= 50);
    assert_eq!(sorted(&broker), committed(&broker));
}

struct Fragile;

impl Codec for Fragile {
    type Record = Message;
    fn decode(&mut self, _message: Message) -> Result<Decoded<Message>, Refusal> {
        panic!("this is what the test wants")
    }
}

#[test]
fn a_panic_in_a_thread_of_the_job_ends_it() {
    let (broker, log, quiet) = (broker(), Log::default(), Trouble::default());
    feed(&broker, 0, 3);
    let topic = source(&broker, "topic", &log, &quiet);
    let input = Input::new("topic", Arc::clone(&topic), Arc::new(|| Box::new(Fragile)));
    let sink = sink(&broker, &log, &Gate::new(true), &quiet);
    let error = Running::start(job(), 2, copy_inputs(vec![input], &sink)).join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cluster);
    assert!(error.to_string().contains("panicked"), "{error}");
    // A bounded run of the same topic ends.
    let input = Input::new("topic", topic, Arc::new(|| Box::new(Raw))).until(Until::End);
    Running::start(job(), 2, copy_inputs(vec![input], &sink)).join().unwrap();
    assert_eq!(broker.values("out-0").len(), 3);
}

#[test]
fn a_panic_of_one_worker_ends_the_others() {
    let (broker, log, quiet) = (broker(), Log::default(), Trouble::default());
    feed(&broker, 0, 30);
    let input = Input::new("topic", source(&broker, "topic", &log, &quiet), Arc::new(|| Box::new(Raw)));
    let build = move |flow: &mut Flow<'_>| {
        let worker = flow.scope().index();
        let messages =
            flow.read(&input)?.map(move |message| assert!(worker != 1, "this is what the test wants: {message:?}"));
        flow.complete(messages);
        Ok(())
    };
    let error = Running::start(job(), 3, build).join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cluster);
    assert!(error.to_string().contains("a worker panicked"), "{error}");
}
