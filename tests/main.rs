//! Every integration test, in one binary: it links once.

#![allow(clippy::unwrap_used)] // also in the helpers of tests, which clippy.toml does not reach

#[path = "../benches/support/mod.rs"]
mod bench_support;
mod cli;
mod cluster;
mod conformance;
mod datasets;
mod file_sink;
mod file_source;
mod format;
mod job;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
mod kafka_fasten;
#[cfg(feature = "kafka")]
mod kafka_health;
#[cfg(feature = "kafka")]
mod kafka_outage;
#[cfg(feature = "kafka")]
mod kafka_promises;
#[cfg(feature = "kafka")]
mod kafka_source;
#[cfg(feature = "kafka")]
mod kafka_source_jobs;
mod kafka_security;
#[cfg(feature = "kafka")]
mod kafka_sink;
#[cfg(feature = "kafka")]
mod kafka_state;
#[cfg(feature = "kafka")]
mod kafka_sync;
mod kills;
mod layers;
mod licences;
mod memory_broker;
mod model;
#[cfg(feature = "object-store")]
mod object_store;
mod state;
mod traps_sync;
