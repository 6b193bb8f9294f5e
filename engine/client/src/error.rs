//! The one public error: each variant says what the caller must do. Only this module may look at
//! gRPC status codes.

use std::error::Error as StdError;

use dengine_api::LEADER_HINT_METADATA;
use tonic::{Code, ConnectError, Status, TimeoutExpired};

/// Result of a call to DEngine.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed, by what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Fix the endpoints or options given to the client; nothing was sent.
    #[error("invalid client options: {message}")]
    InvalidOptions {
        /// What is wrong.
        message: String,
    },
    /// Fix the request: it can never succeed as it is. Nothing was changed.
    #[error("invalid request: {message}")]
    InvalidRequest {
        /// The server's words.
        message: String,
    },
    /// Ask for another revision: this one is compacted or lies in the future.
    #[error("revision not available: {message}")]
    RevisionUnavailable {
        /// The server's words.
        message: String,
    },
    /// Change the state of the cluster first, as the message says. Nothing was changed.
    #[error("refused ({code:?}): {message}")]
    Refused {
        /// `FailedPrecondition`, `NotFound`, `AlreadyExists`, `PermissionDenied`,
        /// `Unauthenticated` or `Unimplemented`.
        code: Code,
        /// The server's words.
        message: String,
    },
    /// Slow down and try again: a bound of the member is reached. Nothing was changed.
    #[error("overloaded: {message}")]
    Overloaded {
        /// The server's words.
        message: String,
    },
    /// Try again, here or elsewhere: no member served the request. Nothing was changed.
    #[error("unavailable: {message}")]
    Unavailable {
        /// The server's words, or why it could not be reached.
        message: String,
        /// Client address (`host:port`) of the leader, if a member named it.
        leader: Option<String>,
    },
    /// A read was not answered in time. Try again; nothing was changed.
    #[error("timed out: {message}")]
    Timeout {
        /// Who gave up, and after how long.
        message: String,
    },
    /// A write may or may not have taken effect, now or later. Read to find out, or repeat it if
    /// doing so twice does no harm.
    #[error("outcome unknown: {message}")]
    UnknownOutcome {
        /// Why nothing more is known.
        message: String,
    },
    /// Report it: the server answered a read with something that this client does not understand.
    #[error("unexpected answer ({code:?}): {message}")]
    Unexpected {
        /// The gRPC status code.
        code: Code,
        /// The server's words.
        message: String,
    },
}

impl Error {
    /// Whether the very same call may be repeated: nothing was changed and the cause may pass.
    #[must_use]
    pub fn retryable(&self) -> bool {
        match self {
            Error::InvalidOptions { .. } => false,
            Error::InvalidRequest { .. } => false,
            Error::RevisionUnavailable { .. } => false,
            Error::Refused { .. } => false,
            Error::Overloaded { .. } => true,
            Error::Unavailable { .. } => true,
            Error::Timeout { .. } => true,
            Error::UnknownOutcome { .. } => false,
            Error::Unexpected { .. } => false,
        }
    }

    /// A deadline that passed on this side while a request was under way.
    pub(crate) fn deadline(operation: Operation, after: std::time::Duration) -> Self {
        let message = format!("no answer within {after:?}");
        operation.unanswered(message)
    }

    /// An answer that violates the wire contract.
    pub(crate) fn malformed(operation: Operation, what: &str) -> Self {
        let message = format!("the response lacks its {what}");
        match operation {
            Operation::Read => Error::Unexpected {
                code: Code::Internal,
                message,
            },
            Operation::Write => Error::UnknownOutcome { message },
        }
    }
}

/// What a failure without an answer means: a read changes nothing, a write may have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
}

impl Operation {
    fn unanswered(self, message: String) -> Error {
        match self {
            Operation::Read => Error::Timeout { message },
            Operation::Write => Error::UnknownOutcome { message },
        }
    }
}

/// A failed attempt: the error, and what it says about the connection that was used.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The connection or the member behind it did not answer: prefer another for a while.
    pub(crate) unhealthy: bool,
}

impl Failure {
    /// Sorts a gRPC status by what it proves.
    ///
    /// A status without a source was sent by the server; one with a source was made up by this
    /// process from a transport error, and of those only a failed connect proves that nothing left.
    pub(crate) fn from_status(operation: Operation, status: &Status) -> Self {
        match local_cause(status) {
            None => Failure {
                error: answered(operation, status),
                unhealthy: false,
            },
            Some(cause) => Failure {
                error: local(operation, status, cause),
                unhealthy: true,
            },
        }
    }
}

