//! Takes snapshots in.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dengine_data_dir::SnapshotPaths;
use dengine_log::RealDisk;
use dengine_protocol::checks::snapshot::{self, Piece};
use dengine_protocol::peer::{
    SnapshotAnswer, SnapshotFrame, SnapshotOffer, SnapshotPlace, snapshot_answer,
};
use dengine_raft::consensus::snapshot_position;
use dengine_snapshot::{Manifest, Place, SnapshotError, Staging, describe};
use dengine_types::{ClusterId, MemberId};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::storage::RocksStore;

/// A sender that says nothing for this long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// How long to wait for a stream that was told to end.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Chunks that were received and are not written yet.
const CHUNKS_QUEUED: usize = 4;
/// Left free beside a snapshot, so that the log can go on.
const RESERVE_BYTES: u64 = 256 << 20;

pub(crate) type SnapshotAnswers = mpsc::Sender<Result<SnapshotAnswer, Status>>;

/// The one place where snapshots are received. Clones are the same place.
#[derive(Clone)]
pub(crate) struct Incoming {
    paths: SnapshotPaths,
    cluster: ClusterId,
    bytes_max: u64,
    slot: Arc<AsyncMutex<Slot>>,
    /// Bytes that the disk lacks for the snapshot that was offered last; 0: none.
    lacks_bytes: Arc<AtomicU64>,
    /// Who is sending, and what ends that.
    current: Arc<Mutex<Option<(Sender, CancellationToken)>>>,
}

/// Who sends a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) member: MemberId,
    /// The log has not told of it: it may be anybody.
    pub(crate) introduced: bool,
}

enum Slot {
    /// Nobody has sent anything yet.
    Unopened,
    Open(Box<Staging<RealDisk>>),
    /// Nothing is taken any more.
    Closed,
}

impl Incoming {
    pub(crate) fn new(paths: SnapshotPaths, cluster: ClusterId, bytes_max: u64) -> Self {
        Self {
            paths,
            cluster,
            bytes_max,
            slot: Arc::new(AsyncMutex::new(Slot::Unopened)),
            lacks_bytes: Arc::default(),
            current: Arc::default(),
        }
    }

    /// Bytes that the disk lacks for the snapshot that was offered last; 0: none. A leader that
    /// sends another member one does not offer it again meanwhile.
    pub(crate) fn lacks_bytes(&self) -> u64 {
        self.lacks_bytes.load(Ordering::Relaxed)
    }

    /// This member needs no snapshot, wherever it had what it lacked from.
    pub(crate) fn is_not_needed(&self) {
        self.lacks_bytes.store(0, Ordering::Relaxed);
    }

    /// Refuses what would fill the disk, and remembers what that lacks.
    fn check_space(
        &self,
        path: &Path,
        manifest: &Manifest,
        staging: &Staging<RealDisk>,
    ) -> Result<(), SnapshotError> {
        let bytes = manifest.bytes();
        // No disk could be large enough: staging refuses it.
        if bytes > self.bytes_max {
            self.lacks_bytes.store(0, Ordering::Relaxed);
            return Ok(());
        }
        // Where the system cannot tell, writing will.
        let free = match rustix::fs::statvfs(path) {
            Ok(found) => found.f_bavail.saturating_mul(found.f_frsize),
            Err(_) => u64::MAX,
        };
        // What is there of the same snapshot needs no space again; what is there of another one
        // makes room.
        let free = free.saturating_add(staging.bytes()?);
        let limit = takes_at_most(free);
        let lacks = wants_free(bytes).saturating_sub(free);
        self.lacks_bytes.store(lacks, Ordering::Relaxed);
        if bytes > limit {
            return Err(SnapshotError::TooLarge { bytes, limit });
        }
        Ok(())
    }

    /// Receives one snapshot. When it returns, the snapshot is checked and on disk; what it returns
    /// is the message that came with it.
    ///
    /// # Errors
    /// It is refused or did not arrive whole. What has arrived stays, in case the sender tries
    /// again.
    pub(crate) async fn receive(
        &self,
        from: Sender,
        mut frames: Streaming<SnapshotFrame>,
        answers: &SnapshotAnswers,
    ) -> Result<Bytes, Status> {
        let offer = snapshot::offer(next(&mut frames).await?)?;
        let end = self.take_turn(from)?;
        // A stream of the same sender may just be ending.
        let slot = tokio::time::timeout(TURN_TIMEOUT, Arc::clone(&self.slot).lock_owned())
            .await
            .map_err(|_| Status::unavailable("another snapshot is being received"))?;
        let done = end.run_until_cancelled(self.receive_into(slot, offer, frames, answers));
        let done = done.await;
        let other = || Status::aborted("another stream takes its place");
        done.unwrap_or_else(|| Err(other()))
    }

