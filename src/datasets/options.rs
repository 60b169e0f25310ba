//! What can be said about a dataset on the command line, in one table.

use std::path::PathBuf;

use jiff::SignedDuration;

use super::shape::{self, Shape};
use crate::error::{Error, Result};

/// How a dataset is made. The same options and the same version of this crate make the same bytes on every machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Options {
    /// The folder that gets the files.
    pub out: PathBuf,
    /// Lines over all topics, if they are limited.
    pub records: Option<u64>,
    /// Keys, if they are limited.
    pub keys: Option<u64>,
    /// Decides everything that looks random.
    pub seed: u64,
    /// Bytes of the payload part of a record, about.
    pub payload: usize,
    /// Files for each topic.
    pub partitions: u32,
    /// New keys for each second of event time.
    pub rate: f64,
    /// Time of the first key, in milliseconds since the Unix epoch.
    pub start_ms: u64,
    /// The largest distance between the records of a key that is on time, in milliseconds.
    pub gap_ms: u64,
    /// How far a line's time is behind the newest time above it in its file, in milliseconds, at most.
    pub disorder_ms: u64,
    /// The window of the job that the dataset is made for, in milliseconds: late partners are late against it.
    pub window_ms: u64,
    /// Share of the records that get a newer record of the same key and topic.
    pub duplicates: f64,
    /// Share of those newer records that belong to hot keys (one key of every 1,000).
    pub skew: f64,
    /// Share of the keys, for each topic, that have no record in it.
    pub unmatched: f64,
    /// Share of the keys with one record that comes after the window.
    pub late: f64,
    /// Share of the records that are followed by a bad line.
    pub bad: f64,
    /// Share of the keys whose printed form is also that of another key.
    pub ambiguous: f64,
    /// Whether the expected answer is computed.
    pub expected: bool,
}

/// One option: its name, what its value is, its meaning with unit and default, and how a value is taken in.
struct Entry {
    name: &'static str,
    value: &'static str,
    help: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
}

/// Lines and keys of one dataset: all of them are planned in memory, 32 bytes each.
const MAX_RECORDS: u64 = 1_000_000_000;
/// Bytes of a payload: what the FASTEN job lets a record have.
const MAX_PAYLOAD: u64 = 50_000_000;
/// The year 5138, so that no time of a dataset needs a fifth digit for its year.
const MAX_START: u64 = 100_000_000_000_000;
/// 366 days in milliseconds.
const MAX_DURATION: u64 = 366 * 86_400_000;

