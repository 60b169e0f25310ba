//! From the bound to the broker: the thread that tells it what is done.

use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::error::Result;
use crate::message::{Offset, Offsets, Reason, SplitId};
use crate::reader::spawn_thread;
use crate::source::Committer;

/// How often a last commit is tried at the end of a job.
const LAST_TRIES: u32 = 5;

/// What is done since the last time.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub offsets: Offsets,
    pub rejected: Vec<(SplitId, Offset, Reason)>,
}

impl Done {
    fn absorb(&mut self, newer: Done) {
        self.offsets.extend(newer.offsets);
        self.rejected.extend(newer.rejected);
    }
    fn is_empty(&self) -> bool {
        self.offsets.is_empty() && self.rejected.is_empty()
    }
}

/// Owns a [`Committer`] and calls it on a thread of its own; a slow broker delays nobody, and gets the newest offsets.
#[derive(Debug)]
pub(crate) struct CommitThread {
    done: Sender<Done>,
    ended: Receiver<()>,
    thread: JoinHandle<()>,
}

impl CommitThread {
    pub fn spawn(thread_name: String, source: String, committer: Box<dyn Committer>) -> Result<Self> {
        let (done, queue) = unbounded();
        let (ended_in, ended) = bounded(1);
        let thread = spawn_thread(thread_name, move || {
            run(&source, committer, &queue);
            let _ = ended_in.send(());
        })?;
        Ok(CommitThread { done, ended, thread })
    }

    pub fn commit(&self, done: Done) {
        if !done.is_empty() {
            let _ = self.done.send(done); // the thread ends only after the sender
        }
    }

    /// Waits until everything is committed, or as long as told; says which.
    pub fn finish(self, longest: Duration) -> bool {
        drop(self.done);
        self.ended.recv_timeout(longest).is_ok() && self.thread.join().is_ok()
    }
}

fn run(source: &str, mut committer: Box<dyn Committer>, queue: &Receiver<Done>) {
    let mut pending = Done::default();
    while let Ok(done) = queue.recv() {
        pending.absorb(done);
        queue.try_iter().for_each(|newer| pending.absorb(newer));
        commit(source, &mut *committer, &mut pending);
    }
    for _ in 1..LAST_TRIES {
        if pending.is_empty() {
            return;
        }
        commit(source, &mut *committer, &mut pending);
    }
}

/// A failed commit is a warning: recovery never depends on it, and the next one brings these offsets too.
fn commit(source: &str, committer: &mut dyn Committer, pending: &mut Done) {
    match committer.commit(&pending.offsets, &pending.rejected) {
        Ok(()) => *pending = Done::default(),
        Err(error) => tracing::warn!(source, error = %error.report(), "commit failed, the next one will say it again"),
    }
}
