//! Starting a member that takes part: what its threads share, what connects them, and the threads.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dengine_data_dir::marks::Beginning;
use dengine_data_dir::{HistoryGuard, Identity, PowerGuard, SnapshotPaths};
use dengine_kv::{Membership, RetentionSetting, StateMachine};
use dengine_log::{Log, LogReader, RealDisk};
use dengine_raft::channel::{Sender, channel};
use dengine_raft::replica::{Applier, Counts, Keeper, Opened, Replica};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::applier::{self, ApplyWorker, Waiting};
use super::callers::{Callers, Committed};
use super::flusher::{self, FlushRequests, FlushTrigger};
use super::inbox::{Inbox, ToReplica};
use super::install::Install;
use super::keeper::KeeperThread;
use super::log_writer::LogThread;
use super::metrics::TurnMetrics;
use super::open::{open_both, restore};
use super::own_entry;
use super::reclaimer::Reclaimer;
use super::replica::{self, Jobs, ReplicaWorker, Sizes};
use super::running::{Admission, FromPeers, OwnState, Running};
use super::snapshots::{Maker, Snapshots};
use super::space::{HandOvers, SizeLooks, Space, StateSize, ToldLow};
use super::stages::Stages;
use super::status::Signals;
use super::syncs::Syncs;
use super::watchdog::Watchdog;
use super::worker::worker;
use crate::config::{Config, Durability};
use crate::error::{Fatal, StartError};
use crate::storage::{OpenStore, RocksStore, StoreCounters};
use crate::telemetry::lines::Lines;
use crate::transport::{Incoming, Introduced, Peers};

const REPLICA_THREAD: &str = "dengine-replica";
const APPLY_THREAD: &str = "dengine-apply";

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
    pub(super) signals: Signals,
    pub(super) store_counters: StoreCounters,
    pub(super) installs: UnboundedSender<Install>,
    /// Where peers are spoken to.
    pub(super) peers: Handle,
}

/// The threads of a member while they are started.
struct Threads {
    handles: Vec<JoinHandle<()>>,
    fatal: watch::Sender<Option<Fatal>>,
}

impl Threads {
    fn new(fatal: watch::Sender<Option<Fatal>>) -> Self {
        let handles = Vec::new();
        Self { handles, fatal }
    }

    /// A panic of it ends the member.
    fn spawn(
        &mut self,
        name: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartError> {
        let fatal = self.fatal.clone();
        let work = move || {
            if std::panic::catch_unwind(AssertUnwindSafe(work)).is_err() {
                fatal.send_replace(Some(Fatal::Panicked(name)));
            }
        };
        let named = std::thread::Builder::new().name(name.to_owned());
        self.handles
            .push(named.spawn(work).map_err(StartError::Thread)?);
        Ok(())
    }
}

/// What the threads share, and what makes each.
struct Parts<'a> {
    start: &'a Start,
    /// Of the caller that starts the member.
    runtime: &'a Handle,
    machine: &'a StateMachine<RocksStore>,
    inbox: Inbox,
    members: watch::Receiver<Arc<Membership>>,
    introduced: Introduced,
    incoming: Incoming,
    space: Arc<Space>,
    state_size: Arc<StateSize>,
    syncs: Syncs,
    metrics: TurnMetrics,
}

