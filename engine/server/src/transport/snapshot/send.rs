//! Sends snapshots.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dengine_log::RealDisk;
use dengine_protocol::peer::peer_client::PeerClient;
use dengine_protocol::peer::snapshot_frame::Kind;
use dengine_protocol::peer::{
    SnapshotAnswer, SnapshotChunk, SnapshotEnd, SnapshotFrame, SnapshotOffer, snapshot_answer,
};
use dengine_raft::Input;
use dengine_raft::consensus::snapshot_position;
use dengine_snapshot::{Chunk, Outgoing, Place};
use dengine_types::MemberId;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::transport::FRAME_BYTES_MAX;
use crate::transport::outbound::{Addresses, CONNECT_TIMEOUT, Own, connect};

/// Large enough that the cost of each counts for little, small enough to hold up nothing else.
const CHUNK_BYTES: usize = 256 << 10;
const FRAMES_IN_FLIGHT: usize = 4;
/// A receiver may have to read back what it has before it can say where to go on; and at the end,
/// to open the state that it received.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// A receiver that takes no chunk for this long is gone.
const STALL_MAX: Duration = Duration::from_secs(20);
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Streams in a row that break without any progress; then consensus decides what next. Together
/// they outlast a receiver that still waits for a leader which is gone.
const FRUITLESS_MAX: u32 = 20;

/// A checkpoint that can be sent; it goes from the disk with the last one who uses it.
pub(crate) struct OutgoingSnapshot {
    outgoing: Outgoing<RealDisk>,
    /// Goes last.
    _folder: CheckpointDir,
}

/// A directory that is removed when this is dropped.
pub(crate) struct CheckpointDir(pub(crate) PathBuf);

impl OutgoingSnapshot {
    /// See [`Outgoing::answers`].
    pub(crate) fn answers(&self, message: &Bytes) -> bool {
        self.outgoing.answers(snapshot_position(message))
    }

    pub(crate) fn new(outgoing: Outgoing<RealDisk>, folder: CheckpointDir) -> Self {
        Self {
            outgoing,
            _folder: folder,
        }
    }
}

