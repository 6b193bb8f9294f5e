//! The one public error: each variant says what the caller must do. Only this module may look at
//! gRPC status codes.

use std::error::Error as StdError;
use std::time::Duration;

use dengine_protocol::{LEADER_HINT_METADATA, LOW_ON_SPACE_METADATA, UNCHANGED_METADATA};
use tonic::{Code, ConnectError, Status, TimeoutExpired};

use crate::pipe::PipeError;
use crate::policy::{Code as CodeNumber, Failure as Proof, Operation};

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
    /// Begin the watch again, after reading the present state: what it was to tell of is compacted.
    #[error("compacted: history begins at revision {compact_revision}")]
    Compacted {
        /// The first revision that can be read and watched.
        compact_revision: u64,
    },
    /// Open another session: this one was closed or has expired. Nothing was changed by this call.
    #[error("the session is gone: {message}")]
    SessionLost {
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
    /// Free space: the leader's disk is nearly full. Deletes and reads still work. The call was
    /// retried for as long as a leader takes to transfer leadership to a member with more space.
    /// Nothing was changed.
    #[error("low on space: {message}")]
    LowOnSpace {
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
            Error::Compacted { .. } => false,
            Error::SessionLost { .. } => false,
            Error::Refused { .. } => false,
            Error::Overloaded { .. } => true,
            Error::LowOnSpace { .. } => true,
            Error::Unavailable { .. } => true,
            Error::Timeout { .. } => true,
            Error::UnknownOutcome { .. } => false,
            Error::Unexpected { .. } => false,
        }
    }

    /// A deadline that passed on this side while a request was under way.
    pub(crate) fn deadline(operation: Operation, after: Duration) -> Self {
        let message = format!("no answer within {}", rounded(after));
        unanswered(operation, message)
    }

    /// An answer that violates the wire contract.
    pub(crate) fn malformed(operation: Operation, what: &str) -> Self {
        let message = format!("the response lacks its {what}");
        if operation.writes() {
            return Error::UnknownOutcome { message };
        }
        Error::Unexpected {
            code: Code::Internal,
            message,
        }
    }

    /// What a caller is told whose last attempt failed with this, when an earlier one may have
    /// taken effect.
    pub(crate) fn after_unknown(self) -> Self {
        match self {
            Error::UnknownOutcome { .. } => self,
            other => Error::UnknownOutcome {
                message: format!("an attempt got no answer, and after it: {other}"),
            },
        }
    }
}

fn unanswered(operation: Operation, message: String) -> Error {
    if operation.writes() {
        Error::UnknownOutcome { message }
    } else {
        Error::Timeout { message }
    }
}

/// A wait as a person would tell it, to a tenth of a second, or to a millisecond if it was short.
pub(crate) fn rounded(wait: Duration) -> String {
    let ms = wait.as_micros().saturating_add(500) / 1000;
    let tenths = (ms + 50) / 100;
    match (ms, tenths / 10, tenths % 10) {
        (..1000, ..) => format!("{ms} ms"),
        (_, seconds, 0) => format!("{seconds} s"),
        (_, seconds, tenth) => format!("{seconds}.{tenth} s"),
    }
}

/// A failed attempt: the error, and what it proves.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) proof: Proof,
}

impl Failure {
    /// Sorts a gRPC status by what it proves.
    ///
    /// A status without a source was sent by the server, or stands for none; one with a source was
    /// made up by this process from a transport error, and of those only a failed connect proves
    /// that nothing left.
    pub(crate) fn from_status(operation: Operation, status: &Status) -> Self {
        match local_cause(status) {
            None if is_of_nobody(status) => Self::lost(operation, status.message().to_owned()),
            None if is_unread(status) => Self::unread(operation, status),
            None => Failure {
                error: answered(operation, status),
                proof: proof(status),
            },
            Some(cause) => Failure {
                error: local(operation, describe(status), &cause),
                proof: match cause {
                    LocalCause::NotSent => Proof::NotSent,
                    LocalCause::MaybeSent | LocalCause::TimedOut => Proof::Lost,
                },
            },
        }
    }

