//! Members as processes: starting, forming, killing, and waiting for what must become true.

mod cluster;
mod disk;
mod load;
mod member;

use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

use dengine_client::{AdminClient, Error};
use tempfile::TempDir;

pub(crate) use cluster::Cluster;
pub(crate) use disk::Disk;
pub(crate) use load::Load;
pub(crate) use member::{Member, dengine};

/// Longest wait for something that takes well under a second on an idle machine. Tests share few
/// cores with builds, and a wait that ends early costs nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `look` returns something; fails with `what` if it does not in time.
pub(crate) async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Has a member lead; its term. A hand-over that was given up, as on a slow disk, is asked for
/// again.
pub(crate) async fn hand_over(admin: &AdminClient, id: u64) -> u64 {
    eventually("leadership is handed over", || async {
        match admin.transfer_leader(id).await {
            Ok(done) => Some(done.term),
            Err(Error::Unavailable { .. } | Error::UnknownOutcome { .. }) => None,
            Err(other) => panic!("{other}"),
        }
    })
    .await
}

/// Like [`eventually`], for values that must become `expect`.
pub(crate) async fn becomes<T, F>(what: &str, expect: T, mut look: impl FnMut() -> F)
where
    T: PartialEq + Debug,
    F: Future<Output = T>,
{
    let mut last = None;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let found = look().await;
        if found == expect {
            return;
        }
        last = Some(found);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    panic!("{what}: expected {expect:?}, last seen {last:?}");
}

/// A folder that disappears with its test.
pub(crate) fn scratch() -> TempDir {
    TempDir::with_prefix("dengine-test-").expect("the system has room for a folder")
}
