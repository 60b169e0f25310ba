//! `syncline state verify`.

use std::io::{IsTerminal, Write};

use bytes::Bytes;

use super::keys::decode;
use super::unwritten;
use crate::checkpoint::{self, Location, VerifyStep};
use crate::cli::progress::{CLEAR, Grouped};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::KEYS;

/// Bytes between two updates of the progress line: tenths of seconds on an ordinary disk.
const EVERY_BYTES: u64 = 16 << 20;

/// Reads and checks everything.
pub(super) fn verify(location: &Location, out: &mut dyn Write) -> Result<()> {
    let mut progress = std::io::stderr().is_terminal().then(Progress::default);
    let mut item = |collection: &str, bytes: Bytes| match collection {
        KEYS => decode(bytes).map(drop),
        _ => Ok(()),
    };
    let verified = checkpoint::verify(location, &mut item, &mut |step| {
        if let Some(progress) = &mut progress {
            progress.show(step);
        }
    });
    if progress.is_some() {
        let _ = write!(std::io::stderr(), "{CLEAR}"); // nobody is left to be shown anything
    }
    let verified = verified?;
    let written = (|| {
        for problem in &verified.problems {
            writeln!(out, "damaged: {}", problem.replace('\n', " "))?;
        }
        for harmless in &verified.harmless {
            writeln!(out, "harmless: {}", harmless.replace('\n', " "))?;
        }
        let checkpoint::Verified { segments, frames, bytes, .. } = verified;
        let whole = if verified.problems.is_empty() { "whole" } else { "read" };
        writeln!(out, "{whole}: {segments} segments, {} frames, {} bytes", Grouped(frames), Grouped(bytes))?;
        out.flush()
    })();
    written.map_err(unwritten)?;
    match verified.problems.len() {
        0 => Ok(()),
        number => {
            let problems = if number == 1 { "problem" } else { "problems" };
            Err(Error::new(ErrorKind::Store, format!("{number} {problems} in folder {:?}", location.folder())))
        }
    }
}

/// A line of a terminal that is written in place of the one before.
#[derive(Default)]
struct Progress {
    last: Option<VerifyStep>,
}

impl Progress {
    fn show(&mut self, step: VerifyStep) {
        let near = |last: &VerifyStep| last.segment == step.segment && step.bytes.abs_diff(last.bytes) < EVERY_BYTES;
        if self.last.as_ref().is_some_and(near) {
            return;
        }
        self.last = Some(step);
        let what = match step.segment < step.segments {
            true => format!("segment {} of {}", step.segment + 1, step.segments),
            false => "sums".to_owned(),
        };
        let _ = write!(std::io::stderr(), "{CLEAR}verify: {what}, {} bytes read", Grouped(step.bytes));
    }
}
