//! The sink: one file of JSON lines per output and slot.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::check_name;
use crate::broker::outbox;
use crate::checkpoint::Disk;
use crate::checkpoint::disk::DiskFile;
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{Entity, Guarantee, OutputRecord, Prepared, Sink, Stored, Undelivered, Writer, WriterContext};

/// How much is given to the system at a time, in bytes. Smaller means more calls; larger, a buffer that fits into no cache.
const BLOCK: usize = 256 << 10;

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
        let failed =
            |error| Error::new(ErrorKind::Write, format!("folder {:?} cannot be made", self.folder)).with_source(error);
        self.disk.create_folder(&self.folder).map_err(failed)?;
        let mut files = vec![];
        for name in &context.entities {
            files.push(self.open_file(name, context)?);
        }
        if context.outbox {
            self.disk.sync_folder(&self.folder).map_err(failed)?;
        }
        Ok(FileWriter {
            files,
            outbox: context.outbox,
            chunks: vec![],
            prepared: VecDeque::new(),
            publishing: None,
            published: None,
            block: vec![],
        })
    }

    /// Opens the file of an output.
    ///
    /// Who may write is decided by the store, if there is one. A file that is held nevertheless belongs to an earlier run that lives
    /// on and does not know yet, or to another job: it is left alone, and this run writes a file of its own beside it.
    fn open_file(&self, name: &str, context: &WriterContext) -> Result<OutputFile> {
        let path = self.folder.join(format!("{name}-w{}.jsonl", context.slot.0));
        let opened = match self.disk.open_append(&path) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && context.outbox => {
                let beside = self.folder.join(format!("{name}-w{}-r{}.jsonl", context.slot.0, context.run.0));
                tracing::warn!(
                    file = ?path,
                    ?beside,
                    "a file is still held by an earlier run, or by another job: this run writes beside it"
                );
                self.disk.open_append(&beside).map(|opened| (beside, opened))
            }
            opened => opened.map(|opened| (path.clone(), opened)),
        };
        let (path, (file, length)) = opened.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                let text = format!("file {path:?} is written by another job: give this one another folder or output");
                Error::new(ErrorKind::Write, text)
            }
            _ => {
                let text = format!("file {path:?} cannot be opened to be appended to");
                Error::new(ErrorKind::Write, text).with_source(error)
            }
        })?;
        let mut file = OutputFile { path, file, published: length, clean: true };
        file.cut_torn_line(&*self.disk)?;
        Ok(file)
    }
}

struct OutputFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    /// The length of what is published.
    published: u64,
    /// There is nothing behind `published`.
    clean: bool,
}

impl OutputFile {
    /// Appends lines by way of a block, so that what a range takes beside its documents does not grow with it. Returns how many
    /// bytes they are.
    fn append(&mut self, lines: &[Bytes], block: &mut Vec<u8>) -> io::Result<u64> {
        let mut written = 0;
        let mut flush = |block: &mut Vec<u8>, file: &mut Box<dyn DiskFile>| {
            written += block.len() as u64;
            let appended = file.append(block);
            block.clear();
            appended
        };
        for line in lines {
            if !block.is_empty() && block.len() + line.len() >= BLOCK {
                flush(block, &mut self.file)?;
            }
            block.extend_from_slice(line);
            block.push(b'\n');
        }
        flush(block, &mut self.file)?;
        Ok(written)
    }

    /// A line without its end was torn by a crash: it was not published, and will be written again.
    fn cut_torn_line(&mut self, disk: &dyn Disk) -> Result<()> {
        let mut from = self.published;
        while from > 0 {
            from = from.saturating_sub(BLOCK as u64);
            let tail = disk.read_from(&self.path, from).map_err(|error| self.failed("read", error))?;
            let whole = memchr::memrchr(b'\n', &tail).map_or(from, |at| from + at as u64 + 1);
            if whole > from || from == 0 {
                self.clean = whole == self.published;
                self.published = whole;
                return self.clean();
            }
        }
        Ok(())
    }

    /// Cuts the file back to what is published, if something else may be in it.
    fn clean(&mut self) -> Result<()> {
        if !self.clean {
            let cut = self.file.truncate(self.published);
            cut.map_err(|error| self.failed(&format!("cut back to {} bytes", self.published), error))?;
            self.clean = true;
        }
        Ok(())
    }

    fn failed(&self, what: &str, error: io::Error) -> Error {
        let changed = error.kind() == io::ErrorKind::InvalidData;
        let failed = Error::new(ErrorKind::Write, format!("file {:?} cannot be {what}", self.path)).with_source(error);
        if changed { failed } else { failed.retryable() }
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
}

struct FileWriter {
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
    fn gather(&mut self, lower: Epoch, upper: Epoch, left: Option<&[u8]>) -> Result<Publishing> {
        let mut lines = vec![vec![]; self.files.len()];
        if self.prepared.contains(&(lower, upper)) {
            let (mut range, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.chunks).into_iter().partition(|chunk| chunk.epoch < upper);
            self.chunks = rest;
            range.sort_by_key(|chunk| chunk.epoch);
            for mut chunk in range {
                lines[chunk.entity.0].append(&mut chunk.lines);
            }
        } else {
            for (_, entity, record) in outbox::left(left, lower, upper)? {
                let lines = lines.get_mut(entity.0).ok_or_else(|| {
                    let text = format!("prepared lines name output {}, but there are {}", entity.0, self.files.len());
                    Error::new(ErrorKind::Store, text)
                })?;
                lines.push(record.value);
            }
        }
        Ok(Publishing { lower, upper, lines })
    }

    /// Appends a range to the files: all of it, or an error and nothing of it.
    fn append(&mut self, publishing: &Publishing) -> Result<()> {
        let parts = || publishing.lines.iter().enumerate().filter(|(_, lines)| !lines.is_empty());
        for file in &mut self.files {
            file.clean()?;
        }
        let mut result = Ok(());
        let mut lengths = vec![0; self.files.len()];
        for (index, lines) in parts() {
            let file = &mut self.files[index];
            file.clean = false;
            match file.append(lines, &mut self.block) {
                Ok(length) => lengths[index] = length,
                Err(error) => {
                    result = Err(file.failed("appended to", error));
                    break;
                }
            }
        }
        self.block.clear();
        self.block.shrink_to(2 * BLOCK); // a line may have been huge
        if result.is_ok() && self.outbox {
            let mut sync = |(index, _)| {
                let file: &mut OutputFile = &mut self.files[index];
                file.file.sync().map_err(|error| file.failed("synced", error))
            };
            result = parts().try_for_each(&mut sync);
        }
        if result.is_err() {
            for file in &mut self.files {
                // If this fails too, it is done before the next append.
                let _ = file.clean();
            }
            return result;
        }
        for (file, length) in self.files.iter_mut().zip(lengths) {
            file.published += length;
            file.clean = true;
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
        self.prepared.push_back((lower, upper));
        if self.outbox {
            self.chunks.sort_by_key(|chunk| chunk.epoch);
            for chunk in self.chunks.iter_mut().filter(|chunk| (lower..upper).contains(&chunk.epoch)) {
                for (line, stored) in chunk.lines.iter().zip(std::mem::take(&mut chunk.stored)) {
                    let record = OutputRecord { value: line.clone(), stored, ..OutputRecord::default() };
                    outbox::put(&mut prepared, chunk.epoch, chunk.entity, &record)?;
                }
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
