//! Writes that cost the member more than their caller. All under `hostile/`, and so many bytes a
//! second that the disk does not fill up: that it does is another test's business.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use dengine_protocol::v1::compare_and_swap_request::Expected;
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::v1::{
    AskLeaseRequest, BatchRequest, CompactRequest, CompareAndSwapRequest, DeleteRequest,
    ForwardRequest, GetRequest, GetResponse, Operation, PipelineRequest, PipelinedCall, PutRequest,
    operation,
};
use futures::future::{BoxFuture, try_join_all};
use tokio::time::{MissedTickBehavior, interval};

use super::{Arena, Attacker, LARGE_KEYS, MANY, crowd, end_of, hold, large_key};
use crate::link::{Link, framed, read_some};

pub(super) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "small-writes",
        does: "frames of 1,000 puts, as fast as they are answered",
        on: &["dengine.v1.Kv/Pipeline", "dengine.v1.Kv/Put"],
        run: small,
    },
    Attacker {
        name: "unary-writes",
        does: "1,024 puts and swaps of one key at a time, by a call each",
        on: &["dengine.v1.Kv/Put", "dengine.v1.Kv/CompareAndSwap"],
        run: unary,
    },
    Attacker {
        name: "large-writes",
        does: "puts of 1.5 MiB, 48 MiB a second",
        on: &["dengine.v1.Kv/Put"],
        run: large,
    },
    Attacker {
        name: "bursts-of-writes",
        does: "64 puts of 1.5 MiB at once, every two seconds: more than may wait",
        on: &["dengine.v1.Kv/Put"],
        run: bursts,
    },
    Attacker {
        name: "previous-values",
        does: "batches of puts that want the previous values of 48 large keys, and that are \
            refused for what they read in the end, so that these stay large",
        on: &["dengine.v1.Kv/Batch"],
        run: previous,
    },
    Attacker {
        name: "expiring-keys",
        does: "frames of 1,000 puts that live for a millisecond",
        on: &["dengine.v1.Kv/Pipeline", "dengine.v1.Kv/Put"],
        run: expiring,
    },
    Attacker {
        name: "range-deletes",
        does: "deletes over ranges that hold nothing but what was deleted before, 256 at a time, \
            beside puts that refill them",
        on: &["dengine.v1.Kv/Delete"],
        run: deletes,
    },
    Attacker {
        name: "compactions",
        does: "compactions, each a thousand revisions behind the present",
        on: &["dengine.v1.Kv/Compact"],
        run: compactions,
    },
    Attacker {
        name: "forwarded-noise",
        does: "megabytes that are no command, passed on as a member does, a hundred at a time",
        on: &["dengine.v1.Kv/Forward"],
        run: forwarded,
    },
    Attacker {
        name: "unknown-leases",
        does: "questions about leases that nobody was granted, and attempts to keep them alive",
        on: &["dengine.v1.Kv/AskLease"],
        run: unknown_leases,
    },
];

const PUT: &str = "/dengine.v1.Kv/Put";

fn put(key: String, value: Bytes, ttl_ms: u64) -> PutRequest {
    PutRequest {
        key: key.into(),
        value,
        ttl_ms,
        ..PutRequest::default()
    }
}

fn small(arena: Arena) -> BoxFuture<'static, ()> {
    frames_of_puts(arena, 0)
}

fn expiring(arena: Arena) -> BoxFuture<'static, ()> {
    frames_of_puts(arena, 1)
}

/// One frame of a thousand under way on each of 16 connections.
fn frames_of_puts(arena: Arena, ttl_ms: u64) -> BoxFuture<'static, ()> {
    crowd(arena, 16, move |arena, number| async move {
        let call = |id| PipelinedCall {
            id,
            call: Some(Call::Put(put(
                format!("hostile/{number}/{id}"),
                Bytes::from_static(&[7; 100]),
                ttl_ms,
            ))),
            ..PipelinedCall::default()
        };
        let frame = framed(&PipelineRequest {
            calls: (0..1_000).map(call).collect(),
            ..PipelineRequest::default()
        });
        let link = Link::open(arena.doors.client).await?;
        let mut call = link.begin("/dengine.v1.Kv/Pipeline").await?;
        call.body.send_data(frame.clone(), false)?;
        let (mut requests, mut answers) = call.answers().await?;
        loop {
            arena.tally.did(1_000);
            // An answer takes at least ten bytes.
            let mut left = 10_000_usize;
            while left > 0 {
                let read = read_some(&mut answers).await?;
                anyhow::ensure!(read > 0, "the stream ended");
                left = left.saturating_sub(read);
            }
            requests.send_data(frame.clone(), false)?;
        }
    })
}

