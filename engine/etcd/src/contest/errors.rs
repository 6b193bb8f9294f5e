//! What calls of locks and elections end with.

use tonic::{Code, Status};

use crate::errors::EtcdError;

/// What etcd's clients say of contests: the words are theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContestError {
    /// The lease, or the key by itself, ended while its owner waited for the lock.
    #[error("mutex: session is expired")]
    SessionExpired,
    /// The key by which somebody leads, or waits to, is gone.
    #[error("election: not leader")]
    NotLeader,
    /// Nobody stands for election.
    #[error("election: no leader")]
    NoLeader,
    /// A leader did not say who it is.
    #[error("\"leader\" field must be provided")]
    MissingLeaderKey,
}

impl From<ContestError> for Status {
    fn from(error: ContestError) -> Self {
        Self::unknown(error.to_string())
    }
}

/// etcd serves locks and elections by way of a client of its own, so that errors of keys and leases
/// reach callers with their words and without their codes, except for the end of a call's time. A
/// member that stops ends connections, which callers see as what it says here.
#[must_use]
pub fn by_way_of_a_client(status: &Status) -> Status {
    let stops = || status.message() == EtcdError::Stopped.to_string();
    match status.code() {
        Code::Cancelled | Code::DeadlineExceeded => status.clone(),
        Code::Unavailable if stops() => status.clone(),
        _ => Status::unknown(status.message()),
    }
}
