//! The thread that owns consensus: takes what queued, asks consensus what follows, and has it done.

use super::applier::{ApplyJob, config_change};
use super::input::{Input, Reply, Request};
use super::log_writer::AppendJob;
use super::pending::Expected;
use super::status::{Lifecycle, MemberProgress, MembersView, NodeStatus, Role};
use super::{Written, metrics};
use crate::config::Config;
use crate::error::{Fatal, LeaderHint, RequestError};
use crate::folder::Identity;
use crate::storage::RocksStore;
use crate::transport::Peers;
use bytes::Bytes;
use dengine_core::consensus::{
    Action, ConfigChange, Consensus, Event, Proposal, ReadToken, Refusal, Role as RaftRole, State,
    Token,
};
use dengine_core::kv::{Membership, MembershipChange, Reader};
use dengine_core::log::{LogReader, RealDisk};
use dengine_core::types::{Index, MemberId, Term};
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;
use tokio::sync::watch;

/// Inputs taken in before consensus is asked what follows. Bounds how long an answer waits for the
/// inputs behind it.
const INPUTS_PER_ROUND_MAX: usize = 4096;

/// A learner may vote once it lacks no more than this many entries: about what one message carries.
const PROMOTION_LAG_ENTRIES_MAX: u64 = 1000;

/// A member that has this many committed entries still to apply is not ready to answer reads.
const READY_LAG_ENTRIES_MAX: u64 = 10_000;

pub(super) struct Parts {
    pub(super) config: Config,
    pub(super) identity: Identity,
    pub(super) folder_id: String,
    pub(super) consensus: Consensus<LogReader<RealDisk>>,
    pub(super) log_jobs: Sender<AppendJob>,
    pub(super) apply_jobs: Sender<ApplyJob>,
    pub(super) peers: Peers,
    pub(super) reader: Reader<RocksStore>,
    pub(super) log_reader: LogReader<RealDisk>,
    pub(super) membership: watch::Receiver<Arc<Membership>>,
    pub(super) status: watch::Sender<NodeStatus>,
    pub(super) fatal: watch::Sender<Option<Fatal>>,
}

struct Proposed {
    context: Bytes,
    reply: Reply<Written>,
}

struct Transfer {
    to: MemberId,
    reply: Reply<Term>,
    give_up_at: Instant,
}

pub(super) struct Replica {
    parts: Parts,
    boot_nonce: u64,
    next_token: u64,
    /// Collected until the inputs of this round are taken in; then one proposal of them all.
    proposals: Vec<Proposal>,
    /// Handed to consensus, which has not said yet where they stand.
    proposed: HashMap<Token, Proposed>,
    reads: HashMap<ReadToken, Reply<()>>,
    /// Confirmed reads that wait for the state machine.
    reads_at: BTreeMap<Index, Vec<Reply<()>>>,
    applied: Index,
    /// Where the last membership change of this leader stands; another must wait until it is applied.
    change_at: Index,
    transfer: Option<Transfer>,
}

