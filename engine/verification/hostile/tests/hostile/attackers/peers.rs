//! Whoever reaches the port of peers without being one.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use dengine_protocol::peer::{
    Batch, Frame, Hello, SnapshotChunk, SnapshotFrame, SnapshotOffer, frame, snapshot_frame,
};
use dengine_raft::peer_frames::{Kind, Outgoing};
use futures::future::BoxFuture;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

use super::{Arena, Attacker, crowd, hold};
use crate::link::{Call, Link, connect, framed, prefix};

pub(super) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "half-hellos",
        does: "16,000 streams to the port of peers that say half a Hello, or none",
        on: &[
            "listen-peer",
            "dengine.peer.v1.Peer/Exchange",
            "dengine.peer.v1.Peer/SendSnapshot",
        ],
        run: half,
    },
    Attacker {
        name: "wrong-hellos",
        does: "Hellos of another cluster, and of members that there are not, 512 at a time",
        on: &[
            "dengine.peer.v1.Peer/Exchange",
            "dengine.peer.v1.Peer/SendSnapshot",
        ],
        run: wrong,
    },
    Attacker {
        name: "endless-peer-frames",
        does: "frames of peers that announce 8 MiB, send 7, and then nothing",
        on: &[
            "dengine.peer.v1.Peer/Exchange",
            "dengine.peer.v1.Peer/SendSnapshot",
        ],
        run: endless,
    },
    Attacker {
        name: "hollow-peer-frames",
        does: "frames of peers with eight million messages of no bytes, 16 MiB each, 16 at a time",
        on: &["dengine.peer.v1.Peer/Exchange"],
        run: hollow,
    },
    Attacker {
        name: "forged-peers",
        does: "a Hello as of a member just added, and then messages and snapshots that are noise",
        on: &[
            "dengine.peer.v1.Peer/Exchange",
            "dengine.peer.v1.Peer/SendSnapshot",
        ],
        run: forged,
    },
    Attacker {
        name: "peer-streams",
        does: "1,024 streams of frames: half a Hello, one of another cluster, and as of a member \
               just added, then noise, 16 MiB of empty messages, or 7 of 8 MiB",
        on: &["listen-peer"],
        run: streams,
    },
];

const EXCHANGE: &str = "/dengine.peer.v1.Peer/Exchange";
const SNAPSHOT: &str = "/dengine.peer.v1.Peer/SendSnapshot";

fn path(number: usize) -> &'static str {
    [EXCHANGE, SNAPSHOT][number % 2]
}

/// As somebody added after everybody whom the member knows would say it.
fn hello(arena: &Arena) -> Hello {
    Hello {
        protocol: 1,
        cluster_id: arena.lead.cluster,
        from: 1_000_000,
        to: arena.lead.leader,
        peer_address: "127.0.0.2:1".to_owned(),
        folder_id: "0123456789abcdef0123456789abcdef".to_owned(),
        commands_read_max: 2,
    }
}

/// The same first field in both kinds of streams.
fn first(hello: Hello) -> Bytes {
    framed(&Frame {
        kind: Some(frame::Kind::Hello(hello)),
    })
}

fn half(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 32, |arena, _| async move {
        let link = Link::open(arena.doors.peer).await?;
        hold(&arena, &link, 500, |number| {
            let (link, whole) = (&link, first(hello(&arena)));
            async move {
                let mut call = link.begin(path(number)).await?;
                if number % 4 < 2 {
                    call.body.send_data(whole.slice(..whole.len() / 2), false)?;
                }
                call.told().await
            }
        })
        .await
    })
}

fn wrong(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.peer).await?;
        hold(&arena, &link, 64, |number| {
            let (link, mut hello) = (&link, hello(&arena));
            async move {
                match number % 3 {
                    0 => hello.cluster_id ^= 1,
                    1 => hello.to = u64::MAX,
                    // A folder that is not that member's.
                    _ => hello.from = hello.to,
                }
                let mut call = link.begin(path(number)).await?;
                call.body.send_data(first(hello), false)?;
                call.told().await
            }
        })
        .await
    })
}

fn endless(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.peer).await?;
        let most = Bytes::from(vec![7; 7 << 20]);
        hold(&arena, &link, 64, |number| {
            let (link, most, hello) = (&link, most.clone(), first(hello(&arena)));
            async move {
                let mut call = link.begin(path(number)).await?;
                if number % 4 < 2 {
                    call.body.send_data(hello, false)?;
                }
                let announced = Bytes::copy_from_slice(&prefix(8 << 20));
                call.body.send_data(announced, false)?;
                call.body.send_data(most, false)?;
                call.told().await
            }
        })
        .await
    })
}

