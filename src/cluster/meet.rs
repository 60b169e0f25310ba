//! How the processes of a job find each other.
//!
//! Process `i` calls those before it and is called by those behind it, with two connections each: timely's, and one for beats. When a
//! process has everybody it tells them so, with the random tokens of all; when it has heard the same of everybody, the job begins.
//! So either all processes are the same for each other, or none of them begins.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::greet::{Hall, Seat, call, greet};
use super::wire::{Frame, Hello, NoFrame};
use crate::control::Control;
use crate::epoch::Clock;
use crate::error::{Error, ErrorKind, Result};

/// How often it is looked who has come. Shorter: more wake-ups until all have met; longer: a later start.
const LOOK: Duration = Duration::from_millis(5);

/// The rest after a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(500);

/// When it is said who is waited for: first, and again.
const FIRST_SAID: Duration = Duration::from_secs(5);
const SAID_AGAIN: Duration = Duration::from_secs(15);

/// A process that was met.
#[derive(Debug)]
pub(super) struct Met {
    /// As texts name it.
    pub name: String,
    pub data: TcpStream,
    pub beat: TcpStream,
    pub peer_timeout: Duration,
}

/// Meets all other processes: by index, `None` for this one. `None` altogether if the job is stopped before.
pub(super) fn meet(
    me: Hello,
    addresses: Vec<String>,
    within: Duration,
    control: &Control,
) -> Result<Option<Vec<Option<Met>>>> {
    let hall = Arc::new(Hall::new(me, addresses));
    let meeting = Meeting { index: hall.me.index as usize, listeners: listen(&hall)?, hall: &hall, control };
    let met = meeting.run(within);
    hall.close();
    if let Err(error) = &met {
        meeting.tell(&Frame::Refused(error.to_string()));
    }
    hall.seats().iter_mut().for_each(|seat| *seat = Seat::default()); // a thread that still calls keeps no connection open
    met
}

/// Listens on every address of this process.
fn listen(hall: &Hall) -> Result<Vec<TcpListener>> {
    let index = hall.me.index as usize;
    let listen = |address: &str| {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let failed = |address: &str, error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                ": is another process started with the same -p, or another job with the same -h?"
            }
            io::ErrorKind::AddrNotAvailable => ": is this the machine of that address, and -p right?",
            _ => "",
        };
        let text = format!("process {index} of the job cannot listen on {address}{hint}");
        Error::new(ErrorKind::Cluster, text).with_source(error)
    };
    let addresses = hall.addresses[index].split_whitespace();
    addresses.map(|address| listen(address).map_err(|error| failed(address, error))).collect()
}

struct Meeting<'a> {
    index: usize,
    listeners: Vec<TcpListener>,
    hall: &'a Arc<Hall>,
    control: &'a Control,
}

