//! Files.
use super::BrokerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::NewSink;
use crate::source::NewSource;

/// The source of a topic.
pub fn source(_folder: &str, _topic: &str, options: &BrokerOptions) -> Result<NewSource> {
    super::no_properties("a folder", options)?;
    Err(Error::new(ErrorKind::Config, "later"))
}

/// The sink.
pub fn sink(_folder: &str, options: &BrokerOptions) -> Result<NewSink> {
    super::no_properties("a folder", options)?;
    Err(Error::new(ErrorKind::Config, "later"))
}
