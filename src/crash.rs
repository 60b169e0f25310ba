//! Named places at which tests let the process die as if by `kill -9`, or stop as if by `kill -STOP`. Compiled to nothing without
//! the feature `crash-points`.

/// Ends the process here if the variable `SYNCLINE_CRASH` names this point: `NAME`, or `NAME:3` at the third time. Stops it if
/// `SYNCLINE_STOP` does: it goes on from here when it is continued.
#[cfg(feature = "crash-points")]
pub(crate) fn point(name: &'static str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    struct Wanted {
        point: String,
        time: u64,
        signal: Signal,
    }

    static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
    static TIMES: AtomicU64 = AtomicU64::new(0);
    let wanted = WANTED.get_or_init(|| {
        let named = [("SYNCLINE_CRASH", Signal::KILL), ("SYNCLINE_STOP", Signal::STOP)];
        let (text, signal) = named.into_iter().find_map(|(name, signal)| Some((std::env::var(name).ok()?, signal)))?;
        let (point, time) = text.split_once(':').unwrap_or((&text, "1"));
        Some(Wanted { point: point.to_owned(), time: time.parse().ok()?, signal })
    });
    let Some(wanted) = wanted else { return };
    if wanted.point == name && TIMES.fetch_add(1, Ordering::SeqCst) + 1 == wanted.time {
        let _ = kill_process(getpid(), wanted.signal);
        // Another thread may be the one that takes the signal: until it is there for all, this one must not go on.
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Nothing.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub(crate) fn point(_name: &'static str) {}