    /// The same of a call that was made alone: whatever stands in between may answer it in a
    /// member's place, after it has passed it on. So only a member's word is proof that a write
    /// changed nothing.
    pub(crate) fn from_unary(operation: Operation, status: &Status) -> Self {
        let promises = matches!(status.code(), Code::Unavailable | Code::ResourceExhausted);
        let is_proof = status.source().is_some() || is_a_members_word(status);
        if operation.writes() && promises && !is_proof {
            let message = status.message();
            return Self::lost(
                operation,
                format!("{message} (without a member's word that nothing was changed)"),
            );
        }
        Self::from_status(operation, status)
    }

    /// No member's answer has come.
    fn lost(operation: Operation, message: String) -> Self {
        Failure {
            error: local(operation, message, &LocalCause::MaybeSent),
            proof: Proof::Lost,
        }
    }

    /// The member has answered, with more than this client takes: a write was served, and a read
    /// would be again.
    fn unread(operation: Operation, status: &Status) -> Self {
        let message = format!("the answer is too large to be read: {}", status.message());
        let error = if operation.writes() {
            Error::UnknownOutcome { message }
        } else {
            Error::Unexpected {
                code: status.code(),
                message,
            }
        };
        Failure {
            error,
            proof: Proof::Broken,
        }
    }

    /// A call over a stream failed.
    pub(crate) fn from_pipe(operation: Operation, error: PipeError) -> Self {
        let (cause, proof, message) = match error {
            PipeError::Answered(status) => return Self::from_status(operation, &status),
            PipeError::NotSent(why) => (LocalCause::NotSent, Proof::NotSent, why),
            PipeError::Lost(why) => (LocalCause::MaybeSent, Proof::Lost, why),
        };
        Failure {
            error: local(operation, message.as_ref().to_owned(), &cause),
            proof,
        }
    }

    /// The same of a call whose caller has `waited` until its deadline: tonic's timers know of the
    /// last attempt alone, and say no length.
    pub(crate) fn from_unary_after(
        operation: Operation,
        status: &Status,
        waited: Duration,
    ) -> Self {
        if is_of_a_timer(status) {
            return Self::deadline(operation, waited);
        }
        Self::from_unary(operation, status)
    }

    /// The same, with what may be the matter if nothing has ever answered as a member does at
    /// the address that the call was sent to.
    pub(crate) fn at(mut self, stranger: Option<&str>) -> Self {
        let Some(address) = stranger else {
            return self;
        };
        let message = match (&mut self.error, &self.proof) {
            (
                Error::Unavailable { message, .. } | Error::UnknownOutcome { message },
                Proof::NotSent | Proof::Lost,
            )
            | (
                Error::Refused {
                    code: Code::Unimplemented,
                    message,
                },
                _,
            ) => message,
            (Error::Unexpected { message, .. } | Error::UnknownOutcome { message }, _)
                if message.contains(NO_STATUS) =>
            {
                message
            }
            _ => return self,
        };
        *message = format!(
            "{message}; no member has answered at {address} yet: is it a member's port for clients \
             (--listen-client, 4100 unless set)?"
        );
        self
    }

    /// The caller's own time was over before anything was sent.
    pub(crate) fn not_sent(operation: Operation, after: Duration) -> Self {
        Self::from_pipe(operation, PipeError::not_in_time(after))
    }

    /// The caller's own time was over.
    pub(crate) fn deadline(operation: Operation, after: Duration) -> Self {
        Failure {
            error: Error::deadline(operation, after),
            proof: Proof::Lost,
        }
    }
}

/// Whether tonic made the status up, for an answer beyond the decoder's limit: it has no source
/// then, and a code that means another thing in our API. This version begins its message so;
/// members never do.
fn is_unread(status: &Status) -> bool {
    status.code() == Code::OutOfRange
        && status
            .message()
            .starts_with("Error, decoded message length too large")
}

