//! The synchronization job.
pub mod json;
