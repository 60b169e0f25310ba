//! The registry: from a URL to the adapter of its broker. The only list of brokers in the crate.
//!
//! | broker | means |
//! |---|---|
//! | `host:port,host:port` | Kafka |
//! | `kafka://host:port,host:port` | Kafka |
//! | `file:DIR` | the files of a folder |
//! | `memory:NAME` | a broker inside this process |
//!
//! A topic may be a whole URL; then it names its broker too: `kafka://host:port/TOPIC`, `file:DIR/TOPIC`,
//! `memory:NAME/TOPIC`. So the topics of one job may live in different brokers. In Kafka it may also be a list of topics,
//! `one,two`; name partitions, `one[0,2]`; or be a regular expression for whole names, `^one-.*`.

use std::fmt::{self, Write};

use crate::error::{Error, ErrorKind, Result};
use crate::sink::NewSink;
use crate::source::{Discovery, NewSource, OnLost};

#[cfg(feature = "kafka")]
mod dead_letter;
pub mod file;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod memory;
mod outbox;

/// What every adapter is told beside its URL and topic.
#[derive(Clone, Default)]
pub struct BrokerOptions {
    /// The name to commit under and to start from, where the broker knows such names.
    pub group: String,
    /// Properties of the broker's client, in the client's own words.
    pub properties: Vec<(String, String)>,
    /// How often a source looks for new splits.
    pub discovery: Discovery,
    /// What a source does when its position is gone.
    pub on_lost_offset: OnLost,
    /// How topics of outputs are made that are not there. `None`: a missing topic is an error.
    pub create_topics: Option<CreateTopics>,
    /// The job keeps what waits in a checkpoint: where the broker has room for a remark, commits say so.
    pub keeps_state: bool,
    /// Begin at what was committed, even by a job that kept what waited then in a checkpoint.
    pub despite_state: bool,
}

/// How a topic is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateTopics {
    /// How many partitions it gets.
    pub partitions: u32,
    /// How many copies there are of each; `None`: as many as the broker makes by default.
    pub replication: Option<u16>,
}

/// Names properties, and shows no value: it may be a password.
impl fmt::Debug for BrokerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.properties.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("BrokerOptions")
            .field("group", &self.group)
            .field("properties", &names)
            .field("discovery", &self.discovery)
            .field("on_lost_offset", &self.on_lost_offset)
            .field("create_topics", &self.create_topics)
            .field("keeps_state", &self.keeps_state)
            .field("despite_state", &self.despite_state)
            .finish()
    }
}

/// What is known of a scheme.
struct Scheme {
    name: &'static str,
    /// `//` must follow, so that `kafka:9092` stays a host and its port.
    slashes: bool,
    /// How a URL of it looks.
    form: &'static str,
    state: State,
}

