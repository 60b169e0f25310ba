//! Errors: a kind to decide by, a context to read, a source to dig in.

use std::fmt;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong; code and tests decide by it, texts are for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Options, flags or URLs that contradict each other or name nothing. Found before any connection is made.
    Config,
    /// A broker could not be reached, or the connection to it was lost.
    Connect,
    /// The broker refused who we are or what we may do.
    Auth,
    /// A topic, stream, queue, file or folder that does not exist.
    NotFound,
    /// A position that the broker no longer holds, or one beyond its end.
    OffsetLost,
    /// Reading went wrong.
    Read,
    /// Bytes that are not what they should be, where the policy is to fail.
    Decode,
    /// Writing or publishing went wrong.
    Write,
    /// The store of checkpoints went wrong.
    Store,
    /// A newer run has taken over.
    Fenced,
    /// A limit that was set for memory or size is reached.
    Limit,
    /// Records in and records out do not add up.
    Conservation,
    /// The cluster of processes could not be formed, or a part of it has ended.
    Cluster,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Config => "configuration",
            ErrorKind::Connect => "connection",
            ErrorKind::Auth => "authorization",
            ErrorKind::NotFound => "not found",
            ErrorKind::OffsetLost => "offset lost",
            ErrorKind::Read => "read",
            ErrorKind::Decode => "decode",
            ErrorKind::Write => "write",
            ErrorKind::Store => "store",
            ErrorKind::Fenced => "fenced",
            ErrorKind::Limit => "limit",
            ErrorKind::Conservation => "conservation",
            ErrorKind::Cluster => "cluster",
        })
    }
}

/// An error of the library.
///
/// `Display` prints the context alone; the causes are in [`source`](std::error::Error::source), so nothing is printed twice.
/// [`Error::report`] prints the whole chain on one line.
pub struct Error {
    kind: ErrorKind,
    context: String,
    retryable: bool,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error that repeating the same call will not mend.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Error { kind, context: context.into(), retryable: false, source: None }
    }

    /// One configuration error that lists every problem, one a line.
    pub fn config(problems: &[String]) -> Self {
        Error::new(ErrorKind::Config, problems.join("\n"))
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Says that the same call may succeed later.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// The context and every cause, on one line.
    pub fn report(&self) -> String {
        let mut text = self.context.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} error: {}", self.kind, self.report())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_names_every_cause_once() {
        let error = Error::new(ErrorKind::Read, "file \"a\" cannot be read")
            .with_source(std::io::Error::other("disk on fire"))
            .retryable();
        assert_eq!(error.to_string(), "file \"a\" cannot be read");
        assert_eq!(error.report(), "file \"a\" cannot be read: disk on fire");
        assert_eq!(format!("{error:?}"), "read error: file \"a\" cannot be read: disk on fire");
        assert!(error.is_retryable());
    }
}
