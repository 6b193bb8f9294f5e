//! Snapshots: what a leader sends to those whose entries are gone, and what becomes of one that
//! came.

use std::collections::BTreeSet;

use bytes::Bytes;
use dengine_log::Position;
use dengine_types::{Index, MemberId, Term};
use raft::{SnapshotStatus, StateRole, eraftpb};

use super::Consensus;
use crate::consensus::decode;
use crate::consensus::log_view::LogRead;
use crate::consensus::validate::{self, PeerMessageError};
use crate::input::SnapshotMeta;
use crate::output::Output;

/// Where things stand between the outputs and the inputs that answer them.
#[derive(Default)]
pub(super) struct Snapshots {
    /// One is being made.
    making: bool,
    /// To whom the one that was made is on its way. No other is made meanwhile.
    sending: BTreeSet<MemberId>,
    /// One was received and accepted; this consensus has ended.
    installing: Option<Position>,
    install_handed_out: bool,
}

impl Snapshots {
    pub(super) fn is_installing(&self) -> bool {
        self.installing.is_some()
    }
}

impl<L: LogRead> Consensus<L> {
    /// The last entry of the snapshot that followers are sent; the log must keep what follows it.
    #[must_use]
    pub fn snapshot_index(&self) -> Option<Index> {
        self.node.store().snapshot_index()
    }

    /// Takes back the snapshot that followers may be sent, unless it is on its way to one. If it is
    /// wanted again, another one is made.
    pub fn withdraw_snapshot(&mut self) {
        if self.snapshots.sending.is_empty() {
            self.node.mut_store().offer_snapshot(None);
        }
    }

    /// Whether a snapshot that was received has ended this consensus, or a leader whose log
    /// contradicts this member's.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.snapshots.is_installing() || self.contradictions.has_ended()
    }

    /// Whether a snapshot for followers is being made, or is on its way to one.
    #[must_use]
    pub fn is_busy_with_a_snapshot(&self) -> bool {
        self.snapshots.making || !self.snapshots.sending.is_empty()
    }

    pub(super) fn ask_for_snapshot(&mut self) {
        let free = !self.is_busy_with_a_snapshot();
        if free && self.node.store().wants_snapshot() {
            self.snapshots.making = true;
            self.outputs.push(Output::MakeSnapshot);
        }
    }

    pub(super) fn on_snapshot_made(&mut self, made: Option<&SnapshotMeta>) {
        self.snapshots.making = false;
        // The crate asks again at the next sign of life of the follower that needs it.
        let snapshot = made.map(to_raft);
        self.node.mut_store().offer_snapshot(snapshot);
    }

    pub(super) fn send_snapshot(&mut self, to: MemberId, message: Bytes) {
        self.snapshots.sending.insert(to);
        self.outputs.push(Output::SendSnapshot { to, message });
    }

    pub(super) fn on_snapshot_sent(&mut self, to: MemberId, ok: bool) {
        self.snapshots.sending.remove(&to);
        if self.snapshots.sending.is_empty() {
            // The next follower gets a newer one, and the log may go on without this one.
            self.node.mut_store().offer_snapshot(None);
        }
        if self.node.raft.state == StateRole::Leader {
            let status = if ok {
                SnapshotStatus::Finish
            } else {
                SnapshotStatus::Failure
            };
            self.node.report_snapshot(to.0, status);
        }
    }

    pub(super) fn on_snapshot(
        &mut self,
        from: MemberId,
        message: &Bytes,
    ) -> Result<(), PeerMessageError> {
        let message = decode::message(message)?;
        let term_max = self.term_max();
        if let Err(error) = validate::check_snapshot(&self.node.raft, from.0, &message, term_max) {
            if let PeerMessageError::Contradiction { index } = error {
                self.note_contradiction(from, Term(message.term), Index(index));
            }
            return Err(error);
        }
        self.note_heard(from);
        let _ = self.node.step(message);
        // The crate does not take what the log here already agrees with, or what it is not part of.
        self.snapshots.installing = self.node.raft.snap().map(|snapshot| Position {
            index: Index(snapshot.get_metadata().index),
            term: Term(snapshot.get_metadata().term),
        });
        Ok(())
    }

    /// Nothing that happened since the snapshot was accepted is handed out: the member begins again
    /// from what the reset log says.
    pub(super) fn install(&mut self) {
        let Some(base) = self.snapshots.installing else {
            return;
        };
        if !std::mem::replace(&mut self.snapshots.install_handed_out, true) {
            // It commits the base: the crate takes all that a snapshot contains for committed.
            let hard_state = self.hard_state();
            self.outputs.push(Output::Install { base, hard_state });
        }
    }
}

/// Where the snapshot ends of which a leader's message speaks; `None` if it speaks of none.
#[must_use]
pub fn snapshot_position(message: &Bytes) -> Option<Position> {
    let message = decode::message(message).ok()?;
    let meta = message.snapshot?.metadata?;
    Some(Position {
        index: Index(meta.index),
        term: Term(meta.term),
    })
}

fn to_raft(meta: &SnapshotMeta) -> eraftpb::Snapshot {
    let ids = |members: &[MemberId]| members.iter().map(|id| id.0).collect();
    let metadata = eraftpb::SnapshotMetadata {
        index: meta.last.index.0,
        term: meta.last.term.0,
        conf_state: Some(eraftpb::ConfState {
            voters: ids(&meta.voters),
            learners: ids(&meta.learners),
            ..eraftpb::ConfState::default()
        }),
    };
    eraftpb::Snapshot {
        metadata: Some(metadata),
        ..eraftpb::Snapshot::default()
    }
}
