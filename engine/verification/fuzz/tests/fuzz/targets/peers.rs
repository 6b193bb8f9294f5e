//! What a peer sends: who it says it is, messages, and snapshots.

use bytes::Bytes;
use dengine_kv::{CommandVersion, Member as ClusterMember, Membership, store::MemoryStore};
use dengine_log::{Position, memory::MemoryDisk};
use dengine_protocol::checks::{
    peer,
    snapshot::{self as wire, Piece},
};
use dengine_protocol::peer::{
    Batch, Frame, Hello, SnapshotChunk, SnapshotEnd, SnapshotFrame, SnapshotOffer, frame,
    snapshot_frame::Kind,
};
use dengine_raft::consensus::Event;
use dengine_raft::consensus::snapshot_position;
use dengine_snapshot::{Checkpoint as _, Manifest, Outgoing, SnapshotId, Staging, describe};
use dengine_types::{ClusterId, MemberId, Moment};
use prost::Message as _;
use tonic::Status;

use super::{
    consensus::{Heard, ME, Member, heard},
    joined,
    kv::filled,
    parts, received,
    snapshot::mend,
    words,
};
use crate::driver::Target;

/// The frames of a stream, with their lengths before them; one without any bytes is a tick.
pub(crate) const FRAMES: Target = Target {
    name: "",
    run: |input| frames(input).unwrap_or_else(|status| told(&status)),
    seeds: || {
        let from = |hello| exchange(&hello_of(MemberId(hello)), MemberId(2));
        vec![from(2), from(3), from(u64::MAX - 1), hollow()]
    },
    memory: (256 << 10, 16),
};

/// The first byte says whether the manifest's checksum is mended; then come the frames of a stream.
pub(crate) const SNAPSHOT: Target = Target {
    name: "",
    run: |input| snapshot(input).unwrap_or_else(|status| told(&status)),
    seeds: || [0, 1].map(sending).into(),
    memory: (4 << 20, 128),
};

const CLUSTER: ClusterId = ClusterId(7);
/// What a receiver would take at most.
const BYTES_MAX: u64 = 1 << 20;
/// What a peer is told has to fit into the headers of a response.
const MESSAGE_BYTES_MAX: usize = 2048;

fn told(status: &Status) -> String {
    let message = status.message();
    assert!(message.len() <= MESSAGE_BYTES_MAX, "{}", message.len());
    format!("{:?} {}", status.code(), words(&message))
}

fn frames(input: &[u8]) -> Result<String, Status> {
    let mut parts = parts(input);
    let hello = peer::hello(parts.next().map(received::<Frame>).transpose()?)?;
    let membership = membership();
    let first = peer::admit(CLUSTER, ME, &membership, &hello)?;
    assert!(CommandVersion::ALL.contains(&first.reads_max));
    let mut member = Member::new(ME);
    let (mut taken, mut refused, mut now) = (0, String::new(), 0);
    for bytes in parts {
        now += 1_000_000;
        member.consensus.observe(Moment(now));
        let mut events = vec![Event::Tick];
        if !bytes.is_empty() {
            let from = peer::admit(CLUSTER, ME, &membership, &hello)?.member;
            let batch = peer::batch(received(bytes)?)?;
            let event = |bytes| Event::Message { from, bytes };
            events = batch.messages.into_iter().map(event).collect();
        }
        for event in events {
            match member.consensus.step(event) {
                Ok(()) => taken += 1,
                Err(error) => refused = words(&error),
            }
            if member.settle().is_none() {
                return Ok("installed a snapshot".to_owned());
            }
        }
        assert!(member.consensus.held_messages() < 10_000);
    }
    let commits = member.consensus.commit_index().0 > 0;
    Ok(format!(
        "{first:?} commits {commits} taken {taken}, {refused}"
    ))
}

fn snapshot(input: &[u8]) -> Result<String, Status> {
    let Some((mode, rest)) = input.split_first() else {
        return Ok("nothing".to_owned());
    };
    let mut parts = parts(rest);
    let mut next = || {
        let frame = parts.next().map(received::<SnapshotFrame>).transpose()?;
        frame.ok_or_else(|| Status::cancelled("the sender ended the stream early"))
    };
    let hello = wire::hello(Some(next()?))?;
    let from = peer::admit(CLUSTER, ME, &membership(), &hello)?.member;
    let offer = wire::offer(next()?)?;
    let mut manifest = offer.manifest.to_vec();
    if mode % 2 == 1 {
        mend(&mut manifest);
    }
    let refused = |error| wire::status(&error);
    let manifest = Manifest::decode(&manifest).map_err(refused)?;
    let mut staging = Staging::open(MemoryDisk::new(), CLUSTER, BYTES_MAX).map_err(refused)?;
    let (last, answers) = (
        manifest.last(),
        manifest.answers(snapshot_position(&offer.message)),
    );
    staging.begin(manifest).map_err(refused)?;
    while let Piece::Chunk(chunk) = wire::piece(next()?)? {
        staging.receive(&chunk).map_err(refused)?;
    }
    let look = |disk: &MemoryDisk| Ok(describe::<MemoryStore, _>(disk)?.0);
    staging.finish(look).map_err(refused)?;
    assert!(staging.holds(last), "what was finished is here");
    let mut member = Member::new(ME);
    let message = offer.message;
    if !answers {
        return Ok("received, and the message is of another one".to_owned());
    }
    let stepped = member.consensus.step(Event::Snapshot { from, message });
    let installs = member.settle().is_none();
    Ok(format!("received, {} {installs}", words(&stepped)))
}

