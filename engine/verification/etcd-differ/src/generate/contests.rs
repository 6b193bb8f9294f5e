//! Locks and elections.
//!
//! Each name has one lease that contends for it: how long others would wait, and what their calls
//! leave behind once nobody waits for them, is a matter of time.

use bytes::Bytes;

use crate::operation::{AS_CAMPAIGNED, Operation};
use crate::pb;

use super::{Draw, LEASES};

impl Draw {
    pub(super) fn contest(&mut self) -> Operation {
        let lease = self.random.between(1, LEASES + 1) as i64;
        match self.random.below(20) {
            0..4 => Operation::Lock(pb::LockRequest {
                name: lock(lease),
                lease,
            }),
            4..6 => Operation::Unlock(pb::UnlockRequest {
                key: key(&lock(lease), lease),
            }),
            6..11 => Operation::Campaign(pb::CampaignRequest {
                name: election(lease),
                lease,
                value: self.value(),
            }),
            11..14 => Operation::Proclaim(pb::ProclaimRequest {
                leader: Some(self.leader(lease)),
                value: self.value(),
            }),
            14..16 => Operation::Leader(pb::LeaderRequest {
                name: election(lease),
            }),
            16..18 => Operation::Observe(pb::LeaderRequest {
                name: election(lease),
            }),
            _ => Operation::Resign(pb::ResignRequest {
                leader: Some(self.leader(lease)),
            }),
        }
    }

    /// Whoever leads, most often.
    fn leader(&mut self, lease: i64) -> pb::LeaderKey {
        let name = election(lease);
        pb::LeaderKey {
            key: key(&name, lease),
            name,
            rev: match self.flag(80) {
                true => AS_CAMPAIGNED,
                false => self.some_revision(),
            },
            lease,
        }
    }

    pub(super) fn hostile_contest(&mut self) -> Operation {
        let lease = self.number();
        let leader = self.hostile_leader();
        let value = self.value();
        match self.random.below(7) {
            0 => Operation::Lock(pb::LockRequest {
                name: self.key(),
                lease,
            }),
            // Below no name at all.
            1 => Operation::Lock(pb::LockRequest {
                name: Bytes::new(),
                lease: 1,
            }),
            2 => Operation::Unlock(pb::UnlockRequest {
                key: match self.flag(50) {
                    true => self.key(),
                    false => Bytes::new(),
                },
            }),
            3 => Operation::Campaign(pb::CampaignRequest {
                name: self.key(),
                lease,
                value,
            }),
            4 => Operation::Leader(pb::LeaderRequest { name: Bytes::new() }),
            5 => Operation::Proclaim(pb::ProclaimRequest { leader, value }),
            _ => Operation::Resign(pb::ResignRequest { leader }),
        }
    }

    /// Nobody, or one with a part that does not fit the others.
    fn hostile_leader(&mut self) -> Option<pb::LeaderKey> {
        let lease = self.random.between(1, LEASES + 1) as i64;
        let mut leader = self.leader(lease);
        match self.random.below(6) {
            0 => return None,
            1 => leader.key.clear(),
            2 => {
                leader.key = self.key();
                leader.rev = self.some_revision();
            }
            3 => leader.rev = self.number(),
            4 => leader.lease = self.number(),
            _ => leader.name = self.key(),
        }
        Some(leader)
    }
}

/// The lock that this lease may hold: its key is below what most ranges have, and no other is below
/// its name.
fn lock(lease: i64) -> Bytes {
    Bytes::from(format!("k/{lease:x}"))
}

/// The election that this lease may win, likewise.
fn election(lease: i64) -> Bytes {
    Bytes::from(format!("k/{:x}", lease + LEASES as i64))
}

/// By which a lease contends.
fn key(name: &Bytes, lease: i64) -> Bytes {
    [name, format!("/{lease:x}").as_bytes()].concat().into()
}
