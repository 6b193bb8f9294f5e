//! Reads that cost the member more than their caller.

use anyhow::Result;
use bytes::Bytes;
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::v1::{
    BatchRequest, Compare, Consistency, GetRequest, Operation, PipelineRequest, PipelinedCall,
    Position, RangeRequest, compare, operation,
};
use futures::future::BoxFuture;
use prost::Message;

use super::{Arena, Attacker, MANY, TO_THE_END, crowd, end_of, hold, one_of_many};
use crate::link::{Link, framed, read_some};

pub(super) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "scans",
        does: "ranges over everything, 512 at a time, whose answers are read",
        on: &["dengine.v1.Kv/Range"],
        run: scans,
    },
    Attacker {
        name: "counts",
        does: "512 at a time that count all keys",
        on: &["dengine.v1.Kv/Range"],
        run: counts,
    },
    Attacker {
        name: "past-scans",
        does: "ranges over everything as it was before, 512 at a time",
        on: &["dengine.v1.Kv/Range", "dengine.v1.Kv/Get"],
        run: past_scans,
    },
    Attacker {
        name: "comparing-batches",
        does: "batches that compare and count all keys 128 times, and write nothing",
        on: &["dengine.v1.Kv/Batch"],
        run: comparing_batches,
    },
    Attacker {
        name: "writing-comparing-batches",
        does: "the same, of which one comparison over 100,000 keys is allowed, and a write follows",
        on: &["dengine.v1.Kv/Batch"],
        run: writing_batches,
    },
    Attacker {
        name: "linearizable-reads",
        does: "4,096 reads of a key at a time, by a call each",
        on: &["dengine.v1.Kv/Get"],
        run: linearizable,
    },
    Attacker {
        name: "read-pipelines",
        does: "frames of 4,096 reads of a key, as fast as they are answered",
        on: &["dengine.v1.Kv/Pipeline", "dengine.v1.Kv/Get"],
        run: pipelines,
    },
    Attacker {
        name: "future-reads",
        does: "20,000 reads that wait for a revision that never comes",
        on: &["dengine.v1.Kv/Get", "dengine.v1.Kv/Range"],
        run: future_reads,
    },
    Attacker {
        name: "padded-reads",
        does: "800 of these, each with a MiB that nobody asked for",
        on: &["dengine.v1.Kv/Get"],
        run: padded_reads,
    },
    Attacker {
        name: "hollow-batches",
        does: "batches of half a million operations without anything in them",
        on: &["dengine.v1.Kv/Batch"],
        run: hollow_batches,
    },
    Attacker {
        name: "hollow-frames",
        does: "frames of half a million calls without anything in them",
        on: &["dengine.v1.Kv/Pipeline"],
        run: hollow_frames,
    },
];

const GET: &str = "/dengine.v1.Kv/Get";
const RANGE: &str = "/dengine.v1.Kv/Range";
const BATCH: &str = "/dengine.v1.Kv/Batch";
const PIPELINE: &str = "/dengine.v1.Kv/Pipeline";

/// The same request so many times at once on each of so many connections.
fn repeat(
    arena: Arena,
    connections: usize,
    calls: usize,
    path: &'static str,
    request: &impl Message,
) -> BoxFuture<'static, ()> {
    repeat_encoded(arena, connections, calls, path, request.encode_to_vec())
}

fn repeat_encoded(
    arena: Arena,
    connections: usize,
    calls: usize,
    path: &'static str,
    request: Vec<u8>,
) -> BoxFuture<'static, ()> {
    let request = Bytes::from(request);
    crowd(arena, connections, move |arena, _| {
        let request = request.clone();
        async move {
            let link = Link::open(arena.doors.client).await?;
            hold(&arena, &link, calls, |_| {
                let (link, request) = (&link, request.clone());
                async move { link.ask_encoded(path, &request).await?.told().await }
            })
            .await
        }
    })
}

fn everything() -> RangeRequest {
    RangeRequest {
        key: Bytes::from_static(b"\0"),
        range_end: TO_THE_END,
        consistency: Consistency::Eventual.into(),
        ..RangeRequest::default()
    }
}

fn scans(arena: Arena) -> BoxFuture<'static, ()> {
    repeat(arena, 16, 32, RANGE, &everything())
}