impl Meeting<'_> {
    fn run(&self, within: Duration) -> Result<Option<Vec<Option<Met>>>> {
        for index in 0..self.index {
            call(self.hall, index)?;
        }
        let start = self.hall.clock.monotonic();
        let mut say_at = FIRST_SAID;
        loop {
            if self.control.is_stopping() {
                self.tell(&Frame::Stop);
                return Ok(None);
            }
            if self.control.has_failed() {
                return Err(Error::new(ErrorKind::Cluster, "it has failed before all processes had met"));
            }
            self.accept()?;
            if self.look()? {
                return self.take().map(Some);
            }
            let passed = self.hall.clock.monotonic().saturating_sub(start);
            if passed >= within {
                let text = format!("the processes of the job have not met within {within:?}: {}", self.missing());
                return Err(Error::new(ErrorKind::Cluster, text));
            }
            if passed >= say_at {
                say_at = passed + SAID_AGAIN;
                tracing::warn!("waiting for the other processes of the job: {}", self.missing());
            }
            self.control.sleep(LOOK.min(within - passed));
        }
    }

    fn accept(&self) -> Result<()> {
        for listener in &self.listeners {
            loop {
                match listener.accept() {
                    Ok((stream, from)) => greet(self.hall, stream, from)?,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        // Such as one that broke in the queue, or too many open files: both may pass.
                        tracing::warn!("a connection could not be accepted: {error}");
                        self.control.sleep(ACCEPT_AGAIN);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Hears everybody; whether all have met.
    fn look(&self) -> Result<bool> {
        let mut seats = self.hall.seats();
        for index in self.others() {
            let seat = &mut seats[index];
            if let Some(text) = &seat.refusal {
                let text = format!("{} refuses this process: {text}", self.hall.name(index));
                return Err(Error::new(ErrorKind::Cluster, text));
            }
            self.hear(seat, index)?;
        }
        if !self.others().all(|index| seats[index].is_taken()) {
            return Ok(false);
        }
        let mut tokens: Vec<u64> = seats.iter().map(|seat| seat.token).collect();
        tokens[self.index] = self.hall.me.token;
        for index in self.others() {
            let seat = &mut seats[index];
            if !std::mem::replace(&mut seat.told, true) && !say(seat, &Frame::Ready(tokens.clone())) {
                return Err(self.gone(index));
            }
        }
        let mut all = true;
        for index in self.others() {
            let Some(theirs) = &seats[index].ready else {
                all = false;
                continue;
            };
            if let Some(changed) = (0..tokens.len()).find(|at| theirs.get(*at) != Some(&tokens[*at])) {
                let (changed, by) = (self.hall.name(changed), self.hall.name(index));
                let text =
                    format!("{changed} was started again while the processes met, and {by} knows the earlier one");
                return Err(Error::new(ErrorKind::Cluster, text));
            }
        }
        Ok(all)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.index;
        (0..self.hall.addresses.len()).filter(move |index| *index != me)
    }

    /// Takes what a process has said meanwhile.
    fn hear(&self, seat: &mut Seat, index: usize) -> Result<()> {
        let Some(beat) = &mut seat.beat else { return Ok(()) };
        loop {
            match seat.frames.read(beat) {
                Ok(Frame::Ready(tokens)) => seat.ready = Some(tokens),
                Ok(Frame::Stop) => {
                    self.control.stop();
                    return Ok(());
                }
                Ok(Frame::Refused(text)) => {
                    let text = format!("{} has left before all processes had met: {text}", self.hall.name(index));
                    return Err(Error::new(ErrorKind::Cluster, text));
                }
                Err(NoFrame::Broken(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Ok(Frame::Hello(_)) | Err(_) => return Err(self.gone(index)),
            }
        }
    }

    fn gone(&self, index: usize) -> Error {
        let name = self.hall.name(index);
        let text =
            format!("{name} has ended before all processes had met: if it was not killed, its standard error says why");
        Error::new(ErrorKind::Cluster, text)
    }

    /// Tells everybody who is here; who is gone needs not hear it.
    fn tell(&self, frame: &Frame) {
        for seat in self.hall.seats().iter_mut() {
            say(seat, frame);
        }
    }

    /// Who is not here, and why, as far as that is known.
    fn missing(&self) -> String {
        let seats = self.hall.seats();
        let missing = self.others().filter_map(|index| {
            let why = match &seats[index] {
                Seat { ready: Some(_), .. } => return None,
                seat if seat.is_taken() => "is here, but has not met all others",
                Seat { note: Some(note), .. } => note,
                _ => "has not come",
            };
            Some(format!("{}: {why}", self.hall.name(index)))
        });
        missing.collect::<Vec<_>>().join("; ")
    }

    fn take(&self) -> Result<Vec<Option<Met>>> {
        self.hall.close();
        let seats = std::mem::take(&mut *self.hall.seats());
        let met = seats.into_iter().enumerate().map(|(index, seat)| {
            let (Some(data), Some(beat)) = (seat.data, seat.beat) else { return Ok(None) };
            data.set_nonblocking(false)?;
            let peer_timeout = Duration::from_millis(seat.peer_timeout);
            Ok(Some(Met { name: self.hall.name(index), data, beat, peer_timeout }))
        });
        let failed = |error: io::Error| Error::new(ErrorKind::Cluster, "a connection broke").with_source(error);
        met.collect::<io::Result<_>>().map_err(failed)
    }
}

/// Sends a frame; whether that worked. It is so short that it goes into the buffers of the system.
fn say(seat: &mut Seat, frame: &Frame) -> bool {
    seat.beat.as_mut().is_some_and(|beat| frame.write(beat).is_ok())
}
