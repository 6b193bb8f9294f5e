//! A member that takes part: its threads, and the ways into them.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use dengine_data_dir::Identity;
use dengine_kv::{Flusher, Membership, MembershipChange, Reader, StoreError};
use dengine_log::RealDisk;
use dengine_raft::answers::Held;
use dengine_raft::replica::{
    CommandGate, LeaderTakes, LeaseView, WriteAnswers, is_small_enough, may_be_passed_on,
};
use dengine_raft::{Confirm, EncodedCommand, Input, Write};
use dengine_snapshot::{SnapshotError, Staging};
use dengine_types::Index;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use super::inbox::{Answer, Inbox, Reply, ToReplica};
use super::metrics::TurnMetrics;
use super::space::Space;
use super::start::{self, Start};
use super::waiters::Awaited;
use super::{WriteGroup, Written, clock, flusher};
use crate::config::{Config, Limits};
use crate::error::{LeaderHint, RequestError, StartError};
use crate::memory::{self, Use};
use crate::storage::{OpenStore, RocksStore, StoreStatistics};
use crate::transport::{Incoming, Introduced, LeaderNow, PeerEntrance};
use crate::write_bytes::{WriteBytes, of_parts_proposed};

/// Semaphores count bytes in these, because their permits are 32-bit numbers.
const PERMIT_BYTES: usize = 1024;

/// Bytes of peers' messages that wait for the replica thread.
const PEER_QUEUE_BYTES: usize = 64 << 20;

/// How much of what callers ask for waits at most.
pub(super) struct Admission {
    writes: Semaphore,
    write_bytes: WriteBytes,
    reads: Semaphore,
}

impl Admission {
    pub(super) fn of(limits: &Limits) -> Self {
        Self {
            writes: Semaphore::new(limits.max_pending_proposals),
            write_bytes: WriteBytes::to_be_acknowledged(limits),
            reads: Semaphore::new(limits.max_pending_reads),
        }
    }
}

/// The state of this member.
pub(super) struct OwnState {
    pub(super) reader: Reader<RocksStore>,
    pub(super) flusher: Flusher<RocksStore>,
    /// What tells when it is closed.
    pub(super) store: OpenStore,
    /// Held by whoever merges all of it: the end of the member waits for that.
    pub(super) merging: Arc<Mutex<()>>,
}

/// What those need who let peers in.
pub(super) struct FromPeers {
    pub(super) membership: watch::Receiver<Arc<Membership>>,
    pub(super) introduced: Introduced,
    pub(super) incoming: Incoming,
}

