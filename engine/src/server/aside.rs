//! Reads that take a while: on a thread where they hold up nobody, and no longer than somebody waits for them.
//!
//! A read that went on after its caller left would keep a thread of a pool that others need too, and the state open
//! that a snapshot is to replace.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use dengine_core::kv::{ReadError, Reader};
use dengine_wire::status::{read_status, request_status};
use tokio::time::sleep;
use tonic::Status;

use crate::{node::Node, storage::RocksStore};

/// How often it is looked whether the state is still the one that is being read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Ends the read when it is dropped, as it is with whoever waits.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads this member's state for at most `patience`, and until a snapshot is to replace it.
pub(super) async fn read_aside<T: Send + 'static>(
    node: &Node,
    patience: Duration,
    read: impl FnOnce(&Reader<RocksStore>) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, Status> {
    let stop = Arc::new(AtomicBool::new(false));
    let waiting = Waiting(Arc::clone(&stop));
    let reader = node.reader().map_err(|error| request_status(&error))?;
    let reader = reader.stopped_by(stop);
    let mut done = tokio::task::spawn_blocking(move || read(&reader));
    let replaced = async {
        while node.reader().is_ok() {
            sleep(LOOK_EVERY).await;
        }
    };
    let read = tokio::select! {
        read = &mut done => read,
        () = async { tokio::select! { () = sleep(patience) => {} () = replaced => {} } } => {
            drop(waiting);
            // In a moment it says how far it came.
            done.await
        }
    };
    read.map_err(|error| Status::internal(format!("the read ended early: {error}")))?
        .map_err(|error| read_status(&error))
}
