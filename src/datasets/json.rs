//! JSON that forgets nothing that matters here: an object keeps members that stand twice.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A JSON value; texts without escapes are borrowed from the line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(Cow<'a, str>),
    Array(Vec<Json<'a>>),
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

/// What is at the end of a path.
pub(super) enum Found<'j, 'a> {
    /// A value.
    One(&'j Json<'a>),
    /// Nothing.
    Nothing,
    /// A member on the path stands twice.
    Ambiguous,
}

impl<'a> Json<'a> {
    /// Follows a dotted path; numbers index arrays.
    pub(super) fn at(&self, path: &str) -> Found<'_, 'a> {
        let mut value = self;
        for part in path.split('.') {
            let next = match value {
                Json::Object(members) => {
                    let mut members = members.iter().filter(|(name, _)| name == part).map(|(_, value)| value);
                    let first = members.next();
                    if members.next().is_some() {
                        return Found::Ambiguous;
                    }
                    first
                }
                Json::Array(elements) => part.parse().ok().and_then(|index: usize| elements.get(index)),
                _ => None,
            };
            match next {
                Some(next) => value = next,
                None => return Found::Nothing,
            }
        }
        Found::One(value)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Build)
    }
}

struct Build;

impl<'de> Visitor<'de> for Build {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(serde_json::Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Json::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Json::Text(Cow::Owned(value.into())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut elements = vec![];
        while let Some(element) = access.next_element()? {
            elements.push(element);
        }
        Ok(Json::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut members = vec![];
        while let Some(Json::Text(name)) = access.next_key()? {
            members.push((name, access.next_value()?));
        }
        Ok(Json::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_stand_twice_are_seen_on_the_path_only() {
        let text = r#"{"a":{"b":[1,{"c":"x\"y"}]},"d":1,"d":2,"e":{"f":null,"f":1,"g":-1.5}}"#;
        let Ok(json) = serde_json::from_str::<Json<'_>>(text) else { panic!("{text} is JSON") };
        assert!(matches!(json.at("a.b.1.c"), Found::One(Json::Text(text)) if text == "x\"y"));
        assert!(matches!(json.at("a.b.2"), Found::Nothing));
        assert!(matches!(json.at("a.b.1.c.d"), Found::Nothing));
        assert!(matches!(json.at("d"), Found::Ambiguous));
        assert!(matches!(json.at("e.f"), Found::Ambiguous));
        assert!(matches!(json.at("e.g"), Found::One(Json::Number(number)) if number.as_f64() == Some(-1.5)));
    }
}
