//! One file that is being read.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use super::lines::{Lines, value};
use super::listing::Packing;
use super::read_error;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Message, Offset, Split};
use crate::source::{Assignment, Batch, Evidence};

/// How often the name of a followed file is looked at, to see whether it is another file now.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long a followed file may be gone before that is an error: as long as a careful rotation may take.
const GONE_AFTER: Duration = Duration::from_secs(10);

/// How many bytes before the start are thrown away for the price of one that is given, so that calls stay short.
const SKIPPED_FOR_ONE: u64 = 4;

/// What is left of one call of read.
pub(super) struct Budget {
    pub messages: usize,
    pub bytes: u64,
}

/// Where the text comes from.
enum Text {
    Plain(File),
    Packed(Box<dyn Read + Send>),
}

pub(super) struct FileSplit {
    pub split: Split,
    pub paused: bool,
    pub evidence: Evidence,
    /// The evidence that the caller knows, and when it was told.
    pub said: Option<(Evidence, Duration)>,
    /// It was looked at in this turn.
    pub asked: bool,
    path: PathBuf,
    text: Text,
    lines: Lines,
    /// The offset of the first byte that was not given: that of `lines`.
    offset: u64,
    until: Option<u64>,
    /// So much text is still to be thrown away: what lies before the start, in a packed file.
    skip: u64,
    /// The last byte before the start, until it was checked.
    before: u8,
    /// The line that is under way began before the start: it is no message of ours.
    skip_line: bool,
    looked: Duration,
    /// Since when the file's name names nothing.
    gone_since: Option<Duration>,
}

impl FileSplit {
    pub fn open(path: PathBuf, assignment: &Assignment) -> Result<Self> {
        let failed = |error| read_error(&path, "opened", error);
        let file = File::open(&path).map_err(failed)?;
        let from = assignment.from.0;
        let mut split = FileSplit {
            split: assignment.split.clone(),
            paused: false,
            evidence: Evidence::Behind,
            said: None,
            asked: false,
            text: match Packing::of(&assignment.split.name) {
                Packing::Plain => Text::Plain(file),
                packing => Text::Packed(packing.unpack(file).map_err(failed)?),
            },
            path,
            lines: Lines::default(),
            offset: from,
            until: assignment.until.map(|until| until.0),
            skip: 0,
            before: b'\n',
            skip_line: false,
            looked: Duration::ZERO,
            gone_since: None,
        };
        split.seek(from)?;
        Ok(split)
    }

    /// Goes to the start, which must be the start of a line or the end.
    fn seek(&mut self, from: u64) -> Result<()> {
        if from == 0 {
            return Ok(());
        }
        let Text::Plain(file) = &mut self.text else {
            self.skip = from;
            return Ok(());
        };
        let mut around = vec![];
        let result = (|| {
            let len = file.metadata()?.len();
            file.seek(SeekFrom::Start(from - 1))?;
            file.take(2).read_to_end(&mut around)?;
            file.seek(SeekFrom::Start(from))?;
            Ok(len)
        })();
        let len = result.map_err(|error| read_error(&self.path, "read", error))?;
        if from > len {
            return Err(self.lost(&format!("it has only {len} bytes: it was truncated or replaced")));
        }
        self.before = around.first().copied().unwrap_or(b'\n'); // cut off meanwhile: the first read says so
        if from == len {
            self.skip_line = self.before != b'\n';
            self.before = b'\n';
        }
        Ok(())
    }

    /// A start in the middle of a line is not one: the file is not what it was. But the last line may have had no line end, and
    /// was given when the file was read to its end.
    fn check_start(&mut self) -> Result<()> {
        match (std::mem::replace(&mut self.before, b'\n'), self.lines.first()) {
            (b'\n', _) | (_, Some(b'\n' | b'\r')) => Ok(()),
            _ => Err(self.lost("that is inside of a line: it was replaced, or its last line was not finished")),
        }
    }

