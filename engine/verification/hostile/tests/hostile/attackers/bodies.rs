//! Requests that do not arrive.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::time::sleep;

use super::{Arena, Attacker, crowd, hold};
use crate::link::{Link, prefix};

/// Streams of a connection.
const STREAMS: usize = 500;

const PATHS: [&str; 6] = [
    "/dengine.v1.Kv/Put",
    "/dengine.v1.Kv/Batch",
    "/dengine.v1.Kv/CompareAndSwap",
    "/dengine.v1.Kv/Delete",
    "/dengine.v1.Kv/Pipeline",
    "/dengine.v1.Watch/Watch",
];

pub(super) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "endless-bodies",
        does: "4,000 requests that announce 1.5 MiB, send 1 MiB, and then nothing",
        on: &[
            "dengine.v1.Kv/Put",
            "dengine.v1.Kv/Batch",
            "dengine.v1.Kv/CompareAndSwap",
        ],
        run: endless,
    },
    Attacker {
        name: "slow-bodies",
        does: "4,000 requests of which a byte arrives each second",
        on: &[
            "dengine.v1.Kv/Put",
            "dengine.v1.Kv/Batch",
            "dengine.v1.Kv/CompareAndSwap",
            "dengine.v1.Kv/Delete",
            "dengine.v1.Kv/Pipeline",
            "dengine.v1.Watch/Watch",
        ],
        run: slow,
    },
    Attacker {
        name: "oversized-bodies",
        does: "requests of 60 MiB, sent for as long as they are taken",
        on: &["dengine.v1.Kv/Put", "dengine.v1.Kv/Pipeline"],
        run: oversized,
    },
    Attacker {
        name: "empty-calls",
        does: "100,000 calls of which only headers are sent",
        on: &[
            "dengine.v1.Kv/Put",
            "dengine.v1.Kv/Pipeline",
            "dengine.v1.Watch/Watch",
        ],
        run: empty,
    },
];

fn endless(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        let most = Bytes::from(vec![7; 1 << 20]);
        hold(&arena, &link, STREAMS, |number| {
            let (link, most) = (&link, most.clone());
            async move {
                let mut call = link.begin(PATHS[number % 3]).await?;
                let announced = Bytes::copy_from_slice(&prefix(3 << 19));
                call.body.send_data(announced, false)?;
                call.body.send_data(most, false)?;
                call.told().await
            }
        })
        .await
    })
}

fn slow(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        hold(&arena, &link, STREAMS, |number| {
            drip(&link, PATHS[number % PATHS.len()])
        })
        .await
    })
}

/// A call whose body never ends and hardly comes; what it is told in the end.
async fn drip(link: &Link, path: &str) -> Result<String> {
    let mut call = link.begin(path).await?;
    let announced = Bytes::copy_from_slice(&prefix(100_000));
    call.body.send_data(announced, false)?;
    let (told, mut body) = call.apart();
    let drops = async move {
        loop {
            sleep(Duration::from_secs(1)).await;
            if body.send_data(Bytes::from_static(b"x"), false).is_err() {
                // The answer says why.
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! { told = told => told, () = drops => unreachable!("it drips forever") }
}

fn oversized(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, number| async move {
        let link = Link::open(arena.doors.client).await?;
        let some = Bytes::from(vec![7; 1 << 20]);
        loop {
            let path = if number % 2 == 0 { PATHS[0] } else { PATHS[4] };
            let mut call = link.begin(path).await?;
            arena.tally.did(1);
            let announced = Bytes::copy_from_slice(&prefix(60 << 20));
            call.body.send_data(announced, false)?;
            for _ in 0..60 {
                if call.body.send_data(some.clone(), false).is_err() {
                    break;
                }
            }
            arena.tally.told(&call.told().await.context("oversized")?);
        }
    })
}

fn empty(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 100, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        hold(&arena, &link, 1_000, |number| {
            let link = &link;
            let path = [PATHS[0], PATHS[4], PATHS[5]][number % 3];
            async move { link.begin(path).await?.told().await }
        })
        .await
    })
}
