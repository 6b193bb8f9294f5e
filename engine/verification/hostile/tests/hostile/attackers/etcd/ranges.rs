//! Lists without pages, which nobody reads.

use dengine_etcd::etcdserverpb::RangeRequest;
use dengine_etcd::etcdserverpb::range_request::{SortOrder, SortTarget};
use futures::future::BoxFuture;

use super::{NARROW, RANGE, ask_and_leave, everything};
use crate::attackers::{Arena, Attacker, LARGE, LARGE_KEYS, MANY, crowd, end_of, hold};
use crate::link::Link;

pub(in crate::attackers) const ATTACKERS: &[Attacker] = &[Attacker {
    name: "etcd-unread-lists",
    does: "3,200 lists at a time of all keys, of all without values and in another order, and of \
        40 MiB, whose answers are not read",
    on: &["listen-etcd", "etcdserverpb.KV/Range"],
    run: unread,
}];

fn unread(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 32, |arena, _| async move {
        let link = Link::with_window(arena.doors.etcd, NARROW).await?;
        hold(&arena, &link, 100, |number| {
            let link = &link;
            async move { ask_and_leave(link, RANGE, &list(number)).await }
        })
        .await
    })
}

/// Some are too large to be answered, which is known only once they were read.
fn list(number: usize) -> RangeRequest {
    match number % 4 {
        0 => everything(),
        1 => RangeRequest {
            keys_only: true,
            sort_order: SortOrder::Descend.into(),
            sort_target: SortTarget::Mod.into(),
            ..everything()
        },
        2 => RangeRequest {
            key: LARGE.into(),
            range_end: end_of(LARGE),
            limit: i64::from(LARGE_KEYS) - 8,
            serializable: true,
            ..RangeRequest::default()
        },
        _ => RangeRequest {
            key: MANY.into(),
            range_end: end_of(MANY),
            ..RangeRequest::default()
        },
    }
}
