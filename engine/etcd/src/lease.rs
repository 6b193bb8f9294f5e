//! Leases: what a client asks for, and the answers from plain numbers.

use std::time::Duration;

use bytes::Bytes;

use crate::LEASE_TTL_MAX;
use crate::errors::EtcdError;
use crate::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseLeasesResponse,
    LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveResponse,
};
use crate::header::{Header, signed};

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

/// The lease was granted.
#[must_use]
pub fn granted(header: Header, id: i64, ttl: Duration) -> LeaseGrantResponse {
    LeaseGrantResponse {
        header: header.wire(),
        id,
        ttl: whole_seconds(ttl),
        error: String::new(),
    }
}

/// The lease has ended.
#[must_use]
pub fn revoked(header: Header) -> LeaseRevokeResponse {
    LeaseRevokeResponse {
        header: header.wire(),
    }
}

/// The lease begins anew; `None`: there is none.
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

/// All leases, in the order in which they end.
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
    use super::*;

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
