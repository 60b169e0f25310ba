//! Brokers as they are written on the command line.

use crate::broker::is_url;

/// Whether a broker is Kafka.
pub(super) fn is_kafka(broker: &str) -> bool {
    !broker.is_empty() && (broker.starts_with("kafka://") || !is_url(broker))
}

/// Whether two texts name the same broker, as far as texts can tell.
pub(super) fn same(one: &str, two: &str) -> bool {
    let plain = |broker: &str| {
        let broker = broker.strip_prefix("kafka://").unwrap_or(broker).trim_end_matches('/').to_owned();
        match is_url(&broker) {
            true => vec![broker],
            false => {
                let mut hosts: Vec<String> = broker.split(',').map(|host| host.trim().to_lowercase()).collect();
                hosts.sort();
                hosts
            }
        }
    };
    plain(one) == plain(two)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_broker_are_the_same() {
        assert!(same("kafka://B:1,a:2/", "a:2,b:1") && same("file:x/", "file:x"));
        assert!(!same("a:1", "a:2") && !same("file:x", "file:y"));
        assert!(is_kafka("localhost:9092") && is_kafka("kafka://h:1") && !is_kafka("file:x") && !is_kafka(""));
    }
}
