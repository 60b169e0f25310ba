//! Kafka.

use super::BrokerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::NewSink;
use crate::source::NewSource;

/// The source of a topic.
pub fn source(_hosts: &str, _topic: &str, _options: &BrokerOptions) -> Result<NewSource> {
    Err(Error::new(ErrorKind::Config, "Kafka is not built yet"))
}

/// The sink.
pub fn sink(_hosts: &str, _options: &BrokerOptions) -> Result<NewSink> {
    Err(Error::new(ErrorKind::Config, "Kafka is not built yet"))
}
