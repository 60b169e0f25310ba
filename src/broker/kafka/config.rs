//! The client's properties: ours, the user's, and which of them nobody may change.

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;

use super::security;
use crate::broker::BrokerOptions;
use crate::error::{Error, Result};

/// The client asks for a group even if nothing is ever committed.
const NO_GROUP: &str = "syncline";

/// Whether the broker may make topics by itself because this client asks for them.
const AUTO_CREATE: &str = "allow.auto.create.topics";

/// Properties that the adapter's promises rest on, and why they are not the user's.
const FIXED: [(&str, &str); 13] = [
    ("bootstrap.servers", "the brokers are named by --brokers or the URL"),
    ("metadata.broker.list", "the brokers are named by --brokers or the URL"),
    ("group.id", "the group is an option of its own"),
    ("enable.auto.commit", "offsets are committed when the job is done with them"),
    ("enable.auto.offset.store", "offsets are committed when the job is done with them"),
    ("auto.offset.reset", "a position that is gone is an error, not a silent jump"),
    ("enable.partition.eof", "the job's clock needs to know when it has caught up"),
    ("enable.idempotence", "retries must not repeat or reorder records"),
    ("transactional.id", "this sink has no transactions"),
    ("acks", "a record counts as written when all replicas have it"),
    ("request.required.acks", "a record counts as written when all replicas have it"),
    ("message.timeout.ms", "a record that was given up may be there all the same, and would be written twice"),
    ("delivery.timeout.ms", "a record that was given up may be there all the same, and would be written twice"),
];

/// What a consumer of messages needs. See the page of the adapter for what each value trades.
const CONSUMER: [(&str, &str); 11] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("enable.partition.eof", "true"),
    ("auto.offset.reset", "error"),
    ("isolation.level", "read_committed"),
    // One answer, in bytes. A larger message comes alone, up to receive.message.max.bytes.
    ("fetch.max.bytes", "50000000"),
    // How long the broker may think before it says that there is nothing more: the age of our knowledge of being caught up.
    ("fetch.wait.max.ms", "100"),
    // One answer, in bytes, for each partition; smaller ones are read while they are in the caches.
    ("fetch.message.max.bytes", "262144"),
    // Read-ahead per partition: less starves the join, more is memory that no limit of the job sees, and cold when it is read.
    ("queued.max.messages.kbytes", "2048"),
    // The next answer is asked for once the last one was taken, which is looked at after this pause in milliseconds. Else messages that
    // come steadily are fetched by twos and threes, thousands of times a second: broker, client and worker are busy with nothing.
    ("queued.min.messages", "1"),
    ("fetch.queue.backoff.ms", "5"),
];

const PRODUCER: [(&str, &str); 9] = [
    ("enable.idempotence", "true"),
    ("acks", "all"),
    // What Java's clients do with the same key, so that the partitions of all writers agree.
    ("partitioner", "murmur2_random"),
    // The records of a range are handed over in one go, so to wait for more is latency alone; but 1 saves a busy broker requests.
    ("linger.ms", "0"),
    // The largest record, in bytes; the broker's own limit (message.max.bytes, default 1 MiB) must allow it too.
    ("message.max.bytes", "50000000"),
    // Records on their way, and their size in KiB; beyond it the writer waits, which is the back-pressure. The size must allow
    // the largest record, the number is for those of ordinary size: what is on its way is there twice.
    ("queue.buffering.max.messages", "16384"),
    ("queue.buffering.max.kbytes", "131072"),
    // A range is there when nothing is on its way any more; who was delivered is not asked.
    ("delivery.report.only.error", "true"),
    // Never: how long to try is decided where a record that was given up is not sent once more under another number.
    ("message.timeout.ms", "0"),
];

/// Second names of properties that have a value of ours. The client would take whichever name it comes to last.
const ALIASES: [(&str, &str); 2] =
    [("max.partition.fetch.bytes", "fetch.message.max.bytes"), ("queue.buffering.max.ms", "linger.ms")];

/// The configuration of a consumer. Finds every problem that can be found without a connection.
pub(super) fn consumer(hosts: &str, options: &BrokerOptions) -> Result<ClientConfig> {
    let mut config = build(hosts, options, &CONSUMER)?;
    config.set("group.id", if options.group.is_empty() { NO_GROUP } else { &options.group });
    Ok(config)
}

/// The configuration of a producer. Finds every problem that can be found without a connection.
pub(super) fn producer(hosts: &str, options: &BrokerOptions) -> Result<ClientConfig> {
    let mut config = build(hosts, options, &PRODUCER)?;
    if options.create_topics.is_some() && config.get(AUTO_CREATE).is_none() {
        config.set(AUTO_CREATE, "false"); // the broker would make them its own way, as soon as somebody asks for them
    }
    Ok(config)
}

