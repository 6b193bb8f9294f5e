//! What can happen to a member, as scripts and random tests tell it.

use crate::consensus::{ConfigChange, Consensus, LogRead, PeerMessageError, Proposal, Refusal};
use crate::input::{AppendId, SnapshotMeta, Token};
use bytes::Bytes;
use dengine_types::{Index, MemberId};

/// One of the methods of [`Consensus`], and what it is called with.
#[derive(Clone, Debug)]
pub(in crate::consensus) enum Event {
    Tick,
    Message {
        from: MemberId,
        bytes: Bytes,
    },
    Propose(Vec<Proposal>),
    ProposeChange {
        proposal: Proposal,
        change: ConfigChange,
    },
    Read(Token),
    LeaseRead(Token),
    Persisted(AppendId),
    Applied {
        index: Index,
        changes: Vec<ConfigChange>,
    },
    TransferLeader(MemberId),
    Unreachable(MemberId),
    SnapshotMade(Option<SnapshotMeta>),
    SnapshotSent {
        to: MemberId,
        ok: bool,
    },
    Snapshot {
        from: MemberId,
        message: Bytes,
    },
    Truncate(Index),
}

/// What a member says at once.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::consensus) enum Said {
    /// Nothing.
    Nothing,
    /// Where the first of what was proposed stands, or why none was taken.
    Proposed(Result<Index, Refusal>),
    /// The lease covers this read.
    MayRead(Token, Index),
    /// These reads are not confirmed.
    ReadsRefused(Vec<Token>, Refusal),
}

impl<L: LogRead> Consensus<L> {
    /// Lets it happen, whatever the member says of it.
    pub(in crate::consensus) fn step(&mut self, event: Event) -> Result<(), PeerMessageError> {
        self.hear(event).map(|_| ())
    }

    /// Lets it happen.
    pub(in crate::consensus) fn hear(&mut self, event: Event) -> Result<Said, PeerMessageError> {
        if self.has_ended() {
            return Ok(Said::Nothing);
        }
        let refused = |token, refusal| Said::ReadsRefused(vec![token], refusal);
        match event {
            Event::Tick => {
                let late = self.tick();
                if !late.is_empty() {
                    return Ok(Said::ReadsRefused(late, Refusal::NoQuorum));
                }
            }
            Event::Message { from, bytes } => self.message(from, &bytes)?,
            Event::Propose(proposals) => return Ok(Said::Proposed(self.propose(proposals))),
            Event::ProposeChange { proposal, change } => {
                return Ok(Said::Proposed(self.propose_change(proposal, change)));
            }
            Event::Read(token) => {
                if let Err(refusal) = self.read(token) {
                    return Ok(refused(token, refusal));
                }
            }
            Event::LeaseRead(token) => match self.lease_read(token) {
                Ok(Some(index)) => return Ok(Said::MayRead(token, index)),
                Ok(None) => {}
                Err(refusal) => return Ok(refused(token, refusal)),
            },
            Event::Persisted(id) => self.persisted(id),
            Event::Applied { index, changes } => self.applied(index, &changes),
            Event::TransferLeader(to) => self.transfer_leader(to),
            Event::Unreachable(member) => self.unreachable(member),
            Event::SnapshotMade(made) => self.snapshot_made(made.as_ref()),
            Event::SnapshotSent { to, ok } => self.snapshot_sent(to, ok),
            Event::Snapshot { from, message } => self.snapshot_staged(from, &message)?,
            Event::Truncate(index) => self.truncate(index),
        }
        Ok(Said::Nothing)
    }
}
