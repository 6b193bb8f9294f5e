//! Reads that take a while: on threads where they hold up nobody, in turns that no client has all of, and no longer than
//! somebody waits for them.
//!
//! The threads have less of a processor than all others while these want it, so that a thousand scans are slow and nothing
//! else is. There are few, for more would only wait for each other's disk; whose turn is next goes round by address, so
//! that who asks for little need not wait behind who asks for much.
//!
//! A read that went on after its caller left would keep a thread that others need too, and the state open that a
//! snapshot is to replace.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use dengine_core::kv::{ReadError, Reader};
use dengine_wire::status::{read_status, request_status};
use tokio::{
    runtime::{Builder, Handle},
    time::{sleep, timeout},
};
use tonic::Status;

use super::turns::{Turns, Whose};
use crate::{connections::Share, nicer::Nicer, node::Node, storage::RocksStore};

/// How often it is looked whether the state is still the one that is being read.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Reads at once, for each processor: one that computes, and one that waits for the disk.
const TURNS_PER_PROCESSOR: usize = 2;

/// Where long reads are made. Clones share it.
#[derive(Clone)]
pub(super) struct Aside(Arc<Shared>);

struct Shared {
    turns: Turns,
    threads: Handle,
}

/// Ends the read when it is dropped, as it is with whoever waits.
pub(super) struct Waiting(Arc<AtomicBool>);

impl Waiting {
    /// With what it waits for.
    pub(super) fn with<S>(reader: Reader<S>) -> (Self, Reader<S>) {
        let stop = Arc::new(AtomicBool::new(false));
        (Self(Arc::clone(&stop)), reader.stopped_by(stop))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads for them. To be ended by whoever runs the server, after those who wait for them.
///
/// # Errors
/// The system gives no more threads.
pub(super) fn threads() -> io::Result<Nicer> {
    let mut builder = Builder::new_current_thread();
    builder
        .max_blocking_threads(at_once())
        .thread_name("dengine-aside");
    Nicer::start(&mut builder)
}

fn at_once() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    TURNS_PER_PROCESSOR * processors
}

impl Aside {
    /// On [`threads`]. No more than a handle is kept: what they do has this, by its turn.
    pub(super) fn new(threads: &Nicer) -> Self {
        Self(Arc::new(Shared {
            turns: Turns::new(at_once(), Share::THREE_QUARTERS),
            threads: threads.handle().clone(),
        }))
    }

    /// Reads this member's state for at most `patience`, the wait for a turn included, and until a snapshot is to
    /// replace it.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        node: &Node,
        whose: Whose,
        patience: Duration,
        read: impl FnOnce(&Reader<RocksStore>) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, Status> {
        let begun = Instant::now();
        let turn = timeout(patience, self.0.turns.take(whose)).await;
        let turn = turn.map_err(|_| self.no_turn())?;
        let reader = node.reader().map_err(|error| request_status(&error))?;
        let (waiting, reader) = Waiting::with(reader);
        let mut done = self.0.threads.spawn_blocking(move || {
            // Until the thread is free, whether or not anybody still waits.
            let _turn = turn;
            read(&reader)
        });
        let late = sleep(patience.saturating_sub(begun.elapsed()));
        let replaced = async {
            while node.reader().is_ok() {
                sleep(LOOK_EVERY).await;
            }
        };
        let (read, is_replaced) = tokio::select! {
            read = &mut done => (read, false),
            // In a moment it says how far it came.
            () = late => { drop(waiting); (done.await, false) }
            () = replaced => { drop(waiting); (done.await, true) }
        };
        read.map_err(|error| Status::internal(format!("the read ended early: {error}")))?
            .map_err(|error| given_up(&error, is_replaced))
    }

    fn no_turn(&self) -> Status {
        let at_once = self.0.turns.limit();
        Status::unavailable(format!(
            "this member reads {at_once} ranges at a time, and fewer for one address; the turn of this one did not come in time, and nothing was changed: ask for fewer at once, try again, or ask another member"
        ))
    }
}

/// What the caller of a read is told that ended without a result.
fn given_up(error: &ReadError, is_replaced: bool) -> Status {
    match error {
        // A smaller range would have met the same.
        ReadError::Stopped { .. } if is_replaced => Status::unavailable(
            "a snapshot replaces the state that was read, or this member stops, and nothing was changed: try again, or ask another member",
        ),
        error => read_status(error),
    }
}

#[cfg(test)]
mod tests {
    use dengine_core::types::Revision;
    use tonic::Code;

    use super::*;

    /// It was told to ask for less, and a batch that only reads that it asked for what can not be.
    #[test]
    fn a_read_that_an_installation_ended_may_be_tried_again() {
        let stopped = ReadError::Stopped { records: 7 };
        assert_eq!(given_up(&stopped, true).code(), Code::Unavailable);
        assert_eq!(given_up(&stopped, false).code(), Code::DeadlineExceeded);
        let future = ReadError::Compacted {
            requested: Revision(1),
            compacted: Revision(2),
        };
        assert_eq!(given_up(&future, true).code(), Code::OutOfRange);
    }
}
