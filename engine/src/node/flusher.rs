//! The thread that flushes the state machine, so that a restart has little of the log to replay.
//!
//! Beside the applier, not in it: a flush waits for the disk, and nobody's write should.

use super::input::Input;
use crate::error::Fatal;
use crate::storage::RocksStore;
use dengine_core::channel::Sender;
use dengine_core::kv::Flusher;
use dengine_core::replica;
use std::sync::mpsc::{Receiver, SyncSender};

/// Asks for a flush whenever enough was applied. One request may wait while a flush runs; it covers
/// whatever is applied until it begins.
pub(super) struct FlushTrigger {
    requests: SyncSender<()>,
    every_bytes: u64,
    applied_bytes: u64,
}

impl FlushTrigger {
    pub(super) fn new(requests: SyncSender<()>, every_bytes: u64) -> Self {
        Self {
            requests,
            every_bytes,
            applied_bytes: 0,
        }
    }

    pub(super) fn applied(&mut self, bytes: u64) {
        self.applied_bytes += bytes;
        // Full: a flush that covers this is already asked for. Closed: the flusher has said why.
        if self.applied_bytes >= self.every_bytes && self.requests.try_send(()).is_ok() {
            self.applied_bytes = 0;
        }
    }
}

/// Works until the applier lets go of the requests.
pub(super) fn run(flusher: &Flusher<RocksStore>, requests: &Receiver<()>, replica: &Sender<Input>) {
    while requests.recv().is_ok() {
        match flusher.flush() {
            Ok(index) => {
                tracing::debug!(index = index.0, "flushed the state machine");
                // If the replica is gone, nobody needs to know.
                let _ = replica.send(replica::Input::Flushed(index).into());
            }
            Err(error) => {
                // If the replica is gone too, somebody reported before us.
                let _ = replica.send(Input::Failed(Fatal::State(error)));
                return;
            }
        }
    }
}
