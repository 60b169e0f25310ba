//! What the client says went wrong, in the words of [`Error`], and what to do about it.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::error::{Error, ErrorKind};

/// An error of the client as one of ours: `context` says what was tried and on what, `other` is the kind of everything that
/// is neither connection, right, name nor position.
pub(super) fn classify(error: KafkaError, other: ErrorKind, context: impl Into<String>) -> Error {
    let code = error.rdkafka_error_code();
    let (kind, retryable) = code.map_or((other, false), |code| kind(code, other));
    let context = match code.and_then(|code| missing_right(code, other)) {
        Some(advice) => format!("{}: {advice}", context.into()),
        None => context.into(),
    };
    let error = Error::new(kind, context).with_source(error);
    if retryable { error.retryable() } else { error }
}

/// The kind of a code, and whether the same call may succeed later.
pub(super) fn kind(code: Code, other: ErrorKind) -> (ErrorKind, bool) {
    match code {
        Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::Resolve
        | Code::OperationTimedOut
        | Code::RequestTimedOut
        | Code::MessageTimedOut
        | Code::TimedOutQueue
        | Code::WaitingForCoordinator
        | Code::NetworkException
        | Code::BrokerNotAvailable
        | Code::BrokerDestroy
        | Code::DestroyBroker
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::ReplicaNotAvailable
        | Code::PreferredLeaderNotAvailable
        | Code::CoordinatorLoadInProgress
        | Code::CoordinatorNotAvailable
        | Code::NotCoordinator
        | Code::FencedLeaderEpoch
        | Code::UnknownLeaderEpoch
        | Code::OffsetNotAvailable
        | Code::KafkaStorageError
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::ISRInsufficient
        | Code::ThrottlingQuotaExceeded
        | Code::RebootstrapRequired => (ErrorKind::Connect, true),
        Code::Authentication
        | Code::SSL
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed => (ErrorKind::Auth, false),
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::UnknownTopicId => {
            (ErrorKind::NotFound, false)
        }
        Code::OffsetOutOfRange | Code::AutoOffsetReset | Code::NoOffset | Code::LogTruncation => {
            (ErrorKind::OffsetLost, false)
        }
        Code::ProducerFenced | Code::InvalidProducerEpoch | Code::Fenced => (ErrorKind::Fenced, false),
        _ => (other, false),
    }
}

/// Which right is missing, and how it is given. Reading and writing are told apart by the kind of the call.
fn missing_right(code: Code, other: ErrorKind) -> Option<String> {
    let operation = if other == ErrorKind::Write { "Write" } else { "Read" };
    let (what, resource) = match code {
        Code::TopicAuthorizationFailed => (operation, "--topic TOPIC"),
        Code::GroupAuthorizationFailed => ("Read", "--group GROUP"),
        Code::ClusterAuthorizationFailed => ("ClusterAction", "--cluster"),
        _ => return None,
    };
    Some(format!(
        "this user has not the right to; an administrator gives it by: kafka-acls.sh --bootstrap-server HOST:PORT --add \
         --allow-principal User:NAME --operation {what} {resource}"
    ))
}

/// What a line of the client's log says about a connection that does not come about: calls fail with "timed out" alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// What to do.
    pub advice: &'static str,
    /// The broker has said so. Otherwise it is what a hang-up looks like, and a broker that goes down hangs up too.
    pub sure: bool,
}

const OBSTACLES: [(&str, Obstacle); 11] = [
    ("Request not valid in current SASL state", sure(NO_SASL)),
    ("mechanism handshake failed", sure(MECHANISM)),
    ("SASL authentication error", sure(USER)),
    ("broker certificate could not be verified", sure(CERTIFICATE)),
    ("certificate verify failed", sure(CERTIFICATE)),
    ("Failed to verify broker certificate", sure(CERTIFICATE)),
    ("client SSL authentication might be required", sure(OWN_CERTIFICATE)),
    ("alert bad certificate", sure(OWN_CERTIFICATE)),
    ("alert certificate required", sure(OWN_CERTIFICATE)),
    ("wrong version number", sure(NO_TLS)),
    ("packet length too long", sure(NO_TLS)),
];

/// What it may mean that the broker hangs up in a state of the connection.
const HANG_UPS: [(&str, Obstacle); 3] = [
    ("in state SSL_HANDSHAKE", unsure(NO_TLS)),
    ("in state APIVERSION_QUERY", unsure(TLS)),
    ("in state UP", unsure(SASL)),
];

const USER: &str = "the broker refuses this user: check sasl.username, sasl.password and sasl.mechanism (a SCRAM user is made for \
                    each mechanism)";
const MECHANISM: &str = "the broker does not offer this mechanism: set sasl.mechanism to one that it does";
const NO_SASL: &str = "the broker wants no user on this port: connect to the port that does, or set security.protocol to plaintext \
                       or ssl, without sasl.mechanism";
