//! What goes into a replica and what comes out of it.

use super::applier::AppliedRange;
use super::env::Env;
use super::pending::Expected;
use super::versions::Announcement;
use crate::consensus::{AppendId, Divergence, Outbound, PeerMessageError, SnapshotMeta, State};
use bytes::Bytes;
use dengine_kv::{CommandVersion, MembershipChange};
use dengine_log::Position;
use dengine_types::{Entry, EntryKind, HardState, Index, MemberId};
use std::net::IpAddr;

/// A command as it is to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedCommand {
    /// In the version of [`super::CommandGate`].
    pub data: Bytes,
    /// How many records it may visit: what [`Command::records`](dengine_kv::Command::records) says, and of a session that expires what the
    /// leader knows.
    pub records: usize,
}

impl EncodedCommand {
    /// Encodes a command.
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

/// Something that happened.
pub enum Input<E: Env> {
    /// One tick of time passed. Ticks that were missed are skipped, never replayed: time that the member
    /// did not see says nothing about the leader.
    Tick,
    /// From a caller.
    Request(Request<E>),
    /// Replicate these commands, for which nobody waits. Lost if this member does not lead.
    Propose(OwnCommands),
    /// From a peer's stream.
    Message {
        /// Whose stream it is.
        from: MemberId,
        /// As that member's consensus encoded it.
        bytes: Bytes,
    },
    /// A peer could not be reached.
    Unreachable(MemberId),
    /// A peer said up to which version it reads commands.
    Announced {
        /// Who.
        member: MemberId,
        /// Where it said so.
        by: Announcement,
        /// Which version.
        reads_max: CommandVersion,
    },
    /// A peer said that this member was removed.
    Removed,
    /// From the log writer: everything up to this append is on disk.
    Persisted(AppendId),
    /// From the log writer: there is no space for what it has to write, which waits. Said again and again until there is.
    LogFull,
    /// Whether the disk is nearly full. Said again and again while it is.
    LowOnSpace(bool),
    /// From the applier.
    Applied(AppliedRange),
    /// The state machine has everything up to this entry on disk.
    Flushed(Index),
    /// Answers [`Effect::MakeSnapshot`]; `None` if it could not be made.
    SnapshotMade(Option<SnapshotMeta>),
    /// Answers [`Effect::SendSnapshot`].
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

/// What callers ask for.
pub enum Request<E: Env> {
    /// Replicate a command.
    Write {
        /// What is to be replicated.
        command: EncodedCommand,
        /// Answered once it is applied.
        caller: E::Write,
        /// The client's address: while several write, their writes are proposed in turns. `None` for the member's own,
        /// which wait for nobody.
        from: Option<IpAddr>,
    },
    /// Replicate a membership change.
    Change {
        /// Which one.
        change: MembershipChange,
        /// Answered once it is applied.
        caller: E::Write,
    },
    /// Answer once a read of the state machine sees every write that was acknowledged before.
    Read {
        /// Answered then.
        caller: E::Read,
    },
    /// The same, and the leader's lease will do.
    LeaseRead {
        /// Answered then.
        caller: E::Read,
    },
    /// Hand leadership over.
    Transfer {
        /// To whom.
        to: Successor,
        /// Answered once it does.
        caller: E::Transfer,
    },
}

/// Who shall lead instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor {
    /// This voter.
    Named(MemberId),
    /// The voter that would take over soonest, rather one that is fit to lead than one that is not.
    Soonest,
    /// The same of those that have said that they are fit, or nobody: for a leader that is not, and is no worse than others
    /// that are not.
    Fit,
}

impl<E: Env> Request<E> {
    /// Makes sure that the members as they are outlive any crash of a quorum: an entry behind the last change of them takes
    /// the news that the change is committed onto the disks of one. Without that, members that restart would
    /// still count votes by the members before, and might wait for somebody who is gone.
    pub fn settle(caller: E::Write) -> Self {
        let command = EncodedCommand {
            data: Bytes::new(),
            records: 1,
        };
        Self::Write {
            command,
            caller,
            from: None,
        }
    }
}

/// Whether this is an entry of [`Request::settle`]. One with which a leader begins its term has no context.
pub(super) fn settles(entry: &Entry) -> bool {
    let is_empty = entry.kind == EntryKind::Command && entry.data.is_empty();
    is_empty && !entry.context.is_empty()
}

/// Something to be done. Effects are carried out in order; each kind may have its own thread that keeps
/// the order of its kind.
pub enum Effect<E: Env> {
    /// For the log writer.
    Log(LogJob),
    /// For the applier.
    Apply(ApplyJob<E>),
    /// Send these to peers; any may be lost.
    Send(Vec<Outbound>),
    /// Role, leader or term changed.
    StateChanged(State),
    /// A peer sent what no member sends. It changed nothing.
    PeerRefused(PeerMessageError),
    /// Have the state machine written to disk, without waiting for more to come; then [`Input::Flushed`].
    Flush,
    /// Make a snapshot of the state machine as it is now, in place of the last one; then
    /// [`Input::SnapshotMade`].
    MakeSnapshot,
    /// Send the snapshot that was made last; then [`Input::SnapshotSent`].
    SendSnapshot {
        /// To whom.
        to: MemberId,
        /// What the receiver gives back as [`Input::SnapshotStaged`].
        message: Bytes,
    },
    /// Forget the snapshot that was staged: this member does not need it.
    DiscardStaged,
    /// End this replica, and never start it from its folder again. No effect follows.
    Diverged(Divergence),
    /// End this replica, reset the log, and start the member anew from its folder. No
    /// effect follows.
    Install {
        /// The last entry of the snapshot.
        base: Position,
        /// Goes with it.
        hard_state: HardState,
    },
}

/// What the log writer does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogJob {
    /// Write and sync; then [`Input::Persisted`].
    Append {
        /// To report with.
        id: AppendId,
        /// Replaces the hard state.
        hard_state: Option<HardState>,
        /// Appended, after the log was cut where the first of them belongs.
        entries: Vec<Entry>,
    },
    /// Forget the entries up to this one.
    TruncatePrefix(Index),
}

/// What the applier does.
pub enum ApplyJob<E: Env> {
    /// These callers wait; comes before the entries that they wait for.
    Expect(Vec<Expected<E::Write>>),
    /// These are committed.
    Entries(Vec<Entry>),
    /// Forget callers that gave up.
    Prune,
}

#[cfg(test)]
mod tests {
    use super::super::lone::{LoneLeader, Somebody};
    use super::{Input, Request, settles};
    use dengine_kv::CommandVersion;

    #[test]
    fn what_settles_a_change_is_told_from_what_begins_a_term() {
        let mut leader = LoneLeader::new(CommandVersion::CURRENT);
        leader.elect();
        let request = Request::settle(Somebody);
        leader.replica.handle(Input::Request(request), leader.now);
        leader.settle();
        let settle: Vec<_> = leader.appended.iter().map(settles).collect();
        assert_eq!(settle, [false, true]);
    }
}
