//! The source of a topic: its files, and where they begin and end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::listing::{Packing, lines_behind, list, path_of, text_len};
use super::reader::{FileCommitter, FileReader};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Offset, Offsets, Split, SplitId};
use crate::source::{Assignment, Committer, Discovery, Otherwise, Position, Reader, Replay, Source};

/// How often new files are looked for, if nothing else is said.
const DISCOVERY: Duration = Duration::from_secs(1);

pub(super) struct FileSource {
    name: String,
    folder: PathBuf,
    topic: String,
    /// Every split that was ever found, by number. A file that is gone stays listed: its reader finds out and says so, where a
    /// split that is removed would be forgotten with what was not read of it.
    known: BTreeMap<u32, Split>,
    discovery: Discovery,
}

impl FileSource {
    pub fn new(folder: &str, topic: &str, discovery: Discovery) -> Self {
        FileSource {
            name: format!("file:{folder}/{topic}"),
            folder: folder.into(),
            topic: topic.into(),
            known: BTreeMap::new(),
            discovery,
        }
    }
}

impl Source for FileSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn splits(&mut self) -> Result<Vec<Split>> {
        for found in list(&self.folder, &self.topic)? {
            let id = SplitId::numbered(&self.topic, found.number);
            let known = self.known.entry(found.number).or_insert_with(|| Split {
                id,
                ordinal: found.number,
                name: found.name.clone(),
            });
            if known.name != found.name {
                let text = format!(
                    "file {:?} took the place of {:?} as split {} of {:?}: give each file a number of its own",
                    found.name, known.name, found.number, self.name
                );
                return Err(Error::new(ErrorKind::OffsetLost, text));
            }
        }
        Ok(self.known.values().cloned().collect())
    }

    fn discovery(&self) -> Option<Duration> {
        self.discovery.every(DISCOVERY)
    }

    fn resolve(&mut self, position: &Position, splits: &[Split]) -> Result<Offsets> {
        let resolve = |split: &Split| match position {
            Position::Earliest | Position::Committed { otherwise: Otherwise::Earliest } => Ok((split.id, Offset(0))),
            Position::Latest | Position::Committed { otherwise: Otherwise::Latest } => {
                Ok((split.id, Offset(text_len(&path_of(&self.folder, &split.name))?)))
            }
            Position::Exact(offsets) => Ok((split.id, offsets.get(&split.name).copied().unwrap_or_default())),
            Position::Timestamp(_) => Err(Error::new(
                ErrorKind::Config,
                format!("{:?} cannot be read from a time: lines of files have no timestamps of their own", self.name),
            )),
        };
        splits.iter().map(resolve).collect()
    }

    fn open(&mut self, assignments: &[Assignment]) -> Result<(Box<dyn Reader>, Box<dyn Committer>)> {
        Ok((Box::new(FileReader::open(self.folder.clone(), assignments)?), Box::new(FileCommitter)))
    }

    fn replay(&self) -> Replay {
        Replay::Seek
    }

    fn backlog(&mut self, from: &Offsets) -> Result<Option<u64>> {
        let mut lines = 0;
        for found in list(&self.folder, &self.topic)? {
            if let Some(offset) = from.get(&SplitId::numbered(&self.topic, found.number)) {
                if Packing::of(&found.name) != Packing::Plain {
                    return Ok(None); // to count it would be to unpack it
                }
                lines += lines_behind(&path_of(&self.folder, &found.name), offset.0)?;
            }
        }
        Ok(Some(lines))
    }
}
