//! One member's ordering: what happens in which order between its callers, its peers, its log and its
//! state machine.
//!
//! ```text
//!            Input                                Effect
//! callers ──────────▶ ┌─────────┐ ──▶ LogJob ──▶ LogWriter (write, sync) ▶ Persisted ─┐
//! peers   ──────────▶ │ Replica │ ──▶ ApplyJob ──▶ Applier ──▶ callers, Applied ──────┤
//! clock   ──────────▶ └─────────┘ ──▶ messages to peers                               │
//!                          ▲                                                          │
//!                          └──────────────────────────────────────────────────────────┘
//! ```
//! Three parts, each synchronous and each without a thread: [`Replica`] decides, [`LogWriter`] says what is done
//! with the log and when, [`Applier`] applies and answers. `dengine` gives each a thread and connects
//! them by queues; the simulator runs the same three in one thread and chooses when each goes on.
//!
//! What may not live here: clocks (a [`Moment`] is passed in), threads, I/O other than through
//! [`dengine_log`] and [`dengine_kv`].

mod applier;
mod bootstrap;
mod changing;
mod env;
mod error;
mod input;
mod keeper;
mod lease;
mod log_work;
mod log_writer;
#[cfg(test)]
mod lone;
mod membership;
mod open;
mod pace;
mod pending;
mod proposals;
mod reads;
mod snapshots;
mod stall;
mod status;
#[cfg(test)]
mod timed;
mod transfer;
mod turns;
mod versions;
mod writes;

pub use applier::{AppliedRange, Applier};
pub use bootstrap::{FIRST_MEMBER, first_batch};
pub use changing::{ChangeStep, Changed, Changing, MembershipRequest, NewMember};
pub use env::{Caller, Env, Written};
pub use error::{LeaderHint, RequestError};
pub use input::{ApplyJob, Effect, EncodedCommand, Input, LogJob, OwnCommands, Request, Successor};
pub use keeper::Keeper;
pub use lease::LeaseView;
pub use log_writer::{LogStep, LogWriter, SyncRule};
pub use open::{OpenError, Opened, open_member};
pub use pending::Expected;
use status::{KeepingUp, Removed};
pub use status::{MemberProgress, ReplicaStatus, Role};
pub use versions::{Announcement, CommandGate};
pub use writes::{WriteAnswers, WriteReply};

use crate::consensus::{
    Action, Consensus, ConsensusConfig, ConsensusConfigError, Event, LogRead, Proposal, Refusal,
    Restored, State, Token,
};
use bytes::Bytes;
use dengine_kv::{Membership, MembershipChange, StateMachine, Store};
use dengine_planted::planted;
use dengine_types::{HardState, Index, MemberId, Moment, Revision};
use pace::Pace;
use proposals::Proposals;
use reads::Reads;
use stall::Outstanding;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use transfer::Transfer;
use turns::{QueuedWrite, Turns};
use versions::Announced;

/// How a replica works.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// This member.
    pub member_id: MemberId,
    /// Drawn at random at each start: no two starts may give two proposals the same context.
    pub boot_nonce: u64,
    /// How long a follower waits for a leader, at least.
    pub election_timeout: Duration,
    /// Reads that may wait; for the message that says there are too many.
    pub max_waiting_reads: usize,
    /// Bytes of the newest log segments that are kept although the state machine is on disk, so that a
    /// member that was away for a while gets entries instead of a snapshot.
    pub log_keep_bytes: u64,
    /// The same while a member that answers still needs older ones.
    pub log_keep_bytes_for_followers: u64,
    /// Entries without bytes that are under way at once while several clients write, at least: before more is measured, and on a
    /// member that is slow. Of entries of 15 KiB a sixteenth.
    pub shared_entries_min: usize,
}

struct Proposed<C> {
    context: Bytes,
    caller: C,
}

/// Decides what a member does. See the module's documentation.
pub struct Replica<L: LogRead, E: Env> {
    config: ReplicaConfig,
    consensus: Consensus<L>,
    log: L,
    now: Moment,
    next_token: u64,
    /// Of clients, until it is their turn.
    turns: Turns<QueuedWrite<E::Write>>,
    pace: Pace,
    /// Collected until [`Replica::effects`]; then one proposal of them all.
    proposals: Proposals,
    /// Handed to consensus, which has not said yet where they stand; those for which somebody waits.
    proposed: HashMap<Token, Proposed<E::Write>>,
    /// The same of the leader's own commands.
    own_proposed: HashMap<Token, QueuedWrite<E::Write>>,
    /// Where they stand, for the applier.
    expected: Vec<Expected<E::Write>>,
    reads: Reads<E::Read>,
    lease: Arc<LeaseView>,
    announced: Announced,
    command_gate: Arc<CommandGate>,
    counts: Counts,
    membership: Arc<Membership>,
    applied: Index,
    flushed: Index,
    /// What the log has to write waits for space.
    log_is_full: bool,
    is_low_on_space: bool,
    outstanding: Outstanding,
    revision: Revision,
    removed: Removed,
    keeping_up: KeepingUp,
    /// Where the last membership change of this leader stands; another must wait until it is applied.
    change_at: Index,
    transfer: Option<Transfer<E::Transfer>>,
    effects: Vec<Effect<E>>,
}

