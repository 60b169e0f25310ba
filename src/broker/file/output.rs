//! One file of output.

use std::io;
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};

use crate::checkpoint::{Advice, Disk, DiskFile};
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{Prepared, WriterContext};

/// How much is given to the system at a time, in bytes. Smaller means more calls; larger, a buffer that fits into no cache.
pub(super) const BLOCK: usize = 256 << 10;

/// Where the lines of a range begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// In the file of this run, or the one that all runs share: 0.
    run: u64,
    /// At this byte.
    at: u64,
}

/// What places begin with: no epoch, with which prepared records begin.
const PLACES: u64 = u64::MAX;

/// Appends where the lines of a range begin in each file, as [`take_places`] reads it.
pub(super) fn put_places(prepared: &mut Prepared, places: &[Place]) {
    prepared.bytes.extend_from_slice(&PLACES.to_le_bytes());
    prepared.bytes.extend_from_slice(&(places.len() as u32).to_le_bytes());
    for place in places {
        prepared.bytes.extend_from_slice(&place.run.to_le_bytes());
        prepared.bytes.extend_from_slice(&place.at.to_le_bytes());
    }
}

/// Takes the places off the front of what was prepared. There are none for a range without lines, nor in the oldest checkpoints.
///
/// # Errors
///
/// [`ErrorKind::Store`] if the bytes are not what was prepared for so many files.
pub(super) fn take_places(left: &mut &[u8], files: usize) -> Result<Vec<Place>> {
    let Some(rest) = left.strip_prefix(&PLACES.to_le_bytes()) else { return Ok(vec![]) };
    *left = rest;
    let damaged =
        || Error::new(ErrorKind::Store, format!("the prepared lines are damaged in their first {files} places"));
    let count = left.try_get_u32_le().map_err(|_| damaged())? as usize;
    if count != files {
        let text = format!(
            "lines are prepared for {count} outputs, but there are {files}: start the job as it was, so that they are published first"
        );
        return Err(Error::new(ErrorKind::Store, text));
    }
    let mut take = || left.try_get_u64_le().map_err(|_| damaged());
    (0..count).map(|_| Ok(Place { run: take()?, at: take()? })).collect()
}

/// An error of the disk. What may pass, such as a full disk, is retryable.
pub(super) fn failed(what: &str, subject: &str, error: io::Error) -> Error {
    use io::ErrorKind::{
        AlreadyExists, InvalidData, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound,
        PermissionDenied, ReadOnlyFilesystem, Unsupported,
    };
    let lasts = matches!(
        error.kind(),
        AlreadyExists
            | InvalidData
            | InvalidFilename
            | InvalidInput
            | IsADirectory
            | NotADirectory
            | NotFound
            | PermissionDenied
            | ReadOnlyFilesystem
            | Unsupported
    );
    let failed = Error::new(ErrorKind::Write, format!("{subject} cannot be {what}")).with_source(error);
    if lasts { failed } else { failed.retryable() }
}

pub(super) struct OutputFile {
    pub path: PathBuf,
    file: Box<dyn DiskFile>,
    /// The run whose file it is; 0 for the one that all share.
    run: u64,
    /// The length of what is published.
    published: u64,
    /// There is nothing behind `published`.
    clean: bool,
    /// The length when all that is prepared is published.
    planned: u64,
    /// So far it was as the last run has left it.
    as_left: bool,
}

