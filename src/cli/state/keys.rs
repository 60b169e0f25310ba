//! `syncline state show` and `syncline state export`: the items of a store.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::names::Names;
use super::unwritten;
use crate::checkpoint::Inspection;
use crate::cli::table::closest;
use crate::cli::units::utc;
use crate::dataflow::ItemCodec;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Offset, SplitId};
use crate::sync::document::base64;
use crate::sync::{Field, Item, KEYS, Kept, KeptCodec, Key, MAX_TIME, Phase, WaitTimes, finished_as};

/// An item of the collection of keys.
pub(super) fn decode(bytes: Bytes) -> Result<Item<Bytes>> {
    let kept: Kept<Bytes> = KeptCodec.decode(bytes)?;
    kept.item.ok_or_else(|| Error::new(ErrorKind::Store, "an item of a key is empty, a fault of its writer"))
}

/// How a key was finished: a word for people and programs.
fn outcome(late: bool, positions: &[Option<(SplitId, Offset)>]) -> &'static str {
    match (finished_as(positions), late) {
        (Phase::Joined, false) => "joined",
        (Phase::Joined, true) => "joined_late",
        _ => "given_up",
    }
}

/// Says what is known of all keys that are printed in this way.
pub(super) fn show(inspection: &Inspection, wanted: &str, out: &mut dyn Write) -> Result<()> {
    let mut found: BTreeMap<Key, Vec<Item<Bytes>>> = BTreeMap::new();
    inspection.items(&mut |collection, bytes| {
        if collection == KEYS {
            let item = decode(bytes)?;
            if item.key().to_string() == wanted {
                found.entry(item.key().clone()).or_default().push(item);
            }
        }
        Ok(())
    })?;
    if found.is_empty() {
        let text = format!(
            "nothing is known of key {wanted:?}: it has not come, was forgotten after --remember, or is written otherwise; \
             syncline state export prints all keys"
        );
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    let names = Names::new(&inspection.identity);
    let written = found.iter_mut().try_for_each(|(key, items)| {
        items.sort_by_key(|item| match item {
            Item::Waiting { side, .. } => (0, *side),
            Item::Held { .. } => (1, 0),
            Item::Finished { .. } => (2, 0),
        });
        writeln!(out, "key {wanted}  ({})", fields(key))?;
        items.iter().try_for_each(|item| write_item(item, &names, out))
    });
    written.map_err(unwritten)
}

/// The fields of a key with their types, by which keys that are printed alike are told apart.
fn fields(key: &Key) -> String {
    let field = |field| match field {
        Field::Text(text) => format!("text {text:?}"),
        Field::Number(text) => format!("number {text}"),
        Field::Boolean(value) => format!("boolean {value}"),
    };
    key.fields().map(field).collect::<Vec<_>>().join(", ")
}

fn deadline_text(time: u64) -> String {
    if time >= MAX_TIME { "never".to_owned() } else { utc(time) }
}

fn write_item(item: &Item<Bytes>, names: &Names, out: &mut dyn Write) -> io::Result<()> {
    match item {
        Item::Waiting { side, split, offset, times: WaitTimes { timestamp, clock, deadline }, payload, .. } => {
            let side = usize::from(*side);
            writeln!(
                out,
                "  waiting  side {}, split {}, offset {offset}",
                names.side(side),
                names.split(side, *split)
            )?;
            writeln!(out, "    timestamp         {}", utc(*timestamp))?;
            match clock {
                0 => writeln!(out, "    clock at arrival  -")?, // it had not begun
                clock => writeln!(out, "    clock at arrival  {}", utc(*clock))?,
            }
            writeln!(out, "    deadline          {}", deadline_text(*deadline))?;
            match std::str::from_utf8(payload) {
                Ok(text) => writeln!(out, "    payload           {text}"),
                Err(_) => writeln!(out, "    payload (base64)  {}", base64(payload)),
            }
        }
        Item::Held { delayed, deadline, cap, .. } => {
            if *delayed {
                writeln!(out, "  delayed  its records are kept until {}", deadline_text(*deadline))?;
            }
            if *cap != MAX_TIME {
                writeln!(out, "  capped   it waits no longer than until {}", utc(*cap))?;
            }
            Ok(())
        }
        Item::Finished { late, until, dropped, positions, .. } => {
            let outcome = match outcome(*late, positions) {
                "joined_late" => "joined, after its delay",
                "joined" => "joined",
                _ => "given up",
            };
            let until = deadline_text(*until);
            writeln!(
                out,
                "  finished {outcome}; remembered until {until}; {dropped} records that came later were dropped"
            )?;
            for (side, position) in positions.iter().enumerate() {
                match position {
                    Some((split, offset)) => {
                        let split = names.split(side, *split);
                        writeln!(out, "    side {}: split {split}, offset {offset}", names.side(side))?;
                    }
                    None => writeln!(out, "    side {}: missing", names.side(side))?,
                }
            }
            Ok(())
        }
    }
}

/// A line of the export, of the collection of keys.
#[derive(Serialize)]
struct Line<'a> {
    collection: &'a str,
    key: String,
    /// With their types: keys that are printed alike differ here.
    key_fields: Vec<Box<RawValue>>,
    #[serde(flatten)]
    item: LineItem,
}

#[derive(Serialize)]
#[serde(tag = "item", rename_all = "snake_case")]
enum LineItem {
    Waiting {
        side: u8,
        #[serde(flatten)]
        place: Place,
        timestamp: u64,
        clock: u64,
        deadline: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        payload: Option<Box<RawValue>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        payload_base64: Option<String>,
    },
    Held {
        delayed: bool,
        deadline: Option<u64>,
        cap: Option<u64>,
    },
    Finished {
        outcome: &'static str,
        until: Option<u64>,
        dropped: u32,
        positions: Vec<Option<Place>>,
    },
}