/// How often things happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rounds of messages that confirmed reads.
    pub read_rounds: u64,
    /// Reads that were confirmed by a round or by the lease.
    pub reads_confirmed: u64,
    /// Reads that the lease answered.
    pub lease_reads: u64,
    /// Messages that no member sends.
    pub peer_messages_refused: u64,
}

impl<L: LogRead + Clone, E: Env> Replica<L, E> {
    /// Starts a member from its log and its state machine. `hard_state` is the log's last one.
    ///
    /// # Errors
    /// The configuration cannot work.
    ///
    /// # Panics
    /// The log does not reach what the state machine has applied.
    pub fn new<S: Store>(
        config: ReplicaConfig,
        consensus: ConsensusConfig,
        hard_state: HardState,
        log: L,
        machine: &StateMachine<S>,
    ) -> Result<Self, ConsensusConfigError> {
        let (applied, _) = machine.applied();
        let membership = machine.membership();
        let removed = Removed {
            by_log: membership.has_removed(config.member_id),
            by_peer: None,
        };
        let restored = Restored {
            // The commit index is not synced on its own, but what was applied was committed.
            hard_state: HardState {
                commit: hard_state.commit.max(applied),
                ..hard_state
            },
            applied,
            voters: membership.voters().map(|m| m.id).collect(),
            learners: membership.learners().map(|m| m.id).collect(),
        };
        Ok(Self {
            consensus: Consensus::new(consensus, restored, log.clone())?,
            config,
            log,
            now: Moment(0),
            next_token: 0,
            turns: Turns::default(),
            pace: Pace::default(),
            proposals: Proposals::default(),
            proposed: HashMap::new(),
            own_proposed: HashMap::new(),
            expected: Vec::new(),
            reads: Reads::default(),
            lease: Arc::default(),
            announced: Announced::new(machine.commands_read_max()),
            command_gate: Arc::default(),
            counts: Counts::default(),
            removed,
            membership,
            applied,
            // What a state has that was just opened was on disk.
            flushed: applied,
            log_is_full: false,
            is_low_on_space: false,
            outstanding: Outstanding::default(),
            revision: machine.revision(),
            keeping_up: KeepingUp::default(),
            change_at: Index(0),
            transfer: None,
            effects: Vec::new(),
        })
    }
}

impl<L: LogRead, E: Env> Replica<L, E> {
    /// Takes one input in, which happened no earlier than `now`. What follows is returned by
    /// [`Self::effects`]; many inputs may share one call of that.
    pub fn handle(&mut self, input: Input<E>, now: Moment) {
        self.observe(now);
        match input {
            Input::Tick => self.on_tick(),
            Input::Request(request) => self.on_request(request),
            Input::Propose(commands) => self.on_propose(commands),
            Input::Message { from, bytes } => self.step(Event::Message { from, bytes }),
            Input::Removed => self.on_told_removed(),
            Input::Unreachable(member) => self.step(Event::Unreachable(member)),
            Input::LogFull => self.on_log_full(),
            Input::LowOnSpace(is_low) => self.on_low_on_space(is_low),
            Input::Persisted(id) => {
                self.log_is_full = false;
                self.outstanding.persisted(id);
                self.step(Event::Persisted(id));
            }
            Input::Applied(range) => self.on_applied(range),
            Input::Flushed(index) => self.on_flushed(index),
            Input::SnapshotMade(made) => self.step(Event::SnapshotMade(made)),
            Input::SnapshotSent { to, ok } => self.step(Event::SnapshotSent { to, ok }),
            Input::SnapshotStaged { from, message } => self.on_snapshot_staged(from, message),
            Input::Announced {
                member,
                by,
                reads_max,
            } => self.announced.hear(member, by, reads_max),
        }
    }

