//! The leader's lease: how long it may answer reads without asking a quorum (Raft thesis §6.4.1).
//!
//! A round of messages that a quorum acknowledged proves that nobody else can lead before an election
//! timeout has passed since it was sent: whoever acknowledged it grants no vote until then, whatever else it
//! hears (`driver/heartbeats.rs`). That holds only if a member that restarts grants none for as long
//! ([`super::Consensus`] sees to that), if nobody is asked to campaign early (a transfer ends the lease for
//! its term), and if the quorum is still one (a membership change drops it).

use crate::types::{Moment, Term};
use std::time::Duration;

pub(super) struct Lease {
    duration: Duration,
    /// The term and the sending time of the newest round that a quorum acknowledged.
    confirmed: Option<(Term, Moment)>,
    /// Up to this term there is none any more: leadership was being handed over.
    ended: Term,
}

impl Lease {
    pub(super) fn new(duration: Duration) -> Self {
        Self {
            duration,
            confirmed: None,
            ended: Term(0),
        }
    }

    /// A quorum acknowledged a round that was sent at `started`, or later.
    pub(super) fn confirm(&mut self, term: Term, started: Moment) {
        self.confirmed = self.confirmed.max(Some((term, started)));
    }

    /// Before this moment nobody else can have been elected.
    pub(super) fn until(&self, term: Term) -> Option<Moment> {
        let (_, started) = self
            .confirmed
            .filter(|(confirmed, _)| *confirmed == term && term > self.ended)?;
        Some(started.after(self.duration))
    }

    /// No lease in this term any more.
    pub(super) fn end(&mut self, term: Term) {
        self.ended = self.ended.max(term);
    }

    /// No lease until another round is acknowledged.
    pub(super) fn drop_until_confirmed(&mut self) {
        self.confirmed = None;
    }
}
