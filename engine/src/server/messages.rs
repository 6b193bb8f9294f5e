//! Between core's types and the wire's, and the checks of what arrives.

use bytes::Bytes;
use dengine_api::v1;
use dengine_core::{kv, types::Revision};
use tonic::Status;

use crate::{
    config::{Config, Limits},
    node::{Lifecycle, MemberProgress, MembersView, NodeStatus, Role},
};

/// A pair for the wire.
pub(super) fn key_value(kv: kv::KeyValue) -> v1::KeyValue {
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
pub(super) fn member(member: kv::Member) -> v1::Member {
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
pub(super) fn members(membership: &kv::Membership) -> Vec<v1::Member> {
    membership.members.values().cloned().map(member).collect()
}

/// The leader's view of the cluster for the wire.
pub(super) fn members_view(view: MembersView) -> v1::MembersResponse {
    let progress = |progress: MemberProgress| v1::MemberProgress {
        member: Some(member(progress.member)),
        leader: progress.leader,
        reachable: progress.reachable,
        lag_entries: progress.lag_entries,
    };
    v1::MembersResponse {
        cluster_id: view.cluster_id.0,
        term: view.term.0,
        leader_id: view.leader.0,
        members: view.members.into_iter().map(progress).collect(),
    }
}

/// What a member knows of itself, for the wire.
pub(super) fn node_status(
    status: NodeStatus,
    config: &Config,
    compact_revision: Revision,
    watches: u64,
) -> v1::StatusResponse {
    v1::StatusResponse {
        lifecycle: lifecycle(status.lifecycle).into(),
        name: status.name,
        folder_id: status.folder_id,
        cluster_id: status.cluster_id.0,
        member_id: status.member_id.0,
        role: role(status.lifecycle, status.role).into(),
        leader_id: status.leader.map_or(0, |leader| leader.id.0),
        term: status.term.0,
        last_index: status.last_index.0,
        commit_index: status.commit_index.0,
        applied_index: status.applied_index.0,
        revision: status.revision.0,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ready: status.ready,
        durability: config.durability.name().to_owned(),
        log_bytes: status.log_bytes,
        state_bytes: status.state_bytes,
        peer_address: config.advertise_peer.clone(),
        client_address: config.advertise_client.clone(),
        compact_revision: compact_revision.0,
        first_index: status.first_index.0,
        watches,
        low_on_space: status.low_on_space,
    }
}

fn lifecycle(lifecycle: Lifecycle) -> v1::Lifecycle {
    match lifecycle {
        Lifecycle::Waiting => v1::Lifecycle::Waiting,
        Lifecycle::Running => v1::Lifecycle::Running,
    }
}

/// Who waits for an identity has no part in any cluster.
fn role(lifecycle: Lifecycle, role: Role) -> v1::Role {
    match (lifecycle, role) {
        (Lifecycle::Waiting, _) => v1::Role::Unspecified,
        (Lifecycle::Running, Role::Leader) => v1::Role::Leader,
        (Lifecycle::Running, Role::Follower) => v1::Role::Follower,
        (Lifecycle::Running, Role::Candidate) => v1::Role::Candidate,
        (Lifecycle::Running, Role::Learner) => v1::Role::Learner,
    }
}

/// Checks the key of a request.
pub(super) fn check_key(key: &Bytes, limits: &Limits) -> Result<(), Status> {
    if key.is_empty() {
        return Err(Status::invalid_argument(
            "the key is empty; a key has at least one byte",
        ));
    }
    check_length("key", key, limits.max_key_bytes, "--max-key-bytes")
}

/// Checks the end of a range, which may be empty.
pub(super) fn check_range_end(range_end: &Bytes, limits: &Limits) -> Result<(), Status> {
    check_length(
        "range_end",
        range_end,
        limits.max_key_bytes,
        "--max-key-bytes",
    )
}

/// Checks the value of a request, which may be empty.
pub(super) fn check_value(value: &Bytes, limits: &Limits) -> Result<(), Status> {
    check_length("value", value, limits.max_value_bytes, "--max-value-bytes")
}

fn check_length(what: &str, bytes: &Bytes, limit: usize, flag: &str) -> Result<(), Status> {
    if bytes.len() > limit {
        return Err(Status::invalid_argument(format!(
            "the {what} has {} bytes; this member takes at most {limit} ({flag})",
            bytes.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(result: Result<(), Status>, expect: &str) {
        match result {
            Ok(()) => assert_eq!(expect, ""),
            Err(status) => assert!(status.message().contains(expect), "{status}"),
        }
    }

    #[test]
    fn sizes_are_checked_at_the_limit() {
        let limits = Limits {
            max_key_bytes: 2,
            max_value_bytes: 3,
            ..Limits::default()
        };
        check(check_key(&Bytes::from_static(b"ab"), &limits), "");
        check(
            check_key(&Bytes::from_static(b"abc"), &limits),
            "--max-key-bytes",
        );
        check(check_key(&Bytes::new(), &limits), "empty");
        check(check_range_end(&Bytes::new(), &limits), "");
        check(
            check_range_end(&Bytes::from_static(b"abc"), &limits),
            "at most 2",
        );
        check(check_value(&Bytes::new(), &limits), "");
        check(check_value(&Bytes::from_static(b"abc"), &limits), "");
        check(
            check_value(&Bytes::from_static(b"abcd"), &limits),
            "has 4 bytes",
        );
    }
}
