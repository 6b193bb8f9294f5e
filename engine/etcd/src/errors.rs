//! etcd's errors: the one table of what is answered with which code and words. Clients compare the
//! whole string.

use dengine_kv::{ReadError, Refusal};
use tonic::{Code, Status};

/// Names, codes and whole strings.
macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident: $code:ident, $message:literal;)*) => {
        /// What a call of etcd's API ends with.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum EtcdError {
            $($(#[$doc])* #[error($message)] $name,)*
            /// Not etcd's: a part of its API, in words, that is not served.
            #[error("dengine does not serve {0}")]
            NotServed(&'static str),
            /// Without etcd's prefix, as etcd has it: a stream of a range in an order of its own.
            #[error("RangeStream does not support custom sort orders")]
            StreamSorted,
            /// The same, of a stream of a range with bounds of revisions.
            #[error("RangeStream does not support revision filters")]
            StreamBounded,
            /// Not etcd's: the state machine answered another question than the one that was asked.
            #[error("the state machine gave an answer of another kind: this is a bug in dengine")]
            OfAnotherKind,
            /// Not etcd's: this member's disk failed, or what it holds is damaged.
            #[error("the store of this member failed")]
            Store,
        }

        impl EtcdError {
            /// All of etcd's own.
            pub const ETCDS: &[Self] = &[$(Self::$name,)*];

            /// The code that goes with the words.
            #[must_use]
            pub fn code(self) -> Code {
                match self {
                    $(Self::$name => Code::$code,)*
                    Self::NotServed(_) | Self::StreamSorted | Self::StreamBounded => {
                        Code::Unimplemented
                    }
                    Self::OfAnotherKind | Self::Store => Code::Internal,
                }
            }
        }
    };
}

errors! {
    /// A key is empty.
    EmptyKey: InvalidArgument, "etcdserver: key is not provided";
    /// A put keeps the value or lease of a key that does not exist; or an operation of a
    /// transaction is empty.
    KeyNotFound: InvalidArgument, "etcdserver: key not found";
    /// A put keeps the value, and has one.
    ValueProvided: InvalidArgument, "etcdserver: value is provided";
    /// A put keeps the lease, and has one.
    LeaseProvided: InvalidArgument, "etcdserver: lease is provided";
    /// A path through a transaction has more than
    /// [`TXN_OPERATIONS_MAX`](crate::TXN_OPERATIONS_MAX).
    TooManyOps: InvalidArgument, "etcdserver: too many operations in txn request";
    /// A transaction would change a key twice.
    DuplicateKey: InvalidArgument, "etcdserver: duplicate key given in txn request";
    /// The client's metadata names a version that does not exist.
    InvalidClientApiVersion: InvalidArgument, "etcdserver: invalid client api version";
    /// A number of an order or a target that does not exist.
    InvalidSortOption: InvalidArgument, "etcdserver: invalid sort option";
    /// History begins later.
    Compacted: OutOfRange, "etcdserver: mvcc: required revision has been compacted";
    /// The store is not that far.
    FutureRev: OutOfRange, "etcdserver: mvcc: required revision is a future revision";
    /// The disk is nearly full.
    NoSpace: ResourceExhausted, "etcdserver: mvcc: database space exceeded";

    /// There is no such lease.
    LeaseNotFound: NotFound, "etcdserver: requested lease not found";
    /// There is a lease with that id.
    LeaseExist: FailedPrecondition, "etcdserver: lease already exists";
    /// More than [`LEASE_TTL_MAX`](crate::LEASE_TTL_MAX).
    LeaseTtlTooLarge: OutOfRange, "etcdserver: too large lease TTL";

    /// The client went away from its stream of watches.
    WatchCanceled: Cancelled, "etcdserver: watch canceled";

    /// A member with that id exists.
    MemberExist: FailedPrecondition, "etcdserver: member ID already exist";
    /// A member with that address exists.
    PeerUrlExist: FailedPrecondition, "etcdserver: Peer URLs already exists";
    /// Too few voters take part.
    MemberNotEnoughStarted: FailedPrecondition,
        "etcdserver: re-configuration failed due to not enough started members";
    /// Not a list of URLs.
    MemberBadUrls: InvalidArgument, "etcdserver: given member URLs are invalid";
    /// There is no such member.
    MemberNotFound: NotFound, "etcdserver: member not found";
    /// The member votes already.
    MemberNotLearner: FailedPrecondition, "etcdserver: can only promote a learner member";
    /// The learner lacks too much of the log.
    LearnerNotReady: FailedPrecondition,
        "etcdserver: can only promote a learner member which is in sync with leader";
    /// There is a learner already.
    TooManyLearners: FailedPrecondition, "etcdserver: too many learner members in cluster";
    /// The call is for another cluster.
    ClusterIdMismatch: FailedPrecondition, "etcdserver: cluster ID mismatch";

    /// More than [`REQUEST_BYTES_MAX`](crate::REQUEST_BYTES_MAX), or more than one command may
    /// visit or delete.
    RequestTooLarge: InvalidArgument, "etcdserver: request is too large";
    /// A bound of what is in flight is reached.
    TooManyRequests: ResourceExhausted, "etcdserver: too many requests";

    /// Users and roles are not in use.
    AuthNotEnabled: FailedPrecondition, "etcdserver: authentication is not enabled";

    /// No leader is known.
    NoLeader: Unavailable, "etcdserver: no leader";
    /// Only the leader does it.
    NotLeader: FailedPrecondition, "etcdserver: not leader";
    /// The leader changed while the call waited.
    LeaderChanged: Unavailable, "etcdserver: leader changed";
    /// The cluster's version is too old for it.
    NotCapable: FailedPrecondition, "etcdserver: not capable";
    /// The member is ending.
    Stopped: Unavailable, "etcdserver: server stopped";
    /// A write may or may not have taken effect.
    Timeout: Unavailable, "etcdserver: request timed out";
    /// The same, and the leader changed.
    TimeoutDueToLeaderFail: Unavailable,
        "etcdserver: request timed out, possibly due to previous leader failure";
    /// The same, and the member lost its peers.
    TimeoutDueToConnectionLost: Unavailable,
        "etcdserver: request timed out, possibly due to connection lost";
    /// A read waited for entries to be applied.
    TimeoutWaitAppliedIndex: Unavailable,
        "etcdserver: request timed out, waiting for the applied index took too long";
    /// Too few members take part.
    Unhealthy: Unavailable, "etcdserver: unhealthy cluster";
    /// Members differ.
    Corrupt: DataLoss, "etcdserver: corrupt cluster";
    /// A learner serves only some calls.
    NotSupportedForLearner: FailedPrecondition, "etcdserver: rpc not supported for learner";
    /// The member that is to lead cannot.
    BadLeaderTransferee: FailedPrecondition, "etcdserver: bad leader transferee";

    /// Not a version.
    WrongDowngradeVersionFormat: InvalidArgument,
        "etcdserver: wrong downgrade target version format";
    /// Not the version before the present one.
    InvalidDowngradeTargetVersion: InvalidArgument,
        "etcdserver: invalid downgrade target version";
    /// There is no downgrade to cancel.
    NoInflightDowngrade: FailedPrecondition, "etcdserver: no inflight downgrade job";

    /// The client cancelled the call.
    Canceled: Cancelled, "etcdserver: request canceled";
    /// The client's deadline is over.
    DeadlineExceeded: DeadlineExceeded, "etcdserver: context deadline exceeded";
}

impl From<EtcdError> for Status {
    fn from(error: EtcdError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<&Refusal> for EtcdError {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::DuplicateKey => Self::DuplicateKey,
            Refusal::KeyNotFound => Self::KeyNotFound,
            Refusal::LeaseNotFound(_) => Self::LeaseNotFound,
            Refusal::LeaseExists(_) => Self::LeaseExist,
            Refusal::TooManyLeases(_) => Self::TooManyRequests,
            Refusal::Future { .. } => Self::FutureRev,
            Refusal::Compacted { .. } => Self::Compacted,
            Refusal::DeletesTooMuch { .. }
            | Refusal::RangesTooLarge { .. }
            | Refusal::ReadsTooMuch { .. } => Self::RequestTooLarge,
            // No request of etcd's API has a session.
            Refusal::UnknownSession(_)
            | Refusal::Acknowledged { .. }
            | Refusal::WindowFull { .. }
            | Refusal::TooManySessions(_)
            | Refusal::NotForSessions => Self::OfAnotherKind,
        }
    }
}

impl From<&ReadError> for EtcdError {
    fn from(error: &ReadError) -> Self {
        match error {
            ReadError::Future { .. } => Self::FutureRev,
            ReadError::Compacted { .. } => Self::Compacted,
            // Upon UNAVAILABLE or DEADLINE_EXCEEDED clients would send it again and again.
            ReadError::Stopped { .. } => Self::TooManyRequests,
            ReadError::Store(_) => Self::Store,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use dengine_types::Revision;

    use super::*;

    #[test]
    fn every_string_is_whole_and_means_one_error() {
        let strings: BTreeSet<_> = EtcdError::ETCDS.iter().map(ToString::to_string).collect();
        assert_eq!(strings.len(), EtcdError::ETCDS.len());
        for string in strings {
            assert!(string.starts_with("etcdserver: "), "{string}");
        }
    }

    fn check(error: EtcdError, code: Code, message: &str) {
        let status = Status::from(error);
        assert_eq!((status.code(), status.message()), (code, message));
    }

    /// kube-apiserver compares these.
    #[test]
    fn kubernetes_knows_its_errors_again() {
        let (requested, compacted) = (Revision(3), Revision(5));
        check(
            (&ReadError::Compacted {
                requested,
                compacted,
            })
                .into(),
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
        );
        check(
            (&Refusal::Future {
                requested,
                current: Revision(2),
            })
                .into(),
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
        );
        check(
            (&Refusal::DeletesTooMuch { bytes_max: 1 }).into(),
            Code::InvalidArgument,
            "etcdserver: request is too large",
        );
    }
}
