//! Watches that cost the member more than their client.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use dengine_protocol::v1::watch_request::Request;
use dengine_protocol::v1::{
    DeleteRequest, PutRequest, WatchCancel, WatchCreate, WatchProgress, WatchRequest,
};
use futures::future::BoxFuture;
use h2::{RecvStream, SendStream};
use tokio::time::sleep;

use super::{Arena, Attacker, TO_THE_END, crowd, end_of, one_of_many};
use crate::link::{Link, framed, read_some};

pub(super) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "many-watches",
        does: "as many watches of all keys and of single ones as are let in, over 128 connections, \
            all read",
        on: &["dengine.v1.Watch/Watch"],
        run: many,
    },
    Attacker {
        name: "unread-watches",
        does: "as many streams as are let in with a watch of everything and its past, and previous \
            values, that nobody reads",
        on: &["dengine.v1.Watch/Watch"],
        run: unread,
    },
    Attacker {
        name: "watched-deletes",
        does: "256 watches with previous values, while 64 MiB are written and deleted by one \
            range, again and again",
        on: &["dengine.v1.Watch/Watch", "dengine.v1.Kv/Delete"],
        run: deletes,
    },
    Attacker {
        name: "watches-of-the-past",
        does: "512 watches from the first revision on, each begun again when it has read 4 MiB",
        on: &["dengine.v1.Watch/Watch"],
        run: past,
    },
    Attacker {
        name: "watch-churn",
        does: "watches that are created and cancelled, and progress that is asked for, as fast as \
            it goes",
        on: &["dengine.v1.Watch/Watch"],
        run: churn,
    },
];

const WATCH: &str = "/dengine.v1.Watch/Watch";

/// A stream of watches.
struct Watches {
    requests: SendStream<Bytes>,
    answers: RecvStream,
}

impl Watches {
    async fn begin(link: &Link, first: WatchCreate) -> Result<Self> {
        let mut call = link.begin(WATCH).await?;
        call.body.send_data(create(first), false)?;
        let (requests, answers) = call.answers().await?;
        Ok(Self { requests, answers })
    }

    fn create(&mut self, watch: WatchCreate) -> Result<()> {
        Ok(self.requests.send_data(create(watch), false)?)
    }

    async fn read(&mut self, bytes: usize) -> Result<()> {
        let mut left = bytes;
        while left > 0 {
            let read = read_some(&mut self.answers).await?;
            anyhow::ensure!(read > 0, "the stream ended");
            left = left.saturating_sub(read);
        }
        Ok(())
    }
}

fn create(watch: WatchCreate) -> Bytes {
    request(Request::Create(watch))
}

fn request(request: Request) -> Bytes {
    framed(&WatchRequest {
        request: Some(request),
    })
}

fn everything() -> WatchCreate {
    WatchCreate {
        key: Bytes::from_static(b"\0"),
        range_end: TO_THE_END,
        prev_kv: true,
        progress_notify: true,
        fragment: true,
        ..WatchCreate::default()
    }
}

fn many(arena: Arena) -> BoxFuture<'static, ()> {
    const STREAMS: usize = 16;
    const WATCHES: usize = 256;
    crowd(arena, 8 * STREAMS, |arena, number| async move {
        let link = Link::open(arena.doors.client).await?;
        let mut watches = Watches::begin(&link, everything()).await?;
        for n in 1..WATCHES {
            // The honest clients' keys are numbers in hexadecimal.
            let key = match n % 2 {
                0 => format!("{:016x}", number * WATCHES + n).into(),
                _ => one_of_many(n),
            };
            watches.create(WatchCreate {
                key,
                ..WatchCreate::default()
            })?;
            arena.tally.did(1);
        }
        loop {
            watches.read(1).await?;
        }
    })
}

fn unread(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::with_window(arena.doors.client, 1).await?;
        super::hold(&arena, &link, 256, |_| {
            let link = &link;
            async move {
                let first = WatchCreate {
                    start_revision: 1,
                    ..everything()
                };
                let _unread = Watches::begin(link, first).await?;
                sleep(Duration::from_secs(20)).await;
                Ok("answers, kept for 20 s".to_owned())
            }
        })
        .await
    })
}

fn deletes(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 257, |arena, number| async move {
        let link = Link::open(arena.doors.client).await?;
        if number == 0 {
            return write_and_delete(&arena, &link).await;
        }
        let mut watches = Watches::begin(&link, everything()).await?;
        arena.tally.did(1);
        loop {
            watches.read(1).await?;
        }
    })
}

async fn write_and_delete(arena: &Arena, link: &Link) -> Result<()> {
    const PREFIX: &str = "hostile/watched/";
    let value = Bytes::from(vec![7; 64 << 10]);
    let all = DeleteRequest {
        key: PREFIX.into(),
        range_end: end_of(PREFIX),
        ..DeleteRequest::default()
    };
    loop {
        for n in 0..1024 {
            let put = PutRequest {
                key: format!("{PREFIX}{n}").into(),
                value: value.clone(),
                ..PutRequest::default()
            };
            let told = link.told("/dengine.v1.Kv/Put", &put).await?;
            arena.tally.told(&format!("put: {told}"));
        }
        let told = link.told("/dengine.v1.Kv/Delete", &all).await?;
        arena.tally.told(&format!("delete: {told}"));
    }
}

fn past(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 512, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        loop {
            let first = WatchCreate {
                start_revision: 1,
                ..everything()
            };
            let mut watches = Watches::begin(&link, first).await?;
            arena.tally.did(1);
            watches.read(4 << 20).await?;
        }
    })
}

fn churn(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 32, |arena, number| async move {
        let link = Link::open(arena.doors.client).await?;
        let single = |watch_id| WatchCreate {
            watch_id,
            key: one_of_many(number),
            ..WatchCreate::default()
        };
        let mut watches = Watches::begin(&link, single(1)).await?;
        for watch_id in 2.. {
            watches.create(single(watch_id))?;
            let before = watch_id - 1;
            let cancel = Request::Cancel(WatchCancel { watch_id: before });
            watches.requests.send_data(request(cancel), false)?;
            let progress = request(Request::Progress(WatchProgress {}));
            watches.requests.send_data(progress, false)?;
            arena.tally.did(1);
            watches.read(1).await.context("churning")?;
        }
        Ok(())
    })
}
