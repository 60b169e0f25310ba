//! The connections that timely talks through: they know whom they connect to, and say so when one breaks.
//!
//! Timely's own threads can only panic then, with a text that names nobody, and the panic goes on in its workers. Here the job fails
//! first, with an error that names the process; its workers end as they do after any failure; and only then timely's threads do,
//! without a word.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use timely::communication::allocator::zero_copy::stream::Stream;

use crate::control::Control;
use crate::epoch::Clock;
use crate::error::{Error, ErrorKind};

/// What timely sends at the end of a connection: a header of six numbers that are 0. No other message ends with so many zeros
/// but by chance; then a connection that breaks there is found broken by timely itself.
const END_ZEROS: usize = 6 * size_of::<u64>();

/// For how long after a pause of this process whatever breaks is put down to it.
const AFTERMATH: Duration = Duration::from_secs(10);

/// When this process last showed that it lives: one that was stopped must know that this is why it was given up.
#[derive(Debug)]
pub(super) struct Pulse {
    clock: Arc<dyn Clock>,
    /// A pause that is longer is worth to be told.
    longest: Duration,
    beats: Mutex<Beats>,
}

#[derive(Debug)]
struct Beats {
    last: Duration,
    /// The last pause, and when it ended.
    pause: Option<(Duration, Duration)>,
}

impl Pulse {
    pub fn new(clock: Arc<dyn Clock>, longest: Duration) -> Self {
        let beats = Beats { last: clock.monotonic(), pause: None };
        Pulse { clock, longest, beats: Mutex::new(beats) }
    }

    /// It lives. Gives the pause that has ended, if there was one, and keeps it for those who find what came of it.
    pub fn beat(&self) -> Option<Duration> {
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.monotonic();
        let pause = Some(now.saturating_sub(beats.last)).filter(|pause| *pause > self.longest);
        beats.last = now;
        beats.pause = pause.map(|pause| (pause, now)).or(beats.pause);
        pause
    }

    /// What is to be said of a pause of this process that has just ended.
    fn pause(&self) -> String {
        self.beat(); // whoever finds out first
        let pause = self.beats.lock().unwrap_or_else(PoisonError::into_inner).pause;
        match pause.filter(|(_, ended)| self.clock.monotonic().saturating_sub(*ended) < AFTERMATH) {
            Some((pause, _)) => format!("; this process stood still for {}s, and was given up", pause.as_secs()),
            None => String::new(),
        }
    }
}

/// Another process of the job.
pub(super) struct Peer {
    /// As texts name it.
    pub name: String,
    /// The connection, to end it from outside.
    stream: TcpStream,
    control: Control,
    pulse: Arc<Pulse>,
    lost: AtomicBool,
    /// The connection has ended as it should.
    ended: AtomicBool,
}

impl Peer {
    pub fn new(name: String, data: &TcpStream, control: &Control, pulse: &Arc<Pulse>) -> io::Result<Self> {
        let (control, pulse, stream) = (control.clone(), Arc::clone(pulse), data.try_clone()?);
        Ok(Peer { name, stream, control, pulse, lost: AtomicBool::new(false), ended: AtomicBool::new(false) })
    }

    /// Gives it up: the job fails.
    pub fn lose(&self, why: &str) {
        if !self.lost.swap(true, Ordering::SeqCst) {
            let text = format!("the connection to {} was lost: {why}{}", self.name, self.pulse.pause());
            self.control.fail(Error::new(ErrorKind::Cluster, text));
        }
        self.cut();
    }

    /// Ends the connection, so that nobody waits for it any more: it is lost, and this process knows why.
    pub fn cut(&self) {
        self.lost.store(true, Ordering::SeqCst);
        let _ = self.stream.shutdown(Shutdown::Both); // it may be gone
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Nothing more is expected of it.
    pub fn is_over(&self) -> bool {
        self.is_lost() || self.ended.load(Ordering::SeqCst)
    }
}

/// What a closed connection means.
const ENDED: &str = "it has ended; if it was not killed, its standard error says why";

/// What a broken connection means. One that is closed with bytes that nobody has read is reset.
fn broken(error: &io::Error) -> String {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    match error.kind() {
        BrokenPipe | ConnectionAborted | ConnectionReset => ENDED.to_owned(),
        _ => error.to_string(),
    }
}

/// Timely's end of a connection.
pub(super) struct Link {
    pub peer: Arc<Peer>,
    pub stream: TcpStream,
    /// How many zeros came last.
    pub zeros: usize,
    /// Disconnected when the workers have ended.
    pub workers: Receiver<()>,
    /// Dropped with the last clone of the link, when timely's threads have ended.
    pub alive: Sender<()>,
}

impl Link {
    /// Ends the thread of timely that reads, when nobody is left who could wait for it. Its panic is not a fault to be printed.
    fn end(&self, why: &str) -> ! {
        self.peer.lose(why);
        let _ = self.workers.recv(); // nothing is sent
        resume_unwind(Box::new("the connection was lost"))
    }
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Ok(0) if self.zeros >= END_ZEROS => {
                    self.peer.ended.store(true, Ordering::SeqCst);
                    return Ok(0);
                }
                Ok(0) => self.end(ENDED),
                Ok(read) => {
                    let zeros = buffer[..read].iter().rev().take(END_ZEROS).take_while(|byte| **byte == 0).count();
                    self.zeros = if zeros == read { self.zeros + read } else { zeros };
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.end(&broken(&error)),
            }
        }
    }
}

