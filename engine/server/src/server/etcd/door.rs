//! What every call of this door passes: who may be asked for what, and errors in etcd's words.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dengine_etcd::{EtcdError, Header};
use dengine_protocol::{LOW_ON_SPACE_METADATA, checks};
use tokio::time::sleep;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::config::{EtcdMembership, Limits};
use crate::node::{Lifecycle, NodeStatus, Role};
use crate::server::serving::Serving;

/// By this a client asks for an error where there is no leader, rather than for a wait.
const REQUIRE_LEADER_METADATA: &str = "hasleader";
/// How long after a leader could not be asked it is looked for again.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How every string of etcd's begins, by which one that has its words already is known.
const ETCDS: &str = "etcdserver: ";

/// What the services of the door share. Clones do as well.
#[derive(Clone)]
pub(super) struct Door(Arc<Serving>);

/// Which members serve a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServedBy {
    /// Those that vote, and learners that have caught up.
    Voters,
    /// All learners as well: what is asked for is what they have.
    All,
}

impl Door {
    pub(super) fn new(serving: Arc<Serving>) -> Self {
        Self(serving)
    }

    pub(super) fn serving(&self) -> &Arc<Serving> {
        &self.0
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// A header as the present is.
    pub(super) fn header(&self) -> Header {
        header(self.0.headers.now())
    }

    /// Whether this member serves the call.
    ///
    /// # Errors
    /// It does not, or no more, or has no leader and the client asked not to wait for one.
    pub(super) fn admit(
        &self,
        metadata: &MetadataMap,
        served_by: ServedBy,
    ) -> Result<(), EtcdError> {
        self.admit_who(requires_leader(metadata), served_by)
    }

    /// The same, of a client that was asked before whether it requires a leader.
    ///
    /// # Errors
    /// The same.
    pub(super) fn admit_who(
        &self,
        requires_leader: bool,
        served_by: ServedBy,
    ) -> Result<(), EtcdError> {
        let status = self.0.node.status();
        // Others go on without it, and its clients are to ask them.
        if status.removed {
            return Err(EtcdError::Stopped);
        }
        // One that has caught up passes on what it is asked: a client that knows one address has no
        // voter to go to. And upon this error clients give up for good, so it must be true.
        let is_refused = is_learner(&status) && !status.ready;
        if served_by == ServedBy::Voters && is_refused {
            return Err(EtcdError::NotSupportedForLearner);
        }
        if requires_leader && status.leader.is_none() {
            return Err(EtcdError::NoLeader);
        }
        Ok(())
    }

    /// Whether this door serves what changes the members, or who leads.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn admit_change_of_members(&self) -> Result<(), EtcdError> {
        match self.0.node.config().etcd_membership {
            EtcdMembership::Change => Ok(()),
            EtcdMembership::Read => Err(EtcdError::NotServed(
                "changes of the members and of the leader to clients of etcd unless the member \
                 is started with --etcd-membership change: see `dengine admin`",
            )),
        }
    }

    /// Asks for what may be done twice, until it is answered otherwise than by UNAVAILABLE: for as
    /// long as a request may take.
    pub(super) async fn again<T, F>(&self, mut ask: impl FnMut() -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let until = Instant::now() + self.limits().request_timeout();
        loop {
            match ask().await {
                Err(status)
                    if status.code() == Code::Unavailable
                        && Instant::now() < until
                        && !self.0.stop.is_cancelled()
                        && !self.0.node.status().removed =>
                {
                    sleep(ASK_AGAIN).await;
                }
                answered => return answered,
            }
        }
    }

    /// The same answer in etcd's words, upon which its clients decide what to do.
    pub(super) fn in_etcds_words(&self, status: &Status) -> Status {
        let stops = self.0.stop.is_cancelled() || self.0.node.status().removed;
        match etcds(status, stops, self.0.node.leader().is_some()) {
            Some(error) => error.into(),
            None => status.clone(),
        }
    }
}

/// A header that this member made, for this door.
pub(super) fn header(of: checks::Header) -> Header {
    Header {
        cluster_id: of.cluster_id,
        member_id: of.member_id,
        term: of.term,
        revision: of.revision,
    }
}

/// Whether a client wants an error if there is no leader.
pub(super) fn requires_leader(metadata: &MetadataMap) -> bool {
    let said = metadata.get(REQUIRE_LEADER_METADATA);
    said.is_some_and(|it| it.as_bytes() == b"true")
}

/// Whether a member has no vote in its cluster.
pub(super) fn is_learner(status: &NodeStatus) -> bool {
    let is_learner = status.role == Role::Learner && status.role_is_known;
    status.lifecycle == Lifecycle::Running && is_learner && !status.removed
}

/// Which of etcd's errors says the same; `None`: it is one of them, or none does.
fn etcds(status: &Status, stops: bool, has_leader: bool) -> Option<EtcdError> {
    if status.message().starts_with(ETCDS) {
        return None;
    }
    Some(match status.code() {
        Code::Unavailable if stops => EtcdError::Stopped,
        Code::Unavailable if !has_leader => EtcdError::NoLeader,
        // An older leader does not know what was passed on to it, and changed nothing.
        Code::Unavailable | Code::Unimplemented if has_leader => EtcdError::LeaderChanged,
        Code::ResourceExhausted if status.metadata().contains_key(LOW_ON_SPACE_METADATA) => {
            EtcdError::NoSpace
        }
        Code::ResourceExhausted => EtcdError::TooManyRequests,
        // Whether a write takes effect is not known. A client repeats a read, and no write.
        Code::DeadlineExceeded => EtcdError::Timeout,
        // What a write needs to know could not be read in time; nothing was changed.
        Code::FailedPrecondition => EtcdError::Timeout,
        // What is well-formed here and not there is larger than the settings let it be.
        Code::InvalidArgument => EtcdError::RequestTooLarge,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: &Status, expect: Option<EtcdError>) {
        assert_eq!(etcds(status, false, true), expect, "{status}");
    }

    /// A client of etcd that knows another code or string does something else, or ends for good.
    #[test]
    fn what_serving_says_is_said_in_etcds_words() {
        check(&Status::unavailable("x"), Some(EtcdError::LeaderChanged));
        check(
            &Status::deadline_exceeded("unknown outcome"),
            Some(EtcdError::Timeout),
        );
        check(
            &Status::resource_exhausted("full"),
            Some(EtcdError::TooManyRequests),
        );
        check(
            &Status::invalid_argument("larger"),
            Some(EtcdError::RequestTooLarge),
        );
        let mut low = Status::resource_exhausted("low");
        let said = "1".parse().expect("it is a number");
        low.metadata_mut().insert(LOW_ON_SPACE_METADATA, said);
        check(&low, Some(EtcdError::NoSpace));
        check(&EtcdError::Compacted.into(), None);
        check(&EtcdError::DeadlineExceeded.into(), None);
        check(&Status::internal("damage"), None);
        let lost = Status::unavailable("x");
        assert_eq!(etcds(&lost, false, false), Some(EtcdError::NoLeader));
        assert_eq!(etcds(&lost, true, true), Some(EtcdError::Stopped));
    }

    #[test]
    fn only_the_word_true_requires_a_leader() {
        let requires = |said: &'static str| {
            let mut metadata = MetadataMap::new();
            let said = said.parse().expect("it is text");
            metadata.insert(REQUIRE_LEADER_METADATA, said);
            requires_leader(&metadata)
        };
        assert!(requires("true"));
        assert!(!requires("false"));
        assert!(!requires_leader(&MetadataMap::new()));
    }
}