const TABLE: [Entry; 18] = [
    Entry {
        name: "out",
        value: "DIR",
        help: "folder that gets the files (required)",
        set: |o, v| keep(&mut o.out, Ok(v.into())),
    },
    Entry {
        name: "records",
        value: "N",
        help: "lines over all topics (10000, unless --keys is given)",
        set: |o, v| keep(&mut o.records, count(v, MAX_RECORDS).map(Some)),
    },
    Entry {
        name: "keys",
        value: "N",
        help: "keys; with --records the first limit counts",
        set: |o, v| keep(&mut o.keys, count(v, MAX_RECORDS).map(Some)),
    },
    Entry {
        name: "seed",
        value: "S",
        help: "decides everything random (42)",
        set: |o, v| keep(&mut o.seed, whole(v, u64::MAX)),
    },
    Entry {
        name: "payload",
        value: "BYTES",
        help: "size of the payload part of a record, about (by shape)",
        set: |o, v| keep(&mut o.payload, whole(v, MAX_PAYLOAD).map(|bytes| bytes as usize)),
    },
    Entry {
        name: "partitions",
        value: "N",
        help: "files of each topic, at most 1000 (1)",
        set: |o, v| keep(&mut o.partitions, count(v, 1_000).map(|number| number as u32)),
    },
    Entry {
        name: "rate",
        value: "KEYS",
        help: "new keys for each second of event time (500)",
        set: |o, v| {
            let rate = v.parse::<f64>().ok().filter(|rate| (1e-3..=1e6).contains(rate));
            keep(&mut o.rate, rate.ok_or_else(|| "a number from 0.001 to 1000000".into()))
        },
    },
    Entry {
        name: "start",
        value: "MS",
        help: "time of the first key, ms since the Unix epoch (1600000000000)",
        set: |o, v| keep(&mut o.start_ms, whole(v, MAX_START)),
    },
    Entry {
        name: "gap",
        value: "DUR",
        help: "largest distance between the records of a key that is on time (120s)",
        set: |o, v| keep(&mut o.gap_ms, duration(v)),
    },
    Entry {
        name: "disorder",
        value: "DUR",
        help: "how far a line's time is behind the newest above it, at most (10s)",
        set: |o, v| keep(&mut o.disorder_ms, duration(v)),
    },
    Entry {
        name: "window",
        value: "DUR",
        help: "window of the job the dataset is made for (300s)",
        set: |o, v| keep(&mut o.window_ms, duration(v)),
    },
    Entry {
        name: "duplicates",
        value: "SHARE",
        help: "records that get a newer one of the same key and topic (0.02)",
        set: |o, v| keep(&mut o.duplicates, share(v)),
    },
    Entry {
        name: "skew",
        value: "SHARE",
        help: "part of those that goes to hot keys, one key of 1000 (0)",
        set: |o, v| keep(&mut o.skew, share(v)),
    },
    Entry {
        name: "unmatched",
        value: "SHARE",
        help: "keys without a record in a topic, for each topic (0.05)",
        set: |o, v| keep(&mut o.unmatched, share(v)),
    },
    Entry {
        name: "late",
        value: "SHARE",
        help: "keys with one record that comes after the window (0)",
        set: |o, v| keep(&mut o.late, share(v)),
    },
    Entry {
        name: "bad",
        value: "SHARE",
        help: "bad lines, as a share of the records (0)",
        set: |o, v| keep(&mut o.bad, share(v)),
    },
    Entry {
        name: "ambiguous",
        value: "SHARE",
        help: "keys whose printed form is that of another key; fasten only (0)",
        set: |o, v| keep(&mut o.ambiguous, share(v)),
    },
    Entry {
        name: "expected",
        value: "true|false",
        help: "whether to compute the expected answer (true)",
        set: |o, v| keep(&mut o.expected, v.parse().map_err(|_| "true or false".into())),
    },
];

fn keep<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn whole(text: &str, most: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("a whole number, at most {most}"))
}

fn count(text: &str, most: u64) -> Result<u64, String> {
    whole(text, most).ok().filter(|number| *number > 0).ok_or_else(|| format!("a whole number from 1 to {most}"))
}

fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "a share from 0 to 1, such as 0.05".into())
}

fn duration(text: &str) -> Result<u64, String> {
    let wanted = "a duration, such as 250ms, 10s, 3m or PT3M";
    let read = text.parse::<SignedDuration>().map_err(|_| wanted.to_string())?;
    let ms = u64::try_from(read.as_millis()).map_err(|_| wanted.to_string())?;
    if ms <= MAX_DURATION { Ok(ms) } else { Err("a duration of at most 366 days".into()) }
}

