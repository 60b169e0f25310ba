//! What a broker delivers: messages, and the splits and offsets they come from.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Identifies a split (a Kafka partition, a file, a queue link): the smallest ordered unit that is read on its own.
///
/// The same split has the same id in every process and after every restart, because the id is computed from its name.
/// Ids are ordered; the splits of one topic are ordered by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SplitId(u64);

impl SplitId {
    const NUMBER_BITS: u32 = 24;

    /// The id of split `number` of a topic; numbers are below 2^24.
    pub fn numbered(topic: &str, number: u32) -> Self {
        let topic = xxhash_rust::xxh3::xxh3_64(topic.as_bytes());
        SplitId(topic >> Self::NUMBER_BITS << Self::NUMBER_BITS | u64::from(number))
    }

    /// The number that [`numbered`](Self::numbered) was given.
    pub fn number(self) -> u32 {
        (self.0 & ((1 << Self::NUMBER_BITS) - 1)) as u32
    }

    /// What a checkpoint writes of it.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// The id that [`to_bits`](Self::to_bits) gave.
    pub(crate) fn from_bits(bits: u64) -> Self {
        SplitId(bits)
    }

    /// The id of split 0 of the same topic: what all ids of a topic have in common.
    #[cfg(feature = "kafka")]
    pub(crate) fn first(self) -> Self {
        SplitId(self.0 >> Self::NUMBER_BITS << Self::NUMBER_BITS)
    }
}

impl fmt::Display for SplitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A split as its source describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The stable id.
    pub id: SplitId,
    /// The position of the split among those of its source. Stable: a split found late gets a number of its own.
    pub ordinal: u32,
    /// What people call it, such as `orders[3]` or `one-p0.jsonl`.
    pub name: String,
}

/// The NEXT position to read in a split: everything below it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Offset(pub u64);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Next positions to read, by split.
pub type Offsets = BTreeMap<SplitId, Offset>;

/// What makes a delivery the same as an earlier one: the broker's sequence where there is one, else a hash of the broker's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageId(pub u128);

/// Headers in the order of the message; names may repeat, values may be absent.
pub type Headers = Vec<(String, Option<Bytes>)>;

/// Who said what time it was when a message was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimestampType {
    /// Whoever made the message.
    Create,
    /// The broker, when it took the message.
    Append,
}

/// One message as a broker delivered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The split it was read from.
    pub split: SplitId,
    /// The position of this message in its split. After it is done the split's offset is `next`.
    pub offset: Offset,
    /// The position to read after this message. Positions need not be dense: a file counts bytes, a log may have gaps.
    pub next: Offset,
    /// What identifies a redelivery, if the broker can deliver a message twice. Ids are those of one input: another one may have the
    /// same. Nobody looks at them where the source is read from offsets ([`Replay::Seek`](crate::source::Replay::Seek)).
    pub id: Option<MessageId>,
    /// The key, as bytes; never parsed unless somebody asks.
    pub key: Option<Bytes>,
    /// The value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// When the message was made, in milliseconds since the Unix epoch, as the broker says.
    pub timestamp: Option<u64>,
    /// Whose time that is, where the broker says.
    pub timestamp_type: Option<TimestampType>,
    /// When the reader gave it, in milliseconds since the Unix epoch on the wall clock. The reader thread sets it.
    pub arrival: u64,
    /// The headers.
    pub headers: Headers,
    /// Properties of the broker that are neither key, value nor header, such as a subject or a priority.
    pub attributes: Vec<(String, String)>,
    /// How often the broker has tried to deliver it before, where it counts.
    pub delivery_count: u32,
}

impl Message {
    /// A message with a value at a position, and nothing else.
    pub fn new(split: SplitId, offset: Offset, next: Offset, value: Option<Bytes>) -> Self {
        Message {
            split,
            offset,
            next,
            id: None,
            key: None,
            value,
            timestamp: None,
            timestamp_type: None,
            arrival: 0,
            headers: Headers::new(),
            attributes: Vec::new(),
            delivery_count: 0,
        }
    }

    /// Bytes of key, value and headers.
    pub fn size(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, Bytes::len));
        self.key.as_ref().map_or(0, Bytes::len) + self.value.as_ref().map_or(0, Bytes::len) + headers.sum::<usize>()
    }
}

/// Why a record left the main path. A closed set: every record that leaves is counted under exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Reason {
    /// The key was joined already, or the side was present already and the first one counts.
    Duplicate,
    /// A newer record of the same side and key replaced it.
    Overridden,
    /// The delay of its key was final.
    Late,
    /// Its broker had delivered it before: it has the id of an earlier message.
    Redelivered,
    /// The value is a tombstone.
    Tombstone,
    /// The value is not UTF-8.
    InvalidUtf8,
    /// The value is not JSON.
    InvalidJson,
    /// The value is not JSON but in the frame of a schema registry: a zero byte and the id of a schema in four bytes come first.
    SchemaFramed,
    /// The value is JSON, but not an object.
    NotAnObject,
    /// A key field is missing.
    KeyMissing,
    /// A key field is null.
    KeyNull,
    /// A key field is an object or an array.
    KeyNotScalar,
    /// A member on the path of a key field, or of the timestamp, stands twice in its object.
    KeyAmbiguous,
    /// The timestamp field is missing or is neither milliseconds nor RFC 3339.
    InvalidTimestamp,
    /// A codec of the user refused it.
    Undecodable,
    /// It is larger than the broker of the output takes.
    TooLarge,
    /// The broker of the output refused it for another reason than its size.
    Refused,
}

impl Reason {
    /// Every reason, in the order of the reports.
    pub const ALL: [Reason; 17] = [
        Reason::Duplicate,
        Reason::Overridden,
        Reason::Late,
        Reason::Redelivered,
        Reason::Tombstone,
        Reason::InvalidUtf8,
        Reason::InvalidJson,
        Reason::SchemaFramed,
        Reason::NotAnObject,
        Reason::KeyMissing,
        Reason::KeyNull,
        Reason::KeyNotScalar,
        Reason::KeyAmbiguous,
        Reason::InvalidTimestamp,
        Reason::Undecodable,
        Reason::TooLarge,
        Reason::Refused,
    ];

    /// The fixed name in reports, metrics and dead letters.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Duplicate => "duplicate",
            Reason::Overridden => "overridden",
            Reason::Late => "late",
            Reason::Redelivered => "redelivered",
            Reason::Tombstone => "tombstone",
            Reason::InvalidUtf8 => "invalid_utf8",
            Reason::InvalidJson => "invalid_json",
            Reason::SchemaFramed => "schema_framed",
            Reason::NotAnObject => "not_an_object",
            Reason::KeyMissing => "key_missing",
            Reason::KeyNull => "key_null",
            Reason::KeyNotScalar => "key_not_scalar",
            Reason::KeyAmbiguous => "key_ambiguous",
            Reason::InvalidTimestamp => "invalid_timestamp",
            Reason::Undecodable => "undecodable",
            Reason::TooLarge => "too_large",
            Reason::Refused => "refused",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_stable_and_ordered_by_number() {
        // The value is part of the checkpoint format: it may never change.
        assert_eq!(SplitId::numbered("orders", 3).to_string(), SplitId::numbered("orders", 3).to_string());
        assert!(SplitId::numbered("orders", 9) < SplitId::numbered("orders", 10));
        assert_ne!(SplitId::numbered("orders", 0), SplitId::numbered("payments", 0));
    }

    #[test]
    fn every_reason_is_listed_once_and_in_order() {
        assert!(Reason::ALL.iter().enumerate().all(|(index, reason)| *reason as usize == index));
    }
}