    /// A member that comes back has lost its earlier stream; any other has to wait for that one's
    /// end, unless it is a member and that one may be anybody.
    fn take_turn(&self, from: Sender) -> Result<CancellationToken, Status> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((other, end)) = current.take() {
            let comes_first = other.member == from.member || other.introduced && !from.introduced;
            if !comes_first && self.slot.try_lock().is_err() {
                *current = Some((other, end));
                let reason = format!("member {} is sending a snapshot", other.member);
                return Err(Status::unavailable(reason));
            }
            end.cancel();
        }
        let end = CancellationToken::new();
        *current = Some((from, end.clone()));
        Ok(end)
    }

    async fn receive_into(
        &self,
        slot: OwnedMutexGuard<Slot>,
        offer: SnapshotOffer,
        mut frames: Streaming<SnapshotFrame>,
        answers: &SnapshotAnswers,
    ) -> Result<Bytes, Status> {
        let manifest =
            Manifest::decode(&offer.manifest).map_err(|error| snapshot::status(&error))?;
        let is_of_message = manifest.answers(snapshot_position(&offer.message));
        let (pieces, queue) = mpsc::channel(CHUNKS_QUEUED);
        let (begun, place) = oneshot::channel();
        let this = self.clone();
        // If this stream is cancelled, the queue ends and so does the work.
        let work = tokio::task::spawn_blocking(move || this.stage(slot, manifest, begun, queue));
        let forwarded = async {
            if let Ok(place) = place.await {
                let go_on = SnapshotPlace {
                    file: place.file,
                    offset: place.offset,
                };
                let kind = Some(snapshot_answer::Kind::GoOn(go_on));
                // If the sender is gone, the next frame tells.
                let _ = answers.send(Ok(SnapshotAnswer { kind })).await;
                forward(&mut frames, &pieces).await?;
            }
            drop(pieces);
            Ok(())
        };
        let (sent, staged) = tokio::join!(forwarded, work);
        match staged.expect("staging does not panic and is not cancelled") {
            Ok(true) if is_of_message => Ok(offer.message),
            Ok(true) => Err(Status::invalid_argument(
                "the message speaks of another snapshot than the one that was sent",
            )),
            // The stream broke first, and says how.
            Ok(false) => Err(sent.err().unwrap_or_else(|| Status::cancelled("no end"))),
            Err(error) => Err(snapshot::status(&error)),
        }
    }

    /// Puts the pieces together; whether the snapshot is complete.
    fn stage(
        &self,
        mut slot: OwnedMutexGuard<Slot>,
        manifest: Manifest,
        begun: oneshot::Sender<Place>,
        mut queue: mpsc::Receiver<Piece>,
    ) -> Result<bool, SnapshotError> {
        let path = self.paths.incoming();
        let staging = self.open(&mut slot)?;
        self.check_space(&path, &manifest, staging)?;
        // If nobody waits for the place any more, the queue has ended too.
        let _ = begun.send(staging.begin(manifest)?);
        while let Some(piece) = queue.blocking_recv() {
            let done = match piece {
                Piece::Chunk(chunk) => staging.receive(&chunk).map(|_| false),
                Piece::End => staging
                    .finish(|_| Ok(describe::<RocksStore, Path>(&path)?.0))
                    .map(|()| true),
            };
            match done {
                Ok(false) => {}
                Ok(true) => return Ok(true),
                Err(error) => return Err(give_space_back(staging, error)),
            }
        }
        Ok(false)
    }

    fn open<'a>(&self, slot: &'a mut Slot) -> Result<&'a mut Staging<RealDisk>, SnapshotError> {
        if matches!(slot, Slot::Unopened) {
            let staging = self.paths.open_staging(self.cluster, self.bytes_max)?;
            *slot = Slot::Open(Box::new(staging));
        }
        match slot {
            Slot::Open(staging) => Ok(staging),
            Slot::Unopened | Slot::Closed => Err(SnapshotError::Incomplete),
        }
    }

    /// Throws away a snapshot that was received and is of no use; what is being received goes on.
    pub(crate) async fn discard(&self) {
        let mut slot = Arc::clone(&self.slot).lock_owned().await;
        let discarded = tokio::task::spawn_blocking(move || match &mut *slot {
            Slot::Open(staging) if staging.manifest().is_some_and(|m| staging.holds(m.last())) => {
                staging.clear()
            }
            Slot::Open(_) | Slot::Unopened | Slot::Closed => Ok(()),
        });
        if let Err(error) = discarded.await.expect("discarding does not panic") {
            tracing::warn!(%error, "an unneeded snapshot could not be removed");
        }
    }

    /// Takes nothing from now on, and hands over what is there.
    pub(crate) async fn close(&self) -> Result<Staging<RealDisk>, SnapshotError> {
        let current = self
            .current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((_, end)) = current {
            end.cancel();
        }
        let mut slot = self.slot.lock().await;
        match std::mem::replace(&mut *slot, Slot::Closed) {
            Slot::Open(staging) => Ok(*staging),
            Slot::Unopened => self.paths.open_staging(self.cluster, self.bytes_max),
            Slot::Closed => Err(SnapshotError::Incomplete),
        }
    }
}

