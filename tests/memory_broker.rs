//! What the memory broker promises beyond the suite: the trouble that it makes on demand, and what its readers say of it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use syncline::broker::memory::{MemoryBroker, MemoryMessage};
use syncline::broker::{self, BrokerOptions};
use syncline::message::{Message, Offset, Offsets, Reason, SplitId};
use syncline::sink::{Entity, OutputRecord, RunNumber, Slot, Writer, WriterContext};
use syncline::source::{Assignment, Batch, Committer, Evidence, OnLost, Position, Progress, Reader};
use syncline::{Error, ErrorKind};

const WAIT: Duration = Duration::from_millis(50);

fn options() -> BrokerOptions {
    BrokerOptions { group: "group".into(), ..BrokerOptions::default() }
}

fn open_at(broker: &MemoryBroker, from: Option<u64>) -> (Box<dyn Reader>, Box<dyn Committer>) {
    let mut source = broker.source("topic", &options()).unwrap()().unwrap();
    let splits = source.splits().unwrap();
    let earliest = source.resolve(&Position::Earliest, &splits).unwrap();
    let assign = |split: &syncline::message::Split| {
        let from = from.map_or(earliest[&split.id], Offset);
        Assignment { split: split.clone(), from, until: None }
    };
    source.open(&splits.iter().map(assign).collect::<Vec<_>>()).unwrap()
}

fn open(broker: &MemoryBroker) -> (Box<dyn Reader>, Box<dyn Committer>) {
    open_at(broker, None)
}

fn read(reader: &mut dyn Reader) -> Result<(Vec<Message>, Vec<Evidence>), Error> {
    let mut batch = Batch::default();
    reader.read(&mut batch, WAIT)?;
    Ok((batch.messages, batch.evidence.into_iter().map(|(_, evidence)| evidence).collect()))
}

fn values(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(message.value.as_ref().unwrap()).into_owned()).collect()
}

fn writer(broker: &MemoryBroker, run: u64) -> Box<dyn Writer> {
    let mut sink = broker.sink(&options()).unwrap()().unwrap();
    let entities = vec!["topic".to_owned(), "other".to_owned()];
    sink.open(&WriterContext {
        slot: Slot(0),
        output: 0,
        run: RunNumber(run),
        entities,
        dead_letter: None,
        outbox: false,
    })
    .unwrap()
}

fn write(writer: &mut dyn Writer, epoch: u64, entity: usize, value: &'static str) {
    let record = OutputRecord { value: Bytes::from_static(value.as_bytes()), ..OutputRecord::default() };
    writer.write(epoch, Entity(entity), record).unwrap();
}

#[test]
fn a_url_names_one_broker() {
    let broker = MemoryBroker::named("memory_broker::a_url_names_one_broker");
    broker.create_topic("topic", 1);
    broker.append("topic", 0, "1").unwrap();
    let url = "memory:memory_broker::a_url_names_one_broker";
    for (at, topic) in [(url, "topic".to_owned()), ("file:elsewhere", format!("{url}/topic"))] {
        let mut source = broker::source(at, &topic, &options()).unwrap()().unwrap();
        assert_eq!(source.splits().unwrap().len(), 1);
        assert_eq!(source.name(), format!("{url}/topic"));
    }
    let error = broker::source("memory:another", "topic", &options()).unwrap()().unwrap().splits().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn an_unreachable_broker_is_behind_and_worth_a_retry() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 1);
    let (mut reader, mut committer) = open(&broker);
    let mut writer = writer(&broker, 1);
    write(&mut *writer, 1, 0, "late");
    writer.prepare(1, 2).unwrap();
    assert_eq!(read(&mut *reader).unwrap().1, [Evidence::CaughtUp]);
    broker.set_unreachable(true);
    let mut batch = Batch::default();
    let errors = [
        reader.read(&mut batch, WAIT).map(drop),
        committer.commit(&Offsets::new(), &[]),
        writer.publish(1, 2, None).map(drop),
        broker.source("topic", &options()).unwrap()().unwrap().splits().map(drop),
    ];
    for error in errors {
        let error = error.unwrap_err();
        assert!(error.kind() == ErrorKind::Connect && error.is_retryable(), "{error:?}");
    }
    assert_eq!(batch.evidence[0].1, Evidence::Behind);
    broker.set_unreachable(false);
    assert_eq!(read(&mut *reader).unwrap().1, [Evidence::CaughtUp]);
    writer.publish(1, 2, None).unwrap();
    assert_eq!(values(&read(&mut *reader).unwrap().0), ["late"]);
}

#[test]
fn trouble_wakes_a_blocked_read_at_once() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 1);
    let (mut reader, _committer) = open(&broker);
    read(&mut *reader).unwrap();
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| {
            let start = Instant::now();
            let result = loop {
                match reader.read(&mut Batch::default(), Duration::from_secs(60)) {
                    Ok(_) => assert!(start.elapsed() < Duration::from_secs(20), "nothing happened"),
                    Err(error) => break error,
                }
            };
            (result, Instant::now())
        });
        broker.set_unreachable(true);
        let (error, _) = blocked.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::Connect);
    });
}

