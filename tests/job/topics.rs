//! The job on topics: dead letters, tombstones, keys. The numbers are those of the acceptance cases.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use syncline::broker::memory::{MemoryBroker, MemoryMessage};
use syncline::broker::{self, BrokerOptions};
use syncline::codec::{Codec, Decoded, NewCodec, Refusal};
use syncline::dataflow::{Flow, Input};
use syncline::message::{Message, Reason};
use syncline::reader::{OnBad, Until};
use syncline::sync::topics::{Keyed, TopicOutputs, key_codec, synchronize_topics};
use syncline::sync::{Key, KeyBuilder, KeyTypes, Options, Tally};
use syncline::{ErrorKind, Job};

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
fn values_in_the_frame_of_a_schema_registry_are_named_so() {
    let framed = b"\0\0\0\x01\x02{\"k\":1}".to_vec();
    let pair = bounded(vec![MemoryMessage::new(framed.clone()), MemoryMessage::new("\0\0\0\x01")]);
    pair.start(2).join().unwrap();
    let letters = pair.values("dead");
    let found = letters.iter().find(|letter| letter.contains("\"schema_framed\"")).expect("a letter");
    let found: Value = serde_json::from_str(found).unwrap();
    assert!(found["error"].as_str().unwrap().contains("schema id 258"), "{found}");
    assert_eq!((found["split"].as_str(), found["offset"].as_u64()), (Some("one[0]"), Some(1)));
    let totals = pair.tally.totals();
    let dropped = |reason: Reason| totals.dropped()[reason as usize];
    assert_eq!((letters.len(), dropped(Reason::SchemaFramed), dropped(Reason::InvalidJson)), (2, 1, 1));
    assert_eq!((totals.records_in, totals.difference()), (4, 0));

    let mut pair = bounded(vec![MemoryMessage::new(framed)]);
    pair.on_bad = OnBad::Fail;
    let text = pair.start(1).join().unwrap_err().to_string();
    assert!(text.contains("(schema_framed)") && text.contains("schema id 258"), "{text}");
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
fn a_bounded_topic_of_which_there_is_nothing_is_an_error() {
    let mut pair = Pair::new([1, 0], WINDOW);
    pair.until = Until::End;
    pair.give("one", 1);
    let error = pair.start(2).join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("has no split to read"), "{error}");
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

#[test]
fn t17_a_key_of_plain_text_is_bytes_and_never_parsed() {
    let text = MemoryMessage::new("{\"k\":2}").with_key("no {json at all");
    let pair = bounded(vec![text]);
    pair.give("two", 2);
    pair.start(1).join().unwrap();
    assert_eq!((pair.values("joined").len(), pair.values("dead").len()), (2, 0));
}

/// Records that are no JSON: the key, a tab, and what there is to say.
struct Tabs(KeyBuilder);

impl Codec for Tabs {
    type Record = Keyed;
    fn decode(&mut self, message: Message) -> Result<Decoded<Keyed>, Refusal> {
        let value = message.value.clone().unwrap_or_default();
        let Some((key, text)) = std::str::from_utf8(&value).ok().and_then(|line| line.split_once('\t')) else {
            let error = "there is no tab".to_owned();
            return Err(Refusal { reason: Reason::Undecodable, error, message: Box::new(message) });
        };
        let key = self.0.number(key).build();
        let value = Value::from(text).to_string().into();
        Ok(Decoded { timestamp: message.timestamp, data: Keyed { key, value } })
    }
}

#[test]
fn t15_three_sides_in_three_brokers_with_a_codec_of_ones_own() {
    let (left, right) = (MemoryBroker::new(), MemoryBroker::new());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("two.jsonl"), "{\"id\":1,\"b\":true}\n{\"id\":3}\n").unwrap();
    left.create_topic("one", 1);
    right.create_topic("three", 1);
    left.extend("one", 0, ["{\"k\":1}", "{\"k\":2}"].map(MemoryMessage::from)).unwrap();
    right.extend("three", 0, ["1.0\tyes", "no tab", "3e0\talso"].map(MemoryMessage::from)).unwrap();
    let options = BrokerOptions::default();
    let key = |path: &str| key_codec(vec![path.parse().unwrap()], None, KeyTypes::Typed).unwrap();
    let file = broker::source(&format!("file:{}", folder.path().display()), "two", &options).unwrap();
    let tabs: NewCodec<Keyed> = Arc::new(|| Box::new(Tabs(Key::builder())));
    let sides = [
        ("one", Input::new("one", left.source("one", &options).unwrap(), key("k"))),
        ("two", Input::new("two", file, key("id"))),
        ("three", Input::new("three", right.source("three", &options).unwrap(), tabs)),
    ];
    let sides = sides.map(|(name, input)| (name.to_owned(), input.until(Until::End).on_bad(OnBad::DeadLetter)));
    let (joined, delay, dead) = ("joined".into(), Some("delay".into()), Some("dead".into()));
    let outputs = TopicOutputs { sink: left.sink(&options).unwrap(), joined, delay, dead_letter: dead };
    let (rules, tally) = (Options::new(3, WINDOW), Arc::<Tally>::default());
    let counted = Arc::clone(&tally);
    let build = move |flow: &mut Flow<'_>| synchronize_topics(flow, &sides, &rules, &outputs, &counted);
    Job::new("t15").run(syncline::timely::Config::process(2), build).unwrap();
    assert_eq!(left.values("joined"), [r#"{"key":"1","one":{"k":1},"two":{"id":1,"b":true},"three":"yes"}"#]);
    let mut delays = left.values("delay");
    delays.sort();
    let expected = [
        r#"{"key":"2","error":"Missing information from two, three.","one":{"k":2}}"#,
        r#"{"key":"3","error":"Missing information from one.","two":{"id":3},"three":"also"}"#,
    ];
    assert_eq!(delays, expected);
    assert_eq!((left.values("dead").len(), tally.totals().difference()), (1, 0));
}