impl Write for Link {
    /// What cannot be written any more is let go: the job has failed, and the thread that reads says so.
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self.stream.write(buffer) {
            _ if self.peer.is_lost() => Ok(buffer.len()),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                self.peer.lose(&broken(&error));
                Ok(buffer.len())
            }
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Link {
    fn try_clone(&self) -> io::Result<Self> {
        let (peer, stream) = (Arc::clone(&self.peer), self.stream.try_clone()?);
        Ok(Link { peer, stream, zeros: 0, workers: self.workers.clone(), alive: self.alive.clone() })
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.stream.set_nonblocking(nonblocking)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let _ = self.stream.shutdown(how); // the other side may have ended the connection before
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use crossbeam_channel::bounded;

    use super::*;
    use crate::epoch::{ManualClock, SystemClock};

    fn link() -> (Link, TcpStream, Control) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, control) = (listener.accept().unwrap().0, Control::new());
        let pulse = Arc::new(Pulse::new(Arc::new(SystemClock::new()), Duration::from_secs(30)));
        let peer = Arc::new(Peer::new("process 1 (a:1)".into(), &stream, &control, &pulse).unwrap());
        let link = Link { peer, stream, zeros: 0, workers: bounded(0).1, alive: bounded(0).0 };
        (link, other, control)
    }

    fn read_to_end(link: Link) -> std::thread::Result<Vec<u8>> {
        let mut link = link;
        std::thread::spawn(move || {
            let mut bytes = vec![];
            link.read_to_end(&mut bytes).unwrap();
            bytes
        })
        .join()
    }

    #[test]
    fn a_connection_ends_well_behind_the_header_of_zeros_however_it_comes() {
        for size in [1, 7, 48, 60] {
            let (link, mut other, control) = link();
            let peer = Arc::clone(&link.peer);
            let bytes = [vec![1; 12], vec![0; 48]].concat();
            for piece in bytes.chunks(size) {
                other.write_all(piece).unwrap();
            }
            drop(other);
            assert_eq!(read_to_end(link).unwrap(), bytes);
            assert!(peer.is_over() && !peer.is_lost() && !control.has_failed());
        }
    }

    #[test]
    fn a_connection_that_breaks_fails_the_job_and_names_the_process() {
        for bytes in [vec![], vec![1; 48], vec![0; 47], [vec![0; 48], vec![1]].concat()] {
            let (mut link, mut other, control) = link();
            let writer = Arc::clone(&link.peer);
            other.write_all(&bytes).unwrap();
            drop(other);
            let mut clone = link.try_clone().unwrap();
            link.zeros = 0;
            assert!(read_to_end(link).is_err()); // without a word: by resume_unwind
            let error = control.take_failure().unwrap();
            assert_eq!(error.kind(), ErrorKind::Cluster);
            assert!(
                error.to_string().starts_with("the connection to process 1 (a:1) was lost: it has ended"),
                "{error}"
            );
            assert!(writer.is_lost());
            clone.write_all(&[1; 1 << 20]).unwrap(); // nobody reads it
            clone.shutdown(Shutdown::Write).unwrap();
        }
    }

    #[test]
    fn a_connection_that_is_reset_has_ended_too() {
        let (link, other, control) = link();
        (&link.stream).write_all(b"which nobody reads").unwrap();
        other.peek(&mut [0]).unwrap(); // it is there
        drop(other);
        assert!(read_to_end(link).is_err());
        let error = control.take_failure().unwrap().to_string();
        assert!(error.contains("was lost: it has ended"), "{error}");
    }

    #[test]
    fn a_pause_of_ones_own_is_remembered_for_a_while_whoever_finds_it() {
        let clock = ManualClock::new(0);
        let pulse = Pulse::new(Arc::new(clock.clone()), Duration::from_secs(30));
        let after = |seconds: u64| {
            clock.advance(Duration::from_secs(seconds));
            pulse.pause()
        };
        assert_eq!(after(30), "");
        assert_eq!(after(61), "; this process stood still for 61s, and was given up");
        assert_eq!(after(5), "; this process stood still for 61s, and was given up");
        assert_eq!(after(10), "");
        clock.advance(Duration::from_secs(40));
        assert_eq!((pulse.beat(), pulse.beat()), (Some(Duration::from_secs(40)), None)); // by the thread that beats
        assert_eq!(after(1), "; this process stood still for 40s, and was given up");
    }
}