#[test]
fn trimmed_and_impossible_offsets_are_lost() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 1);
    broker.extend("topic", 0, ["0", "1", "2", "3"]).unwrap();
    broker.trim("topic", 0, Offset(2)).unwrap();
    assert_eq!(values(&read(&mut *open(&broker).0).unwrap().0), ["2", "3"]);
    for offset in [1, 5] {
        let error = read(&mut *open_at(&broker, Some(offset)).0).unwrap_err();
        assert!(error.kind() == ErrorKind::OffsetLost && !error.is_retryable(), "{error:?}");
        assert!(error.to_string().contains(&format!("offset {offset} of split \"topic[0]\"")), "{error}");
    }
    assert_eq!(broker.append("topic", 0, "4").unwrap(), Offset(4));
    assert_eq!(broker.append("topic", 1, "4").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(broker.append("none", 0, "4").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_removed_topic_has_ended() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 2);
    let (mut reader, _committer) = open(&broker);
    read(&mut *reader).unwrap();
    broker.remove_topic("topic");
    let mut batch = Batch::default();
    assert_eq!(reader.read(&mut batch, WAIT).unwrap(), Progress::Ended);
    assert!(batch.evidence.iter().all(|(_, evidence)| *evidence == Evidence::Ended));
}

#[test]
fn forgotten_acks_are_delivered_again() {
    let broker = MemoryBroker::new();
    broker.create_queue("topic", 1);
    broker.extend("topic", 0, ["0", "1", "2", "3"]).unwrap();
    let (mut reader, mut committer) = open(&broker);
    let (messages, _) = read(&mut *reader).unwrap();
    assert_eq!(broker.waiting("topic"), (0, 4));
    let split = messages[0].split;
    committer.commit(&Offsets::from([(split, Offset(3))]), &[(split, Offset(1), Reason::InvalidJson)]).unwrap();
    assert_eq!(broker.waiting("topic"), (0, 1));
    assert_eq!(broker.rejected("topic"), [(Offset(1), Reason::InvalidJson)]);
    broker.forget_acks("topic", 2);
    let (again, _) = read(&mut *reader).unwrap();
    assert_eq!(values(&again), ["1", "2"]);
    assert_eq!(again[0].id, messages[1].id);
    assert_eq!((again[0].delivery_count, again[0].offset), (1, Offset(4)));
}

#[test]
fn receipts_of_a_broken_connection_are_void() {
    let broker = MemoryBroker::new();
    broker.create_queue("topic", 1);
    broker.extend("topic", 0, ["0", "1"]).unwrap();
    let (mut reader, mut committer) = open(&broker);
    let (messages, _) = read(&mut *reader).unwrap();
    broker.crash_clients();
    let offsets = Offsets::from([(messages[1].split, messages[1].next)]);
    assert_eq!(committer.commit(&offsets, &[]).unwrap_err().kind(), ErrorKind::Connect);
    committer.commit(&offsets, &[]).unwrap();
    assert_eq!(broker.waiting("topic"), (2, 0), "an old receipt deleted what is to be delivered again");
    assert_eq!(read(&mut *reader).unwrap_err().kind(), ErrorKind::Connect);
    assert_eq!(values(&read(&mut *reader).unwrap().0), ["0", "1"]);
}

#[test]
fn the_committer_holds_what_is_not_committed_after_its_reader() {
    let broker = MemoryBroker::new();
    broker.create_queue("topic", 1);
    broker.extend("topic", 0, ["0", "1"]).unwrap();
    let (mut reader, mut committer) = open(&broker);
    let (messages, _) = read(&mut *reader).unwrap();
    drop(reader);
    assert_eq!(broker.waiting("topic"), (0, 2));
    committer.commit(&Offsets::from([(messages[0].split, messages[0].next)]), &[]).unwrap();
    drop(committer);
    assert_eq!(broker.waiting("topic"), (1, 0));
    assert_eq!(broker.values("topic"), ["1"]);
}

#[test]
fn links_of_one_reader_share() {
    let broker = MemoryBroker::new();
    broker.create_queue("topic", 3);
    broker.extend("topic", 0, (0..9).map(|number| number.to_string())).unwrap();
    let (mut reader, _committer) = open(&broker);
    let (messages, _) = read(&mut *reader).unwrap();
    for number in 0..3 {
        let link = SplitId::numbered("topic", number);
        assert_eq!(messages.iter().filter(|message| message.split == link).count(), 3);
    }
}

