//! Types of `dengine-kv` as protocol messages.

use dengine_kv as kv;

use crate::v1;

/// A pair for the wire.
#[must_use]
#[inline]
pub fn key_value(kv: kv::KeyValue) -> v1::KeyValue {
    v1::KeyValue {
        key: kv.key,
        value: kv.value,
        create_revision: kv.create_revision.0,
        mod_revision: kv.mod_revision.0,
        version: kv.version,
        ttl_ms: kv.ttl_ms,
    }
}

/// A member for the wire.
#[must_use]
pub fn member(member: kv::Member) -> v1::Member {
    v1::Member {
        id: member.id.0,
        name: member.name,
        peer_address: member.peer_address,
        client_address: member.client_address,
        folder_id: member.folder_id,
        voter: member.voter,
    }
}

/// All members for the wire.
#[must_use]
pub fn members(membership: &kv::Membership) -> Vec<v1::Member> {
    membership.members.values().cloned().map(member).collect()
}
