//! What a member tells of itself and, while it leads, of the others.

use super::error::LeaderHint;
use super::{Env, Replica};
use crate::consensus::{LogRead, Role as RaftRole};
use crate::kv::Member;
use crate::types::{Index, MemberId, Moment, Revision, Term};

/// A member that has more committed entries than this still to apply is not ready to answer reads.
const READY_LAG_ENTRIES_MAX: u64 = 10_000;

/// The member's part in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Orders the log.
    Leader,
    /// Votes and follows, or waits for a leader.
    Follower,
    /// Asks for votes, or asks whether it should.
    Candidate,
    /// Receives the log and does not vote.
    Learner,
}

/// Where a member stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Its part.
    pub role: Role,
    /// Whom it follows, if anybody; itself if it leads.
    pub leader: Option<LeaderHint>,
    /// The latest term it knows.
    pub term: Term,
    /// The first entry of its log.
    pub first_index: Index,
    /// The end of its log.
    pub last_index: Index,
    /// How far it knows the log to be committed.
    pub commit_index: Index,
    /// How far its state machine has come.
    pub applied_index: Index,
    /// The store's revision at `applied_index`.
    pub revision: Revision,
    /// Whether it could answer a linearizable read now.
    pub ready: bool,
    /// Whether its log or its state machine has not got on for several election timeouts: its disk hangs.
    pub stalled: bool,
}

/// The leader's view of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberProgress {
    /// Who.
    pub member: Member,
    /// Whether it is the leader itself.
    pub leader: bool,
    /// Whether the leader heard from it within the last election timeout.
    pub reachable: bool,
    /// Entries that the leader holds and it has not acknowledged.
    pub lag_entries: u64,
}

impl<L: LogRead, E: Env> Replica<L, E> {
    /// Where this member stands.
    #[must_use]
    pub fn status(&self) -> ReplicaStatus {
        let state = self.consensus.state();
        let role = match state.role {
            RaftRole::Leader => Role::Leader,
            RaftRole::PreCandidate | RaftRole::Candidate => Role::Candidate,
            RaftRole::Follower if self.is_voter(self.config.member_id) => Role::Follower,
            RaftRole::Follower => Role::Learner,
        };
        let timeout = self.config.election_timeout;
        let stalled = self.outstanding.is_stalled(self.now, timeout);
        ReplicaStatus {
            role,
            leader: self.leader_hint(),
            term: state.term,
            first_index: self.consensus.first_index(),
            last_index: self.consensus.last_index(),
            commit_index: self.consensus.commit_index(),
            applied_index: self.applied,
            revision: self.revision,
            ready: self.consensus.can_confirm_reads() && self.kept_up_lately() && !stalled,
            stalled,
        }
    }

    /// Whether a read would not wait for long: it knows its leader's log, which can go on from what is committed here, and has applied
    /// nearly all of what is committed there. Its own commit index alone stands still where it waits for a snapshot.
    fn keeps_up(&self) -> bool {
        let Some(leader) = self.consensus.leader_log() else {
            return false;
        };
        let own = self.consensus.commit_index();
        let committed = own.max(leader.commit_index);
        let lag = committed.0.saturating_sub(self.applied.0);
        leader.first_index <= own.next() && lag <= READY_LAG_ENTRIES_MAX
    }

    pub(super) fn note_keeping_up(&mut self) {
        if self.keeps_up() {
            self.kept_up_at = Some(self.now);
        }
    }

    /// A burst of writes makes nobody unready, nor does a leader that has yet to tell of its log: only what lasts for an election
    /// timeout does. Who has just started, or was without a leader for as long, is not ready before it keeps up.
    fn kept_up_lately(&self) -> bool {
        let timeout = self.config.election_timeout;
        let lately = |at: Moment| self.now.since(at) <= timeout;
        self.keeps_up() || self.kept_up_at.is_some_and(lately)
    }

    /// The members as this leader sees them, in the order of their ids; empty on any other member.
    #[must_use]
    pub fn progress(&self) -> Vec<MemberProgress> {
        let last = self.consensus.last_index().0;
        let progress = self.consensus.progress().into_iter();
        let members = progress.filter_map(|p| {
            Some(MemberProgress {
                member: self.membership.members.get(&p.member)?.clone(),
                leader: p.member == self.config.member_id,
                reachable: p.recently_active,
                lag_entries: last - p.matched.0.min(last),
            })
        });
        members.collect()
    }

    pub(super) fn is_voter(&self, id: MemberId) -> bool {
        let member = self.membership.members.get(&id);
        member.is_some_and(|member| member.voter)
    }

