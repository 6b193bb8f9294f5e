//! The thread that keeps the store small: proposes compactions and expiries while this member leads, and
//! removes what was compacted.

use super::clock;
use super::input::Input;
use super::status::{NodeStatus, Role};
use crate::error::Fatal;
use crate::storage::RocksStore;
use dengine_core::kv::{Collector, ReadError};
use dengine_core::replica::{self, Keeper};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How late an expiry may be noticed, and how long obsolete versions may stay.
const INTERVAL: Duration = Duration::from_millis(100);

/// Changes looked at in one step of the collection: a few milliseconds of work.
const COLLECT_STEP: usize = 4096;

pub(super) struct KeeperThread {
    pub(super) keeper: Keeper<RocksStore>,
    pub(super) collector: Collector<RocksStore>,
    pub(super) status: watch::Receiver<NodeStatus>,
    pub(super) replica: Sender<Input>,
}

impl KeeperThread {
    /// Works until the other end of `stop` is gone.
    pub(super) fn run(mut self, stop: &Receiver<()>) {
        while stop.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if let Err(error) = self.work() {
                // If the replica is gone too, somebody reported before us.
                let failed = Input::Failed(Fatal::State(error.to_string()));
                let _ = self.replica.send(failed);
                return;
            }
        }
    }

    fn work(&mut self) -> Result<(), ReadError> {
        let leads = {
            let status = self.status.borrow();
            (status.role == Role::Leader).then_some(status.term)
        };
        let commands = self.keeper.work(leads, clock::now())?;
        if !commands.is_empty() {
            // If the replica is gone, nobody needs to know.
            let _ = self.replica.send(replica::Input::Propose(commands).into());
        }
        self.collect()
    }

    /// Keeps up with any rate of writes, and still lets the rest of the work have its turn.
    fn collect(&mut self) -> Result<(), ReadError> {
        let start = Instant::now();
        while !self.collector.step(COLLECT_STEP)?.done && start.elapsed() < INTERVAL {}
        Ok(())
    }
}
