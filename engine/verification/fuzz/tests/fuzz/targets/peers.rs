//! What a peer sends: who it says it is, messages, and snapshots.

use bytes::Bytes;
use dengine_kv::store::MemoryStore;
use dengine_kv::{CommandVersion, Member as ClusterMember, Membership};
use dengine_log::Position;
use dengine_log::memory::MemoryDisk;
use dengine_protocol::checks::peer;
use dengine_protocol::checks::snapshot::{self as wire, Piece};
use dengine_protocol::peer::snapshot_frame::Kind;
use dengine_protocol::peer::{
    Batch, Frame, Hello, SnapshotChunk, SnapshotEnd, SnapshotFrame, SnapshotOffer, frame,
};
use dengine_raft::consensus::{Consensus, snapshot_position};
use dengine_raft::peer_frames::{self, Decoder, FrameError, Kind as FrameKind};
use dengine_snapshot::{Checkpoint as _, Manifest, Outgoing, SnapshotId, Staging, describe};
use dengine_types::{ClusterId, MemberId, Moment};
use prost::Message as _;
use tonic::Status;

use super::consensus::{ME, Member, Reached, reaching};
use super::kv::filled;
use super::snapshot::with_checksum;
use super::{assert_fits, joined, parts, received};
use crate::driver::Target;

/// The frames of a stream, with their lengths before them; one without any bytes is a tick.
pub(crate) const FRAMES: Target = Target {
    run: |input| assert_answerable(frames(input)),
    seeds: || {
        let from = |hello| exchange(&hello_of(MemberId(hello)), MemberId(2));
        vec![from(2), from(3), from(u64::MAX - 1), empty_messages()]
    },
    memory: (256 << 10, 16),
};

/// The same as one stream of bytes: the first says into what pieces it is cut, and whether its
/// checksums are repaired.
pub(crate) const STREAM: Target = Target {
    run: |input| assert_answerable(stream(input)),
    seeds: || {
        let from = |id| framed(&exchange(&hello_of(MemberId(id)), MemberId(2)));
        vec![from(2), from(3), framed(&empty_messages())]
    },
    memory: (256 << 10, 16),
};

/// The first byte says whether the manifest's checksum is repaired; then come the frames of a
/// stream.
pub(crate) const SNAPSHOT: Target = Target {
    run: |input| assert_answerable(snapshot(input)),
    seeds: || [0, 1].map(sending).into(),
    memory: (4 << 20, 128),
};

const CLUSTER: ClusterId = ClusterId(7);
/// What a receiver would take at most.
const BYTES_MAX: u64 = 1 << 20;
/// A message to a peer has to fit into response headers.
const MESSAGE_BYTES_MAX: usize = 2048;

fn assert_answerable<T>(answer: Result<T, Status>) {
    if let Err(status) = answer {
        assert_fits(&status, MESSAGE_BYTES_MAX);
    }
}

fn frames(input: &[u8]) -> Result<(), Status> {
    let mut parts = parts(input);
    let hello = peer::hello(parts.next().map(received::<Frame>).transpose()?)?;
    let mut heard = Heard::from(hello)?;
    for bytes in parts {
        let goes_on = match bytes {
            [] => heard.tick(),
            bytes => heard.messages(&peer::batch(received(bytes)?)?.messages)?,
        };
        if !goes_on {
            break;
        }
    }
    Ok(())
}

