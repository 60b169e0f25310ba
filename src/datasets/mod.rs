//! Datasets: files of records as topics of brokers hold them, made by a program, with the answer that is expected.
//!
//! ```text
//!  options --> schedule (which records, when) --> shape (the line of a record) --> TOPIC-pN.jsonl
//!                                                                                       |
//!                             expected/ <-- answer (knows nothing of all this) <--------+
//! ```
//!
//! The same options make the same bytes on every machine. The bundled sets in `datasets/` are made by [`BUNDLED`].

mod clickstream;
mod expected;
mod fasten;
mod json;
mod line;
mod options;
mod orders;
mod random;
mod schedule;
mod shape;
mod telemetry;
#[cfg(test)]
mod tests;
mod write;

use std::io::Write;

pub use expected::{Question, Side, Totals, answer};

use crate::error::{Error, ErrorKind, Result};

/// The arguments of `syncline datasets` that make the bundled sets; `--out datasets/NAME` belongs to each.
pub const BUNDLED: [&str; 4] = [
    "make fasten --keys 2000 --seed 1 --partitions 2 --payload 360 --rate 10 --window 60s --gap 20s --disorder 5s \
     --late 0.03 --bad 0.02 --skew 0.2 --ambiguous 0.02",
    "make orders --keys 1000 --seed 2 --partitions 2 --rate 5 --window 60s --gap 20s --disorder 5s --late 0.03 --bad 0.02",
    "make clickstream --keys 1200 --seed 3 --partitions 3 --rate 5 --window 60s --gap 20s --disorder 5s --late 0.03 \
     --bad 0.02",
    "make telemetry --keys 1200 --seed 4 --rate 5 --window 60s --gap 20s --disorder 5s --late 0.03 --bad 0.02",
];

/// Runs `syncline datasets ARGS`: `list`, or `make NAME --option value ...`; text goes to `out`.
///
/// # Errors
/// `Config` with every problem of the arguments, one a line; `Write` and `Read` as files go wrong.
pub fn run(args: &[String], out: &mut dyn Write) -> Result<()> {
    let text = match args.split_first() {
        _ if args.iter().any(|arg| arg == "--help") => help(),
        Some((command, [])) if command == "list" => list(),
        Some((command, rest)) if command == "make" => make(rest)?,
        Some((command, rest)) if command == "list" => {
            let problem = format!("datasets list takes no arguments: {} is too much", rest.join(" "));
            return Err(Error::new(ErrorKind::Config, problem));
        }
        Some((command, _)) => {
            let close = options::suggestion(command, "", ["list", "make"].into_iter());
            return Err(Error::new(ErrorKind::Config, format!("datasets {command:?} is unknown{close}\n{}", help())));
        }
        None => return Err(Error::new(ErrorKind::Config, format!("datasets: list or make?\n{}", help()))),
    };
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Error::new(ErrorKind::Write, "the result cannot be printed").with_source(error))
}

fn help() -> String {
    format!(
        "usage: syncline datasets list\n       syncline datasets make NAME --out DIR [OPTION VALUE]...\n\nNAME is one of {}.\n\n{}",
        shape::names().join(", "),
        options::help()
    )
}

fn list() -> String {
    let mut text = String::new();
    for shape in shape::ALL {
        text += &format!("{:<12} {}\n", shape.name(), shape.about());
        for topic in shape.topics() {
            text += &format!("{:<12}   {:<21} {} at {}\n", "", topic.name, topic.keys.join(","), topic.timestamp);
        }
    }
    text + "\nEach topic is shown with its key fields and its event time. Make one: syncline datasets make NAME --out DIR\n"
}

fn make(args: &[String]) -> Result<String> {
    let (shape, options) = options::parse(args)?;
    let write::Written { records, bytes, files } = write::write(shape, &options)?;
    let dir = &options.out;
    let mut text = format!("{}: {records} records, {bytes} bytes, {files} files in {}\n", shape.name(), dir.display());
    for kept in shape.answers().iter().filter(|_| options.expected) {
        let sides = kept.topics.iter().map(|topic| {
            let topic = &shape.topics()[*topic];
            Side {
                topic: topic.name.into(),
                keys: topic.keys.iter().map(|path| path.to_string()).collect(),
                timestamp: topic.timestamp.into(),
                version: topic.version.into(),
            }
        });
        let question = Question {
            sides: sides.collect(),
            window_ms: options.window_ms,
            disorder_ms: options.disorder_ms,
            remember_ms: 10 * options.window_ms,
        };
        let totals = answer(dir, &question, &dir.join(kept.folder))?;
        let bad: u64 = totals.bad.values().flat_map(|reasons| reasons.values()).sum();
        text += &format!(
            "{}: {} keys joined ({} of them possibly late), {} delayed, {bad} bad records\n",
            kept.folder, totals.joined, totals.maybe_late, totals.delayed
        );
    }
    Ok(text)
}
