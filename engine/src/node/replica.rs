//! The thread that decides: takes what queued, asks the replica what follows, and has it done.

use super::flusher::FlushRequests;
use super::input::{Channels, Input};
use super::install::Install;
use super::snapshots::Snapshots;
use super::space::Space;
use super::stages::Stages;
use super::status::{Lifecycle, MembersView, NodeStatus};
use super::{clock, metrics};
use crate::config::Config;
use crate::error::{Fatal, LeaderHint, RequestError};
use crate::storage::RocksStore;
use crate::telemetry::lines::Lines;
use crate::transport::Peers;
use dengine_data_dir::{HistoryGuard, Identity};
use dengine_kv::Reader;
use dengine_log::{LogReader, RealDisk};
use dengine_raft::channel::{Receiver, Sender};
use dengine_raft::consensus::{Divergence, Role as RaftRole, State};
use dengine_raft::replica::{self, ApplyJob, Caller, Counts, Effect, LogJob, Replica, Role};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

/// Inputs taken in before the replica is asked what follows. Bounds how long an answer waits for the
/// inputs behind it.
const INPUTS_PER_ROUND_MAX: usize = 4096;

pub(super) struct ReplicaThread {
    pub(super) config: Config,
    pub(super) identity: Identity,
    pub(super) folder_id: String,
    pub(super) replica: Replica<LogReader<RealDisk>, Channels>,
    pub(super) log_jobs: Sender<LogJob>,
    pub(super) apply_jobs: Sender<ApplyJob<Channels>>,
    pub(super) flush: FlushRequests,
    pub(super) peers: Peers,
    pub(super) reader: Reader<RocksStore>,
    pub(super) log_reader: LogReader<RealDisk>,
    pub(super) space: Arc<Space>,
    pub(super) status: watch::Sender<NodeStatus>,
    pub(super) fatal: watch::Sender<Option<Fatal>>,
    pub(super) history: HistoryGuard,
    pub(super) snapshots: Snapshots,
    /// Takes over when a snapshot has ended this replica.
    pub(super) installs: UnboundedSender<Install>,
    /// What the metrics were told of already.
    pub(super) counted: Counts,
    pub(super) stages: Stages,
    /// Of messages that were refused: whoever reaches the port of peers decides how many.
    pub(super) refusals: Lines,
    /// The keeper's thread ends with this one.
    pub(super) _keeper_lives: Sender<()>,
}

impl ReplicaThread {
    /// Works until it is told to stop or something fails.
    pub(super) fn run(mut self, input: &Receiver<Input>) {
        let mut turn = Instant::now();
        let mut next_tick = turn + self.config.tick();
        loop {
            // Read after the inputs were taken in: leases are judged by it.
            let effects = self.replica.effects(clock::now());
            let decided = Instant::now();
            for effect in effects {
                self.stages.observe(&effect, decided);
                if self.carry_out(effect).is_break() {
                    return;
                }
            }
            ::metrics::histogram!(metrics::REPLICA_TURN_SECONDS).record(turn.elapsed());
            let wait = next_tick.saturating_duration_since(Instant::now());
            let first = match input.recv_timeout(wait) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            turn = Instant::now();
            if self.take_in(first, input).is_break() {
                return;
            }
            let now = Instant::now();
            if now >= next_tick {
                self.handle(replica::Input::Tick);
                if self.replica.consensus().snapshot_index().is_none() {
                    self.snapshots.forget();
                }
                self.publish();
                // Missed ticks are skipped: time that this thread did not see says nothing about the
                // leader.
                next_tick = now + self.config.tick();
            }
        }
    }

    fn take_in(&mut self, first: Option<Input>, input: &Receiver<Input>) -> ControlFlow<()> {
        let queued = input.try_iter();
        let inputs = first.into_iter().chain(queued);
        for input in inputs.take(INPUTS_PER_ROUND_MAX) {
            self.on_input(input)?;
        }
        ControlFlow::Continue(())
    }

    fn on_input(&mut self, input: Input) -> ControlFlow<()> {
        match input {
            Input::Replica(input) => self.handle(input),
            Input::Message {
                from,
                bytes,
                permit,
                stream,
            } => {
                if !stream.is_refused() {
                    let before = self.replica.counts().peer_messages_refused;
                    self.handle(replica::Input::Message { from, bytes });
                    if self.replica.counts().peer_messages_refused > before {
                        stream.refuse();
                    }
                }
                drop(permit);
            }
            Input::Members(reply) => reply.answer(self.members()),
            Input::SnapshotMade(made) => {
                let meta = self.snapshots.keep(made);
                self.handle(replica::Input::SnapshotMade(meta));
            }
            Input::Failed(fatal) => {
                tracing::error!(%fatal, "this member cannot go on");
                self.fatal.send_replace(Some(fatal));
                return ControlFlow::Break(());
            }
            Input::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn handle(&mut self, input: replica::Input<Channels>) {
        self.replica.handle(input, clock::now());
    }

    fn carry_out(&mut self, effect: Effect<Channels>) -> ControlFlow<()> {
        match effect {
            // If the log writer or the applier is gone it has reported why, and that ends this thread.
            Effect::Log(job) => drop(self.log_jobs.send(job)),
            Effect::Apply(job) => drop(self.apply_jobs.send(job)),
            Effect::Send(messages) => self.peers.send(messages),
            Effect::StateChanged(state) => self.on_state(state),
            Effect::PeerRefused(refusal) => {
                ::metrics::counter!(metrics::PEER_MESSAGES_REFUSED_TOTAL).increment(1);
                if let Some(unlogged) = self.refusals.next() {
                    tracing::warn!(%refusal, unlogged, "refused a peer's message");
                }
            }
            Effect::Flush => {
                self.flush.ask();
            }
            Effect::MakeSnapshot => self.snapshots.make(),
            Effect::SendSnapshot { to, message } => match self.snapshots.made.clone() {
                Some(snapshot) if snapshot.answers(&message) => {
                    self.peers.send_snapshot(to, message, snapshot);
                }
                _ => self.handle(replica::Input::SnapshotSent { to, ok: false }),
            },
            Effect::DiscardStaged => self.snapshots.discard_staged(),
            Effect::Diverged(divergence) => {
                self.give_up(divergence);
                return ControlFlow::Break(());
            }
            Effect::Install { base, hard_state } => {
                // If nobody installs it, the node is gone and this thread with it.
                let _ = self.installs.send(Install { base, hard_state });
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// The cluster goes on without what this member has, so the member ends, and its folder is refused from now on.
    fn give_up(&self, divergence: Divergence) {
        if let Err(error) = self.history.give_up(&divergence.to_string()) {
            tracing::error!(%error, "the folder could not be marked: do not start this member again, replace it");
        }
        let fatal = Fatal::GivenUp(divergence);
        tracing::error!(%fatal, "this member cannot go on");
        self.fatal.send_replace(Some(fatal));
    }

    fn on_state(&mut self, state: State) {
        let old = self.status.borrow().leader.as_ref().map(|l| l.id);
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
        self.status.send_if_modified(|old| {
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
            log_bytes: self.log_reader.bytes(),
            state_bytes: self.reader.approximate_bytes(),
            low_on_space: self.space.is_low(),
            snapshot_lacks_bytes: match ready {
                true => 0,
                false => self.snapshots.incoming.lacks_bytes(),
            },
            free_bytes: self.space.room_bytes(),
            command_version: Some(self.replica.command_version()),
        }
    }
}