fn hollow(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.peer).await?;
        let hollow = hollow_frame(8 << 20);
        hold(&arena, &link, 2, |_| {
            let (link, hollow, hello) = (&link, hollow.clone(), first(hello(&arena)));
            async move {
                let mut call = link.begin(EXCHANGE).await?;
                call.body.send_data(hello, false)?;
                call.body.send_data(hollow, false)?;
                call.told().await
            }
        })
        .await
    })
}

/// As bytes, for as a message it would take 32 bytes for each here too.
fn hollow_frame(messages: usize) -> Bytes {
    const BATCH: u8 = 2 << 3 | 2;
    const MESSAGE: u8 = 1 << 3 | 2;
    let batch = [MESSAGE, 0].repeat(messages);
    let mut frame = vec![BATCH];
    prost::encode_length_delimiter(batch.len(), &mut frame).expect("a vector grows");
    frame.extend(batch);
    [&prefix(frame.len())[..], &frame].concat().into()
}

fn forged(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, _| async move {
        let link = Link::open(arena.doors.peer).await?;
        hold(&arena, &link, 8, |number| {
            let (link, hello) = (&link, first(hello(&arena)));
            async move {
                let mut call = link.begin(path(number)).await?;
                call.body.send_data(hello, false)?;
                if number % 2 == 0 {
                    exchange(call).await
                } else {
                    send_snapshot(call).await
                }
            }
        })
        .await
    })
}

async fn exchange(mut call: Call) -> Result<String> {
    let noise = Frame {
        kind: Some(frame::Kind::Batch(Batch {
            messages: vec![Bytes::from_static(&[0xff; 1000]); 100],
        })),
    };
    for _ in 0..10 {
        call.body.send_data(framed(&noise), false)?;
    }
    call.told().await
}

async fn send_snapshot(mut call: Call) -> Result<String> {
    let frame = |kind| SnapshotFrame { kind: Some(kind) };
    let offer = snapshot_frame::Kind::Offer(SnapshotOffer {
        manifest: Bytes::from(vec![0xff; 64 << 10]),
        message: Bytes::from(vec![0xff; 64 << 10]),
    });
    call.body.send_data(framed(&frame(offer)), false)?;
    let chunk = snapshot_frame::Kind::Chunk(SnapshotChunk {
        content: Bytes::from(vec![0xff; 1 << 20]),
        ..SnapshotChunk::default()
    });
    call.body.send_data(framed(&frame(chunk)), false)?;
    let told = call.told().await;
    // Not as fast as it goes: what is tried is what it does, not how often.
    sleep(Duration::from_millis(100)).await;
    told
}

/// Those that say Hello as frames over TCP.
fn streams(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 1024, |arena, number| async move {
        let mut socket = connect(arena.doors.peer).await?;
        let mut hello = hello(&arena);
        if number % 5 == 1 {
            hello.cluster_id ^= 1;
        }
        let mut outgoing = Outgoing::default();
        outgoing.push_magic();
        outgoing.push(Kind::Hello, &hello.encode_to_vec());
        let mut said = bytes_of(outgoing);
        match number % 5 {
            0 => said.truncate(said.len() / 2),
            1 => {}
            2 => said.extend(batch(&vec![Bytes::from_static(&[0xff; 1000]); 100])),
            3 => said.extend(batch(&vec![Bytes::new(); 4 << 20])),
            _ => {
                let endless = batch(&[Bytes::from(vec![7; 8 << 20])]);
                said.extend(&endless[..7 << 20]);
            }
        }
        arena.tally.did(1);
        socket.write_all(&said).await?;
        let mut told = Vec::new();
        socket.read_to_end(&mut told).await?;
        arena.tally.told(&String::from_utf8_lossy(&told));
        Ok(())
    })
}

fn batch(messages: &[Bytes]) -> Vec<u8> {
    let mut outgoing = Outgoing::default();
    outgoing.push_batch(messages);
    bytes_of(outgoing)
}

fn bytes_of(mut outgoing: Outgoing) -> Vec<u8> {
    let mut all = Vec::new();
    while !outgoing.is_empty() {
        let piece = outgoing.slices()[0].to_vec();
        outgoing.advance(piece.len());
        all.extend(piece);
    }
    all
}
