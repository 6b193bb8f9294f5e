//! Leases: what a client asks for, commands and outcomes, and answers from plain numbers.

use std::time::Duration;

use bytes::Bytes;
use dengine_kv::{Command, LeaseEnd, Outcome};
use dengine_types::LeaseId;

use crate::LEASE_TTL_MAX;
use crate::errors::EtcdError;
use crate::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseLeasesResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveResponse,
};
use crate::header::{Header, signed};
use crate::writes::Mutation;

/// A lease that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The id that it is to have; `None`: any.
    pub id: Option<i64>,
    /// How long it lasts unless it is kept alive.
    pub ttl: Duration,
}

impl Grant {
    /// Checks what is asked for. A lease lasts `ttl_min`, in seconds, at least: a shorter one would
    /// end while a leader is elected.
    ///
    /// # Errors
    /// It would last too long.
    pub fn new(request: &LeaseGrantRequest, ttl_min: i64) -> Result<Self, EtcdError> {
        if request.ttl > LEASE_TTL_MAX {
            return Err(EtcdError::LeaseTtlTooLarge);
        }
        let seconds = request.ttl.max(ttl_min);
        Ok(Self {
            id: (request.id != 0).then_some(request.id),
            ttl: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
        })
    }

    /// What to replicate. `drawn`, not 0, is the id of a lease that may have any.
    #[must_use]
    pub fn command(self, drawn: i64) -> Command {
        Command::GrantLease {
            lease: LeaseId(self.id.unwrap_or(drawn)),
            ttl_ms: u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl Mutation for LeaseRevokeRequest {
    type Response = LeaseRevokeResponse;

    fn check(&self) -> Result<(), EtcdError> {
        Ok(())
    }

    fn command(&self) -> Result<Command, EtcdError> {
        Ok(Command::RevokeLease {
            lease: LeaseId(self.id),
        })
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<LeaseRevokeResponse, EtcdError> {
        match outcome {
            Outcome::LeaseEnded {
                end: LeaseEnd::NotDone,
                ..
            } => Err(EtcdError::LeaseNotFound),
            Outcome::LeaseEnded { revision, .. } => Ok(LeaseRevokeResponse {
                header: header.at(revision),
            }),
            _ => Err(EtcdError::OfAnotherKind),
        }
    }
}

/// What is known of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    /// Until it ends.
    pub remaining: Duration,
    /// What was granted.
    pub granted: Duration,
    /// The keys that hang on it, if they were asked for.
    pub keys: Vec<Bytes>,
}

/// The answer to [`Grant::command`], from what it came to.
///
/// # Errors
/// The lease was not granted.
pub fn granted(header: Header, outcome: &Outcome) -> Result<LeaseGrantResponse, EtcdError> {
    match outcome {
        Outcome::LeaseGranted {
            lease,
            ttl_ms,
            revision,
        } => Ok(LeaseGrantResponse {
            header: header.at(*revision),
            id: lease.0,
            ttl: whole_seconds(Duration::from_millis(*ttl_ms)),
            error: String::new(),
        }),
        Outcome::Refused(refusal) => Err(refusal.into()),
        _ => Err(EtcdError::OfAnotherKind),
    }
}

/// The lease begins again; `None`: there is none.
#[must_use]
pub fn kept_alive(header: Header, id: i64, ttl: Option<Duration>) -> LeaseKeepAliveResponse {
    LeaseKeepAliveResponse {
        header: header.wire(),
        id,
        ttl: ttl.map_or(0, whole_seconds),
    }
}

/// What is known of the lease; `None`: there is none.
#[must_use]
pub fn time_to_live(header: Header, id: i64, lease: Option<Remaining>) -> LeaseTimeToLiveResponse {
    let known = LeaseTimeToLiveResponse {
        header: header.wire(),
        id,
        ttl: -1,
        ..LeaseTimeToLiveResponse::default()
    };
    match lease {
        None => known,
        Some(lease) => LeaseTimeToLiveResponse {
            ttl: whole_seconds(lease.remaining),
            granted_ttl: whole_seconds(lease.granted),
            keys: lease.keys,
            ..known
        },
    }
}

/// All leases, in the order in which they are given.
#[must_use]
pub fn leases(header: Header, ids: impl IntoIterator<Item = i64>) -> LeaseLeasesResponse {
    let ids = ids.into_iter();
    LeaseLeasesResponse {
        header: header.wire(),
        leases: ids.map(|id| LeaseStatus { id }).collect(),
    }
}

fn whole_seconds(time: Duration) -> i64 {
    signed(time.as_secs())
}

#[cfg(test)]
mod tests {
    use dengine_kv::Refusal;
    use dengine_types::Revision;

    use super::*;
    use crate::writes::{answer, command};

    #[test]
    fn a_lease_is_granted_and_revoked_under_its_id() {
        let request = LeaseGrantRequest { ttl: 60, id: 0 };
        let grant = Grant::new(&request, 2).unwrap();
        let lease = LeaseId(9);
        let expect = Command::GrantLease {
            lease,
            ttl_ms: 60_000,
        };
        assert_eq!(grant.command(9), expect);
        let outcome = Outcome::LeaseGranted {
            lease,
            ttl_ms: 60_000,
            revision: Revision(4),
        };
        let found = granted(Header::default(), &outcome).unwrap();
        assert_eq!((found.id, found.ttl), (9, 60));
        assert_eq!(found.header.unwrap().revision, 4);
        let taken = Outcome::Refused(Refusal::LeaseExists(lease));
        let found = granted(Header::default(), &taken);
        assert_eq!(found, Err(EtcdError::LeaseExist));

        let revoke = LeaseRevokeRequest { id: 9 };
        let request = command(&revoke).unwrap();
        assert_eq!(request.command, Command::RevokeLease { lease });
        let ended = |end| {
            let outcome = Outcome::LeaseEnded {
                lease,
                revision: Revision(5),
                deleted: 1,
                end,
            };
            let found = answer(&revoke, Header::default(), outcome);
            found.map(|it| it.header.unwrap().revision)
        };
        assert_eq!(ended(LeaseEnd::Gone), Ok(5));
        assert_eq!(ended(LeaseEnd::Dying), Ok(5));
        assert_eq!(ended(LeaseEnd::NotDone), Err(EtcdError::LeaseNotFound));
    }

    #[test]
    fn a_lease_lasts_as_long_as_a_leader_takes_to_be_elected() {
        let grant = |ttl, id| Grant::new(&LeaseGrantRequest { ttl, id }, 2);
        let lasts = |id, seconds| {
            let ttl = Duration::from_secs(seconds);
            Ok(Grant { id, ttl })
        };
        assert_eq!(grant(1, 0), lasts(None, 2));
        assert_eq!(grant(-1, 7), lasts(Some(7), 2));
        assert_eq!(grant(60, -7), lasts(Some(-7), 60));
        assert_eq!(grant(LEASE_TTL_MAX, 0), lasts(None, 9_000_000_000));
        assert_eq!(
            grant(LEASE_TTL_MAX + 1, 0),
            Err(EtcdError::LeaseTtlTooLarge)
        );
    }

    #[test]
    fn a_lease_that_does_not_exist_is_an_answer() {
        let header = Header::default();
        let unknown = time_to_live(header, 7, None);
        assert_eq!((unknown.id, unknown.ttl, unknown.granted_ttl), (7, -1, 0));
        assert_eq!(kept_alive(header, 7, None).ttl, 0);
    }

    #[test]
    fn what_remains_is_rounded_down() {
        let lease = Remaining {
            remaining: Duration::from_millis(4_900),
            granted: Duration::from_secs(5),
            keys: vec!["k".into()],
        };
        let found = time_to_live(Header::default(), 7, Some(lease));
        assert_eq!((found.ttl, found.granted_ttl, found.keys.len()), (4, 5, 1));
    }
}