fn counts(arena: Arena) -> BoxFuture<'static, ()> {
    let count = RangeRequest {
        count_only: true,
        ..everything()
    };
    repeat(arena, 16, 32, RANGE, &count)
}

fn past_scans(arena: Arena) -> BoxFuture<'static, ()> {
    let past = RangeRequest {
        revision: 10,
        ..everything()
    };
    repeat(arena, 16, 32, RANGE, &past)
}

/// That all of the many keys have changed since the beginning.
fn comparison() -> Compare {
    Compare {
        key: MANY.into(),
        range_end: end_of(MANY),
        relation: compare::Relation::Greater.into(),
        target: Some(compare::Target::ModRevision(0)),
    }
}

fn comparing_batches(arena: Arena) -> BoxFuture<'static, ()> {
    let count = Operation {
        operation: Some(operation::Operation::Get(operation::Get {
            key: MANY.into(),
            range_end: end_of(MANY),
            count_only: true,
            ..operation::Get::default()
        })),
    };
    let batch = BatchRequest {
        compares: vec![comparison(); 128],
        then: vec![count; 128],
        ..BatchRequest::default()
    };
    repeat(arena, 8, 16, BATCH, &batch)
}

fn writing_batches(arena: Arena) -> BoxFuture<'static, ()> {
    let put = Operation {
        operation: Some(operation::Operation::Put(operation::Put {
            key: "hostile/compared".into(),
            value: "x".into(),
            ..operation::Put::default()
        })),
    };
    let batch = BatchRequest {
        compares: vec![comparison()],
        then: vec![put],
        ..BatchRequest::default()
    };
    repeat(arena, 8, 16, BATCH, &batch)
}

fn get(key: Bytes) -> GetRequest {
    GetRequest {
        key,
        ..GetRequest::default()
    }
}

fn linearizable(arena: Arena) -> BoxFuture<'static, ()> {
    repeat(arena, 8, 512, GET, &get(one_of_many(1)))
}

fn pipelines(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 16, |arena, _| async move {
        let call = |id| PipelinedCall {
            id,
            call: Some(Call::Get(get(one_of_many(id as usize)))),
            ..PipelinedCall::default()
        };
        let frame = framed(&PipelineRequest {
            calls: (0..4096).map(call).collect(),
            ..PipelineRequest::default()
        });
        let link = Link::open(arena.doors.client).await?;
        let mut call = link.begin(PIPELINE).await?;
        call.body.send_data(frame.clone(), false)?;
        let (mut requests, mut answers) = call.answers().await?;
        loop {
            arena.tally.did(4096);
            requests.send_data(frame.clone(), false)?;
            read_bytes(&mut answers, frame.len()).await?;
        }
    })
}

/// At least so many: answers are no smaller than what was asked.
async fn read_bytes(answers: &mut h2::RecvStream, bytes: usize) -> Result<()> {
    let mut left = bytes;
    while left > 0 {
        let read = read_some(answers).await?;
        anyhow::ensure!(read > 0, "the stream ended");
        left = left.saturating_sub(read);
    }
    Ok(())
}

fn future_reads(arena: Arena) -> BoxFuture<'static, ()> {
    let read = future_read(&arena);
    repeat(arena, 20, 1_000, GET, &read)
}

fn future_read(arena: &Arena) -> GetRequest {
    let position = Position {
        cluster_id: arena.lead.cluster,
        revision: u64::MAX,
    };
    GetRequest {
        consistency: Consistency::Session.into(),
        at_least: Some(position),
        ..get(one_of_many(1))
    }
}

/// Of a field that is sent twice, the second one counts.
fn padded_reads(arena: Arena) -> BoxFuture<'static, ()> {
    let padding = get(vec![7; 1 << 20].into());
    let read = [padding.encode_to_vec(), future_read(&arena).encode_to_vec()].concat();
    repeat_encoded(arena, 8, 100, GET, read)
}

fn hollow_batches(arena: Arena) -> BoxFuture<'static, ()> {
    repeat_encoded(arena, 16, 4, BATCH, [0x12, 0].repeat(1 << 19))
}

fn hollow_frames(arena: Arena) -> BoxFuture<'static, ()> {
    repeat_encoded(arena, 16, 4, PIPELINE, [0x0a, 0].repeat(1 << 19))
}
