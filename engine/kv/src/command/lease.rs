//! What commands say about leases.

use dengine_types::{Index, LeaseId};

/// What becomes of a key's lease when the key is put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PutLease {
    /// The key is attached to none afterwards, whatever it was before.
    #[default]
    None,
    /// The key is attached to this one, and to no other.
    Attach(LeaseId),
    /// The key stays attached as it is. It has to exist.
    Keep,
}

/// How much of a lease is left, as its leader has counted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseCheckpoint {
    pub lease: LeaseId,
    /// In milliseconds; at most its time to live.
    pub remaining_ms: u64,
    /// [`LeaseInfo::touched`](crate::LeaseInfo::touched) as the leader knows it. If the lease's
    /// record was changed since, the checkpoint is void: it may be older than what is there.
    pub seen: Index,
}
