//! Every integration test, in one binary: it links once.

#![allow(clippy::unwrap_used)] // also in the helpers of tests, which clippy.toml does not reach

#[path = "../benches/support/mod.rs"]
mod bench_support;
mod cli;
mod conformance;
mod datasets;
mod kafka;
mod layers;
mod licences;
