//! The worker that decides: takes what queued, asks the replica what follows, and has it done.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dengine_data_dir::{HistoryGuard, Identity};
use dengine_kv::{Command, Request};
use dengine_log::{LogReader, RealDisk};
use dengine_raft::channel::Sender;
use dengine_raft::consensus::{ReplicaState, Role as RaftRole};
use dengine_raft::replica::{Counts, Replica, Role};
use dengine_raft::{ApplyJob, Divergence, HandOver, Input, LogJob, Output, Token};
use dengine_types::{Entry, EntryKind};
use tokio::sync::mpsc::UnboundedSender;

use super::applier::Apply;
use super::callers::Callers;
use super::clock;
use super::flusher::FlushRequests;
use super::inbox::ToReplica;
use super::install::Install;
use super::metrics::{self, TurnMetrics};
use super::snapshots::Snapshots;
use super::space::{Space, StateSize};
use super::stages::Stages;
use super::status::{Lifecycle, MembersView, NodeStatus, Signals};
use super::waiters::Awaited;
use super::worker::{By, Next, Pace, Work, Worker};
use crate::config::Config;
use crate::error::{Fatal, LeaderHint, RequestError};
use crate::preemption;
use crate::telemetry::lines::Lines;
use crate::transport::Peers;

/// Inputs taken in before the replica is asked what follows. Bounds how long an answer waits for
/// the inputs behind it.
const INPUTS_PER_TURN_MAX: usize = 4096;
/// More entries than this, or larger ones, or ones that visit more records, are for the applier's
/// thread.
const QUICK_ENTRIES: usize = 8;
const QUICK_BYTES: usize = 64 << 10;
const QUICK_RECORDS: usize = 8;

/// When whoever has something for the replica takes its turn.
pub(super) const PACE: Pace = Pace {
    few_items: 8,
    turns_max: 4,
    items_max: usize::MAX,
    busy: Duration::from_millis(5),
    // No caller should wait, so this one did for something.
    slow_turn: Duration::from_millis(10),
    slow_times: 5,
    by_callers: metrics::REPLICA_TURNS_BY_CALLERS_TOTAL,
};

/// The queues of those who do what the replica says.
pub(super) struct Jobs {
    pub(super) log: Sender<LogJob>,
    pub(super) apply: Worker<Apply>,
    pub(super) flush: FlushRequests,
}

/// Whether whoever takes a turn of the replica may apply them besides: little, and none that visits
/// more keys than it names, for these may be a hundred thousand.
fn is_quick(entries: &[Entry]) -> bool {
    let bytes: usize = entries.iter().map(|entry| entry.data.len()).sum();
    entries.len() <= QUICK_ENTRIES && bytes <= QUICK_BYTES && entries.iter().all(names_few_keys)
}

fn names_few_keys(entry: &Entry) -> bool {
    if entry.kind != EntryKind::Command {
        return false;
    }
    let Ok(Ok(logged)) = Request::decode(entry.data.clone()) else {
        return false;
    };
    let command = logged.request.command;
    match &command {
        Command::Put(_) | Command::CompareAndSwap { .. } => true,
        Command::Delete { .. } | Command::Batch(_) => {
            command.records() <= QUICK_RECORDS && !command.visits_ranges()
        }
        // Those of sessions, leases and the keeper.
        _ => false,
    }
}

/// What tells how much space is taken, and how much there is.
pub(super) struct Sizes {
    pub(super) state: Arc<StateSize>,
    pub(super) log_reader: LogReader<RealDisk>,
    pub(super) space: Arc<Space>,
}

pub(super) struct ReplicaWorker {
    pub(super) config: Config,
    pub(super) identity: Identity,
    pub(super) folder_id: String,
    pub(super) replica: Replica<LogReader<RealDisk>>,
    pub(super) callers: Callers,
    pub(super) jobs: Jobs,
    pub(super) peers: Peers,
    pub(super) snapshots: Snapshots,
    /// Takes over when a snapshot has ended this replica.
    pub(super) installs: UnboundedSender<Install>,
    pub(super) history: HistoryGuard,
    pub(super) sizes: Sizes,
    pub(super) signals: Signals,
    /// What the metrics were told of already.
    pub(super) counted: Counts,
    pub(super) stages: Stages,
    pub(super) metrics: TurnMetrics,
    pub(super) next_tick: Instant,
    /// Of messages that were refused: any sender decides how many.
    pub(super) refusals: Lines,
    /// The threads of the keeper and the watchdog end with these.
    pub(super) _helpers_live: [Sender<()>; 2],
}