#[derive(Serialize)]
struct Place {
    split: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    split_name: Option<String>,
    offset: u64,
}

impl Place {
    fn new(names: &Names, side: usize, (split, offset): (SplitId, Offset)) -> Self {
        Place { split: split.to_string(), split_name: names.known_split(side, split), offset: offset.0 }
    }
}

/// A text as the JSON value that it is, on one line; `None` if it is none.
fn raw(text: &[u8]) -> Option<Box<RawValue>> {
    let value: Box<RawValue> = serde_json::from_slice(text).ok()?;
    match value.get().contains(['\n', '\r']) {
        // Inside of strings they are escaped: these stand between tokens.
        true => RawValue::from_string(value.get().replace(['\n', '\r'], " ")).ok(),
        false => Some(value),
    }
}

fn quoted(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).expect("a string is JSON")
}

fn line_item(item: Item<Bytes>, names: &Names) -> LineItem {
    let time = |time: u64| Some(time).filter(|time| *time < MAX_TIME);
    match item {
        Item::Waiting { side, split, offset, times: WaitTimes { timestamp, clock, deadline }, payload, .. } => {
            let json = raw(&payload);
            let payload_base64 = json.is_none().then(|| base64(&payload));
            let (place, deadline) = (Place::new(names, side.into(), (split, offset)), time(deadline));
            LineItem::Waiting { side, place, timestamp, clock, deadline, payload: json, payload_base64 }
        }
        Item::Held { delayed, deadline, cap, .. } => {
            LineItem::Held { delayed, deadline: time(deadline), cap: time(cap) }
        }
        Item::Finished { late, until, dropped, positions, .. } => {
            let outcome = outcome(late, &positions);
            let place = |(side, position): (usize, Option<_>)| position.map(|at| Place::new(names, side, at));
            let positions = positions.into_iter().enumerate().map(place).collect();
            LineItem::Finished { outcome, until: time(until), dropped, positions }
        }
    }
}

/// Prints all items as lines of JSON.
pub(super) fn export(inspection: &Inspection, only: Option<&str>, out: &mut dyn Write) -> Result<()> {
    let names = Names::new(&inspection.identity);
    let (mut seen, mut lines) = (BTreeSet::new(), 0u64);
    inspection.items(&mut |collection, bytes| {
        if only.is_some_and(|only| only != collection) {
            if !seen.contains(collection) {
                seen.insert(collection.to_owned());
            }
            return Ok(());
        }
        lines += 1;
        write_line(collection, bytes, &names, out)
    })?;
    match only {
        Some(only) if lines == 0 && only != KEYS => {
            let names: Vec<&str> = seen.iter().map(String::as_str).chain([KEYS]).collect();
            let fix = match closest(only, names.iter().copied()) {
                Some(name) => format!("did you mean {name}?"),
                None => "syncline state ls lists the collections".to_owned(),
            };
            Err(Error::new(ErrorKind::NotFound, format!("collection {only:?} has no items: {fix}")))
        }
        _ => Ok(()),
    }
}

fn write_line(collection: &str, bytes: Bytes, names: &Names, out: &mut dyn Write) -> Result<()> {
    let written = if collection == KEYS {
        let item = decode(bytes)?;
        let field = |field| match field {
            Field::Text(text) => quoted(text),
            Field::Number(text) => raw(text.as_bytes()).unwrap_or_else(|| quoted(text)),
            Field::Boolean(value) => serde_json::value::to_raw_value(&value).expect("a boolean is JSON"),
        };
        let (key, key_fields) = (item.key().to_string(), item.key().fields().map(field).collect());
        let line = Line { collection, key, key_fields, item: line_item(item, names) };
        serde_json::to_writer(&mut *out, &line)
    } else {
        #[derive(Serialize)]
        struct Other<'a> {
            collection: &'a str,
            bytes_base64: String,
        }
        serde_json::to_writer(&mut *out, &Other { collection, bytes_base64: base64(&bytes) })
    };
    written.map_err(io::Error::from).and_then(|()| out.write_all(b"\n")).map_err(unwritten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Identity;

    #[test]
    fn lines_are_one_line_and_keep_every_digit() {
        let names = Names::new(&Identity::default());
        let (split, key) = (SplitId::numbered("t", 3), Key::builder().text("a").number("1.50").boolean(true).build());
        let times = WaitTimes { timestamp: 1, clock: 2, deadline: MAX_TIME };
        let line = |payload: &'static [u8]| {
            let payload = Bytes::from_static(payload);
            let item = Item::Waiting { key: key.clone(), side: 1, split, offset: Offset(7), times, payload };
            let line = Line {
                collection: KEYS,
                key: key.to_string(),
                key_fields: vec![quoted("a")],
                item: line_item(item, &names),
            };
            serde_json::to_string(&line).unwrap()
        };
        let front = format!(
            r#"{{"collection":"keys","key":"a:1.5:true","key_fields":["a"],"item":"waiting","side":1,"split":"{split}","offset":7,"timestamp":1,"clock":2,"deadline":null,"#
        );
        assert_eq!(
            line(b"{\"n\":\r\n1.0000000000000000000001}"),
            front.clone() + r#""payload":{"n":  1.0000000000000000000001}}"#
        );
        assert_eq!(line(b"\xff"), front + r#""payload_base64":"/w=="}"#);
    }

    #[test]
    fn outcomes_have_names() {
        let at = Some((SplitId::numbered("t", 0), Offset(0)));
        let names = [(false, [at, at]), (true, [at, at]), (false, [at, None])].map(|(late, at)| outcome(late, &at));
        assert_eq!(names, ["joined", "joined_late", "given_up"]);
    }
}