impl OutputFile {
    /// Opens the file of an output in a folder that is there.
    ///
    /// Who may write is decided by the store, if there is one. A file that is held nevertheless belongs to an earlier run that lives
    /// on and does not know yet, or to another job: it is left alone, and this run writes a file of its own beside it.
    pub fn open(disk: &dyn Disk, folder: &Path, name: &str, context: &WriterContext) -> Result<OutputFile> {
        let slot = context.slot.0;
        let mut run = 0;
        let mut path = folder.join(format!("{name}-w{slot}.jsonl"));
        let mut opened = disk.open_append(&path, Advice::Normal);
        if context.outbox && opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            run = context.run.0;
            let beside = folder.join(format!("{name}-w{slot}-r{run}.jsonl"));
            tracing::warn!(
                file = ?path,
                ?beside,
                "a file is still held by an earlier run, or by another job: this run writes beside it"
            );
            opened = disk.open_append(&beside, Advice::Normal);
            path = beside;
        }
        let (file, length) = opened.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                let text = format!("file {path:?} is written by another job: give this one another folder or output");
                Error::new(ErrorKind::Write, text)
            }
            _ => failed("opened to be appended to", &format!("file {path:?}"), error),
        })?;
        let mut file = OutputFile { path, file, run, published: length, clean: true, planned: length, as_left: true };
        file.cut_torn_line(disk)?;
        file.planned = file.published;
        Ok(file)
    }

    /// Plans to publish so many bytes after all that is planned already; `first` if nothing is. Where they will begin.
    pub fn plan(&mut self, bytes: u64, first: bool) -> Place {
        let at = if first { self.published } else { self.planned };
        self.planned = at + bytes;
        Place { run: self.run, at }
    }

    /// How many lines of a range that an earlier run was to publish are there already, from the first on. What else a crash has left
    /// of them is cut off.
    ///
    /// Whatever is not as that run can have left it is somebody else's, and stays: lines are repeated rather than lost.
    pub fn resume(&mut self, disk: &dyn Disk, place: Place, lines: &[Bytes]) -> Result<usize> {
        self.as_left &= place.run == self.run && place.at <= self.published;
        if !self.as_left {
            return Ok(0);
        }
        let (wanted, behind) = (lines.iter().map(|line| line.len() as u64 + 1).sum(), self.published - place.at);
        let found = disk.read_at(&self.path, place.at, behind.min(wanted), Advice::Normal);
        let found = found.map_err(|error| self.failed("read", error))?;
        let (mut rest, mut there) = (&found[..], 0);
        for line in lines {
            let Some(after) = rest.strip_prefix(&line[..]).and_then(|rest| rest.strip_prefix(b"\n")) else { break };
            (rest, there) = (after, there + 1);
        }
        // A crash of the machine may leave zeros where blocks were not written; nothing was published after them.
        let expected = lines[there..].iter().flat_map(|line| line.iter().chain(b"\n"));
        let torn = rest.iter().zip(expected).all(|(found, expected)| found == expected || *found == 0);
        if there < lines.len() && (!torn || behind > wanted) {
            self.as_left = false;
            return Ok(0);
        }
        if !rest.is_empty() {
            self.published -= rest.len() as u64;
            self.clean = false;
            self.clean()?;
        }
        Ok(there)
    }

    /// Appends lines by way of a block, so that what a range takes beside its documents does not grow with it. They are published
    /// with [`done`](Self::done).
    pub fn append(&mut self, lines: &[Bytes], block: &mut Vec<u8>) -> Result<u64> {
        self.clean = false;
        let mut written = 0;
        let mut flush = |block: &mut Vec<u8>, file: &mut Box<dyn DiskFile>| {
            written += block.len() as u64;
            let appended = file.append(block);
            block.clear();
            appended
        };
        let mut append = || {
            for line in lines {
                if !block.is_empty() && block.len() + line.len() >= BLOCK {
                    flush(block, &mut self.file)?;
                }
                block.extend_from_slice(line);
                block.push(b'\n');
            }
            flush(block, &mut self.file)
        };
        match append() {
            Ok(()) => Ok(written),
            Err(error) => {
                block.clear();
                Err(self.failed("appended to", error))
            }
        }
    }

    pub fn sync(&mut self) -> Result<()> {
        self.file.sync().map_err(|error| self.failed("synced", error))
    }

    /// So many bytes that were appended are published.
    pub fn done(&mut self, bytes: u64) {
        self.published += bytes;
        self.clean = true;
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
    pub fn clean(&mut self) -> Result<()> {
        if !self.clean {
            let cut = self.file.truncate(self.published);
            cut.map_err(|error| self.failed(&format!("cut back to {} bytes", self.published), error))?;
            self.clean = true;
        }
        Ok(())
    }

    fn failed(&self, what: &str, error: io::Error) -> Error {
        failed(what, &format!("file {:?}", self.path), error)
    }
}
