//! Between the `raft` crate's types and ours.
//!
//! The crate wants a membership change as its own `ConfChangeV2`, which it decodes when the change
//! is proposed and never again. Our log keeps only what our state machine applies: that is the
//! `ConfChangeV2`'s context, and the envelope is put around it again on the way in.

use bytes::Bytes;
use dengine_types::{Entry, EntryKind, HardState, Index, MemberId, Term};
use prost_raft::Message as _;
use raft::eraftpb;

use super::decode;
use super::types::{ConfigChange, ConfigChangeKind, Proposal};

pub(super) fn entry_to_raft(entry: &Entry) -> eraftpb::Entry {
    let (entry_type, data) = match entry.kind {
        EntryKind::Command => (eraftpb::EntryType::EntryNormal, entry.data.to_vec()),
        EntryKind::Membership => (
            eraftpb::EntryType::EntryConfChangeV2,
            envelope(None, &entry.data),
        ),
    };
    eraftpb::Entry {
        entry_type: entry_type.into(),
        term: entry.term.0,
        index: entry.index.0,
        data,
        context: entry.context.to_vec(),
        sync_log: false,
    }
}

/// # Errors
/// The envelope of a membership change does not decode.
pub(super) fn entry_from_raft(entry: eraftpb::Entry) -> Result<Entry, prost_raft::DecodeError> {
    let (kind, data) = match entry.entry_type() {
        eraftpb::EntryType::EntryNormal => (EntryKind::Command, Bytes::from(entry.data)),
        // No member makes the first version; `is_readable` refuses it from peers.
        eraftpb::EntryType::EntryConfChange | eraftpb::EntryType::EntryConfChangeV2 => {
            let change = decode::change(&entry.data)?;
            (EntryKind::Membership, Bytes::from(change.context))
        }
    };
    Ok(Entry {
        index: Index(entry.index),
        term: Term(entry.term),
        kind,
        context: Bytes::from(entry.context),
        data,
    })
}

/// Whether [`entry_from_raft`] can take an entry that a peer sent.
pub(super) fn is_readable(entry: &eraftpb::Entry) -> bool {
    match eraftpb::EntryType::from_i32(entry.entry_type) {
        Some(eraftpb::EntryType::EntryNormal) => true,
        Some(eraftpb::EntryType::EntryConfChangeV2) => decode::change(&entry.data).is_ok(),
        Some(eraftpb::EntryType::EntryConfChange) | None => false,
    }
}

pub(super) fn command_to_raft(proposal: Proposal) -> eraftpb::Entry {
    eraftpb::Entry {
        data: proposal.data.into(),
        context: proposal.context,
        ..eraftpb::Entry::default()
    }
}

pub(super) fn change_to_raft(proposal: Proposal, change: ConfigChange) -> eraftpb::Entry {
    eraftpb::Entry {
        entry_type: eraftpb::EntryType::EntryConfChangeV2.into(),
        data: envelope(Some(change), &proposal.data),
        context: proposal.context,
        ..eraftpb::Entry::default()
    }
}

fn envelope(change: Option<ConfigChange>, data: &Bytes) -> Vec<u8> {
    let mut envelope = change.map(conf_change).unwrap_or_default();
    envelope.context = data.to_vec();
    envelope.encode_to_vec()
}

pub(super) fn conf_change(change: ConfigChange) -> eraftpb::ConfChangeV2 {
    let change_type = match change.kind {
        ConfigChangeKind::AddLearner => eraftpb::ConfChangeType::AddLearnerNode,
        ConfigChangeKind::AddVoter => eraftpb::ConfChangeType::AddNode,
        ConfigChangeKind::Remove => eraftpb::ConfChangeType::RemoveNode,
    };
    eraftpb::ConfChangeV2 {
        changes: vec![eraftpb::ConfChangeSingle {
            change_type: change_type.into(),
            node_id: change.member.0,
        }],
        ..eraftpb::ConfChangeV2::default()
    }
}

pub(super) fn hard_state_to_raft(state: HardState) -> eraftpb::HardState {
    eraftpb::HardState {
        term: state.term.0,
        vote: state.vote.0,
        commit: state.commit.0,
    }
}

pub(super) fn hard_state_from_raft(state: &eraftpb::HardState) -> HardState {
    HardState {
        term: Term(state.term),
        vote: MemberId(state.vote),
        commit: Index(state.commit),
    }
}