/// Members 1, 2 and 3; 4 was removed.
fn membership() -> Membership {
    let member = |id: u64| ClusterMember {
        id: MemberId(id),
        name: format!("m{id}"),
        peer_address: format!("m{id}:1"),
        client_address: format!("m{id}:2"),
        folder_id: format!("f{id}"),
        voter: true,
    };
    Membership {
        cluster_id: CLUSTER,
        members: [1, 2, 3].map(|id| (MemberId(id), member(id))).into(),
        last_member_id: MemberId(4),
    }
}

fn hello_of(from: MemberId) -> Hello {
    Hello {
        protocol: peer::PROTOCOL,
        cluster_id: CLUSTER.0,
        from: from.0,
        to: ME.0,
        peer_address: format!("m{from}:1"),
        folder_id: format!("f{from}"),
        commands_read_max: peer::commands_read_max(),
    }
}

/// What member 1 hears from `leader` in a cluster where all is well, behind a Hello that may be somebody else's.
fn exchange(hello: &Hello, leader: MemberId) -> Vec<u8> {
    let said = |kind| Frame { kind: Some(kind) }.encode_to_vec();
    let mut frames = vec![said(frame::Kind::Hello(hello.clone()))];
    for event in heard(leader) {
        match event {
            Heard::Tick => frames.push(Vec::new()),
            Heard::Message { from, bytes } if from == leader => {
                let messages = vec![bytes];
                frames.push(said(frame::Kind::Batch(Batch { messages })));
            }
            Heard::Message { .. } | Heard::Proposal => {}
        }
    }
    joined(frames)
}

/// A Hello, and a frame of as many messages of no bytes as an input holds.
fn hollow() -> Vec<u8> {
    let said = |kind| Frame { kind: Some(kind) }.encode_to_vec();
    let messages = vec![Bytes::new(); 32_000];
    let hello = said(frame::Kind::Hello(hello_of(MemberId(2))));
    joined([hello, said(frame::Kind::Batch(Batch { messages }))])
}

/// What of a Raft message goes with a snapshot. The numbers are those of the `raft` crate's `eraftpb.proto`.
mod raft {
    use super::{ME, MemberId, Position};

    const MSG_SNAPSHOT: i32 = 7;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Message {
        #[prost(int32, tag = "1")]
        msg_type: i32,
        #[prost(uint64, tag = "2")]
        to: u64,
        #[prost(uint64, tag = "3")]
        from: u64,
        #[prost(uint64, tag = "4")]
        term: u64,
        #[prost(message, optional, tag = "9")]
        snapshot: Option<Snapshot>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Snapshot {
        #[prost(message, optional, tag = "2")]
        metadata: Option<Metadata>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Metadata {
        #[prost(message, optional, tag = "1")]
        conf_state: Option<ConfState>,
        #[prost(uint64, tag = "2")]
        index: u64,
        #[prost(uint64, tag = "3")]
        term: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct ConfState {
        #[prost(uint64, repeated, tag = "1")]
        voters: Vec<u64>,
    }

    /// The message of a leader whose snapshot ends there.
    pub(super) fn speaks_of(leader: MemberId, last: Position) -> Message {
        let metadata = Metadata {
            conf_state: Some(ConfState {
                voters: vec![1, 2, 3],
            }),
            index: last.index.0,
            term: last.term.0,
        };
        Message {
            msg_type: MSG_SNAPSHOT,
            to: ME.0,
            from: leader.0,
            term: last.term.0,
            snapshot: Some(Snapshot {
                metadata: Some(metadata),
            }),
        }
    }
}

/// Otherwise nothing behind the refusals is ever tried.
#[test]
fn a_snapshot_that_is_as_it_should_be_is_installed() {
    for mode in [0, 1] {
        assert_eq!((SNAPSHOT.run)(&sending(mode)), "received, Ok(()) true");
    }
}

/// A snapshot of a small state.
fn sending(mode: u8) -> Vec<u8> {
    let leader = MemberId(2);
    let disk = MemoryDisk::new();
    filled()
        .flusher()
        .with_store(|store| store.checkpoint(&disk))
        .unwrap();
    let (last, _) = describe::<MemoryStore, _>(&disk).unwrap();
    let outgoing = Outgoing::new(disk, CLUSTER, SnapshotId(3), last).unwrap();
    let offer = SnapshotOffer {
        manifest: Bytes::from(outgoing.manifest().encode()),
        message: Bytes::from(raft::speaks_of(leader, last).encode_to_vec()),
    };
    let mut kinds = vec![Kind::Hello(hello_of(leader)), Kind::Offer(offer)];
    let mut staging = Staging::open(MemoryDisk::new(), CLUSTER, BYTES_MAX).unwrap();
    let mut place = staging.begin(outgoing.manifest().clone()).unwrap();
    while let Some(chunk) = outgoing.read(place, 512).unwrap() {
        place = outgoing.after(&chunk);
        kinds.push(Kind::Chunk(SnapshotChunk {
            file: chunk.place.file,
            offset: chunk.place.offset,
            content: chunk.bytes,
            crc: chunk.crc,
        }));
    }
    kinds.push(Kind::End(SnapshotEnd {}));
    let frames = kinds
        .into_iter()
        .map(|kind| SnapshotFrame { kind: Some(kind) }.encode_to_vec());
    let mut input = vec![mode];
    input.extend(joined(frames));
    input
}
