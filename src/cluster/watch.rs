//! The watch over the other processes: a thread that shows them that this process lives, and looks whether they do.
//!
//! It has connections of its own, so it neither waits for the dataflow nor is it fooled by a dataflow that has nothing to say; and
//! it is no worker, so a process that is busy goes on beating. A process whose workers hang while this thread lives is not found.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use super::link::{Peer, Pulse};
use super::wire::BEAT;
use crate::control::Control;
use crate::epoch::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};

/// How many beats fit into the shortest time after which one of the processes gives others up.
const BEATS: u32 = 10;

/// Beats are at least this close. An idle process wakes up so often.
const LONGEST_BEAT: Duration = Duration::from_secs(1);

/// How often beats are sent and looked for.
pub(super) fn beat_of(peer_timeouts: impl Iterator<Item = Duration>) -> Duration {
    let beat = peer_timeouts.min().map_or(LONGEST_BEAT, |shortest| shortest / BEATS);
    beat.clamp(Duration::from_millis(1), LONGEST_BEAT)
}

/// For how long nothing was heard.
#[derive(Debug, Default)]
struct Silence(Duration);

impl Silence {
    /// Counts the time since the last look, but no more than two beats of it: what is above was a pause of this thread, in which it
    /// could not have heard anything. Gives the silence.
    fn look(&mut self, passed: Duration, beat: Duration, heard: bool) -> Duration {
        self.0 = if heard { Duration::ZERO } else { self.0 + passed.min(2 * beat) };
        self.0
    }
}

/// A thread that watches.
#[derive(Debug)]
pub(super) struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Watches these processes through these connections, and gives up who is silent for so long.
    pub fn start(
        peers: Vec<(Arc<Peer>, TcpStream)>,
        beat: Duration,
        peer_timeout: Duration,
        pulse: Arc<Pulse>,
        control: &Control,
    ) -> Result<Watch> {
        let (stop, stopped) = bounded::<()>(0);
        let control = control.clone();
        let body = move || {
            let _alarm = control.alarm("watch".to_owned());
            let clock = SystemClock::new();
            let mut last = clock.monotonic();
            let mut peers: Vec<_> = peers.into_iter().map(|(peer, beats)| (peer, beats, Silence::default())).collect();
            pulse.beat();
            while stopped.recv_timeout(beat) == Err(RecvTimeoutError::Timeout) {
                if let Some(pause) = pulse.beat() {
                    tracing::warn!("this process stood still for {pause:?}; the others may have given it up");
                }
                let now = clock.monotonic();
                let passed = now.saturating_sub(std::mem::replace(&mut last, now));
                for (peer, beats, silence) in peers.iter_mut().filter(|(peer, ..)| !peer.is_over()) {
                    let _ = beats.write(&[BEAT]); // one that is stopped does not take it, and one that is gone has no use for it
                    let silent = silence.look(passed, beat, hears(beats));
                    if silent >= peer_timeout {
                        peer.lose(&given_up(silent, clock.wall()));
                    }
                }
            }
        };
        let failed = |error| Error::new(ErrorKind::Cluster, "thread \"watch\" cannot be started").with_source(error);
        let thread = thread::Builder::new().name("watch".to_owned()).spawn(body).map_err(failed)?;
        Ok(Watch { stop, thread })
    }

    /// Ends the watch.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join(); // a panic of it was the failure of the job
    }
}

/// Whether anything was said since the last time.
fn hears(beats: &mut TcpStream) -> bool {
    let (mut heard, mut buffer) = (false, [0; 256]);
    loop {
        match beats.read(&mut buffer) {
            Ok(0) => return heard, // the connection of the data says whether that is an end or a loss
            Ok(_) => heard = true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return heard,
        }
    }
}

fn given_up(silent: Duration, wall: u64) -> String {
    let since = jiff::Timestamp::from_millisecond((wall as i64).saturating_sub(silent.as_millis() as i64));
    let since = since.map_or(String::new(), |since| format!(", since {since:.0}"));
    format!(
        "nothing was heard of it for {}s (--peer_timeout){since}: it is stopped, its machine is down, or the network is",
        silent.as_secs_f64().round()
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn beats_are_close_enough_for_the_most_impatient() {
        let of = |timeouts: &[u64]| beat_of(timeouts.iter().map(|timeout| ms(*timeout)));
        assert_eq!([of(&[30_000, 30_000]), of(&[30_000, 2_000]), of(&[0])], [ms(1_000), ms(200), ms(1)]);
        assert_eq!(beat_of([Duration::MAX].into_iter()), ms(1_000));
    }

    #[test]
    fn silence_counts_up_to_what_is_heard_and_leaves_out_pauses_of_ones_own() {
        let (mut silence, beat) = (Silence::default(), ms(100));
        assert_eq!(silence.look(ms(100), beat, false), ms(100));
        assert_eq!(silence.look(ms(150), beat, false), ms(250));
        assert_eq!(silence.look(ms(60_000), beat, false), ms(450)); // this process was stopped
        assert_eq!(silence.look(ms(100), beat, true), ms(0));
        assert_eq!(silence.look(ms(60_000), beat, true), ms(0));
    }

    /// Two ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn watched(peer_timeout: Duration) -> (Control, Arc<Peer>, Watch, TcpStream, TcpStream) {
        let (control, pulse) = (Control::new(), Arc::new(Pulse::new(Arc::new(SystemClock::new()), peer_timeout)));
        let ((data, other_data), (beats, other_beats)) = (pair(), pair());
        beats.set_nonblocking(true).unwrap();
        let peer = Arc::new(Peer::new("process 1 (a:1)".into(), &data, &control, &pulse).unwrap());
        let watch =
            Watch::start(vec![(Arc::clone(&peer), beats)], peer_timeout / 10, peer_timeout, pulse, &control).unwrap();
        (control, peer, watch, other_data, other_beats)
    }

    #[test]
    fn who_is_silent_is_given_up_by_name_and_its_connection_is_cut() {
        let (control, peer, watch, mut data, _beats) = watched(ms(200));
        assert_eq!(data.read(&mut [0]).unwrap(), 0); // which waits until then
        assert!(peer.is_lost());
        watch.stop();
        let error = control.take_failure().unwrap().to_string();
        for part in ["process 1 (a:1)", "nothing was heard of it for", "since 20", "--peer_timeout"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn who_beats_is_not_given_up_and_hears_beats() {
        let (control, peer, watch, _data, mut beats) = watched(ms(500));
        for _ in 0..40 {
            beats.write_all(&[BEAT]).unwrap();
            beats.read_exact(&mut [1]).unwrap(); // one of its beats, every 50 ms
        }
        watch.stop();
        assert!(!peer.is_lost() && !control.has_failed());
    }
}
