//! The answer that a correct synchronization gives, straight from the files of a dataset.
//!
//! It shares nothing with the code that made the files, and nothing with the code that joins: it reads every line, groups
//! by key in a plain map, and says what every correct job must give with default rules (`--duplicates last`,
//! `--late join`, delays enabled, everything read to its end), however it interleaves the files, with any number of
//! workers, with the clock `event` (`--max_disorder` at least that of the dataset) or `auto`.
//!
//! Why that is possible. A file's clock never passes the time of a record it still has to give, so two records that are
//! less than a window minus the disorder apart always meet in time. Where records are further apart whether the key was
//! delayed first depends on which file is read faster: such a key is joined in the end, and marked late if and only if it
//! was delayed. Where even that is not sure, there is no answer, and that is an error.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::json::{Found, Json};
use crate::error::{Error, ErrorKind, Result};

/// One side of the join. Paths are dotted.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// The topic: its files are `TOPIC.jsonl` and `TOPIC-pN.jsonl`.
    pub topic: String,
    /// Where the key fields are.
    pub keys: Vec<String>,
    /// Where the event time is.
    pub timestamp: String,
    /// Where a number is that tells the record from all others of its topic.
    pub version: String,
}

/// What is asked.
#[derive(Clone, Debug, Serialize)]
pub struct Question {
    /// The sides, in the order of the job.
    pub sides: Vec<Side>,
    /// The job's window, in milliseconds.
    pub window_ms: u64,
    /// How far a record may be behind the newest of its file, in milliseconds.
    pub disorder_ms: u64,
    /// How long the job remembers a finished key, in milliseconds.
    pub remember_ms: u64,
}

/// What is expected, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Lines of all files.
    pub records: u64,
    /// Lines of each topic.
    pub records_by_topic: BTreeMap<String, u64>,
    /// Bad lines of each topic, by the name of the reason.
    pub bad: BTreeMap<String, BTreeMap<&'static str, u64>>,
    /// Keys with every side.
    pub joined: u64,
    /// Those among them that may be late.
    pub maybe_late: u64,
    /// Keys without some side.
    pub delayed: u64,
    /// Good records of joined keys that are in no output, because a key is joined once.
    pub left_over: u64,
}

/// A good record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    side: u8,
    file: u16,
    /// Its line in the file.
    line: u64,
    time: u64,
    version: u64,
}

/// Reads the files of `dir` and writes `answer.json`, `joined.jsonl` and `delayed.jsonl` into `folder`.
///
/// # Errors
/// `Read` and `Write` as files go wrong; `Decode` where the answer is not one: it would depend on how files are
/// interleaved, or a good record has no version.
pub fn answer(dir: &Path, question: &Question, folder: &Path) -> Result<Totals> {
    let mut totals = Totals::default();
    let mut keys: HashMap<String, Vec<Seen>> = HashMap::new();
    let mut num_files = 0;
    for (side, spec) in question.sides.iter().enumerate() {
        let bad: &mut BTreeMap<&'static str, u64> = totals.bad.entry(spec.topic.clone()).or_default();
        let mut records = 0;
        for path in files(dir, &spec.topic)? {
            let failed = |error| Error::new(ErrorKind::Read, format!("{path:?} cannot be read")).with_source(error);
            let mut lines = BufReader::with_capacity(1 << 20, fs::File::open(&path).map_err(failed)?);
            let mut text = vec![];
            for line in 1.. {
                text.clear();
                if lines.read_until(b'\n', &mut text).map_err(failed)? == 0 {
                    break;
                }
                records += 1;
                match read(&text, spec) {
                    Ok((key, time, version)) => {
                        let version = version.ok_or_else(|| {
                            let problem = format!("line {line} of {path:?} has no whole number at {:?}", spec.version);
                            Error::new(ErrorKind::Decode, problem)
                        })?;
                        let seen = Seen { side: side as u8, file: num_files, line, time, version };
                        keys.entry(key).or_default().push(seen);
                    }
                    Err(reason) => *bad.entry(reason).or_default() += 1,
                }
            }
            num_files += 1;
        }
        totals.records += records;
        totals.records_by_topic.insert(spec.topic.clone(), records);
    }
    write(keys, question, folder, totals)
}

/// The files of a topic, in the order of their names.
fn files(dir: &Path, topic: &str) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::new(ErrorKind::Read, format!("folder {dir:?} cannot be read")).with_source(error);
    let mut files = vec![];
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(topic)?.strip_suffix(".jsonl"));
        let number = rest.and_then(|rest| rest.strip_prefix("-p"));
        if rest == Some("") || number.is_some_and(|number| number.parse::<u32>().is_ok()) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Key fields as a JSON array, time and version of a line, or why it is bad.