enum State {
    /// Its adapter is in every build.
    Always,
    /// Its adapter is in builds with the feature of this name.
    Feature(&'static str),
    /// There will be an adapter.
    Future,
}

const SCHEMES: [Scheme; 9] = [
    Scheme { name: "kafka", slashes: true, form: "kafka://HOST:PORT,..", state: State::Feature("kafka") },
    Scheme { name: "file", slashes: false, form: "file:DIR", state: State::Always },
    Scheme { name: "memory", slashes: false, form: "memory:NAME", state: State::Always },
    Scheme { name: "nats", slashes: true, form: "nats://HOST:PORT", state: State::Future },
    Scheme { name: "amqp", slashes: true, form: "amqp://HOST:PORT", state: State::Future },
    Scheme { name: "amqps", slashes: true, form: "amqps://HOST:PORT", state: State::Future },
    Scheme { name: "servicebus", slashes: false, form: "servicebus:NAMESPACE", state: State::Future },
    Scheme { name: "rocketmq", slashes: true, form: "rocketmq://HOST:PORT", state: State::Future },
    Scheme { name: "hbase", slashes: true, form: "hbase://HOST:PORT", state: State::Future },
];

/// The source of a topic of a broker. Checks everything that can be checked without connecting.
///
/// # Errors
///
/// [`ErrorKind::Config`] with the fix: an unknown scheme, a broker that this build does not have, a bad address or topic, a
/// property that the adapter does not know.
pub fn source(broker: &str, topic: &str, options: &BrokerOptions) -> Result<NewSource> {
    let (broker, topic) = split_topic(broker, topic)?;
    let (scheme, rest) = parse(&broker)?;
    match scheme.name {
        "file" => file::source(&folder(rest)?, &topic, options),
        "memory" => memory::MemoryBroker::named(&memory_name(rest)?).source(&topic, options),
        #[cfg(feature = "kafka")]
        "kafka" => kafka::source(&hosts(rest)?, &topic, options),
        _ => Err(not_built(scheme)),
    }
}

/// The sink of a broker. Checks everything that can be checked without connecting.
///
/// # Errors
///
/// As [`source`].
pub fn sink(broker: &str, options: &BrokerOptions) -> Result<NewSink> {
    let (scheme, rest) = parse(broker)?;
    match scheme.name {
        "file" => file::sink(&folder(rest)?, options),
        "memory" => memory::MemoryBroker::named(&memory_name(rest)?).sink(options),
        #[cfg(feature = "kafka")]
        "kafka" => kafka::sink(&hosts(rest)?, options),
        _ => Err(not_built(scheme)),
    }
}

/// Checks the name of an output of a broker, without connecting.
///
/// # Errors
///
/// [`ErrorKind::Config`] for a name that the broker cannot have, and as [`source`].
pub fn check_output(broker: &str, name: &str) -> Result<()> {
    match parse(broker)?.0.name {
        "file" => file::check_name("output", name),
        #[cfg(feature = "kafka")]
        "kafka" => kafka::check_topic(name),
        _ => Ok(()),
    }
}

/// Whether two texts name the same broker, as far as that can be told without connecting.
pub fn same(one: &str, two: &str) -> bool {
    one == two || identity(one).is_some_and(|one| identity(two).is_some_and(|two| one == two))
}

/// The scheme of a broker, and its address in one of several spellings.
fn identity(broker: &str) -> Option<(&'static str, Vec<String>)> {
    let (scheme, rest) = parse(broker).ok()?;
    let address = match scheme.name {
        "file" => {
            let folder = folder(rest).ok()?;
            let path = std::fs::canonicalize(&folder).or_else(|_| std::path::absolute(&folder)).ok()?;
            vec![path.components().as_path().display().to_string()]
        }
        "memory" => vec![memory_name(rest).ok()?],
        _ => {
            let hosts = rest.trim_end_matches('/').split(',').map(|host| host.trim().to_lowercase());
            let mut hosts: Vec<String> = hosts.collect();
            hosts.sort();
            hosts
        }
    };
    Some((scheme.name, address))
}

/// Splits a topic that is a whole URL into its broker and its topic; of any other topic the broker is `broker`.
///
/// # Errors
///
/// [`ErrorKind::Config`] if the URL names no topic.
pub fn split_topic(broker: &str, topic: &str) -> Result<(String, String)> {
    if !is_url(topic) {
        return Ok((broker.to_owned(), topic.to_owned()));
    }
    let missing =
        || config(format!("topic {:?} names no topic behind its broker: expected BROKER/TOPIC", redact(topic)));
    let start = topic.find("://").map_or_else(|| topic.find(':').map_or(0, |colon| colon + 1), |colon| colon + 3);
    let (broker, name) = match topic[start..].rfind('/') {
        Some(slash) => (&topic[..start + slash], &topic[start + slash + 1..]),
        None if topic.starts_with("file:") && !topic.contains("://") => ("file:.", &topic[start..]),
        None => return Err(missing()),
    };
    // `file:/TOPIC` is a file of the root folder, also as `file:///TOPIC`.
    let broker = if matches!(broker, "file:" | "file://") { "file:/" } else { broker };
    if name.is_empty() { Err(missing()) } else { Ok((broker.to_owned(), name.to_owned())) }
}

/// The name of the topic that a text means in a broker, or `None` if it may mean several: a list or a regular expression. A text
/// that means nothing is its own name; [`source`] says what is wrong with it.
pub fn topic_name(broker: &str, topic: &str) -> Option<String> {
    match parse(broker) {
        #[cfg(feature = "kafka")]
        Ok((Scheme { name: "kafka", .. }, _)) => kafka::topic_name(topic),
        _ => Some(topic.to_owned()),
    }
}

/// Whether two texts mean the same splits in a broker, or some of them, as far as that can be said without connecting.
pub fn overlap(broker: &str, one: &str, two: &str) -> bool {
    match parse(broker) {
        #[cfg(feature = "kafka")]
        Ok((Scheme { name: "kafka", .. }, _)) => one == two || kafka::overlap(one, two),
        _ => one == two,
    }
}

/// Whether the topics that a text means in a broker may have a split of this name.
pub fn has_split(broker: &str, topic: &str, split: &str) -> bool {
    match parse(broker) {
        #[cfg(feature = "kafka")]
        Ok((Scheme { name: "kafka", .. }, _)) => kafka::has_split(topic, split),
        Ok((Scheme { name: "file", .. }, _)) => file::has_split(topic, split),
        _ => split.strip_prefix(topic).is_some_and(|number| number.starts_with('[') && number.ends_with(']')),
    }
}

/// Whether this is a URL of a broker, and not the name of a topic or a list of hosts.
pub fn is_url(text: &str) -> bool {
    text.contains("://") || known_scheme(text).is_some()
}

fn known_scheme(text: &str) -> Option<(&'static Scheme, &str)> {
    SCHEMES.iter().find_map(|scheme| {
        let rest = text.strip_prefix(scheme.name)?.strip_prefix(':')?;
        let rest = if scheme.slashes { rest.strip_prefix("//")? } else { rest };
        Some((scheme, rest))
    })
}

/// The scheme of a broker and what follows it.
fn parse(broker: &str) -> Result<(&'static Scheme, &str)> {
    if let Some(found) = known_scheme(broker) {
        return Ok(found);
    }
    if let (false, Ok(())) = (broker.contains("://"), check_hosts(broker)) {
        return Ok((&SCHEMES[0], broker));
    }
    let name = broker.split("://").next().unwrap_or_default();
    let looks_like_url = name.len() < broker.len() || (!broker.contains(',') && similar(name_of(broker)).is_some());
    if looks_like_url {
        return Err(unknown_scheme(broker));
    }
    check_hosts(broker)?;
    Ok((&SCHEMES[0], broker))
}

/// What stands before the first colon.
fn name_of(broker: &str) -> &str {
    broker.split(':').next().unwrap_or_default()
}

fn similar(name: &str) -> Option<&'static Scheme> {
    let name = name.to_lowercase();
    let rated = SCHEMES.iter().map(|scheme| (strsim::damerau_levenshtein(&name, scheme.name), scheme));
    rated.filter(|(distance, scheme)| *distance <= scheme.name.len() / 3).min_by_key(|(d, _)| *d).map(|(_, s)| s)
}

