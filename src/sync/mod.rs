//! The synchronization job.
