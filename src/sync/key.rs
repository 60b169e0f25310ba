//! Keys: what records are matched by.
//!
//! A key is a list of typed fields in one canonical form of bytes, so that equal keys are equal bytes: each field is a tag, a
//! length and a text. `a:b` and `c` are not `a` and `b:c`; 1 is 1.0 and is not "1". The form joined by `:` is only printed.

use std::fmt;
use std::hash::{Hash, Hasher};

use bytes::{BufMut, Bytes};
use serde::{Deserialize, Serialize};

use super::number::canonical;
use crate::blocks::Blocks;
use crate::varint;

/// The hash of a key: all 128 bits of it where keys are told apart, the low 64 bits where workers are chosen.
///
/// Its [`Hash`] writes the low 64 bits alone, so that every arrangement keyed by it, of this module or of differential's own
/// operators, sends a key to the same worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyHash(pub u128);

impl KeyHash {
    /// The XXH3 hash of canonical bytes.
    pub fn of(bytes: &[u8]) -> Self {
        KeyHash(xxhash_rust::xxh3::xxh3_128(bytes))
    }

    /// The leading bits, by which batches find a key.
    #[inline(always)]
    pub(crate) fn top(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

impl Hash for KeyHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0 as u64);
    }
}

/// The key of a record. Clones share their bytes. Ordered by hash first: the order is stable and means nothing else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    hash: KeyHash,
    bytes: Bytes,
}

impl Key {
    /// A builder of typed keys, with a buffer of its own. Whoever makes many keys keeps one builder.
    pub fn builder() -> KeyBuilder {
        KeyBuilder::new(KeyTypes::Typed)
    }

    /// A key from canonical bytes.
    pub fn new(bytes: Bytes) -> Self {
        Key { hash: KeyHash::of(&bytes), bytes }
    }

    /// A key with a hash of the caller's own. Keys of equal bytes must have equal hashes; keys of equal hashes may differ.
    pub fn with_hash(hash: KeyHash, bytes: Bytes) -> Self {
        Key { hash, bytes }
    }

    /// The hash.
    #[inline]
    pub fn hash(&self) -> KeyHash {
        self.hash
    }

    /// The canonical bytes.
    #[inline]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The fields in their order. Ends early where the bytes are not canonical.
    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        let mut rest: &[u8] = &self.bytes;
        std::iter::from_fn(move || {
            let (tag, length, start) = header(rest)?;
            let text = std::str::from_utf8(rest.get(start..start.checked_add(length)?)?).ok()?;
            rest = &rest[start + length..];
            match tag {
                TEXT => Some(Field::Text(text)),
                NUMBER => Some(Field::Number(text)),
                BOOLEAN => Some(Field::Boolean(text == "true")),
                _ => None,
            }
        })
    }
}

/// Prints the fields joined by `:`, for people and for outputs. Different keys may print alike.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, field) in self.fields().enumerate() {
            if index > 0 {
                f.write_str(":")?;
            }
            match field {
                Field::Text(text) | Field::Number(text) => f.write_str(text)?,
                Field::Boolean(value) => write!(f, "{value}")?,
            }
        }
        Ok(())
    }
}

/// One field of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// A text.
    Text(&'a str),
    /// A number, as the one text that stands for its exact value.
    Number(&'a str),
    /// True or false.
    Boolean(bool),
}

/// When scalars are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyTypes {
    /// When type and value are: numbers by exact decimal value, texts by their bytes. 1 = 1.0 = 1e0, and 1 is not "1".
    #[default]
    Typed,
    /// When they are written alike: 1 = "1", and 1 is not 1.0. The form of the FASTEN job.
    Text,
}

const TEXT: u8 = b's';
const NUMBER: u8 = b'n';
const BOOLEAN: u8 = b'b';

/// Bytes of a buffer that many keys share. Smaller: more allocations; larger: more is held by one key that is kept.
const ARENA_BYTES: usize = 64 << 10;

/// Makes keys, many of them in one buffer, so that a key costs no allocation.
#[derive(Debug)]
pub struct KeyBuilder {
    types: KeyTypes,
    arena: Blocks,
    scratch: String,
}

impl KeyBuilder {
    /// A builder of keys whose fields are equal as `types` says.
    pub fn new(types: KeyTypes) -> Self {
        KeyBuilder { types, arena: Blocks::new(ARENA_BYTES), scratch: String::new() }
    }

