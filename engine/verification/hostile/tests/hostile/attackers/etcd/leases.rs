//! Leases without end, and streams that keep them alive for nobody.

use anyhow::Result;
use bytes::Bytes;
use dengine_etcd::LEASE_TTL_MAX;
use dengine_etcd::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseLeasesRequest,
    LeaseRevokeRequest, LeaseTimeToLiveRequest,
};
use futures::future::BoxFuture;

use super::{LEASE_GRANT, LEASE_KEEP_ALIVE, NARROW, leave};
use crate::attackers::{Arena, Attacker, crowd, hold};
use crate::link::{Link, framed};

pub(in crate::attackers) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "etcd-leases",
        does: "leases of 285 years, granted 1,024 at a time without end",
        on: &["etcdserverpb.Lease/LeaseGrant"],
        run: grants,
    },
    Attacker {
        name: "etcd-lease-churn",
        does: "leases that are granted, looked at and revoked, beside lists of all of them",
        on: &[
            "etcdserverpb.Lease/LeaseGrant",
            "etcdserverpb.Lease/LeaseRevoke",
            "etcdserverpb.Lease/LeaseTimeToLive",
            "etcdserverpb.Lease/LeaseLeases",
        ],
        run: churn,
    },
    Attacker {
        name: "etcd-unread-keep-alives",
        does: "1,024 streams, each with 1,000 requests to keep a lease alive, whose answers are \
            not read",
        on: &["etcdserverpb.Lease/LeaseKeepAlive"],
        run: keep_alives,
    },
];

/// On a stream, before it is left.
const REQUESTS: usize = 1_000;

/// For as long as leases last; any id will do.
const FOREVER: LeaseGrantRequest = LeaseGrantRequest {
    ttl: LEASE_TTL_MAX,
    id: 0,
};

fn grants(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.etcd).await?;
        hold(&arena, &link, 128, |_| link.told(LEASE_GRANT, &FOREVER)).await
    })
}

fn churn(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.etcd).await?;
        hold(&arena, &link, 64, |number| {
            let link = &link;
            async move {
                if number.is_multiple_of(4) {
                    let path = "/etcdserverpb.Lease/LeaseLeases";
                    return link.told(path, &LeaseLeasesRequest {}).await;
                }
                live(link).await
            }
        })
        .await
    })
}

/// One lease from its beginning to its end.
async fn live(link: &Link) -> Result<String> {
    let granted: LeaseGrantResponse = link.answer(LEASE_GRANT, &FOREVER).await?;
    let look = LeaseTimeToLiveRequest {
        id: granted.id,
        keys: true,
    };
    link.told("/etcdserverpb.Lease/LeaseTimeToLive", &look)
        .await?;
    let revoke = LeaseRevokeRequest { id: granted.id };
    link.told("/etcdserverpb.Lease/LeaseRevoke", &revoke).await
}

fn keep_alives(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::with_window(arena.doors.etcd, NARROW).await?;
        let granted: LeaseGrantResponse = link.answer(LEASE_GRANT, &FOREVER).await?;
        let keep = framed(&LeaseKeepAliveRequest { id: granted.id });
        let requests = Bytes::from(keep.repeat(REQUESTS));
        hold(&arena, &link, 128, |_| async {
            let mut call = link.begin(LEASE_KEEP_ALIVE).await?;
            call.body.send_data(requests.clone(), false)?;
            let (_requests, answers) = call.answers().await?;
            leave(answers).await
        })
        .await
    })
}
