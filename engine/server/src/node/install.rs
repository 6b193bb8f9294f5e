//! Installs a snapshot: ends the member, resets its log, and starts it again from its data
//! directory.
//!
//! Whatever goes wrong before the log is reset leaves the member as it was; after that, opening the
//! data directory completes the installation, now or after a crash.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dengine_data_dir::Identity;
use dengine_log::{Position, RealDisk};
use dengine_snapshot as snapshot;
use dengine_snapshot::{Commit, SnapshotError, Staging};
use dengine_types::HardState;
use tokio::sync::mpsc::UnboundedReceiver;

use super::running::Running;
use super::{Inner, Node, Stage, open};
use crate::error::{Fatal, StartError};
use crate::storage::OpenStore;

/// How long those who read the old state may take to finish. Long reads are told to
/// (`server/aside.rs`), and everything else is bounded well below.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
const CLOSE_POLL: Duration = Duration::from_millis(5);

/// What consensus has decided; its replica thread has ended.
pub(super) struct Install {
    pub(super) base: Position,
    pub(super) hard_state: HardState,
}

/// Carries out installations until the node is gone.
pub(super) async fn supervise(node: Weak<Inner>, mut installs: UnboundedReceiver<Install>) {
    while let Some(install) = installs.recv().await {
        let Some(inner) = node.upgrade() else { return };
        let fatal = inner.signals.fatal.clone();
        let node = Node { inner };
        if let Some(why) = failure(async move { node.install(install).await }).await {
            tracing::error!(error = %why, "the member did not start from its snapshot");
            fatal.send_replace(Some(why));
        }
    }
}

/// Why the member did not start from its snapshot, if it did not.
async fn failure(
    installing: impl Future<Output = Result<(), StartError>> + Send + 'static,
) -> Option<Fatal> {
    // A task of its own, so that a panic is told as well: nothing else would, and the member would
    // neither serve nor end.
    match tokio::spawn(installing).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Fatal::Restart(Arc::new(error))),
        Err(_) => Some(Fatal::Panicked("installing")),
    }
}

impl Node {
    async fn install(&self, install: Install) -> Result<(), StartError> {
        let folder = self.inner.folder.lock().await;
        let identity = folder.identity().expect("a member that ran has one");
        let Some(running) = self.begin_restart() else {
            return Ok(());
        };
        self.inner.gate.close();
        self.inner
            .signals
            .status
            .send_modify(|status| status.ready = false);
        running.stop().await;
        // The last sync may have failed, after which there is no second try with that log.
        if self.inner.signals.fatal.borrow().is_some() {
            return Ok(());
        }
        let staging = running.close_incoming().await;
        let store = running.watch_store();
        drop(running);
        wait_until_closed(&store).await?;
        let log_path = folder.log_path();
        let config = self.inner.config.clone();
        let commit = move || commit(staging.as_ref(), &install, &log_path, &config, identity);
        tokio::task::spawn_blocking(commit)
            .await
            .expect("resetting the log does not panic")?;
        self.run(&folder, identity).await
    }

    /// Takes the member out of service, unless it was shut down.
    fn begin_restart(&self) -> Option<Arc<Running>> {
        let mut stage = self.write_stage();
        match &*stage {
            Stage::Running(running) => {
                let running = Arc::clone(running);
                *stage = Stage::Restarting;
                Some(running)
            }
            Stage::Waiting | Stage::Restarting | Stage::Stopped => None,
        }
    }
}

/// The commit point. If the snapshot is gone, the member goes on as it was.
fn commit(
    staging: Result<&Staging<RealDisk>, &SnapshotError>,
    install: &Install,
    log_path: &Path,
    config: &crate::config::Config,
    identity: Identity,
) -> Result<(), StartError> {
    let Install { base, hard_state } = install;
    let (index, term) = (base.index.0, base.term.0);
    let (mut log, _) = open::open_log(log_path, config, identity)?;
    let staged = staging.map_err(SnapshotError::clone);
    let done = snapshot::commit(staged, &mut log, *base, *hard_state);
    match done.map_err(|error| open::log_failed(log_path, error))? {
        Commit::Committed => tracing::info!(index, term, "installing a snapshot"),
        Commit::Unchanged(reason) => {
            tracing::warn!(index, %reason, "going on without the snapshot");
        }
    }
    Ok(())
}

/// RocksDB must have closed the state directory that is about to be replaced.
async fn wait_until_closed(store: &OpenStore) -> Result<(), StartError> {
    let closed = async {
        while store.is_open() {
            tokio::time::sleep(CLOSE_POLL).await;
        }
    };
    tokio::time::timeout(CLOSE_TIMEOUT, closed)
        .await
        .map_err(|_| StartError::StateInUse)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn panics() -> Result<(), StartError> {
        panic!("on purpose")
    }

    /// The member neither served nor ended.
    #[tokio::test]
    async fn a_panic_while_a_snapshot_is_installed_ends_the_member() {
        assert!(matches!(
            failure(panics()).await,
            Some(Fatal::Panicked("installing"))
        ));
        assert!(failure(async { Ok(()) }).await.is_none());
    }
}
