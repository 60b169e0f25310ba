//! All integration tests, in one binary so that they are linked once.

mod model;
mod traps_sync;
