//! Writes a dataset: `TOPIC-pN.jsonl` for each topic and partition, lines in the order of arrival.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use super::line::Line;
use super::options::Options;
use super::random::mix;
use super::schedule::{base, schedule};
use super::shape::{Record, Shape};
use crate::error::{Error, ErrorKind, Result};

/// A file is written in pieces of so many bytes: larger ones gain nothing.
const PIECE_BYTES: usize = 1 << 20;

/// How much was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    /// Lines.
    pub records: u64,
    /// Bytes.
    pub bytes: u64,
    /// Files.
    pub files: usize,
}

struct Output {
    path: PathBuf,
    file: fs::File,
    buffer: Vec<u8>,
}

impl Output {
    fn flush(&mut self) -> Result<u64> {
        let failed =
            |error| Error::new(ErrorKind::Write, format!("{:?} cannot be written", self.path)).with_source(error);
        self.file.write_all(&self.buffer).map_err(failed)?;
        let bytes = self.buffer.len() as u64;
        self.buffer.clear();
        Ok(bytes)
    }
}

/// Makes the files of a dataset in `options.out`.
///
/// # Errors
/// `Config` if the folder holds files of these topics already, which a reader would take as further partitions; `Write`.
pub(super) fn write(shape: &dyn Shape, options: &Options) -> Result<Written> {
    let dir = &options.out;
    let failed = |error| Error::new(ErrorKind::Write, format!("folder {dir:?} cannot be written")).with_source(error);
    fs::create_dir_all(dir).map_err(failed)?;
    for entry in fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_string_lossy();
        if shape.topics().iter().any(|topic| name.starts_with(topic.name)) {
            let problem = format!("folder {dir:?} holds {name:?} already: choose another --out, or remove it");
            return Err(Error::new(ErrorKind::Config, problem));
        }
    }
    let mut outputs = vec![];
    for topic in shape.topics() {
        for partition in 0..options.partitions {
            let path = dir.join(format!("{}-p{partition}.jsonl", topic.name));
            let file = fs::File::create_new(&path).map_err(failed)?;
            outputs.push(Output { path, file, buffer: vec![] });
        }
    }
    let fields: Vec<usize> = shape.topics().iter().map(|topic| topic.keys.len()).collect();
    let mut writer = shape.writer(options);
    let mut written = Written { files: outputs.len(), ..Written::default() };
    for event in schedule(&fields, options) {
        let topic = usize::from(event.topic);
        // A key is always in the same partition of a topic, as in a keyed topic of a broker.
        let partition = mix(mix(event.key)) % u64::from(options.partitions);
        let output = &mut outputs[topic * options.partitions as usize + partition as usize];
        let record = Record {
            topic,
            key: event.key,
            hash: mix(event.key ^ mix(options.seed)),
            base: base(event.key, options),
            time: event.time,
            version: written.records,
        };
        let mut line = Line::begin(&mut output.buffer, event.fault, usize::from(event.damaged));
        writer.write(&record, &mut line);
        line.end();
        written.records += 1;
        if output.buffer.len() >= PIECE_BYTES {
            written.bytes += output.flush()?;
        }
    }
    for output in &mut outputs {
        written.bytes += output.flush()?;
    }
    Ok(written)
}
