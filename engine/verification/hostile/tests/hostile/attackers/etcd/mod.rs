//! At the port of etcd's clients: its API as none of them uses it, one file for each kind.

pub(super) mod contests;
pub(super) mod leases;
pub(super) mod others;
pub(super) mod ranges;
pub(super) mod resets;
pub(super) mod txns;
pub(super) mod watches;

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use dengine_etcd::etcdserverpb::RangeRequest;
use h2::RecvStream;
use prost::Message;
use tokio::time::sleep;

use super::TO_THE_END;
use crate::link::Link;

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
const TXN: &str = "/etcdserverpb.KV/Txn";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const LOCK: &str = "/v3lockpb.Lock/Lock";
const CAMPAIGN: &str = "/v3electionpb.Election/Campaign";

/// Of each unread answer a byte may be sent.
const NARROW: u32 = 1;
/// Longer than a member is patient.
const UNREAD: Duration = Duration::from_secs(20);

/// All keys with their values.
fn everything() -> RangeRequest {
    RangeRequest {
        key: Bytes::from_static(b"\0"),
        range_end: TO_THE_END,
        ..RangeRequest::default()
    }
}

/// Asks, and does not read the answer, which may come in many messages.
async fn ask_and_leave(link: &Link, path: &str, request: &impl Message) -> Result<String> {
    let (_request, answers) = link.ask(path, request).await?.answers().await?;
    leave(answers).await
}

/// Reads none of what is answered.
async fn leave(answers: RecvStream) -> Result<String> {
    sleep(UNREAD).await;
    drop(answers);
    Ok("an answer, kept for 20 s".to_owned())
}
