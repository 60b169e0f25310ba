//! Promises about what is in a message.

use bytes::Bytes;

use super::probe::{Probe, ensure, numbered, same_values};
use super::{Harness, Produced, Verdict};
use crate::message::Message;
use crate::source::Position;

/// Values arrive byte for byte.
pub fn values_survive(harness: &mut dyn Harness) -> Verdict {
    let long = format!("{{\"long\":\"{}\"}}", "x".repeat(100_000));
    let texts =
        ["{\"a\": [1, 2.50, 1e400]}", "{\"b\":\"ü € 😀 \\u0000\"}", "3", "\"text\"", "no json: \t\u{7f}", &long];
    survive(harness, texts.iter().map(|text| Produced::value(String::from(*text))).collect(), |_, _| true)
}

/// Values of any bytes arrive, line ends and invalid UTF-8 too.
pub fn binary_values_survive(harness: &mut dyn Harness) -> Verdict {
    let all: Vec<u8> = (0..=255).collect();
    survive(harness, vec![Produced::value(all), Produced::value("a\nb\r\nc"), Produced::value("")], |_, _| true)
}

/// Keys arrive byte for byte; an absent key is not an empty one.
pub fn keys_survive(harness: &mut dyn Harness) -> Verdict {
    let mut produced = numbered(0..3);
    produced[0].key = Some(Bytes::from_static(b"key:\xff\x00"));
    produced[1].key = Some(Bytes::new());
    survive(harness, produced, |message, produced| message.key == produced.key)
}

/// Headers arrive in their order, with repeated names.
pub fn headers_survive(harness: &mut dyn Harness) -> Verdict {
    let mut produced = numbered(0..2);
    let header = |name: &str, value: &'static str| (name.to_owned(), Some(Bytes::from_static(value.as_bytes())));
    produced[0].headers = vec![header("b", "1"), header("a", "2"), header("b", "3")];
    survive(harness, produced, |message, produced| message.headers == produced.headers)
}

/// Timestamps of the producer arrive.
pub fn timestamps_survive(harness: &mut dyn Harness) -> Verdict {
    let mut produced = numbered(0..2);
    produced[0].timestamp = Some(1_700_000_000_123);
    produced[1].timestamp = Some(1_700_000_000_001);
    survive(harness, produced, |message, produced| message.timestamp == produced.timestamp)
}

/// A message without a value is one, and is not an empty value.
pub fn tombstones_survive(harness: &mut dyn Harness) -> Verdict {
    let key = Some(Bytes::from_static(b"gone"));
    survive(harness, vec![Produced { key, ..Produced::default() }], |_, _| true)
}

/// A value of 8 MiB arrives, and so does the message behind it.
pub fn large_values_survive(harness: &mut dyn Harness) -> Verdict {
    let large = format!("\"{}\"", "0123456789abcdef".repeat(1 << 19));
    survive(harness, vec![Produced::value(large), Produced::value("1")], |_, _| true)
}

fn survive(harness: &mut dyn Harness, produced: Vec<Produced>, same: impl Fn(&Message, &Produced) -> bool) -> Verdict {
    let topic = harness.topic(1);
    harness.produce(&topic, 0, &produced);
    let mut probe = Probe::open(harness, &topic, &Position::Earliest, None)?;
    let messages = probe.take(produced.len())?;
    same_values(&messages, &produced)?;
    for (message, produced) in messages.iter().zip(&produced) {
        ensure!(same(message, produced), "{produced:?} arrived as {message:?}");
        ensure!(message.arrival == 0, "adapters leave the arrival 0, not {}", message.arrival);
    }
    Ok(())
}
