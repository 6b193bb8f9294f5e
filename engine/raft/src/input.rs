//! The inputs of a replica: [`Input`] and its parts.

use std::net::IpAddr;

use bytes::Bytes;
use dengine_kv::{CommandVersion, MembershipChange};
use dengine_log::Position;
use dengine_types::{Entry, EntryKind, Index, LeaseId, MemberId};

use crate::replica::{Announcement, AppliedRange};

/// Identifies one request of a caller; unique within one run of a member. Drawn from
/// [`Replica::name`](crate::replica::Replica::name).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Names one write to the log; counts up. A later one is on disk only if all earlier ones are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AppendId(pub u64);

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// One tick of time passed. Ticks that were missed are skipped, never replayed: time that the
    /// member did not see says nothing about the leader.
    Tick,
    /// Replicate something. Answered once it is applied, by the applier
    /// ([`Done::answers`](crate::replica::Done)); else by
    /// [`Output::Refused`](crate::Output::Refused), [`Output::Lost`](crate::Output::Lost) or
    /// [`Output::Forgotten`](crate::Output::Forgotten).
    Write {
        /// To answer with.
        token: Token,
        write: Write,
    },
    /// Say when a read of the state machine sees every write that was acknowledged before.
    /// Answered by [`Output::MayRead`](crate::Output::MayRead) or
    /// [`Output::Refused`](crate::Output::Refused).
    Read {
        /// To answer with.
        token: Token,
        /// How it is to be confirmed.
        confirm: Confirm,
    },
    /// Answer a question about a lease, which only the leader can. Answered by
    /// [`Output::Lease`](crate::Output::Lease) or [`Output::Refused`](crate::Output::Refused).
    Lease {
        /// To answer with.
        token: Token,
        lease: LeaseId,
        ask: LeaseAsk,
    },
    /// Hand leadership over. Answered by [`Output::Transferred`](crate::Output::Transferred) or
    /// [`Output::Refused`](crate::Output::Refused).
    Transfer {
        /// To answer with.
        token: Token,
        to: Successor,
    },
    /// Replicate these commands without an answer. Dropped if this member does not lead.
    Propose(OwnCommands),
    /// From a peer's stream.
    Message {
        /// Whose stream it is.
        from: MemberId,
        /// As that member's consensus encoded it.
        bytes: Bytes,
    },
    /// A message to a peer was dropped, for too many wait for it.
    Unreachable(MemberId),
    /// The stream to a peer ended, or could not be opened: what was sent last may not have arrived.
    Disconnected(MemberId),
    /// A peer announced the newest command version that it reads.
    Announced {
        member: MemberId,
        /// Where it said so.
        by: Announcement,
        reads_max: CommandVersion,
    },
    /// A peer said that this member was removed.
    Removed,
    /// From the log writer: everything up to this append is on disk.
    Persisted(AppendId),
    /// From the log writer: its pending writes wait for disk space. Repeated until there is space.
    LogFull,
    /// Whether the disk is nearly full. Said again and again while it is.
    LowOnSpace(bool),
    /// Somebody at this member waits for what is committed. Said again and again while somebody
    /// does.
    CommitsAwaited,
    /// From the applier.
    Applied(AppliedRange),
    /// The state machine has everything up to this entry on disk.
    Flushed(Index),
    /// Answers [`Output::MakeSnapshot`](crate::Output::MakeSnapshot); `None` if it could not be
    /// made.
    SnapshotMade(Option<SnapshotMeta>),
    /// Answers [`Output::SendSnapshot`](crate::Output::SendSnapshot).
    SnapshotSent {
        /// To whom it was sent.
        to: MemberId,
        /// Whether the receiver has all of it.
        ok: bool,
    },
    /// A leader's snapshot is here: complete, checked and on disk.
    SnapshotStaged {
        /// Who sent it.
        from: MemberId,
        /// The message that came with it.
        message: Bytes,
    },
}

/// What a caller wants to have replicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Command {
        command: EncodedCommand,
        /// The client's address: while several write, their writes are proposed in turns. `None`
        /// for the member's own, which take no turns.
        from: Option<IpAddr>,
        /// Whether the leader may be asked to propose it, if another member leads and takes it
        /// ([`may_be_passed_on`](crate::replica::may_be_passed_on)).
        passes: bool,
    },
    /// A change of the members.
    Change(MembershipChange),
}

impl Write {
    /// Makes sure that the members as they are outlive any crash of a quorum: an entry behind the
    /// last change of them takes the news that the change is committed onto the disks of one.
    /// Without that, members that restart would still count votes by the members before, and might
    /// wait for one that is gone.
    #[must_use]
    pub fn settle() -> Self {
        let command = EncodedCommand {
            data: Bytes::new(),
            records: 1,
        };
        Self::Command {
            command,
            from: None,
            passes: false,
        }
    }
}

/// Whether this is an entry of [`Write::settle`]. One with which a leader begins its term has no
/// context.
pub(crate) fn settles(entry: &Entry) -> bool {
    let is_empty = entry.kind == EntryKind::Command && entry.data.is_empty();
    is_empty && !entry.context.is_empty()
}

/// A command as it is to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedCommand {
    /// In the version of [`CommandGate`](crate::replica::CommandGate).
    pub data: Bytes,
    /// How many records it may visit: what [`Command::records`](dengine_kv::Command::records) says,
    /// and of a session that expires what the leader knows.
    pub records: usize,
}

impl EncodedCommand {
    /// Encodes a command where every member reads up to `version`. What that cannot say is encoded
    /// in the version that can, and the replica refuses it.
    #[must_use]
    pub fn new(request: dengine_kv::Request, version: CommandVersion) -> Self {
        Self {
            records: request.command.records(),
            data: request.encode(version),
        }
    }
}

/// What a leader proposes of its own accord.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnCommands {
    /// A few records at a time, whatever clients do: ends of sessions, and compactions.
    pub at_once: Vec<EncodedCommand>,
    /// As much as clients make of them: they take turns with clients' writes.
    pub in_turn: Vec<EncodedCommand>,
}

impl OwnCommands {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.at_once.len() + self.in_turn.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Who confirms that a read is linearizable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirm {
    Quorum,
    /// The leader's lease will do, if it holds when the clock is read after the read came in.
    Lease,
}

/// What is asked about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAsk {
    /// That it lasts its whole time from now on.
    KeepAlive,
    /// How much is left of it.
    Remaining,
}

/// Who shall lead instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor {
    /// This voter.
    Named(MemberId),
    /// The voter that would take over soonest, rather one that is fit to lead than one that is not.
    Soonest,
    /// The same of those that have said that they are fit, or none: for a leader that is not, and
    /// is no worse than others that are not.
    Fit,
}

/// What a snapshot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// The last entry that is applied in it.
    pub last: Position,
    /// Who votes, as of then.
    pub voters: Vec<MemberId>,
    /// Who only listens, as of then.
    pub learners: Vec<MemberId>,
}

#[cfg(test)]
mod tests {
    use dengine_kv::CommandVersion;

    use super::{Write, settles};
    use crate::replica::lone::LoneLeader;

    #[test]
    fn what_settles_a_change_is_told_from_what_begins_a_term() {
        let mut leader = LoneLeader::new(CommandVersion::CURRENT);
        leader.elect();
        leader.ask(Write::settle());
        leader.settle();
        let settle: Vec<_> = leader.appended.iter().map(settles).collect();
        assert_eq!(settle, [false, true]);
    }
}
