//! Queues, whose commit is the acknowledgement that deletes.
//!
//! Would catch: an acknowledgement before the output is there, a message that is lost with a run, a reason that nobody hears.

use syncline::broker::memory::{MemoryBroker, MemoryMessage};
use syncline::dataflow::Input;
use syncline::message::{Offset, Reason};
use syncline::reader::OnBad;
use syncline::sync::KeyTypes;
use syncline::sync::topics::key_codec;
use syncline::{ErrorKind, Job};
use timely::dataflow::operators::vec::Map;

use super::support::{GROUP, Gate, Log, Running, Trouble, copy, eager, sink, source, until};

fn queue(messages: u64) -> MemoryBroker {
    let broker = MemoryBroker::new();
    broker.create_queue("jobs", 2);
    broker.extend("jobs", 0, (0..messages).map(|number| format!("{number}"))).unwrap();
    broker
}

fn start(broker: &MemoryBroker, gate: &Gate, trouble: &Trouble) -> Running {
    let log = Log::default();
    let jobs = source(broker, "jobs", &log, &Trouble::default());
    let sink = sink(broker, &log, gate, trouble);
    Running::start(Job::new(GROUP).retry(eager()), 2, copy(&[jobs], &sink))
}

fn sorted(broker: &MemoryBroker) -> Vec<u64> {
    let mut values: Vec<u64> = broker.values("out-0").iter().map(|value| value.parse().unwrap()).collect();
    values.sort_unstable();
    values
}

#[test]
fn messages_are_acknowledged_only_after_they_are_published() {
    let (broker, gate) = (queue(100), Gate::new(false));
    let running = start(&broker, &gate, &Trouble::default());
    running.wait_read(100);
    assert_eq!(broker.waiting("jobs"), (0, 100));
    assert!(sorted(&broker).is_empty());
    gate.open();
    until("all is acknowledged", || broker.waiting("jobs") == (0, 0));
    assert_eq!(sorted(&broker), (0..100).collect::<Vec<_>>());
    running.stop().unwrap();
}

#[test]
fn what_was_not_acknowledged_comes_again_after_a_crash() {
    let (broker, trouble) = (queue(100), Trouble::default());
    trouble.be_fatal();
    let error = start(&broker, &Gate::new(true), &trouble).join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Write);
    assert!(sorted(&broker).is_empty());
    until("all is taken back", || broker.waiting("jobs") == (100, 0));
    let running = start(&broker, &Gate::new(true), &Trouble::default());
    until("all is acknowledged", || broker.waiting("jobs") == (0, 0));
    running.stop().unwrap();
    assert_eq!(sorted(&broker), (0..100).collect::<Vec<_>>());
}

#[test]
fn broken_connections_lose_and_repeat_nothing() {
    let (broker, gate) = (queue(100), Gate::new(false));
    let running = start(&broker, &gate, &Trouble::default());
    running.wait_read(100);
    broker.crash_clients();
    gate.open();
    until("all is acknowledged", || broker.waiting("jobs") == (0, 0));
    running.stop().unwrap();
    assert_eq!(sorted(&broker), (0..100).collect::<Vec<_>>());
}

#[test]
fn the_broker_hears_what_was_rejected_and_why() {
    let broker = MemoryBroker::new();
    broker.create_queue("jobs", 1);
    let messages = [MemoryMessage::new("{\"k\":1}"), "nonsense".into(), MemoryMessage::default(), "{\"k\":[]}".into()];
    broker.extend("jobs", 0, messages).unwrap();
    let codec = key_codec(vec!["k".parse().unwrap()], None, KeyTypes::Typed).unwrap();
    let jobs = source(&broker, "jobs", &Log::default(), &Trouble::default());
    let input = Input::new("jobs", jobs, codec).on_bad(OnBad::Skip);
    let running = Running::start(Job::new(GROUP), 1, move |flow| {
        let keys = flow.read(&input)?.map(|arrived| arrived.offset);
        flow.complete(keys);
        Ok(())
    });
    until("all is acknowledged", || broker.waiting("jobs") == (0, 0));
    running.stop().unwrap();
    let expected = [(1, Reason::InvalidJson), (2, Reason::Tombstone), (3, Reason::KeyNotScalar)];
    assert_eq!(broker.rejected("jobs"), expected.map(|(offset, reason)| (Offset(offset), reason)));
}
