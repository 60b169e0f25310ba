//! The sink: one file of JSON lines per output and slot.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::check_name;
use super::output::{BLOCK, OutputFile, Place, failed, put_places, take_places};
use crate::broker::outbox;
use crate::checkpoint::Disk;
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{Entity, Guarantee, OutputRecord, Prepared, Sink, Stored, Undelivered, Writer, WriterContext};

pub(super) struct FileSink {
    disk: Arc<dyn Disk>,
    name: String,
    folder: PathBuf,
}

impl FileSink {
    pub fn new(disk: Arc<dyn Disk>, folder: &str) -> Self {
        FileSink { disk, name: format!("file:{folder}"), folder: folder.into() }
    }
}

impl Sink for FileSink {
    fn name(&self) -> &str {
        &self.name
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::AtLeastOnce
    }

    fn open(&mut self, context: &WriterContext) -> Result<Box<dyn Writer>> {
        Ok(Box::new(self.open_writer(context)?))
    }
}

impl FileSink {
    fn open_writer(&self, context: &WriterContext) -> Result<FileWriter> {
        let twice = |(index, name): (usize, &String)| {
            let again = context.entities[..index].contains(name);
            again.then(|| format!("two outputs of {:?} are both named {name:?}: give them different names", self.name))
        };
        let mut problems: Vec<String> = context.entities.iter().enumerate().filter_map(twice).collect();
        problems
            .extend(context.entities.iter().filter_map(|name| check_name("output", name).err()).map(|e| e.to_string()));
        if !problems.is_empty() {
            return Err(Error::config(&problems));
        }
        let folder = format!("folder {:?}", self.folder);
        self.disk.create_folder(&self.folder).map_err(|error| failed("made", &folder, error))?;
        let open = |name: &String| OutputFile::open(&*self.disk, &self.folder, name, context);
        let files = context.entities.iter().map(open).collect::<Result<_>>()?;
        if context.outbox {
            self.disk.sync_folder(&self.folder).map_err(|error| failed("synced", &folder, error))?;
        }
        Ok(FileWriter {
            disk: Arc::clone(&self.disk),
            files,
            outbox: context.outbox,
            chunks: vec![],
            prepared: VecDeque::new(),
            publishing: None,
            published: None,
            block: vec![],
        })
    }
}

/// Lines of one epoch and output, not published yet.
struct Chunk {
    epoch: Epoch,
    entity: Entity,
    /// Without their line ends.
    lines: Vec<Bytes>,
    /// Which parts of each line checkpoints have anyway; for the outbox, until it is prepared.
    stored: Vec<Vec<Stored>>,
}

/// A range that is being published: kept until it is, so that it can be tried again.
struct Publishing {
    lower: Epoch,
    upper: Epoch,
    /// The lines for each file, without their line ends.
    lines: Vec<Vec<Bytes>>,
    /// Where they begin in each file, if an earlier run was to publish them.
    places: Vec<Place>,
}

struct FileWriter {
    disk: Arc<dyn Disk>,
    files: Vec<OutputFile>,
    outbox: bool,
    /// In the order in which their first records came. There are few: one for each open epoch and output.
    chunks: Vec<Chunk>,
    /// The ranges that this writer prepared and that are not published yet: their lines are in `chunks`.
    prepared: VecDeque<(Epoch, Epoch)>,
    publishing: Option<Publishing>,
    /// Everything below was published by this writer.
    published: Option<Epoch>,
    /// On the way to a file; empty between calls.
    block: Vec<u8>,
}

