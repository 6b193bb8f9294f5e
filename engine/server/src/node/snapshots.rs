//! Snapshots of this member's state for others, and what was received for this one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dengine_data_dir::SnapshotPaths;
use dengine_kv::{Flusher, StoreError};
use dengine_log::RealDisk;
use dengine_raft::SnapshotMeta;
use dengine_raft::channel::Sender;
use dengine_snapshot::{Checkpoint as _, Outgoing, SnapshotError, SnapshotId, describe};
use dengine_types::ClusterId;

use super::flusher::{NoRoom, check_room};
use super::inbox::ToReplica;
use super::space::Space;
use crate::error::Fatal;
use crate::storage::RocksStore;
use crate::transport::{CheckpointDir, Incoming, OutgoingSnapshot};

/// A snapshot that could not be made (the disk is full, perhaps) is tried again after this time.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Owned by the replica thread; the work is done on others.
pub(super) struct Snapshots {
    pub(super) maker: Maker,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) inbox: Sender<ToReplica>,
    pub(super) incoming: Incoming,
    /// The one that followers are sent; at most one exists.
    pub(super) made: Option<Arc<OutgoingSnapshot>>,
}

/// A snapshot, and what consensus has to know of it.
pub(crate) type Made = (OutgoingSnapshot, SnapshotMeta);

/// What it takes to make one.
#[derive(Clone)]
pub(super) struct Maker {
    pub(super) flusher: Flusher<RocksStore>,
    pub(super) paths: SnapshotPaths,
    pub(super) cluster: ClusterId,
    pub(super) space: Arc<Space>,
}

#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("a bug in dengine, please report it with the log: {0}")]
    Panicked(#[from] tokio::task::JoinError),
}

impl Snapshots {
    /// Makes a snapshot in place of the last one, and reports ([`ToReplica::SnapshotMade`]).
    pub(super) fn make(&mut self) {
        self.forget();
        let (maker, inbox) = (self.maker.clone(), self.inbox.clone());
        self.runtime
            .spawn(report(inbox, RETRY_DELAY, move || maker.make()));
    }

    /// Keeps what was made; what consensus has to be told.
    pub(super) fn keep(&mut self, made: Option<Made>) -> Option<SnapshotMeta> {
        let (snapshot, meta) = made?;
        self.made = Some(Arc::new(snapshot));
        Some(meta)
    }

    /// It is not needed any more, except by followers that are being sent it.
    pub(super) fn forget(&mut self) {
        if let Some(snapshot) = self.made.take() {
            // Its files may go with it, and that takes a while.
            self.runtime.spawn_blocking(move || drop(snapshot));
        }
    }

    /// What was received is of no use.
    pub(super) fn discard_staged(&self) {
        let incoming = self.incoming.clone();
        self.runtime.spawn(async move { incoming.discard().await });
    }
}

/// Makes it on a thread for that, and says what came of it, after this time if nothing did.
async fn report(
    inbox: Sender<ToReplica>,
    retry_delay: Duration,
    make: impl FnOnce() -> Result<Made, MakeError> + Send + 'static,
) {
    let made = tokio::task::spawn_blocking(make).await;
    // A panic is a failure like any other: callers that wait for this snapshot must hear of it.
    let made = match made.map_err(MakeError::from).flatten() {
        Ok(made) => Some(made),
        Err(MakeError::Store(error @ StoreError::Corrupt(_))) => {
            // Its files are the state's own. If the replica is gone, somebody reported before.
            let _ = inbox.send(ToReplica::Failed(Fatal::State(error)));
            return;
        }
        Err(error) => {
            tracing::warn!(%error, "a snapshot could not be made; it is tried again");
            tokio::time::sleep(retry_delay).await;
            None
        }
    };
    // If the replica is gone, it need not know.
    let _ = inbox.send(ToReplica::SnapshotMade(made));
}

impl Maker {
    fn make(self) -> Result<Made, MakeError> {
        let id = SnapshotId(rand::random());
        let path = self.paths.outgoing(&id.to_string());
        // If anything fails, the checkpoint's directory is removed.
        let folder = CheckpointDir(path.clone());
        check_room(&self.flusher, &self.space)?;
        self.flusher.with_store(|store| store.checkpoint(&*path))?;
        // It would keep the state's directory in use.
        drop(self.flusher);
        let (last, membership) = describe::<RocksStore, Path>(&path)?;
        let disk = RealDisk::open(&path).map_err(SnapshotError::from)?;
        let outgoing = Outgoing::new(disk, self.cluster, id, last)?;
        let meta = SnapshotMeta {
            last,
            voters: membership.voters().map(|member| member.id).collect(),
            learners: membership.learners().map(|member| member.id).collect(),
        };
        let bytes = outgoing.manifest().bytes();
        tracing::info!(index = last.index.0, bytes, "made a snapshot");
        Ok((OutgoingSnapshot::new(outgoing, folder), meta))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It waited for one that never came, and this leader made no snapshot again.
    #[tokio::test]
    async fn a_panic_while_a_snapshot_is_made_is_told_to_the_replica() {
        let (inbox, told) = dengine_raft::channel::channel();
        report(inbox, Duration::ZERO, || panic!("on purpose")).await;
        assert!(matches!(told.try_recv(), Ok(ToReplica::SnapshotMade(None))));
    }

    /// It was tried again, forever.
    #[tokio::test]
    async fn damage_that_is_found_while_a_snapshot_is_made_ends_the_member() {
        let (inbox, told) = dengine_raft::channel::channel();
        let damaged = || Err(StoreError::Corrupt("a block".to_owned()).into());
        report(inbox, Duration::MAX, damaged).await;
        let Ok(ToReplica::Failed(Fatal::State(error))) = told.try_recv() else {
            panic!("the replica was not told")
        };
        assert!(matches!(error, StoreError::Corrupt(_)));
    }
}