/// Opens log and state machine and starts the threads.
pub(super) fn start(start: &Start, runtime: &Handle) -> Result<Running, StartError> {
    let Opened {
        log,
        recovered,
        state: (machine, store),
        ..
    } = open_both(start)?;
    let replica = restore(start, &machine, &log, &recovered)?;
    start.signals.revision.send_replace(machine.revision());
    let (own, address) = (start.identity.member_id, &start.config.advertise_peer);
    own_entry::tell_at_start(own, address, &machine.membership());

    let fatal = &start.signals.fatal;
    let (replica_worker, replica_thread) = worker(REPLICA_THREAD, replica::PACE, fatal.clone());
    let inbox = Inbox::to(replica_worker);
    let (membership, members) = watch::channel(machine.membership());
    end_when_damaged(&machine, inbox.queue());
    let parts = Parts::new(start, runtime, &machine, inbox, members);
    let running = parts.running(&replica, store);

    let (log_jobs, appends) = channel();
    let (apply_jobs, apply_thread) = worker(APPLY_THREAD, applier::PACE, fatal.clone());
    let (flush, flushes) = FlushRequests::channel();
    let (keeper_lives, keeper_stop) = channel();
    let (watchdog_lives, watchdog_stop) = channel();
    let (reclaimer_lives, reclaimer_stop) = channel();
    let jobs = Jobs {
        log: log_jobs,
        apply: apply_jobs,
        flush: flush.clone(),
    };
    let keeper = parts.keeper(&replica, reclaimer_lives);
    let (reclaimer, watchdog) = (parts.reclaimer(), parts.watchdog());
    let mut replica = parts.replica(replica, log.reader(), jobs, [keeper_lives, watchdog_lives]);
    // Before any caller can ask: a member with an identity must never seem to wait for one.
    replica.publish();
    let log = parts.log_thread(log)?;
    let flusher = machine.flusher();
    let Parts {
        inbox,
        space,
        syncs,
        metrics,
        ..
    } = parts;
    let applier = ApplyWorker {
        own,
        applier: Applier::new(machine),
        callers: Committed::default(),
        replica: inbox.queue(),
        membership,
        revision: start.signals.revision.clone(),
        flush: FlushTrigger::new(flush, start.config.log.flush_bytes),
        waiting: Waiting::default(),
        syncs,
        metrics,
    };
    let inbox = inbox.queue();
    let mut threads = Threads::new(fatal.clone());
    threads.spawn("dengine-log", move || log.run(&appends))?;
    threads.spawn("dengine-flush", move || {
        flusher::run(&flusher, &flushes, &inbox, &space);
    })?;
    threads.spawn(APPLY_THREAD, move || apply_thread.run(applier))?;
    threads.spawn("dengine-keeper", move || keeper.run(&keeper_stop))?;
    threads.spawn("dengine-disk", move || watchdog.run(&watchdog_stop))?;
    threads.spawn("dengine-reclaim", move || reclaimer.run(&reclaimer_stop))?;
    threads.spawn(REPLICA_THREAD, move || replica_thread.run(replica))?;
    Ok(running.with(threads.handles))
}

impl<'a> Parts<'a> {
    fn new(
        start: &'a Start,
        runtime: &'a Handle,
        machine: &'a StateMachine<RocksStore>,
        inbox: Inbox,
        members: watch::Receiver<Arc<Membership>>,
    ) -> Self {
        let space = Arc::new(Space::of(&start.config));
        // Before anybody takes space that somebody else needs.
        space.look_and_tell();
        let state_size = Arc::new(StateSize::of(machine.reader()));
        let incoming = Incoming::new(
            start.snapshot_paths.clone(),
            start.identity.cluster_id,
            start.config.snapshot.max_bytes,
        );
        Self {
            start,
            runtime,
            machine,
            inbox,
            members,
            introduced: Introduced::default(),
            incoming,
            space,
            state_size,
            syncs: syncs(&start.config),
            metrics: TurnMetrics::look_up(),
        }
    }

    /// The ways into the member, but for its threads.
    fn running(&self, replica: &Replica<LogReader<RealDisk>>, store: OpenStore) -> Running {
        Running {
            identity: self.start.identity,
            config: self.start.config.clone(),
            inbox: self.inbox.clone(),
            admission: Admission::of(&self.start.config.limits),
            space: Arc::clone(&self.space),
            lease: replica.lease(),
            command_gate: replica.command_gate(),
            leader_takes: replica.leader_takes(),
            state: OwnState {
                reader: self.machine.reader(),
                flusher: self.machine.flusher(),
                store,
                merging: Arc::default(),
            },
            peers: FromPeers {
                membership: self.members.clone(),
                introduced: self.introduced.clone(),
                incoming: self.incoming.clone(),
            },
            metrics: self.metrics.clone(),
            threads: Mutex::default(),
        }
    }