fn read(line: &[u8], side: &Side) -> Result<(String, u64, Option<u64>), &'static str> {
    let text = std::str::from_utf8(line).map_err(|_| "invalid_utf8")?;
    let json: Json<'_> = serde_json::from_str(text).map_err(|_| "invalid_json")?;
    if !matches!(json, Json::Object(_)) {
        return Err("not_an_object");
    }
    let mut fields: Vec<serde_json::Value> = vec![];
    for path in &side.keys {
        fields.push(match json.at(path) {
            Found::Ambiguous => return Err("key_ambiguous"),
            Found::Nothing => return Err("key_missing"),
            Found::One(Json::Null) => return Err("key_null"),
            Found::One(Json::Array(_) | Json::Object(_)) => return Err("key_not_scalar"),
            Found::One(Json::Bool(value)) => (*value).into(),
            Found::One(Json::Number(number)) => number.clone().into(),
            Found::One(Json::Text(text)) => text.as_ref().into(),
        });
    }
    let time = match json.at(&side.timestamp) {
        Found::Ambiguous => return Err("key_ambiguous"),
        Found::One(Json::Number(number)) => number.as_u64(),
        Found::One(Json::Text(text)) => {
            text.parse::<jiff::Timestamp>().ok().and_then(|time| u64::try_from(time.as_millisecond()).ok())
        }
        _ => None,
    };
    let version = match json.at(&side.version) {
        Found::One(Json::Number(number)) => number.as_u64(),
        _ => None,
    };
    Ok((serde_json::Value::from(fields).to_string(), time.ok_or("invalid_timestamp")?, version))
}

/// A line of `joined.jsonl` or `delayed.jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    /// The key fields.
    fields: &'a serde_json::Value,
    /// The printed form of the key.
    key: String,
    /// The topics without a record, for a key that is delayed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<&'a str>,
    /// Whether the joined record may be marked late, with a delay before it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    maybe_late: bool,
    /// By side: the versions that may be in the output.
    versions: Vec<Vec<u64>>,
}

fn write(keys: HashMap<String, Vec<Seen>>, question: &Question, folder: &Path, mut totals: Totals) -> Result<Totals> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Write, format!("the expected answer cannot be written to {folder:?}")).with_source(error)
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let create = |name: &str| fs::File::create(folder.join(name)).map(BufWriter::new).map_err(failed);
    let (mut joined, mut delayed) = (create("joined.jsonl")?, create("delayed.jsonl")?);
    let mut keys: Vec<(String, Vec<Seen>)> = keys.into_iter().collect();
    keys.sort_unstable();
    for (fields, seen) in &keys {
        let doubt = |why: &str| {
            Err(Error::new(
                ErrorKind::Decode,
                format!("key {fields}: {why}, so the answer depends on the interleaving"),
            ))
        };
        let (Some(oldest), Some(newest)) = (seen.iter().map(|r| r.time).min(), seen.iter().map(|r| r.time).max())
        else {
            continue;
        };
        if newest - oldest > question.remember_ms {
            return doubt("its records are further apart than the job remembers");
        }
        let on_time = newest - oldest + question.disorder_ms < question.window_ms;
        let mut versions = vec![vec![]; question.sides.len()];
        for record in seen {
            versions[usize::from(record.side)].push(record.version);
        }
        let missing: Vec<&str> = (question.sides.iter().zip(&versions))
            .filter(|(_, versions)| versions.is_empty())
            .map(|(side, _)| side.topic.as_str())
            .collect();
        let fields: serde_json::Value = serde_json::from_str(fields).map_err(|error| failed(error.into()))?;
        let mut line = Line { key: printed(&fields), fields: &fields, missing, maybe_late: false, versions };
        let file = if line.missing.is_empty() {
            totals.joined += 1;
            totals.left_over += (seen.len() - question.sides.len()) as u64;
            line.maybe_late = !on_time;
            totals.maybe_late += u64::from(line.maybe_late);
            &mut joined
        } else {
            totals.delayed += 1;
            if on_time {
                // Every newer record comes before the deadline: the last line of each side counts.
                for (side, versions) in line.versions.iter_mut().enumerate() {
                    let of_side = || seen.iter().filter(move |record| usize::from(record.side) == side);
                    if of_side().any(|record| of_side().any(|other| other.file != record.file)) {
                        return doubt("its records are in several files of a topic");
                    }
                    *versions =
                        of_side().max_by_key(|record| record.line).map(|record| record.version).into_iter().collect();
                }
            } else if line.versions.iter().filter(|versions| !versions.is_empty()).count() > 1 {
                return doubt("some side is missing and the others are a window apart");
            }
            &mut delayed
        };
        serde_json::to_writer(&mut *file, &line).map_err(|error| failed(error.into()))?;
        file.write_all(b"\n").map_err(failed)?;
    }
    joined.flush().and_then(|()| delayed.flush()).map_err(failed)?;
    let answer = serde_json::json!({ "question": question, "totals": totals });
    let text = serde_json::to_string_pretty(&answer).map_err(|error| failed(error.into()))?;
    fs::write(folder.join("answer.json"), text + "\n").map_err(failed)?;
    Ok(totals)
}

/// The fields of a key with `:` between them.
fn printed(fields: &serde_json::Value) -> String {
    let fields = fields.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = fields.iter().map(|field| field.as_str().map_or_else(|| field.to_string(), str::to_string));
    texts.collect::<Vec<_>>().join(":")
}
