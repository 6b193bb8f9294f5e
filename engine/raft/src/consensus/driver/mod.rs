//! [`Consensus`]: drives the `raft` crate's state machine, one thing that happens after the other.
//!
//! Here is what goes in; `ready` has what comes out, `reading` the rounds of linearizable reads,
//! and `progress` what a leader knows of the others.

mod commit_news;
mod divergence;
mod heartbeats;
pub(super) mod passing;
mod progress;
mod reading;
mod ready;
mod snapshots;
mod terms;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{HardState, Index, MemberId, Moment, Term};
use raft::{RawNode, StateRole, eraftpb};

use super::apply_window::ApplyWindow;
use super::config::{ConsensusConfig, ConsensusConfigError};
use super::lease::Lease;
use super::log_view::{LogRead, LogView};
use super::messages::Outbox;
use super::reads::Reads;
use super::types::{ConfigChange, ConfigChangeKind, Proposal, Refusal, ReplicaState, Role};
use super::validate::{self, PeerMessageError};
use super::{convert, decode};
use crate::input::{AppendId, SnapshotMeta, Token};
use crate::output::Output;
use commit_news::CommitNews;
use divergence::Contradictions;
use heartbeats::Told;
use passing::Passing;
use snapshots::Snapshots;
pub use snapshots::snapshot_position;
use terms::TermBudget;

/// What a member knew when it last stopped.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// From the log. Its commit index must be at least `applied`.
    pub hard_state: HardState,
    /// The last entry that the state machine has applied; the log must reach it.
    pub applied: Index,
    /// Who votes, as of `applied`.
    pub voters: Vec<MemberId>,
    /// Who only listens, as of `applied`.
    pub learners: Vec<MemberId>,
}

/// One member's consensus. See the module's documentation for what it promises.
pub struct Consensus<L: LogRead> {
    config: ConsensusConfig,
    node: RawNode<LogView<L>>,
    outbox: Outbox,
    reads: Reads,
    /// Read rounds of peers that wait for the next round of this leader: the newest of each.
    peer_reads: BTreeMap<u64, eraftpb::Message>,
    lease: Lease,
    /// Until this tick somebody may want the lease, so it is renewed.
    lease_wanted_until: u64,
    commit_news: CommitNews,
    passing: Passing,
    snapshots: Snapshots,
    apply_window: ApplyWindow,
    /// The tick at which each member was last heard from.
    heard: BTreeMap<u64, u64>,
    told: Option<Told>,
    /// Whether this member would rather not lead.
    is_unfit: bool,
    /// Whether each member is fit to lead, as it said last to this leader, and in which term.
    fitness: BTreeMap<u64, (Term, bool)>,
    /// Where its log ended when it last looked, as a leader, and when it looked before: once in an
    /// election timeout.
    ended_at: [Index; 2],
    /// The heartbeat interval in which the crate last went on sending to each member that lagged.
    sent_again: BTreeMap<u64, u64>,
    outputs: Vec<Output>,
    tick: u64,
    /// The caller's clock when it last told.
    now: Moment,
    /// The terms that this member may come to without counting, and until when.
    terms: TermBudget,
    /// From this tick on votes are granted: before it, this member may have acknowledged a round
    /// that a lease rests on.
    votes_from: u64,
    /// From this tick on elections are started: before it, a member that has lost nothing may win
    /// one. None once a leader was heard of.
    stands_from: u64,
    contradictions: Contradictions,
    /// Elections that timed out here; with term and seed it decides the next election timeout.
    timeouts: u64,
    /// For each append that is out: the last of the crate's readies that it covers.
    pending_readies: VecDeque<(AppendId, u64)>,
    /// The newest hard state, and whether the log has not been given it yet.
    hard_state: HardState,
    hard_state_unsaved: bool,
    state: ReplicaState,
}

/// From which tick on a member votes that starts in this term. A member that never knew a term
/// has acknowledged nothing yet.
fn votes_from(config: &ConsensusConfig, term: Term) -> u64 {
    match term {
        Term(0) => 0,
        Term(_) if planted!(RestartedVoterDoesNotWait) => 0,
        Term(_) => config.silent_ticks(),
    }
}

