//! What is left of a record that the broker of the output refused by itself: a dead letter without the value, which was too
//! large or not wanted.
//!
//! ```text
//! {"error":"...","reason":"too_large","topic":"sync","key":"a:b","size":2000000,"limit":1048588,"timestamp":5}
//! ```

use bytes::Bytes;
use serde::Serialize;

use crate::message::Reason;
use crate::sink::OutputRecord;

#[derive(Serialize)]
struct Letter<'a> {
    error: &'a str,
    reason: &'a str,
    topic: &'a str,
    /// The key of the letter has its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<u64>,
}

/// The letter for a record of an output: `topic` is the output, `limit` the largest size that it takes, if that is the reason
/// and known. Key and timestamp are those of the record.
pub(super) fn refused(
    record: &OutputRecord,
    topic: &str,
    reason: Reason,
    limit: Option<u64>,
    error: &str,
) -> OutputRecord {
    let letter = Letter {
        error,
        reason: reason.name(),
        topic,
        key: record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok()),
        size: size(record),
        limit,
        timestamp: record.timestamp,
    };
    let value = serde_json::to_vec(&letter);
    debug_assert!(value.is_ok(), "text, numbers and options always serialize");
    OutputRecord {
        key: record.key.clone(),
        value: value.unwrap_or_default().into(),
        timestamp: record.timestamp,
        ..OutputRecord::default()
    }
}

/// Bytes of key, value and headers.
pub(super) fn size(record: &OutputRecord) -> usize {
    let headers = record.headers.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, Bytes::len));
    record.key.as_ref().map_or(0, Bytes::len) + record.value.len() + headers.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_says_what_was_refused_and_why() {
        let mut record = OutputRecord { key: Some("a:b".into()), timestamp: Some(5), ..OutputRecord::from("12345") };
        record.headers.push(("h".into(), Some("xy".into())));
        let letter = refused(&record, "sync", Reason::TooLarge, Some(10), "too \"large\"");
        assert_eq!((&letter.key, letter.timestamp), (&record.key, Some(5)));
        assert_eq!(
            letter.value,
            r#"{"error":"too \"large\"","reason":"too_large","topic":"sync","key":"a:b","size":11,"limit":10,"timestamp":5}"#
        );
        let letter = refused(&OutputRecord::from("1"), "sync", Reason::Refused, None, "no");
        assert_eq!(letter.value, r#"{"error":"no","reason":"refused","topic":"sync","size":1}"#);
    }
}
