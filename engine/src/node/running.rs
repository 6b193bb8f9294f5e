//! A member that takes part: its threads, and the ways into them.

use super::Written;
use super::applier::ApplyThread;
use super::callers::{Callers, Committed};
use super::clock;
use super::flusher::{self, FlushRequests, FlushTrigger};
use super::inbox::{Answer, Reply, ToReplica};
use super::install::Install;
use super::keeper::KeeperThread;
use super::log_writer::LogThread;
use super::metrics;
use super::open::{open_both, restore};
use super::own_entry;
use super::reclaimer::Reclaimer;
use super::replica::ReplicaThread;
use super::snapshots::{Maker, Snapshots};
use super::space::{HandOvers, Space, ToldLow};
use super::stages::Stages;
use super::status::NodeStatus;
use super::waiters::{Awaited, Waiters};
use crate::config::Config;
use crate::error::{Fatal, RequestError, StartError};
use crate::memory::{self, Use};
use crate::storage::{OpenStore, RocksStore};
use crate::telemetry::lines::Lines;
use crate::transport::{Incoming, LeaderNow, PeerEntrance, Peers};
use crate::write_bytes::{WriteBytes, of_parts_proposed};
use dengine_data_dir::marks::Beginning;
use dengine_data_dir::{HistoryGuard, Identity, PowerGuard, SnapshotPaths};
use dengine_kv as kv;
use dengine_kv::{Flusher, Membership, MembershipChange, Reader, RetentionSetting, StateMachine};
use dengine_log::RealDisk;
use dengine_raft::answers::Held;
use dengine_raft::channel::{Sender, channel};
use dengine_raft::replica::{
    Applier, CommandGate, Counts, Keeper, LeaseView, Opened, WriteAnswers,
};
use dengine_raft::{Confirm, EncodedCommand, Input, Write};
use dengine_snapshot::{SnapshotError, Staging};
use dengine_types::{Index, Revision};
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc::SendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

/// Semaphores count bytes in these, because their permits are 32-bit numbers.
const PERMIT_BYTES: usize = 1024;

/// Bytes of peers' messages that wait for the replica thread.
const PEER_QUEUE_BYTES: usize = 64 << 20;

/// What a member needs to start.
pub(super) struct Start {
    pub(super) config: Config,
    pub(super) folder_id: String,
    pub(super) identity: Identity,
    pub(super) log_path: PathBuf,
    pub(super) state_path: PathBuf,
    pub(super) snapshot_paths: SnapshotPaths,
    pub(super) beginning: Beginning,
    pub(super) power: PowerGuard,
    pub(super) history: HistoryGuard,
    pub(super) status: watch::Sender<NodeStatus>,
    pub(super) revision: watch::Sender<Revision>,
    pub(super) fatal: watch::Sender<Option<Fatal>>,
    pub(super) installs: UnboundedSender<Install>,
    /// Where peers are spoken to.
    pub(super) peers: tokio::runtime::Handle,
}

