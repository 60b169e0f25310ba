//! The processes of a job that runs in several: how they find each other, and how they notice that one is gone.
//!
//! Every process is started with the same options and its own `-p`; `-h` names a file with the address of each, one a line
//! (`host:port`; several addresses with spaces between them where a machine has several), else they are `localhost:2101` and up.
//! Process `i` listens on its own address and calls those before it.
//!
//! **Meeting.** Each connection begins with a handshake: the version of this crate, the name and settings of the job, `-n`, `-w`,
//! `-p`, and a random token, which tells a process from an earlier one in its place. What does not fit is refused, and both sides
//! say why: the process that called ends, the one that was called waits on for the right one. What is no process of a job (a port
//! scanner, a health check) is dropped with a warning. Who is not there yet is waited for, up to [`CONNECT_TIMEOUT`] or
//! [`Job::connect_timeout`](crate::Job::connect_timeout); then the error names who was missing. When one ends that was there
//! already, the others end too.
//!
//! **Watching.** Beside timely's connection every two processes have one for beats, at least one a second. A process that is killed
//! is noticed when its connections close, one that is stopped or cut off when nothing was heard of it for [`PEER_TIMEOUT`] or
//! [`Job::peer_timeout`](crate::Job::peer_timeout). Either ends this process, with an error that names that one. Beats come from a
//! thread of their own: load, a long restore of state or a broker that does not answer stop none. So a process whose workers hang
//! for ever while it lives is not noticed. A pause of this process itself (stopped, and let go on) is not held against others.
//!
//! **Security.** There is none: processes talk in plain text, without authentication, and who can connect can read and forge
//! everything. Use a network that you trust, or tunnels.
//!
//! A job that needs to go on by itself keeps checkpoints, and all its processes are started again when one has ended: `syncline
//! sync --supervise --restart forever` does that on one machine.

mod greet;
mod link;
mod meet;
#[cfg(test)]
mod tests;
mod watch;
mod wire;

use std::hash::{BuildHasher, RandomState};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::bounded;
use timely::communication::allocator::zero_copy::initialize::initialize_networking_from_sockets;
use timely::communication::allocator::{AllocatorBuilder, ProcessBuilder};
use timely::communication::{Hooks, WorkerGuards};
use timely::worker::Worker;
use timely::{CommunicationConfig, WorkerConfig};
use xxhash_rust::xxh3::xxh3_64;

use self::link::{Link, Peer, Pulse};
use self::meet::{Met, meet};
use self::watch::{Watch, beat_of};
use self::wire::Hello;
use crate::control::Control;
use crate::epoch::SystemClock;
use crate::error::{Error, ErrorKind, Result};

/// How long nothing may be heard of a process before the others end, if nothing else is said.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the processes of a job may take to meet, if nothing else is said.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a process that has failed waits for the others to hear it and to end, before it leaves them.
const PARTING: Duration = Duration::from_secs(10);

/// What the processes of a job must agree on beside timely's options, and how patient they are.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// The name of the job.
    pub job: String,
    /// Its settings, by name.
    pub settings: Vec<(String, String)>,
    pub peer_timeout: Duration,
    pub connect_timeout: Duration,
}

/// How the workers of this process have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By themselves; the control of the job knows whether it has failed.
    Ended,
    /// One has panicked.
    Panicked,
    /// The job was stopped before all processes had met: there were none.
    NotBegun,
}

/// Runs workers, in this process alone or with others, to their end.
///
/// # Errors
///
/// The processes have not met, or threads cannot be started. What happens later is told to the control.
pub(crate) fn run<F>(config: timely::Config, terms: &Terms, control: &Control, work: F) -> Result<End>
where
    F: Fn(&mut Worker) + Send + Sync + 'static,
{
    let timely::Config { communication, worker } = config;
    let (threads, process, addresses, zerocopy) = match communication {
        CommunicationConfig::Cluster { threads, process, addresses, zerocopy, .. } => {
            (threads, process, addresses, zerocopy)
        }
        alone => {
            let (builders, others) = alone.try_build().map_err(cannot_start)?;
            let guards = timely::execute::execute_from(builders, others, worker, work).map_err(cannot_start)?;
            return Ok(wait(guards));
        }
    };
    if process >= addresses.len() {
        let text = format!("there is no process {process} (-p) of {} (-n): they are counted from 0", addresses.len());
        return Err(Error::new(ErrorKind::Config, text));
    }
    let me = hello(terms, addresses.len(), threads, process);
    let Some(met) = meet(me, addresses, terms.connect_timeout, control)? else { return Ok(End::NotBegun) };
    let party = Party { met, process, threads, zerocopy, peer_timeout: terms.peer_timeout };
    party.run(worker, control, work)
}