    /// Everything to do since the last call, in order. The clock must be read for this call, after the
    /// last input was taken in: leases are judged by it.
    pub fn effects(&mut self, now: Moment) -> Vec<Effect<E>> {
        self.observe(now);
        self.ask_lease_reads();
        self.take_turns();
        self.lower_proposals();
        if !self.proposals.is_empty() {
            let before = self.consensus.last_index();
            let loads: Vec<_> = self.proposals.loads().collect();
            let proposals = self.proposals.take();
            self.step(Event::Propose(proposals));
            // Where all are refused nothing is on its way to be committed.
            if self.consensus.last_index() > before {
                self.pace.proposed(before.next(), &loads, self.now);
            }
        }
        for action in self.consensus.actions() {
            self.on_action(action);
        }
        let appliable = self.consensus.appliable_index();
        self.pace.committed(appliable, self.now);
        self.hand_over_expected();
        self.publish_lease();
        self.publish_command_version();
        std::mem::take(&mut self.effects)
    }

    /// The members as of the last applied entry.
    #[must_use]
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// How often things happened since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let by_view = self.lease.reads();
        Counts {
            reads_confirmed: self.counts.reads_confirmed + by_view,
            lease_reads: self.counts.lease_reads + by_view,
            ..self.counts
        }
    }

    /// What tells whether a lease read need not come here.
    #[must_use]
    pub fn lease(&self) -> Arc<LeaseView> {
        Arc::clone(&self.lease)
    }

    /// In which version commands are to be encoded before they come here.
    #[must_use]
    pub fn command_gate(&self) -> Arc<CommandGate> {
        Arc::clone(&self.command_gate)
    }

    /// What decides: for checks of invariants.
    #[must_use]
    pub fn consensus(&self) -> &Consensus<L> {
        &self.consensus
    }

    fn observe(&mut self, now: Moment) {
        self.now = self.now.max(now);
        self.consensus.observe(self.now);
    }

    fn step(&mut self, event: Event) {
        if let Err(refusal) = self.consensus.step(event) {
            self.counts.peer_messages_refused += 1;
            self.effects.push(Effect::PeerRefused(refusal));
        }
    }

    fn on_tick(&mut self) {
        if self.lease.take_wanted() {
            self.consensus.want_lease();
        }
        self.look_whether_it_keeps_up();
        let timeout = self.config.election_timeout;
        let stalled = self.outstanding.is_stalled(self.now, timeout);
        self.consensus.set_unfit(self.is_low_on_space || stalled);
        self.step(Event::Tick);
        self.tick_transfer();
        self.prune_reads();
        self.forget_writes();
        self.effects.push(Effect::Apply(ApplyJob::Prune));
    }

    fn on_told_removed(&mut self) {
        self.removed.by_peer = Some(self.now);
        self.refuse_reads_if_removed();
    }

    fn on_request(&mut self, request: Request<E>) {
        match request {
            Request::Write {
                command,
                caller,
                from,
            } => self.on_write(command, caller, from),
            Request::Change { change, caller } => self.on_change(change, caller),
            Request::Read { caller } => self.on_read(caller),
            Request::LeaseRead { caller } => self.on_lease_read(caller),
            Request::Transfer { to, caller } => self.on_transfer(to, caller),
        }
    }

    fn on_change(&mut self, change: MembershipChange, caller: E::Write) {
        match self.check_change(&change) {
            Ok(config_change) => {
                let proposal = self.proposal(change.encode(), Some(caller));
                self.step(Event::ProposeChange {
                    proposal,
                    change: config_change,
                });
                self.change_at = self.consensus.last_index();
            }
            Err(error) => caller.answer(Err(error)),
        }
    }

    fn proposal(&mut self, data: Bytes, caller: Option<E::Write>) -> Proposal {
        let token = Token(self.token());
        // Unique over all members and all their starts, so that an entry answers only its own caller.
        let id = self.config.member_id.0;
        let unique = [id, self.config.boot_nonce, token.0].map(u64::to_be_bytes);
        let context = Bytes::from(unique.concat());
        if let Some(caller) = caller {
            let context = context.clone();
            self.proposed.insert(token, Proposed { context, caller });
        }
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

    fn on_applied(&mut self, range: AppliedRange) {
        let index = range.index;
        self.outstanding.applied(index);
        let load = pace::load(range.records, range.bytes);
        self.pace.applied(index, load, self.now);
        self.applied = index;
        let timeout = self.config.election_timeout;
        self.keeping_up.look(index, self.now, timeout);
        self.revision = range.revision;
        if let Some(membership) = range.membership {
            self.announced.retain(&membership);
            self.membership = membership;
            self.removed.by_log = self.membership.has_removed(self.config.member_id);
            self.refuse_reads_if_removed();
        }
        let changes = range.changes;
        self.step(Event::Applied { index, changes });
        if planted!(LogTruncatedPastFlush) {
            self.on_flushed(index);
        }
        if self.log_is_full {
            // The flusher's word may have come first.
            self.truncate();
        }
        self.answer_reads();
    }

    fn on_action(&mut self, action: Action) {
        let effect = match action {
            Action::Proposed { token, index, .. } => return self.on_proposed(token, index),
            Action::Refused { token, refusal } => return self.on_refused(token, refusal),
            Action::ReadReady {
                tokens,
                index,
                by_lease,
            } => return self.on_reads_confirmed(&tokens, index, by_lease),
            Action::ReadRefused { tokens, refusal } => {
                return self.on_reads_refused(&tokens, refusal);
            }
            Action::Append {
                id,
                hard_state,
                entries,
            } => {
                self.outstanding.append(id, self.now);
                Effect::Log(LogJob::Append {
                    id,
                    hard_state,
                    entries,
                })
            }
            Action::Apply(entries) => {
                if let Some(last) = entries.last() {
                    self.outstanding.apply(last.index, self.now);
                }
                self.hand_over_expected();
                Effect::Apply(ApplyJob::Entries(entries))
            }
            Action::Send(messages) => Effect::Send(messages),
            Action::StateChanged(state) => self.on_state(state),
            Action::MakeSnapshot => Effect::MakeSnapshot,
            Action::SendSnapshot { to, message } => Effect::SendSnapshot { to, message },
            Action::Diverged(divergence) => Effect::Diverged(divergence),
            Action::Install { base, hard_state } => Effect::Install { base, hard_state },
        };
        self.effects.push(effect);
    }

    fn on_proposed(&mut self, token: Token, index: Index) {
        self.own_proposed.remove(&token);
        if let Some(proposed) = self.proposed.remove(&token) {
            self.expected.push(Expected {
                index,
                context: proposed.context,
                caller: proposed.caller,
            });
        }
    }

    /// The applier must know of callers before it applies what they wait for.
    fn hand_over_expected(&mut self) {
        if !self.expected.is_empty() {
            let expected = std::mem::take(&mut self.expected);
            self.effects.push(Effect::Apply(ApplyJob::Expect(expected)));
        }
    }

    fn on_refused(&mut self, token: Token, refusal: Refusal) {
        if let Some(proposed) = self.proposed.remove(&token) {
            let error = self.request_error(refusal);
            proposed.caller.answer(Err(error));
        }
        self.on_own_refused(token, refusal);
    }

    fn on_state(&mut self, state: State) -> Effect<E> {
        self.finish_transfer(state);
        self.look_whether_it_keeps_up();
        Effect::StateChanged(state)
    }

    fn request_error(&self, refusal: Refusal) -> RequestError {
        match refusal {
            Refusal::NotLeader => RequestError::NotLeader {
                leader: self.leader_hint(),
            },
            Refusal::TooManyReads => RequestError::Busy {
                what: "reads that wait for a quorum",
                limit: self.config.max_waiting_reads,
            },
            Refusal::Overloaded | Refusal::NoQuorum => RequestError::NotServed {
                reason: refusal.to_string(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::lone::{LoneLeader, Somebody, record};
    use super::*;
    use dengine_kv as kv;
    use dengine_kv::{Command, CommandVersion};

    fn leader() -> LoneLeader {
        let mut leader = LoneLeader::new(CommandVersion::CURRENT);
        leader.elect();
        leader.settle();
        leader
    }

    #[test]
    fn the_members_are_those_of_the_last_change_that_is_applied() {
        let mut leader = leader();
        let ids = |leader: &LoneLeader| -> Vec<_> {
            let members = &leader.replica.membership().members;
            members.keys().map(|id| id.0).collect()
        };
        assert_eq!(ids(&leader), [1]);
        let request = Request::Change {
            change: MembershipChange::AddLearner(record(2)),
            caller: Somebody,
        };
        leader.replica.handle(Input::Request(request), leader.now);
        assert_eq!(ids(&leader), [1], "it is not applied yet");
        leader.settle();
        assert_eq!(ids(&leader), [1, 2]);
    }

    #[test]
    fn commands_that_nobody_waits_for_reach_the_log_in_their_order() {
        let mut leader = leader();
        let before = leader.appended.len();
        let command = |ttl_ms| kv::Request::from(Command::OpenSession { ttl_ms });
        let commands = [1, 2].map(|it| command(it).encode(CommandVersion::CURRENT));
        let own = commands
            .clone()
            .map(|data| EncodedCommand { data, records: 1 });
        let propose = Input::Propose(OwnCommands {
            at_once: own.to_vec(),
            ..OwnCommands::default()
        });
        leader.replica.handle(propose, leader.now);
        leader.settle();
        let appended = &leader.appended[before..];
        let appended: Vec<_> = appended.iter().map(|entry| &entry.data).collect();
        assert_eq!(appended, commands.each_ref());
    }
}
