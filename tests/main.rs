//! One binary for all integration tests, so that the crate is linked once.

#[path = "../benches/support/mod.rs"]
mod bench_support;
mod datasets;
