//! From the bound to the broker: the thread that tells it what is done.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::control::Control;
use crate::error::Result;
use crate::message::{Offset, Offsets, Reason, SplitId};
use crate::observe::Status;
use crate::reader::spawn_thread;
use crate::source::Committer;

/// How often a last commit is tried at the end of a job.
const LAST_TRIES: u32 = 5;

/// When a failed commit is said again if nothing new is done. Sooner: more calls of a broker in trouble; later: messages of a
/// queue may be delivered again meanwhile.
const COMMIT_AGAIN: Duration = Duration::from_secs(1);

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
    pub fn spawn(
        thread_name: String,
        source: String,
        committer: Box<dyn Committer>,
        control: &Control,
        status: Arc<Status>,
    ) -> Result<Self> {
        let (done, queue) = unbounded();
        let (ended_in, ended) = bounded(1);
        let thread = spawn_thread(thread_name, control, move || {
            run(&source, committer, &queue, &status);
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

fn run(source: &str, mut committer: Box<dyn Committer>, queue: &Receiver<Done>, status: &Status) {
    let mut pending = Done::default();
    loop {
        let next = if pending.is_empty() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            queue.recv_timeout(COMMIT_AGAIN)
        };
        match next {
            Ok(done) => pending.absorb(done),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        queue.try_iter().for_each(|newer| pending.absorb(newer));
        commit(source, &mut *committer, &mut pending, status);
    }
    for _ in 1..LAST_TRIES {
        if pending.is_empty() {
            return;
        }
        commit(source, &mut *committer, &mut pending, status);
    }
}

/// A failed commit is a warning: recovery never depends on it, and the next one brings these offsets too.
fn commit(source: &str, committer: &mut dyn Committer, pending: &mut Done, status: &Status) {
    match committer.commit(&pending.offsets, &pending.rejected) {
        Ok(()) => *pending = Done::default(),
        Err(error) => {
            status.failed_commit();
            tracing::warn!(source, error = %error.report(), "commit failed, the next one will say it again");
        }
    }
}
