//! The thread that owns a [`Source`]: looks for new splits, and asks the broker what the reader wants to know.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, never, select, tick, unbounded};

use super::{ReaderSpec, check_splits, is_mine, resumed, spawn_thread};
use crate::epoch::Clock;
use crate::error::Result;
use crate::message::{Offsets, Split};
use crate::reader::health::Question;
use crate::source::{Assignment, Committer, Reader, Source};

/// What the reader asks for.
pub(super) enum Ask {
    Backlog(Question),
    /// A new reader of these splits.
    Open(Vec<Assignment>),
}

/// What the thread has to say.
pub(super) enum Answer {
    /// Splits to add, and to read no more.
    Splits {
        add: Vec<Assignment>,
        remove: Vec<Split>,
    },
    /// What the broker holds for all splits of the question, and for the silent ones, and how long it took to find out.
    Backlog {
        all: Result<Option<u64>>,
        silent: Result<Option<u64>>,
        took: Duration,
    },
    Opened(Result<(Box<dyn Reader>, Box<dyn Committer>)>),
}

/// The reader's ends of the channels. The thread ends when `asks` is dropped.
pub(super) struct SourceThread {
    pub asks: Sender<Ask>,
    pub answers: Receiver<Answer>,
}

impl SourceThread {
    pub fn ask(&self, ask: Ask) {
        let _ = self.asks.send(ask); // the thread ends after its asker, or the job has failed
    }
}

/// What the thread needs to know.
struct Discovery {
    name: String,
    ordinal: usize,
    worker: usize,
    peers: usize,
    known: Vec<Split>,
    /// Where a checkpoint says that splits go on: one may have been out of sight at the start.
    resume: Offsets,
}

/// Starts the thread; it looks for splits `every` so often, if at all.
pub(super) fn start<T>(
    spec: &ReaderSpec<T>,
    mut source: Box<dyn Source>,
    found: Vec<Split>,
    every: Option<Duration>,
) -> Result<SourceThread> {
    let (asks, questions) = unbounded();
    let (answers_in, answers) = unbounded();
    let ReaderSpec { name, ordinal, worker, peers, .. } = spec;
    let mut discovery = Discovery {
        name: name.clone(),
        ordinal: *ordinal,
        worker: *worker,
        peers: *peers,
        known: found,
        resume: spec.resume.clone(),
    };
    let clock = Arc::clone(&spec.clock);
    let body = move || {
        let looks = every.map_or_else(never, tick);
        loop {
            let answer = select! {
                recv(questions) -> ask => match ask {
                    Ok(Ask::Backlog(question)) => Some(backlog(&mut *source, &question, &*clock)),
                    Ok(Ask::Open(assignments)) => Some(Answer::Opened(source.open(&assignments))),
                    Err(_) => return,
                },
                recv(looks) -> _ => discovery.look(&mut *source),
            };
            if answer.is_some_and(|answer| answers_in.send(answer).is_err()) {
                return;
            }
        }
    };
    spawn_thread(format!("find-{ordinal}-{worker}"), &spec.control, body)?;
    Ok(SourceThread { asks, answers })
}

fn backlog(source: &mut dyn Source, question: &Question, clock: &dyn Clock) -> Answer {
    let start = clock.monotonic();
    let mut ask = |offsets: &Offsets| if offsets.is_empty() { Ok(Some(0)) } else { source.backlog(offsets) };
    let silent = ask(&question.silent);
    let all = match &silent {
        Ok(left) if question.silent == question.all => Ok(*left),
        Ok(_) => ask(&question.all),
        Err(_) => Ok(None), // it would not be said either
    };
    Answer::Backlog { all, silent, took: clock.monotonic().saturating_sub(start) }
}

impl Discovery {
    /// Looks for splits that have come or gone.
    fn look(&mut self, source: &mut dyn Source) -> Option<Answer> {
        let name = &self.name;
        let now = match source.splits().and_then(|now| check_splits(name, &now).map(|()| now)) {
            Ok(now) => now,
            Err(error) => {
                tracing::warn!(source = name, error = %error.report(), "splits could not be listed, the list stays");
                return None;
            }
        };
        let mine = |split: &&Split| is_mine(split, self.ordinal, self.worker, self.peers);
        let lacks = |list: &[Split], split: &Split| !list.iter().any(|other| other.id == split.id);
        let added: Vec<Split> = now.iter().filter(|s| lacks(&self.known, s)).filter(mine).cloned().collect();
        let removed: Vec<Split> = self.known.iter().filter(|s| lacks(&now, s)).filter(mine).cloned().collect();
        // Messages written before a split was found must not be lost, so it begins at its beginning.
        let from = match source.resolve(&resumed(&self.resume, &added), &added) {
            Ok(from) => from,
            Err(error) => {
                tracing::warn!(source = name, error = %error.report(), "new splits cannot be read yet");
                return None;
            }
        };
        self.known = now;
        let mut add = vec![];
        for split in added {
            let Some(from) = from.get(&split.id).copied() else {
                tracing::warn!(
                    source = name,
                    split = split.name,
                    "no beginning is known of a new split, it is asked for again"
                );
                self.known.retain(|other| other.id != split.id);
                continue;
            };
            tracing::info!(source = name, split = split.name, offset = from.0, "found a new split");
            add.push(Assignment { split, from, until: None });
        }
        (!(add.is_empty() && removed.is_empty())).then_some(Answer::Splits { add, remove: removed })
    }
}
