//! One member: its data directory, its threads, its listener for peers, and the handle through
//! which callers use it.
//!
//! ```text
//! callers ──▶ Node ──▶ replica thread ──▶ log writer (write + fdatasync) ──▶ replica thread
//!                        │      ▲
//!                        │      └── peers (transport)
//!                        └──▶ applier ──▶ replies to callers
//! ```
//! A member lives through two states, which are types here: *waiting* (an empty data directory, no
//! threads) and [`running::Running`] (an identity, and everything that takes part). It passes from
//! the first to the second once, when it is bootstrapped or joined, and never back. A snapshot that
//! it receives ends the second and starts it again ([`install`]).
//!
//! What may not live here: the rules of Raft (`dengine_raft::consensus`), of keys and values
//! (`dengine_kv`), or of gRPC ([`crate::server`]).

mod applier;
mod bootstrap;
mod callers;
mod clock;
mod commit_waiters;
mod flusher;
mod inbox;
mod install;
mod keeper;
mod log_filler;
mod log_writer;
pub mod metrics;
mod open;
mod own_entry;
mod own_turns;
mod reclaimer;
mod replica;
mod running;
mod snapshots;
mod space;
mod stages;
mod start;
mod status;
mod syncs;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod waiters;
mod watchdog;
mod worker;

use std::net::IpAddr;
use std::sync::{Arc, RwLock, RwLockWriteGuard};
use std::time::Instant;

use dengine_data_dir::{DataDir, Identity};
use dengine_kv as kv;
use dengine_kv::membership::check_first_revision;
use dengine_kv::{Member, Membership, MembershipChange, Reader};
pub use dengine_raft::Written;
pub(crate) use dengine_raft::answers;
use dengine_raft::answers::Held;
pub use dengine_raft::replica::NewMember;
use dengine_raft::replica::{ChangeStep, Changed, Changing, MembershipRequest};
use dengine_raft::{Confirm, LeaseAnswer, LeaseAsk, Successor};
use dengine_types::{ClusterId, Index, LeaseId, MemberId, Revision, Term};
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Durability};
use crate::error::{Fatal, LeaderHint, RequestError, StartError};
use crate::storage::{RocksStore, StoreCounters, StoreStatistics};
use crate::telemetry::traces::Traces;
use crate::transport::{self, PeerGate};
pub(crate) use commit_waiters::CommitWaiter;
pub(crate) use inbox::{Inbox, PeerStream, SendsTogether, ToReplica};
use install::Install;
pub(crate) use own_turns::{Takes, take_turns_in_this_thread};
use running::Running;
use start::Start;
use status::Signals;
use waiters::Waiters;

pub use status::{Lifecycle, MemberProgress, MembersView, NodeStatus, Role};

// The largest answer that `dengine_raft` admits leaves room in the largest response that clients
// accept.
const _: () = assert!(answers::ANSWER_BYTES_MAX == dengine_protocol::RESPONSE_BYTES_MAX / 4 * 3);

/// What there may be too many of, in the message that says so.
const REQUESTS: &str = "requests";

/// A member of a cluster, or one that waits to become it. Cheap to clone; the member runs until
/// [`Node::shutdown`], until its last handle is dropped, or until [`Node::stopped`] says why it
/// ended by itself. Dropping the last handle blocks until its threads have ended; `shutdown` waits
/// without blocking. The listener is closed a moment after either, and the state once no
/// [`Node::reader`] of it is left.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    /// Where it was started. Callers that have it become a member, or send it a snapshot, may be
    /// served by others.
    threads: Handle,
    folder_id: String,
    /// Fields are dropped in this order: everything up to `folder` is dropped before it, so the
    /// data directory stays locked until the member's threads have ended.
    listener: transport::Listener,
    peers: transport::PeerRuntime,
    gate: PeerGate,
    stage: RwLock<Stage>,
    /// Held while the member passes from one stage to another, so that it does so once.
    folder: tokio::sync::Mutex<DataDir>,
    installs: UnboundedSender<Install>,
    signals: Signals,
    /// Of every store that the member opens.
    store_counters: StoreCounters,
}