impl FileWriter {
    /// The lines to publish: those that were written here, else those that an earlier run prepared.
    fn gather(&mut self, lower: Epoch, upper: Epoch, mut left: Option<&[u8]>) -> Result<Publishing> {
        let mut lines = vec![vec![]; self.files.len()];
        let mut places = vec![];
        if self.prepared.contains(&(lower, upper)) {
            let (mut range, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.chunks).into_iter().partition(|chunk| chunk.epoch < upper);
            self.chunks = rest;
            range.sort_by_key(|chunk| chunk.epoch);
            for mut chunk in range {
                lines[chunk.entity.0].append(&mut chunk.lines);
            }
        } else {
            if let Some(left) = &mut left {
                places = take_places(left, self.files.len())?;
            }
            for (_, entity, record) in outbox::left(left, lower, upper)? {
                let lines = lines.get_mut(entity.0).ok_or_else(|| {
                    let text = format!("prepared lines name output {}, but there are {}", entity.0, self.files.len());
                    Error::new(ErrorKind::Store, text)
                })?;
                lines.push(record.value);
            }
        }
        Ok(Publishing { lower, upper, lines, places })
    }

    /// Appends a range to the files: all of it, or an error and nothing of it.
    fn append(&mut self, publishing: &Publishing) -> Result<()> {
        for file in &mut self.files {
            file.clean()?;
        }
        let mut lengths = vec![0; self.files.len()];
        let appended = self.try_append(publishing, &mut lengths);
        self.block.shrink_to(2 * BLOCK); // a line may have been huge
        for (file, length) in self.files.iter_mut().zip(lengths) {
            match appended {
                Ok(()) => file.done(length),
                // If this fails too, it is done before the next append.
                Err(_) => _ = file.clean(),
            }
        }
        appended
    }

    fn try_append(&mut self, publishing: &Publishing, lengths: &mut [u64]) -> Result<()> {
        let parts = || publishing.lines.iter().enumerate().filter(|(_, lines)| !lines.is_empty());
        for (index, lines) in parts() {
            let file = &mut self.files[index];
            let there = match publishing.places.get(index) {
                Some(place) => file.resume(&*self.disk, *place, lines)?,
                None => 0,
            };
            if there < lines.len() {
                lengths[index] = file.append(&lines[there..], &mut self.block)?;
            }
        }
        if self.outbox {
            parts().try_for_each(|(index, _)| self.files[index].sync())?;
        }
        Ok(())
    }
}

impl Writer for FileWriter {
    fn write(&mut self, epoch: Epoch, entity: Entity, record: OutputRecord) -> Result<()> {
        if memchr::memchr(b'\n', &record.value).is_some() {
            let file = self.files.get(entity.0).map(|file| file.path.display().to_string()).unwrap_or_default();
            let text =
                format!("a record for {file:?} holds a line end, and the file has one record a line: encode it first");
            return Err(Error::new(ErrorKind::Write, text));
        }
        debug_assert!(entity.0 < self.files.len(), "{entity:?} of {}", self.files.len());
        debug_assert!(self.prepared.back().is_none_or(|(_, upper)| epoch >= *upper), "epoch {epoch} is prepared");
        let found = self.chunks.iter().rposition(|chunk| chunk.epoch == epoch && chunk.entity == entity);
        let index = found.unwrap_or_else(|| {
            self.chunks.push(Chunk { epoch, entity, lines: vec![], stored: vec![] });
            self.chunks.len() - 1
        });
        self.chunks[index].lines.push(record.value);
        if self.outbox {
            self.chunks[index].stored.push(record.stored);
        }
        Ok(())
    }

    fn prepare(&mut self, lower: Epoch, upper: Epoch) -> Result<Prepared> {
        let mut prepared = Prepared::default();
        let first = self.prepared.is_empty();
        self.prepared.push_back((lower, upper));
        if !self.outbox {
            return Ok(prepared);
        }
        self.chunks.sort_by_key(|chunk| chunk.epoch);
        let mut bytes = vec![0; self.files.len()];
        for chunk in self.chunks.iter().filter(|chunk| (lower..upper).contains(&chunk.epoch)) {
            bytes[chunk.entity.0] += chunk.lines.iter().map(|line| line.len() as u64 + 1).sum::<u64>();
        }
        let plan = |(file, bytes): (&mut OutputFile, &u64)| file.plan(*bytes, first);
        let places: Vec<Place> = self.files.iter_mut().zip(&bytes).map(plan).collect();
        if bytes.iter().any(|bytes| *bytes > 0) {
            put_places(&mut prepared, &places);
        }
        for chunk in self.chunks.iter_mut().filter(|chunk| (lower..upper).contains(&chunk.epoch)) {
            for (line, stored) in chunk.lines.iter().zip(std::mem::take(&mut chunk.stored)) {
                let record = OutputRecord { value: line.clone(), stored, ..OutputRecord::default() };
                outbox::put(&mut prepared, chunk.epoch, chunk.entity, &record)?;
            }
        }
        Ok(prepared)
    }

