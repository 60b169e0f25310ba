//! Encodes what the synchronization job emits: joined records, delays and dead letters, each one line of JSON.
//!
//! The values of the inputs are spliced in byte for byte, so numbers, the order of members and every character survive. Raw line
//! ends can stand between the tokens of a valid value only; they become spaces, so that a document is one line.
//!
//! ```text
//! joined   {"key":"a:b","<name one>":<value>,"<name two>":<value>}                     and ,"late":true at the end after a delay
//! delayed  {"key":"a:b","error":"Missing information from <name two>.","<name one>":<value>}
//! dead     {"error":"...","reason":"key_null","topic":"one","split":"one[3]","offset":7,"value":"<text>"}
//! ```
//!
//! In a dead letter, bytes that are not UTF-8 stand in `value_base64` (and `key_base64`), so the original can always be restored.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;

use crate::message::{Message, Reason};

/// Encodes the joined and delayed records of a job; made once with the names of its sides.
#[derive(Debug)]
pub struct Documents {
    sides: Vec<Side>,
}

/// Where the value of a side stands in a document, byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spliced {
    /// The side.
    pub side: usize,
    /// Where it begins, in bytes from the beginning of the document.
    pub at: usize,
    /// How long it is, in bytes.
    pub length: usize,
}

#[derive(Debug)]
struct Side {
    /// As text inside a JSON string, without quotes.
    escaped: String,
    /// `,"name":`
    member: String,
}

impl Documents {
    /// An encoder for sides with these names, in the order of the sides.
    pub fn new<S: AsRef<str>>(names: &[S]) -> Self {
        let side = |name: &S| {
            let quoted = serde_json::Value::from(name.as_ref()).to_string();
            Side { member: format!(",{quoted}:"), escaped: quoted[1..quoted.len() - 1].to_owned() }
        };
        Documents { sides: names.iter().map(side).collect() }
    }

    /// Appends a joined record: every side with its value, in the order of the sides. Says where values stand byte for byte: those
    /// without line ends.
    pub fn joined<'a>(
        &self,
        out: &mut BytesMut,
        key: &impl fmt::Display,
        late: bool,
        values: impl IntoIterator<Item = (usize, &'a Bytes)>,
        spliced: &mut Vec<Spliced>,
    ) {
        let start = out.len();
        put_key(out, key);
        self.put_values(out, start, values, spliced);
        if late {
            out.put_slice(b",\"late\":true");
        }
        out.put_u8(b'}');
    }

    /// Appends a delay, as [`joined`](Self::joined): the sides that are there, in the order of the sides, and a text that names those that are not.
    pub fn delayed<'a>(
        &self,
        out: &mut BytesMut,
        key: &impl fmt::Display,
        values: impl IntoIterator<Item = (usize, &'a Bytes), IntoIter: Clone>,
        spliced: &mut Vec<Spliced>,
    ) {
        let start = out.len();
        let values = values.into_iter();
        put_key(out, key);
        out.put_slice(b",\"error\":\"Missing information from ");
        let mut separator = "";
        for (index, side) in self.sides.iter().enumerate() {
            if values.clone().all(|(present, _)| present != index) {
                out.put_slice(separator.as_bytes());
                out.put_slice(side.escaped.as_bytes());
                separator = ", ";
            }
        }
        out.put_slice(b".\"");
        self.put_values(out, start, values, spliced);
        out.put_u8(b'}');
    }

    fn put_values<'a>(
        &self,
        out: &mut BytesMut,
        start: usize,
        values: impl IntoIterator<Item = (usize, &'a Bytes)>,
        spliced: &mut Vec<Spliced>,
    ) {
        for (index, value) in values {
            let member = self.sides[index].member.as_bytes();
            out.reserve(member.len() + value.len() + 16); // 16: for what ends the document
            out.put_slice(member);
            let at = out.len() - start;
            if put_line(out, value) {
                spliced.push(Spliced { side: index, at, length: value.len() });
            }
        }
    }
}

fn put_key(out: &mut BytesMut, key: &impl fmt::Display) {
    out.put_slice(b"{\"key\":");
    let mut serializer = serde_json::Serializer::new(out.writer());
    let written = serde::Serializer::collect_str(&mut serializer, key);
    debug_assert!(written.is_ok(), "memory takes everything, and the Display of a key does not fail");
}

/// Appends a JSON value without its line ends; whether it had none.
fn put_line(out: &mut BytesMut, value: &[u8]) -> bool {
    let start = out.len();
    out.put_slice(value);
    let line = &mut out[start..];
    let mut from = 0;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', &line[from..]) {
        line[from + at] = b' ';
        from += at + 1;
    }
    from == 0
}

/// Appends a dead letter: why a message was refused, where it stood, and the message itself.
///
/// `topic` and `split` are names for people. Headers and attributes of the message are left out.
pub fn dead_letter(out: &mut BytesMut, reason: Reason, error: &str, topic: &str, split: &str, message: &Message) {
    let (key, key_base64) = text_or_base64(message.key.as_deref());
    let (value, value_base64) = text_or_base64(message.value.as_deref());
    let letter = DeadLetter {
        error,
        reason: reason.name(),
        topic,
        split,
        offset: message.offset.0,
        timestamp: message.timestamp,
        key,
        key_base64,
        // A tombstone is shown as null; it is what the message really had.
        value: if value_base64.is_some() { None } else { Some(value) },
        value_base64,
    };
    let written = serde_json::to_writer(out.writer(), &letter);
    debug_assert!(written.is_ok(), "memory takes everything, and text, numbers and options always serialize");
}

