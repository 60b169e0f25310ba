//! The synchronization job.
pub mod document;
pub mod json;
