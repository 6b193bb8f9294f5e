//! The thread that has the store give back what deleted records take, while space is low.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use dengine_kv::Flusher;
use dengine_kv::store::Reclaimed;
use dengine_raft::channel::Receiver;

use super::flusher::check_room;
use super::space::Space;
use crate::storage::RocksStore;

/// RocksDB looks every five seconds whether it may merge again.
const PAUSE: Duration = Duration::from_secs(6);
/// Each try that finds no space has all there is for a moment.
const PAUSE_MAX: Duration = Duration::from_secs(300);

pub(super) struct Reclaimer {
    pub(super) flusher: Flusher<RocksStore>,
    pub(super) space: Arc<Space>,
}

impl Reclaimer {
    /// Works until the other end of `stop` is gone.
    pub(super) fn run(self, stop: &Receiver<()>) {
        let mut pause = PAUSE;
        while stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            if self.space.is_low() && check_room(&self.flusher, &self.space).is_ok() {
                pause = self.reclaim(pause);
            }
        }
    }

    /// Returns when to look again.
    fn reclaim(&self, pause: Duration) -> Duration {
        let Ok(free_bytes) = self.space.free_bytes_now() else {
            return pause;
        };
        match self.flusher.reclaim(free_bytes) {
            Ok(Reclaimed::Nothing | Reclaimed::NotYet) => pause.min(PAUSE),
            Ok(Reclaimed::GivenBack) => {
                tracing::info!("the space of what was deleted is given back");
                PAUSE
            }
            // Whatever else fails the store is told by who needs it.
            Err(error) => {
                tracing::warn!(%error, "what was deleted still takes its space");
                (4 * pause).min(PAUSE_MAX)
            }
        }
    }
}
