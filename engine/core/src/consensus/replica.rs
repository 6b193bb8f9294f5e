//! [`Consensus`]: drives the `raft` crate's state machine, event by event.

use super::apply_window::ApplyWindow;
use super::config::{ConsensusConfig, ConsensusConfigError};
use super::convert;
use super::event::{
    Action, AppendId, ConfigChange, Event, Outbound, Progress, Proposal, ReadToken, Refusal, Role,
    State, Token,
};
use super::log_view::{LogRead, LogView};
use super::messages::Outbox;
use super::reads::Reads;
use super::validate::{self, PeerMessageError};
use crate::types::{Entry, HardState, Index, MemberId, Term};
use bytes::Bytes;
use prost_raft::Message as _;
use raft::{RawNode, StateRole, eraftpb};
use std::collections::{BTreeMap, VecDeque};

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
    /// Read rounds of peers that came before this leader could confirm any: the newest of each.
    early_reads: BTreeMap<u64, eraftpb::Message>,
    apply_window: ApplyWindow,
    actions: Vec<Action>,
    tick: u64,
    /// Elections that timed out here; with term and seed it decides the next election timeout.
    timeouts: u64,
    /// For each append that is out: the last of the crate's readies that it covers.
    pending_readies: VecDeque<(AppendId, u64)>,
    /// The newest hard state, and whether the log has not been given it yet.
    hard_state: HardState,
    hard_state_unsaved: bool,
    state: State,
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
            early_reads: BTreeMap::new(),
            apply_window: ApplyWindow::new(restored.applied, config.max_apply_bytes),
            node,
            outbox: Outbox::default(),
            actions: Vec::new(),
            tick: 0,
            timeouts: 0,
            pending_readies: VecDeque::new(),
            hard_state,
            hard_state_unsaved: false,
            state: State {
                term: hard_state.term,
                ..State::default()
            },
            config,
        };
        consensus.set_election_timeout();
        consensus.campaign_if_alone();
        Ok(consensus)
    }

    /// Takes one event in. What follows from it is returned by [`Self::actions`].
    ///
    /// # Errors
    /// A peer's message was refused; nothing changed.
    pub fn step(&mut self, event: Event) -> Result<(), PeerMessageError> {
        match event {
            Event::Tick => self.on_tick(),
            Event::Message { from, bytes } => self.on_message(from, &bytes)?,
            Event::Propose(proposals) => self.on_propose(&proposals),
            Event::ProposeChange { proposal, change } => {
                let entry = convert::change_to_raft(&proposal, change);
                self.propose(&[proposal.token], vec![entry]);
            }
            Event::Read(token) => self.on_read(token),
            Event::Persisted(id) => self.on_persisted(id),
            Event::Applied { index, changes } => self.on_applied(index, &changes),
            Event::TransferLeader(member) => self.on_transfer(member),
            Event::Unreachable(member) => self.node.report_unreachable(member.0),
        }
        self.set_election_timeout();
        Ok(())
    }

    /// Everything to do since the last call, in order.
    pub fn actions(&mut self) -> Vec<Action> {
        self.start_read_round();
        while self.has_ready() {
            self.on_ready();
        }
        self.set_election_timeout();
        std::mem::take(&mut self.actions)
    }

    /// Role, leader and term as of the last [`Self::actions`].
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// The last entry known to be committed.
    #[must_use]
    pub fn commit_index(&self) -> Index {
        Index(self.node.raft.raft_log.committed)
    }

    /// The last entry of this member's log.
    #[must_use]
    pub fn last_index(&self) -> Index {
        Index(self.node.raft.raft_log.last_index())
    }

    /// Whether a linearizable read would be confirmed now, as far as this member can tell: it leads and
    /// has committed in its term, or it heard from a leader within the last election timeout.
    #[must_use]
    pub fn can_confirm_reads(&self) -> bool {
        match self.state.role {
            Role::Leader => self.node.raft.commit_to_current_term(),
            Role::Follower => {
                self.state.leader.is_some()
                    && self.node.raft.election_elapsed <= self.config.election_ticks
            }
            Role::PreCandidate | Role::Candidate => false,
        }
    }

    /// Term, vote and commit index as of now, on disk or not.
    #[must_use]
    pub fn hard_state(&self) -> HardState {
        convert::hard_state_from_raft(&self.node.raft.hard_state())
    }

    /// How many messages wait until the disk has what they depend on.
    #[must_use]
    pub fn held_messages(&self) -> usize {
        self.outbox.held()
    }

    /// The leader's view of every member, itself included; empty on any other member.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        if self.state.role != Role::Leader {
            return Vec::new();
        }
        let tracker = self.node.raft.prs();
        let mut progress: Vec<_> = tracker
            .iter()
            .map(|(&id, progress)| Progress {
                member: MemberId(id),
                matched: Index(progress.matched),
                recently_active: progress.recent_active || id == self.config.id.0,
                voter: tracker.conf().voters().contains(id),
            })
            .collect();
        progress.sort_by_key(|p| p.member);
        progress
    }

    fn on_tick(&mut self) {
        self.tick += 1;
        self.prepare_for_tick();
        let elapsed = self.node.raft.election_elapsed;
        self.node.tick();
        let follows = self.node.raft.state != StateRole::Leader;
        if follows && elapsed > 0 && self.node.raft.election_elapsed == 0 {
            self.timeouts += 1;
        }
        let round_ticks = self.config.election_ticks as u64;
        self.reads.retry(self.tick, round_ticks);
        let tokens = self.reads.expire(self.tick, self.config.read_timeout_ticks);
        if !tokens.is_empty() {
            let refusal = Refusal::NoQuorum;
            self.actions.push(Action::ReadRefused { tokens, refusal });
        }
    }

    /// Keeps the crate from two things that its tick would do, or not do.
    fn prepare_for_tick(&mut self) {
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Follower {
            return;
        }
        let silent = raft.election_elapsed >= 2 * self.config.election_ticks;
        if !raft.promotable() && silent && raft.leader_id != raft::INVALID_ID {
            // Whoever has no vote never starts an election, and would believe in a dead leader for ever.
            raft.become_follower(raft.term, raft::INVALID_ID);
        }
        if raft.prs().is_singleton() && !validate::log_is_on_disk(raft) {
            // It would win at once, and the crate takes a winner's log to be on disk.
            raft.election_elapsed = 0;
        }
    }

    fn on_message(&mut self, from: MemberId, bytes: &Bytes) -> Result<(), PeerMessageError> {
        let message = eraftpb::Message::decode(bytes.as_ref())?;
        validate::check(&self.node.raft, from.0, &message)?;
        if message.msg_type() == eraftpb::MessageType::MsgReadIndex {
            self.on_peer_read(message);
            return Ok(());
        }
        // The only error left is an answer from a member that was removed meanwhile.
        let _ = self.node.step(message);
        Ok(())
    }

    /// The crate loses a peer's round that comes before the term's first commit, and forwards one that
    /// comes to a follower under a false sender. So here the first waits, and the second is dropped: its
    /// sender will learn of another leader and ask that one.
    fn on_peer_read(&mut self, message: eraftpb::Message) {
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Leader || raft.prs().get(message.from).is_none() {
            return;
        }
        if raft.commit_to_current_term() {
            let _ = raft.step(message);
        } else {
            self.early_reads.insert(message.from, message);
        }
    }

    fn on_transfer(&mut self, to: MemberId) {
        // A follower would pass the request on under a false sender.
        if self.node.raft.state == StateRole::Leader {
            self.node.transfer_leader(to.0);
        }
    }

    fn on_propose(&mut self, proposals: &[Proposal]) {
        if proposals.is_empty() {
            return;
        }
        let tokens: Vec<_> = proposals.iter().map(|p| p.token).collect();
        let entries = proposals.iter().map(convert::command_to_raft).collect();
        self.propose(&tokens, entries);
    }

    fn propose(&mut self, tokens: &[Token], entries: Vec<eraftpb::Entry>) {
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Leader {
            return self.refuse(tokens, Refusal::NotLeader);
        }
        let first = raft.raft_log.last_index() + 1;
        let pending_change = raft.pending_conf_index;
        let message = eraftpb::Message {
            msg_type: eraftpb::MessageType::MsgPropose.into(),
            from: raft.id,
            entries,
            ..eraftpb::Message::default()
        };
        match raft.step(message) {
            Ok(()) => {
                let term = Term(raft.term);
                let proposed = tokens.iter().zip(first..).map(|(&token, index)| {
                    let index = Index(index);
                    Action::Proposed { token, index, term }
                });
                self.actions.extend(proposed);
            }
            Err(_) => {
                // The crate notes a change as pending before it looks whether there is room for it.
                raft.pending_conf_index = pending_change;
                self.refuse(tokens, Refusal::Overloaded);
            }
        }
    }

    fn refuse(&mut self, tokens: &[Token], refusal: Refusal) {
        let refused = tokens
            .iter()
            .map(|&token| Action::Refused { token, refusal });
        self.actions.extend(refused);
    }

    fn on_read(&mut self, token: ReadToken) {
        if !self.reads.push(token, self.tick) {
            self.actions.push(Action::ReadRefused {
                tokens: vec![token],
                refusal: Refusal::TooManyReads,
            });
        }
    }

    /// A leader cannot confirm a read before it committed an entry of its term (Raft thesis §6.4), and
    /// a follower cannot ask without a leader: until then reads wait here.
    fn start_read_round(&mut self) {
        self.start_early_reads();
        let raft = &self.node.raft;
        let can_ask = match raft.state {
            StateRole::Leader => raft.commit_to_current_term(),
            StateRole::Follower => raft.leader_id != raft::INVALID_ID,
            StateRole::PreCandidate | StateRole::Candidate => false,
        };
        if can_ask && let Some(context) = self.reads.start_round(self.tick) {
            self.node.read_index(context.to_vec());
        }
    }

    fn start_early_reads(&mut self) {
        if self.node.raft.state != StateRole::Leader {
            self.early_reads.clear();
        } else if self.node.raft.commit_to_current_term() {
            for message in std::mem::take(&mut self.early_reads).into_values() {
                let _ = self.node.raft.step(message);
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
            self.node
                .apply_conf_change(&convert::conf_change(*change))
                .expect("the state machine accepted the change, so consensus does");
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

    /// The only voter need not wait for an election timeout: nobody else could lead.
    fn campaign_if_alone(&mut self) {
        let raft = &self.node.raft;
        let alone = raft.promotable() && raft.prs().is_singleton();
        let may = raft.leader_id == raft::INVALID_ID && validate::log_is_on_disk(raft);
        if alone && may {
            // It fails only where the crate would refuse to campaign anyway; the timeout tries again.
            let _ = self.node.campaign();
        }
    }

    /// Whether the crate has something to say. What it wants to be applied does not count while there
    /// is no room for it.
    fn has_ready(&self) -> bool {
        if !self.apply_window.is_full() {
            return self.node.has_ready();
        }
        let raft = &self.node.raft;
        !raft.msgs.is_empty()
            || !raft.read_states.is_empty()
            || !raft.raft_log.unstable_entries().is_empty()
            || self.hard_state() != self.hard_state
            || self.current_state() != self.state
    }

    fn on_ready(&mut self) {
        let room = !self.apply_window.is_full();
        let apply_bytes = if room { self.config.max_apply_bytes } else { 0 };
        self.node.raft.set_max_committed_size_per_ready(apply_bytes);
        let mut ready = self.node.ready();
        self.note_state();

        let mut messages = ready.take_messages();
        messages.extend(ready.take_persisted_messages());
        let committed = ready.take_committed_entries();
        let read_states = ready.take_read_states();
        self.append(ready);

        for message in &mut messages {
            self.align(message);
        }
        let free = self.outbox.push(messages);
        self.send(free);
        self.apply(committed);
        for read in read_states {
            let tokens = self.reads.confirm(&read.request_ctx);
            if !tokens.is_empty() {
                let index = Index(read.index);
                self.actions.push(Action::ReadReady { tokens, index });
            }
        }
        self.start_read_round();
    }

    /// Hands out what the ready wants written; a ready with nothing to write is persisted as soon as
    /// everything before it is.
    fn append(&mut self, mut ready: raft::Ready) {
        let durable = (self.hard_state.term, self.hard_state.vote);
        if let Some(hard_state) = ready.hs() {
            self.hard_state = convert::hard_state_from_raft(hard_state);
            self.hard_state_unsaved = true;
        }
        let new_term = (self.hard_state.term, self.hard_state.vote) != durable;
        let entries: Vec<_> = ready.take_entries().into_iter().map(own_entry).collect();
        let number = ready.number();
        if new_term || !entries.is_empty() {
            self.node.mut_store().append(&entries);
            let id = self.outbox.append(new_term);
            self.pending_readies.push_back((id, number));
            let unsaved = std::mem::take(&mut self.hard_state_unsaved);
            self.actions.push(Action::Append {
                id,
                hard_state: unsaved.then_some(self.hard_state),
                entries,
            });
        } else if let Some((_, covered)) = self.pending_readies.back_mut() {
            *covered = number;
        }
        self.node.advance_append_async(ready);
        if self.pending_readies.is_empty() {
            self.node.on_persist_ready(number);
        }
    }

    /// The crate adds entries to an append of the same member that is still empty, also if they do not
    /// follow from where that one stood.
    fn align(&self, message: &mut eraftpb::Message) {
        let is_append = message.msg_type() == eraftpb::MessageType::MsgAppend;
        let Some(first) = message.entries.first().filter(|_| is_append) else {
            return;
        };
        let before = first.index - 1;
        if before != message.index {
            let log = &self.node.raft.raft_log;
            message.log_term = log.term(before).expect("the entries after it were read");
            message.index = before;
        }
    }

    fn apply(&mut self, committed: Vec<eraftpb::Entry>) {
        let entries = committed.into_iter().map(own_entry).collect();
        if let Some(entries) = self.apply_window.offer(entries) {
            self.actions.push(Action::Apply(entries));
        }
    }

    /// Hands out what had no room before.
    fn hand_out(&mut self) {
        while let Some((from, to)) = self.apply_window.next() {
            let read = self
                .node
                .store()
                .read(from, to, self.config.max_apply_bytes);
            // As where the crate reads the log: without it, nothing can go on.
            let entries = read.unwrap_or_else(|error| panic!("{error}"));
            self.apply_window.hand_out(&entries);
            self.actions.push(Action::Apply(entries));
        }
    }

    fn send(&mut self, messages: Vec<Outbound>) {
        if !messages.is_empty() {
            self.actions.push(Action::Send(messages));
        }
    }

    fn current_state(&self) -> State {
        let raft = &self.node.raft;
        State {
            role: match raft.state {
                StateRole::Follower => Role::Follower,
                StateRole::PreCandidate => Role::PreCandidate,
                StateRole::Candidate => Role::Candidate,
                StateRole::Leader => Role::Leader,
            },
            leader: (raft.leader_id != raft::INVALID_ID).then_some(MemberId(raft.leader_id)),
            term: Term(raft.term),
        }
    }

    fn note_state(&mut self) {
        let state = self.current_state();
        if state != self.state {
            self.state = state;
            // A round asked of the leader before, or in the term before, may never be answered.
            self.reads.retry(self.tick, 0);
            self.actions.push(Action::StateChanged(state));
        }
    }

    /// Replaces whatever the crate drew from its own generator. Must follow every call that may redraw
    /// it, and depends only on seed, member, term and how often elections timed out here.
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

fn own_entry(entry: eraftpb::Entry) -> Entry {
    convert::entry_from_raft(entry)
        .expect("entries are checked when they are proposed here or taken from a peer")
}

/// SplitMix64's finalizer: spreads every input bit over the output.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
