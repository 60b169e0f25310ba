//! Every integration test, in one binary: it links once.

#[cfg(feature = "kafka")]
mod kafka;