/// Whether a timer of tonic's, here or at the member, ended the call at its deadline. This version
/// says so in these words, and with either code; members never do.
fn is_of_a_timer(status: &Status) -> bool {
    let is_ended = matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled);
    is_ended && status.message() == TimeoutExpired(()).to_string()
}

/// How tonic's words begin for a response of HTTP that carries no status of gRPC.
const NO_STATUS: &str = "grpc-status header missing";

/// Whether tonic made the status up because none came: of a response of HTTP without one, as a
/// proxy's whose upstream is lost, or of a stream that was cut. This version begins its messages
/// so; members never do. The other codes that it makes up so stand for errors of the request, which
/// was not passed on.
fn is_of_nobody(status: &Status) -> bool {
    let may_have_been_sent = matches!(status.code(), Code::Unavailable | Code::Unknown);
    let message = status.message();
    let is_made_up = message.starts_with(NO_STATUS)
        || message.starts_with("protocol error: missing grpc-status trailer");
    may_have_been_sent && is_made_up
}

/// Whether a member says that nothing was changed. An older one says so only where it has more to
/// say.
fn is_a_members_word(status: &Status) -> bool {
    [
        UNCHANGED_METADATA,
        LEADER_HINT_METADATA,
        LOW_ON_SPACE_METADATA,
    ]
    .iter()
    .any(|word| status.metadata().contains_key(*word))
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

fn local(operation: Operation, message: String, cause: &LocalCause) -> Error {
    match cause {
        LocalCause::MaybeSent if operation.writes() => Error::UnknownOutcome { message },
        LocalCause::NotSent | LocalCause::MaybeSent => Error::Unavailable {
            message,
            leader: None,
        },
        LocalCause::TimedOut => unanswered(operation, message),
    }
}

/// The message with its innermost cause, which is what a person can act on.
pub(crate) fn describe(status: &Status) -> String {
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
        _ => said(status),
    }
}

/// What was said of it; the code says more than nothing.
fn said(status: &Status) -> String {
    match status.message() {
        "" if status.code() == Code::Unimplemented => "the call is not known there".to_owned(),
        "" => status.code().to_string(),
        message => message.to_owned(),
    }
}

fn answered(operation: Operation, status: &Status) -> Error {
    let code = status.code();
    let message = said(status);
    match code {
        Code::InvalidArgument => Error::InvalidRequest { message },
        Code::OutOfRange => Error::RevisionUnavailable { message },
        Code::ResourceExhausted if low_on_space(status) => Error::LowOnSpace { message },
        Code::ResourceExhausted => Error::Overloaded { message },
        Code::Unavailable => Error::Unavailable {
            message,
            leader: leader_hint(status),
        },
        Code::NotFound if operation == Operation::Once => Error::SessionLost { message },
        Code::FailedPrecondition
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented => Error::Refused { code, message },
        // The server gives up on a deadline with either of these.
        Code::DeadlineExceeded | Code::Cancelled => unanswered(operation, message),
        Code::Ok | Code::Unknown | Code::Aborted | Code::Internal | Code::DataLoss => {
            if operation.writes() {
                Error::UnknownOutcome {
                    message: format!("{code:?}: {message}"),
                }
            } else {
                Error::Unexpected { code, message }
            }
        }
    }
}

fn proof(status: &Status) -> Proof {
    match status.code() {
        Code::ResourceExhausted if low_on_space(status) => Proof::LowOnSpace,
        code => Proof::answered(CodeNumber(code.into()), leader_hint(status)),
    }
}

