//! In which version this member's commands are written: one that every member reads.
//!
//! A member that meets a command above what it reads stops, and no restart helps it. So each says,
//! in every Hello and every Ack, up to which version it reads commands, and a leader writes no
//! version above the lowest of these: its own, and those of all members that it knows of, voters
//! and learners. A member that has announced nothing since this process started is taken to read
//! only the oldest version. While a change of members may be in the log that is not applied here,
//! the leader does not know who will read what it writes, and so writes the oldest version.
//!
//! Once a command of version 4 is applied, the state itself is of a format that takes a program
//! which reads that version. Nobody else can take part any more, so nobody is waited for: a member
//! that is away holds up no lease.

use std::collections::BTreeMap;

use bytes::Bytes;
use dengine_kv::{CommandVersion, Membership, Request};
use dengine_planted::planted;
use dengine_types::MemberId;
use dengine_types::sync::atomic::{AtomicU8, Ordering};

use super::{Replica, RequestError};
use crate::consensus::{LogRead, Role};

/// Of so many members is remembered what they said; a cluster has at most 32. Some say it before
/// the log has told of them, and a peer that makes up ids takes no room from those with lower ones,
/// as members have.
const HEARD_MAX: usize = 64;

/// In which version commands are to be encoded at present. The replica writes it, any thread reads
/// it; a command that comes to the replica in a version that is too new by then is written again
/// there.
#[derive(Debug)]
pub struct CommandGate(AtomicU8);

impl CommandGate {
    fn new(version: CommandVersion) -> Self {
        Self(AtomicU8::new(version.number()))
    }

    #[must_use]
    pub fn version(&self) -> CommandVersion {
        CommandVersion::announced(u32::from(self.0.load(Ordering::Relaxed)))
    }

    fn set(&self, version: CommandVersion) {
        self.0.store(version.number(), Ordering::Relaxed);
    }
}

impl Default for CommandGate {
    fn default() -> Self {
        Self::new(CommandVersion::OLDEST)
    }
}

/// Where a member said up to which version it reads commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// At the beginning of a stream to this member.
    Hello,
    /// In its answer to a Hello of this member.
    Ack {
        /// It says besides that, as a leader, it proposes what followers pass on to it.
        takes_passed_on: bool,
    },
}

/// What one member said last, each way. What it answers counts, for it was called where the log
/// says that it is. Until then it counts what somebody said who called as that member: it may be
/// anybody, who must not be able to hold back forever what all members read.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    hello: Option<CommandVersion>,
    ack: Option<CommandVersion>,
    takes_passed_on: bool,
}

impl Heard {
    fn version(self) -> CommandVersion {
        let heard = self.ack.or(self.hello);
        heard.unwrap_or(CommandVersion::OLDEST)
    }
}

/// Up to which version the members read commands, as far as this one knows.
#[derive(Debug)]
pub(super) struct Announced {
    own: CommandVersion,
    /// What a member has to read that takes part, by what is applied. Who reads less is waited for
    /// in vain.
    pub(super) needed: CommandVersion,
    heard: BTreeMap<MemberId, Heard>,
}

impl Announced {
    pub(super) fn new(own: CommandVersion, needed: CommandVersion) -> Self {
        Self {
            own,
            needed,
            heard: BTreeMap::new(),
        }
    }

    /// `member` says that it reads commands up to `version`.
    pub(super) fn hear(&mut self, member: MemberId, by: Announcement, version: CommandVersion) {
        let heard = self.heard.entry(member).or_default();
        match by {
            Announcement::Hello => heard.hello = Some(version),
            Announcement::Ack { takes_passed_on } => {
                heard.ack = Some(version);
                heard.takes_passed_on = takes_passed_on;
            }
        }
        if self.heard.len() > HEARD_MAX {
            self.heard.pop_last();
        }
    }

    /// Forgets those that are no members any more.
    pub(super) fn retain(&mut self, membership: &Membership) {
        let last = membership.last_member_id;
        self.heard
            .retain(|id, _| membership.members.contains_key(id) || *id > last);
    }

    /// Up to which version `member` reads commands.
    pub(super) fn of(&self, member: MemberId) -> CommandVersion {
        let heard = self.heard.get(&member);
        heard.map_or(CommandVersion::OLDEST, |heard| heard.version())
    }

