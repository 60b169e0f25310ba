//! The job on topics: dead letters, tombstones, keys. The numbers are those of the acceptance cases.

use std::collections::BTreeSet;
use std::time::Duration;

use syncline::ErrorKind;
use syncline::broker::memory::MemoryMessage;
use syncline::message::Reason;
use syncline::reader::{OnBad, Until};

use super::pair::Pair;

const WINDOW: Duration = Duration::from_secs(60);

/// A pair of bounded topics: a good record, and these.
fn bounded(messages: Vec<MemoryMessage>) -> Pair {
    let mut pair = Pair::new([1, 1], WINDOW);
    pair.until = Until::End;
    pair.give("one", 1);
    pair.give("two", 1);
    pair.broker.extend("one", 0, messages).unwrap();
    pair
}

#[test]
fn t06_bad_records_are_dead_letters_with_their_bytes_and_where_they_were() {
    let pair = bounded(vec![MemoryMessage::new("{\"k\":").with_key("plain"), MemoryMessage::new(vec![0xff])]);
    pair.start(2).join().unwrap();
    assert_eq!(pair.values("joined").len(), 1);
    let letters = pair.values("dead");
    assert_eq!(letters.len(), 2);
    let cut = r#""reason":"invalid_json","topic":"one","split":"one[0]","offset":1,"key":"plain","value":"{\"k\":"}"#;
    assert!(letters.iter().any(|letter| letter.ends_with(cut)), "{letters:?}");
    let bytes = r#""reason":"invalid_utf8","topic":"one","split":"one[0]","offset":2,"value_base64":"/w=="}"#;
    assert!(letters.iter().any(|letter| letter.ends_with(bytes)), "{letters:?}");
    let totals = pair.tally.totals();
    assert_eq!((totals.records_in, totals.difference()), (4, 0));
    assert_eq!(totals.dropped()[Reason::InvalidJson as usize], 1);
}

#[test]
fn t06_a_bad_record_may_end_the_job() {
    let mut pair = bounded(vec!["nonsense".into()]);
    pair.on_bad = OnBad::Fail;
    let error = pair.start(2).join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Decode);
    let text = error.to_string();
    assert!(text.contains("offset 1 of split \"one[0]\"") && text.contains("invalid_json"), "{text}");
}

#[test]
fn t13_outputs_have_the_join_key_so_that_each_key_keeps_its_order() {
    let pair = Pair::new([1, 1], WINDOW);
    pair.broker.create_topic("joined", 4);
    let running = pair.start(2);
    for key in 0..30 {
        pair.give("one", key);
        pair.give("two", key);
    }
    pair.until("all are joined", || pair.values("joined").len() == 30);
    running.stop().unwrap();
    let splits = pair.broker.messages("joined");
    assert!(splits.iter().filter(|split| !split.is_empty()).count() > 1);
    let keys: BTreeSet<Vec<u8>> = splits.into_iter().flatten().map(|message| message.key.unwrap().to_vec()).collect();
    assert_eq!(keys, (0..30).map(|key: u64| key.to_string().into_bytes()).collect());
}

#[test]
fn t14_tombstones_are_counted_or_dead_letters() {
    for (on_null, letters) in [(OnBad::Skip, 0), (OnBad::DeadLetter, 1)] {
        let mut pair = bounded(vec![MemoryMessage::default().with_key("1")]);
        pair.on_null = on_null;
        pair.start(1).join().unwrap();
        let dead = pair.values("dead");
        assert_eq!(dead.len(), letters);
        assert!(dead.iter().all(|letter| letter.ends_with(r#""offset":1,"key":"1","value":null}"#)), "{dead:?}");
        let totals = pair.tally.totals();
        assert_eq!((totals.dropped()[Reason::Tombstone as usize], totals.difference()), (1, 0));
    }
}