    pub(super) fn leader_hint(&self) -> Option<LeaderHint> {
        let id = self.consensus.state().leader?;
        let member = self.membership.members.get(&id);
        Some(LeaderHint {
            id,
            client_address: member.map_or_else(String::new, |m| m.client_address.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::READY_LAG_ENTRIES_MAX;
    use crate::consensus::{Outbound, without_leader_log};
    use crate::kv::{CommandVersion, MembershipChange};
    use crate::replica::lone::{LoneLeader, Somebody, record};
    use crate::replica::{Input, Request};

    /// A leader, and a learner of its cluster that begins with nothing.
    struct Pair {
        leader: LoneLeader,
        learner: LoneLeader,
    }

    impl Pair {
        fn new() -> Self {
            let mut leader = LoneLeader::new(CommandVersion::CURRENT);
            leader.elect();
            let request = Request::Change {
                change: MembershipChange::AddLearner(record(2)),
                caller: Somebody,
            };
            leader.replica.handle(Input::Request(request), leader.now);
            leader.settle();
            Self {
                leader,
                learner: LoneLeader::joining(2),
            }
        }

        fn write(&mut self, entries: u64) {
            for _ in 0..entries {
                let request = Input::Request(Request::settle(Somebody));
                self.leader.replica.handle(request, self.leader.now);
            }
            self.leader.settle();
        }

        /// The leader can send no more than the last of the entries that it has.
        fn forget_log(&mut self) {
            let applied = self.leader.replica.status().applied_index;
            let flushed = Input::Flushed(applied);
            self.leader.replica.handle(flushed, self.leader.now);
            self.leader.settle();
            let first = self.leader.replica.status().first_index;
            assert_eq!(first, applied);
        }

        /// Lets a tick pass, and delivers what `network` makes of what is sent. Returns whether the learner is ready then.
        fn tick(&mut self, network: Network) -> bool {
            for member in [&mut self.leader, &mut self.learner] {
                member.tick();
                member.settle();
            }
            while !(self.leader.sent.is_empty() && self.learner.sent.is_empty()) {
                deliver(&mut self.leader, &mut self.learner, network);
                deliver(&mut self.learner, &mut self.leader, network);
            }
            let status = self.learner.replica.status();
            assert!(status.leader.is_some(), "it hears heartbeats");
            status.ready
        }
    }

    type Network = fn(Outbound) -> Option<Outbound>;

    fn deliver(from: &mut LoneLeader, to: &mut LoneLeader, network: Network) {
        let id = from.replica.config.member_id;
        for message in std::mem::take(&mut from.sent) {
            if let Some(Outbound { bytes, .. }) = network(message) {
                let input = Input::Message { from: id, bytes };
                to.replica.handle(input, to.now);
                to.settle();
            }
        }
    }

    fn without_log(message: Outbound) -> Option<Outbound> {
        (!message.carries_log).then_some(message)
    }

    fn of_an_earlier_version(mut message: Outbound) -> Option<Outbound> {
        message.bytes = without_leader_log(&message.bytes);
        Some(message)
    }

    /// Few entries may be gigabytes.
    #[test]
    fn who_waits_for_a_snapshot_is_not_ready_however_few_entries_it_lacks() {
        let mut pair = Pair::new();
        pair.forget_log();
        assert!((0..30).all(|_| !pair.tick(Some)));
    }

    #[test]
    fn who_comes_back_is_ready_once_it_has_nearly_all_that_is_committed() {
        let mut pair = Pair::new();
        let committed = pair.leader.replica.status().commit_index.0;
        pair.write(READY_LAG_ENTRIES_MAX - committed);
        assert!(pair.tick(without_log));
        let mut pair = Pair::new();
        pair.write(READY_LAG_ENTRIES_MAX - committed + 1);
        assert!((0..30).all(|_| !pair.tick(without_log)));
        assert!(pair.tick(Some));
    }

    /// A read that comes just then waits for as long.
    #[test]
    fn who_falls_behind_for_less_than_an_election_timeout_stays_ready() {
        let mut pair = Pair::new();
        assert!(pair.tick(Some));
        pair.write(READY_LAG_ENTRIES_MAX + 1);
        // In the first one it still kept up.
        assert!((0..=10).all(|_| pair.tick(without_log)));
        assert!((0..30).all(|_| !pair.tick(without_log)));
        assert!(pair.tick(Some));
        assert!((0..30).all(|_| pair.tick(without_log)));
    }

    #[test]
    fn who_does_not_apply_what_is_committed_is_not_ready_for_long() {
        let networks: [Network; 2] = [Some, of_an_earlier_version];
        for network in networks {
            let mut pair = Pair::new();
            assert!(pair.tick(network));
            pair.leader.holds_apply = true;
            pair.learner.holds_apply = true;
            pair.write(READY_LAG_ENTRIES_MAX + 1);
            for tick in 0..20 {
                let ready = pair.tick(network);
                let status = pair.leader.replica.status();
                assert!(!status.stalled, "that takes longer");
                assert_eq!((ready, status.ready), (tick <= 10, tick < 10), "{tick}");
            }
        }
    }

    #[test]
    fn the_heartbeats_of_a_leader_that_tells_nothing_of_its_log_suffice() {
        let mut pair = Pair::new();
        pair.forget_log();
        assert!((0..30).all(|_| pair.tick(of_an_earlier_version)));
    }
}
