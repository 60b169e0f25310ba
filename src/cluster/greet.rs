//! The handshake of one connection, from either side; each on a thread of its own, so that nobody who is slow or silent holds
//! anybody else up.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::wire::{Frame, FrameReader, Hello, NoFrame};
use crate::epoch::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};

/// How long a connection may take to say who it is. Shorter: a process under heavy load is dropped, and tries again; longer:
/// scanners hold threads.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// How long one try to connect may take, where nothing answers.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// The waits between tries to connect. Processes are mostly started together, so that the first tries find somebody soon.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// How many connections are greeted at a time; more are closed. Far above what the processes of a job need.
const MOST_GUESTS: usize = 256;

/// A process that has come, or has not.
#[derive(Debug, Default)]
pub(super) struct Seat {
    pub data: Option<TcpStream>,
    pub beat: Option<TcpStream>,
    pub token: u64,
    pub peer_timeout: u64,
    /// Why it is not here, as far as that is known.
    pub note: Option<String>,
    /// It will not come: it refuses this process.
    pub refusal: Option<String>,
    /// What it has said of its own meeting.
    pub frames: FrameReader,
    pub ready: Option<Vec<u64>>,
    /// It was told that this process has met everybody.
    pub told: bool,
}

impl Seat {
    pub fn is_taken(&self) -> bool {
        self.data.is_some() && self.beat.is_some()
    }
}

/// What the threads of a meeting share.
pub(super) struct Hall {
    pub me: Hello,
    /// Where each process listens: one address, or several with spaces between them.
    pub addresses: Vec<String>,
    pub clock: SystemClock,
    seats: Mutex<Vec<Seat>>,
    over: AtomicBool,
    guests: AtomicUsize,
}

/// Why a call did not bring two processes together.
enum Call {
    /// It may later.
    Nobody(String),
    /// It never will.
    Refused(String),
}

impl From<io::Error> for Call {
    fn from(error: io::Error) -> Self {
        Call::Nobody(error.to_string())
    }
}

/// A stream whose reads end together.
struct Within<'a> {
    stream: &'a TcpStream,
    clock: &'a SystemClock,
    until: Duration,
}

impl Read for Within<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.until.saturating_sub(self.clock.monotonic()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => {
                self.stream.set_read_timeout(Some(left))?;
                self.stream.read(buffer)
            }
        }
    }
}

impl Hall {
    pub fn new(me: Hello, addresses: Vec<String>) -> Self {
        let seats = addresses.iter().map(|_| Seat::default()).collect();
        let (over, guests) = (AtomicBool::new(false), AtomicUsize::new(0));
        Hall { me, addresses, clock: SystemClock::new(), seats: Mutex::new(seats), over, guests }
    }

    pub fn seats(&self) -> MutexGuard<'_, Vec<Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process, as texts name it.
    pub fn name(&self, index: usize) -> String {
        match self.addresses.get(index) {
            Some(address) => format!("process {index} ({address})"),
            None => format!("process {index}"),
        }
    }

