//! Locks and elections that are waited for, and never had.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use dengine_etcd::KEY_BYTES_MAX;
use dengine_etcd::etcdserverpb::PutRequest;
use dengine_etcd::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderRequest, ProclaimRequest,
};
use dengine_etcd::v3lockpb::LockRequest;
use futures::future::BoxFuture;
use prost::Message;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{CAMPAIGN, LOCK, NARROW, PUT, RANGE, ask_and_leave, everything};
use crate::attackers::{Arena, Attacker, crowd, hold};
use crate::link::Link;

pub(in crate::attackers) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "etcd-locks",
        does: "1,024 waits at a time for one lock with the longest name there is",
        on: &["v3lockpb.Lock/Lock"],
        run: locks,
    },
    Attacker {
        name: "etcd-left-locks",
        does: "1,024 waits at a time for such a lock that are cancelled after half a second, so \
            that each key is to be deleted again",
        on: &["v3lockpb.Lock/Lock"],
        run: left_locks,
    },
    Attacker {
        name: "etcd-campaigns",
        does: "256 candidates at a time for one election, each with a value of 1 MiB",
        on: &["v3electionpb.Election/Campaign"],
        run: campaigns,
    },
    Attacker {
        name: "etcd-unread-observers",
        does: "1,024 streams that are told who leads and that nobody reads, while the leader \
            proclaims another 1 MiB eight times a second",
        on: &[
            "v3electionpb.Election/Observe",
            "v3electionpb.Election/Campaign",
            "v3electionpb.Election/Proclaim",
        ],
        run: observers,
    },
    Attacker {
        name: "etcd-large-places",
        does: "1,024 locks at a time by a key that is there already and has 1 MiB, while lists of \
            everything from the same address take the turns to read",
        on: &[
            "v3lockpb.Lock/Lock",
            "etcdserverpb.KV/Put",
            "etcdserverpb.KV/Range",
        ],
        run: large_places,
    },
];

const VALUE_BYTES: usize = 1 << 20;
/// Behind it there is room for a slash and the digits of a lease.
const NAME_BYTES: usize = KEY_BYTES_MAX - 17;
/// Who was refused comes no sooner again, so that what it writes does not fill up the disk.
const AGAIN: Duration = Duration::from_secs(4);

fn locks(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.etcd).await?;
        let lock = longest_lock();
        hold(&arena, &link, 128, |_| contend(&link, LOCK, &lock)).await
    })
}

fn longest_lock() -> LockRequest {
    LockRequest {
        name: vec![b'l'; NAME_BYTES].into(),
        ..LockRequest::default()
    }
}

fn left_locks(arena: Arena) -> BoxFuture<'static, ()> {
    const WAITS: Duration = Duration::from_millis(500);
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.etcd).await?;
        let lock = longest_lock();
        hold(&arena, &link, 128, |_| async {
            let waits = link.ask(LOCK, &lock).await?;
            sleep(WAITS).await;
            drop(waits);
            Ok("a wait, cancelled".to_owned())
        })
        .await
    })
}

fn campaigns(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 4, |arena, _| async move {
        let link = Link::open(arena.doors.etcd).await?;
        let stand = candidate("hostile/campaigns");
        hold(&arena, &link, 64, |_| contend(&link, CAMPAIGN, &stand)).await
    })
}

async fn contend(link: &Link, path: &str, request: &impl Message) -> Result<String> {
    let told = link.told(path, request).await?;
    sleep(AGAIN).await;
    Ok(told)
}

fn candidate(name: &'static str) -> CampaignRequest {
    CampaignRequest {
        name: name.into(),
        value: large(),
        ..CampaignRequest::default()
    }
}

fn large() -> Bytes {
    vec![7; VALUE_BYTES].into()
}

fn observers(arena: Arena) -> BoxFuture<'static, ()> {
    const NAME: &str = "hostile/observed";
    crowd(arena, 9, |arena, number| async move {
        if number == 0 {
            return lead(&arena, NAME).await;
        }
        let link = Link::with_window(arena.doors.etcd, NARROW).await?;
        let observe = LeaderRequest { name: NAME.into() };
        hold(&arena, &link, 128, |_| {
            ask_and_leave(&link, "/v3electionpb.Election/Observe", &observe)
        })
        .await
    })
}

/// Comes to lead, and proclaims.
async fn lead(arena: &Arena, name: &'static str) -> Result<()> {
    let link = Link::open(arena.doors.etcd).await?;
    let won: CampaignResponse = link.answer(CAMPAIGN, &candidate(name)).await?;
    let leader = won.leader.context("who leads has a key")?;
    let proclaim = ProclaimRequest {
        leader: Some(leader),
        value: large(),
    };
    let mut turns = interval(Duration::from_millis(125));
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        arena.tally.did(1);
        let path = "/v3electionpb.Election/Proclaim";
        let told = link.told(path, &proclaim).await?;
        anyhow::ensure!(!told.contains("not leader"), "proclaim: {told}");
        arena.tally.told(&format!("proclaim: {told}"));
    }
}

fn large_places(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, number| async move {
        let link = Link::open(arena.doors.etcd).await?;
        if number % 2 == 0 {
            let all = everything();
            return hold(&arena, &link, 16, |_| link.told(RANGE, &all)).await;
        }
        // The key by which lease 1 contends; whether there is that lease is not asked then.
        let name = format!("hostile/places/{number}");
        let key = PutRequest {
            key: format!("{name}/1").into(),
            value: large(),
            ..PutRequest::default()
        };
        arena.tally.told(&link.told(PUT, &key).await?);
        let lock = LockRequest {
            name: name.into(),
            lease: 1,
        };
        hold(&arena, &link, 128, |_| link.told(LOCK, &lock)).await
    })
}