/// What is wrong with the name of a topic, if anything is.
pub(super) fn topic_problem(topic: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if topic.is_empty() {
        Some("a Kafka topic needs a name".to_string())
    } else if topic.len() > 249 || topic == "." || topic == ".." || !topic.chars().all(good) {
        Some(format!(
            "{topic:?} cannot be a Kafka topic: at most 249 of a-z, A-Z, 0-9, '.', '_' and '-', and not '.' or '..'"
        ))
    } else {
        None
    }
}

fn build(hosts: &str, options: &BrokerOptions, ours: &[(&str, &str)]) -> Result<ClientConfig> {
    let mut problems: Vec<String> = host_problems(hosts);
    let mut config = ClientConfig::new();
    // What becomes of it is decided by Context::log.
    let debugs = options.properties.iter().any(|(name, _)| name == "debug");
    config.set_log_level(if debugs { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info });
    config.set("bootstrap.servers", hosts).set("client.id", "syncline");
    for (name, value) in ours {
        config.set(*name, *value);
    }
    for (name, value) in &options.properties {
        if let Some((_, reason)) = FIXED.iter().find(|(fixed, _)| fixed == name) {
            problems.push(format!("Kafka property {name:?} cannot be set: {reason}"));
        } else if let Err(error) = ClientConfig::new().set(name, value).create_native_config() {
            problems.push(property_problem(name, value, &error));
        } else {
            let alias = ALIASES.iter().find(|(alias, _)| alias == name);
            config.set(alias.map_or(name.as_str(), |(_, ours)| ours), value);
        }
    }
    problems.extend(security::problems(options));
    if !problems.is_empty() {
        return Err(Error::config(&problems));
    }
    Ok(config)
}

fn host_problems(hosts: &str) -> Vec<String> {
    let wrong = |host: &&str| match host.rsplit_once(':') {
        Some((name, port)) => name.is_empty() || port.parse::<u16>().is_err(),
        None => true,
    };
    hosts
        .split(',')
        .map(str::trim)
        .filter(wrong)
        .map(|host| format!("{host:?} is not a Kafka broker: write HOST:PORT, several with commas between them"))
        .collect()
}

/// Names the property and what the client has against it. The client's text quotes the value, so a secret stays away from it.
fn property_problem(name: &str, value: &str, error: &KafkaError) -> String {
    let KafkaError::ClientConfig(_, text, ..) = error else {
        return format!("Kafka property {name:?} cannot be set: it holds a zero byte");
    };
    let secret =
        ["password", "secret", "key.pem", "token", "jaas", "oauthbearer.config"].iter().any(|s| name.contains(s));
    let known = !text.starts_with("No such configuration property");
    match (known, secret) {
        (false, _) => format!(
            "Kafka has no client property {name:?}; the list: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md"
        ),
        (true, true) => format!("Kafka property {name:?} cannot have the value that was given"),
        (true, false) => format!("Kafka property {name:?} cannot be {value:?}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn options(properties: &[(&str, &str)]) -> BrokerOptions {
        let properties = properties.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        BrokerOptions { group: "g".to_string(), properties, ..BrokerOptions::default() }
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let given = [("acks", "1"), ("fetch.max.byte", "1"), ("isolation.level", "none"), ("client.rack", "a")];
        let error = consumer("one:1,two", &options(&given)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        assert_eq!(text.lines().count(), 4, "{text}");
        for part in [
            "\"two\"",
            "\"acks\" cannot be set",
            "no client property \"fetch.max.byte\"",
            "\"isolation.level\" cannot be \"none\"",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }

    #[test]
    fn users_properties_win_and_secrets_are_not_printed() {
        let config =
            consumer("a:1", &options(&[("isolation.level", "read_uncommitted"), ("ssl.key.password", "hush")]))
                .unwrap();
        assert_eq!(config.get("isolation.level"), Some("read_uncommitted"));
        assert_eq!(config.get("group.id"), Some("g"));
        let config = consumer("a:1", &options(&[("max.partition.fetch.bytes", "1048576")])).unwrap();
        assert_eq!(config.get("fetch.message.max.bytes"), Some("1048576"), "a second name is the same property");
        assert_eq!(config.get("max.partition.fetch.bytes"), None);
        let config = producer("a:1", &options(&[("queue.buffering.max.ms", "5")])).unwrap();
        assert_eq!(config.get("linger.ms"), Some("5"));
        assert!(!format!("{config:?}").contains("hush"));
        assert!(producer("a:1,b:2", &options(&[("compression.type", "gzip")])).is_ok());
        let error = producer("a:1", &options(&[("sasl.password", "hu\0sh")])).unwrap_err();
        assert!(!error.report().contains("hu"), "{error:?}");
    }

    #[test]
    fn topics_have_kafkas_names() {
        assert_eq!(topic_problem("fasten.callgraph.out"), None);
        for bad in ["", "..", "a/b", "ä", &"a".repeat(250)] {
            assert!(topic_problem(bad).is_some(), "{bad}");
        }
    }
}
