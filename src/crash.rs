//! Named places at which tests let the process die as if by `kill -9`. Compiled to nothing without the feature `crash-points`.

/// Ends the process here if the variable `SYNCLINE_CRASH` names this point: `NAME`, or `NAME:3` at the third time.
#[cfg(feature = "crash-points")]
pub(crate) fn point(name: &'static str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static WANTED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static TIMES: AtomicU64 = AtomicU64::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("SYNCLINE_CRASH").ok()?;
        let (point, time) = text.split_once(':').unwrap_or((&text, "1"));
        Some((point.to_owned(), time.parse().ok()?))
    });
    let Some((point, time)) = wanted else { return };
    if point == name && TIMES.fetch_add(1, Ordering::SeqCst) + 1 == *time {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park(); // until the signal is there
        }
    }
}

/// Nothing.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub(crate) fn point(_name: &'static str) {}
