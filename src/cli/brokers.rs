//! Brokers and topics as they are written on the command line.

/// Whether a broker or topic is a URL: it starts with a scheme and a colon. Topics of Kafka have no colon; `host:port` has no
/// letters only before one and digits only behind it.
pub(super) fn is_url(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let letters = scheme.starts_with(|c: char| c.is_ascii_lowercase())
        && scheme.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '+' || c == '-');
    let port = rest.split(',').next().unwrap_or_default();
    letters && (port.is_empty() || !port.chars().all(|c| c.is_ascii_digit()))
}

/// Splits a URL that ends with a topic into broker and topic.
pub(super) fn split_url(url: &str) -> Result<(String, String), String> {
    let problem = || "a URL of a topic ends with the topic: file:DIR/TOPIC or kafka://host:port/TOPIC".to_owned();
    let path = url.find("://").map_or_else(|| url.find(':').map_or(0, |at| at + 1), |at| at + 3);
    let slash = url[path..].rfind('/').ok_or_else(problem)? + path;
    let (broker, topic) = (&url[..slash], &url[slash + 1..]);
    // file:/TOPIC is in the root folder.
    let broker = if broker.ends_with(':') { &url[..=slash] } else { broker };
    if topic.is_empty() { Err(problem()) } else { Ok((broker.to_owned(), topic.to_owned())) }
}

/// Whether a broker is Kafka.
pub(super) fn is_kafka(broker: &str) -> bool {
    !broker.is_empty() && (broker.starts_with("kafka:") || !is_url(broker))
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
    fn urls_are_not_hosts() {
        for text in ["file:DIR/one", "kafka://h:1", "memory:x", "kafka://h:1,i:2/t", "file:"] {
            assert!(is_url(text), "{text}");
        }
        for text in
            ["localhost:9092", "a:1,b:2", "fasten.one", "10.0.0.1:9092", "", "h.example.org:9092,i.example.org:9092"]
        {
            assert!(!is_url(text), "{text}");
        }
        assert!(is_kafka("localhost:9092") && is_kafka("kafka://h:1") && !is_kafka("file:x"));
    }

    #[test]
    fn the_topic_is_the_last_segment() {
        let split = |url| split_url(url).map(|(broker, topic)| format!("{broker} {topic}"));
        assert_eq!(split("file:a/b/one").as_deref(), Ok("file:a/b one"));
        assert_eq!(split("file:/one").as_deref(), Ok("file:/ one"));
        assert_eq!(split("file:///tmp/one").as_deref(), Ok("file:///tmp one"));
        assert_eq!(split("kafka://h:1,i:2/one").as_deref(), Ok("kafka://h:1,i:2 one"));
        for url in ["kafka://h:1", "file:one", "file:a/"] {
            assert!(split(url).is_err(), "{url}");
        }
    }

    #[test]
    fn spellings_of_a_broker_are_the_same() {
        assert!(same("kafka://B:1,a:2/", "a:2,b:1") && same("file:x/", "file:x"));
        assert!(!same("a:1", "a:2") && !same("file:x", "file:y"));
    }
}