fn stream(input: &[u8]) -> Result<(), Status> {
    let Some((mode, rest)) = input.split_first() else {
        return Ok(());
    };
    let bytes = match mode & 1 {
        0 => rest.to_vec(),
        _ => with_checksums(rest),
    };
    let wrong = |error: FrameError| Status::invalid_argument(error.to_string());
    let mut decoder = Decoder::new(BYTES_MAX as usize);
    let mut heard: Option<Heard> = None;
    for piece in bytes.chunks(usize::from(mode >> 1) + 1) {
        decoder.room().extend_from_slice(piece);
        while let Some(frame) = decoder.next_frame().map_err(wrong)? {
            let goes_on = match (&mut heard, frame.kind) {
                (None, FrameKind::Hello) => {
                    heard = Some(Heard::from(received(&frame.body)?)?);
                    true
                }
                (None, _) => return Err(peer::no_hello()),
                (Some(heard), _) => {
                    let messages = peer::messages(frame)?;
                    heard.tick() && heard.messages(&messages)?
                }
            };
            if !goes_on {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A member that a peer speaks to which has said Hello.
struct Heard {
    hello: Hello,
    membership: Membership,
    member: Member,
    now: u64,
}

impl Heard {
    fn from(hello: Hello) -> Result<Self, Status> {
        let membership = membership();
        let first = peer::admit(CLUSTER, ME, &membership, &hello)?;
        assert!(CommandVersion::ALL.contains(&first.reads_max));
        Ok(Self {
            hello,
            membership,
            member: Member::new(ME),
            now: 0,
        })
    }

    fn tick(&mut self) -> bool {
        self.pass_time();
        self.member.step(|it| drop(it.tick()))
    }

    fn messages(&mut self, messages: &[Bytes]) -> Result<bool, Status> {
        self.pass_time();
        let from = peer::admit(CLUSTER, ME, &self.membership, &self.hello)?.member;
        let mut steps = messages.iter();
        Ok(steps.all(|message| self.member.step(|it| drop(it.message(from, message)))))
    }

    fn pass_time(&mut self) {
        self.now += 1_000_000;
        self.member.driver.consensus.observe(Moment(self.now));
    }
}

/// The same stream with the checksum of each frame as it should be.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    const HEAD: usize = 9;
    let mut bytes = bytes.to_vec();
    let mut at = peer_frames::MAGIC.len();
    while let Some(head) = bytes.get(at..at + HEAD) {
        let length = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
        let Some(covered) = bytes.get(at + HEAD - 1..at + HEAD + length) else {
            break;
        };
        let crc = crc32c::crc32c(covered).to_le_bytes();
        bytes[at + 4..at + 8].copy_from_slice(&crc);
        at += HEAD + length;
    }
    bytes
}

/// Whether it was received, and installed.
fn snapshot(input: &[u8]) -> Result<bool, Status> {
    let Some((mode, rest)) = input.split_first() else {
        return Ok(false);
    };
    let mut parts = parts(rest);
    let mut next = || {
        let frame = parts.next().map(received::<SnapshotFrame>).transpose()?;
        frame.ok_or_else(|| Status::cancelled("the sender ended the stream early"))
    };
    let hello = wire::hello(Some(next()?))?;
    let from = peer::admit(CLUSTER, ME, &membership(), &hello)?.member;
    let offer = wire::offer(next()?)?;
    let manifest = with_checksum(*mode, &offer.manifest);
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
    let message = offer.message;
    let stage = |it: &mut Consensus<_>| drop(it.snapshot_staged(from, &message));
    Ok(answers && !Member::new(ME).step(stage))
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

/// What reaches member 1 from `leader` in a healthy cluster, behind a Hello that may be of another
/// member.
fn exchange(hello: &Hello, leader: MemberId) -> Vec<u8> {
    let encoded = |kind| Frame { kind: Some(kind) }.encode_to_vec();
    let mut frames = vec![encoded(frame::Kind::Hello(hello.clone()))];
    for event in reaching(leader) {
        match event {
            Reached::Tick => frames.push(Vec::new()),
            Reached::Message { from, bytes } if from == leader => {
                let messages = vec![bytes];
                frames.push(encoded(frame::Kind::Batch(Batch { messages })));
            }
            Reached::Message { .. } | Reached::Proposal => {}
        }
    }
    joined(frames)
}

/// Frames as [`FRAMES`] takes them, as a stream for [`STREAM`]; of ticks there is one a batch.
fn framed(input: &[u8]) -> Vec<u8> {
    let mut outgoing = peer_frames::Outgoing::default();
    outgoing.push_magic();
    for bytes in parts(input).filter(|bytes| !bytes.is_empty()) {
        match Frame::decode(bytes).unwrap().kind.unwrap() {
            frame::Kind::Hello(hello) => {
                outgoing.push(FrameKind::Hello, &hello.encode_to_vec());
            }
            frame::Kind::Batch(batch) => outgoing.push_batch(&batch.messages),
        }
    }
    let mut input = vec![u8::MAX];
    while !outgoing.is_empty() {
        let piece = outgoing.slices()[0].to_vec();
        outgoing.advance(piece.len());
        input.extend(piece);
    }
    input
}

/// A Hello, and a frame of as many messages of no bytes as an input holds.
fn empty_messages() -> Vec<u8> {
    let encoded = |kind| Frame { kind: Some(kind) }.encode_to_vec();
    let messages = vec![Bytes::new(); 32_000];
    let hello = encoded(frame::Kind::Hello(hello_of(MemberId(2))));
    joined([hello, encoded(frame::Kind::Batch(Batch { messages }))])
}

/// What of a Raft message goes with a snapshot. The numbers are those of the `raft` crate's
/// `eraftpb.proto`.
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
    pub(super) fn message_with(leader: MemberId, last: Position) -> Message {
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
        assert!(snapshot(&sending(mode)).unwrap());
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
        message: Bytes::from(raft::message_with(leader, last).encode_to_vec()),
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