fn unary(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        hold(&arena, &link, 128, |number| {
            let link = &link;
            async move {
                let key = "hostile/one".to_owned();
                if number % 2 == 0 {
                    return link.told(PUT, &put(key, "x".into(), 0)).await;
                }
                let swap = CompareAndSwapRequest {
                    key: key.into(),
                    expected: Some(Expected::CurrentValue("x".into())),
                    value: "x".into(),
                    ..CompareAndSwapRequest::default()
                };
                link.told("/dengine.v1.Kv/CompareAndSwap", &swap).await
            }
        })
        .await
    })
}

fn large(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 4, |arena, number| async move {
        let link = Link::open(arena.doors.client).await?;
        let value = Bytes::from(vec![7; 3 << 19]);
        // Eight a second of each of four.
        let mut turns = interval(Duration::from_millis(125));
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for n in 0_u64.. {
            turns.tick().await;
            let key = format!("hostile/{number}/{}", n % 16);
            arena.tally.did(1);
            arena
                .tally
                .told(&link.told(PUT, &put(key, value.clone(), 0)).await?);
        }
        Ok(())
    })
}

fn bursts(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, number| async move {
        let link = Link::open(arena.doors.client).await?;
        let value = Bytes::from(vec![7; 3 << 19]);
        let mut turns = interval(Duration::from_secs(2));
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            let puts = (0..8).map(|n| {
                let put = put(format!("hostile/{number}/{n}"), value.clone(), 0);
                let link = &link;
                async move { link.told(PUT, &put).await }
            });
            for told in try_join_all(puts).await? {
                arena.tally.did(1);
                arena.tally.told(&told);
            }
        }
    })
}

fn previous(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        let batch = previous_of_all();
        hold(&arena, &link, 16, |_| {
            link.told("/dengine.v1.Kv/Batch", &batch)
        })
        .await
    })
}

/// Puts each large key, and then counts more keys than one command may visit.
fn previous_of_all() -> BatchRequest {
    let put = |number| {
        operation::Operation::Put(operation::Put {
            key: large_key(number),
            value: "small".into(),
            prev_kv: true,
            ttl_ms: 0,
        })
    };
    let count = operation::Operation::Get(operation::Get {
        key: MANY.into(),
        range_end: end_of(MANY),
        count_only: true,
        ..operation::Get::default()
    });
    let all = (0..LARGE_KEYS as usize).map(put);
    let all = all.chain([count.clone(), count]);
    BatchRequest {
        then: all
            .map(|it| Operation {
                operation: Some(it),
            })
            .collect(),
        ..BatchRequest::default()
    }
}

fn deletes(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, number| async move {
        let link = Link::open(arena.doors.client).await?;
        let prefix = format!("hostile/{number}/");
        let delete = DeleteRequest {
            key: prefix.clone().into(),
            range_end: end_of(&prefix),
            prev_kv: true,
            ..DeleteRequest::default()
        };
        hold(&arena, &link, 32, |n| {
            let (link, delete, prefix) = (&link, delete.clone(), &prefix);
            async move {
                if n % 32 < 16 {
                    let one = put(format!("{prefix}{n}"), Bytes::from_static(&[7; 1000]), 0);
                    return link.told(PUT, &one).await;
                }
                link.told("/dengine.v1.Kv/Delete", &delete).await
            }
        })
        .await
    })
}

fn compactions(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        hold(&arena, &link, 16, |_| compact_behind(&link)).await
    })
}

fn unknown_leases(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        let link = &link;
        hold(&arena, link, 64, |number| async move {
            let ask = AskLeaseRequest {
                lease: i64::try_from(number)? - 32,
                keep_alive: number % 2 == 0,
            };
            link.told("/dengine.v1.Kv/AskLease", &ask).await
        })
        .await
    })
}

fn forwarded(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 4, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        // The version of a command, and a tag that no field has.
        let command = Bytes::from([&[3][..], &[0xff; 1 << 20]].concat());
        let noise = &ForwardRequest { command };
        hold(&arena, &link, 25, |_| {
            link.told("/dengine.v1.Kv/Forward", noise)
        })
        .await
    })
}

async fn compact_behind(link: &Link) -> Result<String> {
    let any = GetRequest {
        key: "hostile/any".into(),
        ..GetRequest::default()
    };
    let present: GetResponse = link.answer("/dengine.v1.Kv/Get", &any).await?;
    let present = present.header.unwrap_or_default().revision;
    let compact = CompactRequest {
        revision: present.saturating_sub(1_000),
        ..CompactRequest::default()
    };
    link.told("/dengine.v1.Kv/Compact", &compact).await
}
