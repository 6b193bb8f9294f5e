//! Threads that serve besides those of the runtime: one runtime each for clients' connections, one
//! that reads for watches, one that passes on to the leader, and nicer ones for whoever is heavy
//! and for reads that take long.
//!
//! They belong to whoever runs the server, as its runtime does. What they do holds the node, and
//! with it the store: if it kept them as well, they would go on when the server has ended, up to
//! the end of the process and under it.

use std::io;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::aside;
use crate::connections;
use crate::nicer::Nicer;
use crate::node::Takes;
use crate::single_thread::SingleThread;

/// More would wait for the one thread that orders what clients write. Each has some file
/// descriptors, for which nothing else makes room.
const CLIENT_THREADS_MAX: usize = 16;

/// All of them.
#[derive(Debug)]
pub struct ServerThreads {
    /// For connections of clients and operators, as many as there are processors, up to
    /// [`CLIENT_THREADS_MAX`].
    pub(super) clients: Vec<SingleThread>,
    /// For whoever is heavy, as many.
    pub(super) heavy: Nicer,
    /// Reads new history for watches. If that were handed to the runtime, each revision would wake
    /// two threads before any client's.
    pub(super) history: SingleThread,
    /// Has the connections to leaders, of whatever is passed on. The runtime would wake two threads
    /// for each call, and again for its answer.
    pub(super) forward: SingleThread,
    /// For reads that take long.
    pub(super) aside: Nicer,
}

impl ServerThreads {
    /// Starts all of them.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub fn start() -> io::Result<Self> {
        let count = available_parallelism().map_or(1, usize::from);
        let count = count.min(CLIENT_THREADS_MAX);
        let clients = (0..count).map(|_| SingleThread::start("dengine-clients", Takes::Replica));
        Ok(Self {
            clients: clients.collect::<io::Result<_>>()?,
            heavy: connections::threads_for_heavy(count)?,
            history: SingleThread::start("dengine-history", Takes::Replica)?,
            forward: SingleThread::start("dengine-forward", Takes::Nothing)?,
            aside: aside::threads()?,
        })
    }

    /// Ends them and the runtime, and waits until nothing that they did is left, but no longer than
    /// `patience` in all.
    pub fn end(self, runtime: Runtime, patience: Duration) {
        let until = Instant::now() + patience;
        let left = || until.saturating_duration_since(Instant::now());
        // What is done for whoever is heavy has its sockets and some of its timers with the
        // others, and these have timers of the runtime.
        self.heavy.end(left());
        let others = [self.history, self.forward];
        SingleThread::end_all(self.clients.into_iter().chain(others), left());
        runtime.shutdown_timeout(left());
        // Nobody waits for these any more, so they end early.
        self.aside.end(left());
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// Reads of everything go on for as long as somebody waits for them.
    #[test]
    fn a_long_read_ends_with_who_waits_for_it() {
        let runtime = Runtime::new().unwrap();
        let threads = ServerThreads::start().unwrap();
        let (waits, left) = oneshot::channel::<()>();
        threads
            .aside
            .handle()
            .spawn_blocking(|| left.blocking_recv());
        runtime.spawn(async {
            let _waits = waits;
            std::future::pending::<()>().await;
        });
        let begun = Instant::now();
        threads.end(runtime, Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
