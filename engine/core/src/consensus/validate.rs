//! Refuses what a peer must never send.
//!
//! The `raft` crate trusts its peers: an append that contradicts a committed entry, or an
//! acknowledgement beyond the log's end, ends the process. A lying or confused peer must not be able to
//! do that, so everything is checked here first.

use super::convert;
use raft::eraftpb::{Message, MessageType};
use raft::{Raft, Storage};

/// Why a peer's message was dropped. It changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum PeerMessageError {
    /// The bytes are no Raft message.
    #[error("does not decode: {0}")]
    Decode(#[from] prost_raft::DecodeError),
    /// The stream belongs to another member than the message claims.
    #[error("claims to be from member {claimed} on a stream of member {stream}")]
    Sender {
        /// In the message.
        claimed: u64,
        /// In the stream's Hello.
        stream: u64,
    },
    /// It is for somebody else.
    #[error("is for member {to}, this is member {id}")]
    Receiver {
        /// In the message.
        to: u64,
        /// This member.
        id: u64,
    },
    /// Members never send this kind to each other.
    #[error("message type {0} is not one that members exchange")]
    Kind(i32),
    /// It lacks a term, or has one where none belongs.
    #[error("term {0} is impossible for its type")]
    Term(u64),
    /// Its entries do not follow each other, or are of a later term than the message.
    #[error("entries do not follow from index {index} in term {term}")]
    Entries {
        /// The index before the first entry.
        index: u64,
        /// The message's term.
        term: u64,
    },
    /// One of its entries is of no known kind, or its membership change does not decode.
    #[error("entry {index} cannot be read")]
    Entry {
        /// Which one.
        index: u64,
    },
    /// It would change an entry that is committed here.
    #[error("contradicts the committed entry {index}")]
    Contradiction {
        /// Which one.
        index: u64,
    },
    /// It speaks of entries that this member never had.
    #[error("speaks of entry {index}; the log here ends at {last}")]
    BeyondLog {
        /// Which one.
        index: u64,
        /// The last one here.
        last: u64,
    },
    /// Only the current leader may send this.
    #[error("comes from member {from}, which does not lead here")]
    NotFromLeader {
        /// Who sent it.
        from: u64,
    },
    /// It carries the wrong number of read contexts.
    #[error("carries {count} read contexts instead of one")]
    ReadContext {
        /// How many.
        count: usize,
    },
}

/// # Errors
/// The first reason not to step `message`.
pub(super) fn check<S: Storage>(
    raft: &Raft<S>,
    stream: u64,
    message: &Message,
) -> Result<(), PeerMessageError> {
    if message.from != stream {
        return Err(PeerMessageError::Sender {
            claimed: message.from,
            stream,
        });
    }
    if message.to != raft.id {
        return Err(PeerMessageError::Receiver {
            to: message.to,
            id: raft.id,
        });
    }
    check_term(message)?;
    match message.msg_type() {
        MessageType::MsgAppend => check_append(raft, message),
        MessageType::MsgHeartbeat => check_index(raft, message, message.commit),
        MessageType::MsgAppendResponse if !message.reject => {
            check_index(raft, message, message.index)
        }
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => check_read(message),
        MessageType::MsgTimeoutNow => check_leader(raft, message),
        MessageType::MsgAppendResponse
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse => Ok(()),
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgPropose
        | MessageType::MsgSnapshot
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum
        | MessageType::MsgTransferLeader => Err(PeerMessageError::Kind(message.msg_type)),
    }
}

/// The crate takes a message without a term for a local one and skips all its checks of terms.
fn check_term(message: &Message) -> Result<(), PeerMessageError> {
    // An unknown type reads as the default one, so it is told apart by its number.
    if MessageType::from_i32(message.msg_type).is_none() {
        return Err(PeerMessageError::Kind(message.msg_type));
    }
    let without_term = message.msg_type() == MessageType::MsgReadIndex;
    if (message.term == 0) != without_term {
        return Err(PeerMessageError::Term(message.term));
    }
    Ok(())
}

fn check_append<S: Storage>(raft: &Raft<S>, message: &Message) -> Result<(), PeerMessageError> {
    let broken = || PeerMessageError::Entries {
        index: message.index,
        term: message.term,
    };
    let mut term = message.log_term;
    for (entry, offset) in message.entries.iter().zip(1..) {
        let index = message.index.checked_add(offset).ok_or_else(broken)?;
        if entry.index != index || entry.term < term || entry.term > message.term {
            return Err(broken());
        }
        if !convert::is_readable(entry) {
            return Err(PeerMessageError::Entry { index });
        }
        term = entry.term;
    }
    // A stale append of an earlier term is answered, not taken, so it may contradict anything.
    if message.term < raft.term {
        return Ok(());
    }
    let committed = raft.raft_log.committed;
    let contradiction = message
        .entries
        .iter()
        .take_while(|entry| entry.index <= committed)
        .find(|entry| {
            raft.raft_log
                .term(entry.index)
                .is_ok_and(|term| term != entry.term)
        });
    match contradiction {
        Some(entry) => Err(PeerMessageError::Contradiction { index: entry.index }),
        None => Ok(()),
    }
}

fn check_index<S: Storage>(
    raft: &Raft<S>,
    message: &Message,
    index: u64,
) -> Result<(), PeerMessageError> {
    let last = raft.raft_log.last_index();
    if message.term >= raft.term && index > last {
        return Err(PeerMessageError::BeyondLog { index, last });
    }
    Ok(())
}

fn check_read(message: &Message) -> Result<(), PeerMessageError> {
    match message.entries.len() {
        1 => Ok(()),
        count => Err(PeerMessageError::ReadContext { count }),
    }
}

fn check_leader<S: Storage>(raft: &Raft<S>, message: &Message) -> Result<(), PeerMessageError> {
    if message.term == raft.term && raft.leader_id == message.from {
        return Ok(());
    }
    Err(PeerMessageError::NotFromLeader { from: message.from })
}