    /// Appends lines to the batch, and finds out how far it is.
    pub fn poll(&mut self, batch: &mut Batch, budget: &mut Budget, now: Duration) -> Result<()> {
        if self.paused || self.evidence == Evidence::Ended {
            return Ok(());
        }
        // Others have used up the turn: this one is as it was, which says nothing about now.
        if budget.messages == 0 || budget.bytes == 0 {
            return Ok(());
        }
        self.asked = true;
        self.evidence = loop {
            if self.skip == 0 && !self.give_lines(batch, budget) {
                break if self.is_over() { Evidence::Ended } else { Evidence::Behind };
            }
            match self.fill()? {
                0 => break self.at_end(batch, budget, now)?,
                read if self.skip > 0 => {
                    self.discard();
                    budget.bytes = budget.bytes.saturating_sub(read as u64 / SKIPPED_FOR_ONE);
                    if budget.bytes == 0 {
                        break Evidence::Behind;
                    }
                }
                _ => {}
            }
            if self.skip == 0 && self.lines.len() > 0 {
                self.check_start()?;
            }
        };
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| self.offset >= until)
    }

    /// Gives whole lines. Returns whether more text is wanted: not if the end or the budget is reached.
    fn give_lines(&mut self, batch: &mut Batch, budget: &mut Budget) -> bool {
        while !self.is_over() {
            if budget.messages == 0 || budget.bytes == 0 {
                return false;
            }
            match self.lines.next_line() {
                Some(line) => self.give(line, batch, budget),
                None => return true,
            }
        }
        false
    }

    fn give(&mut self, line: Bytes, batch: &mut Batch, budget: &mut Budget) {
        let offset = self.offset;
        self.offset += line.len() as u64;
        budget.bytes = budget.bytes.saturating_sub(line.len() as u64);
        if std::mem::take(&mut self.skip_line) {
            return;
        }
        if let Some(value) = value(&line) {
            budget.messages -= 1;
            batch.messages.push(Message::new(self.split.id, Offset(offset), Offset(self.offset), Some(value)));
        }
    }

    /// Reads more text.
    fn fill(&mut self) -> Result<usize> {
        let read = match &mut self.text {
            Text::Plain(file) => {
                let position = self.offset + self.lines.len() as u64;
                let len = file.metadata().map_err(|error| read_error(&self.path, "read", error))?.len();
                if len < position {
                    return Err(self.lost(&format!("it has only {len} bytes: it was truncated while it was read")));
                }
                if len == position {
                    return Ok(0);
                }
                self.lines.fill(file, len - position)
            }
            Text::Packed(text) => self.lines.fill(&mut **text, u64::MAX),
        };
        read.map_err(|error| match self.text {
            Text::Plain(_) => read_error(&self.path, "read", error),
            Text::Packed(_) => {
                read_error(&self.path, &format!("unpacked behind byte {} of its text", self.offset), error)
            }
        })
    }

    /// Throws away text that lies before the start.
    fn discard(&mut self) {
        let mut text = self.lines.take_rest();
        let head = text.split_to(self.skip.min(text.len() as u64) as usize);
        self.skip -= head.len() as u64;
        self.before = head.last().copied().unwrap_or(self.before);
        self.lines = Lines::from(text);
    }

    /// There is no more text now: what that means.
    fn at_end(&mut self, batch: &mut Batch, budget: &mut Budget, now: Duration) -> Result<Evidence> {
        let packed = matches!(self.text, Text::Packed(_));
        if self.skip > 0 {
            let len = self.offset - self.skip;
            return Err(self.lost(&format!("its text has only {len} bytes: it was replaced")));
        }
        if self.until.is_some() || packed {
            let rest = self.lines.take_rest();
            if !rest.is_empty() {
                self.give(rest, batch, budget);
            }
            if let Some(until) = self.until.filter(|until| self.offset < *until) {
                return Err(self.lost(&format!("it was to be read up to {until} and ends here: it was truncated")));
            }
            return Ok(Evidence::Ended);
        }
        if now.saturating_sub(self.looked) < LOOK_EVERY {
            // What was found at the last look still holds.
            return Ok(if self.gone_since.is_some() { Evidence::Behind } else { Evidence::CaughtUp });
        }
        self.looked = now;
        self.look_at_name(now)
    }

    /// Whether the name still names the file that is read.
    fn look_at_name(&mut self, now: Duration) -> Result<Evidence> {
        let Text::Plain(file) = &self.text else { return Ok(Evidence::Ended) };
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let failed = |error| read_error(&self.path, "looked at", error);
        let named = match fs::metadata(&self.path) {
            Ok(metadata) => identity(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let since = *self.gone_since.get_or_insert(now);
                if now.saturating_sub(since) < GONE_AFTER {
                    return Ok(Evidence::Behind);
                }
                let text = format!(
                    "file {:?} is gone for {} s; it was read up to offset {}",
                    self.path,
                    GONE_AFTER.as_secs(),
                    self.offset
                );
                return Err(Error::new(ErrorKind::NotFound, text).with_source(error));
            }
            Err(error) => return Err(failed(error)),
        };
        self.gone_since = None;
        let metadata = file.metadata().map_err(failed)?;
        let (grown, same) = (metadata.len() > self.offset + self.lines.len() as u64, named == identity(metadata));
        match (same, grown) {
            (true, false) => Ok(Evidence::CaughtUp),
            (same, true) => {
                if !same {
                    self.looked = Duration::ZERO; // once the rest is read it is an error, at once
                }
                Ok(Evidence::Behind) // the next call reads it
            }
            (false, false) => Err(self.lost(
                "it was read to its end and then replaced by another file (rotation), whose offsets cannot be told from its \
                 own: give each file a number of its own, or start again from the earliest position",
            )),
        }
    }

    fn lost(&self, why: &str) -> Error {
        Error::new(ErrorKind::OffsetLost, format!("file {:?}, offset {}: {why}", self.path, self.offset))
    }
}
