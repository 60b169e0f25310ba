//! Log lines on standard error: one line each, structured, in UTC.
//!
//! ```text
//! 2026-01-31T12:00:00.123456Z  INFO job started worker=0 epoch=1769860800123
//! ```
//!
//! `SYNCLINE_LOG` chooses what is logged, by level and module: `debug`, `warn,syncline::sync=trace`. Without it: `info`; `warn` on
//! a terminal, where the progress line says the rest.

use std::io::{IsTerminal, Write};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{MakeWriter, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::args::Problem;

/// The variable that chooses what is logged.
pub const VARIABLE: &str = "SYNCLINE_LOG";

/// Starts logging, for the life of the process. Does nothing if something is logging already.
///
/// # Errors
///
/// The variable is not a filter.
pub fn start() -> Result<(), Problem> {
    let terminal = std::io::stderr().is_terminal();
    let default = if terminal { "warn" } else { "info" };
    let filter = filter(std::env::var(VARIABLE).ok().as_deref(), default)?;
    let lines = layer()
        .with_target(false)
        .with_ansi(terminal)
        .log_internal_errors(false) // it would panic on a standard error that is gone
        .with_writer(Stderr { terminal });
    // An embedding program that has set its own subscriber keeps it.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    Ok(())
}

fn filter(variable: Option<&str>, default: &str) -> Result<Targets, Problem> {
    let text = variable.filter(|text| !text.is_empty()).unwrap_or(default);
    text.parse::<Targets>().map_err(|error| {
        let fix = "write a level (error, warn, info, debug, trace) or parts with levels: warn,syncline::sync=debug";
        Problem::new(format!("{VARIABLE}=\"{text}\" is not a filter ({error})"), fix)
    })
}

/// Writes each line at once; on a terminal it first takes the progress line away.
struct Stderr {
    terminal: bool,
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Best<std::io::StderrLock<'a>>;

    fn make_writer(&'a self) -> Self::Writer {
        let mut stderr = std::io::stderr().lock();
        if self.terminal {
            // A terminal that is gone shows nothing anyway.
            let _ = stderr.write_all(super::progress::CLEAR.as_bytes());
        }
        Best(stderr)
    }
}

/// Writes as far as it can: nobody is left to be told that a log is gone, and the job goes on.
struct Best<W>(W);

impl<W: Write> Write for Best<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_filter_is_named() {
        assert_eq!(filter(None, "warn").map(|filter| filter.to_string()), Ok("warn".to_owned()));
        assert_eq!(filter(Some("debug"), "warn").map(|filter| filter.to_string()), Ok("debug".to_owned()));
        assert!(filter(Some("syncline=loud"), "warn").is_err_and(|problem| problem.what.contains("syncline=loud")));
    }
}
