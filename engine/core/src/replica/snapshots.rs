//! How much of the log is kept, and what becomes of snapshots.

use super::input::{Effect, LogJob};
use super::{Env, Replica};
use crate::consensus::{Event, LogRead, Role};
use crate::types::{Index, MemberId};
use bytes::Bytes;

impl<L: LogRead, E: Env> Replica<L, E> {
    /// Drops what nobody needs any more of the log, now that the state machine is on disk up to
    /// `flushed`.
    pub(super) fn on_flushed(&mut self, flushed: Index) {
        self.flushed = self.flushed.max(flushed);
        let upto = self.truncatable();
        if upto.next() > self.consensus.first_index() {
            // First here: consensus must not read what the log is about to drop.
            self.step(Event::Truncate(upto));
            self.effects.push(Effect::Log(LogJob::TruncatePrefix(upto)));
        }
    }

    /// What is flushed, but for the newest part of the log, a longer part while a member that answers is
    /// behind, and what follows a snapshot that is on its way.
    fn truncatable(&self) -> Index {
        let keep_from = |bytes| self.log.keep_from(bytes);
        let mut keep = keep_from(self.config.log_keep_bytes);
        if self.consensus.state().role == Role::Leader {
            let progress = self.consensus.progress();
            let behind = progress.iter().filter(|p| p.recently_active);
            let needed = behind.map(|p| p.matched.next()).min();
            let longest = keep_from(self.config.log_keep_bytes_for_followers);
            keep = keep.min(needed.unwrap_or(keep).max(longest));
        }
        if let Some(snapshot) = self.consensus.snapshot_index() {
            keep = keep.min(snapshot.next());
        }
        self.flushed.min(Index(keep.0.saturating_sub(1)))
    }

    pub(super) fn on_snapshot_staged(&mut self, from: MemberId, message: Bytes) {
        self.step(Event::Snapshot { from, message });
        if !self.consensus.has_ended() {
            self.effects.push(Effect::DiscardStaged);
        }
    }
}