impl Work<ToReplica> for ReplicaWorker {
    fn work(&mut self, items: &mut dyn Iterator<Item = ToReplica>, _: By) -> Next {
        match self.turn(items) {
            ControlFlow::Continue(()) => Next::Wait {
                until: Some(self.sleeps_until()),
                deep: !self.replica.awaits_applied(),
            },
            ControlFlow::Break(()) => Next::End,
        }
    }
}

impl ReplicaWorker {
    fn turn(&mut self, items: &mut dyn Iterator<Item = ToReplica>) -> ControlFlow<()> {
        let begun = Instant::now();
        for told in items.take(INPUTS_PER_TURN_MAX) {
            self.on_told(told)?;
        }
        if self.signals.commit_waiters.are_there() {
            self.handle(Input::CommitsAwaited);
        }
        self.tick(Instant::now());
        let outputs = self.outputs();
        let decided = Instant::now();
        for output in outputs {
            self.stages.observe(&output, decided);
            self.carry_out(output)?;
        }
        let ended = self.replica.take_ended_of_others();
        preemption::ended_of_others(ended.calls, ended.took);
        self.metrics.replica_turn.record(begun.elapsed());
        ControlFlow::Continue(())
    }

    fn tick(&mut self, now: Instant) {
        if now < self.next_tick {
            return;
        }
        self.handle(Input::Tick);
        self.callers.prune();
        if self.replica.consensus().snapshot_index().is_none() {
            self.snapshots.forget();
        }
        self.publish();
        // Missed ticks are skipped: time that this member did not see says nothing about the
        // leader.
        self.next_tick = now + self.config.tick();
    }

    /// When something has to be done by itself.
    fn sleeps_until(&self) -> Instant {
        match self.replica.wakes_at() {
            Some(at) => {
                let wakes_in = at.since(clock::now());
                self.next_tick.min(Instant::now() + wakes_in)
            }
            None => self.next_tick,
        }
    }

    /// What follows from the inputs that were taken in.
    fn outputs(&mut self) -> Vec<Output> {
        let gone = RefCell::new(Vec::new());
        let is_gone = |token| {
            let is_gone = self.callers.is_gone(token);
            if is_gone {
                gone.borrow_mut().push(token);
            }
            is_gone
        };
        // The clock is read after the inputs were taken in: leases are judged by it.
        let outputs = self.replica.outputs(clock::now(), &is_gone);
        // The replica has dropped these. Others of the same group are answered only once these are.
        for token in gone.into_inner() {
            self.callers.forget(token);
        }
        outputs
    }

