//! Refuses what a peer must never send.
//!
//! The `raft` crate trusts its peers: an append that contradicts a committed entry, or an
//! acknowledgement beyond the log's end, ends the process. A lying or confused peer must not be
//! able to do that, so everything is checked here first.

use dengine_kv::membership::MEMBERS_MAX;
use dengine_log::CONTEXT_BYTES_MAX;
use dengine_planted::planted;
use dengine_types::NUMBER_MAX;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{Raft, StateRole, Storage};

use super::convert;
use super::driver::passing;
use super::reads::RoundContext;

/// Rounds of reads that a leader keeps track of for its peers; each has one at a time.
const READ_ROUNDS_MAX: usize = 1024;

/// Why a peer's message was dropped. It changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum PeerMessageError {
    /// The bytes are no Raft message.
    #[error("does not decode: {0}")]
    Decode(#[from] prost_raft::DecodeError),
    /// More than a member puts into a message of that size.
    #[error("has {0} entries, more than a message of its size")]
    TooManyEntries(usize),
    /// The stream belongs to another member than the message claims.
    #[error("claims to be from member {claimed} on a stream of member {stream}")]
    Sender {
        /// In the message.
        claimed: u64,
        /// In the stream's Hello.
        stream: u64,
    },
    /// The stream is this member's own, or nobody's.
    #[error("comes from {from}, which is no peer")]
    NoPeer {
        /// Who sent it.
        from: u64,
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
    /// It lacks a term, has one where none belongs, or one that no cluster gets to.
    #[error("has the impossible term {0}")]
    Term(u64),
    /// Its entries do not follow each other, or their terms are impossible.
    #[error("entries do not follow from index {index} in term {term}")]
    Entries {
        /// The index before the first entry.
        index: u64,
        /// The message's term.
        term: u64,
    },
    /// One of its entries is of no known kind, its membership change does not decode, or no log
    /// takes it.
    #[error("entry {index} cannot be read")]
    Entry { index: u64 },
    /// It would change an entry that is committed here.
    #[error("contradicts the committed entry {index}")]
    Contradiction { index: u64 },
    /// It speaks of entries that this member never had.
    #[error("refers to entry {index}; the log here ends at {last}")]
    BeyondLog {
        index: u64,
        /// The last one here.
        last: u64,
    },
    /// Only the leader of that term may send this, and a term has one leader (Raft thesis §3.4).
    #[error("comes from member {from}, which does not lead here")]
    NotFromLeader {
        /// Who sent it.
        from: u64,
    },
    /// It carries no read context, several, or one that its sender may not use.
    #[error("carries a read context that is not its sender's")]
    ReadContext,
    /// Its sender has more reads to confirm than members ever have.
    #[error("is a read beyond the {0} that are being confirmed")]
    TooManyReads(usize),
    /// It rejects an append that was never sent, or suggests one after it.
    #[error("rejects the append after entry {index} and suggests entry {hint}")]
    Rejection {
        /// The entry before the rejected ones.
        index: u64,
        /// Where to go on instead.
        hint: u64,
    },
    /// It passes on no commands, some without or with another member's contexts, or names no
    /// client; or it refuses what this member has not passed on.
    #[error("passes on what no member does")]
    PassedOn,
    /// It wants a snapshot; members do not ask for those.
    #[error("asks for a snapshot")]
    Snapshot,
    /// It carries something that its kind has no use for.
    #[error("has fields that messages of type {0} never have")]
    Ballast(i32),
    /// What it says of a snapshot contradicts itself.
    #[error("describes an impossible snapshot")]
    SnapshotMeta,
    /// It would make this member lead before its own log is on disk, so it answers or orders
    /// something that cannot have happened.
    #[error("comes before this member's log is on disk")]
    Early,
}

/// # Errors
/// The first reason not to step `message`.
pub(super) fn check<S: Storage>(
    raft: &Raft<S>,
    stream: u64,
    message: &Message,
    term_max: u64,
) -> Result<(), PeerMessageError> {
    check_address(raft, stream, message)?;
    check_term(message, term_max)?;
    check_ballast(message)?;
    match message.msg_type() {
        MessageType::MsgAppend => check_append(raft, message),
        MessageType::MsgHeartbeat => check_heartbeat(raft, message),
        MessageType::MsgAppendResponse => check_append_response(raft, message),
        MessageType::MsgReadIndex => check_read(raft, message),
        MessageType::MsgReadIndexResp => check_read_response(raft, message),
        MessageType::MsgTimeoutNow => check_timeout_now(raft, message),
        MessageType::MsgRequestVoteResponse => check_vote_response(raft, message),
        MessageType::MsgPropose => check_passed_on(raft, message),
        MessageType::MsgHeartbeatResponse
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse => Ok(()),
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgSnapshot
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum
        | MessageType::MsgTransferLeader => Err(PeerMessageError::Kind(message.msg_type)),
    }
}

/// # Errors
/// The first reason not to step `message`, with which a snapshot came.
pub(super) fn check_snapshot<S: Storage>(
    raft: &Raft<S>,
    stream: u64,
    message: &Message,
    term_max: u64,
) -> Result<(), PeerMessageError> {
    check_address(raft, stream, message)?;
    check_term(message, term_max)?;
    check_leader(raft, message)?;
    if message.msg_type() != MessageType::MsgSnapshot {
        return Err(PeerMessageError::Kind(message.msg_type));
    }
    let meta = message.get_snapshot().get_metadata();
    let conf = meta.get_conf_state();
    // The crate looks at all members for each of them.
    if conf.voters.len() + conf.learners.len() > MEMBERS_MAX {
        return Err(PeerMessageError::SnapshotMeta);
    }
    let mut members: Vec<_> = conf.voters.iter().chain(&conf.learners).collect();
    members.sort_unstable();
    members.dedup();
    let joint = [&conf.voters_outgoing, &conf.learners_next];
    let single = joint.iter().all(|ids| ids.is_empty()) && !conf.auto_leave;
    let distinct = members.len() == conf.voters.len() + conf.learners.len();
    let index = (1..=NUMBER_MAX).contains(&meta.index);
    let position = index && (1..=message.term).contains(&meta.term);
    if !position || conf.voters.is_empty() || !distinct || !single || members.contains(&&0) {
        return Err(PeerMessageError::SnapshotMeta);
    }
    if contradicts(raft, meta.index, meta.term) {
        return Err(PeerMessageError::Contradiction { index: meta.index });
    }
    Ok(())
}

pub(super) fn check_address<S: Storage>(
    raft: &Raft<S>,
    stream: u64,
    message: &Message,
) -> Result<(), PeerMessageError> {
    // The crate takes either for a message of its own.
    if stream == raft.id || stream == raft::INVALID_ID {
        return Err(PeerMessageError::NoPeer { from: stream });
    }
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
    Ok(())
}

/// The crate takes a message without a term for a local one and skips all its checks of terms.
fn check_term(message: &Message, term_max: u64) -> Result<(), PeerMessageError> {
    // An unknown type reads as the default one, so it is told apart by its number.
    if MessageType::from_i32(message.msg_type).is_none() {
        return Err(PeerMessageError::Kind(message.msg_type));
    }
    let without_term = message.msg_type() == MessageType::MsgReadIndex;
    if (message.term == 0) != without_term || message.term > term_max {
        return Err(PeerMessageError::Term(message.term));
    }
    Ok(())
}

/// The crate sends some of it back, and it would wait in queues that count messages and not bytes.
fn check_ballast(message: &Message) -> Result<(), PeerMessageError> {
    let has_entries = matches!(
        message.msg_type(),
        MessageType::MsgAppend
            | MessageType::MsgReadIndex
            | MessageType::MsgReadIndexResp
            | MessageType::MsgPropose
    );
    let context = message.context.len() <= RoundContext::BYTES;
    let entries = has_entries || message.entries.is_empty();
    if !context || !entries || message.snapshot.is_some() {
        return Err(PeerMessageError::Ballast(message.msg_type));
    }
    Ok(())
}

/// The leader of a term never changes, once this member knows it.
fn check_leader<S: Storage>(raft: &Raft<S>, message: &Message) -> Result<(), PeerMessageError> {
    let known = message.term == raft.term && raft.leader_id != raft::INVALID_ID;
    if known && raft.leader_id != message.from {
        return Err(PeerMessageError::NotFromLeader { from: message.from });
    }
    Ok(())
}

fn check_append<S: Storage>(raft: &Raft<S>, message: &Message) -> Result<(), PeerMessageError> {
    check_leader(raft, message)?;
    let broken = || PeerMessageError::Entries {
        index: message.index,
        term: message.term,
    };
    // The crate reads the term of an entry beyond its log as 0, and would take 0 for a match.
    if (message.index == 0) != (message.log_term == 0) || message.log_term > message.term {
        return Err(broken());
    }
    let mut term = message.log_term.max(1);
    for (entry, offset) in message.entries.iter().zip(1..) {
        let index = message.index.checked_add(offset).ok_or_else(broken)?;
        let known = entry.index == index && index <= NUMBER_MAX;
        if !known || entry.term < term || entry.term > message.term {
            return Err(broken());
        }
        if !convert::is_readable(entry) || entry.context.len() > CONTEXT_BYTES_MAX {
            return Err(PeerMessageError::Entry { index });
        }
        term = entry.term;
    }
    check_committed(raft, message)
}

/// What is committed here is in the log of every later leader (Raft thesis §3.6.3).
fn check_committed<S: Storage>(raft: &Raft<S>, message: &Message) -> Result<(), PeerMessageError> {
    // A stale append of an earlier term is answered, not taken, so it may contradict anything.
    if message.term < raft.term {
        return Ok(());
    }
    let before = std::iter::once((message.index, message.log_term));
    let entries = message.entries.iter().map(|e| (e.index, e.term));
    match before
        .chain(entries)
        .find(|&(index, term)| contradicts(raft, index, term))
    {
        Some((index, _)) => Err(PeerMessageError::Contradiction { index }),
        None => Ok(()),
    }
}

/// Whether a log that has an entry of this term there lacks something that is committed here. Along
/// a log terms never fall, which tells of entries that are not compared one by one: those behind
/// what is committed, and those that were truncated.
fn contradicts<S: Storage>(raft: &Raft<S>, index: u64, term: u64) -> bool {
    let log = &raft.raft_log;
    let here = |index: u64| log.term(index).unwrap_or_default();
    if index > log.committed {
        return term < here(log.committed);
    }
    match here(index) {
        0 => term > here(log.first_index() - 1),
        here => here != term,
    }
}

fn check_heartbeat<S: Storage>(raft: &Raft<S>, message: &Message) -> Result<(), PeerMessageError> {
    check_leader(raft, message)?;
    check_index(raft, message, message.commit)
}

fn check_append_response<S: Storage>(
    raft: &Raft<S>,
    message: &Message,
) -> Result<(), PeerMessageError> {
    check_index(raft, message, message.index)?;
    if message.request_snapshot != raft::INVALID_INDEX {
        return Err(PeerMessageError::Snapshot);
    }
    if message.reject && message.reject_hint > message.index {
        return Err(PeerMessageError::Rejection {
            index: message.index,
            hint: message.reject_hint,
        });
    }
    Ok(())
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

/// Rounds that are not confirmed stay with the crate until one is that was begun after them.
fn check_read<S: Storage>(raft: &Raft<S>, message: &Message) -> Result<(), PeerMessageError> {
    check_context(message, message.from)?;
    if raft.pending_read_count() >= READ_ROUNDS_MAX {
        return Err(PeerMessageError::TooManyReads(READ_ROUNDS_MAX));
    }
    Ok(())
}

fn check_read_response<S: Storage>(
    raft: &Raft<S>,
    message: &Message,
) -> Result<(), PeerMessageError> {
    check_context(message, raft.id)?;
    check_leader(raft, message)?;
    // A leader confirms reads from where it has committed an entry of its own term on, which is
    // this one.
    let other = message.term >= raft.term && contradicts(raft, message.index, message.term);
    if other && !planted!(ReadConfirmedByAnotherHistory) {
        return Err(PeerMessageError::Contradiction {
            index: message.index,
        });
    }
    Ok(())
}

/// Of one start of one member, all of it: what it passes on, or what it is refused of that.
fn check_passed_on<S: Storage>(raft: &Raft<S>, message: &Message) -> Result<(), PeerMessageError> {
    let whose = match message.reject {
        true => raft.id,
        false => message.from,
    };
    let Some(first) = message.entries.first() else {
        return Err(PeerMessageError::PassedOn);
    };
    let start = passing::start_of(&first.context);
    let is_one = |entry: &Entry| {
        let is_command = entry.entry_type == i32::from(EntryType::EntryNormal);
        let has_place = entry.term != 0 || entry.index != 0;
        let is_of_start = RoundContext::is_of(&entry.context, whose)
            && passing::start_of(&entry.context) == start;
        is_command && !has_place && is_of_start && entry.data.is_empty() == message.reject
    };
    let names_client = passing::client_of(&message.context).is_some();
    // Before any of it is decoded, which takes many times as much.
    if !message.reject && passing::are_too_much(&message.entries) {
        return Err(PeerMessageError::PassedOn);
    }
    match names_client != message.reject && message.entries.iter().all(is_one) {
        true => Ok(()),
        false => Err(PeerMessageError::PassedOn),
    }
}

fn check_context(message: &Message, member: u64) -> Result<(), PeerMessageError> {
    match message.entries.as_slice() {
        [entry] if RoundContext::is_of(&entry.data, member) && entry.context.is_empty() => Ok(()),
        _ => Err(PeerMessageError::ReadContext),
    }
}

fn check_timeout_now<S: Storage>(
    raft: &Raft<S>,
    message: &Message,
) -> Result<(), PeerMessageError> {
    if message.term != raft.term || raft.leader_id != message.from {
        return Err(PeerMessageError::NotFromLeader { from: message.from });
    }
    if raft.prs().is_singleton() && !log_is_on_disk(raft) {
        return Err(PeerMessageError::Early);
    }
    Ok(())
}

/// A candidate asks for votes only once its log is on disk, and the crate relies on that when it
/// wins.
fn check_vote_response<S: Storage>(
    raft: &Raft<S>,
    message: &Message,
) -> Result<(), PeerMessageError> {
    let could_win = raft.state == StateRole::Candidate && !message.reject;
    if could_win && message.term == raft.term && !log_is_on_disk(raft) {
        return Err(PeerMessageError::Early);
    }
    Ok(())
}

/// Whether every entry of the log is on disk.
pub(super) fn log_is_on_disk<S: Storage>(raft: &Raft<S>) -> bool {
    raft.raft_log.persisted == raft.raft_log.last_index()
}
