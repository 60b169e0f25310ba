//! The join of the FASTEN shape as one writes it by hand: serde_json into borrowed structs, a hash map by the printed key, a heap
//! of deadlines. What it leaves out: all options, late joins, forgetting (its map only grows), bad records, accounting.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Coordinate<'a> {
    #[serde(borrow, rename = "groupId")]
    group: Cow<'a, str>,
    #[serde(borrow, rename = "artifactId")]
    artifact: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Inner<'a> {
    #[serde(borrow)]
    input: Coordinate<'a>,
}

#[derive(Deserialize)]
struct Outer<'a> {
    #[serde(borrow)]
    input: Inner<'a>,
}

#[derive(Deserialize)]
struct One<'a> {
    timestamp: u64,
    #[serde(borrow)]
    input: Inner<'a>,
}

#[derive(Deserialize)]
struct Two<'a> {
    timestamp: u64,
    #[serde(borrow)]
    input: Outer<'a>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) key: String,
    side: u8,
    pub(crate) time: u64,
    line: Vec<u8>,
}

/// Reads a record of side 0 or 1.
pub(crate) fn parse(side: u8, line: &[u8]) -> Record {
    let (time, coordinate) = if side == 0 {
        let value: One<'_> = serde_json::from_slice(line).expect("a good record");
        (value.timestamp, value.input.input)
    } else {
        let value: Two<'_> = serde_json::from_slice(line).expect("a good record");
        (value.timestamp, value.input.input.input)
    };
    let key = format!("{}:{}:{}", coordinate.group, coordinate.artifact, coordinate.version);
    Record { key, side, time, line: line.to_vec() }
}

/// What is known of a key.
enum State {
    Waiting { side: u8, time: u64, line: Vec<u8> },
    Done,
}

/// Where documents go, in parts.
pub(crate) trait Output {
    fn joined(&mut self, key: &str, parts: &[&[u8]]);
    fn delayed(&mut self, key: &str, parts: &[&[u8]]);
}

/// The state of a worker.
pub(crate) struct Join<O> {
    states: HashMap<String, State>,
    timers: BinaryHeap<Reverse<(u64, String)>>,
    pub(crate) output: O,
    window: u64,
    json_key: Vec<u8>,
}

/// The key as a JSON string, in memory that is used again.
fn quoted<'a>(buffer: &'a mut Vec<u8>, key: &str) -> &'a [u8] {
    buffer.clear();
    serde_json::to_writer(&mut *buffer, key).expect("memory takes everything");
    buffer
}

impl<O: Output> Join<O> {
    /// A join with a window in milliseconds.
    pub(crate) fn new(output: O, window: u64) -> Self {
        Join { states: HashMap::new(), timers: BinaryHeap::new(), output, window, json_key: Vec::new() }
    }

    pub(crate) fn arrive(&mut self, Record { key, side, time, line }: Record) {
        match self.states.get_mut(&key) {
            None => {
                self.timers.push(Reverse((time + self.window, key.clone())));
                self.states.insert(key, State::Waiting { side, time, line });
            }
            Some(State::Done) => {}
            Some(State::Waiting { side: waits, time: old, line: waiting }) if *waits == side => {
                (*old, *waiting) = (time, line);
                self.timers.push(Reverse((time + self.window, key)));
            }
            Some(state) => {
                if let State::Waiting { line: waiting, .. } = std::mem::replace(state, State::Done) {
                    let (one, two) = if side == 1 { (&waiting, &line) } else { (&line, &waiting) };
                    let json_key = quoted(&mut self.json_key, &key);
                    self.output.joined(&key, &[b"{\"key\":", json_key, b",\"one\":", one, b",\"two\":", two, b"}"]);
                }
            }
        }
    }

    /// Gives up what was due before `now`.
    pub(crate) fn expire(&mut self, now: u64) {
        while self.timers.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            let Some(Reverse((due, key))) = self.timers.pop() else { return };
            if let Some(State::Waiting { side, time, line }) = self.states.get(&key)
                && time + self.window == due
            {
                let middle: &[u8] = match side {
                    0 => b",\"error\":\"Missing information from two.\",\"one\":",
                    _ => b",\"error\":\"Missing information from one.\",\"two\":",
                };
                let json_key = quoted(&mut self.json_key, &key);
                self.output.delayed(&key, &[b"{\"key\":", json_key, middle, line, b"}"]);
            }
        }
    }
}