const CERTIFICATE: &str = "the broker's certificate is not trusted: name the file of the authority that signed it by \
                           ssl.ca.location, and connect to a host name that stands in it";
const OWN_CERTIFICATE: &str = "the broker wants a certificate of the client, one that it trusts: name its files by \
                               ssl.certificate.location and ssl.key.location";
const NO_TLS: &str = "the broker does not speak TLS on this port: connect to the port that does, or set security.protocol to \
                      plaintext or sasl_plaintext";
const TLS: &str =
    "the broker hangs up, as one does that wants TLS on this port: set security.protocol to ssl or sasl_ssl";
const SASL: &str = "the broker hangs up, as one does that wants a user: set security.protocol to sasl_ssl or sasl_plaintext, with \
                    sasl.mechanism, sasl.username and sasl.password";

const fn sure(advice: &'static str) -> Obstacle {
    Obstacle { advice, sure: true }
}

const fn unsure(advice: &'static str) -> Obstacle {
    Obstacle { advice, sure: false }
}

/// The obstacle that a line of the client's log speaks of.
pub(super) fn obstacle(complaint: &str) -> Option<Obstacle> {
    if is_tls_record(complaint) {
        return Some(sure(TLS));
    }
    let hangs_up = ["Disconnected", "Broken pipe", "Connection reset"].iter().any(|sign| complaint.contains(sign));
    let signs = OBSTACLES.iter().chain(HANG_UPS.iter().filter(|_| hangs_up));
    signs.into_iter().find(|(sign, _)| complaint.contains(sign)).map(|(_, obstacle)| *obstacle)
}

/// Whether the size of an answer is the head of a TLS alert, read as a number: 21, then the version 3.x.
fn is_tls_record(complaint: &str) -> bool {
    let size = complaint.split_once("Invalid response size ").and_then(|(_, rest)| rest.split(' ').next());
    size.and_then(|size| size.parse::<u32>().ok()).is_some_and(|size| size >> 16 == 0x1503)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_may_come_back_and_a_wrong_password_may_not() {
        let lost = classify(KafkaError::MetadataFetch(Code::BrokerTransportFailure), ErrorKind::Read, "a");
        assert_eq!((lost.kind(), lost.is_retryable()), (ErrorKind::Connect, true));
        let wrong = classify(KafkaError::Global(Code::Authentication), ErrorKind::Read, "a");
        assert_eq!((wrong.kind(), wrong.is_retryable()), (ErrorKind::Auth, false));
        let old = classify(KafkaError::MessageConsumption(Code::AutoOffsetReset), ErrorKind::Read, "a");
        assert_eq!((old.kind(), old.is_retryable()), (ErrorKind::OffsetLost, false));
        let large = classify(KafkaError::MessageProduction(Code::MessageSizeTooLarge), ErrorKind::Write, "a");
        assert_eq!((large.kind(), large.is_retryable()), (ErrorKind::Write, false));
        assert!(lost.report().starts_with("a: "), "{}", lost.report());
    }

    #[test]
    fn a_missing_right_is_named_with_the_command_that_gives_it() {
        let text = |code, other| classify(KafkaError::MetadataFetch(code), other, "a").to_string();
        let read = text(Code::TopicAuthorizationFailed, ErrorKind::Read);
        assert!(read.starts_with("a: ") && read.contains("--operation Read --topic"), "{read}");
        let write = text(Code::TopicAuthorizationFailed, ErrorKind::Write);
        assert!(write.contains("--operation Write --topic"), "{write}");
        let group = text(Code::GroupAuthorizationFailed, ErrorKind::Read);
        assert!(group.contains("--operation Read --group"), "{group}");
    }

    #[test]
    fn obstacles_are_known_by_what_librdkafka_writes() {
        for (line, expected) in [
            (
                "SASL authentication error: Authentication failed: Invalid username or password (after 3ms)",
                Some(sure(USER)),
            ),
            ("SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism", Some(sure(MECHANISM))),
            (
                "Disconnected: connection closed by peer: receive 0 (after 3ms in state APIVERSION_QUERY)",
                Some(unsure(TLS)),
            ),
            ("Send failed: Broken pipe (after 0ms in state UP)", Some(unsure(SASL))),
            ("SSL handshake failed: Disconnected: closed (after 3ms in state SSL_HANDSHAKE)", Some(unsure(NO_TLS))),
            ("Receive failed: Invalid response size 352518912 (0..100000000): increase", Some(sure(TLS))),
            ("Receive failed: Invalid response size 200000000 (0..100000000): increase", None),
            ("Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)", None),
        ] {
            assert_eq!(obstacle(line), expected, "{line}");
        }
    }
}
