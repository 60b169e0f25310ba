//! Reads files in turn, and looks again when there is nothing to read.

use std::path::PathBuf;
use std::time::Duration;

use super::listing::path_of;
use super::split::{Budget, FileSplit};
use crate::epoch::{Clock, SystemClock};
use crate::error::Result;
use crate::message::{Offset, Offsets, Reason, SplitId};
use crate::source::{Assignment, Batch, Committer, Evidence, Progress, Reader};

/// The most messages of one read.
const MAX_MESSAGES: usize = 4_096;
/// The most bytes of one read, but for the last line.
const MAX_BYTES: u64 = 1 << 20;

/// The time until the next look is this part of the time since lines last came: what it adds to the latency of a line is a small
/// part of the silence before it.
const PART_OF_SILENCE: u32 = 20;
/// How soon to look again at the soonest: what it adds to the latency, against calls of the system.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// How soon to look again at the latest. Five looks a second cost less than 0.1 % of a core.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// How long a caught-up reader may be silent.
const SAY_AGAIN: Duration = Duration::from_millis(900);

pub(super) struct FileReader {
    folder: PathBuf,
    splits: Vec<FileSplit>,
    /// The split that is read first, so that all get their turn.
    turn: usize,
    clock: SystemClock,
    /// When to look next; also in a later call, so that short waits do not mean many looks.
    next_look: Duration,
    /// When lines last came.
    busy: Duration,
    told: Progress,
}

impl FileReader {
    pub fn open(folder: PathBuf, assignments: &[Assignment]) -> Result<Self> {
        let mut reader = FileReader {
            folder,
            splits: vec![],
            turn: 0,
            clock: SystemClock::new(),
            next_look: Duration::ZERO,
            busy: Duration::ZERO,
            told: Progress::Open,
        };
        reader.assign(assignments, &[])?;
        Ok(reader)
    }

    fn poll(&mut self, batch: &mut Batch, now: Duration) -> Result<()> {
        let mut budget = Budget { messages: MAX_MESSAGES, bytes: MAX_BYTES };
        let count = self.splits.len();
        self.turn = (self.turn + 1) % count.max(1);
        for index in 0..count {
            let split = &mut self.splits[(self.turn + index) % count];
            split.asked = false;
            split.poll(batch, &mut budget, now)?;
        }
        if budget.bytes < MAX_BYTES {
            // It got on, be it only over text that is no message: there may be more at once.
            self.busy = now;
            self.next_look = now;
        } else {
            let silence = now.saturating_sub(self.busy);
            self.next_look = now + (silence / PART_OF_SILENCE).clamp(MIN_PAUSE, MAX_PAUSE);
        }
        Ok(())
    }

    /// Says the evidence that has changed, or all of it that is to be said again. Returns whether there was any.
    fn say(&mut self, batch: &mut Batch, now: Duration) -> bool {
        let mut any = false;
        for split in &mut self.splits {
            let news = match split.said {
                Some((said, at)) if said == split.evidence => {
                    let aged = now.saturating_sub(at) >= SAY_AGAIN;
                    said == Evidence::CaughtUp && split.asked && aged
                }
                _ => true,
            };
            if news {
                split.said = Some((split.evidence, now));
                batch.evidence.push((split.split.id, split.evidence));
                any = true;
            }
        }
        any
    }
}

impl Reader for FileReader {
    fn read(&mut self, batch: &mut Batch, wait: Duration) -> Result<Progress> {
        let mut now = self.clock.monotonic();
        let deadline = now.saturating_add(wait);
        loop {
            if now >= self.next_look {
                self.poll(batch, now)?;
            }
            let ended = self.splits.iter().all(|split| split.evidence == Evidence::Ended);
            let progress = if ended { Progress::Ended } else { Progress::Open };
            let changed = std::mem::replace(&mut self.told, progress) != progress;
            now = self.clock.monotonic();
            if self.say(batch, now) || changed || !batch.messages.is_empty() || now >= deadline {
                return Ok(progress);
            }
            std::thread::sleep(self.next_look.min(deadline).saturating_sub(now));
            now = self.clock.monotonic();
        }
    }

    fn assign(&mut self, add: &[Assignment], remove: &[SplitId]) -> Result<()> {
        self.next_look = Duration::ZERO;
        self.splits.retain(|split| !remove.contains(&split.split.id));
        for assignment in add {
            self.splits.push(FileSplit::open(path_of(&self.folder, &assignment.split.name), assignment)?);
        }
        Ok(())
    }

    fn pause(&mut self, splits: &[SplitId], paused: bool) -> Result<()> {
        self.next_look = Duration::ZERO;
        for split in self.splits.iter_mut().filter(|split| splits.contains(&split.split.id)) {
            split.paused = paused;
            if split.evidence != Evidence::Ended {
                split.evidence = Evidence::Behind;
            }
        }
        Ok(())
    }
}

/// Files do not want to know.
pub(super) struct FileCommitter;

impl Committer for FileCommitter {
    fn commit(&mut self, _offsets: &Offsets, _rejected: &[(SplitId, Offset, Reason)]) -> Result<()> {
        Ok(())
    }
}