    /// The stream to `member` broke: what it answers to the next Hello counts.
    pub(super) fn is_disconnected(&mut self, member: MemberId) {
        if let Some(heard) = self.heard.get_mut(&member) {
            heard.takes_passed_on = false;
        }
    }

    /// Whether `member` takes what is passed on to it.
    pub(super) fn takes_passed_on(&self, member: MemberId) -> bool {
        let heard = self.heard.get(&member);
        heard.is_some_and(|heard| heard.takes_passed_on)
    }

    /// The newest version that `me` and all `members` read.
    pub(super) fn read_by_all(
        &self,
        me: MemberId,
        members: impl IntoIterator<Item = MemberId>,
    ) -> CommandVersion {
        let others = members.into_iter().filter(|id| *id != me);
        let lowest = others.map(|id| self.of(id)).min();
        lowest.map_or(self.own, |lowest| lowest.min(self.own))
    }
}

impl<L: LogRead> Replica<L> {
    /// In which version a command may be proposed now.
    #[must_use]
    pub fn command_version(&self) -> CommandVersion {
        if planted!(CommandProposedTooEarly) {
            return self.announced.own;
        }
        let needed = self.announced.needed.min(self.announced.own);
        if self.consensus.may_change_members() {
            return needed;
        }
        let members = self.membership.members.keys().copied();
        let read_by_all = self.announced.read_by_all(self.config.member_id, members);
        read_by_all.max(needed)
    }

    pub(super) fn publish_command_version(&self) {
        self.command_gate.set(self.command_version());
    }

    /// Writes what was encoded too new again, just before it is proposed, and refuses what no older
    /// version can say: the members that do not read it would stop.
    pub(super) fn lower_proposals(&mut self) {
        let version = self.command_version();
        // Where this member does not lead all are refused anyway, and callers sent to the leader.
        let leads = self.consensus.state().role == Role::Leader;
        let taken = self.proposals.take_if(|proposal, _| {
            if !is_newer(&proposal.data, version) {
                return false;
            }
            match lowered(&proposal.data, version) {
                Some(data) => {
                    proposal.data = data;
                    false
                }
                None => leads,
            }
        });
        let tokens = self.tokens_of(taken);
        if !tokens.is_empty() {
            let reason = "not every member is known to run a program that can do this: upgrade \
                          those that `dengine admin status` says to read the oldest commands";
            self.refuse(
                tokens,
                RequestError::NotServed {
                    reason: reason.to_owned(),
                },
            );
        }
    }
}

/// Whether a command is written in a newer version.
fn is_newer(data: &Bytes, version: CommandVersion) -> bool {
    data.first().is_some_and(|it| *it > version.number())
}

/// The same command in an older version, if that can say it; what is no command stays what it is.
fn lowered(data: &Bytes, version: CommandVersion) -> Option<Bytes> {
    match Request::decode(data.clone()) {
        Ok(Ok(logged)) => {
            let can_say_it = logged.request.version_needed() <= version;
            can_say_it.then(|| logged.request.encode(version))
        }
        _ => Some(data.clone()),
    }
}

#[cfg(test)]
mod tests {
    use dengine_kv::{Batch, BatchOperation, Command, MembershipChange};
    use dengine_types::{ClusterId, EntryKind};

    use super::*;
    use crate::input::{EncodedCommand, Input, Write};
    use crate::output::Output;
    use crate::replica::lone::{LoneLeader, record};
    use Announcement::Hello;

    const ACK: Announcement = Announcement::Ack {
        takes_passed_on: false,
    };

    const V2: CommandVersion = CommandVersion::OLDEST;
    const V3: CommandVersion = CommandVersion::V3;
    const V4: CommandVersion = CommandVersion::V4;

    /// Up to which version a release reads changes of members whose newest commands are of this
    /// version.
    fn reads_changes_up_to(version: CommandVersion) -> u8 {
        match version.number() {
            2..=4 => 1,
            new => panic!(
                "up to which version of membership changes does a release read that reads commands \
                 up to {new}? Add it here"
            ),
        }
    }