    fn publish(&mut self, lower: Epoch, upper: Epoch, left: Option<&[u8]>) -> Result<Undelivered> {
        if self.published >= Some(upper) {
            return Ok(Undelivered::default());
        }
        let publishing = match self.publishing.take() {
            Some(publishing) if (publishing.lower, publishing.upper) == (lower, upper) => publishing,
            _ => self.gather(lower, upper, left)?, // a range that failed is tried until it is done
        };
        if let Err(error) = self.append(&publishing) {
            self.publishing = Some(publishing);
            return Err(error);
        }
        self.prepared.retain(|(_, end)| *end > upper);
        self.published = Some(upper);
        Ok(Undelivered::default())
    }

    fn published(&mut self) -> Result<Option<Epoch>> {
        Ok(None) // a file does not know
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::LocalDisk;
    use crate::sink::{RunNumber, Slot};

    #[test]
    fn a_torn_last_line_is_cut_when_a_file_is_opened() {
        let long = "x".repeat(3 * BLOCK);
        for (before, after) in [
            ("whole\ntorn".to_owned(), "whole\n".to_owned()),
            ("whole\n".to_owned(), "whole\n".to_owned()),
            (format!("whole\n{long}"), "whole\n".to_owned()),
            (long.clone(), String::new()),
            (format!("{long}\ntorn"), format!("{long}\n")),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("one-w0.jsonl");
            std::fs::write(&path, before).unwrap();
            let sink = FileSink::new(Arc::new(LocalDisk), folder.path().to_str().unwrap());
            let entities = vec!["one".to_owned()];
            let context = WriterContext {
                slot: Slot(0),
                output: 0,
                run: RunNumber(1),
                entities,
                dead_letter: None,
                outbox: false,
            };
            let mut writer = sink.open_writer(&context).unwrap();
            writer.write(1, Entity(0), OutputRecord::from("next")).unwrap();
            writer.prepare(1, 2).unwrap();
            writer.publish(1, 2, None).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after + "next\n");
        }
    }

    #[test]
    fn memory_of_a_huge_range_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let sink = FileSink::new(Arc::new(LocalDisk), folder.path().to_str().unwrap());
        let entities = vec!["one".to_owned(), "two".to_owned()];
        let context =
            WriterContext { slot: Slot(0), output: 0, run: RunNumber(1), entities, dead_letter: None, outbox: false };
        let mut writer = sink.open_writer(&context).unwrap();
        let value = Bytes::from(vec![b'x'; 1 << 20]);
        for (epoch, entity, count) in [(1, 0, 1), (2, 1, 17), (3, 0, 1), (4, 0, 1)] {
            for _ in 0..count {
                let value = if count == 1 { Bytes::from_static(b"small") } else { value.clone() };
                writer.write(epoch, Entity(entity), OutputRecord { value, ..OutputRecord::default() }).unwrap();
            }
            writer.prepare(epoch, epoch + 1).unwrap();
            writer.publish(epoch, epoch + 1, None).unwrap();
            assert!(writer.chunks.is_empty() && writer.prepared.is_empty());
            assert!(writer.block.is_empty() && writer.block.capacity() <= 2 * BLOCK, "after epoch {epoch}");
        }
        let written = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().len();
        assert_eq!((written("one-w0.jsonl"), written("two-w0.jsonl")), (3 * 6, 17 * ((1 << 20) + 1)));
    }
}