/// Writes that are asked for together, and how.
#[derive(Default)]
pub(crate) struct WriteGroup {
    pub(crate) requests: Vec<kv::Request>,
    /// The client's address: they are proposed in turns with those of others.
    pub(crate) from: Option<IpAddr>,
    /// Whether the leader may be asked to propose those that it takes, if another member leads.
    pub(crate) passes: bool,
    /// Counts what they return, and leaves out what it has no room for.
    pub(crate) held: Option<Held>,
    /// One that its waiter has left is not proposed any more.
    pub(crate) waiters: Option<Arc<Waiters>>,
    /// Those of these note when their stages begin.
    pub(crate) traces: Traces,
}

/// What a member is doing.
enum Stage {
    /// It has no identity.
    Waiting,
    Running(Arc<Running>),
    /// A snapshot is becoming its state.
    Restarting,
    /// It was shut down.
    Stopped,
}

/// When a data directory records the identity that a call gives to a member.
#[derive(Debug)]
enum Adoption {
    /// The call has it recorded, with the log that it prepares.
    Now,
    /// An earlier call did.
    Before,
}

impl Node {
    /// Opens the data directory and starts the member: waiting if the directory is empty, otherwise
    /// with the identity that it records.
    ///
    /// # Errors
    /// Why it cannot start; the data directory is unchanged.
    pub fn start(config: Config) -> BoxFuture<'static, Result<Self, StartError>> {
        // As `server::serve`: compiled once, and not with everybody who awaits it.
        Box::pin(Self::open(config))
    }

    async fn open(config: Config) -> Result<Self, StartError> {
        let config = config.validated()?;
        let folder = DataDir::open(&config.data_dir)?;
        let folder_id = folder.folder_id().to_owned();
        let identity = folder.identity();
        let gate = PeerGate::default();
        let peers = transport::PeerRuntime::start()?;
        let listener = transport::Listener::start(&config, gate.clone(), &peers).await?;
        let (installs, decided) = unbounded_channel();
        let node = Self {
            inner: Arc::new(Inner {
                signals: Signals::waiting(&config.name, &folder_id),
                store_counters: StoreCounters::start(),
                folder: tokio::sync::Mutex::new(folder),
                stage: RwLock::new(Stage::Waiting),
                installs,
                folder_id,
                gate,
                listener,
                peers,
                threads: Handle::current(),
                config,
            }),
        };
        tokio::spawn(install::supervise(Arc::downgrade(&node.inner), decided));
        if let Some(identity) = identity {
            let folder = node.inner.folder.lock().await;
            node.run(&folder, identity).await?;
        }
        Ok(node)
    }

    /// This member's settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Replicates a command. This member must lead.
    ///
    /// # Errors
    /// See [`RequestError`]; only after [`RequestError::UnknownOutcome`] may it have taken effect.
    pub async fn write(&self, request: impl Into<kv::Request>) -> Result<Written, RequestError> {
        let written = self.write_all([request.into()]).await.pop();
        written.expect("one answer to one write")
    }

    /// Replicates commands that need not know of one another, and answers when all are decided:
    /// cheaper than to write each alone. As [`Node::write`] for each.
    pub async fn write_all(
        &self,
        requests: impl IntoIterator<Item = kv::Request>,
    ) -> Vec<Result<Written, RequestError>> {
        let requests = requests.into_iter().collect();
        let group = WriteGroup {
            requests,
            ..WriteGroup::default()
        };
        self.write_held(group).await.0
    }

    /// As [`Node::write_all`], in the way that is asked for.
    pub(crate) async fn write_held(
        &self,
        writes: WriteGroup,
    ) -> (Vec<Result<Written, RequestError>>, Option<Held>) {
        let refused = match (self.other_leader(), self.running()) {
            (None, Ok(running)) => return self.have_written(&running, writes, None).await,
            (Some(leader), Ok(running)) => {
                if writes.passes && running.leader_takes_bytes(writes.from) > 0 {
                    return self.have_written(&running, writes, Some(leader)).await;
                }
                RequestError::NotLeader {
                    leader: Some(leader),
                }
            }
            (_, Err(error)) => error,
        };
        let refused = writes.requests.iter().map(|_| Err(refused.clone()));
        (refused.collect(), writes.held)
    }

    /// How much more of a client another member that leads proposes without a call, as far as it is
    /// known.
    pub(crate) fn leader_takes_bytes(&self, from: IpAddr) -> usize {
        let running = self.running();
        running.map_or(0, |it| it.leader_takes_bytes(Some(from)))
    }

    async fn have_written(
        &self,
        running: &Running,
        writes: WriteGroup,
        leader: Option<LeaderHint>,
    ) -> (Vec<Result<Written, RequestError>>, Option<Held>) {
        let (written, held) = running.write_all(writes, leader).await;
        let written = written.into_iter().map(|it| self.unless_stopped(it));
        (written.collect(), held)
    }

    /// Who leads, as far as it is known; this member itself, if it does.
    pub(crate) fn leader(&self) -> Option<LeaderHint> {
        self.inner.signals.status.borrow().leader.clone()
    }

    /// Who leads, if that is known to be another member.
    pub(crate) fn other_leader(&self) -> Option<LeaderHint> {
        let status = self.inner.signals.status.borrow();
        match status.role {
            Role::Leader => None,
            Role::Follower | Role::Candidate | Role::Learner => status.leader.clone(),
        }
    }

    /// As far as this member has applied it.
    pub(crate) fn membership(&self) -> Result<Arc<Membership>, RequestError> {
        Ok(self.running()?.membership())
    }

    /// Waits until [`Node::reader`] shows every write that was acknowledged before this call.
    ///
    /// # Errors
    /// No quorum confirmed it in time; nothing was changed.
    pub async fn read_barrier(&self) -> Result<(), RequestError> {
        self.unless_stopped(self.running()?.confirm_read(Confirm::Quorum).await)
    }

    /// As [`Node::read_barrier`], but without a round of messages while this member leads and holds
    /// a lease. Relies on the members' clocks running at the same speed within ten percent.
    ///
    /// # Errors
    /// As [`Node::read_barrier`].
    pub async fn lease_barrier(&self) -> Result<(), RequestError> {
        let running = self.running()?;
        if running.lease_covers() {
            return Ok(());
        }
        self.unless_stopped(running.confirm_read(Confirm::Lease).await)
    }

    /// Keeps a lease alive, or tells how much is left of it. This member must lead.
    ///
    /// # Errors
    /// This member does not lead any more, or no quorum confirms that it does. It is then unknown
    /// whether the lease was kept alive.
    pub async fn ask_lease(
        &self,
        lease: LeaseId,
        ask: LeaseAsk,
    ) -> Result<LeaseAnswer, RequestError> {
        const QUESTIONS: &str = "questions about leases";
        let question = |caller| ToReplica::Lease(lease, ask, caller);
        self.unless_stopped(self.running()?.request(QUESTIONS, question).await)
    }

    /// How many bytes of a client's writes wait to be acknowledged.
    pub(crate) fn write_bytes_of(&self, from: IpAddr) -> usize {
        let running = self.running();
        running.map_or(0, |running| running.write_bytes_of(from))
    }

    /// Whether [`Node::lease_barrier`] would return at once.
    pub(crate) fn lease_covers(&self) -> bool {
        self.running().is_ok_and(|running| running.lease_covers())
    }

    /// Reads this member's own state, however old.
    ///
    /// # Errors
    /// The member waits for an identity.
    pub fn reader(&self) -> Result<Reader<RocksStore>, RequestError> {
        Ok(self.running()?.reader())
    }

    /// What the store under this member's state tells of itself; it may wait for the store's own
    /// threads.
    ///
    /// # Errors
    /// As [`Node::reader`].
    pub(crate) fn store_statistics(&self) -> Result<StoreStatistics, RequestError> {
        Ok(self.running()?.store_statistics())
    }

    /// What this member knows of itself.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        self.inner.signals.status.borrow().clone()
    }

    /// A receiver of every change of [`Node::status`], at most one tick late.
    #[must_use]
    pub fn status_changes(&self) -> watch::Receiver<NodeStatus> {
        self.inner.signals.status.subscribe()
    }

    /// Tells of every revision that [`Node::reader`] shows, or of the last of several, as soon as
    /// it does.
    #[must_use]
    pub fn revision_changes(&self) -> watch::Receiver<Revision> {
        self.inner.signals.revision.subscribe()
    }

    /// Until it is dropped, somebody waits here for what is committed, and this member asks to be
    /// told of it at once. Otherwise a follower may learn it a millisecond later, with the next
    /// write.
    pub(crate) fn await_commits(&self) -> CommitWaiter {
        self.inner.signals.commit_waiters.one_more()
    }

    #[cfg(test)]
    pub(crate) fn commits_are_awaited(&self) -> bool {
        self.inner.signals.commit_waiters.are_there()
    }

    /// Makes what is applied durable now, so that the log before it may go. Returns the last entry
    /// of it.
    ///
    /// # Errors
    /// The store failed; the member is about to end.
    pub async fn snapshot(&self) -> Result<Index, RequestError> {
        self.unless_stopped(self.running()?.snapshot().await)
    }

    /// Merges the whole state of this member, beside what else it does: afterwards nothing in it
    /// takes space that was deleted or overwritten. It ends soon after `stop` is cancelled.
    ///
    /// # Errors
    /// [`RequestError::Refused`]: what it takes is not free.
    pub(crate) async fn merge_state(&self, stop: CancellationToken) -> Result<(), RequestError> {
        self.unless_stopped(self.running()?.merge_state(stop).await)
    }

    /// Makes this empty member the first voter of a new cluster. Idempotent.
    ///
    /// # Errors
    /// [`RequestError::Refused`] if the folder id is not that of this data directory, or the
    /// directory belongs to another cluster.
    pub async fn bootstrap(
        &self,
        cluster_id: ClusterId,
        folder_id: &str,
    ) -> Result<Member, RequestError> {
        self.bootstrap_at(cluster_id, folder_id, Revision(1)).await
    }

    /// The same for a cluster that takes the place of another: its empty store is at
    /// `first_revision`, which is to be at least two above all revisions of that one: a watch of
    /// who has seen the last one begins at the next. Earlier ones are answered as compacted.
    ///
    /// # Errors
    /// Those of [`Node::bootstrap`]; [`RequestError::Invalid`] for a revision that is 0, or above
    /// 2^62 - 1; [`RequestError::Refused`] if the cluster began at another one.
    pub async fn bootstrap_at(
        &self,
        cluster_id: ClusterId,
        folder_id: &str,
        first_revision: Revision,
    ) -> Result<Member, RequestError> {
        if cluster_id.0 == 0 {
            return Err(RequestError::Invalid("cluster id 0 is reserved".to_owned()));
        }
        check_first_revision(first_revision)
            .map_err(|refusal| RequestError::Invalid(refusal.to_string()))?;
        let identity = Identity {
            cluster_id,
            member_id: bootstrap::FIRST_MEMBER,
        };
        let member = bootstrap::first_member(&self.inner.config, &self.inner.folder_id);
        member
            .check_texts()
            .map_err(|refusal| RequestError::Invalid(refusal.to_string()))?;
        let first = member.clone();
        let adoption = self
            .become_member(identity, folder_id, move |folder, config| {
                bootstrap::write_first_entry(folder, config, cluster_id, &first, first_revision)
            })
            .await?;
        match adoption {
            Adoption::Now => {}
            Adoption::Before => self.check_first_revision(first_revision).await?,
        }
        Ok(member)
    }

    /// Gives this empty member the identity that [`Node::add_learner`] made for its folder id.
    /// Idempotent.
    ///
    /// # Errors
    /// [`RequestError::Refused`] if the folder id is not that of this data directory, or the
    /// directory belongs to another member.
    pub async fn join(
        &self,
        cluster_id: ClusterId,
        member_id: MemberId,
        folder_id: &str,
    ) -> Result<(), RequestError> {
        if cluster_id.0 == 0 || member_id.0 == 0 {
            return Err(RequestError::Invalid("id 0 is reserved".to_owned()));
        }
        let identity = Identity {
            cluster_id,
            member_id,
        };
        self.become_member(identity, folder_id, move |folder, config| {
            bootstrap::make_empty_log(folder, config, identity)
        })
        .await?;
        Ok(())
    }

    /// The members, with the leader's view of each. This member must lead, and a quorum confirms
    /// it.
    ///
    /// # Errors
    /// This member does not lead.
    pub async fn members(&self) -> Result<MembersView, RequestError> {
        self.read_barrier().await?;
        self.unless_stopped(self.running()?.request(REQUESTS, ToReplica::Members).await)
    }

    /// Adds a member that gets the log and does not vote. Idempotent by folder id. This member must
    /// lead.
    ///
    /// # Errors
    /// [`RequestError::Refused`] if name or address belong to another member.
    pub async fn add_learner(
        &self,
        new: NewMember,
    ) -> Result<(MemberId, Arc<Membership>), RequestError> {
        let request = MembershipRequest::AddLearner(new);
        let changed = self.change_members(request).await?;
        Ok((changed.member, changed.membership))
    }

    /// Makes a learner a voter once it has caught up. Idempotent. This member must lead.
    ///
    /// # Errors
    /// [`RequestError::Refused`] if there is no such member or it lags too far behind.
    pub async fn promote(&self, id: MemberId) -> Result<Arc<Membership>, RequestError> {
        let request = MembershipRequest::Promote(id);
        Ok(self.change_members(request).await?.membership)
    }

    /// Removes a member permanently. Idempotent. This member must lead.
    ///
    /// # Errors
    /// [`RequestError::Refused`] if it is the leader, or if the voters left that answer would be no
    /// quorum.
    pub async fn remove(&self, id: MemberId) -> Result<Arc<Membership>, RequestError> {
        let request = MembershipRequest::Remove(id);
        Ok(self.change_members(request).await?.membership)
    }

    /// Carries out the steps of [`Changing`].
    async fn change_members(&self, request: MembershipRequest) -> Result<Changed, RequestError> {
        let begin = Instant::now();
        let (mut changing, mut step) = Changing::begin(request);
        loop {
            step = match step {
                ChangeStep::Confirm => changing.on_confirmed(self.current_membership().await),
                ChangeStep::Replicate(change) => changing.on_written(self.change(change).await),
                ChangeStep::Settle => changing.on_written(self.settle().await),
                ChangeStep::Over(result) => return result,
                ChangeStep::Unknown => {
                    let waited = begin.elapsed();
                    return Err(RequestError::UnknownOutcome { waited });
                }
            };
        }
    }

    /// Hands leadership to a voter, and returns its term once it leads. This member must lead.
    ///
    /// # Errors
    /// [`RequestError::Refused`] if it is no voter; [`RequestError::NotServed`] if it did not take
    /// over.
    pub async fn transfer_leader(&self, id: MemberId) -> Result<Term, RequestError> {
        self.transfer(Successor::Named(id)).await
    }

    async fn transfer(&self, to: Successor) -> Result<Term, RequestError> {
        let transfer = |caller| ToReplica::Transfer(to, caller);
        self.unless_stopped(self.running()?.request(REQUESTS, transfer).await)
    }

    /// Transfers leadership to the best suited voter, if this member leads. Call it before
    /// stopping, so that the cluster is not without a leader for an election timeout.
    pub async fn hand_over(&self) {
        if self.status().role == Role::Leader
            && let Err(error) = self.transfer(Successor::Soonest).await
        {
            // The others elect one of them when they miss this one.
            tracing::info!(%error, "leadership was not handed over");
        }
    }

    /// Stops the member and waits until its threads have ended. See [`Node::hand_over`].
    ///
    /// # Errors
    /// Why it ended by itself, before or meanwhile: what it wrote last may not be on its disk.
    pub async fn shutdown(&self) -> Result<(), Fatal> {
        self.inner.listener.stop();
        let stage = std::mem::replace(&mut *self.write_stage(), Stage::Stopped);
        // Another caller that shuts this member down waits for the lock, and so for the threads.
        let folder = self.inner.folder.lock().await;
        if let Stage::Running(running) = stage {
            running.stop().await;
        }
        if let Some(fatal) = self.inner.signals.fatal.borrow().clone() {
            return Err(fatal);
        }
        if let Err(error) = folder.mark_ended() {
            tracing::warn!(%error, "the data directory is not marked as cleanly closed");
        }
        Ok(())
    }

    /// Whether its threads run: none has failed.
    pub(crate) fn is_live(&self) -> bool {
        self.inner.signals.fatal.borrow().is_none()
    }

    /// Waits until the member ends by itself, and says why.
    pub async fn stopped(&self) -> Fatal {
        let mut fatal = self.inner.signals.fatal.subscribe();
        let end = fatal
            .wait_for(Option::is_some)
            .await
            .expect("the sender lives as long as this handle");
        end.clone().expect("it was just waited for")
    }

    /// The threads end as well when a snapshot is to become the state, and then the member does
    /// not.
    fn unless_stopped<T>(&self, result: Result<T, RequestError>) -> Result<T, RequestError> {
        let stopped = || {
            let stage = self.inner.stage.read().expect("no holder panics");
            matches!(*stage, Stage::Stopped) || !self.is_live()
        };
        match result {
            Err(RequestError::ShuttingDown) if !stopped() => Err(RequestError::NotServed {
                reason: "this member is installing a snapshot".to_owned(),
            }),
            other => other,
        }
    }

    fn running(&self) -> Result<Arc<Running>, RequestError> {
        match &*self.inner.stage.read().expect("no holder panics") {
            Stage::Running(running) => Ok(Arc::clone(running)),
            Stage::Waiting => Err(RequestError::WaitingForIdentity),
            Stage::Restarting => Err(RequestError::NotServed {
                reason: "this member is installing a snapshot".to_owned(),
            }),
            Stage::Stopped => Err(RequestError::ShuttingDown),
        }
    }

    fn write_stage(&self) -> RwLockWriteGuard<'_, Stage> {
        self.inner.stage.write().expect("no holder panics")
    }

    async fn change(&self, change: MembershipChange) -> Result<Written, RequestError> {
        self.running()?.change(change).await
    }

    async fn settle(&self) -> Result<Written, RequestError> {
        self.running()?.settle().await
    }

    async fn current_membership(&self) -> Result<Arc<Membership>, RequestError> {
        self.read_barrier().await?;
        self.membership()
    }

    /// When the data directory records this identity, if it may.
    fn check_adoption(
        &self,
        folder: &DataDir,
        identity: Identity,
        folder_id: &str,
    ) -> Result<Adoption, RequestError> {
        if folder_id != folder.folder_id() {
            return Err(RequestError::Refused(format!(
                "this member's data directory has folder id {}, not {folder_id}: it was wiped or \
                 replaced since",
                folder.folder_id()
            )));
        }
        match folder.identity() {
            None => Ok(Adoption::Now),
            Some(own) if own == identity => Ok(Adoption::Before),
            Some(own) => Err(RequestError::Refused(format!(
                "this data directory already belongs to member {} of cluster {}",
                own.member_id, own.cluster_id
            ))),
        }
    }

    /// Records this identity in the data directory and starts the member, unless either was done
    /// before. That goes on to its end even if the caller is gone: a member that knows
    /// who it is and does nothing is taken for one that runs. If an earlier call came no further
    /// than the identity, this one starts it.
    async fn become_member(
        &self,
        identity: Identity,
        folder_id: &str,
        prepare: impl FnOnce(&DataDir, &Config) -> Result<(), StartError> + Send + 'static,
    ) -> Result<Adoption, RequestError> {
        let (node, folder_id) = (self.clone(), folder_id.to_owned());
        let work = async move {
            let mut folder = node.inner.folder.lock().await;
            let failed = |error: StartError| RequestError::Storage(error.to_string());
            let adoption = node.check_adoption(&folder, identity, &folder_id)?;
            if matches!(adoption, Adoption::Now) {
                prepare(&folder, &node.inner.config).map_err(failed)?;
                folder.adopt(identity).map_err(|it| failed(it.into()))?;
            }
            if node.is_waiting() {
                node.run(&folder, identity).await.map_err(failed)?;
            }
            Ok(adoption)
        };
        match self.inner.threads.spawn(work).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(RequestError::ShuttingDown),
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(
            *self.inner.stage.read().expect("no holder panics"),
            Stage::Waiting
        )
    }

    async fn run(&self, folder: &DataDir, identity: Identity) -> Result<(), StartError> {
        let inner = &self.inner;
        let beginning = folder.begin(inner.config.durability == Durability::MemoryFirst)?;
        let lost_writes_accepted = beginning.lost_writes_accepted;
        let running = Running::start(Start {
            config: inner.config.clone(),
            folder_id: inner.folder_id.clone(),
            identity,
            log_path: folder.log_path(),
            state_path: folder.state_path(),
            snapshot_paths: folder.snapshot_paths(),
            beginning,
            power: folder.power_guard(),
            history: folder.history_guard(),
            signals: inner.signals.clone(),
            store_counters: inner.store_counters.clone(),
            installs: inner.installs.clone(),
            peers: inner.peers.handle(),
        })
        .await?;
        if lost_writes_accepted {
            folder.mark_started()?;
        }
        let shut_down = {
            let mut stage = self.write_stage();
            match &*stage {
                Stage::Stopped => Some(running),
                Stage::Waiting | Stage::Restarting => {
                    let status = inner.signals.status.subscribe();
                    let leader = move || status.borrow().leader.as_ref().map(|it| it.id);
                    inner.gate.open(running.peer_entrance(Arc::new(leader)));
                    *stage = Stage::Running(Arc::new(running));
                    None
                }
                Stage::Running(_) => unreachable!("the lock of the data directory is held"),
            }
        };
        if let Some(running) = shut_down {
            running.stop().await;
        }
        Ok(())
    }
}
