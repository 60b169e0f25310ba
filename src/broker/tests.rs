use super::*;

fn refused(broker: &str) -> String {
    let error = sink(broker, &BrokerOptions::default()).err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(!error.is_retryable());
    error.to_string()
}

#[test]
fn a_topic_may_be_a_whole_url() {
    let split = |topic| split_topic("file:here", topic).unwrap();
    let parts = |broker: &str, topic: &str| (broker.to_owned(), topic.to_owned());
    assert_eq!(split("orders"), parts("file:here", "orders"));
    assert_eq!(split("a:b"), parts("file:here", "a:b"));
    assert_eq!(split("file:some/dir/orders"), parts("file:some/dir", "orders"));
    assert_eq!(split("file:orders"), parts("file:.", "orders"));
    assert_eq!(split("file:/orders"), parts("file:/", "orders"));
    assert_eq!(split("file:///abs/dir/orders"), parts("file:///abs/dir", "orders"));
    assert_eq!(split("kafka://h:1,i:2/orders"), parts("kafka://h:1,i:2", "orders"));
    assert_eq!(split("memory:test/orders"), parts("memory:test", "orders"));
    for bad in ["kafka://h:1", "kafka://h:1/", "memory:test", "file:dir/", "file:"] {
        let error = split_topic("file:here", bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{bad}");
        assert!(error.to_string().contains(bad), "{error}");
    }
}

#[test]
fn hosts_and_ports_mean_kafka() {
    for hosts in ["localhost:9092", "a:1,b:2", "[::1]:9092", "kafka:9092", "nats:4222"] {
        assert_eq!(parse(hosts).unwrap().0.name, "kafka", "{hosts}");
    }
    for bad in ["localhost", "a:1,b", "a:0", "a:99999", "a:x", ":9092", "", "a:1,"] {
        assert!(refused(bad).contains("is not HOST:PORT"), "{bad}");
    }
}

#[test]
fn an_unknown_scheme_is_refused_with_a_suggestion() {
    assert!(refused("kafak://h:1").contains("did you mean kafka://HOST:PORT,..?"));
    assert!(refused("flie:dir").contains("did you mean file:DIR?"));
    let text = refused("zeromq://h:1");
    assert!(text.contains("unknown scheme \"zeromq\"") && !text.contains("did you mean"), "{text}");
    assert!(text.contains("known are kafka://HOST:PORT,.., file:DIR, memory:NAME and HOST:PORT"), "{text}");
}

#[test]
fn a_broker_that_is_not_there_yet_says_so() {
    for broker in ["nats://h:1", "amqp://h:1", "amqps://h:1", "servicebus:space", "rocketmq://h:1", "hbase://h:1"] {
        let scheme = broker.split(':').next().unwrap();
        let text = refused(broker);
        assert!(text.starts_with(&format!("{scheme} brokers (")) && text.ends_with("do not exist yet"), "{text}");
    }
}

#[cfg(not(feature = "kafka"))]
#[test]
fn a_broker_that_is_not_built_in_ends_with_the_command() {
    for broker in ["kafka://h:1", "h:1"] {
        assert!(refused(broker).ends_with("`cargo build --release --features kafka`"), "{}", refused(broker));
    }
}

#[test]
fn addresses_are_checked() {
    assert!(refused("file:").contains("names no folder"));
    assert!(refused("file://host/dir").contains("names a host"));
    assert!(refused("memory:").contains("has no name"));
    assert_eq!(folder("///a/b").unwrap(), "/a/b");
    assert_eq!(folder("//localhost/a").unwrap(), "/a");
    assert_eq!(folder("a/b").unwrap(), "a/b");
}

#[test]
fn secrets_are_not_printed() {
    let text = refused("kafak://user:sec/secret@host:1");
    assert!(!text.contains("secret") && text.contains("kafak://***@host:1"), "{text}");
    let error = split_topic("", "kafka://user:secret@host:1").unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[test]
fn properties_of_brokers_without_any_are_refused_all_at_once() {
    let properties = vec![("a".into(), "1".into()), ("b".into(), "secret".into())];
    let options = BrokerOptions { properties, ..BrokerOptions::default() };
    let text = source("file:dir", "topic", &options).err().expect("it is refused").to_string();
    assert!(text.contains("\"a\"") && text.contains("\"b\"") && !text.contains("secret"), "{text}");
}

#[test]
fn names_of_outputs_are_checked_without_a_connection() {
    assert!(check_output("file:dir", "a/b").is_err() && check_output("file:dir", "a b").is_ok());
    assert!(check_output("memory:m", "a/b").is_ok());
    #[cfg(feature = "kafka")]
    assert!(check_output("h:1", "a b").is_err() && check_output("h:1", "a_b").is_ok());
}

#[test]
fn spellings_of_a_broker_are_the_same() {
    for (one, two) in [
        ("kafka://B:1,a:2/", "a:2,b:1"),
        ("file:x/", "file:x"),
        ("file:/x", "file:///x"),
        ("file:///x/", "file://localhost/x"),
        ("file:./src", "file:src/"),
        ("memory:m", "memory://m"),
    ] {
        assert!(same(one, two), "{one} {two}");
    }
    for (one, two) in [("a:1", "a:2"), ("file:x", "file:y"), ("memory:x", "file:x")] {
        assert!(!same(one, two), "{one} {two}");
    }
    assert_eq!(split_topic("", "file:///a").unwrap(), ("file:/".to_owned(), "a".to_owned()));
}
