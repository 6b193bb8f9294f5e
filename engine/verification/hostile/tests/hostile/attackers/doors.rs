//! Connections that never become a call.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use rand::RngExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{Arena, Attacker, crowd};
use crate::frames;
use crate::link::connect;

pub(super) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "silent-connections",
        does: "3,000 connections of clients that say nothing, and come again when they are closed",
        on: &["listen-client"],
        run: silent_clients,
    },
    Attacker {
        name: "silent-elsewhere",
        does: "750 silent connections to each of the ports for peers, people, probes and clients \
            of etcd",
        on: &[
            "listen-peer",
            "listen-admin",
            "listen-monitor",
            "listen-etcd",
        ],
        run: silent_elsewhere,
    },
    Attacker {
        name: "churn",
        does: "connections that are made, greeted and broken off, as fast as they can be",
        on: &[
            "listen-client",
            "listen-peer",
            "listen-admin",
            "listen-monitor",
            "listen-etcd",
        ],
        run: churn,
    },
    Attacker {
        name: "garbage",
        does: "noise, a TLS greeting, HTTP/1.1 and half frames at every port",
        on: &[
            "listen-client",
            "listen-peer",
            "listen-admin",
            "listen-monitor",
            "listen-etcd",
        ],
        run: garbage,
    },
    Attacker {
        name: "slow-http",
        does: "1,000 requests for metrics, a byte a second of their headers",
        on: &["listen-monitor"],
        run: slow_http,
    },
    Attacker {
        name: "scrapes",
        does: "metrics and probes over HTTP as fast as they come, half of them never read",
        on: &["listen-monitor"],
        run: scrapes,
    },
];

fn silent_clients(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 3_000, |arena, _| {
        let to = arena.doors.client;
        silent(arena, to)
    })
}

fn silent_elsewhere(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 3_000, |arena, number| {
        let [_, elsewhere @ ..] = arena.doors.all();
        silent(arena, elsewhere[number % elsewhere.len()])
    })
}

async fn silent(arena: Arena, to: SocketAddr) -> Result<()> {
    let stream = connect(to).await?;
    arena.tally.did(1);
    let closed = until_closed(stream).await;
    arena.tally.told(closed);
    Ok(())
}

/// Reads until the member ends it.
async fn until_closed(mut stream: TcpStream) -> &'static str {
    let mut buffer = [0; 4096];
    let mut answered = false;
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) if answered => return "closed after an answer",
            Ok(0) | Err(_) => return "closed without a word",
            Ok(_) => answered = true,
        }
    }
}

fn churn(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 32, |arena, number| async move {
        let doors = arena.doors.all();
        loop {
            let mut stream = connect(doors[number % doors.len()]).await?;
            stream.write_all(&frames::greeting()).await?;
            // Reset, so that the attackers' own ports do not run out.
            stream.set_zero_linger()?;
            drop(stream);
            arena.tally.did(1);
        }
    })
}

fn garbage(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 32, |arena, number| async move {
        let doors = arena.doors.all();
        let mut stream = connect(doors[number % doors.len()]).await?;
        let bytes = noise(number / doors.len());
        arena.tally.did(1);
        // The member may hang up in the middle of it.
        let written = stream.write_all(&bytes).await;
        let closed = timeout(Duration::from_secs(2), until_closed(stream)).await;
        arena.tally.told(match (written, closed) {
            (_, Ok(closed)) => closed,
            (Ok(()), Err(_)) => "no word for two seconds",
            (Err(_), Err(_)) => "closed in the middle",
        });
        Ok(())
    })
}

/// Of several kinds.
fn noise(kind: usize) -> Vec<u8> {
    let mut random = vec![0; 16 << 10];
    rand::rng().fill(&mut random[..]);
    match kind % 5 {
        0 => random,
        // The first bytes of a TLS 1.2 ClientHello.
        1 => [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &random].concat(),
        2 => b"GET /metrics HTTP/1.1\r\nHost: member\r\n\r\nGET / HTTP/1.0\r\n\r\n".to_vec(),
        3 => [&frames::greeting()[..], &random].concat(),
        _ => {
            let mut bytes = frames::greeting();
            let headers = frames::headers("/dengine.v1.Kv/Get");
            let kind = frames::Kind::Headers;
            frames::put(&mut bytes, kind, frames::END_HEADERS, 1, &headers);
            bytes.truncate(bytes.len() - 7);
            bytes.to_vec()
        }
    }
}

fn slow_http(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 1_000, |arena, _| async move {
        let mut stream = connect(arena.doors.monitor).await?;
        arena.tally.did(1);
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
            .await?;
        loop {
            sleep(Duration::from_secs(1)).await;
            stream
                .write_all(b"x")
                .await
                .context("closed in the middle")?;
        }
    })
}

fn scrapes(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, number| async move {
        let mut stream = connect(arena.doors.monitor).await?;
        let paths = ["/metrics", "/healthz", "/readyz", "/metrics"];
        let path = paths[number % paths.len()];
        let request = format!("GET {path} HTTP/1.1\r\nHost: member\r\n\r\n");
        let mut buffer = vec![0; 64 << 10];
        loop {
            stream.write_all(request.as_bytes()).await?;
            arena.tally.did(1);
            if number % 2 == 0 {
                anyhow::ensure!(stream.read(&mut buffer).await? > 0, "closed");
            }
        }
    })
}