impl<L: LogRead> Consensus<L> {
    /// Starts as a follower that knows no leader; as a candidate, if it is the only voter.
    ///
    /// # Errors
    /// The configuration cannot work.
    ///
    /// # Panics
    /// `restored` contradicts itself or the log: the caller lost or mixed up durable state.
    pub fn new(
        config: ConsensusConfig,
        restored: Restored,
        log: L,
    ) -> Result<Self, ConsensusConfigError> {
        config.validate()?;
        let hard_state = restored.hard_state;
        assert!(
            restored.applied <= hard_state.commit && hard_state.commit <= log.last_index(),
            "applied {} ≤ committed {} ≤ last {} must hold",
            restored.applied,
            hard_state.commit,
            log.last_index()
        );
        let mut restored = restored;
        if planted!(QuorumCountedWrong) {
            let other = restored.voters.iter().copied().find(|id| *id != config.id);
            restored
                .voters
                .retain(|id| *id == config.id || Some(*id) == other);
        }
        let view = LogView::new(
            log,
            hard_state,
            restored.voters,
            restored.learners,
            config.cache_bytes,
        );
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config.to_raft(restored.applied.0), view, &logger)
            .expect("the configuration was validated and the log is readable");
        let mut consensus = Self {
            reads: Reads::new(config.id.0, config.boot_nonce, config.max_waiting_reads),
            peer_reads: BTreeMap::new(),
            lease: Lease::new(&config),
            lease_wanted_until: 0,
            commit_news: CommitNews::default(),
            passing: Passing::default(),
            snapshots: Snapshots::default(),
            apply_window: ApplyWindow::new(restored.applied, config.max_apply_bytes),
            node,
            outbox: Outbox::default(),
            heard: BTreeMap::new(),
            told: None,
            is_unfit: false,
            fitness: BTreeMap::new(),
            ended_at: [Index(0); 2],
            sent_again: BTreeMap::new(),
            outputs: Vec::new(),
            tick: 0,
            now: Moment(0),
            terms: TermBudget::default(),
            votes_from: votes_from(&config, hard_state.term),
            stands_from: config.hesitation_ticks(),
            contradictions: Contradictions::default(),
            timeouts: 0,
            pending_readies: VecDeque::new(),
            hard_state,
            hard_state_unsaved: false,
            state: ReplicaState {
                term: hard_state.term,
                ..ReplicaState::default()
            },
            config,
        };
        consensus.set_election_timeout();
        consensus.campaign_if_alone();
        Ok(consensus)
    }

    /// Tells the time. What is stepped after this happened after `now`.
    pub fn observe(&mut self, now: Moment) {
        if now.since(self.now) >= self.config.tick * self.config.election_ticks as u32 {
            self.forget_what_is_old();
        }
        self.now = self.now.max(now);
    }

    /// Lets a tick pass. Ticks that were missed are skipped, never replayed. Returns the reads that
    /// no quorum confirmed in time.
    pub fn tick(&mut self) -> Vec<Token> {
        self.take_in(Vec::new(), Self::on_tick)
    }

    /// Takes in a peer's message, as it came off the stream that `from` opened.
    ///
    /// # Errors
    /// It was refused; nothing changed.
    pub fn message(&mut self, from: MemberId, bytes: &Bytes) -> Result<(), PeerMessageError> {
        self.take_in(Ok(()), |it| it.on_message(from, bytes))
    }

    /// Replicates these commands, in this order. Returns where the first of them stands in this
    /// member's log, and the others behind it; they may still be overwritten: compare the contexts
    /// of what is applied there.
    ///
    /// # Errors
    /// None of them was taken.
    pub fn propose(&mut self, proposals: Vec<Proposal>) -> Result<Index, Refusal> {
        let entries = proposals.into_iter().map(convert::command_to_raft);
        self.take_in(Err(Refusal::NotLeader), |it| {
            it.on_propose(entries.collect())
        })
    }

    /// Replicates a membership change; `proposal.data` is what the state machine applies, and
    /// `change` what this does once it is applied. Returns where it stands.
    ///
    /// # Errors
    /// It was not taken.
    pub fn propose_change(
        &mut self,
        proposal: Proposal,
        change: ConfigChange,
    ) -> Result<Index, Refusal> {
        let entry = convert::change_to_raft(proposal, change);
        self.take_in(Err(Refusal::NotLeader), |it| it.on_propose(vec![entry]))
    }

    /// Confirms that reads from now on are linearizable: then [`Output::MayRead`].
    ///
    /// # Errors
    /// As many reads wait as may.
    pub fn read(&mut self, token: Token) -> Result<(), Refusal> {
        self.take_in(Ok(()), |it| it.on_read(token))
    }

    /// The same, and the leader's lease will do: returns up to which entry must be applied, if it
    /// holds. Valid only if the clock was observed ([`Self::observe`]) after the read was asked
    /// for.
    ///
    /// # Errors
    /// As many reads wait as may.
    pub fn lease_read(&mut self, token: Token) -> Result<Option<Index>, Refusal> {
        self.take_in(Ok(None), |it| it.on_lease_read(token))
    }

    /// Everything up to and including this append is on disk.
    pub fn persisted(&mut self, id: AppendId) {
        self.take_in((), |it| it.on_persisted(id));
    }

    /// The state machine has applied everything up to `index`; `changes` are the membership changes
    /// among it that it accepted, in order.
    pub fn applied(&mut self, index: Index, changes: &[ConfigChange]) {
        self.take_in((), |it| it.on_applied(index, changes));
    }

    /// Hands leadership to this voter.
    pub fn transfer_leader(&mut self, to: MemberId) {
        self.take_in((), |it| it.on_transfer(to));
    }

    /// A message to this member could not be sent.
    pub fn unreachable(&mut self, member: MemberId) {
        self.take_in((), |it| it.node.report_unreachable(member.0));
    }

    /// A snapshot that [`Output::MakeSnapshot`] asked for can be sent; `None`: it could not be
    /// made.
    pub fn snapshot_made(&mut self, made: Option<&SnapshotMeta>) {
        self.take_in((), |it| it.on_snapshot_made(made));
    }

    /// How the sending that [`Output::SendSnapshot`] asked for ended: whether `to` has all of it.
    pub fn snapshot_sent(&mut self, to: MemberId, ok: bool) {
        self.take_in((), |it| it.on_snapshot_sent(to, ok));
    }

    /// A snapshot that a leader sent is here, complete and on disk; `message` is that of
    /// [`Output::SendSnapshot`].
    ///
    /// # Errors
    /// It was refused; nothing changed.
    pub fn snapshot_staged(
        &mut self,
        from: MemberId,
        message: &Bytes,
    ) -> Result<(), PeerMessageError> {
        self.take_in(Ok(()), |it| it.on_snapshot(from, message))
    }

    /// The log is about to forget its entries up to this one. The state machine has them on disk.
    pub fn truncate(&mut self, index: Index) {
        self.take_in((), |it| it.on_truncate(index));
    }

    /// Whatever happens passes through here. Once this consensus has ended nothing does any more.
    fn take_in<T>(&mut self, ended: T, happens: impl FnOnce(&mut Self) -> T) -> T {
        if self.has_ended() {
            return ended;
        }
        let result = happens(self);
        self.set_election_timeout();
        result
    }

    /// Everything to do since the last call, in order. Only what is written and what is applied may
    /// be handed to another thread, each kind keeping its own order.
    pub fn outputs(&mut self) -> Vec<Output> {
        if self.snapshots.is_installing() {
            self.install();
            return std::mem::take(&mut self.outputs);
        }
        if self.contradictions.has_ended() {
            self.hand_out_divergence();
            return std::mem::take(&mut self.outputs);
        }
        self.start_read_round();
        self.hand_out_readies();
        self.send_commit_news();
        self.hand_out_readies();
        self.ask_for_snapshot();
        self.set_election_timeout();
        std::mem::take(&mut self.outputs)
    }

    /// Role, leader and term as of the last [`Self::outputs`].
    #[must_use]
    pub fn state(&self) -> ReplicaState {
        self.state
    }

    /// The last entry known to be committed.
    #[must_use]
    pub fn commit_index(&self) -> Index {
        Index(self.node.raft.raft_log.committed)
    }

    /// The last entry that may be applied: it is committed, and on this member's own disk. Others'
    /// are a majority also without it.
    #[must_use]
    pub fn appliable_index(&self) -> Index {
        let log = &self.node.raft.raft_log;
        Index(log.committed.min(log.persisted))
    }

    /// The first entry of this member's log that may be read.
    #[must_use]
    pub fn first_index(&self) -> Index {
        Index(self.node.raft.raft_log.first_index())
    }

    /// The last entry of this member's log.
    #[must_use]
    pub fn last_index(&self) -> Index {
        Index(self.node.raft.raft_log.last_index())
    }

    /// Whether a linearizable read would be confirmed now, as far as this member can tell: it leads
    /// and has committed in its term, or it heard from a leader within the last election timeout,
    /// whose log goes on from its own.
    #[must_use]
    pub fn can_confirm_reads(&self) -> bool {
        match self.state.role {
            Role::Leader => self.node.raft.commit_to_current_term(),
            Role::Follower => {
                self.state.leader.is_some()
                    && self.node.raft.election_elapsed <= self.config.election_ticks
                    && !self.is_contradicted()
            }
            Role::PreCandidate | Role::Candidate => false,
        }
    }

    /// Term, vote and commit index as of now, on disk or not.
    #[must_use]
    pub fn hard_state(&self) -> HardState {
        convert::hard_state_from_raft(&self.node.raft.hard_state())
    }

    /// Whether a leader's log may hold a change of the members that is not applied yet, so that it
    /// does not know who they are: one was proposed, or it was just elected and has not applied
    /// what its log held then.
    #[must_use]
    pub fn may_change_members(&self) -> bool {
        self.node.raft.has_pending_conf()
    }

    /// Whether something waits for entries to be applied: more of them, a change of the members, or
    /// those who read by the lease, which covers nothing that is not applied.
    #[must_use]
    pub fn awaits_applied(&self) -> bool {
        let leads = self.state.role == Role::Leader;
        self.apply_window.is_behind()
            || self.node.raft.has_pending_conf()
            || leads && self.tick < self.lease_wanted_until
    }

    /// How many messages wait until the disk has what they depend on.
    #[must_use]
    pub fn held_messages(&self) -> usize {
        self.outbox.held()
    }

    fn on_tick(&mut self) -> Vec<Token> {
        self.tick += 1;
        self.prepare_for_tick();
        let elapsed = self.node.raft.election_elapsed;
        self.node.tick();
        let follows = self.node.raft.state != StateRole::Leader;
        if follows && elapsed > 0 && self.node.raft.election_elapsed == 0 {
            self.timeouts += 1;
        }
        self.settle_contradiction();
        self.note_end();
        self.renew_lease();
        let round_ticks = self.config.election_ticks as u64;
        self.reads.retry(self.tick, round_ticks);
        self.reads.expire(self.tick, self.config.read_timeout_ticks)
    }

    /// Keeps the crate from three things that its tick would do, or not do.
    fn prepare_for_tick(&mut self) {
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Follower {
            return;
        }
        let hesitates = self.tick < self.stands_from && !raft.prs().is_singleton();
        if self.tick < self.votes_from || hesitates {
            // A member that may not vote does not stand either: that would be a vote for itself.
            let least = self.config.election_ticks - 2;
            raft.election_elapsed = raft.election_elapsed.min(least);
        }
        let silent = raft.election_elapsed >= 2 * self.config.election_ticks;
        if !raft.promotable() && silent && raft.leader_id != raft::INVALID_ID {
            // A member without a vote never starts an election, and would believe in a dead leader
            // forever.
            raft.become_follower(raft.term, raft::INVALID_ID);
        }
        if raft.prs().is_singleton() && !validate::log_is_on_disk(raft) {
            // It would win at once, and the crate takes a winner's log to be on disk.
            raft.election_elapsed = 0;
        }
    }

    fn on_message(&mut self, from: MemberId, bytes: &Bytes) -> Result<(), PeerMessageError> {
        let mut message = decode::message(bytes)?;
        if planted!(CommittedNotCompared) {
            self.leave_out_committed(&mut message);
        }
        let term_max = self.term_max();
        if let Err(error) = validate::check(&self.node.raft, from.0, &message, term_max) {
            if let PeerMessageError::Contradiction { index } = error {
                self.note_contradiction(from, Term(message.term), Index(index));
            }
            return match self.approach_term(from, &message, term_max) {
                true => Ok(()),
                false => Err(error),
            };
        }
        self.note_heard(from);
        match message.msg_type() {
            eraftpb::MessageType::MsgReadIndex => {
                self.on_peer_read(message);
                return Ok(());
            }
            eraftpb::MessageType::MsgRequestVote | eraftpb::MessageType::MsgRequestPreVote
                if self.tick < self.votes_from && !is_transfer(&message) =>
            {
                return Ok(());
            }
            eraftpb::MessageType::MsgAppend if !message.entries.is_empty() && self.is_full() => {
                return Ok(());
            }
            eraftpb::MessageType::MsgRequestPreVoteResponse
                if planted!(PreVoteTakenForVote)
                    && self.node.raft.state == StateRole::Candidate
                    && validate::log_is_on_disk(&self.node.raft) =>
            {
                message.set_msg_type(eraftpb::MessageType::MsgRequestVoteResponse);
            }
            eraftpb::MessageType::MsgAppend if planted!(PreviousEntryNotCompared) => {
                let log = &self.node.raft.raft_log;
                message.log_term = log.term(message.index).unwrap_or(message.log_term);
            }
            eraftpb::MessageType::MsgHeartbeat => {
                self.on_heartbeat(message);
                return Ok(());
            }
            eraftpb::MessageType::MsgHeartbeatResponse => {
                self.on_heartbeat_response(message);
                return Ok(());
            }
            eraftpb::MessageType::MsgAppendResponse => self.note_waiting(&message),
            // The crate would propose it whatever its term.
            eraftpb::MessageType::MsgPropose => {
                self.on_passed_on(message);
                return Ok(());
            }
            _ => {}
        }
        // The only error left is an answer from a member that was removed meanwhile.
        let _ = self.node.step(message);
        Ok(())
    }

    /// Only for [`dengine_planted::Bug::CommittedNotCompared`]: of an append, what is not committed
    /// here yet.
    fn leave_out_committed(&self, message: &mut eraftpb::Message) {
        let log = &self.node.raft.raft_log;
        let append = message.msg_type() == eraftpb::MessageType::MsgAppend;
        if append && message.term >= self.node.raft.term && message.index < log.committed {
            message.entries.retain(|it| it.index > log.committed);
            message.index = log.committed;
            message.log_term = log.term(log.committed).unwrap_or_default();
        }
    }

    fn on_truncate(&mut self, index: Index) {
        let applied = self.node.raft.raft_log.applied;
        assert!(
            index.0 <= applied,
            "the log is truncated up to {index}, and only {applied} is known to be applied"
        );
        self.node.mut_store().truncate(index);
    }

    /// Whether more entries wait for the disk here than a leader may have on their way. Nothing
    /// more is taken until the disk has caught up: the crate's leader sends one more with each
    /// heartbeat, and a liar may send anything. What is dropped is asked for by the refusal of the
    /// next append, which does not fit.
    fn is_full(&self) -> bool {
        let config = &self.config;
        let in_flight =
            (config.max_inflight_messages as u64).saturating_mul(config.max_message_bytes);
        let not_handed_out = self.node.raft.raft_log.unstable.entries_size as u64;
        let waiting = self.node.store().recent_bytes() + not_handed_out;
        waiting > config.cache_bytes.saturating_add(in_flight)
    }

    fn on_transfer(&mut self, to: MemberId) {
        // A follower would pass the request on under a false sender.
        if self.node.raft.state == StateRole::Leader {
            // A member that is told to campaign at once is voted for in spite of the lease.
            if !planted!(LeaseKeptOverTransfer) {
                self.lease.end(Term(self.node.raft.term));
            }
            self.node.transfer_leader(to.0);
        }
    }

    fn on_propose(&mut self, entries: Vec<eraftpb::Entry>) -> Result<Index, Refusal> {
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Leader {
            return Err(Refusal::NotLeader);
        }
        let first = raft.raft_log.last_index() + 1;
        let pending_change = raft.pending_conf_index;
        let message = eraftpb::Message {
            msg_type: eraftpb::MessageType::MsgPropose.into(),
            entries,
            ..eraftpb::Message::default()
        };
        match raft.step(message) {
            // It is taken all the same.
            Ok(()) if planted!(RefusedAfterAppend) && first > raft.raft_log.committed + 4 => {
                Err(Refusal::Overloaded)
            }
            Ok(()) => Ok(Index(first)),
            Err(_) => {
                // The crate notes a change as pending before it looks whether there is room for it.
                raft.pending_conf_index = pending_change;
                Err(Refusal::Overloaded)
            }
        }
    }

    fn on_persisted(&mut self, id: AppendId) {
        assert!(
            id <= self.outbox.appended(),
            "append {id:?} was never handed out, the newest is {:?}",
            self.outbox.appended()
        );
        let mut ready = None;
        while self
            .pending_readies
            .front()
            .is_some_and(|(append, _)| *append <= id)
        {
            ready = self.pending_readies.pop_front().map(|(_, ready)| ready);
        }
        if let Some(ready) = ready {
            self.node.on_persist_ready(ready);
        }
        let free = self.outbox.persisted(id);
        self.send(free);
        let persisted = self.node.raft.raft_log.persisted;
        self.node.mut_store().evict(persisted);
    }

    fn on_applied(&mut self, index: Index, changes: &[ConfigChange]) {
        for change in changes {
            let votes = change.kind == ConfigChangeKind::AddVoter;
            if votes && planted!(PromotionNotCounted) && self.node.raft.state == StateRole::Leader {
                continue;
            }
            self.node
                .apply_conf_change(&convert::conf_change(*change))
                .expect("the state machine accepted the change, so consensus does");
        }
        if !changes.is_empty() {
            // What a quorum of the members before acknowledged may be no quorum's word any more.
            self.lease.drop_until_confirmed();
            self.forget_removed();
        }
        self.node.advance_apply_to(index.0);
        self.apply_window.applied(index);
        self.hand_out();
        self.step_down_if_removed();
        self.campaign_if_alone();
    }

    /// A leader that is no voter any more must not go on (Raft thesis §4.2.2).
    fn step_down_if_removed(&mut self) {
        let raft = &mut self.node.raft;
        if raft.state == StateRole::Leader && !raft.promotable() {
            raft.become_follower(raft.term, raft::INVALID_ID);
        }
    }

    /// As if the member had been up for an election timeout.
    #[cfg(test)]
    pub(crate) fn grant_votes(&mut self) {
        self.votes_from = 0;
    }

    /// The only voter need not wait for an election timeout: no other could lead.
    fn campaign_if_alone(&mut self) {
        let raft = &self.node.raft;
        let alone = raft.promotable() && raft.prs().is_singleton();
        let may = raft.leader_id == raft::INVALID_ID && validate::log_is_on_disk(raft);
        if alone && may {
            // It fails only where the crate would refuse to campaign anyway; the timeout tries
            // again.
            let _ = self.node.campaign();
        }
    }

    /// Replaces whatever the crate drew from its own generator. Must follow every call that may
    /// redraw it, and depends only on seed, member, term and how often elections timed out here.
    fn set_election_timeout(&mut self) {
        let raft = &self.node.raft;
        let mixed = [self.config.id.0, raft.term, self.timeouts]
            .into_iter()
            .fold(self.config.seed, |hash, value| mix(hash ^ value));
        let span = self.config.election_ticks as u64;
        let offset = usize::try_from(mixed % span).expect("below a usize");
        let timeout = self.config.election_ticks + offset;
        self.node.raft.set_randomized_election_timeout(timeout);
    }
}

/// SplitMix64's finalizer: spreads every input bit over the output.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Whether a candidate was told to campaign by the leader, which had given up its lease by then.
fn is_transfer(message: &eraftpb::Message) -> bool {
    message.context == raft::CAMPAIGN_TRANSFER
}

#[cfg(test)]
mod tests {
    use super::mix;

    /// The first numbers of SplitMix64 from seed 0, as its author's program prints them.
    #[test]
    fn election_timeouts_are_spread_by_splitmix64() {
        let mut state = 0_u64;
        for expected in [
            0xe220_a839_7b1d_cdaf,
            0x6e78_9e6a_a1b9_65f4,
            0x06c4_5d18_8009_454f,
        ] {
            assert_eq!(mix(state), expected);
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        }
    }
}
