//! All else that clients of etcd may ask for, and what is not served: each costs little by itself,
//! or is made by one at a time.

use futures::future::BoxFuture;

use crate::attackers::{Arena, Attacker, crowd, hold};
use crate::link::Link;

pub(in crate::attackers) const ATTACKERS: &[Attacker] = &[Attacker {
    name: "etcd-others",
    does: "every other call of etcd's API with an empty request, 512 at a time: hashes and \
        merges of the whole state, and what is refused",
    on: RPCS,
    run: others,
}];

const RPCS: &[&str] = &[
    "etcdserverpb.KV/RangeStream",
    "etcdserverpb.KV/Compact",
    "etcdserverpb.Cluster/MemberAdd",
    "etcdserverpb.Cluster/MemberRemove",
    "etcdserverpb.Cluster/MemberUpdate",
    "etcdserverpb.Cluster/MemberList",
    "etcdserverpb.Cluster/MemberPromote",
    "etcdserverpb.Maintenance/Alarm",
    "etcdserverpb.Maintenance/Status",
    "etcdserverpb.Maintenance/Defragment",
    "etcdserverpb.Maintenance/Hash",
    "etcdserverpb.Maintenance/HashKV",
    "etcdserverpb.Maintenance/Snapshot",
    "etcdserverpb.Maintenance/MoveLeader",
    "etcdserverpb.Maintenance/Downgrade",
    "etcdserverpb.Auth/AuthEnable",
    "etcdserverpb.Auth/AuthDisable",
    "etcdserverpb.Auth/AuthStatus",
    "etcdserverpb.Auth/Authenticate",
    "etcdserverpb.Auth/UserAdd",
    "etcdserverpb.Auth/UserGet",
    "etcdserverpb.Auth/UserList",
    "etcdserverpb.Auth/UserDelete",
    "etcdserverpb.Auth/UserChangePassword",
    "etcdserverpb.Auth/UserGrantRole",
    "etcdserverpb.Auth/UserRevokeRole",
    "etcdserverpb.Auth/RoleAdd",
    "etcdserverpb.Auth/RoleGet",
    "etcdserverpb.Auth/RoleList",
    "etcdserverpb.Auth/RoleDelete",
    "etcdserverpb.Auth/RoleGrantPermission",
    "etcdserverpb.Auth/RoleRevokePermission",
    "v3lockpb.Lock/Unlock",
    "v3electionpb.Election/Leader",
    "v3electionpb.Election/Proclaim",
    "v3electionpb.Election/Resign",
];

fn others(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, _| async move {
        let link = Link::open(arena.doors.etcd).await?;
        hold(&arena, &link, 32, |n| {
            let path = format!("/{}", RPCS[n % RPCS.len()]);
            let link = &link;
            // Every field of a message may be left out.
            async move { link.ask_encoded(&path, &[]).await?.told().await }
        })
        .await
    })
}
