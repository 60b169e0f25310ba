//! Epochs, and the only reader of time.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The logical timestamp of a group of messages of all splits: timely's timestamp, the unit of checkpoint, publish and commit.
///
/// It is the number of milliseconds since the Unix epoch at which it was opened, or more where that would not be new.
pub type Epoch = u64;

/// Where time comes from. Nothing else in the crate reads the system's clocks.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Milliseconds since the Unix epoch. May jump either way.
    fn wall(&self) -> u64;
    /// Time since an arbitrary moment. Never goes back; stands still for no one.
    fn monotonic(&self) -> Duration;
    /// How long a thread that wants to wait `longest` for time to pass may really sleep.
    fn patience(&self, longest: Duration) -> Duration;
}

/// The clocks of the operating system, with an offset on the wall clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
    offset_ms: i64,
}

impl SystemClock {
    /// The system's clocks as they are.
    pub fn new() -> Self {
        SystemClock::with_offset(0)
    }

    /// A wall clock that is `offset_ms` milliseconds ahead of the system's, or behind it if negative: to test what skew does.
    pub fn with_offset(offset_ms: i64) -> Self {
        SystemClock { start: Instant::now(), offset_ms }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (since.as_millis() as u64).saturating_add_signed(self.offset_ms)
    }
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
    fn patience(&self, longest: Duration) -> Duration {
        longest
    }
}

/// A clock that a test turns by hand. Clones share the same hands.
#[derive(Clone, Debug)]
pub struct ManualClock {
    wall: Arc<AtomicU64>,
    monotonic: Arc<Mutex<Duration>>,
}

impl ManualClock {
    /// A clock whose wall stands at `wall` milliseconds since the Unix epoch.
    pub fn new(wall: u64) -> Self {
        ManualClock { wall: Arc::new(AtomicU64::new(wall)), monotonic: Arc::default() }
    }

    /// Lets time pass, on the wall and for real.
    pub fn advance(&self, by: Duration) {
        self.wall.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
        *self.monotonic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) += by;
    }

    /// Moves the wall clock alone, as an administrator would.
    pub fn jump(&self, by_ms: i64) {
        let wall = self.wall.load(Ordering::SeqCst).saturating_add_signed(by_ms);
        self.wall.store(wall, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> u64 {
        self.wall.load(Ordering::SeqCst)
    }
    fn monotonic(&self) -> Duration {
        *self.monotonic.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
    fn patience(&self, longest: Duration) -> Duration {
        longest.min(Duration::from_millis(1)) // the hands move without waking anybody
    }
}

/// A clock whose wall is never turned back: where the other one's is, it goes on by the time that really passes.
///
/// Deadlines count from the wall clock. Without this, a record that is read after the wall was turned back would be given up
/// before its window has passed.
#[derive(Debug)]
pub struct SteadyClock {
    clock: Arc<dyn Clock>,
    /// The last wall time given, and when.
    last: Mutex<(u64, Duration)>,
}

impl SteadyClock {
    /// Keeps this clock from going back.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let last = (clock.wall(), clock.monotonic());
        SteadyClock { clock, last: Mutex::new(last) }
    }

    /// Goes on from this wall time, in milliseconds since the Unix epoch, if that is later: so late it has been already, on the
    /// clock of an earlier run.
    pub fn raise(&self, wall: u64) {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if wall > last.0 {
            *last = (wall, self.clock.monotonic());
        }
    }
}

impl Clock for SteadyClock {
    fn wall(&self) -> u64 {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (wall, monotonic) = (self.clock.wall(), self.clock.monotonic());
        let passed = monotonic.saturating_sub(last.1).as_millis() as u64;
        if wall >= last.0 + passed {
            *last = (wall, monotonic);
        } else if passed > 0 {
            *last = (last.0 + passed, last.1 + Duration::from_millis(passed));
        }
        last.0
    }
    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
    fn patience(&self, longest: Duration) -> Duration {
        self.clock.patience(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_clock_goes_on_where_the_wall_is_turned_back() {
        let clock = ManualClock::new(1_000);
        let steady = SteadyClock::new(Arc::new(clock.clone()));
        let after = |by: i64, ms: u64| {
            clock.jump(by);
            clock.advance(Duration::from_millis(ms));
            steady.wall()
        };
        assert_eq!([after(0, 5), after(-500, 5), after(0, 5), after(1_000, 5)], [1_005, 1_010, 1_015, 1_520]);
        steady.raise(1_000);
        assert_eq!(after(0, 5), 1_525);
        steady.raise(2_000);
        assert_eq!([after(0, 5), after(400, 5), after(1_000, 5)], [2_005, 2_010, 2_940]);
    }

    #[test]
    fn manual_clock_moves_as_told() {
        let clock = ManualClock::new(1_000);
        let other = clock.clone();
        clock.advance(Duration::from_millis(5));
        clock.jump(-1_000);
        assert_eq!((other.wall(), other.monotonic()), (5, Duration::from_millis(5)));
    }
}
