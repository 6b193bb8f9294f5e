//! Errors of the engine as gRPC status codes: the one place that decides which is which.

use dengine_kv::{ReadError, Refusal};
use dengine_raft::replica::RequestError;
use tonic::codegen::http::{HeaderValue, Response};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::{LEADER_HINT_METADATA, LOW_ON_SPACE_METADATA, UNCHANGED_METADATA};

/// The status that answers a request which ended with `error`.
#[must_use]
pub fn request_status(error: &RequestError) -> Status {
    let code = match error {
        RequestError::NotLeader { .. }
        | RequestError::Removed
        | RequestError::WaitingForIdentity
        | RequestError::NotServed { .. }
        | RequestError::ShuttingDown => Code::Unavailable,
        RequestError::Busy { .. } | RequestError::LowOnSpace { .. } => Code::ResourceExhausted,
        RequestError::UnknownOutcome { .. } => Code::DeadlineExceeded,
        RequestError::Refused(_) => Code::FailedPrecondition,
        RequestError::Invalid(_) => Code::InvalidArgument,
        RequestError::Storage(_) => Code::Internal,
    };
    let mut status = Status::new(code, error.to_string());
    if let RequestError::NotLeader {
        leader: Some(leader),
    } = error
        // The log may not have told it yet.
        && !leader.client_address.is_empty()
        && let Ok(address) = MetadataValue::try_from(leader.client_address.as_str())
    {
        status.metadata_mut().insert(LEADER_HINT_METADATA, address);
    }
    if matches!(error, RequestError::LowOnSpace { .. }) {
        let low = MetadataValue::from_static("1");
        status.metadata_mut().insert(LOW_ON_SPACE_METADATA, low);
    }
    status
}

/// A member's response, with its word if it is a refusal that changed nothing. What is in a stream
/// of calls needs none: nobody else speaks there.
#[must_use]
pub fn marked<B>(mut response: Response<B>) -> Response<B> {
    // An error that ends a response which has begun is behind the body, and promises nothing.
    let code = response.headers().get(Status::GRPC_STATUS);
    let code = code.map(|code| Code::from_bytes(code.as_bytes()));
    if let Some(Code::Unavailable | Code::ResourceExhausted) = code {
        let word = HeaderValue::from_static("1");
        response.headers_mut().insert(UNCHANGED_METADATA, word);
    }
    response
}

/// Another member's own answer, without the headers that belonged to its response.
#[must_use]
pub fn handed_on(status: &Status) -> Status {
    let mut own = Status::new(status.code(), status.message());
    for detail in [LEADER_HINT_METADATA, LOW_ON_SPACE_METADATA] {
        if let Some(said) = status.metadata().get(detail) {
            own.metadata_mut().insert(detail, said.clone());
        }
    }
    own
}

/// The status that answers a write which the state machine refused.
#[must_use]
pub fn refusal_status(refusal: &Refusal) -> Status {
    let code = match refusal {
        Refusal::DuplicateKey
        | Refusal::KeyNotFound
        | Refusal::NotForSessions
        | Refusal::DeletesTooMuch { .. }
        | Refusal::RangesTooLarge { .. }
        | Refusal::ReadsTooMuch { .. } => Code::InvalidArgument,
        Refusal::Future { .. } | Refusal::Compacted { .. } => Code::OutOfRange,
        Refusal::UnknownSession(_) | Refusal::LeaseNotFound(_) => Code::NotFound,
        Refusal::Acknowledged { .. } => Code::FailedPrecondition,
        Refusal::LeaseExists(_) => Code::AlreadyExists,
        Refusal::WindowFull { .. } | Refusal::TooManySessions(_) | Refusal::TooManyLeases(_) => {
            Code::ResourceExhausted
        }
    };
    Status::new(code, refusal.to_string())
}

