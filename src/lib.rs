//! syncline: stream synchronization.
//!
//! Brings messages from brokers into timely and differential dataflow, joins topics of several brokers on a key, and writes the
//! results to brokers and files.

#![deny(unsafe_code)]

pub mod error;
pub mod message;
pub mod epoch;

pub mod source;
pub mod sink;
pub mod codec;
pub mod broker;

pub mod reader;
pub mod split_time;
pub mod pacing;
pub mod retry;
pub mod ledger;

pub mod dataflow;
pub mod sync;

pub mod checkpoint;
pub mod commit;

pub mod control;
pub mod job;
pub mod observe;
pub mod cli;
pub mod datasets;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

pub use differential_dataflow;
pub use timely;

pub use error::{Error, ErrorKind, Result};
pub use job::Job;
pub use sink::OutputRecord;