    /// Adds a text.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.field(TEXT, text);
        self
    }

    /// Adds a number, given as the text of a JSON number.
    pub fn number(&mut self, text: &str) -> &mut Self {
        match self.types {
            KeyTypes::Text => self.field(TEXT, text),
            KeyTypes::Typed => {
                let mut scratch = std::mem::take(&mut self.scratch);
                scratch.clear();
                canonical(text, &mut scratch);
                self.field(NUMBER, &scratch);
                self.scratch = scratch;
            }
        }
        self
    }

    /// Adds true or false.
    pub fn boolean(&mut self, value: bool) -> &mut Self {
        let tag = match self.types {
            KeyTypes::Typed => BOOLEAN,
            KeyTypes::Text => TEXT,
        };
        self.field(tag, if value { "true" } else { "false" });
        self
    }

    /// The key of the fields added since the last one.
    pub fn build(&mut self) -> Key {
        Key::new(self.arena.split())
    }

    /// Forgets the fields added since the last key.
    pub fn clear(&mut self) {
        self.arena.clear();
    }

    fn field(&mut self, tag: u8, text: &str) {
        let arena = self.arena.room(text.len() + 1 + varint::MAX_BYTES);
        arena.put_u8(tag);
        varint::put(text.len() as u64, arena);
        arena.put_slice(text.as_bytes());
    }
}

/// The tag and the length of the field at the front of `bytes`, and where its text starts.
fn header(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let (tag, rest) = bytes.split_first()?;
    let (length, taken) = varint::get(rest)?;
    Some((*tag, usize::try_from(length).ok()?, 1 + taken))
}

#[cfg(test)]
mod tests {
    use super::*;
    use differential_dataflow::hashable::Hashable;

    #[test]
    fn t02_fields_are_not_joined_by_their_separator() {
        let (one, two) = (Key::builder().text("a:b").text("c").build(), Key::builder().text("a").text("b:c").build());
        assert_ne!(one, two);
        assert_ne!(one.hash(), two.hash());
        assert_eq!((one.to_string(), two.to_string()), ("a:b:c".to_owned(), "a:b:c".to_owned()));
        assert_ne!(Key::builder().text("").text("a").build(), Key::builder().text("a").text("").build());
        assert_ne!(Key::builder().text("").build(), Key::builder().build());
    }

    #[test]
    fn t12_types_tell_keys_apart_and_writings_do_not() {
        let number = |text: &str| Key::builder().number(text).build();
        assert_eq!(number("1"), number("1.0"));
        assert_eq!(number("1").hash(), number("10e-1").hash());
        assert_ne!(number("1"), Key::builder().text("1").build());
        assert_ne!(Key::builder().boolean(true).build(), Key::builder().text("true").build());
        let mut fasten = KeyBuilder::new(KeyTypes::Text);
        assert_eq!(fasten.number("1").build(), fasten.text("1").build());
        assert_eq!(fasten.boolean(true).build(), fasten.text("true").build());
        assert_ne!(fasten.number("1").build(), fasten.number("1.0").build());
    }

    #[test]
    fn fields_come_back() {
        let long = "x".repeat(100_000);
        let mut builder = Key::builder();
        let key = builder.text("é:\u{0}").number("1.50").boolean(false).text(&long).build();
        let fields: Vec<_> = key.fields().collect();
        assert_eq!(fields, [Field::Text("é:\u{0}"), Field::Number("1.5"), Field::Boolean(false), Field::Text(&long)]);
        for garbage in
            [&b"s"[..], b"s\xff", b"s\x05ab", b"q\x01a", b"s\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
        {
            assert_eq!(Key::new(Bytes::from_static(garbage)).fields().count(), 0);
        }
    }

    #[test]
    fn keys_share_a_buffer_and_forget_what_was_given_up() {
        let mut builder = Key::builder();
        let keys: Vec<Key> = (0..10_000).map(|n| builder.text("key").number(&n.to_string()).build()).collect();
        builder.text("not this one").clear();
        assert_eq!(builder.text("key").number("7").build(), keys[7]);
        let gaps = keys.windows(2).filter(|pair| {
            pair[0].bytes().as_ptr() as usize + pair[0].bytes().len() != pair[1].bytes().as_ptr() as usize
        });
        assert!(gaps.count() < 10, "keys do not share buffers");
    }

    #[test]
    fn hashes_route_by_their_low_bits() {
        assert_eq!(KeyHash(7 << 64 | 1).top(), 7);
        assert_eq!(KeyHash(7 << 64 | 1).hashed(), KeyHash(1).hashed());
        assert_ne!(KeyHash(2).hashed(), KeyHash(1).hashed());
        // Part of the checkpoint format: may never change.
        assert_eq!(Key::builder().text("a").number("1").build().hash(), KeyHash::of(b"s\x01an\x011"));
    }
}
