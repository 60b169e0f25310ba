//! From the bound to the broker: the thread that tells it what is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, after, bounded, never, select, unbounded};

use crate::control::Control;
use crate::epoch::Epoch;
use crate::error;
use crate::message::{Offset, Offsets, Reason, SplitId};
use crate::observe::Status;
use crate::reader::spawn_thread;
use crate::source::Committer;

/// How often a last commit is tried at the end of a job, and how long it rests in between.
const LAST_TRIES: u32 = 5;
const LAST_REST: Duration = Duration::from_millis(500);

/// Rejected messages that are remembered while a broker takes no commit; it may be told of them or not.
pub(crate) const MOST_REJECTED: usize = 10_000;

/// When a failed commit is said again. Sooner: more calls of a broker in trouble; later: messages of a queue may be delivered
/// again meanwhile.
const COMMIT_AGAIN: Duration = Duration::from_secs(1);

/// What is done since the last time.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// All of it is below this epoch.
    pub bound: Epoch,
    pub offsets: Offsets,
    pub rejected: Vec<(SplitId, Offset, Reason)>,
}

impl Done {
    fn absorb(&mut self, newer: Done) {
        self.bound = newer.bound;
        self.offsets.extend(newer.offsets);
        self.rejected.extend(newer.rejected);
        let surplus = self.rejected.len().saturating_sub(MOST_REJECTED);
        self.rejected.drain(..surplus);
    }
    fn is_empty(&self) -> bool {
        self.offsets.is_empty() && self.rejected.is_empty()
    }
}

/// Owns a [`Committer`] and calls it on a thread of its own; a slow broker delays nobody, and gets the newest offsets.
#[derive(Debug)]
pub(crate) struct CommitThread {
    done: Sender<Done>,
    /// The bound of the last commit that the broker has taken.
    committed: Arc<AtomicU64>,
    /// Whether everything is committed, said at the end.
    ended: Receiver<bool>,
    thread: JoinHandle<()>,
}

impl CommitThread {
    pub fn spawn(
        thread_name: String,
        source: String,
        committer: Box<dyn Committer>,
        others: Receiver<Box<dyn Committer>>,
        control: &Control,
        status: Arc<Status>,
    ) -> error::Result<Self> {
        let (done, queue) = unbounded();
        let (ended_in, ended) = bounded(1);
        let committed = Arc::<AtomicU64>::default();
        let told = Told { source, status, committed: Arc::clone(&committed) };
        let thread = spawn_thread(thread_name, control, move || {
            let _ = ended_in.send(run(&told, committer, others, &queue));
        })?;
        Ok(CommitThread { done, committed, ended, thread })
    }

    /// Commits what is done, if there is anything; says whether there is.
    pub fn commit(&self, done: Done) -> bool {
        let any = !done.is_empty();
        if any {
            let _ = self.done.send(done); // the thread ends only after the sender
        }
        any
    }

    /// The bound of the last commit that the broker has taken; 0 before the first.
    pub fn committed(&self) -> Epoch {
        self.committed.load(Ordering::Acquire)
    }

    /// Lets the thread commit what is left, and end.
    pub fn finish(self) -> LastCommit {
        LastCommit { ended: self.ended, thread: self.thread }
    }
}

/// The last commit of an input, on its way.
pub(crate) struct LastCommit {
    ended: Receiver<bool>,
    thread: JoinHandle<()>,
}

impl LastCommit {
    /// Waits until everything is committed, or as long as told; says whether it is.
    pub fn wait(self, longest: Duration) -> bool {
        self.ended.recv_timeout(longest) == Ok(true) && self.thread.join().is_ok()
    }
}

/// Who hears of commits.
struct Told {
    source: String,
    status: Arc<Status>,
    committed: Arc<AtomicU64>,
}

/// Commits until nobody has more; says whether everything is committed. `others` brings a committer in place of the one before,
/// when the reader was opened anew.
fn run(
    told: &Told,
    mut committer: Box<dyn Committer>,
    mut others: Receiver<Box<dyn Committer>>,
    queue: &Receiver<Done>,
) -> bool {
    let mut pending = Done::default();
    loop {
        // After a failure the broker gets a rest, whatever is done meanwhile.
        let rests = !pending.is_empty();
        let over = if rests { after(COMMIT_AGAIN) } else { never() };
        let goes_on = loop {
            select! {
                recv(queue) -> done => match done {
                    Ok(done) => pending.absorb(done),
                    Err(_) => break false,
                },
                recv(others) -> other => match other {
                    Ok(other) => committer = other,
                    Err(_) => others = never(), // the reader has ended
                },
                recv(over) -> _ => break true,
            }
            if !rests && !pending.is_empty() {
                break true;
            }
        };
        if !goes_on {
            break;
        }
        queue.try_iter().for_each(|newer| pending.absorb(newer));
        commit(told, &mut *committer, &mut pending);
    }
    for _ in 1..LAST_TRIES {
        if pending.is_empty() {
            break;
        }
        thread::sleep(LAST_REST);
        commit(told, &mut *committer, &mut pending);
    }
    pending.is_empty()
}

/// A failed commit is a warning: the next one brings these offsets too.
fn commit(told: &Told, committer: &mut dyn Committer, pending: &mut Done) {
    match committer.commit(&pending.offsets, &pending.rejected) {
        Ok(()) => told.committed.store(std::mem::take(pending).bound, Ordering::Release),
        Err(error) => {
            told.status.failed_commit();
            tracing::warn!(source = told.source, error = %error.report(), "commit failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};

    /// Fails so often before it takes a commit.
    struct Failing(usize);

    impl Committer for Failing {
        fn commit(&mut self, _offsets: &Offsets, _rejected: &[(SplitId, Offset, Reason)]) -> error::Result<()> {
            match self.0.checked_sub(1) {
                None => Ok(()),
                Some(left) => {
                    self.0 = left;
                    Err(Error::new(ErrorKind::Connect, "away").retryable())
                }
            }
        }
    }

    fn finish(failures: usize) -> (bool, u64) {
        let (control, status) = (Control::new(), Arc::<Status>::default());
        let committer = Box::new(Failing(failures));
        let thread =
            CommitThread::spawn("commit".into(), "source".into(), committer, never(), &control, Arc::clone(&status))
                .unwrap();
        let offsets = Offsets::from([(SplitId::numbered("topic", 0), Offset(1))]);
        thread.commit(Done { bound: 7, offsets, rejected: vec![] });
        let committed = Arc::clone(&thread.committed);
        let done = thread.finish().wait(Duration::from_secs(30));
        assert_eq!(committed.load(Ordering::Acquire), if done { 7 } else { 0 });
        (done, status.snapshot().failed_commits)
    }

    #[test]
    fn the_end_says_whether_the_last_commit_was_taken() {
        assert_eq!(finish(0), (true, 0));
        assert_eq!(finish(2), (true, 2));
        assert_eq!(finish(100), (false, u64::from(LAST_TRIES)));
    }

    #[test]
    fn a_broker_that_takes_no_commit_is_told_of_the_newest_rejections_alone() {
        let rejected = |offset| (SplitId::numbered("topic", 0), Offset(offset), Reason::InvalidJson);
        let mut pending = Done::default();
        for offset in 0..2 * MOST_REJECTED as u64 {
            pending.absorb(Done { bound: offset, offsets: Offsets::new(), rejected: vec![rejected(offset)] });
        }
        assert_eq!(pending.rejected.len(), MOST_REJECTED);
        assert_eq!(pending.rejected.last(), Some(&rejected(2 * MOST_REJECTED as u64 - 1)));
    }
}
