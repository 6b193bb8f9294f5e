//! Answers that are a thousand times as large as what was asked, and that nobody reads.

use std::time::Duration;

use anyhow::Result;
use dengine_protocol::v1::compare_and_swap_request::Expected;
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::v1::{
    BatchRequest, CompareAndSwapRequest, Consistency, GetRequest, Operation, PipelineRequest,
    PipelinedCall, PutRequest, RangeRequest, operation,
};
use futures::future::BoxFuture;
use prost::Message;
use tokio::time::sleep;

use super::{Arena, Attacker, LARGE, LARGE_KEYS, crowd, end_of, hold, large_key};
use crate::link::{Link, framed, read_some};

const SMALL_KEY: &str = "hostile/small";
/// Of each unread answer a byte may be sent.
const NARROW: u32 = 1;
/// Longer than a member is patient.
const UNREAD: Duration = Duration::from_secs(20);

pub(super) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "unread-gets",
        does: "3,200 reads of 1 MiB whose answers are not read, begun again whenever they are \
            given up",
        on: &["dengine.v1.Kv/Get"],
        run: unread_gets,
    },
    Attacker {
        name: "unread-small-gets",
        does: "128,000 reads of 4 kB at a time, too small to be counted by their bytes, whose \
            answers are not read",
        on: &["dengine.v1.Kv/Get"],
        run: unread_small_gets,
    },
    Attacker {
        name: "unread-ranges",
        does: "the same with ranges of 2 MiB, and with batches that read 48 MiB",
        on: &["dengine.v1.Kv/Range", "dengine.v1.Kv/Batch"],
        run: unread_ranges,
    },
    Attacker {
        name: "unread-swaps",
        does: "the same with swaps that fail and are told the 1 MiB that the key holds",
        on: &["dengine.v1.Kv/CompareAndSwap"],
        run: unread_swaps,
    },
    Attacker {
        name: "unread-pipelines",
        does: "streams of frames with 64 reads of 1 MiB each, which nobody reads",
        on: &["dengine.v1.Kv/Pipeline"],
        run: unread_pipelines,
    },
    Attacker {
        name: "swap-storm",
        does: "streams of frames with 200 swaps that fail on a key of 1 MiB, all of whose answers \
            are read",
        on: &["dengine.v1.Kv/Pipeline", "dengine.v1.Kv/CompareAndSwap"],
        run: swap_storm,
    },
];

fn unread_gets(arena: Arena) -> BoxFuture<'static, ()> {
    unread(arena, "/dengine.v1.Kv/Get", |number| {
        get(number).encode_to_vec()
    })
}

fn unread_small_gets(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 128, |arena, _| async move {
        let link = Link::with_window(arena.doors.client, NARROW).await?;
        let put = PutRequest {
            key: SMALL_KEY.into(),
            value: vec![7; 4_000].into(),
            ..PutRequest::default()
        };
        arena
            .tally
            .told(&link.told("/dengine.v1.Kv/Put", &put).await?);
        hold(&arena, &link, 1_000, |_| async {
            let get = GetRequest {
                key: SMALL_KEY.into(),
                ..GetRequest::default()
            };
            let get = get.encode_to_vec();
            let call = link.ask_encoded("/dengine.v1.Kv/Get", &get).await?;
            let (_request, answer) = call.answers().await?;
            sleep(UNREAD).await;
            drop(answer);
            Ok("a small answer, kept for 20 s".to_owned())
        })
        .await
    })
}

fn unread_ranges(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 32, |arena, number| async move {
        if number % 2 == 0 {
            unread_on_one(arena, "/dengine.v1.Kv/Range", |_| range().encode_to_vec()).await
        } else {
            unread_on_one(arena, "/dengine.v1.Kv/Batch", |_| batch().encode_to_vec()).await
        }
    })
}

fn unread_swaps(arena: Arena) -> BoxFuture<'static, ()> {
    let path = "/dengine.v1.Kv/CompareAndSwap";
    unread(arena, path, |number| swap(number).encode_to_vec())
}

fn unread(
    arena: Arena,
    path: &'static str,
    request: fn(usize) -> Vec<u8>,
) -> BoxFuture<'static, ()> {
    crowd(arena, 32, move |arena, _| {
        unread_on_one(arena, path, request)
    })
}

/// A hundred at a time on one connection.
async fn unread_on_one(
    arena: Arena,
    path: &'static str,
    request: fn(usize) -> Vec<u8>,
) -> Result<()> {
    let link = Link::with_window(arena.doors.client, NARROW).await?;
    hold(&arena, &link, 100, |number| {
        let link = &link;
        async move {
            let call = link.ask_encoded(path, &request(number)).await?;
            let (_request, answer) = call.answers().await?;
            sleep(UNREAD).await;
            drop(answer);
            Ok("an answer, kept for 20 s".to_owned())
        }
    })
    .await
}

fn unread_pipelines(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 64, |arena, _| async move {
        let link = Link::with_window(arena.doors.client, NARROW).await?;
        hold(&arena, &link, 20, |number| {
            let link = &link;
            async move {
                let mut call = link.begin("/dengine.v1.Kv/Pipeline").await?;
                for frame in 0..16 {
                    let gets = (0..64).map(|n| Call::Get(get(number + frame * 64 + n)));
                    call.body.send_data(framed(&calls(gets)), false)?;
                }
                let (_request, answers) = call.answers().await?;
                sleep(UNREAD).await;
                drop(answers);
                Ok("answers, kept for 20 s".to_owned())
            }
        })
        .await
    })
}

fn swap_storm(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, number| async move {
        let link = Link::open(arena.doors.client).await?;
        let swaps = (0..200).map(|_| Call::CompareAndSwap(swap(number)));
        let frame = framed(&calls(swaps));
        let mut call = link.begin("/dengine.v1.Kv/Pipeline").await?;
        call.body.send_data(frame.clone(), false)?;
        let (mut requests, mut answers) = call.answers().await?;
        loop {
            arena.tally.did(200);
            requests.send_data(frame.clone(), false)?;
            // As many bytes as a frame of small answers has at least.
            for _ in 0..64 {
                anyhow::ensure!(read_some(&mut answers).await? > 0, "the stream ended");
            }
        }
    })
}

fn calls(calls: impl Iterator<Item = Call>) -> PipelineRequest {
    let call = |(id, call)| PipelinedCall {
        id,
        call: Some(call),
        ..PipelinedCall::default()
    };
    PipelineRequest {
        calls: (0..).zip(calls).map(call).collect(),
        ..PipelineRequest::default()
    }
}

fn get(number: usize) -> GetRequest {
    GetRequest {
        key: large_key(number),
        consistency: Consistency::Eventual.into(),
        ..GetRequest::default()
    }
}

fn range() -> RangeRequest {
    RangeRequest {
        key: LARGE.into(),
        range_end: end_of(LARGE),
        consistency: Consistency::Eventual.into(),
        ..RangeRequest::default()
    }
}

/// Reads each large value, as a step of its own.
fn batch() -> BatchRequest {
    let read = |number| Operation {
        operation: Some(operation::Operation::Get(operation::Get {
            key: large_key(number),
            ..operation::Get::default()
        })),
    };
    BatchRequest {
        then: (0..LARGE_KEYS as usize).map(read).collect(),
        ..BatchRequest::default()
    }
}

/// Fails, for the key exists.
fn swap(number: usize) -> CompareAndSwapRequest {
    CompareAndSwapRequest {
        key: large_key(number),
        expected: Some(Expected::ModRevision(0)),
        value: "never".into(),
        ..CompareAndSwapRequest::default()
    }
}
