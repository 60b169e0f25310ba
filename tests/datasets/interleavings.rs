//! That the expected answers of the bundled sets hold however their files are interleaved.
//!
//! A job written from the rules alone (design of the synchronization, `--clock event`) reads the files at random speeds, in
//! epochs of random sizes, and its outputs are compared with the expected answer. Would catch: a dataset or an answer that
//! holds for some jobs only.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

struct Record {
    time: u64,
    side: usize,
    key: String,
    version: u64,
}

struct Question {
    num_sides: usize,
    window: u64,
    disorder: u64,
    remember: u64,
}

/// What is known of a key: `slots` hold deadline and version by side.
enum State {
    Waiting(Vec<Option<(u64, u64)>>),
    Delayed(Vec<Option<(u64, u64)>>, u64),
    Done(u64),
}

#[derive(Default)]
struct Outputs {
    joined: Vec<(String, Vec<u64>, bool)>,
    delayed: Vec<(String, Vec<Option<u64>>)>,
}

fn at<'v>(value: &'v Value, path: &Value) -> Option<&'v Value> {
    value.pointer(&format!("/{}", path.as_str()?.replace('.', "/")))
}

/// The good records of every file of the dataset.
fn load(dir: &Path, sides: &[Value]) -> Vec<Vec<Record>> {
    let mut splits = vec![];
    for (path, bytes) in super::tree(dir) {
        let Some(side) = sides.iter().position(|side| {
            let name = path.to_str().unwrap();
            name.strip_prefix(side["topic"].as_str().unwrap()).is_some_and(|rest| rest.starts_with("-p"))
        }) else {
            continue;
        };
        let good = |line: &[u8]| -> Option<Record> {
            let text = std::str::from_utf8(line).ok()?;
            let value: Value = serde_json::from_str(text).ok()?;
            if text.contains(":\"first\",") {
                return None; // how the generator writes a member twice
            }
            let fields = sides[side]["keys"].as_array()?.iter().map(|path| at(&value, path).cloned());
            let fields: Vec<Value> = fields.collect::<Option<_>>()?;
            if fields.iter().any(|field| field.is_null() || field.is_array() || field.is_object()) {
                return None;
            }
            let time = match at(&value, &sides[side]["timestamp"])? {
                Value::Number(number) => number.as_u64()?,
                Value::String(text) => text.parse::<jiff::Timestamp>().ok()?.as_millisecond() as u64,
                _ => return None,
            };
            let version = at(&value, &sides[side]["version"])?.as_u64()?;
            Some(Record { time, side, key: Value::from(fields).to_string(), version })
        };
        splits.push(bytes.split(|byte| *byte == b'\n').filter_map(good).collect());
    }
    splits
}

/// One run, at the speeds that `random` gives.
fn play(splits: &[Vec<Record>], question: &Question, random: &mut impl FnMut(u64) -> u64) -> Outputs {
    let mut outputs = Outputs::default();
    let mut states: BTreeMap<String, State> = BTreeMap::new();
    let mut next = vec![0; splits.len()];
    let mut times = vec![0; splits.len()];
    let mut clock = 0;
    let longest = 1 + random(60);
    loop {
        // The arrivals of this epoch: of each side, its winner.
        let mut arrivals: BTreeMap<&str, Vec<Option<&Record>>> = BTreeMap::new();
        for (split, records) in splits.iter().enumerate() {
            let count = (random(longest + 1) * random(3)) as usize;
            let read = &records[next[split]..records.len().min(next[split] + count)];
            next[split] += read.len();
            for record in read {
                times[split] = times[split].max(record.time - question.disorder);
                // A key is in one file of each topic, so the later line wins.
                arrivals.entry(&record.key).or_insert_with(|| vec![None; question.num_sides])[record.side] =
                    Some(record);
            }
        }
        let open = |split: &usize| next[*split] < splits[*split].len();
        let end = !(0..splits.len()).any(|split| open(&split));
        clock = clock.max((0..splits.len()).filter(open).map(|split| times[split]).min().unwrap_or(clock));

        for (key, winners) in arrivals {
            let state = states.remove(key).unwrap_or(State::Waiting(vec![None; question.num_sides]));
            let (mut slots, delayed) = match state {
                State::Done(until) => {
                    states.insert(key.into(), State::Done(until));
                    continue;
                }
                State::Waiting(slots) => (slots, None),
                State::Delayed(slots, until) => (slots, Some(until)),
            };
            let mut newest = 0;
            for record in winners.into_iter().flatten() {
                newest = newest.max(record.time);
                slots[record.side] = Some(((record.time + question.window).max(clock), record.version));
            }
            let state = if slots.iter().all(Option::is_some) {
                let versions = slots.iter().flatten().map(|slot| slot.1).collect();
                outputs.joined.push((key.into(), versions, delayed.is_some()));
                // From the record's own time, where the clock is still behind it: at the start it stands at 0.
                State::Done(clock.max(newest) + question.remember)
            } else if let Some(until) = delayed {
                State::Delayed(slots, until)
            } else {
                State::Waiting(slots)
            };
            states.insert(key.into(), state);
        }
        let mut expired = vec![];
        for (key, state) in &mut states {
            match state {
                State::Waiting(slots) => {
                    if end || slots.iter().flatten().any(|slot| slot.0 < clock) {
                        let versions = slots.iter().map(|slot| slot.map(|slot| slot.1)).collect();
                        outputs.delayed.push((key.clone(), versions));
                        *state = State::Delayed(std::mem::take(slots), clock + question.remember);
                    }
                }
                State::Delayed(_, until) | State::Done(until) => {
                    if *until < clock {
                        expired.push(key.clone());
                    }
                }
            }
        }
        expired.iter().for_each(|key| drop(states.remove(key)));
        if end {
            return outputs;
        }
    }
}

