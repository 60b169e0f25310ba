//! The registry: from a URL to the adapter of its broker. The only list of brokers in the crate.

#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(any(test, feature = "kafka"))]
mod outbox;

use crate::error::Result;
use crate::sink::NewSink;
use crate::source::NewSource;

/// What every adapter is told beside its URL and topic.
#[derive(Clone, Debug, Default)]
pub struct BrokerOptions {
    /// The name to commit under and to start from, where the broker knows such names.
    pub group: String,
    /// Properties of the broker's client, in the client's own words.
    pub properties: Vec<(String, String)>,
}

/// The source of a topic of a broker. Checks everything that can be checked without connecting.
pub fn source(_broker: &str, _topic: &str, _options: &BrokerOptions) -> Result<NewSource> {
    unimplemented!()
}

/// The sink of a broker.
pub fn sink(_broker: &str, _options: &BrokerOptions) -> Result<NewSink> {
    unimplemented!()
}
