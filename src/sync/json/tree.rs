//! The paths to all fields as one tree, and the pass of serde_json over a value along it.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{MAX_FIELDS, unquote};

/// A place in a value: on the way to a field, then it has children, or a field, then it has none.
#[derive(Debug, Default)]
pub(super) struct Node {
    children: Vec<Child>,
    /// The fields that are here: bits by index into the paths.
    fields: u32,
}

#[derive(Debug)]
struct Child {
    name: String,
    /// What the name means in an array.
    index: Option<usize>,
    /// One bit of its own, to notice that a member comes twice.
    seen: u64,
    node: Node,
}

/// What one pass over a value finds.
#[derive(Default)]
pub(super) struct Found<'a> {
    /// The text of each field.
    pub(super) values: [Option<&'a str>; MAX_FIELDS],
    /// The name of a member that came twice, and a field below it.
    pub(super) ambiguous: Option<(String, usize)>,
    seen: u64,
}

/// The pass at one place.
struct Visit<'t, 'f, 'a> {
    node: &'t Node,
    found: &'f mut Found<'a>,
    way: Way,
}

/// How the names of members, and the values on the way to fields, are read.
#[derive(Clone, Copy)]
enum Way {
    /// Once. But serde_json refuses here what is JSON and has no type in Rust: numbers out of range, halves of surrogate pairs.
    Direct,
    /// First as raw text, then again if something can be in it.
    Raw,
}

/// The name of a member, to be looked up among the children of a place without being copied.
struct Name<'t>(&'t Node);

impl Node {
    /// Adds the way to a field; `names` counts the places.
    pub(super) fn add(&mut self, parts: &[String], field: usize, names: &mut usize) {
        let Some((name, rest)) = parts.split_first() else {
            self.fields |= 1 << field;
            return;
        };
        let at = self.children.iter().position(|child| child.name == *name).unwrap_or_else(|| {
            // An index is written as JSON Pointer wants it: "0", "17", never "01" or "+1".
            let index = name.parse().ok().filter(|index: &usize| index.to_string() == *name);
            let seen = 1u64.checked_shl(*names as u32).unwrap_or(0);
            *names += 1;
            self.children.push(Child { name: name.clone(), index, seen, node: Node::default() });
            self.children.len() - 1
        });
        self.children[at].node.add(rest, field, names);
    }

    /// Checks a text and finds the fields in it: `None` if it is JSON, but not an object.
    ///
    /// # Errors
    ///
    /// The text is not JSON.
    pub(super) fn find<'a>(&self, text: &'a str) -> serde_json::Result<Option<Found<'a>>> {
        if !text.trim_ascii_start().starts_with('{') {
            return serde_json::from_str::<IgnoredAny>(text).map(|_| None);
        }
        self.pass(text, Way::Direct).map(Some).or_else(|_| {
            serde_json::from_str::<IgnoredAny>(text)?;
            self.pass(text, Way::Raw).map(Some)
        })
    }

    fn pass<'a>(&self, text: &'a str, way: Way) -> serde_json::Result<Found<'a>> {
        let mut found = Found::default();
        let mut deserializer = serde_json::Deserializer::from_str(text);
        deserializer.deserialize_any(Visit { node: self, found: &mut found, way })?;
        deserializer.end()?;
        Ok(found)
    }

    #[inline]
    fn child(&self, name: &str) -> Option<&Child> {
        self.children.iter().find(|child| child.name == name)
    }

    /// A field here or below.
    fn any_field(&self) -> usize {
        match self.children.first() {
            Some(child) if self.fields == 0 => child.node.any_field(),
            _ => self.fields.trailing_zeros() as usize,
        }
    }
}

impl<'a> Found<'a> {
    fn put(&mut self, mut fields: u32, text: &'a str) {
        while fields != 0 {
            self.values[fields.trailing_zeros() as usize] = Some(text);
            fields &= fields - 1;
        }
    }
}

impl<'t, 'a> Visit<'t, '_, 'a> {
    fn below(&mut self, child: &'t Child) -> Visit<'t, '_, 'a> {
        Visit { node: &child.node, found: self.found, way: self.way }
    }
}

/// The recursion is as deep as the longest path, not as the value, and [`super::MAX_NAMES`] is below the limit of serde_json.
impl<'a> DeserializeSeed<'a> for Visit<'_, '_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.node.children.is_empty() {
            let text = <&RawValue>::deserialize(deserializer)?.get();
            self.found.put(self.node.fields, text);
            return Ok(());
        }
        match self.way {
            Way::Direct => deserializer.deserialize_any(self),
            Way::Raw => match <&RawValue>::deserialize(deserializer)?.get() {
                text if text.starts_with(['{', '[']) => {
                    serde_json::Deserializer::from_str(text).deserialize_any(self).map_err(D::Error::custom)
                }
                _ => Ok(()),
            },
        }
    }
}

impl<'t, 'a> DeserializeSeed<'a> for Name<'t> {
    type Value = Option<&'t Child>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'t> Visitor<'_> for Name<'t> {
    type Value = Option<&'t Child>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.child(name))
    }
}

impl<'a> Visitor<'a> for Visit<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut members: A) -> Result<(), A::Error> {
        let node = self.node;
        loop {
            let child = match self.way {
                Way::Direct => members.next_key_seed(Name(node))?,
                Way::Raw => members.next_key::<&RawValue>()?.map(|name| node.child(&unquote(name.get()).ok()?)),
            };
            match child {
                None => return Ok(()),
                Some(Some(child)) if self.found.seen & child.seen == 0 => {
                    self.found.seen |= child.seen;
                    members.next_value_seed(self.below(child))?;
                }
                Some(child) => {
                    if let Some(child) = child {
                        self.found.ambiguous.get_or_insert_with(|| (child.name.clone(), child.node.any_field()));
                    }
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut items: A) -> Result<(), A::Error> {
        let node = self.node;
        for index in 0.. {
            let more = match node.children.iter().find(|child| child.index == Some(index)) {
                Some(child) => items.next_element_seed(self.below(child))?.is_some(),
                None => items.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    // A scalar on the way: the fields below it are missing.

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}
