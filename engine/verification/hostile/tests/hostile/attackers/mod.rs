//! Who attacks: one file for each kind. An attacker says which RPCs and ports it attacks, and a
//! test fails if one has none: see [`coverage`](crate::coverage).
//!
//! Each is bounded: in time by whoever runs it, and in connections, streams and bytes a second by
//! itself. What it did and was told goes to its [`Tally`].

mod admin;
mod answers;
mod bodies;
mod doors;
mod etcd;
mod http2;
mod neighbour;
mod peers;
mod reads;
mod sessions;
mod watches;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::task::JoinSet;

pub(crate) use neighbour::NEIGHBOUR;

use crate::link::Link;
use crate::member::{Doors, Lead};
use crate::tally::Tally;

/// One attack.
pub(crate) struct Attacker {
    pub(crate) name: &'static str,
    /// What it does, for the table.
    pub(crate) does: &'static str,
    /// RPCs by their paths, without the slash, and ports by their settings.
    pub(crate) on: &'static [&'static str],
    /// Goes on until it is dropped.
    pub(crate) run: fn(Arena) -> BoxFuture<'static, ()>,
}

/// Of each kind.
const KINDS: &[&[Attacker]] = &[
    doors::ATTACKERS,
    http2::ATTACKERS,
    bodies::ATTACKERS,
    answers::ATTACKERS,
    reads::ATTACKERS,
    writes::ATTACKERS,
    watches::ATTACKERS,
    sessions::ATTACKERS,
    admin::ATTACKERS,
    peers::ATTACKERS,
    etcd::watches::ATTACKERS,
    etcd::ranges::ATTACKERS,
    etcd::contests::ATTACKERS,
    etcd::leases::ATTACKERS,
    etcd::txns::ATTACKERS,
    etcd::resets::ATTACKERS,
    etcd::others::ATTACKERS,
];

pub(crate) fn all() -> impl Iterator<Item = &'static Attacker> {
    KINDS.iter().copied().flatten()
}

/// The one of that name, or the neighbour.
pub(crate) fn named(name: &str) -> Option<&'static Attacker> {
    all().chain([&NEIGHBOUR]).find(|it| it.name == name)
}

/// What an attacker knows of the member, which is no secret.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    pub(crate) doors: Doors,
    pub(crate) lead: Lead,
    pub(crate) tally: Tally,
}

/// After it was broken off, an attacker waits so long before the next try.
const PAUSE: Duration = Duration::from_millis(20);

/// What the member holds when it is attacked: so many keys of a byte under [`MANY`],
pub(crate) const MANY_KEYS: u32 = 100_000;
/// and so many of [`LARGE_BYTES`] under [`LARGE`].
pub(crate) const LARGE_KEYS: u32 = 48;
pub(crate) const LARGE_BYTES: usize = 1 << 20;
pub(crate) const MANY: &str = "many/";
pub(crate) const LARGE: &str = "large/";

/// The `n`th of the keys with large values.
pub(crate) fn large_key(n: usize) -> Bytes {
    format!("{LARGE}{:03}", n % LARGE_KEYS as usize).into()
}

/// The `n`th of the many.
pub(crate) fn one_of_many(n: usize) -> Bytes {
    format!("{MANY}{:06}", n % MANY_KEYS as usize).into()
}

/// The key behind all that begin with `prefix`, which does not end in the last byte.
pub(crate) fn end_of(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().expect("a prefix has a byte") += 1;
    end.into()
}

/// As the end of a range: to the last key.
pub(crate) const TO_THE_END: Bytes = Bytes::from_static(&[0]);

/// So many of the attacker at once, each of which begins again whenever it was broken off.
fn crowd<F>(
    arena: Arena,
    count: usize,
    one: impl Fn(Arena, usize) -> F + Send + Sync + 'static,
) -> BoxFuture<'static, ()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let one = Arc::new(one);
    Box::pin(async move {
        let mut crowd = JoinSet::new();
        for number in 0..count {
            let (arena, one) = (arena.clone(), Arc::clone(&one));
            crowd.spawn(async move {
                loop {
                    if let Err(error) = one(arena.clone(), number).await {
                        arena.tally.told(&format!("{error:#}"));
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        while crowd.join_next().await.is_some() {}
    })
}

/// Has so many calls under way on a connection, each of which is `one` with a number of its own,
/// until it breaks.
async fn hold<F>(arena: &Arena, link: &Link, calls: usize, one: impl Fn(usize) -> F) -> Result<()>
where
    F: Future<Output = Result<String>>,
{
    let mut held = FuturesUnordered::new();
    let mut begun = 0;
    while !link.is_over() {
        while held.len() < calls {
            held.push(one(begun));
            begun += 1;
            arena.tally.did(1);
        }
        if let Some(told) = held.next().await {
            arena.tally.told(&told?);
        }
    }
    anyhow::bail!("the connection ended")
}