/// The status that answers a read which ended with `error`.
#[must_use]
pub fn read_status(error: &ReadError) -> Status {
    let code = match error {
        ReadError::Future { .. } | ReadError::Compacted { .. } => Code::OutOfRange,
        ReadError::Stopped { .. } => Code::DeadlineExceeded,
        ReadError::Store(_) => Code::Internal,
    };
    Status::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dengine_raft::replica::LeaderHint;
    use dengine_types::MemberId;

    use super::*;

    fn check(error: &RequestError, code: Code) {
        let status = request_status(error);
        assert_eq!(status.code(), code, "{error}");
        // The API promises that UNAVAILABLE and RESOURCE_EXHAUSTED, and they alone, may be retried.
        let retry = matches!(code, Code::Unavailable | Code::ResourceExhausted);
        assert_eq!(error.retryable(), retry, "{error}");
    }

    #[test]
    fn codes_say_what_the_caller_may_do() {
        check(&RequestError::NotLeader { leader: None }, Code::Unavailable);
        check(&RequestError::Removed, Code::Unavailable);
        check(&RequestError::WaitingForIdentity, Code::Unavailable);
        check(
            &RequestError::NotServed { reason: "x".into() },
            Code::Unavailable,
        );
        check(&RequestError::ShuttingDown, Code::Unavailable);
        check(
            &RequestError::Busy {
                what: "writes",
                limit: 1,
            },
            Code::ResourceExhausted,
        );
        check(
            &RequestError::LowOnSpace {
                free_bytes: 1,
                wanted_bytes: 2,
            },
            Code::ResourceExhausted,
        );
        let waited = Duration::from_secs(1);
        check(
            &RequestError::UnknownOutcome { waited },
            Code::DeadlineExceeded,
        );
        check(&RequestError::Refused("x".into()), Code::FailedPrecondition);
        check(&RequestError::Invalid("x".into()), Code::InvalidArgument);
        check(&RequestError::Storage("x".into()), Code::Internal);
    }

    /// A client could not tell a member's UNAVAILABLE from that of a proxy which had lost its
    /// upstream.
    #[test]
    fn a_member_gives_its_word_that_nothing_was_changed_where_that_is_so() {
        for code in (0..=16).map(Code::from_i32) {
            let response = marked(Status::new(code, "m").into_http::<()>());
            let status = Status::from_header_map(response.headers()).unwrap();
            let unchanged = matches!(code, Code::Unavailable | Code::ResourceExhausted);
            let said = status.metadata().contains_key(UNCHANGED_METADATA);
            assert_eq!(said, unchanged, "{code:?}");
        }
        let served = marked(Response::new(()));
        assert!(served.headers().is_empty());
    }

    #[test]
    fn a_full_disk_is_told_from_load_also_by_who_passes_it_on() {
        let low = |error: &RequestError| {
            let passed_on = handed_on(&request_status(error));
            assert_eq!(passed_on.code(), Code::ResourceExhausted);
            assert_eq!(passed_on.message(), error.to_string());
            passed_on.metadata().contains_key(LOW_ON_SPACE_METADATA)
        };
        assert!(low(&RequestError::LowOnSpace {
            free_bytes: 1,
            wanted_bytes: 2,
        }));
        assert!(!low(&RequestError::Busy {
            what: "writes",
            limit: 1,
        }));
    }

    #[test]
    fn who_asks_the_wrong_member_is_told_the_right_one() {
        let hint = |client_address: &str| {
            let leader = LeaderHint {
                id: MemberId(2),
                client_address: client_address.into(),
            };
            let status = handed_on(&request_status(&RequestError::NotLeader {
                leader: Some(leader),
            }));
            let hint = status.metadata().get(LEADER_HINT_METADATA);
            hint.map(|it| it.to_str().unwrap().to_owned())
        };
        assert_eq!(hint("b:4100").as_deref(), Some("b:4100"));
        assert_eq!(hint(""), None, "its address is not known yet");
    }
}
