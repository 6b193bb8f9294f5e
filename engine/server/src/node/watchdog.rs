//! The thread that looks whether the disk is fit: it tells the replica that space is low, and has a
//! leader hand over whose disk is nearly full or hangs.
//!
//! It asks the store for nothing, which may stand still then, and with it whoever asks.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use dengine_raft::channel::{Receiver, Sender};
use dengine_raft::{Input, Successor};
use tokio::sync::watch;

use super::inbox::{Reply, ToReplica};
use super::metrics;
use super::space::{HandOvers, Space, ToldLow};
use super::status::{NodeStatus, Role};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Watchdog {
    pub(super) status: watch::Receiver<NodeStatus>,
    pub(super) replica: Sender<ToReplica>,
    pub(super) space: Arc<Space>,
    pub(super) hand_overs: HandOvers,
    pub(super) told_low: ToldLow,
}

impl Watchdog {
    /// Works until the other end of `stop` is gone.
    pub(super) fn run(mut self, stop: &Receiver<()>) {
        while stop.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
            self.look();
        }
    }

    fn look(&mut self) {
        self.space.look_and_tell();
        let low = self.space.is_low();
        if self.told_low.is_due(low, Instant::now()) {
            // If the replica is gone, it need not know.
            let _ = self.replica.send(Input::LowOnSpace(low).into());
        }
        let (leads, stalled) = {
            let status = self.status.borrow();
            (status.role == Role::Leader, status.stalled)
        };
        let unfit = low || stalled;
        if self.hand_overs.is_due(unfit, leads, Instant::now()) {
            // A member whose disk gets on leads better than one whose disk does not, even if it is
            // nearly full.
            self.hand_over(match stalled {
                true => Successor::Soonest,
                false => Successor::Fit,
            });
        }
        ::metrics::gauge!(metrics::DISK_FREE_BYTES).set(self.space.free_bytes() as f64);
        ::metrics::gauge!(metrics::LOW_ON_SPACE).set(f64::from(u8::from(low)));
    }

    fn hand_over(&self, to: Successor) {
        let (caller, _) = Reply::channel();
        // If the replica is gone, it need not know.
        let _ = self.replica.send(ToReplica::Transfer(to, caller));
    }
}
