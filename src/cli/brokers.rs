//! Brokers as they are written on the command line.

use crate::broker::is_url;

/// Whether a broker is Kafka.
pub(super) fn is_kafka(broker: &str) -> bool {
    !broker.is_empty() && (broker.starts_with("kafka://") || !is_url(broker))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_kafka() {
        assert!(is_kafka("localhost:9092") && is_kafka("kafka://h:1") && !is_kafka("file:x") && !is_kafka(""));
    }
}
