//! One member's ordering: what happens in which order between its callers, its peers, its log and
//! its state machine.
//!
//! Three parts, each synchronous and each without a thread: [`Replica`] decides, [`LogWriter`] says
//! what is done with the log and when, [`Applier`] applies. The shell around them carries out what
//! they say. That of `dengine` gives each a thread and connects them by queues; that of the
//! simulator runs all three in one thread and chooses when each goes on. Callers are the shell's
//! too: here they are [`Token`]s. [The crate's head](crate) draws the ways through them.
//!
//! What may not live here: clocks (a [`Moment`] is passed in), threads, I/O other than through
//! [`dengine_log`], [`dengine_kv`] and [`dengine_snapshot`].

mod applier;
mod bootstrap;
mod changing;
mod error;
mod keeper;
mod lease;
mod leases;
mod lessor;
mod log_work;
mod log_writer;
#[cfg(test)]
pub(crate) mod lone;
mod membership;
mod open;
mod pace;
mod passing;
mod pending;
mod proposals;
mod reads;
mod slow_disk;
mod snapshots;
mod stall;
mod status;
#[cfg(test)]
mod timed;
mod transfer;
mod turns;
mod versions;
mod writes;

pub use applier::{AppliedRange, Applier, Done};
pub use bootstrap::{FIRST_MEMBER, first_batch};
pub use changing::{ChangeStep, Changed, Changing, MembershipRequest, NewMember};
pub use error::{LeaderHint, RequestError};
pub use keeper::Keeper;
pub use lease::LeaseView;
pub use lessor::LeaseChange;
pub use log_writer::{LogStep, LogWriter, SyncRule};
pub use open::{OpenError, Opened, open_member};
pub use passing::{Ended, LeaderTakes, Takes, is_small_enough, may_be_passed_on};
pub use status::{MemberProgress, ReplicaStatus, Role};
pub use versions::{Announcement, CommandGate};
pub use writes::{WriteAnswers, WriteReply};

use std::sync::Arc;
use std::time::Duration;

use dengine_kv::{Membership, MembershipChange, StateMachine, Store, StoreError};
use dengine_planted::planted;
use dengine_types::{HardState, Index, MemberId, Moment, Revision};

use crate::consensus::{
    Consensus, ConsensusConfig, ConsensusConfigError, LogRead, PeerMessageError, Proposal, Refusal,
    ReplicaState, Restored,
};
use crate::input::{Input, Token, Write};
use crate::output::{ApplyJob, LogJob, Output};
use leases::Leases;
use pace::Pace;
use passing::{PassedOnHere, UnderWay};
use pending::Pending;
use proposals::Proposals;
use reads::Reads;
use slow_disk::OwnDisk;
pub use slow_disk::SlowDisk;
use stall::Outstanding;
use status::{FirstHeard, KeepingUp, Removed};
use transfer::Transfer;
use turns::{QueuedWrite, Turns};
use versions::Announced;

/// How a replica works.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    pub member_id: MemberId,
    /// Drawn at random at each start: no two starts may give two proposals the same context.
    pub boot_nonce: u64,
    /// How long a follower waits for a leader, at least.
    pub election_timeout: Duration,
    /// Reads that may wait; for the message that says there are too many.
    pub max_waiting_reads: usize,
    /// Bytes of the newest log segments that are kept although the state machine is on disk, so
    /// that a member that was away for a while gets entries instead of a snapshot.
    pub log_keep_bytes: u64,
    /// The same while a member that answers still needs older ones.
    pub log_keep_bytes_for_followers: u64,
    /// Entries without bytes that are under way at once while several clients write, at least:
    /// before more is measured, and on a member that is slow. Of entries of 15 KiB a sixteenth.
    pub shared_entries_min: usize,
    /// When a leader hands over because its appends take far longer to be on its disk than on the
    /// others' ([`Output::HandsOver`]). `None`: however long they take.
    pub slow_disk: Option<SlowDisk>,
}