#[test]
fn a_range_becomes_visible_at_once() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 1);
    let (mut reader, _committer) = open(&broker);
    let mut writer = writer(&broker, 1);
    let total = 50 * 20;
    std::thread::scope(|scope| {
        let seen = scope.spawn(|| {
            let (mut count, mut whole, start) = (0, true, Instant::now());
            while count < total {
                assert!(start.elapsed() < Duration::from_secs(20), "{count} of {total} records came");
                let (messages, _) = read(&mut *reader).unwrap();
                whole &= messages.len() % 20 == 0;
                count += messages.len();
            }
            whole
        });
        for epoch in 1..=50 {
            (0..20).for_each(|_| write(&mut *writer, epoch, 0, "x"));
            writer.prepare(epoch, epoch + 1).unwrap();
            writer.publish(epoch, epoch + 1, None).unwrap();
        }
        assert!(seen.join().unwrap(), "a part of a range was visible");
    });
    assert_eq!(broker.published("group", Slot(0)), Some(51));
}

#[test]
fn t07_the_delay_topic_is_published_with_the_joined_one_or_not_at_all() {
    let broker = MemoryBroker::new();
    let mut writer = writer(&broker, 1);
    write(&mut *writer, 1, 0, "joined");
    write(&mut *writer, 1, 1, "delayed");
    writer.prepare(1, 2).unwrap();
    broker.crash_clients();
    assert!(writer.publish(1, 2, None).unwrap_err().is_retryable());
    assert_eq!((broker.values("topic"), broker.values("other")), (vec![], vec![]));
    writer.publish(1, 2, None).unwrap();
    assert_eq!((broker.values("topic"), broker.values("other")), (vec!["joined".into()], vec!["delayed".into()]));
}

#[test]
fn a_fenced_writer_changes_nothing() {
    let broker = MemoryBroker::new();
    let mut old = writer(&broker, 1);
    write(&mut *old, 1, 0, "old");
    old.prepare(1, 2).unwrap();
    let _new = writer(&broker, 2);
    let error = old.publish(1, 2, None).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Fenced, false));
    assert!(error.to_string().contains("run 2 has taken over from run 1"), "{error}");
    assert_eq!(old.published().unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(broker.values("topic"), [""; 0]);
    assert_eq!(broker.run("group", Slot(0)), Some(RunNumber(2)));
}

#[test]
fn timestamps_are_found() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 1);
    for (value, timestamp) in [("a", 30), ("b", 10), ("c", 40)] {
        broker.append("topic", 0, MemoryMessage::new(value).with_timestamp(timestamp).with_key("k")).unwrap();
    }
    let mut source = broker.source("topic", &options()).unwrap()().unwrap();
    let splits = source.splits().unwrap();
    let mut at = |timestamp| source.resolve(&Position::Timestamp(timestamp), &splits).unwrap()[&splits[0].id].0;
    assert_eq!([at(5), at(30), at(31), at(41)], [0, 0, 2, 3]);
}

#[test]
fn an_idle_reader_sleeps() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 4);
    let (mut reader, _committer) = open(&broker);
    let (mut batch, start, mut calls) = (Batch::default(), Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(2) {
        batch.clear();
        reader.read(&mut batch, Duration::from_secs(60)).unwrap();
        assert!(batch.evidence.iter().all(|(_, evidence)| *evidence == Evidence::CaughtUp));
        calls += 1;
    }
    assert!((3..=4).contains(&calls), "{calls} calls in two seconds");
}

#[test]
fn trimmed_messages_fail_or_are_said_to_be_lost() {
    let broker = MemoryBroker::new();
    broker.create_topic("topic", 1);
    broker.extend("topic", 0, ["a", "b", "c", "d"]).unwrap();
    broker.trim("topic", 0, Offset(2)).unwrap();
    let read = |on_lost_offset, from| {
        let options = BrokerOptions { on_lost_offset, ..options() };
        let mut source = broker.source("topic", &options).unwrap()().unwrap();
        let split = source.splits().unwrap().remove(0);
        let assignment = Assignment { split, from: Offset(from), until: Some(Offset(4)) };
        let mut batch = Batch::default();
        let read = source.open(&[assignment]).unwrap().0.read(&mut batch, Duration::ZERO);
        read.map(|_| {
            let lost = batch.lost.iter().map(|lost| (lost.from.0, lost.to.0, lost.offsets())).collect::<Vec<_>>();
            (lost, batch.messages.iter().map(|message| message.offset.0).collect::<Vec<_>>())
        })
    };
    assert_eq!(read(OnLost::Fail, 1).unwrap_err().kind(), ErrorKind::OffsetLost);
    assert_eq!(read(OnLost::Earliest, 1).unwrap(), (vec![(1, 2, 1)], vec![2, 3]));
    assert_eq!(read(OnLost::Latest, 1).unwrap(), (vec![(1, 4, 3)], vec![]));
    assert_eq!(read(OnLost::Latest, 2).unwrap(), (vec![], vec![2, 3]));
    assert_eq!(read(OnLost::Earliest, 5).unwrap_err().kind(), ErrorKind::OffsetLost, "beyond the end");
}