/// What is wrong with the outputs, if anything.
fn compare(outputs: &Outputs, folder: &Path) -> Result<(), String> {
    let read = |name: &str| -> BTreeMap<String, Value> {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| (line["fields"].to_string(), line)).collect()
    };
    let (joined, delayed) = (read("joined.jsonl"), read("delayed.jsonl"));
    let allowed =
        |line: &Value, side: usize, version: u64| line["versions"][side].as_array().unwrap().contains(&version.into());
    let mut delays: BTreeMap<&str, u32> = BTreeMap::new();
    for (key, versions) in &outputs.delayed {
        *delays.entry(key).or_default() += 1;
        let line = delayed.get(key).or_else(|| joined.get(key).filter(|line| line["maybe_late"] == true));
        let line = line.ok_or_else(|| format!("{key} is delayed"))?;
        for (side, version) in versions.iter().enumerate() {
            let missing = line["versions"][side].as_array().unwrap().is_empty();
            let right = match version {
                Some(version) => allowed(line, side, *version),
                None => missing || line["maybe_late"] == true,
            };
            if !right {
                return Err(format!("{key} is delayed with {versions:?}, and {line} is expected"));
            }
        }
    }
    let mut joins: BTreeMap<&str, bool> = BTreeMap::new();
    for (key, versions, late) in &outputs.joined {
        let line = joined.get(key).ok_or_else(|| format!("{key} is joined"))?;
        if !versions.iter().enumerate().all(|(side, version)| allowed(line, side, *version)) {
            return Err(format!("{key} is joined with {versions:?}, and {line} is expected"));
        }
        if joins.insert(key, *late).is_some() || *late != delays.contains_key(key.as_str()) {
            return Err(format!("{key} is joined twice, or marked late wrongly"));
        }
    }
    let late = joins.values().filter(|late| **late).count();
    if joins.len() != joined.len() || delays.len() != delayed.len() + late || delays.values().any(|times| *times > 1) {
        return Err(format!("{} joined and {} delayed keys, some of them twice", joins.len(), delays.len()));
    }
    Ok(())
}

#[test]
fn expected_answers_hold_for_every_interleaving() {
    let bundled = super::root().join("datasets");
    let mut late = [0, 0];
    for set in [
        "fasten/expected",
        "orders/expected",
        "orders/expected-orders-payments",
        "clickstream/expected",
        "telemetry/expected",
    ] {
        let folder = bundled.join(set);
        let answer: Value = serde_json::from_slice(&fs::read(folder.join("answer.json")).unwrap()).unwrap();
        let number = |name: &str| answer["question"][name].as_u64().unwrap();
        let sides = answer["question"]["sides"].as_array().unwrap();
        let question = Question {
            num_sides: sides.len(),
            window: number("window_ms"),
            disorder: number("disorder_ms"),
            remember: number("remember_ms"),
        };
        let splits = load(folder.parent().unwrap(), sides);
        for seed in 0..20u64 {
            let mut state = seed;
            let mut random = |bound: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % bound
            };
            let outputs = play(&splits, &question, &mut random);
            late[seed as usize % 2] += outputs.joined.iter().filter(|joined| joined.2).count();
            if let Err(problem) = compare(&outputs, &folder) {
                panic!("{set}, seed {seed}: {problem}");
            }
        }
    }
    assert!(late[0] > 0 && late[1] > 0, "some keys are late: {late:?}");
}