pub(super) struct Running {
    identity: Identity,
    config: Config,
    inbox: Sender<ToReplica>,
    writes: Semaphore,
    write_bytes: WriteBytes,
    reads: Semaphore,
    space: Arc<Space>,
    reader: Reader<RocksStore>,
    lease: Arc<LeaseView>,
    command_gate: Arc<CommandGate>,
    flusher: Flusher<RocksStore>,
    membership: watch::Receiver<Arc<Membership>>,
    introduced: crate::transport::Introduced,
    incoming: Incoming,
    store: OpenStore,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Running {
    /// Opens log and state machine and starts the threads.
    pub(super) async fn start(start: Start) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || Self::start_blocking(start, &runtime))
            .await
            .expect("starting does not panic and is not cancelled")
    }

    fn start_blocking(start: Start, runtime: &tokio::runtime::Handle) -> Result<Self, StartError> {
        let Opened {
            log,
            recovered,
            state: (machine, store),
            ..
        } = open_both(&start)?;
        let replica = restore(&start, &machine, &log, &recovered);

        start.revision.send_replace(machine.revision());
        let own = start.identity.member_id;
        own_entry::tell_at_start(own, &start.config.advertise_peer, &machine.membership());

        let (inbox, input) = channel();
        let (log_jobs, appends) = channel();
        let (apply_jobs, applies) = channel();
        let (membership, members) = watch::channel(machine.membership());
        let introduced = crate::transport::Introduced::default();
        end_when_damaged(&machine, &inbox);
        let reader = machine.reader();
        let peers = Peers::new(
            &start.config,
            start.identity,
            start.folder_id.clone(),
            (start.peers.clone(), runtime.clone()),
            members.clone(),
            introduced.clone(),
            inbox.clone(),
        );
        let cluster = start.identity.cluster_id;
        let incoming = Incoming::new(
            start.snapshot_paths.clone(),
            cluster,
            start.config.snapshot.max_bytes,
        );
        let space = Arc::new(Space::of(&start.config));
        // Before anybody takes space that somebody else needs.
        space.look_and_tell();
        let snapshots = Snapshots {
            maker: Maker {
                flusher: machine.flusher(),
                paths: start.snapshot_paths,
                cluster,
                space: Arc::clone(&space),
            },
            runtime: runtime.clone(),
            inbox: inbox.clone(),
            incoming: incoming.clone(),
            made: None,
        };
        let (keeper_lives, keeper_stop) = channel();
        let retention = retention(&start.config, &space);
        let (reclaimer_lives, reclaimer_stop) = channel();
        let reclaimer = Reclaimer {
            flusher: machine.flusher(),
            space: Arc::clone(&space),
        };
        let keeper = KeeperThread {
            _reclaimer_lives: reclaimer_lives,
            space: Arc::clone(&space),
            keeper: Keeper::new(machine.reader(), retention),
            collector: machine.collector(),
            status: start.status.subscribe(),
            replica: inbox.clone(),
            hand_overs: HandOvers::new(start.config.heartbeat()),
            told_low: ToldLow::default(),
            command_gate: replica.command_gate(),
        };
        let lease = replica.lease();
        let command_gate = replica.command_gate();
        let (flush_requests, flushes) = FlushRequests::channel();
        let mut replica = ReplicaThread {
            config: start.config.clone(),
            identity: start.identity,
            folder_id: start.folder_id,
            replica,
            callers: Callers::default(),
            log_jobs,
            apply_jobs,
            flush: flush_requests.clone(),
            peers,
            reader: reader.clone(),
            log_reader: log.reader(),
            space: Arc::clone(&space),
            status: start.status,
            fatal: start.fatal.clone(),
            history: start.history,
            snapshots,
            installs: start.installs,
            counted: Counts::default(),
            refusals: Lines::default(),
            stages: Stages::default(),
            _keeper_lives: keeper_lives,
        };
        // Before anybody can ask: who has an identity must never be taken for one that waits for it.
        replica.publish();
        let flush = FlushTrigger::new(flush_requests, start.config.log.flush_bytes);
        let flusher = machine.flusher();
        let flush_now = flusher.clone();
        let (flush_replica, flush_space) = (inbox.clone(), Arc::clone(&space));
        let applier = ApplyThread {
            own,
            applier: Applier::new(machine),
            callers: Committed::default(),
            replica: inbox.clone(),
            membership,
            revision: start.revision,
            flush,
        };
        let log_thread = LogThread::new(
            log,
            inbox.clone(),
            start.fatal.clone(),
            start.power,
            Arc::clone(&space),
            &start.config,
        )?;
        let threads = vec![
            spawn("dengine-log", &start.fatal, move || {
                log_thread.run(&appends);
            })?,
            spawn("dengine-flush", &start.fatal, move || {
                flusher::run(&flusher, &flushes, &flush_replica, &flush_space);
            })?,
            spawn("dengine-apply", &start.fatal, move || applier.run(&applies))?,
            spawn("dengine-keeper", &start.fatal, move || {
                keeper.run(&keeper_stop);
            })?,
            spawn("dengine-reclaim", &start.fatal, move || {
                reclaimer.run(&reclaimer_stop);
            })?,
            spawn("dengine-replica", &start.fatal, move || replica.run(&input))?,
        ];
        let limits = &start.config.limits;
        Ok(Self {
            writes: Semaphore::new(limits.max_pending_proposals),
            write_bytes: WriteBytes::to_be_acknowledged(limits),
            reads: Semaphore::new(limits.max_pending_reads),
            space,
            identity: start.identity,
            config: start.config,
            inbox,
            reader,
            lease,
            command_gate,
            flusher: flush_now,
            membership: members,
            introduced,
            incoming,
            store,
            threads: Mutex::new(threads),
        })
    }

    /// What the listener needs to let peers in.
    pub(super) fn peer_entrance(&self, leader: LeaderNow) -> PeerEntrance {
        // One message is always let in, however large.
        let queue_bytes = memory::most(Use::FromPeers, PEER_QUEUE_BYTES, PERMIT_BYTES);
        let permits = queue_bytes / PERMIT_BYTES;
        PeerEntrance {
            identity: self.identity,
            membership: self.membership.clone(),
            introduced: self.introduced.clone(),
            leader,
            inbox: self.inbox.clone(),
            permits: Arc::new(Semaphore::new(permits)),
            permits_max: permits as u32,
            permit_bytes: PERMIT_BYTES,
            incoming: self.incoming.clone(),
            closed: CancellationToken::new(),
        }
    }

    /// Receives no more snapshots, and hands over what is staged.
    pub(super) async fn close_incoming(&self) -> Result<Staging<RealDisk>, SnapshotError> {
        self.incoming.close().await
    }

    /// What tells when the state is closed.
    pub(super) fn watch_store(&self) -> OpenStore {
        self.store.clone()
    }

    pub(super) fn reader(&self) -> Reader<RocksStore> {
        self.reader.clone()
    }

    /// How many bytes of a client's writes wait to be acknowledged.
    pub(super) fn write_bytes_of(&self, from: IpAddr) -> usize {
        self.write_bytes.held_by(from)
    }

    /// Whether the reader shows every write that was acknowledged before this call.
    pub(super) fn lease_covers(&self) -> bool {
        self.lease.covers(clock::now)
    }

    /// Makes what is applied durable, so that the log before it may go, and returns up to which entry.
    pub(super) async fn snapshot(&self) -> Result<Index, RequestError> {
        let flusher = self.flusher.clone();
        flusher::check_room(&flusher, &self.space)
            .map_err(|error| RequestError::Storage(error.to_string()))?;
        let flushed = tokio::task::spawn_blocking(move || flusher.flush()).await;
        let index = flushed
            .map_err(|error| RequestError::Storage(error.to_string()))?
            .map_err(|error| RequestError::Storage(error.to_string()))?;
        self.inbox
            .send(Input::Flushed(index).into())
            .map_err(|_| RequestError::ShuttingDown)?;
        Ok(index)
    }

    pub(super) fn membership(&self) -> Arc<Membership> {
        Arc::clone(&self.membership.borrow())
    }

    /// Replicates commands. Their permits come back when all are answered, or nobody waits for them any
    /// more. `held` counts what they return, and bounds it.
    pub(super) async fn write_all(
        &self,
        requests: Vec<kv::Request>,
        from: Option<IpAddr>,
        held: Option<Held>,
        waiters: Option<Arc<Waiters>>,
    ) -> (Vec<Result<Written, RequestError>>, Option<Held>) {
        let mut results = Vec::with_capacity(requests.len());
        let (mut admitted, mut permits) = (Vec::with_capacity(requests.len()), None);
        for (place, request) in requests.into_iter().enumerate() {
            let space = self.space.check(&request.command);
            let of_parts = of_parts_proposed(&request.command);
            let command = EncodedCommand::new(request, self.command_gate.version());
            let permit = space.and_then(|()| self.place());
            results.push(permit.as_ref().map(|_| ()).map_err(Clone::clone));
            if let Ok(more) = permit {
                merge(&mut permits, more);
                admitted.push((place, command, of_parts));
            }
        }
        let mut bytes = self.write_bytes.count(from);
        let bytes_of =
            |(_, command, of_parts): &(_, EncodedCommand, _)| command.data.len() + of_parts;
        // Together, for everybody's writes are counted under one lock; and if not all, then the first ones.
        if !bytes.more_of(admitted.iter().map(bytes_of).sum(), admitted.len()) {
            admitted.retain(|write| {
                let counted = bytes.more(bytes_of(write));
                if !counted {
                    results[write.0] = Err(self.too_many_bytes());
                    drop(permits.as_mut().and_then(|it| it.split(1)));
                }
                counted
            });
        }
        let bytes = Arc::new(bytes);
        let count = admitted.len();
        let mut admitted = admitted.into_iter();
        let propose = |caller: Awaited| {
            let (place, command, _) = admitted.next().expect("one for each reply");
            let caller = caller.counted(&bytes);
            let caller = match &waiters {
                Some(waiters) => caller.by(waiters, place),
                None => caller,
            };
            (Write::Command { command, from }, caller)
        };
        let latest = waiters.as_ref().and_then(|waiters| waiters.latest());
        let (written, held) = self.propose(count, held, latest, propose).await;
        let mut written = written.into_iter();
        let result = |admitted: Result<(), _>| {
            admitted.and_then(|()| written.next().expect("one for each that was admitted"))
        };
        (results.into_iter().map(result).collect(), held)
    }

    /// A place for a write.
    fn place(&self) -> Result<SemaphorePermit<'_>, RequestError> {
        self.writes.try_acquire().map_err(|_| RequestError::Busy {
            what: "writes that wait to be acknowledged",
            limit: self.config.limits.max_pending_proposals,
        })
    }

    fn too_many_bytes(&self) -> RequestError {
        RequestError::Busy {
            what: "bytes of writes that wait to be acknowledged",
            limit: self.write_bytes.limit(),
        }
    }

    /// Proposes so many requests, and waits for their answers: as long as the settings say, but not beyond `until`.
    async fn propose(
        &self,
        count: usize,
        held: Option<Held>,
        until: Option<Instant>,
        mut make: impl FnMut(Awaited) -> (Write, Awaited),
    ) -> (Vec<Result<Written, RequestError>>, Option<Held>) {
        let begin = Instant::now();
        let (replies, mut answers) = WriteAnswers::of(count, held);
        let all = replies.map(|reply| {
            let (write, caller) = make(Awaited::from(reply));
            ToReplica::Write(write, caller)
        });
        if let Err(SendError(unsent)) = self.inbox.send_all(all.collect()) {
            unsent.into_iter().for_each(refuse);
        }
        // What has no answer in time, or whose replica ended with it in its log, may still take effect.
        let longest = self.config.limits.request_timeout();
        let left = until.map(|until| until.saturating_duration_since(begin));
        let patience = left.unwrap_or(longest).min(longest);
        let _ = tokio::time::timeout(patience, answers.complete()).await;
        answers.take(|| RequestError::UnknownOutcome {
            waited: begin.elapsed(),
        })
    }

    /// Replicates a membership change.
    pub(super) async fn change(&self, change: MembershipChange) -> Result<Written, RequestError> {
        let mut change = Some(change);
        let propose = |caller| {
            let change = change.take().expect("there is one reply");
            (Write::Change(change), caller)
        };
        let written = self.propose(1, None, None, propose).await.0.pop();
        written.expect("one answer to one change")
    }

    /// See [`Write::settle`].
    pub(super) async fn settle(&self) -> Result<Written, RequestError> {
        let _place = self.place()?;
        let propose = |caller| (Write::settle(), caller);
        let written = self.propose(1, None, None, propose).await.0.pop();
        written.expect("one answer to one write")
    }

    /// Waits until a quorum, or the lease, has confirmed a read.
    pub(super) async fn confirm_read(&self, confirm: Confirm) -> Result<(), RequestError> {
        let begin = Instant::now();
        let read = |caller| ToReplica::Read(confirm, caller);
        self.request("reads that wait for a quorum", read).await?;
        ::metrics::histogram!(metrics::READ_CONFIRM_SECONDS).record(begin.elapsed());
        Ok(())
    }

    /// Asks the replica for something that changes nothing.
    pub(super) async fn request<T>(
        &self,
        what: &'static str,
        make: impl FnOnce(Reply<T>) -> ToReplica,
    ) -> Result<T, RequestError> {
        let _count = self.reads.try_acquire().map_err(|_| RequestError::Busy {
            what,
            limit: self.config.limits.max_pending_reads,
        })?;
        let not_served = |reason: &str| RequestError::NotServed {
            reason: reason.to_owned(),
        };
        match tokio::time::timeout(self.config.limits.request_timeout(), self.ask(make)?).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(RequestError::ShuttingDown),
            Err(_) => Err(not_served("no answer from a quorum in time")),
        }
    }

    fn ask<T>(&self, make: impl FnOnce(Reply<T>) -> ToReplica) -> Result<Answer<T>, RequestError> {
        let (reply, answer) = Reply::channel();
        self.inbox
            .send(make(reply))
            .map_err(|_| RequestError::ShuttingDown)?;
        Ok(answer)
    }

    /// Ends the threads and waits for them.
    pub(super) async fn stop(&self) {
        self.ask_to_stop();
        let threads = self.take_threads();
        tokio::task::spawn_blocking(move || join(threads))
            .await
            .expect("joining does not panic and is not cancelled");
    }

    fn ask_to_stop(&self) {
        // If the replica has ended already, the others have too, or are about to.
        let _ = self.inbox.send(ToReplica::Stop);
        // After that: it is no failure then.
        self.store.end_patience();
    }

    fn take_threads(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.threads.lock().expect("no holder panics"))
    }
}