    fn replica(
        &self,
        replica: Replica<LogReader<RealDisk>>,
        log_reader: LogReader<RealDisk>,
        jobs: Jobs,
        helpers_live: [Sender<()>; 2],
    ) -> ReplicaWorker {
        let start = self.start;
        ReplicaWorker {
            config: start.config.clone(),
            identity: start.identity,
            folder_id: start.folder_id.clone(),
            replica,
            callers: Callers::default(),
            jobs,
            peers: self.peers(),
            snapshots: self.snapshots(),
            installs: start.installs.clone(),
            history: start.history.clone(),
            sizes: Sizes {
                state: Arc::clone(&self.state_size),
                log_reader,
                space: Arc::clone(&self.space),
            },
            signals: start.signals.clone(),
            counted: Counts::default(),
            refusals: Lines::default(),
            stages: Stages::new(self.metrics.commit.clone()),
            metrics: self.metrics.clone(),
            next_tick: Instant::now() + start.config.tick(),
            _helpers_live: helpers_live,
        }
    }

    fn peers(&self) -> Peers {
        let start = self.start;
        Peers::new(
            &start.config,
            start.identity,
            start.folder_id.clone(),
            (start.peers.clone(), self.runtime.clone()),
            self.members.clone(),
            self.introduced.clone(),
            self.inbox.queue(),
        )
    }

    fn snapshots(&self) -> Snapshots {
        Snapshots {
            maker: Maker {
                flusher: self.machine.flusher(),
                paths: self.start.snapshot_paths.clone(),
                cluster: self.start.identity.cluster_id,
                space: Arc::clone(&self.space),
            },
            runtime: self.runtime.clone(),
            inbox: self.inbox.queue(),
            incoming: self.incoming.clone(),
            made: None,
        }
    }

    fn log_thread(&self, log: Log<RealDisk>) -> Result<LogThread, StartError> {
        LogThread::new(
            log,
            self.inbox.clone(),
            self.start.signals.fatal.clone(),
            self.start.power.clone(),
            (Arc::clone(&self.space), self.syncs.clone()),
            self.metrics.clone(),
            &self.start.config,
        )
    }

    fn keeper(
        &self,
        replica: &Replica<LogReader<RealDisk>>,
        reclaimer_lives: Sender<()>,
    ) -> KeeperThread {
        let retention = retention(&self.start.config, &self.space);
        KeeperThread {
            _reclaimer_lives: reclaimer_lives,
            state_size: Arc::clone(&self.state_size),
            size_looks: SizeLooks::default(),
            keeper: Keeper::new(self.machine.reader(), retention),
            collector: self.machine.collector(),
            status: self.start.signals.status.subscribe(),
            replica: self.inbox.queue(),
            command_gate: replica.command_gate(),
        }
    }

    fn watchdog(&self) -> Watchdog {
        Watchdog {
            status: self.start.signals.status.subscribe(),
            replica: self.inbox.queue(),
            space: Arc::clone(&self.space),
            hand_overs: HandOvers::new(self.start.config.heartbeat()),
            told_low: ToldLow::default(),
        }
    }

    fn reclaimer(&self) -> Reclaimer {
        Reclaimer {
            flusher: self.machine.flusher(),
            space: Arc::clone(&self.space),
        }
    }
}

/// A reader tells its own caller what is wrong. Damage ends the member besides, as it does where
/// entries are applied: what it cannot read any more others have, and its operator replaces it.
fn end_when_damaged(machine: &StateMachine<RocksStore>, replica: Sender<ToReplica>) {
    machine.on_damage(move |error| {
        // If the replica is gone, somebody reported before, or a snapshot replaces this state.
        let _ = replica.send(ToReplica::Failed(Fatal::State(error)));
    });
}

/// For the traces of writes, if there are some, and a write waits for a sync.
fn syncs(config: &Config) -> Syncs {
    match (config.tracing.endpoint.as_str(), config.durability) {
        ("", _) | (_, Durability::MemoryFirst) => Syncs::default(),
        (_, Durability::Fsync) => Syncs::remembered(),
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