enum LocalCause {
    NotSent,
    MaybeSent,
    TimedOut,
}

fn local_cause(status: &Status) -> Option<LocalCause> {
    let mut source = status.source();
    source?;
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return Some(LocalCause::NotSent);
        }
        if error.is::<TimeoutExpired>() {
            return Some(LocalCause::TimedOut);
        }
        source = error.source();
    }
    Some(LocalCause::MaybeSent)
}

fn local(operation: Operation, status: &Status, cause: LocalCause) -> Error {
    let message = describe(status);
    match (cause, operation) {
        (LocalCause::NotSent, _) | (LocalCause::MaybeSent, Operation::Read) => Error::Unavailable {
            message,
            leader: None,
        },
        (LocalCause::MaybeSent, Operation::Write) => Error::UnknownOutcome { message },
        (LocalCause::TimedOut, _) => operation.unanswered(message),
    }
}

/// The message with its innermost cause, which is what a person can act on.
fn describe(status: &Status) -> String {
    let mut innermost: Option<&dyn StdError> = None;
    let mut next = status.source();
    while let Some(error) = next {
        innermost = Some(error);
        next = error.source();
    }
    match innermost.map(ToString::to_string) {
        Some(cause) if !status.message().contains(&cause) => {
            format!("{}: {cause}", status.message())
        }
        _ => status.message().to_owned(),
    }
}

fn answered(operation: Operation, status: &Status) -> Error {
    let code = status.code();
    let message = status.message().to_owned();
    match code {
        Code::InvalidArgument => Error::InvalidRequest { message },
        Code::OutOfRange => Error::RevisionUnavailable { message },
        Code::ResourceExhausted => Error::Overloaded { message },
        Code::Unavailable => Error::Unavailable {
            message,
            leader: leader_hint(status),
        },
        Code::FailedPrecondition
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented => Error::Refused { code, message },
        // The server gives up on a deadline with either of these.
        Code::DeadlineExceeded | Code::Cancelled => operation.unanswered(message),
        Code::Ok | Code::Unknown | Code::Aborted | Code::Internal | Code::DataLoss => {
            match operation {
                Operation::Read => Error::Unexpected { code, message },
                Operation::Write => Error::UnknownOutcome {
                    message: format!("{code:?}: {message}"),
                },
            }
        }
    }
}

fn leader_hint(status: &Status) -> Option<String> {
    let hint = status.metadata().get(LEADER_HINT_METADATA)?.to_str().ok()?;
    (!hint.is_empty()).then(|| hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(operation: Operation, code: Code) -> Error {
        Failure::from_status(operation, &Status::new(code, "m")).error
    }

    #[test]
    fn a_write_is_retryable_only_if_the_server_says_that_nothing_changed() {
        for code in (0..=16).map(Code::from_i32) {
            let retryable = sorted(Operation::Write, code).retryable();
            let unchanged = matches!(code, Code::Unavailable | Code::ResourceExhausted);
            assert_eq!(retryable, unchanged, "{code:?}");
        }
    }

    #[test]
    fn no_read_has_an_unknown_outcome() {
        for code in (0..=16).map(Code::from_i32) {
            let error = sorted(Operation::Read, code);
            assert!(!matches!(error, Error::UnknownOutcome { .. }), "{code:?}");
        }
    }

    #[test]
    fn only_a_failed_connect_proves_that_a_write_did_not_leave() {
        let refused = ConnectError("connection refused".into());
        let failure =
            Failure::from_status(Operation::Write, &Status::from_error(Box::new(refused)));
        assert!(failure.unhealthy);
        assert!(
            matches!(failure.error, Error::Unavailable { .. }),
            "{failure:?}"
        );

        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let failure = Failure::from_status(Operation::Write, &Status::from_error(Box::new(reset)));
        assert!(
            matches!(failure.error, Error::UnknownOutcome { .. }),
            "{failure:?}"
        );
    }

    #[test]
    fn the_leader_hint_is_read() {
        let mut status = Status::unavailable("not the leader");
        status
            .metadata_mut()
            .insert(LEADER_HINT_METADATA, "10.0.0.1:4100".parse().unwrap());
        let error = Failure::from_status(Operation::Write, &status).error;
        let leader = Some("10.0.0.1:4100".to_owned());
        assert_eq!(
            error,
            Error::Unavailable {
                message: "not the leader".to_owned(),
                leader
            }
        );
    }
}