fn low_on_space(status: &Status) -> bool {
    status.metadata().contains_key(LOW_ON_SPACE_METADATA)
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
    fn what_is_decided_upon_agrees_with_what_is_told() {
        for operation in [Operation::Read, Operation::Write, Operation::Once] {
            for code in (1..=16).map(Code::from_i32) {
                let failure = Failure::from_status(operation, &Status::new(code, "m"));
                let unknown = matches!(failure.error, Error::UnknownOutcome { .. });
                let proof = &failure.proof;
                assert_eq!(unknown, proof.may_have_taken_effect(operation), "{code:?}");
                let again = proof.may_pass(operation) && (operation == Operation::Read || !unknown);
                if operation != Operation::Once {
                    assert_eq!(failure.error.retryable(), again, "{operation:?} {code:?}");
                }
            }
        }
    }

    #[test]
    fn a_wait_is_told_in_few_digits() {
        for (micros, told) in [
            (0, "0 ms"),
            (1_499, "1 ms"),
            (250_000, "250 ms"),
            (999_600, "1 s"),
            (3_628_812, "3.6 s"),
            (19_999_950, "20 s"),
        ] {
            assert_eq!(rounded(Duration::from_micros(micros)), told);
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
        assert_eq!(failure.proof, Proof::NotSent);
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
    fn only_a_members_word_proves_that_a_write_which_was_made_alone_changed_nothing() {
        for code in [Code::Unavailable, Code::ResourceExhausted] {
            let unknown = |operation, status: &Status| {
                let failure = Failure::from_unary(operation, status);
                matches!(failure.error, Error::UnknownOutcome { .. })
            };
            let mut status = Status::new(code, "upstream reset");
            assert!(unknown(Operation::Write, &status), "{code:?}");
            assert!(unknown(Operation::Once, &status), "{code:?}");
            assert!(!unknown(Operation::Read, &status), "{code:?}");
            let word = "1".parse().unwrap();
            status.metadata_mut().insert(UNCHANGED_METADATA, word);
            assert!(!unknown(Operation::Write, &status), "{code:?}");
        }
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

/// Of statuses as a server causes them.
#[cfg(all(test, feature = "testing"))]
mod tests_with_a_server {
    use dengine_fake_kv::{Between, Peer};
    use dengine_protocol::v1::GetRequest;
    use dengine_protocol::v1::kv_client::KvClient;
    use tonic::transport::Endpoint;

    use super::*;

    /// tonic's own: its words are no promise, and another version may have others.
    async fn too_large() -> Status {
        let peer = Peer::start().await;
        peer.holds("a", vec![7; 1000]);
        status_of_a_get(&peer).await
    }

    async fn status_of_a_get(peer: &Peer) -> Status {
        let endpoint =
            Endpoint::from_shared(format!("http://{}", peer.address)).expect("an address");
        let channel = endpoint.connect().await.expect("it listens");
        let mut kv = KvClient::new(channel).max_decoding_message_size(100);
        let get = GetRequest {
            key: "a".into(),
            ..GetRequest::default()
        };
        kv.get(get).await.expect_err("it fails")
    }

    /// tonic's code for it is that of a revision that can't be read, which promises that nothing
    /// was changed.
    #[tokio::test]
    async fn an_answer_that_is_too_large_does_not_undo_a_write() {
        let status = too_large().await;
        for operation in [Operation::Write, Operation::Once] {
            let failure = Failure::from_status(operation, &status);
            assert!(
                matches!(failure.error, Error::UnknownOutcome { .. }),
                "{failure:?}"
            );
            assert!(failure.proof.may_have_taken_effect(operation));
        }
        let read = Failure::from_status(Operation::Read, &status);
        assert!(!read.error.retryable(), "{read:?}");
    }

    /// tonic makes `UNAVAILABLE` of some, by which a member says that nothing was changed.
    #[tokio::test]
    async fn a_response_without_a_status_is_no_members_word() {
        let peer = Peer::start().await;
        // The last one is that of a stream which was cut.
        for code in [429, 500, 502, 503, 504, 200] {
            peer.is_behind_what_answers(Between::Http(code));
            let status = status_of_a_get(&peer).await;
            for operation in [Operation::Write, Operation::Once] {
                let failure = Failure::from_status(operation, &status);
                let unknown = matches!(failure.error, Error::UnknownOutcome { .. });
                assert!(unknown, "{code}: {failure:?}");
                assert_eq!(failure.proof, Proof::Lost, "{code}");
            }
            let read = Failure::from_status(Operation::Read, &status);
            assert!(read.error.retryable(), "{code}: {read:?}");
        }
    }
}
