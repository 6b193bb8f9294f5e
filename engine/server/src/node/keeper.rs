//! The thread that keeps the store small: proposes compactions and expiries while this member
//! leads, removes what was compacted, and looks how much space is taken.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use dengine_kv::{Collector, ReadError, StoreError};
use dengine_raft::Input;
use dengine_raft::channel::{Receiver, Sender};
use dengine_raft::replica::{CommandGate, Keeper};
use tokio::sync::watch;

use super::inbox::ToReplica;
use super::space::{SizeLooks, StateSize};
use super::status::{NodeStatus, Role};
use super::{clock, metrics};
use crate::error::Fatal;
use crate::storage::RocksStore;

/// How long obsolete versions are removed at a time.
const COLLECT_MAX: Duration = Duration::from_millis(100);
/// The same while keys wait to be expired.
const COLLECT_MAX_WHILE_BEHIND: Duration = Duration::from_millis(1);

/// Changes looked at in one step of the collection: about a millisecond of work.
const COLLECT_STEP: usize = 1024;

pub(super) struct KeeperThread {
    pub(super) keeper: Keeper<RocksStore>,
    pub(super) collector: Collector<RocksStore>,
    /// It works for as long as this thread does.
    pub(super) _reclaimer_lives: Sender<()>,
    pub(super) status: watch::Receiver<NodeStatus>,
    pub(super) replica: Sender<ToReplica>,
    pub(super) state_size: Arc<StateSize>,
    pub(super) size_looks: SizeLooks,
    pub(super) command_gate: Arc<CommandGate>,
}

impl KeeperThread {
    /// Works until the other end of `stop` is gone.
    pub(super) fn run(mut self, stop: &Receiver<()>) {
        while stop.recv_timeout(self.keeper.pause()) == Err(RecvTimeoutError::Timeout) {
            if let Err(error) = self.work() {
                // If the replica is gone too, somebody reported before us.
                let failed = ToReplica::Failed(Fatal::State(of_the_store(error)));
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
        let commands = self
            .keeper
            .work(leads, self.command_gate.version(), clock::now)?;
        if !commands.is_empty() {
            // If the replica is gone, it need not know.
            let _ = self.replica.send(Input::Propose(commands).into());
        }
        let behind = self.keeper.behind().unwrap_or_default();
        ::metrics::gauge!(metrics::EXPIRY_BEHIND_SECONDS).set(behind.as_secs_f64());
        self.look_at_size();
        self.collect()
    }

    fn look_at_size(&mut self) {
        let begun = Instant::now();
        if self.size_looks.is_due(begun) {
            self.state_size.look();
            self.size_looks.looked(begun, begun.elapsed());
        }
    }

    /// Keeps up with any rate of writes, and still lets the rest of the work have its turn. What
    /// finds no space waits for the next time.
    fn collect(&mut self) -> Result<(), ReadError> {
        let start = Instant::now();
        let most = match self.keeper.behind() {
            Some(_) => COLLECT_MAX_WHILE_BEHIND,
            None => COLLECT_MAX,
        };
        while start.elapsed() < most {
            match self.collector.step(COLLECT_STEP) {
                Ok(collected) if collected.done => break,
                Err(StoreError::NoSpace { .. }) => break,
                collected => drop(collected?),
            }
        }
        Ok(())
    }
}

/// This thread reads what is there now, so that nothing but the store can fail it.
fn of_the_store(error: ReadError) -> StoreError {
    match error {
        ReadError::Store(error) => error,
        other => StoreError::Failed {
            doing: "looking after what expires",
            reason: other.to_string(),
        },
    }
}
