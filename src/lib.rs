//! syncline: stream synchronization.
pub mod broker;
pub mod checkpoint;
pub mod dataflow;
pub mod datasets;
pub mod epoch;
pub mod error;
pub mod ledger;
pub mod message;
pub mod sink;
pub mod source;
pub mod split_time;
pub mod sync;
pub use error::{Error, ErrorKind, Result};
