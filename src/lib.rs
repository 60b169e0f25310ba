//! Stream synchronization: brings messages from brokers into timely and differential dataflow, joins topics of several brokers on
//! a key, and writes the results to brokers and files.
//!
//! ```text
//!  broker --Reader thread--> bounded channel --> input --> [your dataflow | sync job] --> output --> Writer thread --> broker/file
//!     ^                          (epochs)       capability            |                      |
//!     |                                                            checkpoint <--------------+
//!     +------------- Committer <------ ledger <------ one bound: "every epoch below b is durable and published" <-- frontier
//! ```
//!
//! Data goes forward by value through bounded channels; one value comes back: the bound. An [`Epoch`](epoch::Epoch) is timely's
//! timestamp and the unit of everything that is made durable, published and committed, in this order. No contract of a broker
//! is ever called on a timely worker's thread.
//!
//! # Where to begin
//!
//! - [`Job`]: sources, a dataflow of your own, sinks; under timely's options, in one process or in many.
//! - [`sync::synchronize`]: the join with deadlines, as an operator on any records; [`sync::topics`]: the whole job on JSON.
//! - [`source`], [`sink`], [`checkpoint`]: the contracts, for brokers and stores of your own; `conformance` (a feature) has each
//!   promise as a function.
//! - [`split_time`]: what the job's clock promises.
//! - [`cluster`]: several processes: how they meet, and notice that one is gone.
//!
//! # Guarantees
//!
//! At least once, with every record accounted for. With a store ([`checkpoint::FolderStore`]) a restart goes on from the last
//! checkpoint, with any number of workers. Without one, offsets are committed only below the oldest record that still waits, so
//! that a crash loses nothing either.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `kafka` | [Apache Kafka](https://kafka.apache.org), through librdkafka built from source: needs a C compiler, make, and OpenSSL's headers (`libssl-dev`, `pkg-config`) |
//! | `kafka-vendored` | the same with OpenSSL built from source, too: needs Perl instead of the headers, and minutes |
//! | `s3`, `azure` | checkpoints in object stores, see [`checkpoint::open`]; TLS is the system's (on Linux OpenSSL, headers as for `kafka`) |
//! | `mimalloc` (default) | the allocator of the binary; library users choose their own |
//! | `conformance` | the suite of promises for adapters |
//! | `crash-points` | places at which tests let a process die |
//! | `abomonation` | a comparison in the codec bench; unsound, never used by the library |
//!
//! `timely` and `differential_dataflow` are re-exported in the versions that the API is made of.

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

pub mod cluster;
pub mod dataflow;
pub mod sync;

pub mod checkpoint;
pub mod commit;

mod blocks;
mod crash;
mod item;
mod varint;
pub mod control;
pub mod job;
pub mod observe;
pub mod cli;
#[cfg(feature = "mimalloc")]
pub mod allocator;
pub mod datasets;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

pub use differential_dataflow;
pub use timely;

pub use error::{Error, ErrorKind, Result};
pub use job::Job;
pub use sink::OutputRecord;