impl Drop for CheckpointDir {
    fn drop(&mut self) {
        // If it cannot be removed now, it is when the member starts again.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Sends one snapshot at a time.
pub(in crate::transport) struct SnapshotSender {
    own: Arc<Own>,
    runtime: tokio::runtime::Handle,
    addresses: Addresses,
    bytes_per_second: u64,
    turn: Arc<Semaphore>,
    tasks: HashMap<MemberId, AbortHandle>,
}

impl SnapshotSender {
    pub(in crate::transport) fn new(
        own: Arc<Own>,
        runtime: tokio::runtime::Handle,
        addresses: Addresses,
        bytes_per_second: u64,
    ) -> Self {
        Self {
            own,
            runtime,
            addresses,
            bytes_per_second,
            turn: Arc::new(Semaphore::new(1)),
            tasks: HashMap::new(),
        }
    }

    pub(in crate::transport) fn send(
        &mut self,
        to: MemberId,
        message: Bytes,
        snapshot: Arc<OutgoingSnapshot>,
    ) {
        let sending = Sending {
            report: Report {
                own: Arc::clone(&self.own),
                to,
                ok: false,
            },
            addresses: self.addresses.clone(),
            message,
            snapshot,
            nanos_per_chunk: CHUNK_BYTES as u64 * 1_000_000_000 / self.bytes_per_second.max(1),
            furthest: None,
        };
        let turn = Arc::clone(&self.turn);
        let task = self.runtime.spawn(async move {
            let _turn = turn.acquire().await.expect("it is never closed");
            sending.run().await;
        });
        if let Some(earlier) = self.tasks.insert(to, task.abort_handle()) {
            earlier.abort();
        }
    }

    pub(in crate::transport) fn cancel(&mut self) {
        for (_, task) in self.tasks.drain() {
            task.abort();
        }
    }
}

impl Drop for SnapshotSender {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Tells the replica how it ended, also if it was broken off.
struct Report {
    own: Arc<Own>,
    to: MemberId,
    ok: bool,
}

impl Drop for Report {
    fn drop(&mut self) {
        let sent = Input::SnapshotSent {
            to: self.to,
            ok: self.ok,
        };
        // If the replica is gone, nobody needs to know.
        let _ = self.own.inbox.send(sent.into());
    }
}

struct Sending {
    report: Report,
    addresses: Addresses,
    message: Bytes,
    snapshot: Arc<OutgoingSnapshot>,
    nanos_per_chunk: u64,
    /// How far the receiver said it is, at most.
    furthest: Option<Place>,
}

impl Sending {
    async fn run(mut self) {
        let (mut fruitless, mut retry) = (0, RETRY_MIN);
        let manifest = self.snapshot.outgoing.manifest();
        let (to, bytes) = (self.report.to.0, manifest.bytes());
        let index = manifest.last().index.0;
        tracing::info!(to, index, bytes, "sending a snapshot");
        while fruitless < FRUITLESS_MAX {
            let before = self.furthest;
            match self.attempt().await {
                Ok(()) => {
                    tracing::info!(to, index, "the snapshot was received");
                    self.report.ok = true;
                    return;
                }
                Err(status) if status.code() == Code::NotFound => break,
                Err(status) => tracing::info!(to, %status, "the stream of a snapshot broke"),
            }
            if self.furthest > before {
                (fruitless, retry) = (0, RETRY_MIN);
            }
            fruitless += 1;
            sleep(retry).await;
            retry = (2 * retry).min(RETRY_MAX);
        }
        tracing::warn!(to, index, "the snapshot was not received");
    }

    async fn attempt(&mut self) -> Result<(), Status> {
        let to = self.report.to;
        let address = self.addresses.get(to);
        let address = address.ok_or_else(|| Status::not_found("the member is gone"))?;
        let own = &self.report.own;
        let (frames, stream) = mpsc::channel(FRAMES_IN_FLIGHT);
        let offer = SnapshotOffer {
            manifest: self.snapshot.outgoing.manifest().encode().into(),
            message: self.message.clone(),
        };
        for kind in [Kind::Hello(own.hello(to)), Kind::Offer(offer)] {
            let frame = SnapshotFrame { kind: Some(kind) };
            frames
                .try_send(frame)
                .expect("the channel is new and has room");
        }
        let mut client =
            PeerClient::new(connect(&address).await?).max_encoding_message_size(FRAME_BYTES_MAX);
        let answers = timeout(
            CONNECT_TIMEOUT,
            client.send_snapshot(ReceiverStream::new(stream)),
        );
        let mut answers = answers
            .await
            .map_err(|_| Status::deadline_exceeded("no answer to the Hello"))??
            .into_inner();
        let place = match answer(&mut answers).await? {
            snapshot_answer::Kind::GoOn(place) => Place {
                file: place.file,
                offset: place.offset,
            },
            snapshot_answer::Kind::Done(_) => return Ok(()),
        };
        self.furthest = self.furthest.max(Some(place));
        self.send_from(place, &frames, &mut answers).await?;
        match answer(&mut answers).await? {
            snapshot_answer::Kind::Done(_) => Ok(()),
            snapshot_answer::Kind::GoOn(_) => Err(Status::internal("it asks for more")),
        }
    }

    async fn send_from(
        &self,
        mut place: Place,
        frames: &mpsc::Sender<SnapshotFrame>,
        answers: &mut Streaming<SnapshotAnswer>,
    ) -> Result<(), Status> {
        let mut due = Instant::now();
        while let Some(chunk) = self.read(place).await? {
            sleep_until(due).await;
            due = due.max(Instant::now()) + Duration::from_nanos(self.nanos_per_chunk);
            place = self.snapshot.outgoing.after(&chunk);
            let kind = Kind::Chunk(SnapshotChunk {
                file: chunk.place.file,
                offset: chunk.place.offset,
                content: chunk.bytes,
                crc: chunk.crc,
            });
            send(kind, frames, answers).await?;
        }
        send(Kind::End(SnapshotEnd {}), frames, answers).await
    }

    async fn read(&self, place: Place) -> Result<Option<Chunk>, Status> {
        let snapshot = Arc::clone(&self.snapshot);
        let read = move || snapshot.outgoing.read(place, CHUNK_BYTES);
        tokio::task::spawn_blocking(read)
            .await
            .expect("reading does not panic and is not cancelled")
            .map_err(|error| Status::internal(error.to_string()))
    }
}

/// Waits for room in the stream, and for the receiver's word if that ends it.
async fn send(
    kind: Kind,
    frames: &mpsc::Sender<SnapshotFrame>,
    answers: &mut Streaming<SnapshotAnswer>,
) -> Result<(), Status> {
    let broke = || Status::unavailable("the stream broke");
    tokio::select! {
        slot = timeout(STALL_MAX, frames.reserve()) => {
            let slot = slot.map_err(|_| Status::deadline_exceeded("the receiver takes nothing"))?;
            slot.map_err(|_| broke())?.send(SnapshotFrame { kind: Some(kind) });
            Ok(())
        }
        end = answers.message() => {
            end?;
            Err(broke())
        }
    }
}

async fn answer(answers: &mut Streaming<SnapshotAnswer>) -> Result<snapshot_answer::Kind, Status> {
    let answer = timeout(ANSWER_TIMEOUT, answers.message()).await;
    let answer = answer.map_err(|_| Status::deadline_exceeded("no answer"))??;
    answer
        .and_then(|answer| answer.kind)
        .ok_or_else(|| Status::unavailable("the receiver ended the stream"))
}
