//! Watches that take as much memory as watches may, and whose streams nobody reads.

use bytes::Bytes;
use dengine_etcd::KEY_BYTES_MAX;
use dengine_etcd::etcdserverpb::watch_request::RequestUnion;
use dengine_etcd::etcdserverpb::{WatchCreateRequest, WatchRequest};
use futures::future::BoxFuture;

use super::{NARROW, WATCH, everything, leave};
use crate::attackers::{Arena, Attacker, crowd, hold};
use crate::link::{Link, framed};

pub(in crate::attackers) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "etcd-long-watches",
        does: "32,000 watches of ranges between the longest keys there are, on eight streams that \
            nobody reads",
        on: &["listen-etcd", "etcdserverpb.Watch/Watch"],
        run: long,
    },
    Attacker {
        name: "etcd-unread-watches",
        does: "as many streams as are let in with a watch of everything from its first revision \
            on, with previous values and whole revisions, that nobody reads",
        on: &["etcdserverpb.Watch/Watch"],
        run: unread,
    },
];

/// On one stream: nearly as many as a connection may have.
const WATCHES: u64 = 4_000;
/// Created at once, before the connection has its turn again.
const AT_ONCE: u64 = 16;

pub(super) fn create(watch: WatchCreateRequest) -> Bytes {
    framed(&WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(watch)),
    })
}

fn long(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, number| async move {
        // Half of them could be sent all answers: to the member these do not look slow.
        let door = arena.doors.etcd;
        let link = match number % 2 {
            0 => Link::open(door).await?,
            _ => Link::with_window(door, NARROW).await?,
        };
        let mut call = link.begin(WATCH).await?;
        let watch = create(between_the_longest());
        for _ in 0..WATCHES / AT_ONCE {
            for _ in 0..AT_ONCE {
                call.body.send_data(watch.clone(), false)?;
            }
            arena.tally.did(AT_ONCE);
            tokio::task::yield_now().await;
        }
        let (_requests, answers) = call.answers().await?;
        arena.tally.told(&leave(answers).await?);
        Ok(())
    })
}

fn between_the_longest() -> WatchCreateRequest {
    WatchCreateRequest {
        key: vec![b'k'; KEY_BYTES_MAX].into(),
        range_end: vec![b'l'; KEY_BYTES_MAX].into(),
        ..WatchCreateRequest::default()
    }
}

fn unread(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::with_window(arena.doors.etcd, NARROW).await?;
        let all = everything();
        let watch = create(WatchCreateRequest {
            key: all.key,
            range_end: all.range_end,
            start_revision: 1,
            prev_kv: true,
            ..WatchCreateRequest::default()
        });
        hold(&arena, &link, 256, |_| async {
            let mut call = link.begin(WATCH).await?;
            call.body.send_data(watch.clone(), false)?;
            let (_requests, answers) = call.answers().await?;
            leave(answers).await
        })
        .await
    })
}