pub(super) struct Running {
    pub(super) identity: Identity,
    pub(super) config: Config,
    pub(super) inbox: Inbox,
    pub(super) admission: Admission,
    pub(super) space: Arc<Space>,
    pub(super) lease: Arc<LeaseView>,
    pub(super) command_gate: Arc<CommandGate>,
    pub(super) leader_takes: Arc<LeaderTakes>,
    pub(super) state: OwnState,
    pub(super) peers: FromPeers,
    pub(super) metrics: TurnMetrics,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Running {
    /// Opens log and state machine and starts the threads.
    pub(super) async fn start(start: Start) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || start::start(&start, &runtime))
            .await
            .expect("starting does not panic and is not cancelled")
    }

    /// With its threads, which it waits for when it ends.
    pub(super) fn with(self, threads: Vec<JoinHandle<()>>) -> Self {
        *self.threads.lock().expect("no holder panics") = threads;
        self
    }

    /// What the listener needs to let peers in.
    pub(super) fn peer_entrance(&self, leader: LeaderNow) -> PeerEntrance {
        // One message is always let in, however large.
        let queue_bytes = memory::most(Use::FromPeers, PEER_QUEUE_BYTES, PERMIT_BYTES);
        let permits = queue_bytes / PERMIT_BYTES;
        PeerEntrance {
            identity: self.identity,
            membership: self.peers.membership.clone(),
            introduced: self.peers.introduced.clone(),
            leader,
            inbox: self.inbox.clone(),
            permits: Arc::new(Semaphore::new(permits)),
            permits_max: permits as u32,
            permit_bytes: PERMIT_BYTES,
            incoming: self.peers.incoming.clone(),
            closed: CancellationToken::new(),
        }
    }

    /// Receives no more snapshots, and hands over what is staged.
    pub(super) async fn close_incoming(&self) -> Result<Staging<RealDisk>, SnapshotError> {
        self.peers.incoming.close().await
    }

    /// What tells when the state is closed.
    pub(super) fn watch_store(&self) -> OpenStore {
        self.state.store.clone()
    }

    pub(super) fn store_statistics(&self) -> StoreStatistics {
        let asked = self
            .state
            .flusher
            .with_store(|store| Ok(store.statistics()));
        asked.expect("asking for it does not fail")
    }

    pub(super) fn reader(&self) -> Reader<RocksStore> {
        self.state.reader.clone()
    }

    /// How many bytes of a client's writes wait to be acknowledged.
    pub(super) fn write_bytes_of(&self, from: IpAddr) -> usize {
        self.admission.write_bytes.held_by(from)
    }

    /// Whether the reader shows every write that was acknowledged before this call.
    pub(super) fn lease_covers(&self) -> bool {
        self.lease.covers(clock::now)
    }

    /// Makes what is applied durable, so that the log before it may go, and returns up to which
    /// entry.
    pub(super) async fn snapshot(&self) -> Result<Index, RequestError> {
        let flusher = self.state.flusher.clone();
        flusher::check_room(&flusher, &self.space)
            .map_err(|error| RequestError::Storage(error.to_string()))?;
        let flushed = tokio::task::spawn_blocking(move || flusher.flush()).await;
        let index = flushed
            .map_err(|error| RequestError::Storage(error.to_string()))?
            .map_err(|error| RequestError::Storage(error.to_string()))?;
        self.inbox
            .send(Input::Flushed(index))
            .map_err(|_| RequestError::ShuttingDown)?;
        Ok(index)
    }

    /// Merges the whole state, so that nothing in it takes space that was deleted or overwritten:
    /// up to the end, or to that of the member, or soon after `stop` is cancelled.
    pub(super) async fn merge_state(&self, stop: CancellationToken) -> Result<(), RequestError> {
        let storage = |error: &dyn Display| RequestError::Storage(error.to_string());
        let free_bytes = self.space.free_bytes_now().map_err(|it| storage(&it))?;
        let flusher = self.state.flusher.clone();
        let merging = Arc::clone(&self.state.merging);
        let merge = move || {
            // Held too if one before has panicked.
            let held = merging.lock();
            let merged =
                flusher.with_store(|store| store.merge_all(free_bytes, || !stop.is_cancelled()));
            // First: it may be the last that has the store open.
            drop(flusher);
            drop(held);
            merged
        };
        let merged = tokio::task::spawn_blocking(merge).await;
        match merged.map_err(|it| storage(&it))? {
            Ok(true) => Ok(()),
            Ok(false) => Err(RequestError::ShuttingDown),
            Err(error @ StoreError::NoSpace { .. }) => {
                Err(RequestError::Refused(error.to_string()))
            }
            Err(error) => Err(storage(&error)),
        }
    }

    pub(super) fn membership(&self) -> Arc<Membership> {
        Arc::clone(&self.peers.membership.borrow())
    }

    /// Replicates commands. Their permits come back when all are answered, or their callers are
    /// gone. If another member leads, those that it does not take from here are refused.
    pub(super) async fn write_all(
        &self,
        writes: WriteGroup,
        leader: Option<LeaderHint>,
    ) -> (Vec<Result<Written, RequestError>>, Option<Held>) {
        let WriteGroup {
            requests,
            from,
            passes,
            held,
            waiters,
            traces,
        } = writes;
        let mut results = Vec::with_capacity(requests.len());
        let (mut admitted, mut permits) = (Vec::with_capacity(requests.len()), None);
        for (place, request) in requests.into_iter().enumerate() {
            let space = self.space.check(&request.command);
            let of_parts = of_parts_proposed(&request.command);
            // A trace is to show the leader's stages too.
            let passes = passes && traces.get(place).is_none();
            let passes = passes && may_be_passed_on(&request.command);
            let command = EncodedCommand::new(request, self.command_gate.version());
            let passes = passes && is_small_enough(&command);
            let permit = taken(leader.as_ref(), passes, space).and_then(|()| self.place());
            results.push(permit.as_ref().map(|_| ()).map_err(Clone::clone));
            if let Ok(more) = permit {
                merge(&mut permits, more);
                admitted.push((place, command, of_parts, passes));
            }
        }
        let mut bytes = self.admission.write_bytes.count(from);
        let bytes_of =
            |(_, command, of_parts, _): &(_, EncodedCommand, _, _)| command.data.len() + of_parts;
        // Together, for everybody's writes are counted under one lock; and if not all, then the
        // first ones.
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
            let (place, command, _, passes) = admitted.next().expect("one for each reply");
            let caller = caller.counted(&bytes).traced(traces.get(place));
            let caller = match &waiters {
                Some(waiters) => caller.by(waiters, place),
                None => caller,
            };
            let write = Write::Command {
                command,
                from,
                passes,
            };
            (write, caller)
        };
        let latest = waiters.as_ref().and_then(|waiters| waiters.latest());
        let (written, held) = self.propose(count, held, latest, propose).await;
        let mut written = written.into_iter();
        let result = |admitted: Result<(), _>| {
            admitted.and_then(|()| written.next().expect("one for each that was admitted"))
        };
        (results.into_iter().map(result).collect(), held)
    }

    /// How much more of a client another member that leads proposes without a call, as far as it is
    /// known: what the client waits for here has been passed on, or was to be just now.
    pub(super) fn leader_takes_bytes(&self, from: Option<IpAddr>) -> usize {
        let own = from.map_or(0, |from| self.admission.write_bytes.held_by(from));
        self.leader_takes.bytes().saturating_sub(own / 2)
    }

    /// A place for a write.
    fn place(&self) -> Result<SemaphorePermit<'_>, RequestError> {
        self.admission
            .writes
            .try_acquire()
            .map_err(|_| RequestError::Busy {
                what: "writes that wait to be acknowledged",
                limit: self.config.limits.max_pending_proposals,
            })
    }

    fn too_many_bytes(&self) -> RequestError {
        RequestError::Busy {
            what: "bytes of writes that wait to be acknowledged",
            limit: self.admission.write_bytes.limit(),
        }
    }

    /// Proposes so many requests, and waits for their answers: as long as the settings say, but not
    /// beyond `until`.
    async fn propose(
        &self,
        count: usize,
        held: Option<Held>,
        until: Option<Instant>,
        mut make: impl FnMut(Awaited) -> (Write, Awaited),
    ) -> (Vec<Result<Written, RequestError>>, Option<Held>) {
        let begin = Instant::now();
        let (replies, mut answers) = WriteAnswers::of(count, held);
        // They wait together: one of them tells how long.
        let mut since = Some(begin);
        let all = replies.map(|reply| {
            let (write, caller) = make(Awaited::from(reply).handed_over(since.take()));
            ToReplica::Write(write, caller)
        });
        // What is refused is answered.
        let _ = self.inbox.send_all(all.collect());
        // What has no answer in time, or whose replica ended with it in its log, may still take
        // effect.
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
        self.metrics.read_confirm.record(begin.elapsed());
        Ok(())
    }

    /// Asks the replica for something that changes nothing.
    pub(super) async fn request<T>(
        &self,
        what: &'static str,
        make: impl FnOnce(Reply<T>) -> ToReplica,
    ) -> Result<T, RequestError> {
        let _count = self
            .admission
            .reads
            .try_acquire()
            .map_err(|_| RequestError::Busy {
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

    /// Ends the threads, and a merge of the state, and waits for them.
    pub(super) async fn stop(&self) {
        self.ask_to_stop();
        let threads = self.take_threads();
        let merging = Arc::clone(&self.state.merging);
        tokio::task::spawn_blocking(move || join(threads, &merging))
            .await
            .expect("joining does not panic and is not cancelled");
    }

    fn ask_to_stop(&self) {
        // If the replica has ended already, the others have too, or are about to.
        let _ = self.inbox.send_now(ToReplica::Stop);
        // After that: it is no failure then.
        self.state.store.end_patience();
    }

    fn take_threads(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.threads.lock().expect("no holder panics"))
    }
}

impl Drop for Running {
    /// A member whose last handle is gone can no longer be stopped, so it stops. That is waited
    /// for: until then its files are not closed, and a program that ends meanwhile is aborted by
    /// RocksDB, whose globals are gone.
    fn drop(&mut self) {
        self.ask_to_stop();
        join(self.take_threads(), &self.state.merging);
    }
}

/// Whether a write is taken here: to be proposed, if there is space for it, or to be passed on to
/// the leader, which says itself whether it has space.
fn taken(
    leader: Option<&LeaderHint>,
    passes: bool,
    space: Result<(), RequestError>,
) -> Result<(), RequestError> {
    match leader {
        Some(_) if passes && space.is_ok() => Ok(()),
        Some(leader) => Err(RequestError::NotLeader {
            leader: Some(leader.clone()),
        }),
        None => space,
    }
}

fn join(threads: Vec<JoinHandle<()>>, merging: &Mutex<()>) {
    for thread in threads {
        // A panic was reported as fatal when it happened.
        let _ = thread.join();
    }
    // A merge that begins after this finds the store's patience ended, and merges nothing.
    drop(merging.lock());
}

/// What a write holds until it is answered: its place, and its bytes.
fn merge<'a>(all: &mut Option<SemaphorePermit<'a>>, more: SemaphorePermit<'a>) {
    match all {
        Some(all) => all.merge(more),
        None => *all = Some(more),
    }
}
