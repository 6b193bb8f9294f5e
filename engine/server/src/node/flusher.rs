//! The thread that flushes the state machine, so that a restart has little of the log to replay.
//!
//! Beside the applier, not in it: a flush waits for the disk, and no write should.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use dengine_kv::{Flusher, StoreError};
use dengine_raft::Input;
use dengine_raft::channel::Sender;

use super::inbox::ToReplica;
use super::space::Space;
use crate::error::Fatal;
use crate::storage::RocksStore;

/// What a flush writes besides the records: where they lie in the new file, and that there is one.
const BESIDES_BYTES: u64 = 1 << 20;

/// Asks for a flush. One request may wait while a flush runs; it covers whatever is applied until
/// it begins.
#[derive(Clone)]
pub(super) struct FlushRequests(SyncSender<()>);

impl FlushRequests {
    pub(super) fn channel() -> (Self, Receiver<()>) {
        let (requests, flushes) = sync_channel(1);
        (Self(requests), flushes)
    }

    /// Says whether there was none before. If the flusher is gone, it has said why.
    pub(super) fn ask(&self) -> bool {
        self.0.try_send(()).is_ok()
    }
}

/// Asks for a flush whenever enough was applied.
pub(super) struct FlushTrigger {
    requests: FlushRequests,
    every_bytes: u64,
    applied_bytes: u64,
}

impl FlushTrigger {
    pub(super) fn new(requests: FlushRequests, every_bytes: u64) -> Self {
        Self {
            requests,
            every_bytes,
            applied_bytes: 0,
        }
    }

    pub(super) fn applied(&mut self, bytes: u64) {
        self.applied_bytes += bytes;
        if self.applied_bytes >= self.every_bytes && self.requests.ask() {
            self.applied_bytes = 0;
        }
    }
}

/// Works until all senders are gone. On a disk without room for it nothing is flushed, for
/// RocksDB writes nothing for a while once it found no space: the log keeps what it needs, and asks
/// again when it is full.
pub(super) fn run(
    flusher: &Flusher<RocksStore>,
    requests: &Receiver<()>,
    replica: &Sender<ToReplica>,
    space: &Space,
) {
    while requests.recv().is_ok() {
        if let Err(error) = check_room(flusher, space) {
            tracing::debug!(%error, "the state machine was not flushed");
            continue;
        }
        match flusher.flush() {
            Ok(index) => {
                tracing::debug!(index = index.0, "flushed the state machine");
                // If the replica is gone, it need not know.
                let _ = replica.send(Input::Flushed(index).into());
            }
            // It is asked for again when the log is full.
            Err(error @ StoreError::NoSpace { .. }) => {
                tracing::warn!(%error, "the state machine was not flushed");
            }
            Err(error) => {
                // If the replica is gone too, somebody reported before us.
                let _ = replica.send(ToReplica::Failed(Fatal::State(error)));
                return;
            }
        }
    }
}

/// There is no room for what is in memory.
#[derive(Debug, thiserror::Error)]
#[error(
    "the disk is full: to flush the state takes up to {needed_bytes} bytes, and {free_bytes} are \
     free"
)]
pub(super) struct NoRoom {
    needed_bytes: u64,
    free_bytes: u64,
}

/// Ask before whatever flushes the state. If the system does not say how much is free, the flush
/// finds out.
pub(super) fn check_room(flusher: &Flusher<RocksStore>, space: &Space) -> Result<(), NoRoom> {
    let needed_bytes = flusher.unflushed_bytes() + BESIDES_BYTES;
    match space.free_bytes_now() {
        Ok(free_bytes) if free_bytes < needed_bytes => Err(NoRoom {
            needed_bytes,
            free_bytes,
        }),
        _ => Ok(()),
    }
}
