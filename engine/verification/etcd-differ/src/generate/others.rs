//! Leases, members, alarms.

use crate::operation::Operation;
use crate::pb;

use super::{Draw, LEASES};

/// `NOSPACE` of `AlarmType`.
const NO_SPACE: i32 = 1;

impl Draw {
    /// All of them outlast the sequence but the short ones.
    pub(super) fn lease(&mut self) -> Operation {
        let id = self.random.between(1, LEASES + 1) as i64;
        match self.random.below(20) {
            0 => Operation::Grant(pb::LeaseGrantRequest { ttl: 1_000, id: 0 }),
            1 => Operation::Grant(pb::LeaseGrantRequest {
                ttl: 1,
                id: self.short_lease(),
            }),
            2..9 => Operation::Grant(pb::LeaseGrantRequest {
                ttl: self.random.between(1_000, 100_000) as i64,
                id,
            }),
            9..12 => Operation::Revoke(pb::LeaseRevokeRequest { id }),
            12..15 => Operation::KeepAlive(pb::LeaseKeepAliveRequest { id }),
            15..19 => Operation::TimeToLive(pb::LeaseTimeToLiveRequest {
                id,
                keys: self.flag(60),
            }),
            _ => Operation::Leases(pb::LeaseLeasesRequest {}),
        }
    }

    pub(super) fn about_members(&mut self) -> Operation {
        match self.random.below(12) {
            0..4 => Operation::Members(pb::MemberListRequest {
                linearizable: self.flag(50),
            }),
            4..7 => Operation::Status(pb::StatusRequest {}),
            7 if self.calls.alarms => Operation::Alarm(alarm(self.random.between(1, 3) as i32)),
            7..10 => Operation::Alarm(alarm(0)),
            _ => Operation::HashKv(pb::HashKvRequest {
                revision: self.past(60),
            }),
        }
    }
}

/// Asks, raises or clears: 0, 1, 2.
fn alarm(action: i32) -> pb::AlarmRequest {
    pb::AlarmRequest {
        action,
        member_id: 0,
        alarm: if action == 0 { 0 } else { NO_SPACE },
    }
}