    /// Nobody is greeted or called any more.
    pub fn close(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn read(&self, stream: &TcpStream) -> Result<Frame, NoFrame> {
        let until = self.clock.monotonic() + HELLO_WITHIN;
        FrameReader::default().read(&mut Within { stream, clock: &self.clock, until })
    }

    /// Why these two cannot be processes of one job, in words that hold on both sides.
    fn mismatch(&self, other: &Hello) -> Option<String> {
        let (me, here, there) = (&self.me, self.me.index, other.index);
        let differ = |what: &str, theirs: &dyn std::fmt::Display, ours: &dyn std::fmt::Display| {
            format!("process {there} {what} {theirs}, process {here} {what} {ours}")
        };
        if other.token == me.token {
            return Some(format!("the hostfile gives process {} the address of process {here}", other.to));
        }
        if other.version != me.version {
            return Some(differ("runs syncline", &other.version, &me.version));
        }
        if other.job != me.job {
            return Some(differ("runs the job", &format!("\"{}\"", other.job), &format!("\"{}\"", me.job)));
        }
        if other.processes != me.processes {
            return Some(differ("was started with -n", &other.processes, &me.processes));
        }
        if other.threads != me.threads {
            return Some(differ("was started with -w", &other.threads, &me.threads));
        }
        if there == here {
            return Some(format!("both were started with -p {here}"));
        }
        if other.to != here {
            return Some(format!(
                "process {there} looks for process {} where process {here} is: the hostfiles differ, or name an address twice",
                other.to
            ));
        }
        if there >= me.processes {
            return Some(format!("there is no process {there} of {}", me.processes));
        }
        let names = me.settings.iter().chain(&other.settings).map(|(name, _)| name.as_str());
        let mut changed: Vec<&str> = names
            .filter(|name| {
                let value =
                    |hello: &Hello| hello.settings.iter().find(|(known, _)| known == name).map(|(_, hash)| *hash);
                value(me) != value(other)
            })
            .collect();
        changed.sort_unstable();
        changed.dedup();
        (!changed.is_empty()).then(|| {
            format!("process {there} was started with other settings than process {here}: {}", changed.join(", "))
        })
    }

    /// Hears who has connected, and gives the process its seat or tells it why not.
    fn greet(&self, mut stream: TcpStream, from: SocketAddr) {
        let refusal = match self.read(&stream) {
            Ok(Frame::Hello(hello)) => {
                let admitted = match self.mismatch(&hello) {
                    None if hello.index < self.me.index => {
                        Err(format!("process {} does not call process {}, but is called", hello.index, self.me.index))
                    }
                    None => self.admit(&hello, &mut stream),
                    Some(mismatch) => Err(mismatch),
                };
                let Err(text) = admitted else { return };
                if let Some(seat) = self.seats().get_mut(hello.index as usize).filter(|seat| !seat.is_taken()) {
                    seat.note = Some(format!("it came from {from} and was refused: {text}"));
                }
                text
            }
            Ok(Frame::Refused(text)) => {
                tracing::warn!("a connection from {from} was given up: {text}");
                return;
            }
            Ok(_) => "it did not say who it is".to_owned(),
            Err(text @ NoFrame::Version(_)) => text.to_string(),
            Err(text) => {
                tracing::warn!("a connection from {from} was dropped, waiting for others goes on: {text}");
                return;
            }
        };
        tracing::warn!("a connection from {from} was refused, waiting for others goes on: {refusal}");
        part(&mut stream, refusal);
    }

    /// Gives a process its seat, and answers.
    fn admit(&self, hello: &Hello, stream: &mut TcpStream) -> Result<(), String> {
        let mut seats = self.seats();
        let Some(seat) = seats.get_mut(hello.index as usize) else { return Err("it has no address here".to_owned()) };
        let known = seat.data.is_some() && seat.token == hello.token;
        let name = self.name(hello.index as usize);
        if self.is_over() || seat.ready.is_some() {
            return Err(format!("{name} comes after all have met"));
        } else if hello.is_beat && !known {
            return Err(format!("{name} was started again meanwhile"));
        } else if seat.data.is_some() && !known {
            return Err(format!("{name} is here already: was it started twice, or has it just ended?"));
        }
        let answer = Hello { to: hello.index, is_beat: hello.is_beat, ..self.me.clone() };
        let own = Frame::Hello(Box::new(answer)).write(stream).and_then(|()| stream.try_clone()).and_then(settled);
        let Ok(own) = own else { return Err("the connection broke".to_owned()) };
        if hello.is_beat {
            seat.beat = Some(own);
            tracing::info!("{name} is here");
        } else {
            *seat = Seat { data: Some(own), token: hello.token, peer_timeout: hello.peer_timeout, ..Seat::default() };
        }
        Ok(())
    }

    /// Calls a process once: both connections.
    fn call(&self, index: usize) -> Result<Seat, Call> {
        let (data, hello) = self.connect(index, false)?;
        let (beat, again) = self.connect(index, true)?;
        if again.token != hello.token {
            return Err(Call::Nobody("it was started again meanwhile".to_owned()));
        }
        let (token, peer_timeout) = (hello.token, hello.peer_timeout);
        let (data, beat) = (Some(settled(data)?), Some(settled(beat)?));
        Ok(Seat { data, beat, token, peer_timeout, ..Seat::default() })
    }

    fn connect(&self, index: usize, is_beat: bool) -> Result<(TcpStream, Hello), Call> {
        let mut last = Call::Nobody("it has no address".to_owned());
        let mut found = None;
        let addresses = self.addresses[index].split_whitespace().map(ToSocketAddrs::to_socket_addrs);
        for address in addresses.flat_map(|found| match found {
            Ok(addresses) => addresses.map(Ok).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        }) {
            match address.and_then(|address| TcpStream::connect_timeout(&address, CONNECT_WITHIN)) {
                Ok(stream) => {
                    found = Some(stream);
                    break;
                }
                Err(error) => last = error.into(),
            }
        }
        let Some(mut stream) = found else { return Err(last) };
        let hello = Hello { to: index as u64, is_beat, ..self.me.clone() };
        Frame::Hello(Box::new(hello)).write(&mut stream)?;
        match self.read(&stream) {
            // A port that nobody listens on can be the one that the call itself comes from.
            Ok(Frame::Hello(hello)) if hello.token == self.me.token => Err(Call::Nobody("nobody listens".to_owned())),
            Ok(Frame::Hello(hello)) => match self.mismatch(&hello) {
                Some(mismatch) => {
                    part(&mut stream, mismatch.clone());
                    Err(Call::Refused(mismatch))
                }
                None => Ok((stream, *hello)),
            },
            Ok(Frame::Refused(text)) => Err(Call::Refused(text)),
            Ok(_) => Err(Call::Nobody("it did not say who it is".to_owned())),
            Err(text @ NoFrame::Version(_)) => {
                part(&mut stream, text.to_string());
                Err(Call::Refused(text.to_string()))
            }
            Err(text) => Err(Call::Nobody(text.to_string())),
        }
    }
}

/// A connection whose handshake is over: reads take what is there.
fn settled(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(None)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Says why the connection ends, and lets it be heard: what is closed with bytes that were not read can take along what was written.
fn part(stream: &mut TcpStream, text: String) {
    let said = Frame::Refused(text).write(stream).and_then(|()| stream.shutdown(Shutdown::Write));
    if said.and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(1)))).is_ok() {
        let _ = io::copy(&mut stream.take(64 << 10), &mut io::sink()); // whatever it is
    }
}

