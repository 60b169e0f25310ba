//! Codecs: from messages to the records of a dataflow.

use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::message::{Message, Reason};

/// A record, and its timestamp in milliseconds since the Unix epoch if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded<T> {
    /// Event time. Where the codec does not look for one, that of the message.
    pub timestamp: Option<u64>,
    /// The record.
    pub data: T,
}

/// A message that a codec does not understand, handed back whole.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Under which reason it is counted.
    pub reason: Reason,
    /// What is wrong with it, in words that a producer of messages can use.
    pub error: String,
    /// The message.
    pub message: Box<Message>,
}

/// Makes records of messages. Sees the whole message: headers, attributes and all.
///
/// Every reader thread has a codec of its own and calls it once per message.
pub trait Codec: Send {
    /// What comes out.
    type Record;

    /// Decodes one message. A message that cannot be decoded is an ordinary outcome, not a failure of the job: the input's
    /// policy says what becomes of it.
    fn decode(&mut self, message: Message) -> Result<Decoded<Self::Record>, Refusal>;
}

/// Makes the codec of a reader thread.
pub type NewCodec<T> = Arc<dyn Fn() -> Box<dyn Codec<Record = T>> + Send + Sync>;

/// Passes messages on as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Codec for Raw {
    type Record = Message;
    fn decode(&mut self, message: Message) -> Result<Decoded<Message>, Refusal> {
        Ok(Decoded { timestamp: message.timestamp, data: message })
    }
}

/// Decodes JSON values into a `serde` type.
pub struct Json<T, F = fn(&T) -> Option<u64>> {
    timestamp: Option<F>,
    record: PhantomData<fn() -> T>,
}

impl<T> Json<T> {
    /// A codec whose records have the timestamps of their messages.
    pub fn new() -> Self {
        Json { timestamp: None, record: PhantomData }
    }
}

impl<T: DeserializeOwned + 'static> Json<T> {
    /// Makes codecs whose records have the timestamps of their messages, for an input.
    pub fn codec() -> NewCodec<T> {
        Arc::new(|| Box::new(Json::<T>::new()))
    }

    /// Makes codecs whose records say their timestamp themselves, in milliseconds since the Unix epoch, for an input.
    pub fn codec_with_timestamp(timestamp: impl Fn(&T) -> Option<u64> + Clone + Send + Sync + 'static) -> NewCodec<T> {
        Arc::new(move || Box::new(Json::with_timestamp(timestamp.clone())))
    }
}

impl<T> Default for Json<T> {
    fn default() -> Self {
        Json::new()
    }
}

impl<T, F: Fn(&T) -> Option<u64>> Json<T, F> {
    /// A codec whose records say their timestamp themselves, in milliseconds since the Unix epoch.
    pub fn with_timestamp(timestamp: F) -> Self {
        Json { timestamp: Some(timestamp), record: PhantomData }
    }
}

impl<T: DeserializeOwned, F: Fn(&T) -> Option<u64> + Send> Codec for Json<T, F> {
    type Record = T;
    fn decode(&mut self, message: Message) -> Result<Decoded<T>, Refusal> {
        let Some(value) = &message.value else {
            let error = "the value is null".to_owned();
            return Err(Refusal { reason: Reason::Tombstone, error, message: Box::new(message) });
        };
        match serde_json::from_slice::<T>(value) {
            Ok(data) => {
                let timestamp = match &self.timestamp {
                    Some(timestamp) => timestamp(&data),
                    None => message.timestamp,
                };
                Ok(Decoded { timestamp, data })
            }
            Err(error) => {
                let (reason, error) = match (schema_framed(value), std::str::from_utf8(value)) {
                    (Some(framed), _) => (Reason::SchemaFramed, framed),
                    (None, Err(error)) => (Reason::InvalidUtf8, error.to_string()),
                    (None, Ok(_)) if error.is_data() => (Reason::Undecodable, error.to_string()),
                    (None, Ok(_)) => (Reason::InvalidJson, error.to_string()),
                };
                Err(Refusal { reason, error, message: Box::new(message) })
            }
        }
    }
}

/// What is to be said of a value in the frame of a schema registry, or `None` for any other. No JSON begins like this, so it is
/// asked only where a value was refused, and costs nothing elsewhere.
pub(crate) fn schema_framed(value: &[u8]) -> Option<String> {
    let [0, id @ ..] = value.first_chunk::<5>()? else { return None };
    Some(format!(
        "the value is in the frame of a schema registry (schema id {}), and this version reads plain JSON: let the producer write \
         JSON without a registry",
        u32::from_be_bytes(*id)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Offset, SplitId};
    use bytes::Bytes;

    #[test]
    fn json_says_why_it_refuses() {
        let mut codec = Json::<(u32, u64), _>::with_timestamp(|record| Some(record.1));
        let mut decode = |value: Option<&'static str>| {
            let value = value.map(|text| Bytes::from_static(text.as_bytes()));
            codec.decode(Message::new(SplitId::numbered("t", 0), Offset(0), Offset(1), value))
        };
        assert_eq!(decode(Some("[1,7]")).unwrap(), Decoded { timestamp: Some(7), data: (1, 7) });
        assert_eq!(decode(Some("[1")).unwrap_err().reason, Reason::InvalidJson);
        assert_eq!(decode(Some("{}")).unwrap_err().reason, Reason::Undecodable);
        assert_eq!(decode(None).unwrap_err().reason, Reason::Tombstone);
        let framed = decode(Some("\0\0\0\x01\x02[1,7]")).unwrap_err();
        assert_eq!(framed.reason, Reason::SchemaFramed);
        assert!(framed.error.contains("schema id 258"), "{}", framed.error);
        assert_eq!(framed.message.value.as_deref(), Some(&b"\0\0\0\x01\x02[1,7]"[..]));
        assert_eq!(decode(Some("\0\0\0\x01")).unwrap_err().reason, Reason::InvalidJson);
    }
}
