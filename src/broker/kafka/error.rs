//! What the client says went wrong, in the words of [`Error`].

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::error::{Error, ErrorKind};

/// An error of the client as one of ours: `context` says what was tried and on what, `other` is the kind of everything that
/// is neither connection, right, name nor position.
pub(super) fn classify(error: KafkaError, other: ErrorKind, context: impl Into<String>) -> Error {
    let (kind, retryable) = match error.rdkafka_error_code() {
        Some(code) => kind(code, other),
        None => (other, false),
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
}