/// Why a replica cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    #[error(transparent)]
    Config(#[from] ConsensusConfigError),
    #[error(transparent)]
    State(#[from] StoreError),
}

/// Decides what a member does. See the module's documentation.
pub struct Replica<L: LogRead> {
    config: ReplicaConfig,
    consensus: Consensus<L>,
    log: L,
    now: Moment,
    next_token: u64,
    /// Some time passed since it was looked which callers are gone.
    ticked: bool,
    /// Of clients, until it is their turn.
    turns: Turns<QueuedWrite>,
    /// What takes no turns.
    at_once: Vec<QueuedWrite>,
    pace: Pace,
    /// Collected until [`Replica::outputs`]; then one proposal of them all.
    proposals: Proposals,
    pending: Pending,
    passed_on: UnderWay,
    passed_on_here: PassedOnHere,
    leader_takes: Arc<LeaderTakes>,
    /// Of what others pass on to it.
    takes: Takes,
    reads: Reads,
    lease: Arc<LeaseView>,
    leases: Leases,
    announced: Announced,
    command_gate: Arc<CommandGate>,
    counts: Counts,
    membership: Arc<Membership>,
    applied: Index,
    /// Where its log ended when it began: what it has not applied of that may change what it is.
    log_at_start: Index,
    flushed: Index,
    /// What the log has to write waits for space.
    log_is_full: bool,
    is_low_on_space: bool,
    outstanding: Outstanding,
    own_disk: OwnDisk,
    revision: Revision,
    removed: Removed,
    keeping_up: KeepingUp,
    /// `None` until it hears of a leader.
    first_heard: Option<FirstHeard>,
    /// Where the last membership change of this leader stands; another must wait until it is
    /// applied.
    change_at: Index,
    transfer: Option<Transfer>,
    /// What consensus has not taken, until it has said how things stand: who leads may be news.
    refused: Vec<(Vec<Token>, Refusal)>,
    outputs: Vec<Output>,
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
    /// Writes that were passed on to a leader.
    pub writes_passed_on: u64,
    /// Messages that no member sends.
    pub peer_messages_refused: u64,
}

impl<L: LogRead + Clone> Replica<L> {
    /// Starts a member from its log and its state machine. `hard_state` is the log's last one.
    ///
    /// # Errors
    /// The configuration cannot work, or the state machine cannot be read.
    ///
    /// # Panics
    /// The log does not reach what the state machine has applied.
    pub fn new<S: Store>(
        config: ReplicaConfig,
        consensus: ConsensusConfig,
        hard_state: HardState,
        log: L,
        machine: &StateMachine<S>,
    ) -> Result<Self, ReplicaError> {
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
        let consensus = Consensus::new(consensus, restored, log.clone())?;
        Ok(Self {
            own_disk: OwnDisk::new(config.slow_disk.unwrap_or(SlowDisk::NEVER)),
            log_at_start: consensus.last_index(),
            consensus,
            config,
            log,
            now: Moment(0),
            next_token: 0,
            ticked: false,
            turns: Turns::default(),
            at_once: Vec::new(),
            pace: Pace::default(),
            proposals: Proposals::default(),
            pending: Pending::default(),
            passed_on: UnderWay::default(),
            passed_on_here: PassedOnHere::default(),
            leader_takes: Arc::default(),
            takes: Box::new(passing::whatever_it_is),
            reads: Reads::default(),
            lease: Arc::default(),
            leases: Leases::of(machine)?,
            announced: Announced::new(machine.commands_read_max(), machine.commands_needed()),
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
            first_heard: None,
            change_at: Index(0),
            transfer: None,
            refused: Vec::new(),
            outputs: Vec::new(),
        })
    }
}

impl<L: LogRead> Replica<L> {
    /// A name for what this replica is asked for next.
    pub fn name(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// Takes one input in, which happened no earlier than `now`. What follows is returned by
    /// [`Self::outputs`]; many inputs may share one call of that.
    pub fn handle(&mut self, input: Input, now: Moment) {
        self.observe(now);
        match input {
            Input::Tick => self.on_tick(),
            Input::Write { token, write } => match write {
                Write::Command {
                    command,
                    from,
                    passes,
                } => self.on_write(token, command, from, passes),
                Write::Change(change) => self.on_change(token, change),
            },
            Input::Read { token, confirm } => self.on_read(token, confirm),
            Input::Lease { token, lease, ask } => self.on_lease(token, lease, ask),
            Input::Transfer { token, to } => self.on_transfer(token, to),
            Input::Propose(commands) => self.on_propose(commands),
            Input::Message { from, bytes } => {
                let taken = self.consensus.message(from, &bytes);
                self.note_refusal(taken);
                self.note_acknowledgement(from);
                self.take_passed_on();
            }
            Input::Removed => self.on_told_removed(),
            Input::Unreachable(member) => self.consensus.unreachable(member),
            Input::Disconnected(member) => {
                self.consensus.unreachable(member);
                self.forget_passed_on_to(member);
            }
            Input::LogFull => self.on_log_full(),
            Input::LowOnSpace(is_low) => self.on_low_on_space(is_low),
            Input::CommitsAwaited => self.consensus.await_commits(),
            Input::Persisted(id) => {
                self.log_is_full = false;
                self.outstanding.persisted(id);
                self.note_own_disk(id);
                self.consensus.persisted(id);
            }
            Input::Applied(range) => self.on_applied(range),
            Input::Flushed(index) => self.on_flushed(index),
            Input::SnapshotMade(made) => self.consensus.snapshot_made(made.as_ref()),
            Input::SnapshotSent { to, ok } => self.consensus.snapshot_sent(to, ok),
            Input::SnapshotStaged { from, message } => self.on_snapshot_staged(from, &message),
            Input::Announced {
                member,
                by,
                reads_max,
            } => self.announced.hear(member, by, reads_max),
        }
    }

    /// Everything to do since the last call, in order. The clock must be read for this call, after
    /// the last input was taken in: leases are judged by it. `is_gone` says whether no
    /// caller waits any more for the answer to what has this name.
    pub fn outputs(&mut self, now: Moment, is_gone: &dyn Fn(Token) -> bool) -> Vec<Output> {
        self.observe(now);
        if std::mem::take(&mut self.ticked) {
            self.reads.prune(is_gone);
            self.leases.prune(is_gone);
            self.forget_writes(is_gone);
            self.pending.prune(is_gone);
            let unknown = self.passed_on.prune(now, is_gone);
            self.outputs
                .extend(unknown.into_iter().map(Output::Forgotten));
        }
        self.ask_lease_reads();
        self.begin_at_once(is_gone);
        self.take_turns(is_gone);
        self.refuse_gone();
        self.lower_proposals();
        self.propose();
        if self.passed_on.is_awaited() {
            self.consensus.await_commits();
        }
        let outputs = self.consensus.outputs();
        for (tokens, refusal) in std::mem::take(&mut self.refused) {
            self.refuse(tokens, self.request_error(refusal));
        }
        outputs.into_iter().for_each(|it| self.on_output(it));
        let appliable = self.consensus.appliable_index();
        self.pace.committed(appliable, self.now);
        self.publish_lease();
        self.publish_command_version();
        self.publish_leader_takes();
        std::mem::take(&mut self.outputs)
    }

    /// When [`Self::outputs`] must be called although nothing happens.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Moment> {
        self.consensus.wakes_at()
    }

    /// Whether something waits for entries to be applied. If not, [`Input::Applied`] may come with
    /// the next input, or the next tick, and need not wake the caller for itself. A change of the
    /// members must come at once.
    #[must_use]
    pub fn awaits_applied(&self) -> bool {
        self.reads.await_applied()
            || self.leases.await_applied()
            || !self.turns.is_empty()
            || self.transfer.is_some()
            || self.log_is_full
            || self.consensus.awaits_applied()
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

    /// Whether writes that may be passed on ([`may_be_passed_on`]) may be asked for here, although
    /// another member leads.
    #[must_use]
    pub fn leader_takes(&self) -> Arc<LeaderTakes> {
        Arc::clone(&self.leader_takes)
    }

    /// Of what other members pass on, this one takes what `takes` reads, and has them ask with a
    /// call for the rest, which says what is wrong with it.
    pub fn takes_of_others(&mut self, takes: Takes) {
        self.takes = takes;
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

    fn note_refusal(&mut self, taken: Result<(), PeerMessageError>) {
        if let Err(refusal) = taken {
            self.counts.peer_messages_refused += 1;
            self.outputs.push(Output::PeerRefused(refusal));
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
        let unconfirmed = self.consensus.tick();
        if !unconfirmed.is_empty() {
            self.refused.push((unconfirmed, Refusal::NoQuorum));
        }
        self.tick_transfer();
        self.hand_over_if_slow();
        self.tick_leases();
        self.ticked = true;
    }

    fn on_told_removed(&mut self) {
        self.removed.by_peer = Some(self.now);
        self.refuse_reads_if_removed();
    }

    fn on_change(&mut self, token: Token, change: MembershipChange) {
        let config_change = match self.check_change(&change) {
            Ok(config_change) => config_change,
            Err(error) => return self.refuse(vec![token], error),
        };
        let proposal = Proposal {
            context: self.run().context(token).to_vec(),
            data: change.encode(),
        };
        match self.consensus.propose_change(proposal, config_change) {
            Ok(index) => {
                self.expect(index, token);
                self.change_at = index;
            }
            Err(refusal) => self.refused.push((vec![token], refusal)),
        }
    }

    fn refuse(&mut self, tokens: Vec<Token>, error: RequestError) {
        if !tokens.is_empty() {
            self.leases.forget(&tokens);
            self.outputs.push(Output::Refused { tokens, error });
        }
    }

    fn on_applied(&mut self, range: AppliedRange) {
        let index = range.index;
        self.outstanding.applied(index);
        let load = pace::load(range.records, range.bytes);
        self.pace.applied(index, load, range.at);
        self.applied = index;
        self.passed_on_here.applied(index, self.now);
        let timeout = self.config.election_timeout;
        self.keeping_up.look(index, self.now, timeout);
        self.revision = range.revision;
        self.announced.needed = range.commands_needed;
        if let Some(membership) = range.membership {
            self.announced.retain(&membership);
            self.membership = membership;
            self.removed.by_log = self.membership.has_removed(self.config.member_id);
            self.refuse_reads_if_removed();
        }
        self.consensus.applied(index, &range.changes);
        if planted!(LogTruncatedPastFlush) {
            self.on_flushed(index);
        }
        if self.log_is_full {
            // The flusher's word may have come first.
            self.truncate();
        }
        self.on_leases_changed(range.leases);
        self.answer_reads();
    }

    /// What consensus has to be done is done, and its replica takes note.
    fn on_output(&mut self, mut output: Output) {
        match &mut output {
            Output::MayRead { tokens, index } => {
                let tokens = std::mem::take(tokens);
                return self.on_round_confirmed(tokens, *index);
            }
            Output::Log(LogJob::Append { id, entries, .. }) => {
                self.outstanding.append(*id, self.now);
                self.follow_append(*id, entries.last().map(|it| it.index));
            }
            Output::Apply(job) => self.on_committed(job),
            Output::StateChanged(state) => self.on_state(*state),
            Output::Log(LogJob::TruncatePrefix(_))
            | Output::Send(_)
            | Output::Refused { .. }
            | Output::Lost(_)
            | Output::Forgotten(_)
            | Output::Transferred { .. }
            | Output::Lease { .. }
            | Output::HandsOver(_)
            | Output::PeerRefused(_)
            | Output::Flush
            | Output::MakeSnapshot
            | Output::SendSnapshot { .. }
            | Output::DiscardStaged
            | Output::Diverged(_)
            | Output::Install { .. } => {}
        }
        self.outputs.push(output);
    }

    fn on_committed(&mut self, job: &mut ApplyJob) {
        if let Some(last) = job.entries.last() {
            self.outstanding.apply(last.index, self.now);
        }
        job.awaited = self.awaited(&job.entries);
    }

    fn on_state(&mut self, state: ReplicaState) {
        self.forget_proposed_of_others(state);
        self.finish_transfer(state);
        self.forget_own_disk(state);
        self.lead_leases();
        self.look_whether_it_keeps_up();
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
    use dengine_kv as kv;
    use dengine_kv::{Command, CommandVersion};

    use super::lone::{LoneLeader, record};
    use super::*;
    use crate::input::{EncodedCommand, OwnCommands};

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
        let change = MembershipChange::AddLearner(record(2));
        leader.ask(Write::Change(change));
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