    /// A member that leads itself.
    struct Leader(LoneLeader);

    impl Leader {
        fn new(reads_max: CommandVersion) -> Self {
            let mut leader = LoneLeader::new(reads_max);
            leader.elect();
            leader.settle();
            Self(leader)
        }

        /// Of the commands in its log.
        fn versions(&self) -> Vec<u8> {
            let entries = self.0.appended.iter();
            let commands = entries.filter(|it| it.kind == EntryKind::Command);
            commands.filter_map(|it| it.data.first().copied()).collect()
        }

        /// Of the changes of members in its log.
        fn change_versions(&self) -> Vec<u8> {
            let entries = self.0.appended.iter();
            let changes = entries.filter(|it| it.kind == EntryKind::Membership);
            changes.filter_map(|it| it.data.first().copied()).collect()
        }

        fn handle(&mut self, input: Input) {
            self.0.replica.handle(input, self.0.now);
        }

        /// Queues a command that a caller encoded in the newest version.
        fn queue_write(&mut self) {
            let command = Command::Compact {
                revision: dengine_types::Revision(1),
            };
            self.0.ask(Write::Command {
                command: EncodedCommand::new(Request::from(command), V3),
                from: None,
                passes: false,
            });
        }

        /// A command reaches the log in this version, and others are to be encoded in it.
        fn check(&mut self, expected: CommandVersion) {
            self.queue_write();
            self.0.settle();
            assert_eq!(self.versions().last(), Some(&expected.number()));
            assert_eq!(self.0.replica.command_gate().version(), expected);
        }

        fn hear(&mut self, member: u64, by: Announcement, reads_max: CommandVersion) {
            let member = MemberId(member);
            let announced = Input::Announced {
                member,
                by,
                reads_max,
            };
            self.handle(announced);
            self.0.settle();
        }

        fn change(&mut self, change: MembershipChange) {
            self.0.ask(Write::Change(change));
        }
    }

    #[test]
    fn commands_are_written_in_a_version_that_every_member_reads() {
        let mut leader = Leader::new(V3);
        leader.check(V3);
        leader.change(MembershipChange::AddLearner(record(2)));
        leader.0.settle();
        leader.check(V2);
        leader.hear(2, Hello, V3);
        leader.check(V3);
        // It came back as an older program, and as a newer one.
        leader.hear(2, ACK, V2);
        leader.check(V2);
        leader.hear(2, ACK, V3);
        leader.check(V3);
        // A peer that calls as a member may be another.
        leader.hear(2, Hello, V2);
        leader.check(V3);
        leader.change(MembershipChange::Remove(MemberId(2)));
        leader.0.settle();
        leader.check(V3);
    }

    #[test]
    fn while_the_members_may_change_the_oldest_version_is_written() {
        let mut leader = Leader::new(V3);
        // It has said so before the log tells of it.
        leader.hear(2, Hello, V3);
        leader.change(MembershipChange::AddLearner(record(2)));
        leader.queue_write();
        leader.0.settle();
        assert_eq!(leader.versions().last(), Some(&2));
        leader.check(V3);
    }

    /// Nothing asks in which version a change is to be encoded, for those that a running cluster
    /// makes are in the first one. A commit that changes that has `MembershipChange::encode` take
    /// [`Replica::command_version`], as that of commands does, and write no more than what goes
    /// with it.
    #[test]
    fn changes_of_members_are_written_in_a_version_that_every_member_reads() {
        for reads_max in CommandVersion::ALL {
            let mut leader = Leader::new(CommandVersion::CURRENT);
            leader.change(MembershipChange::AddLearner(record(2)));
            leader.0.settle();
            leader.hear(2, ACK, reads_max);
            leader.change(MembershipChange::Remove(MemberId(2)));
            leader.0.settle();
            let versions = leader.change_versions();
            // The first is read by the leader alone.
            assert_eq!(versions.len(), 2, "both were proposed");
            for (version, reader) in versions.iter().zip([CommandVersion::CURRENT, reads_max]) {
                assert!(
                    *version <= reads_changes_up_to(reader),
                    "a change of version {version} stops members that read commands up to \
                     {reader}: see docs/upgrades.md"
                );
            }
        }
    }