#[derive(Serialize)]
struct DeadLetter<'a> {
    error: &'a str,
    reason: &'a str,
    topic: &'a str,
    split: &'a str,
    offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

fn text_or_base64(bytes: Option<&[u8]>) -> (Option<&str>, Option<String>) {
    match bytes.map(std::str::from_utf8) {
        None => (None, None),
        Some(Ok(text)) => (Some(text), None),
        Some(Err(_)) => (None, bytes.map(base64)),
    }
}

/// Standard base64 with padding ([RFC 4648](https://www.rfc-editor.org/rfc/rfc4648#section-4)).
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            match digit <= chunk.len() {
                true => text.push(DIGITS[(word >> (18 - 6 * digit) & 63) as usize] as char),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Offset, SplitId};

    fn text(write: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        write(&mut out);
        String::from_utf8(out.to_vec()).expect("UTF-8")
    }

    fn values(values: &[(usize, &'static str)]) -> Vec<(usize, Bytes)> {
        values.iter().map(|(side, value)| (*side, Bytes::from_static(value.as_bytes()))).collect()
    }

    #[test]
    fn documents_are_as_fasten_has_them() {
        let documents = Documents::new(&["fasten.one", "fasten.two"]);
        let both = values(&[(0, r#"{"n":1.0,"b":"é"}"#), (1, r#"{"z":1,"a":12345678901234567890}"#)]);
        let both = both.iter().map(|(side, value)| (*side, value));
        assert_eq!(
            text(|out| documents.joined(out, &"a:b:1", false, both.clone(), &mut vec![])),
            r#"{"key":"a:b:1","fasten.one":{"n":1.0,"b":"é"},"fasten.two":{"z":1,"a":12345678901234567890}}"#
        );
        assert_eq!(
            text(|out| documents.joined(out, &"a", true, both.clone().take(1), &mut vec![])),
            r#"{"key":"a","fasten.one":{"n":1.0,"b":"é"},"late":true}"#
        );
        assert_eq!(
            text(|out| documents.delayed(out, &"a", both.skip(1), &mut vec![])),
            r#"{"key":"a","error":"Missing information from fasten.one.","fasten.two":{"z":1,"a":12345678901234567890}}"#
        );
    }

    #[test]
    fn a_document_says_where_values_stand() {
        let documents = Documents::new(&["one", "two"]);
        let both = values(&[(0, r#"{"n":1.0}"#), (1, "[2]")]);
        let (mut out, mut spliced) = (BytesMut::from(&b"other "[..]), vec![]);
        documents.joined(&mut out, &"a", true, both.iter().map(|(side, value)| (*side, value)), &mut spliced);
        let found = spliced.iter().map(|&Spliced { side, at, length }| (side, out[6 + at..][..length].to_vec()));
        let both: Vec<_> = both.iter().map(|(side, value)| (*side, value.to_vec())).collect();
        assert_eq!(found.collect::<Vec<_>>(), both);
    }

    #[test]
    fn every_missing_side_is_named() {
        let documents = Documents::new(&["one", "two", "three"]);
        let values = values(&[(1, "2")]);
        assert_eq!(
            text(|out| documents.delayed(out, &1, values.iter().map(|(side, value)| (*side, value)), &mut vec![])),
            r#"{"key":"1","error":"Missing information from one, three.","two":2}"#
        );
    }

    #[test]
    fn names_and_keys_are_escaped() {
        let documents = Documents::new(&["a\"b", "c\nd"]);
        let one = values(&[(0, "1")]);
        let line = text(|out| {
            documents.delayed(out, &"x\"\\\n\u{1}:é", one.iter().map(|(side, value)| (*side, value)), &mut vec![])
        });
        let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["key"], "x\"\\\n\u{1}:é");
        assert_eq!(value["error"], "Missing information from c\nd.");
        assert_eq!(value["a\"b"], 1);
        assert!(!line.contains('\n'));
    }

    #[test]
    fn line_ends_between_tokens_become_spaces() {
        let documents = Documents::new(&["one"]);
        let one = values(&[(0, "{\r\n \"a\":\n\"x\\ny\"\n}")]);
        let mut spliced = vec![];
        assert_eq!(
            text(|out| documents.joined(
                out,
                &"k",
                false,
                one.iter().map(|(side, value)| (*side, value)),
                &mut spliced
            )),
            "{\"key\":\"k\",\"one\":{   \"a\": \"x\\ny\" }}"
        );
        assert!(spliced.is_empty(), "it does not stand there byte for byte");
    }

    #[test]
    fn t06_dead_letters_give_the_original_back() {
        let split = SplitId::numbered("one", 0);
        let mut message = Message::new(split, Offset(7), Offset(8), Some(Bytes::from_static(b"{\"a\n")));
        message.timestamp = Some(5);
        message.key = Some(Bytes::from_static(b"plain"));
        let letter =
            |message: &Message| text(|out| dead_letter(out, Reason::InvalidJson, "no \"", "one", "one[0]", message));
        assert_eq!(
            letter(&message),
            r#"{"error":"no \"","reason":"invalid_json","topic":"one","split":"one[0]","offset":7,"timestamp":5,"key":"plain","value":"{\"a\n"}"#
        );
        message = Message::new(split, Offset(7), Offset(8), Some(Bytes::from_static(b"\xff\xfe")));
        assert!(letter(&message).ends_with(r#""offset":7,"value_base64":"//4="}"#));
        message.value = None;
        assert!(letter(&message).ends_with(r#""offset":7,"value":null}"#));
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, expected) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), expected);
        }
    }
}
