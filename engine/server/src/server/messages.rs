//! What a member tells of itself and its cluster, for the wire.

use dengine_kv::CommandVersion;
use dengine_protocol::checks::messages::member;
use dengine_protocol::v1;
use dengine_types::Revision;

use crate::config::Config;
use crate::node::{Lifecycle, MemberProgress, MembersView, NodeStatus, Role};

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

/// What a member knows of itself, for the wire. `admin_address` is where the rest of `Admin` is, if
/// elsewhere.
pub(super) fn node_status(
    status: NodeStatus,
    config: &Config,
    admin_address: String,
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
        snapshot_lacks_bytes: status.snapshot_lacks_bytes,
        stalled: status.stalled,
        removed: status.removed,
        admin_address,
        free_bytes: status.free_bytes,
        commands_read_max: u32::from(CommandVersion::CURRENT.number()),
        command_version: status.command_version.map_or(0, |it| it.number().into()),
    }
}

fn lifecycle(lifecycle: Lifecycle) -> v1::Lifecycle {
    match lifecycle {
        Lifecycle::Waiting => v1::Lifecycle::Waiting,
        Lifecycle::Running => v1::Lifecycle::Running,
    }
}

/// A member that waits for an identity has no part in any cluster.
fn role(lifecycle: Lifecycle, role: Role) -> v1::Role {
    match (lifecycle, role) {
        (Lifecycle::Waiting, _) => v1::Role::Unspecified,
        (Lifecycle::Running, Role::Leader) => v1::Role::Leader,
        (Lifecycle::Running, Role::Follower) => v1::Role::Follower,
        (Lifecycle::Running, Role::Candidate) => v1::Role::Candidate,
        (Lifecycle::Running, Role::Learner) => v1::Role::Learner,
    }
}