    /// A command that takes version 4.
    fn newest() -> Request {
        let inner = BatchOperation::Batch(Box::default());
        Request::from(Command::Batch(Batch {
            then: vec![inner],
            ..Batch::default()
        }))
    }

    #[test]
    fn what_no_older_version_can_say_is_refused_until_every_member_reads_it() {
        let mut leader = Leader::new(V4);
        let ask = |leader: &mut Leader| {
            let version = leader.0.replica.command_gate().version();
            leader.0.ask(Write::Command {
                command: EncodedCommand::new(newest(), version),
                from: None,
                passes: false,
            })
        };
        leader.change(MembershipChange::AddLearner(record(2)));
        leader.0.settle();
        let before = leader.versions().len();
        let asked = ask(&mut leader);
        leader.queue_write();
        let mut refused = Vec::new();
        for output in leader.0.outputs() {
            match output {
                Output::Refused { tokens, error } => refused.push((tokens, error.retryable())),
                other => leader.0.carry_out(other),
            }
        }
        leader.0.settle();
        assert_eq!(refused, [(vec![asked], true)]);
        assert_eq!(
            leader.versions()[before..],
            [2],
            "the other one is proposed"
        );
        leader.hear(2, Hello, V4);
        ask(&mut leader);
        leader.queue_write();
        leader.0.settle();
        let newer = &leader.versions()[before + 1..];
        assert_eq!(newer, [4, 3], "what version 3 can say is written as that");
    }

    /// One of three members was away, and no lease could be granted, nor end.
    #[test]
    fn once_a_command_of_a_version_is_applied_who_may_not_read_it_is_waited_for_no_more() {
        let mut leader = Leader::new(V4);
        let version = leader.0.replica.command_gate().version();
        leader.0.ask(Write::Command {
            command: EncodedCommand::new(newest(), version),
            from: None,
            passes: false,
        });
        leader.0.settle();
        leader.change(MembershipChange::AddLearner(record(2)));
        assert_eq!(leader.0.replica.command_version(), V4);
        leader.0.settle();
        assert_eq!(leader.0.replica.command_version(), V4);
        leader.hear(2, ACK, V2);
        assert_eq!(leader.0.replica.command_version(), V4);
    }

    #[test]
    fn a_leader_writes_no_version_that_it_does_not_read() {
        let mut leader = Leader::new(V2);
        let versions = leader.versions().len();
        leader.handle(Input::Announced {
            member: MemberId(1),
            by: Hello,
            reads_max: V3,
        });
        leader.check(V2);
        assert!(leader.versions().len() > versions);
    }

    #[test]
    fn whoever_makes_up_ids_finds_no_room() {
        let mut announced = Announced::new(V3, V2);
        announced.hear(MemberId(2), Hello, V3);
        for stranger in 100..300 {
            announced.hear(MemberId(stranger), Hello, V3);
        }
        assert_eq!(announced.heard.len(), HEARD_MAX);
        assert_eq!(announced.of(MemberId(299)), V2);
        // A member that joins later is heard all the same.
        announced.hear(MemberId(3), ACK, V3);
        assert_eq!(announced.heard.len(), HEARD_MAX);
        assert_eq!([2, 3].map(|id| announced.of(MemberId(id))), [V3; 2]);
        let members = Membership {
            cluster_id: ClusterId(1),
            members: [(MemberId(2), record(2))].into(),
            last_member_id: MemberId(200),
        };
        announced.retain(&members);
        assert_eq!(
            announced.heard.len(),
            1,
            "3 was removed, and the others are made up"
        );
    }

    #[test]
    fn what_is_no_command_is_proposed_as_it_is() {
        for data in [&[][..], &[3], &[3, 0xff], &[200, 1]] {
            let data = Bytes::copy_from_slice(data);
            assert_eq!(lowered(&data, V2).as_ref(), Some(&data));
        }
        let command = Command::OpenSession { ttl_ms: 7 };
        let of = |version| Request::from(command.clone()).encode(version);
        assert_eq!(lowered(&of(V3), V2), Some(of(V2)));
        // It would mean something else.
        assert_eq!(lowered(&newest().encode(V4), V2), None);
    }
}
