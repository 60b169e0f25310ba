//! Every integration test, in one binary: it links once.

mod cli;
mod conformance;
mod datasets;
mod kafka;
mod layers;
mod licences;
