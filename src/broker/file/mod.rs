//! Files of JSON lines in a folder: a message is a line.
//!
//! | here | in the contracts |
//! |---|---|
//! | the files `TOPIC.jsonl`, `TOPIC-pN.jsonl`, `TOPIC-N.jsonl` of a folder | topic |
//! | one of them, with its number N (0 without one) | split; its ordinal is N |
//! | the position of a byte in the text | offset |
//! | the position behind a line's end | next offset |
//!
//! Each file may end in `.gz` or `.zst` too; its offsets are positions in the text that comes out. The same number twice is
//! an error.
//!
//! **Messages.** A line is a value; there are no keys, timestamps or headers, so [`Position::Timestamp`] is refused, and no
//! groups, so [`Position::Committed`] is what it is otherwise. [`Position::Exact`] names files: `one-p0.jsonl`. Blank lines are skipped; a carriage return before the line end
//! belongs to it. Values are slices of the blocks that are read: nothing is copied per line.
//!
//! **Bounded.** A line that begins below `until` is read; a last line without a line end is a message.
//!
//! **Followed**, as with `tail -F`. A last line without a line end waits for it. New files of the topic are new splits.
//! What may happen to a file that is being followed:
//!
//! | event | outcome |
//! |---|---|
//! | it grows | its new lines are messages, found within 1 to 200 ms, a 20th of the silence before |
//! | it becomes shorter than what was read | [`ErrorKind::OffsetLost`], naming file, offset and size |
//! | another file takes its name (rotation) | the old one is read to its end, then [`ErrorKind::OffsetLost`] |
//! | it is removed or renamed | behind, for ten seconds, then [`ErrorKind::NotFound`] |
//! | it is truncated and grows beyond what was read between two looks | cannot be seen |
//!
//! A rotated file is not read on from its beginning, because positions in the old and in the new one could not be told apart after
//! a restart: let every file have a number of its own instead. Compressed files are not followed: they end at their end.
//! A start in the middle of a line is [`ErrorKind::OffsetLost`] too: there the file is not the one that the offset is from.
//!
//! [`Replay::Seek`]. Nothing reconnects. Ownership does not exist.
//!
//! **Sink.** Output NAME of slot N is `NAME-wN.jsonl`, one record a line, keys, timestamps and headers left out. All is written at
//! publish, with one append a file; an existing file is appended to. When an append fails, all files are cut back to what was
//! published before, and the error is worth a retry. Files are synced only if a checkpoint keeps an outbox: without one
//! nothing is durable anyway. [`Guarantee::AtLeastOnce`].
//!
//! Where a range begins in its files is in the checkpoint with it. So a run that goes on writes only what a crash has left out, after it
//! has cut off what was torn; and each line is there once, as long as nobody else has changed the file, or taken the job over.
//!
//! A file has one writer. Without a store the second one is refused. With one, the run that has claimed it goes on: where an earlier
//! run is alive, perhaps stopped, and holds its files, run R writes `NAME-wN-rR.jsonl` beside them. What the earlier one may still
//! append, when it wakes up, is what was durable when it was taken over, and so is repeated by run R.
//!
//! Limits: split numbers below 2^24; a line in memory as a whole. Needs a Unix file system, because files are told apart by their
//! inodes. The conformance suite skips what files do not have: keys, headers, timestamps, tombstones, line ends in values,
//! groups, transactions, unknown topics (an empty list) and connections.
//!
//! [`ErrorKind::OffsetLost`]: crate::ErrorKind::OffsetLost
//! [`ErrorKind::NotFound`]: crate::ErrorKind::NotFound
//! [`Guarantee::AtLeastOnce`]: crate::sink::Guarantee::AtLeastOnce
//! [`Position::Exact`]: crate::source::Position::Exact
//! [`Position::Committed`]: crate::source::Position::Committed
//! [`Position::Timestamp`]: crate::source::Position::Timestamp
//! [`Replay::Seek`]: crate::source::Replay::Seek

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::BrokerOptions;
use crate::checkpoint::{Disk, LocalDisk};
use crate::error::{Error, ErrorKind, Result};
use crate::sink::NewSink;
use crate::source::{NewSource, OnLost};

#[cfg(test)]
mod histories;
mod lines;
mod listing;
mod output;
mod reader;
mod sink;
mod source;
mod split;

/// The source of a topic in a folder.
///
/// # Errors
///
/// [`ErrorKind::Config`] for a topic that cannot be part of a file's name, for any property, and for a way to go on where
/// messages are gone: a file does not lose its beginning.
pub fn source(folder: &str, topic: &str, options: &BrokerOptions) -> Result<NewSource> {
    super::no_properties("a folder", options)?;
    check_name("topic", topic)?;
    if options.on_lost_offset != OnLost::Fail {
        let text = "a folder keeps its messages: what to do when they are lost (on_lost_offset) means nothing here";
        return Err(Error::new(ErrorKind::Config, text));
    }
    let (folder, topic, discovery) = (folder.to_owned(), topic.to_owned(), options.discovery);
    Ok(Arc::new(move || Ok(Box::new(source::FileSource::new(&folder, &topic, discovery)))))
}

/// Whether a file is named like a split of a topic.
pub(super) fn has_split(topic: &str, file: &str) -> bool {
    listing::number_of(topic, file).flatten().is_some()
}

/// The sink of a folder, which is made when the first writer is opened.
///
/// # Errors
///
/// [`ErrorKind::Config`] for any property.
pub fn sink(folder: &str, options: &BrokerOptions) -> Result<NewSink> {
    sink_on(Arc::new(LocalDisk), folder, options)
}

/// [`sink`] on a disk of the caller's.
///
/// # Errors
///
/// As [`sink`].
pub fn sink_on(disk: Arc<dyn Disk>, folder: &str, options: &BrokerOptions) -> Result<NewSink> {
    super::no_properties("a folder", options)?;
    let folder = folder.to_owned();
    Ok(Arc::new(move || Ok(Box::new(sink::FileSink::new(Arc::clone(&disk), &folder)))))
}

pub(super) fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.contains(['/', '\0']) {
        let text = format!("{what} {name:?} cannot be part of a file's name: it must not be empty or contain a slash");
        return Err(Error::new(ErrorKind::Config, text));
    }
    Ok(())
}

/// An error of the file system while reading.
fn read_error(path: &Path, what: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::Auth,
        _ => ErrorKind::Read,
    };
    Error::new(kind, format!("file {path:?} cannot be {what}")).with_source(error)
}
