//! What a member tells of itself and, while it leads, of the others.

use std::collections::VecDeque;
use std::time::Duration;

use dengine_kv::Member;
use dengine_types::{Index, MemberId, Moment, Revision, Term};

use super::Replica;
use super::error::LeaderHint;
use crate::consensus::{LogRead, Role as RaftRole};

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
    /// Whether that is so. A voter may take itself for a learner until it has applied what its log
    /// has, and the entry that made it one may be on other members alone: so a learner knows that
    /// it is one once it has followed a leader for a while, and has applied what was committed when
    /// it first heard of it.
    pub role_is_known: bool,
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
    /// Whether its log or its state machine has not got on for several election timeouts: its disk
    /// hangs.
    pub stalled: bool,
    /// Whether it is in its cluster no more, as far as it knows.
    pub removed: bool,
}

/// The leader's view of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberProgress {
    pub member: Member,
    /// Whether it is the leader itself.
    pub leader: bool,
    /// Whether the leader heard from it within the last election timeout.
    pub reachable: bool,
    /// Entries that the leader holds and it has not acknowledged.
    pub lag_entries: u64,
}

/// How long a read waits on a member: for as long as it takes from when something is committed
/// until this member has applied it. Neither entries nor bytes say how long that is.
#[derive(Debug, Default)]
pub(super) struct KeepingUp {
    /// What was committed when, as the leader said: of the last [`Self::LONG`] election timeouts,
    /// at most [`Self::NOTES`] for each.
    committed: VecDeque<(Moment, Index)>,
    /// Since when it has, at each look, applied what was committed an election timeout ago.
    closely_since: Option<Moment>,
    /// It has for so long that it may fall behind a little.
    is_trusted: bool,
}

impl KeepingUp {
    /// Who keeps up does so until it is so many election timeouts behind: where what is written
    /// takes a little longer than one to be applied, a Service whose members came and went all the
    /// time would at times have none.
    const LONG: u32 = 3;
    const NOTES: u32 = 16;

    fn note(&mut self, committed: Index, at: Moment, election_timeout: Duration) {
        if let Some((last, _)) = self.committed.back() {
            let since = at.since(*last);
            if since < election_timeout / Self::NOTES {
                return;
            }
            if since > election_timeout {
                // What is heard first after a pause may be old.
                *self = Self::default();
            }
        }
        self.committed.push_back((at, committed));
        let long = election_timeout * Self::LONG;
        while at.since(self.committed[0].0) > long {
            self.committed.pop_front();
        }
    }

    /// It keeps up if it has applied what was committed an election timeout ago; under a leader
    /// that it has not known for as long, what was committed when it first heard of it. A burst of
    /// writes makes no member unready, nor does a change of leaders. One that has kept up for
    /// [`Self::LONG`] timeouts may then fall behind by as much, while it hears of the leader.
    pub(super) fn look(&mut self, applied: Index, now: Moment, election_timeout: Duration) {
        let noted = |before: Duration| {
            let mut noted = self.committed.iter();
            noted.find(|(at, _)| now.since(*at) <= before)
        };
        let has_applied = |noted: &(Moment, Index)| noted.1 <= applied;
        let long = election_timeout * Self::LONG;
        let (lately, long_ago) = (noted(election_timeout), noted(long));
        let closely = lately.is_some_and(has_applied);
        self.closely_since = closely.then(|| self.closely_since.unwrap_or(now));
        let for_long = |since: Moment| now.since(since) >= long;
        self.is_trusted = lately.is_some()
            && long_ago.is_some_and(has_applied)
            && (self.is_trusted || self.closely_since.is_some_and(for_long));
    }

    fn keeps_up(&self) -> bool {
        self.keeps_up_closely() || self.is_trusted
    }

    /// It has what was committed an election timeout ago.
    pub(super) fn keeps_up_closely(&self) -> bool {
        self.closely_since.is_some()
    }
}

/// Who says that this member is in its cluster no more.
#[derive(Debug)]
pub(super) struct Removed {
    /// Its own log. Forever: no id is used twice.
    pub(super) by_log: bool,
    /// A peer said so then, and says it again and again. Its log may be ahead of this one's; or it
    /// has a removal that was given up when a loss was accepted, and then a leader counts this
    /// member in.
    pub(super) by_peer: Option<Moment>,
}