/// Greets whoever has connected, on a thread of its own.
pub(super) fn greet(hall: &Arc<Hall>, stream: TcpStream, from: SocketAddr) -> Result<()> {
    if hall.guests.fetch_add(1, Ordering::SeqCst) >= MOST_GUESTS {
        hall.guests.fetch_sub(1, Ordering::SeqCst);
        tracing::warn!("a connection from {from} was closed: {MOST_GUESTS} others have not said yet who they are");
        return Ok(());
    }
    let hall = Arc::clone(hall);
    spawn("greet".to_owned(), move || {
        // On some systems it has what the listener has.
        match stream.set_nonblocking(false) {
            Ok(()) => hall.greet(stream, from),
            Err(error) => tracing::warn!("a connection from {from} was dropped: {error}"),
        }
        hall.guests.fetch_sub(1, Ordering::SeqCst);
    })
}

/// Calls a process until it comes or refuses, on a thread of its own.
pub(super) fn call(hall: &Arc<Hall>, index: usize) -> Result<()> {
    let hall = Arc::clone(hall);
    spawn(format!("call-{index}"), move || {
        let mut wait = FIRST_WAIT;
        while !hall.is_over() {
            match hall.call(index) {
                Ok(came) => {
                    tracing::info!("{} is here", hall.name(index));
                    hall.seats()[index] = came;
                    return;
                }
                Err(Call::Refused(text)) => {
                    hall.seats()[index].refusal = Some(text);
                    return;
                }
                Err(Call::Nobody(text)) => hall.seats()[index].note = Some(text),
            }
            thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    })
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let failed = format!("thread \"{name}\" cannot be started");
    let thread = thread::Builder::new().name(name).spawn(body);
    thread.map(drop).map_err(|error| Error::new(ErrorKind::Cluster, failed).with_source(error))
}