    fn on_told(&mut self, told: ToReplica) -> ControlFlow<()> {
        match told {
            ToReplica::Input(input) => self.handle(input),
            ToReplica::Write(write, caller) => {
                if let Some(since) = caller.since() {
                    self.metrics.write_wait.record(since.elapsed());
                }
                if let Some(trace) = caller.trace() {
                    trace.taken_up();
                }
                let token = self.name(|callers, token| callers.write(token, caller));
                self.handle(Input::Write { token, write });
            }
            ToReplica::Read(confirm, caller) => {
                let token = self.name(|callers, token| callers.read(token, caller));
                self.handle(Input::Read { token, confirm });
            }
            ToReplica::Lease(lease, ask, caller) => {
                let token = self.name(|callers, token| callers.ask_lease(token, caller));
                self.handle(Input::Lease { token, lease, ask });
            }
            ToReplica::Transfer(to, caller) => {
                let token = self.name(|callers, token| callers.transfer(token, caller));
                self.handle(Input::Transfer { token, to });
            }
            ToReplica::Message {
                from,
                bytes,
                permit,
                stream,
            } => {
                if !stream.is_refused() {
                    let before = self.replica.counts().peer_messages_refused;
                    self.handle(Input::Message { from, bytes });
                    if self.replica.counts().peer_messages_refused > before {
                        stream.refuse();
                    }
                }
                drop(permit);
            }
            ToReplica::Members(reply) => reply.answer(self.members()),
            ToReplica::SnapshotMade(made) => {
                let meta = self.snapshots.keep(made);
                self.handle(Input::SnapshotMade(meta));
            }
            ToReplica::Failed(fatal) => {
                tracing::error!(%fatal, "this member cannot go on");
                self.signals.fatal.send_replace(Some(fatal));
                return ControlFlow::Break(());
            }
            ToReplica::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn handle(&mut self, input: Input) {
        self.replica.handle(input, clock::now());
    }

    /// A token for what somebody waits for from now on.
    fn name(&mut self, waits: impl FnOnce(&mut Callers, Token)) -> Token {
        let token = self.replica.name();
        waits(&mut self.callers, token);
        token
    }

    fn carry_out(&mut self, output: Output) -> ControlFlow<()> {
        match output {
            // If the log writer or the applier is gone it has reported why, and that ends this
            // worker.
            Output::Log(job) => drop(self.jobs.log.send(job)),
            Output::Apply(job) => {
                let callers = self.callers.of(&job);
                let since = Instant::now();
                self.note_committed(&job, &callers, since);
                let job = Apply {
                    job,
                    callers,
                    since,
                };
                let is_quick = |job: &Apply| is_quick(&job.job.entries);
                drop(self.jobs.apply.send_within_turn(job, is_quick));
            }
            Output::Send(messages) => self.peers.send(messages),
            Output::MayRead { tokens, .. } => self.callers.may_read(&tokens),
            Output::Refused { tokens, error } => {
                for token in tokens {
                    self.callers.refuse(token, error.clone());
                }
            }
            Output::Lost(token) => self.callers.refuse(token, RequestError::lost()),
            Output::Forgotten(token) => self.callers.forget(token),
            Output::Lease { token, answer } => self.callers.lease(token, answer),
            Output::Transferred { token, term } => self.callers.transferred(token, term),
            Output::HandsOver(hand_over) => note_hand_over(&hand_over),
            Output::StateChanged(state) => self.on_state(state),
            Output::PeerRefused(refusal) => {
                ::metrics::counter!(metrics::PEER_MESSAGES_REFUSED_TOTAL).increment(1);
                if let Some(unlogged) = self.refusals.next() {
                    tracing::warn!(%refusal, unlogged, "refused a peer's message");
                }
            }
            Output::Flush => {
                self.jobs.flush.ask();
            }
            Output::MakeSnapshot => self.snapshots.make(),
            Output::SendSnapshot { to, message } => match self.snapshots.made.clone() {
                Some(snapshot) if snapshot.answers(&message) => {
                    self.peers.send_snapshot(to, message, snapshot);
                }
                _ => self.handle(Input::SnapshotSent { to, ok: false }),
            },
            Output::DiscardStaged => self.snapshots.discard_staged(),
            Output::Diverged(divergence) => {
                self.give_up(divergence);
                return ControlFlow::Break(());
            }
            Output::Install { base, hard_state } => {
                // If it is not installed, the node is gone and this thread with it.
                let _ = self.installs.send(Install { base, hard_state });
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// For those of the writes that are traced.
    fn note_committed(&self, job: &ApplyJob, callers: &[(Token, Option<Awaited>)], now: Instant) {
        if self.config.tracing.endpoint.is_empty() {
            return;
        }
        for ((index, _), (_, caller)) in job.awaited.iter().zip(callers) {
            if let Some(trace) = caller.as_ref().and_then(Awaited::trace) {
                let batch = self.stages.batch_of(*index);
                trace.committed(batch.map(|it| (it.id, it.at)), now);
            }
        }
    }

    /// The cluster goes on without what this member has, so the member ends, and its data directory
    /// is refused from now on.
    fn give_up(&self, divergence: Divergence) {
        if let Err(error) = self.history.give_up(&divergence.to_string()) {
            tracing::error!(%error, "the data directory could not be marked as given up: do not \
                start this member again, replace it");
        }
        let fatal = Fatal::GivenUp(divergence);
        tracing::error!(%fatal, "this member cannot go on");
        self.signals.fatal.send_replace(Some(fatal));
    }

    fn on_state(&mut self, state: ReplicaState) {
        let old = self.signals.status.borrow().leader.as_ref().map(|l| l.id);
        if state.leader.is_some() && state.leader != old {
            ::metrics::counter!(metrics::LEADER_CHANGES_TOTAL).increment(1);
        }
        tracing::info!(
            role = ?state.role,
            leader = state.leader.map(|l| l.0),
            term = state.term.0,
            "state changed"
        );
        if state.role != RaftRole::Leader {
            self.peers.cancel_snapshots();
        }
        self.publish();
    }

    fn members(&self) -> Result<MembersView, RequestError> {
        let status = self.replica.status();
        if status.role != Role::Leader {
            return Err(RequestError::NotLeader {
                leader: status.leader,
            });
        }
        Ok(MembersView {
            cluster_id: self.identity.cluster_id,
            term: status.term,
            leader: self.identity.member_id,
            members: self.replica.progress(),
        })
    }

    /// Tells of the present status, if it is another than before.
    pub(super) fn publish(&mut self) {
        self.count();
        let status = self.status();
        if status.ready {
            self.snapshots.incoming.is_not_needed();
        }
        self.signals.status.send_if_modified(|old| {
            let changed = *old != status;
            *old = status;
            changed
        });
    }

    fn count(&mut self) {
        let version = self.replica.command_version().number();
        ::metrics::gauge!(metrics::COMMAND_VERSION).set(f64::from(version));
        let counts = self.replica.counts();
        let old = std::mem::replace(&mut self.counted, counts);
        for (name, more) in [
            (
                metrics::READ_ROUNDS_TOTAL,
                counts.read_rounds - old.read_rounds,
            ),
            (
                metrics::READS_CONFIRMED_TOTAL,
                counts.reads_confirmed - old.reads_confirmed,
            ),
            (
                metrics::LEASE_READS_TOTAL,
                counts.lease_reads - old.lease_reads,
            ),
            (
                metrics::WRITES_PASSED_ON_TOTAL,
                counts.writes_passed_on - old.writes_passed_on,
            ),
        ] {
            ::metrics::counter!(name).increment(more);
        }
    }

    fn status(&self) -> NodeStatus {
        let status = self.replica.status();
        // A follower that has just started may know who leads before it knows where.
        let passes_on = |leader: &LeaderHint| !leader.client_address.is_empty();
        let ready = status.ready && status.leader.as_ref().is_none_or(passes_on);
        NodeStatus {
            lifecycle: Lifecycle::Running,
            name: self.config.name.clone(),
            folder_id: self.folder_id.clone(),
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            role: status.role,
            role_is_known: status.role_is_known,
            leader: status.leader,
            term: status.term,
            first_index: status.first_index,
            last_index: status.last_index,
            commit_index: status.commit_index,
            applied_index: status.applied_index,
            revision: status.revision,
            ready,
            stalled: status.stalled,
            removed: status.removed,
            log_bytes: self.sizes.log_reader.bytes(),
            state_bytes: self.sizes.state.bytes(),
            low_on_space: self.sizes.space.is_low(),
            snapshot_lacks_bytes: match ready {
                true => 0,
                false => self.snapshots.incoming.lacks_bytes(),
            },
            free_bytes: self.sizes.space.room_bytes(),
            command_version: Some(self.replica.command_version()),
        }
    }
}

fn note_hand_over(hand_over: &HandOver) {
    let HandOver { to, own, others } = hand_over;
    ::metrics::counter!(metrics::SLOW_DISK_HAND_OVERS_TOTAL).increment(1);
    tracing::warn!(
        to = to.0,
        own_ms = own.as_millis(),
        others_ms = others.as_millis(),
        "the disk of this leader is slow: it hands over to a member with a faster one"
    );
}