/// What was committed, as far as this member's first leader knew, when it first heard of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstHeard {
    at: Moment,
    committed: Index,
}

impl FirstHeard {
    /// So many election timeouts it has no certain role: those who begin a cluster are learners for
    /// as long as it takes them to have its first entries.
    const CALLED_NOTHING: u32 = 2;
}

impl<L: LogRead> Replica<L> {
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
        let own = self.membership.members.get(&self.config.member_id);
        let timeout = self.config.election_timeout;
        let stalled = self.outstanding.is_stalled(self.now, timeout);
        let removed = self.is_removed();
        ReplicaStatus {
            role,
            role_is_known: own.is_some_and(|own| own.voter) || self.knows_that_it_learns(),
            leader: self.leader_hint(),
            term: state.term,
            first_index: self.consensus.first_index(),
            last_index: self.consensus.last_index(),
            commit_index: self.consensus.commit_index(),
            applied_index: self.applied,
            revision: self.revision,
            ready: self.consensus.can_confirm_reads()
                && self.keeping_up.keeps_up()
                && !stalled
                && !removed,
            stalled,
            removed,
        }
    }

    fn knows_that_it_learns(&self) -> bool {
        let for_long = self.config.election_timeout * FirstHeard::CALLED_NOTHING;
        // One that is not among the members has joined them just now.
        let is_member = self.membership.members.contains_key(&self.config.member_id);
        let has_applied_its_log =
            self.applied >= self.log_at_start.min(self.consensus.last_index());
        self.first_heard.is_some_and(|first| {
            self.now.since(first.at) >= for_long
                && has_applied_its_log
                && (self.applied >= first.committed || !is_member)
        })
    }

    /// By what the leader says is committed: its own commit index alone stands still where it waits
    /// for a snapshot.
    pub(super) fn look_whether_it_keeps_up(&mut self) {
        let timeout = self.config.election_timeout;
        if let Some((at, committed)) = self.consensus.leader_commit() {
            let committed = committed.max(self.consensus.commit_index());
            self.first_heard.get_or_insert(FirstHeard { at, committed });
            self.keeping_up.note(committed, at, timeout);
        }
        self.keeping_up.look(self.applied, self.now, timeout);
    }

    /// Whether it is in its cluster no more: its own log says so, or a peer has since the leader
    /// was last heard.
    pub(super) fn is_removed(&self) -> bool {
        let is_news = |told| {
            let heard = self.consensus.leader_commit().map(|(at, _)| at);
            let leads = self.consensus.state().role == RaftRole::Leader;
            !leads && heard.is_none_or(|heard| heard <= told)
        };
        self.removed.by_log || self.removed.by_peer.is_some_and(is_news)
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
    use std::sync::Arc;

    use dengine_kv::{CommandVersion, MembershipChange};

    use super::*;
    use crate::consensus::without_leader_commit;
    use crate::input::{Input, Write};
    use crate::output::Outbound;
    use crate::replica::lone::{LoneLeader, record};

    /// A leader, and a learner of its cluster that begins with nothing.
    struct Pair {
        leader: LoneLeader,
        learner: LoneLeader,
    }

    impl Pair {
        fn new() -> Self {
            let mut leader = LoneLeader::new(CommandVersion::CURRENT);
            leader.elect();
            let change = MembershipChange::AddLearner(record(2));
            leader.ask(Write::Change(change));
            leader.settle();
            Self {
                leader,
                learner: LoneLeader::joining(2),
            }
        }

        fn write(&mut self, entries: u64) {
            for _ in 0..entries {
                self.leader.ask(Write::settle());
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

        /// Lets a tick pass, and delivers what `network` makes of what is sent. Returns whether the
        /// learner is ready then.
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
        message.bytes = without_leader_commit(&message.bytes);
        Some(message)
    }

    /// Few entries may be gigabytes.
    #[test]
    fn who_waits_for_a_snapshot_is_not_ready_however_few_entries_it_lacks() {
        let mut pair = Pair::new();
        pair.forget_log();
        assert!((0..30).all(|_| !pair.tick(Some)));
    }

    /// One entry may hold 64 MiB.
    #[test]
    fn who_comes_back_is_ready_once_it_has_what_was_committed_meanwhile() {
        let mut pair = Pair::new();
        pair.tick(Some);
        assert!(pair.tick(Some));
        pair.write(1);
        for _ in 0..20 {
            pair.leader.tick();
            pair.leader.settle();
        }
        pair.leader.sent.clear();
        pair.learner.now = pair.leader.now;
        assert!((0..30).all(|_| !pair.tick(without_log)));
        // In the first one it is sent the entry.
        pair.tick(Some);
        assert!(pair.tick(Some));
    }

    /// Clients of etcd that are told so give up for good.
    #[test]
    fn a_learner_is_called_one_once_it_has_followed_its_leader_for_a_while() {
        let mut pair = Pair::new();
        let timeout = pair.learner.replica.config.election_timeout;
        let is_known = |pair: &Pair| pair.learner.replica.status().role_is_known;
        for _ in 0..200 {
            pair.learner.tick();
            assert!(!is_known(&pair), "it has heard of no leader");
        }
        pair.leader.now = pair.learner.now;
        let begun = pair.learner.now;
        pair.tick(Some);
        assert!(!is_known(&pair));
        while !is_known(&pair) {
            pair.tick(Some);
        }
        assert!(pair.learner.now.since(begun) >= timeout * FirstHeard::CALLED_NOTHING);
        assert_eq!(pair.learner.replica.status().role, Role::Learner);
    }

    /// Its log may have made it a member, and a voter, though its state was never written.
    #[test]
    fn a_member_of_nothing_that_has_not_applied_its_log_is_called_nothing() {
        let mut pair = Pair::new();
        pair.tick(Some);
        pair.tick(Some);
        let learner = &mut pair.learner.replica;
        learner.membership = Arc::default();
        learner.applied = Index(0);
        learner.log_at_start = learner.consensus.last_index();
        assert!(learner.log_at_start > Index(0));
        learner.first_heard = None;
        let is_known = |pair: &Pair| pair.learner.replica.status().role_is_known;
        for _ in 0..200 {
            pair.tick(Some);
            assert!(!is_known(&pair));
        }
        let learner = &mut pair.learner.replica;
        learner.applied = learner.log_at_start;
        assert!(is_known(&pair), "it has joined just now");
    }

    /// It may have been made a voter by what it lacks.
    #[test]
    fn a_learner_that_lacks_what_was_committed_is_called_nothing() {
        let mut pair = Pair::new();
        pair.tick(Some);
        pair.tick(Some);
        pair.write(1);
        pair.leader.sent.clear();
        pair.tick(without_log);
        // As if it began now.
        pair.learner.replica.first_heard = None;
        let is_known = |pair: &Pair| pair.learner.replica.status().role_is_known;
        for _ in 0..200 {
            pair.tick(without_log);
            assert!(!is_known(&pair));
        }
        while !is_known(&pair) {
            pair.tick(Some);
        }
    }

    /// A peer may have what was given up; a leader that counts this member in knows better.
    #[test]
    fn what_a_peer_says_of_a_removal_counts_until_the_leader_is_heard() {
        let mut pair = Pair::new();
        pair.tick(Some);
        assert!(pair.tick(Some));
        let learner = &mut pair.learner;
        learner.replica.handle(Input::Removed, learner.now);
        let told = learner.replica.status();
        assert!(told.removed && !told.ready);
        assert!(pair.tick(Some));
        assert!(!pair.learner.replica.status().removed);
    }

    /// With one for each entry that was applied the thread that decides did nothing else.
    #[test]
    fn what_is_noted_has_a_bound_however_much_is_applied() {
        let mut pair = Pair::new();
        pair.tick(Some);
        for write in 0..4_000 {
            pair.leader.now = pair.leader.now.after(Duration::from_millis(1));
            pair.write(1);
            if write % 100 == 0 {
                pair.tick(Some);
            }
        }
        assert!(pair.leader.replica.keeping_up.committed.len() <= 64);
        assert!(pair.leader.replica.status().ready);
    }

    /// What it hears at first was said before it slept.
    #[test]
    fn who_wakes_up_is_ready_for_no_longer_than_that_takes_to_be_missed() {
        let mut pair = Pair::new();
        pair.tick(Some);
        assert!(pair.tick(Some));
        pair.leader.tick();
        pair.leader.settle();
        let old = std::mem::take(&mut pair.leader.sent);
        pair.write(1);
        pair.learner.now = pair.learner.now.after(Duration::from_secs(10));
        pair.leader.now = pair.learner.now;
        for Outbound { bytes, .. } in old {
            let from = pair.leader.replica.config.member_id;
            let message = Input::Message { from, bytes };
            pair.learner.replica.handle(message, pair.learner.now);
            pair.learner.settle();
        }
        for _ in 0..11 {
            pair.tick(without_log);
        }
        assert!((0..30).all(|_| !pair.tick(without_log)));
    }

    /// A read that comes just then waits for as long.
    #[test]
    fn who_falls_behind_for_less_than_three_election_timeouts_stays_ready() {
        let mut pair = Pair::new();
        pair.tick(Some);
        assert!(pair.tick(Some));
        assert!((0..30).all(|_| pair.tick(Some)));
        pair.write(1);
        assert!((0..30).all(|_| pair.tick(without_log)));
        pair.tick(without_log);
        assert!((0..30).all(|_| !pair.tick(without_log)));
        pair.tick(Some);
        assert!(pair.tick(Some));
        assert!((0..30).all(|_| pair.tick(without_log)));
    }

    #[test]
    fn who_is_always_a_little_behind_is_ready() {
        let timeout = Duration::from_secs(1);
        // From the start, and after it kept up.
        for (lag, ready) in [(9, [true, true]), (12, [false, true]), (32, [false, false])] {
            let mut keeping_up = KeepingUp::default();
            for tick in 1..300 {
                let now = Moment(tick * 100_000_000);
                keeping_up.note(Index(tick * 1_000), now, timeout);
                let lag = if (100..150).contains(&tick) { 0 } else { lag };
                keeping_up.look(Index(tick.saturating_sub(lag) * 1_000), now, timeout);
                match tick {
                    40..100 => assert_eq!(keeping_up.keeps_up(), ready[0], "{lag} {tick}"),
                    185.. => assert_eq!(keeping_up.keeps_up(), ready[1], "{lag} {tick}"),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn who_hears_nothing_for_an_election_timeout_keeps_up_no_more() {
        let timeout = Duration::from_secs(1);
        let at = |second: u64| Moment(second * 1_000_000_000);
        let mut keeping_up = KeepingUp::default();
        keeping_up.note(Index(1), at(1), timeout);
        for (second, keeps_up) in [(1, true), (2, true), (3, false)] {
            keeping_up.look(Index(1), at(second), timeout);
            assert_eq!(keeping_up.keeps_up(), keeps_up, "{second}");
        }
        keeping_up.note(Index(2), at(3), timeout);
        keeping_up.look(Index(1), at(3), timeout);
        assert!(!keeping_up.keeps_up());
    }

    #[test]
    fn who_does_not_apply_what_is_committed_is_not_ready_for_long() {
        let networks: [Network; 2] = [Some, of_an_earlier_version];
        for network in networks {
            let mut pair = Pair::new();
            pair.tick(network);
            assert!(pair.tick(network));
            assert!((0..30).all(|_| pair.tick(network)));
            pair.leader.holds_apply = true;
            pair.learner.holds_apply = true;
            pair.write(1);
            for tick in 0..38 {
                let ready = pair.tick(network);
                let status = pair.leader.replica.status();
                assert!(!status.stalled, "that takes longer");
                if !(29..=32).contains(&tick) {
                    assert_eq!((ready, status.ready), (tick < 29, tick < 29), "{tick}");
                }
            }
        }
    }

    #[test]
    fn the_heartbeats_of_a_leader_that_tells_nothing_of_its_log_suffice() {
        let mut pair = Pair::new();
        pair.forget_log();
        pair.tick(of_an_earlier_version);
        assert!((0..30).all(|_| pair.tick(of_an_earlier_version)));
    }
}
