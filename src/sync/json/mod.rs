//! Takes the key fields and the timestamp out of JSON values, in one pass over their bytes.
//!
//! serde_json checks the whole value, to its last byte, and nothing of it is built: a field is the slice of text where it stands, so
//! numbers keep every digit. For a record nothing is allocated beyond what serde_json needs (for escapes, and brackets in what it
//! ignores), except to decode escapes in the fields themselves.

mod path;
#[cfg(test)]
mod tests;
mod tree;

use std::borrow::Cow;

pub use path::Path;
use tree::Node;

use crate::codec::schema_framed;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Reason;

/// How many fields can be taken out of a value.
pub const MAX_FIELDS: usize = 16;

/// How many names the paths of all fields may have together, counting what they share once.
pub const MAX_NAMES: usize = 64;

/// serde_json goes down 127 levels and ignores deeper ones without recursion.
const _: () = assert!(MAX_NAMES < 128);

/// Takes the fields of a key, in their order.
pub trait KeySink {
    /// Takes decoded text.
    fn text(&mut self, text: &str);
    /// Takes a number as it is written in JSON.
    fn number(&mut self, number: &str);
    /// Takes a boolean.
    fn boolean(&mut self, boolean: bool);
}

/// Why a value was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// As it is counted.
    pub reason: Reason,
    /// In words, with the path or the position.
    pub error: String,
}

/// Takes key fields and a timestamp out of JSON values; made once for an input.
#[derive(Debug)]
pub struct Extractor {
    root: Node,
    /// The key fields first, in their order, then the timestamp if there is one.
    paths: Vec<Path>,
    keys: usize,
}

impl Extractor {
    /// An extractor of these key fields and, perhaps, a timestamp.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if there is no key field, if a field would have to be inside another one, or if there are more than
    /// [`MAX_FIELDS`] fields or [`MAX_NAMES`] names.
    pub fn new(keys: &[Path], timestamp: Option<&Path>) -> Result<Self> {
        let paths: Vec<Path> = keys.iter().chain(timestamp).cloned().collect();
        let mut problems = Vec::new();
        if keys.is_empty() {
            problems.push("a key needs at least one field".to_owned());
        }
        if paths.len() > MAX_FIELDS {
            problems
                .push(format!("{} fields are too many: at most {MAX_FIELDS} can be taken out of a value", paths.len()));
        }
        for (index, outer) in paths.iter().enumerate() {
            for (other, inner) in paths.iter().enumerate() {
                let (outer_parts, inner_parts) = (outer.parts(), inner.parts());
                if index != other && inner_parts.len() > outer_parts.len() && inner_parts.starts_with(outer_parts) {
                    problems
                        .push(format!("\"{inner}\" is inside of \"{outer}\": a field is text, a number or a boolean"));
                }
            }
        }
        let mut root = Node::default();
        let mut names = 0;
        for (index, path) in paths.iter().enumerate().take(MAX_FIELDS) {
            root.add(path.parts(), index, &mut names);
        }
        if names > MAX_NAMES {
            problems.push(format!("the paths have {names} names: at most {MAX_NAMES} are possible"));
        }
        match problems.is_empty() {
            true => Ok(Extractor { root, paths, keys: keys.len() }),
            false => Err(Error::new(ErrorKind::Config, problems.join("\n"))),
        }
    }

    /// Checks a value, gives its key fields to the sink and returns its timestamp, in milliseconds since the Unix epoch (`None` if
    /// no timestamp is asked for).
    ///
    /// # Errors
    ///
    /// The first of these that is true: in the frame of a schema registry, not UTF-8, not JSON, not an object, a member on the way to a field stands twice, a key
    /// field (in their order) is missing, null or no scalar, the timestamp is not one. The sink has got nothing then.
    pub fn extract(&self, value: &[u8], key: &mut impl KeySink) -> Result<Option<u64>, Refused> {
        let broken = |reason, error: String| match schema_framed(value) {
            Some(error) => Refused { reason: Reason::SchemaFramed, error },
            None => Refused { reason, error },
        };
        let text = std::str::from_utf8(value)
            .map_err(|error| broken(Reason::InvalidUtf8, format!("not UTF-8 at byte {}", error.valid_up_to())))?;
        let found = self.root.find(text).map_err(|error| broken(Reason::InvalidJson, format!("not JSON: {error}")))?;
        let Some(found) = found else {
            return Err(Refused { reason: Reason::NotAnObject, error: "the value is not an object".to_owned() });
        };
        if let Some((name, field)) = found.ambiguous {
            let error =
                format!("member \"{name}\" on the path to \"{}\" stands twice in its object", self.paths[field]);
            return Err(Refused { reason: Reason::KeyAmbiguous, error });
        }
        let keys = &found.values[..self.keys];
        for (path, raw) in self.paths.iter().zip(keys) {
            check_key(path, *raw)?;
        }
        let timestamp = match self.paths.get(self.keys) {
            Some(path) => Some(timestamp(path, found.values[self.keys])?),
            None => None,
        };
        for raw in keys.iter().flatten() {
            match raw.as_bytes()[0] {
                b'"' => key.text(&unquote(raw).unwrap_or_default()), // the check has decoded it already
                b't' => key.boolean(true),
                b'f' => key.boolean(false),
                _ => key.number(raw),
            }
        }
        Ok(timestamp)
    }
}

/// The text of a JSON string; an error if its escapes are no text.
fn unquote(raw: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    let text = &raw[1..raw.len() - 1];
    match memchr::memchr(b'\\', text.as_bytes()) {
        None => Ok(Cow::Borrowed(text)),
        Some(_) => serde_json::from_str(raw).map(Cow::Owned),
    }
}

fn check_key(path: &Path, raw: Option<&str>) -> Result<(), Refused> {
    let refused = |reason, what: &str| Err(Refused { reason, error: format!("key field \"{path}\" {what}") });
    let Some(raw) = raw else { return refused(Reason::KeyMissing, "is missing") };
    match raw.as_bytes()[0] {
        b'n' => refused(Reason::KeyNull, "is null"),
        b'{' => refused(Reason::KeyNotScalar, "is an object, not text, a number or a boolean"),
        b'[' => refused(Reason::KeyNotScalar, "is an array, not text, a number or a boolean"),
        b'"' if unquote(raw).is_err() => refused(Reason::InvalidJson, "has an escape that stands for no character"),
        _ => Ok(()),
    }
}

fn timestamp(path: &Path, raw: Option<&str>) -> Result<u64, Refused> {
    let refused =
        |what: String| Refused { reason: Reason::InvalidTimestamp, error: format!("timestamp \"{path}\" {what}") };
    let Some(raw) = raw else { return Err(refused("is missing".to_owned())) };
    let text = match raw.as_bytes()[0] {
        b'"' => unquote(raw).ok(),
        _ => {
            return raw
                .parse()
                .map_err(|_| refused(format!("is {}, not whole milliseconds or RFC 3339 text", shortened(raw))));
        }
    };
    let time = text.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let Some(time) = time else { return Err(refused(format!("is {}, not RFC 3339 text", shortened(raw)))) };
    u64::try_from(time.as_millisecond()).map_err(|_| refused(format!("is {}, before 1970", shortened(raw))))
}

/// The start of a text, for a message.
fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(40) {
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
        None => Cow::Borrowed(text),
    }
}