impl Replica {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            applied: parts.reader.applied_index(),
            parts,
            boot_nonce: rand::random(),
            next_token: 0,
            proposals: Vec::new(),
            proposed: HashMap::new(),
            reads: HashMap::new(),
            reads_at: BTreeMap::new(),
            change_at: Index(0),
            transfer: None,
        }
    }

    /// Works until it is told to stop or something fails.
    pub(super) fn run(mut self, input: &Receiver<Input>) {
        let mut next_tick = Instant::now() + self.parts.config.tick();
        loop {
            self.act();
            let wait = next_tick.saturating_duration_since(Instant::now());
            let first = match input.recv_timeout(wait) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if self.take_in(first, input).is_break() {
                return;
            }
            let now = Instant::now();
            if now >= next_tick {
                self.tick();
                // Ticks that were missed are skipped: time that this thread did not see says nothing
                // about the leader.
                next_tick = now + self.parts.config.tick();
            }
        }
    }

    fn take_in(&mut self, first: Option<Input>, input: &Receiver<Input>) -> ControlFlow<()> {
        let queued = std::iter::from_fn(|| input.try_recv().ok());
        let inputs = first.into_iter().chain(queued);
        for input in inputs.take(INPUTS_PER_ROUND_MAX) {
            self.on_input(input)?;
        }
        let proposals = std::mem::take(&mut self.proposals);
        if !proposals.is_empty() {
            self.step(Event::Propose(proposals));
        }
        ControlFlow::Continue(())
    }

    fn on_input(&mut self, input: Input) -> ControlFlow<()> {
        match input {
            Input::Request(request) => self.on_request(request),
            Input::Message {
                from,
                bytes,
                permit,
            } => {
                self.step(Event::Message { from, bytes });
                drop(permit);
            }
            Input::Unreachable(member) => self.step(Event::Unreachable(member)),
            Input::Persisted(id) => self.step(Event::Persisted(id)),
            Input::Applied { index, changes } => self.on_applied(index, changes),
            Input::Failed(fatal) => {
                tracing::error!(%fatal, "this member cannot go on");
                self.parts.fatal.send_replace(Some(fatal));
                return ControlFlow::Break(());
            }
            Input::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn on_request(&mut self, request: Request) {
        match request {
            Request::Write { data, reply } => {
                let proposal = self.proposal(data, reply);
                self.proposals.push(proposal);
            }
            Request::Change { change, reply } => match self.check_change(&change) {
                Ok(config_change) => {
                    let proposal = self.proposal(change.encode(), reply);
                    self.step(Event::ProposeChange {
                        proposal,
                        change: config_change,
                    });
                    self.change_at = self.parts.consensus.last_index();
                }
                Err(error) => drop(reply.send(Err(error))),
            },
            Request::Read { reply } => {
                let token = ReadToken(self.token());
                self.reads.insert(token, reply);
                self.step(Event::Read(token));
            }
            Request::Members { reply } => drop(reply.send(self.members())),
            Request::TransferLeader { to, reply } => self.transfer(to, reply),
        }
    }

    fn proposal(&mut self, data: Bytes, reply: Reply<Written>) -> Proposal {
        let token = Token(self.token());
        // Unique over all members and all their starts, so that an entry answers only its own caller.
        let id = self.parts.identity.member_id.0;
        let context = Bytes::from(
            [id, self.boot_nonce, token.0]
                .map(u64::to_be_bytes)
                .concat(),
        );
        let proposed = Proposed {
            context: context.clone(),
            reply,
        };
        self.proposed.insert(token, proposed);
        Proposal {
            token,
            context,
            data,
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn step(&mut self, event: Event) {
        if let Err(refusal) = self.parts.consensus.step(event) {
            ::metrics::counter!(metrics::PEER_MESSAGES_REFUSED_TOTAL).increment(1);
            tracing::warn!(%refusal, "refused a peer's message");
        }
    }

    fn tick(&mut self) {
        self.step(Event::Tick);
        let now = Instant::now();
        if let Some(late) = self.transfer.take_if(|t| t.give_up_at <= now) {
            let _ = late.reply.send(Err(RequestError::NotServed {
                reason: format!("member {} did not take over in time", late.to),
            }));
        }
        if let Some(to) = self.transfer.as_ref().map(|t| t.to) {
            // The first attempt is lost on a voter that has not applied its own promotion yet. Asking
            // again while one is under way changes nothing.
            self.step(Event::TransferLeader(to));
        }
        self.send_apply(ApplyJob::Prune);
        for replies in self.reads_at.values_mut() {
            replies.retain(|reply| !reply.is_closed());
        }
        self.publish_status();
    }

    fn on_applied(&mut self, index: Index, changes: Vec<ConfigChange>) {
        self.applied = index;
        self.step(Event::Applied { index, changes });
        let waiting = self.reads_at.split_off(&index.next());
        for reply in std::mem::replace(&mut self.reads_at, waiting)
            .into_values()
            .flatten()
        {
            let _ = reply.send(Ok(()));
        }
    }

    fn act(&mut self) {
        for action in self.parts.consensus.actions() {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Append {
                id,
                hard_state,
                entries,
            } => {
                // If the log writer is gone it has reported why, and that report ends this thread.
                let _ = self.parts.log_jobs.send(AppendJob {
                    id,
                    hard_state,
                    entries,
                });
            }
            Action::Send(messages) => self.parts.peers.send(messages),
            Action::Apply(entries) => self.send_apply(ApplyJob::Entries(entries)),
            Action::Proposed { token, index, .. } => {
                let proposed = self.proposed.remove(&token).expect("it was just proposed");
                self.send_apply(ApplyJob::Expect(vec![Expected {
                    index,
                    context: proposed.context,
                    reply: proposed.reply,
                }]));
            }
            Action::Refused { token, refusal } => {
                let proposed = self.proposed.remove(&token).expect("it was just proposed");
                let _ = proposed.reply.send(Err(self.request_error(refusal)));
            }
            Action::ReadReady { tokens, index } => self.confirm_reads(&tokens, index),
            Action::ReadRefused { tokens, refusal } => {
                for token in tokens {
                    if let Some(reply) = self.reads.remove(&token) {
                        let _ = reply.send(Err(self.request_error(refusal)));
                    }
                }
            }
            Action::StateChanged(state) => self.on_state(state),
        }
    }

    fn send_apply(&self, job: ApplyJob) {
        // If the applier is gone it has reported why, and that report ends this thread.
        let _ = self.parts.apply_jobs.send(job);
    }

    fn confirm_reads(&mut self, tokens: &[ReadToken], index: Index) {
        ::metrics::counter!(metrics::READ_ROUNDS_TOTAL).increment(1);
        ::metrics::counter!(metrics::READS_CONFIRMED_TOTAL).increment(tokens.len() as u64);
        let replies = tokens.iter().filter_map(|token| self.reads.remove(token));
        if index <= self.applied {
            for reply in replies {
                let _ = reply.send(Ok(()));
            }
        } else {
            self.reads_at.entry(index).or_default().extend(replies);
        }
    }

    fn on_state(&mut self, state: State) {
        let old = self.parts.status.borrow().leader.as_ref().map(|l| l.id);
        if state.leader.is_some() && state.leader != old {
            ::metrics::counter!(metrics::LEADER_CHANGES_TOTAL).increment(1);
        }
        tracing::info!(
            role = ?state.role,
            leader = state.leader.map(|l| l.0),
            term = state.term.0,
            "state changed"
        );
        if let Some(done) = self.transfer.take_if(|t| state.leader == Some(t.to)) {
            let _ = done.reply.send(Ok(state.term));
        }
        self.publish_status();
    }

    /// Whether consensus should be asked for this change at all.
    fn check_change(&self, change: &MembershipChange) -> Result<ConfigChange, RequestError> {
        let state = self.parts.consensus.state();
        if state.role != RaftRole::Leader {
            return Err(self.request_error(Refusal::NotLeader));
        }
        if self.change_at > self.applied {
            return Err(RequestError::NotServed {
                reason: "another membership change is under way".to_owned(),
            });
        }
        match change {
            MembershipChange::Promote(id) => {
                self.check_promotion(*id).map_err(RequestError::Refused)?;
            }
            MembershipChange::Remove(id) => {
                self.check_removal(*id).map_err(RequestError::Refused)?;
            }
            MembershipChange::AddLearner(_) | MembershipChange::Bootstrap { .. } => {}
        }
        Ok(config_change(change))
    }

    fn check_promotion(&self, id: MemberId) -> Result<(), String> {
        let progress = self.parts.consensus.progress();
        let matched = progress.iter().find(|p| p.member == id).map(|p| p.matched);
        let last = self.parts.consensus.last_index().0;
        let lag = match matched {
            None | Some(Index(0)) => {
                return Err(format!(
                    "member {id} has not acknowledged any log entry yet"
                ));
            }
            Some(matched) => last - matched.0.min(last),
        };
        if lag > PROMOTION_LAG_ENTRIES_MAX {
            return Err(format!(
                "member {id} lacks {lag} log entries; it can vote once it lacks at most \
                 {PROMOTION_LAG_ENTRIES_MAX}"
            ));
        }
        Ok(())
    }

    fn check_removal(&self, id: MemberId) -> Result<(), String> {
        let progress = self.parts.consensus.progress();
        let voters: Vec<_> = progress.iter().filter(|p| p.voter).collect();
        if !voters.iter().any(|p| p.member == id) {
            return Ok(());
        }
        if id == self.parts.identity.member_id && voters.len() > 1 {
            return Err(format!(
                "member {id} leads; transfer leadership to another voter first"
            ));
        }
        let left = voters.iter().filter(|p| p.member != id);
        let answering = left.filter(|p| p.recently_active).count();
        let quorum = (voters.len() - 1) / 2 + 1;
        if voters.len() > 1 && answering < quorum {
            return Err(format!(
                "without member {id}, only {answering} of {} voters answer; {quorum} are needed for a quorum",
                voters.len() - 1
            ));
        }
        Ok(())
    }

    fn members(&self) -> Result<MembersView, RequestError> {
        let state = self.parts.consensus.state();
        if state.role != RaftRole::Leader {
            return Err(self.request_error(Refusal::NotLeader));
        }
        let membership = self.parts.membership.borrow();
        let last = self.parts.consensus.last_index().0;
        let progress = self.parts.consensus.progress();
        let members = progress.iter().filter_map(|p| {
            Some(MemberProgress {
                member: membership.members.get(&p.member)?.clone(),
                leader: p.member == self.parts.identity.member_id,
                reachable: p.recently_active,
                lag_entries: last - p.matched.0.min(last),
            })
        });
        Ok(MembersView {
            cluster_id: self.parts.identity.cluster_id,
            term: state.term,
            leader: self.parts.identity.member_id,
            members: members.collect(),
        })
    }

    fn transfer(&mut self, to: MemberId, reply: Reply<Term>) {
        let state = self.parts.consensus.state();
        let is_voter = |m: &MemberId| {
            let membership = self.parts.membership.borrow();
            membership.members.get(m).is_some_and(|m| m.voter)
        };
        let answer = if state.leader == Some(to) {
            Ok(state.term)
        } else if state.role != RaftRole::Leader {
            Err(self.request_error(Refusal::NotLeader))
        } else if !is_voter(&to) {
            Err(RequestError::Refused(format!(
                "member {to} is no voter of this cluster"
            )))
        } else if self.transfer.is_some() {
            Err(RequestError::NotServed {
                reason: "another transfer is under way".to_owned(),
            })
        } else {
            self.transfer = Some(Transfer {
                to,
                reply,
                give_up_at: Instant::now() + 2 * self.parts.config.election_timeout(),
            });
            return self.step(Event::TransferLeader(to));
        };
        let _ = reply.send(answer);
    }

    fn request_error(&self, refusal: Refusal) -> RequestError {
        match refusal {
            Refusal::NotLeader => RequestError::NotLeader {
                leader: self.leader_hint(),
            },
            Refusal::TooManyReads => RequestError::Busy {
                what: "reads that wait for a quorum",
                limit: self.parts.config.limits.max_pending_reads,
            },
            Refusal::Overloaded | Refusal::NoQuorum => RequestError::NotServed {
                reason: refusal.to_string(),
            },
        }
    }

    fn leader_hint(&self) -> Option<LeaderHint> {
        let id = self.parts.consensus.state().leader?;
        let membership = self.parts.membership.borrow();
        let address = membership.members.get(&id).map(|m| &m.client_address);
        Some(LeaderHint {
            id,
            client_address: address.cloned().unwrap_or_default(),
        })
    }

    fn publish_status(&self) {
        let status = self.status();
        self.parts.status.send_if_modified(|old| {
            let changed = *old != status;
            *old = status;
            changed
        });
    }

    fn status(&self) -> NodeStatus {
        let consensus = &self.parts.consensus;
        let state = consensus.state();
        let commit_index = consensus.commit_index();
        let lag = commit_index.0.saturating_sub(self.applied.0);
        let voter = {
            let membership = self.parts.membership.borrow();
            let own = membership.members.get(&self.parts.identity.member_id);
            own.is_some_and(|m| m.voter)
        };
        let role = match state.role {
            RaftRole::Leader => Role::Leader,
            RaftRole::PreCandidate | RaftRole::Candidate => Role::Candidate,
            RaftRole::Follower if voter => Role::Follower,
            RaftRole::Follower => Role::Learner,
        };
        NodeStatus {
            lifecycle: Lifecycle::Running,
            name: self.parts.config.name.clone(),
            folder_id: self.parts.folder_id.clone(),
            cluster_id: self.parts.identity.cluster_id,
            member_id: self.parts.identity.member_id,
            role,
            leader: self.leader_hint(),
            term: state.term,
            last_index: consensus.last_index(),
            commit_index,
            applied_index: self.applied,
            revision: self.parts.reader.revision(),
            ready: consensus.can_confirm_reads() && lag <= READY_LAG_ENTRIES_MAX,
            log_bytes: self.parts.log_reader.bytes(),
            state_bytes: self.parts.reader.approximate_bytes(),
        }
    }
}
