//! Every integration test, in one binary: it links once.

#![allow(clippy::unwrap_used)] // a test may end where something is not as it expects

#[cfg(feature = "kafka")]
mod kafka;
mod layers;
mod licences;