impl Drop for Running {
    /// A member whose last handle is gone can no longer be stopped, so it stops. That is waited for: until then its
    /// files are not closed, and a program that ends meanwhile is aborted by RocksDB, whose globals are gone.
    fn drop(&mut self) {
        self.ask_to_stop();
        join(self.take_threads());
    }
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        // A panic was reported as fatal when it happened.
        let _ = thread.join();
    }
}

/// Whoever reads tells its own caller what is wrong. Damage ends the member besides, as it does where entries are applied: what it can
/// not read any more others have, and whoever looks after it replaces it.
fn end_when_damaged(machine: &StateMachine<RocksStore>, replica: &Sender<ToReplica>) {
    let replica = replica.clone();
    machine.on_damage(move |error| {
        // If the replica is gone, somebody reported before, or a snapshot replaces this state.
        let _ = replica.send(ToReplica::Failed(Fatal::State(error)));
    });
}

/// What a write holds until it is answered: its place, and its bytes.
fn merge<'a>(all: &mut Option<SemaphorePermit<'a>>, more: SemaphorePermit<'a>) {
    match all {
        Some(all) => all.merge(more),
        None => *all = Some(more),
    }
}

/// Answers a request that never reached the replica, which has ended.
fn refuse(unsent: ToReplica) {
    if let ToReplica::Write(_, caller) = unsent {
        caller.answer(Err(RequestError::ShuttingDown));
    }
}

fn retention(config: &Config, space: &Space) -> RetentionSetting {
    let retention = &config.retention;
    let bytes = match retention.bytes {
        0 => space.capacity_bytes().map(|capacity| capacity / 4),
        bytes => Some(bytes),
    };
    let seconds = (retention.seconds > 0).then(|| Duration::from_secs(retention.seconds));
    RetentionSetting {
        revisions: (retention.revisions > 0).then_some(retention.revisions),
        duration: seconds,
        bytes,
    }
}

fn spawn(
    name: &'static str,
    fatal: &watch::Sender<Option<Fatal>>,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, StartError> {
    let fatal = fatal.clone();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            if std::panic::catch_unwind(AssertUnwindSafe(work)).is_err() {
                fatal.send_replace(Some(Fatal::Panicked(name)));
            }
        })
        .map_err(StartError::Thread)
}