fn cannot_start(text: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Cluster, format!("the workers cannot be started: {text}"))
}

fn wait(guards: WorkerGuards<()>) -> End {
    if guards.join().iter().all(std::result::Result::is_ok) { End::Ended } else { End::Panicked }
}

fn hello(terms: &Terms, processes: usize, threads: usize, process: usize) -> Hello {
    let hashed = |(name, value): &(String, String)| (name.clone(), xxh3_64(value.as_bytes()));
    Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        job: terms.job.clone(),
        settings: terms.settings.iter().map(hashed).collect(),
        processes: processes as u64,
        threads: threads as u64,
        index: process as u64,
        token: RandomState::new().hash_one(std::process::id()),
        peer_timeout: u64::try_from(terms.peer_timeout.as_millis()).unwrap_or(u64::MAX),
        to: process as u64,
        is_beat: false,
    }
}

/// Processes that have met, as one of them sees them.
struct Party {
    met: Vec<Option<Met>>,
    process: usize,
    threads: usize,
    zerocopy: bool,
    peer_timeout: Duration,
}

impl Party {
    fn run<F>(self, worker: WorkerConfig, control: &Control, work: F) -> Result<End>
    where
        F: Fn(&mut Worker) + Send + Sync + 'static,
    {
        let timeouts = self.met.iter().flatten().map(|met| met.peer_timeout).chain([self.peer_timeout]);
        let beat = beat_of(timeouts);
        let pulse = Arc::new(Pulse::new(Arc::new(SystemClock::new()), self.peer_timeout));
        let (working, workers) = bounded::<()>(0);
        let (alive, threads_of_timely) = bounded::<()>(0);
        let mut peers: Vec<(Arc<Peer>, TcpStream)> = vec![];
        let mut links = vec![];
        for met in self.met {
            let Some(Met { name, data, beat, .. }) = met else {
                links.push(None);
                continue;
            };
            let peer = Arc::new(Peer::new(name, &data, control, &pulse).map_err(cannot_start)?);
            peers.push((Arc::clone(&peer), beat));
            links.push(Some(Link { peer, stream: data, zeros: 0, workers: workers.clone(), alive: alive.clone() }));
        }
        drop(alive);
        let all: Vec<Arc<Peer>> = peers.iter().map(|(peer, _)| Arc::clone(peer)).collect();
        let watch = Watch::start(peers, beat, self.peer_timeout, pulse, control)?;

        let hooks = Hooks::default();
        let (refill, spill) = (hooks.refill.clone(), hooks.spill.clone());
        let inside = match self.zerocopy {
            false => ProcessBuilder::new_typed_vector(self.threads, refill, spill),
            true => ProcessBuilder::new_bytes_vector(self.threads, refill, spill),
        };
        let network = initialize_networking_from_sockets(inside, links, self.process, self.threads, hooks);
        let begun = network.map_err(cannot_start).and_then(|(builders, threads)| {
            let builders = builders.into_iter().map(AllocatorBuilder::Tcp).collect();
            let guards = timely::execute::execute_from(builders, Box::new(()), worker, work).map_err(cannot_start)?;
            Ok((guards, threads))
        });
        let (guards, threads) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                all.iter().for_each(|peer| peer.cut());
                watch.stop();
                return Err(error);
            }
        };
        let end = wait(guards);
        drop(working);

        // The others may still work; while they do they are watched. Threads of timely end with their connections.
        if end == End::Panicked {
            all.iter().for_each(|peer| peer.cut()); // timely cannot end them any more
        } else if control.has_failed() {
            let _ = threads_of_timely.recv_timeout(PARTING); // nothing is sent
            all.iter().for_each(|peer| peer.cut());
        }
        let _ = threads_of_timely.recv();
        watch.stop();
        if end == End::Panicked || all.iter().any(|peer| peer.is_lost()) {
            std::mem::forget(threads); // it would panic in turn
        } else if catch_unwind(AssertUnwindSafe(|| drop(threads))).is_err() {
            let text = "the connection to another process of the job was lost: it has ended";
            control.fail(Error::new(ErrorKind::Cluster, text));
        }
        Ok(end)
    }
}
