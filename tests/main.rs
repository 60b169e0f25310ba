//! Every integration test, in one binary: it links once.

mod cli;
mod conformance;
mod datasets;
mod file_sink;
mod file_source;
mod kafka;
mod layers;
mod licences;
mod memory_broker;
