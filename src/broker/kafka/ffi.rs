//! Calls of librdkafka that `rdkafka` does not wrap. The only unsafe code of the adapter.

pub(super) mod rights;