fn unknown_scheme(broker: &str) -> Error {
    let name = name_of(broker);
    let mut text = format!("broker {:?} has an unknown scheme {name:?}", redact(broker));
    if let Some(scheme) = similar(name) {
        // Writing to a string cannot fail.
        let _ = write!(text, "; did you mean {}?", scheme.form);
    }
    let built = SCHEMES.iter().filter(|scheme| !matches!(scheme.state, State::Future)).map(|scheme| scheme.form);
    let _ = write!(text, " (known are {} and HOST:PORT,.. for Kafka)", built.collect::<Vec<_>>().join(", "));
    config(text)
}

fn not_built(scheme: &Scheme) -> Error {
    config(match scheme.state {
        State::Feature(feature) => format!(
            "this build has no {} broker: build it with `cargo build --release --features {feature}`",
            scheme.name
        ),
        State::Always | State::Future => format!("{} brokers ({}) do not exist yet", scheme.name, scheme.form),
    })
}

/// Takes `DIR` out of `DIR`, `/DIR` or `///DIR`.
fn folder(rest: &str) -> Result<String> {
    let folder = match rest.strip_prefix("//") {
        Some(path) => {
            let path = path.strip_prefix("localhost").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(config(format!(
                    "broker \"file:{rest}\" names a host: write file:DIR for a relative folder, file:///DIR for an absolute one"
                )));
            }
            path
        }
        None => rest,
    };
    match folder {
        "" => Err(config("broker \"file:\" names no folder: expected file:DIR".into())),
        folder => Ok(folder.to_owned()),
    }
}

fn memory_name(rest: &str) -> Result<String> {
    match rest.trim_start_matches('/') {
        "" => Err(config("broker \"memory:\" has no name: expected memory:NAME".into())),
        name => Ok(name.to_owned()),
    }
}

#[cfg(feature = "kafka")]
fn hosts(rest: &str) -> Result<String> {
    let hosts = rest.strip_suffix('/').unwrap_or(rest);
    check_hosts(hosts)?;
    Ok(hosts.to_owned())
}

/// Every part of `host:port,host:port` must be one.
fn check_hosts(hosts: &str) -> Result<()> {
    for host in hosts.split(',') {
        let valid = host.rsplit_once(':').is_some_and(|(name, port)| {
            let ipv6 = name.starts_with('[') && name.ends_with(']');
            !name.is_empty()
                && (ipv6 || !name.contains([':', '/', ' ', '@']))
                && port.parse::<u16>().is_ok_and(|p| p > 0)
        });
        if !valid {
            return Err(config(format!(
                "broker {:?}: {:?} is not HOST:PORT (a list of them means Kafka; other brokers are URLs such as file:DIR)",
                redact(hosts),
                redact(host)
            )));
        }
    }
    Ok(())
}

/// The URL without user and password, which may contain anything, slashes too.
fn redact(url: &str) -> String {
    let start = url.find("://").map_or(0, |colon| colon + 3);
    match url[start..].rfind('@') {
        Some(at) => format!("{}***{}", &url[..start], &url[start + at..]),
        None => url.to_owned(),
    }
}

fn config(text: String) -> Error {
    Error::new(ErrorKind::Config, text)
}

/// Refuses properties, for adapters that have none.
fn no_properties(broker: &str, options: &BrokerOptions) -> Result<()> {
    let problem =
        |(name, _): &(String, String)| format!("{broker} has no properties, but {name:?} is given: remove it");
    match options.properties.iter().map(problem).collect::<Vec<_>>() {
        problems if problems.is_empty() => Ok(()),
        problems => Err(Error::config(&problems)),
    }
}

#[cfg(test)]
mod tests;
