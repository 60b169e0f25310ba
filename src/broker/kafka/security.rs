//! What can be wrong with the properties of TLS and SASL, as far as that shows without a connection.

use crate::broker::BrokerOptions;

/// What this build can do, best first.
const MECHANISMS: [&str; 3] = ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"];

/// Properties that name files.
const FILES: [&str; 5] =
    ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location"];

/// Every problem, in words that name the property and what to do.
pub(super) fn problems(options: &BrokerOptions) -> Vec<String> {
    let value = |names: &[&str]| {
        let given = options.properties.iter().find(|(name, _)| names.contains(&name.as_str()));
        given.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    };
    let protocol = value(&["security.protocol"]).unwrap_or("plaintext").to_lowercase();
    let (has_sasl, has_tls) = (protocol.starts_with("sasl_"), protocol.ends_with("ssl"));
    let mechanism = value(&["sasl.mechanisms", "sasl.mechanism"]);
    let mut problems = Vec::new();
    match mechanism {
        None if has_sasl => problems.push(format!(
            "Kafka property \"security.protocol\" is {protocol:?}, and no mechanism is given: add sasl.mechanism ({})",
            MECHANISMS.join(", ")
        )),
        Some(mechanism) => problems.extend(mechanism_problem(mechanism)),
        None => {}
    }
    if !has_sasl {
        let given = mechanism.map(|_| "sasl.mechanism").or(value(&["sasl.username"]).map(|_| "sasl.username"));
        problems.extend(given.map(|name| {
            format!("Kafka property {name:?} means nothing without security.protocol: set that to sasl_ssl or sasl_plaintext")
        }));
    } else if mechanism.is_some_and(|mechanism| MECHANISMS.contains(&mechanism)) {
        for name in ["sasl.username", "sasl.password"] {
            if value(&[name]).is_none() {
                problems.push(format!(
                    "Kafka property {name:?} is missing or empty, and security.protocol is {protocol:?}"
                ));
            }
        }
    }
    for name in FILES {
        let Some(path) = value(&[name]) else { continue };
        if !has_tls {
            problems.push(format!(
                "Kafka property {name:?} means nothing without TLS: set security.protocol to ssl or sasl_ssl"
            ));
        }
        if let (Err(error), false) = (std::fs::metadata(path), path == "probe") {
            problems.push(format!("Kafka property {name:?} names {path:?}, which cannot be read: {error}"));
        }
    }
    problems
}

fn mechanism_problem(mechanism: &str) -> Option<String> {
    let instead = format!("use {}, or a certificate of the client", MECHANISMS.join(", "));
    match mechanism {
        known if MECHANISMS.contains(&known) => None,
        "GSSAPI" => {
            Some(format!("Kafka property \"sasl.mechanism\": GSSAPI (Kerberos) is not in this build: {instead}"))
        }
        "OAUTHBEARER" => Some(format!(
            "Kafka property \"sasl.mechanism\": OAUTHBEARER is not in this build, which cannot fetch tokens: {instead}"
        )),
        other => Some(format!("Kafka property \"sasl.mechanism\" cannot be {other:?}: {instead}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(given: &[(&str, &str)]) -> Vec<String> {
        let properties = given.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        problems(&BrokerOptions { properties, ..BrokerOptions::default() })
    }

    /// The only problem, which must have all these parts.
    fn only(given: &[(&str, &str)], parts: &[&str]) {
        let problems = found(given);
        assert_eq!(problems.len(), 1, "{given:?}: {problems:?}");
        for part in parts {
            assert!(problems[0].contains(part), "{part} is not in: {}", problems[0]);
        }
    }

    #[test]
    fn what_is_whole_passes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert!(found(&[]).is_empty());
        assert!(found(&[("security.protocol", "SSL"), ("ssl.ca.location", path)]).is_empty());
        let user = [("sasl.mechanism", "SCRAM-SHA-512"), ("sasl.username", "u"), ("sasl.password", "p")];
        let with = |first| [[first].as_slice(), &user].concat();
        assert!(found(&with(("security.protocol", "sasl_plaintext"))).is_empty());
        assert!(found(&with(("security.protocol", "SASL_SSL"))).is_empty());
    }

    #[test]
    fn mechanisms_that_are_not_here_are_refused_by_name() {
        let with = |mechanism| [("security.protocol", "sasl_ssl"), ("sasl.mechanisms", mechanism)];
        only(&with("GSSAPI"), &["GSSAPI", "SCRAM-SHA-512"]);
        only(&with("OAUTHBEARER"), &["OAUTHBEARER", "SCRAM-SHA-512"]);
        only(&with("SCRAM-SHA-1"), &["\"SCRAM-SHA-1\"", "SCRAM-SHA-512"]);
    }

    #[test]
    fn halves_are_named() {
        only(&[("security.protocol", "sasl_ssl")], &["no mechanism is given"]);
        only(&[("sasl.username", "u")], &["\"sasl.username\"", "sasl_ssl"]);
        let user = [("security.protocol", "sasl_ssl"), ("sasl.mechanism", "PLAIN"), ("sasl.username", "u")];
        only(&user, &["\"sasl.password\" is missing"]);
        only(&[("security.protocol", "ssl"), ("ssl.ca.location", "/no/ca.crt")], &["\"/no/ca.crt\"", "cannot be read"]);
        only(&[("security.protocol", "plaintext"), ("ssl.ca.location", "/")], &["without TLS"]);
    }
}