/// A disk that is full because of a snapshot has to be given back to the log.
fn give_space_back(staging: &mut Staging<RealDisk>, error: SnapshotError) -> SnapshotError {
    if matches!(&error, SnapshotError::Disk(error) if error.is_no_space()) {
        // What cannot be removed now is when the member is opened.
        let _ = staging.clear();
    }
    error
}

/// Of a small disk, or one that is nearly full, half of what is free: the snapshot may be what
/// frees the rest, and without it the member stays behind.
fn takes_at_most(free: u64) -> u64 {
    free.saturating_sub(RESERVE_BYTES).max(free / 2)
}

/// What must be free for a snapshot of so many bytes.
fn wants_free(bytes: u64) -> u64 {
    bytes.saturating_add(RESERVE_BYTES.min(bytes))
}

async fn forward(
    frames: &mut Streaming<SnapshotFrame>,
    pieces: &mpsc::Sender<Piece>,
) -> Result<(), Status> {
    loop {
        let piece = snapshot::piece(next(frames).await?)?;
        let last = piece == Piece::End;
        // If staging has ended, it says why.
        if pieces.send(piece).await.is_err() || last {
            return Ok(());
        }
    }
}

async fn next(frames: &mut Streaming<SnapshotFrame>) -> Result<SnapshotFrame, Status> {
    let frame = tokio::time::timeout(SILENCE_MAX, frames.message()).await;
    let frame = frame.map_err(|_| Status::deadline_exceeded("the sender went silent"))??;
    frame.ok_or_else(|| Status::cancelled("the sender ended the stream early"))
}

#[cfg(test)]
mod tests {
    use dengine_data_dir::DataDir;

    use super::*;

    /// On a disk with less than the reserve free, one of some kilobytes was refused that would have
    /// freed nearly all of it.
    #[test]
    fn a_small_snapshot_is_taken_on_a_disk_that_is_nearly_full() {
        for (free, most) in [(0, 0), (72, 36), (400, 200), (512, 256), (1_000, 744)] {
            assert_eq!(takes_at_most(free << 20), most << 20, "{free} MiB");
            assert_eq!(wants_free(most << 20), free << 20, "{free} MiB");
        }
    }

    /// The one place is not a stranger's for as long as it likes.
    #[tokio::test]
    async fn a_member_takes_the_turn_of_who_may_be_anybody() {
        let directory = tempfile::tempdir().unwrap();
        let folder = DataDir::open(directory.path()).unwrap();
        let incoming = Incoming::new(folder.snapshot_paths(), ClusterId(1), u64::MAX);
        let sender = |member, introduced| Sender {
            member: MemberId(member),
            introduced,
        };
        let turn = incoming.take_turn(sender(100, true)).unwrap();
        let receives = Arc::clone(&incoming.slot).lock_owned().await;
        assert!(incoming.take_turn(sender(101, true)).is_err());
        let member = incoming.take_turn(sender(2, false)).unwrap();
        assert!(turn.is_cancelled());
        assert!(incoming.take_turn(sender(3, false)).is_err());
        assert!(incoming.take_turn(sender(100, true)).is_err());
        assert!(!member.is_cancelled());
        drop(receives);
        assert!(incoming.take_turn(sender(3, false)).is_ok());
    }
}
