//! The one binary of integration tests.

mod conformance;
