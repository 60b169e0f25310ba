//! syncline: stream synchronization.
//!
//! Brings messages from brokers into timely and differential dataflow, joins topics of several brokers on a key, and writes the
//! results to brokers and files.

pub mod epoch;
pub mod error;
pub mod message;

pub mod broker;
pub mod codec;
pub mod sink;
pub mod source;

pub mod checkpoint;
pub mod cli;
pub mod commit;
pub mod control;
pub mod dataflow;
pub mod datasets;
pub mod job;
pub mod ledger;
pub mod observe;
pub mod pacing;
pub mod reader;
pub mod retry;
pub mod split_time;
pub mod sync;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

pub use differential_dataflow;
pub use timely;

pub use error::{Error, ErrorKind, Result};
pub use job::Job;
pub use sink::OutputRecord;