/// The closest of the known names, as a question to the user.
pub(super) fn suggestion<'a>(word: &str, dashes: &str, known: impl Iterator<Item = &'a str>) -> String {
    let closest = known.map(|name| (strsim::jaro_winkler(word, name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    match closest {
        Some((likeness, name)) if likeness > 0.8 => format!("; did you mean {dashes}{name}?"),
        _ => String::new(),
    }
}

/// Reads `NAME --option value ...`.
///
/// # Errors
/// `Config`, with every problem on a line of its own.
pub(super) fn parse(args: &[String]) -> Result<(&'static dyn Shape, Options)> {
    let mut problems = vec![];
    let mut names = vec![];
    let mut given: Vec<(&Entry, &str)> = vec![];
    let mut args = args.iter().map(String::as_str).peekable();
    while let Some(arg) = args.next() {
        let Some(option) = arg.strip_prefix("--") else {
            names.push(arg);
            continue;
        };
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let Some(entry) = TABLE.iter().find(|entry| entry.name == name) else {
            let close = suggestion(name, "--", TABLE.iter().map(|entry| entry.name));
            problems.push(format!("--{name} is not an option of datasets make{close}"));
            if value.is_none() {
                args.next_if(|arg| !arg.starts_with("--")); // its value
            }
            continue;
        };
        if given.iter().any(|(other, _)| other.name == name) {
            problems.push(format!("--{name} is given twice"));
        }
        match value.or_else(|| args.next_if(|arg| !arg.starts_with("--"))) {
            Some(value) => given.push((entry, value)),
            None => problems.push(format!("--{name} needs a value: --{name} {}", entry.value)),
        }
    }
    let shape = match names.as_slice() {
        [name] => shape::find(name),
        _ => None,
    };
    match names.as_slice() {
        [] => problems.push(format!("which dataset? one of {}", shape::names().join(", "))),
        [name] if shape.is_none() => {
            let close = suggestion(name, "", shape::names().into_iter());
            let pause = if close.is_empty() { "; " } else { " " };
            problems.push(format!("dataset {name:?} is unknown{close}{pause}known are {}", shape::names().join(", ")));
        }
        [_] => {}
        [_, others @ ..] => problems.push(format!("one dataset at a time: {} is too much", others.join(" "))),
    }
    let shape = shape.unwrap_or(shape::ALL[0]);
    let mut options = Options::new(shape.payload());
    for (entry, value) in &given {
        if let Err(wanted) = (entry.set)(&mut options, value) {
            problems.push(format!("--{} {value:?} is not {wanted}", entry.name));
        }
    }
    if options.records.is_none() && options.keys.is_none() {
        options.records = Some(10_000);
    }
    if options.out.as_os_str().is_empty() {
        problems.push("--out is missing: --out DIR, the folder that gets the files".into());
    }
    if problems.is_empty() {
        problems = options.problems(shape);
    }
    if problems.is_empty() { Ok((shape, options)) } else { Err(Error::config(&problems)) }
}

impl Options {
    fn new(payload: usize) -> Self {
        Options {
            out: PathBuf::new(),
            records: None,
            keys: None,
            seed: 42,
            payload,
            partitions: 1,
            rate: 500.0,
            start_ms: 1_600_000_000_000,
            gap_ms: 120_000,
            disorder_ms: 10_000,
            window_ms: 300_000,
            duplicates: 0.02,
            skew: 0.0,
            unmatched: 0.05,
            late: 0.0,
            bad: 0.0,
            ambiguous: 0.0,
            expected: true,
        }
    }

    /// The newest distance of a duplicate from its record is below this: far from the window, so that it is never late.
    pub(super) fn reach_ms(&self) -> u64 {
        self.window_ms / 3
    }

    /// What contradicts what. The answer has to be the same however a job interleaves the files; these rules see to it.
    fn problems(&self, shape: &dyn Shape) -> Vec<String> {
        let mut problems = vec![];
        if self.gap_ms + self.disorder_ms + self.reach_ms() >= self.window_ms {
            problems.push(format!(
                "--gap {}ms and --disorder {}ms together must stay below two thirds of --window {}ms, \
                 else whether a key is on time depends on how the files are interleaved",
                self.gap_ms, self.disorder_ms, self.window_ms
            ));
        } else if self.disorder_ms + 1_000 >= self.reach_ms() {
            problems.push(format!(
                "--disorder {}ms plus one second must stay below a third of --window {}ms, \
                 else a duplicate may come before the record it replaces",
                self.disorder_ms, self.window_ms
            ));
        }
        let shares = self.unmatched * shape.topics().len() as f64 + self.late;
        if shares > 1.0 {
            problems.push(format!(
                "--unmatched {} for each of {} topics and --late {} make more than all keys",
                self.unmatched,
                shape.topics().len(),
                self.late
            ));
        }
        if self.ambiguous > 0.0 && !shape.has_ambiguous_keys() {
            problems.push(format!("--ambiguous: keys of {} cannot be ambiguous, those of fasten can", shape.name()));
        }
        problems
    }
}

/// The options, one a line.
pub(super) fn help() -> String {
    let lines =
        TABLE.iter().map(|entry| format!("  {:<22}{}\n", format!("--{} {}", entry.name, entry.value), entry.help));
    lines.collect()
}
