//! Makes two stores equal that were used before: no keys, no leases, the same revision, and no
//! history that could be asked for.

use anyhow::{Result, ensure};

use crate::operation::Operation;
use crate::pb;
use crate::reply::Reply;
use crate::system::{Client, System as _};

/// How far apart two stores may be: what is missing is written, one revision a call.
const REVISIONS_APART_MAX: i64 = 1_000_000;

/// Empties both, unless one has keys and `erase` does not say that they may go.
///
/// # Errors
/// There are keys, the stores are too far apart, or a call fails.
pub(crate) async fn level(left: &mut Client, right: &mut Client, erase: bool) -> Result<()> {
    for side in [&mut *left, &mut *right] {
        let keys = count(side).await?;
        ensure!(
            erase || keys == 0,
            "a system has {keys} keys, and what it holds is deleted: say so with --erase"
        );
        empty(side).await?;
    }
    let behind = revision(left).await? - revision(right).await?;
    ensure!(
        behind.abs() <= REVISIONS_APART_MAX,
        "the systems are {} revisions apart",
        behind.abs()
    );
    let lower = if behind < 0 { &mut *left } else { &mut *right };
    for _ in 0..behind.abs() {
        accept(lower.call(&put()).await)?;
    }
    for side in [left, right] {
        // One revision on each side, whether the key was there or not.
        accept(side.call(&put()).await)?;
        empty(side).await?;
        let revision = revision(side).await?;
        accept(side.call(&compact(revision)).await)?;
        side.shift_by(revision - 1);
    }
    Ok(())
}

async fn empty(side: &mut Client) -> Result<()> {
    let all = Operation::Delete(pb::DeleteRangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        prev_kv: false,
    });
    accept(side.call(&all).await)?;
    // Where there are no leases yet, there is nothing to revoke.
    let listed = side
        .call(&Operation::Leases(pb::LeaseLeasesRequest {}))
        .await;
    if let Reply::Leases(listed) = listed {
        for lease in listed.leases {
            // One that ends by itself meanwhile is gone as well.
            let request = pb::LeaseRevokeRequest { id: lease.id };
            side.call(&Operation::Revoke(request)).await;
        }
    }
    Ok(())
}

fn put() -> Operation {
    Operation::Put(pb::PutRequest {
        key: "level".into(),
        ..Default::default()
    })
}

fn compact(revision: i64) -> Operation {
    Operation::Compact(pb::CompactionRequest {
        revision,
        physical: false,
    })
}

async fn ask(side: &mut Client) -> Result<pb::RangeResponse> {
    let all = Operation::Range(pb::RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        count_only: true,
        ..Default::default()
    });
    match accept(side.call(&all).await)? {
        Reply::Range(response) => Ok(response),
        other => anyhow::bail!("a range is answered with {other:?}"),
    }
}

async fn count(side: &mut Client) -> Result<i64> {
    Ok(ask(side).await?.count)
}

async fn revision(side: &mut Client) -> Result<i64> {
    let header = ask(side).await?.header.unwrap_or_default();
    Ok(header.revision)
}

fn accept(reply: Reply) -> Result<Reply> {
    ensure!(
        reply.code() == tonic::Code::Ok && reply != Reply::Missing,
        "preparing a system: {reply:?}"
    );
    Ok(reply)
}
