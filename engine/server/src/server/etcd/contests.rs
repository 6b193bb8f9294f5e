//! Contending for a lock or for the lead: entering, waiting for those who came before, and leaving
//! if the caller does not wait that long. What contests are is in [`dengine_etcd::contest`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dengine_etcd::contest::{
    Contender, Contest, ContestError, Entered, LEASE_TTL, by_way_of_a_client, only, watch_key,
};
use dengine_etcd::etcdserverpb::{
    LeaseGrantRequest, RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse,
    WatchCreateRequest,
};
use dengine_etcd::range::Range;
use dengine_etcd::watch::Create;
use dengine_etcd::{EtcdError, KEY_BYTES_MAX};
use dengine_kv::watch::WatchSpec;
use dengine_protocol::v1::{Consistency, Position};
use dengine_types::Revision;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status};

use super::door::Door;
use crate::connections::Connection;
use crate::memory;
use crate::node::answers::Held;
use crate::server::places::{self, Place, Places};
use crate::server::serving::{Caller, connection};
use crate::server::watch::{self, Tail};

/// Pause before a key is deleted again whose deletion there was no place for.
const LEAVE_AGAIN: Duration = Duration::from_millis(200);

/// Memory of all who contend.
const CONTEST_BYTES_MAX: usize = 64 << 20;
/// In these it is counted.
const UNIT_BYTES: usize = 1 << 10;
/// What a contender takes besides copies of its key.
const CONTENDER_BYTES: usize = 2 << 10;
/// Its key is there that many times: in what is asked and what is found, in what is watched, and in
/// what has it deleted.
const COPIES_OF_KEY: usize = 8;

/// What is watched, from this revision on.
type Watched = (WatchSpec, Revision);

/// Who calls, and over what.
pub(super) struct Call {
    pub(super) caller: Caller,
    on: Arc<Connection>,
    remote: places::Connection,
}

impl Call {
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        Self {
            caller: Caller::of(request),
            on: Arc::clone(connection(request)),
            remote: request.remote_addr(),
        }
    }

    /// The connection that the call came over.
    pub(super) fn on(&self) -> Arc<Connection> {
        Arc::clone(&self.on)
    }
}

/// What locks and elections share. Clones do as well.
#[derive(Clone)]
pub(super) struct Contests {
    pub(super) door: Door,
    watch: watch::WatchService,
    leaving: Leaving,
    /// Units of memory. Each contender has some from before it has a key until that is deleted,
    /// which goes on when its call has ended.
    memory: Places,
}

/// Keys whose deletion is under way here, for nobody waits any more for what they were made for.
/// Who comes again meanwhile, with the same lease, must not take such a key for its own. Clones
/// share them.
#[derive(Clone, Default)]
struct Leaving(Arc<Mutex<HashMap<Bytes, Deletions>>>);

/// Those of one key: calls with the same lease share it, and each of them has it deleted.
#[derive(Default)]
struct Deletions {
    running: usize,
    ended: CancellationToken,
}

/// A deletion that is under way until this is dropped.
struct Deletion {
    all: Leaving,
    key: Bytes,
}

impl Leaving {
    fn keys(&self) -> MutexGuard<'_, HashMap<Bytes, Deletions>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, key: Bytes) -> Deletion {
        self.keys().entry(key.clone()).or_default().running += 1;
        Deletion {
            all: self.clone(),
            key,
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        self.keys().contains_key(key)
    }

    /// Waits until no deletion of a key is under way, whether they succeed or not.
    async fn ended(&self, key: &[u8]) {
        let ended = self.keys().get(key).map(|it| it.ended.clone());
        if let Some(ended) = ended {
            ended.cancelled().await;
        }
    }
}

impl Drop for Deletion {
    fn drop(&mut self) {
        let mut keys = self.all.keys();
        if let Some(deletions) = keys.get_mut(&self.key) {
            deletions.running -= 1;
            if deletions.running == 0 {
                deletions.ended.cancel();
                keys.remove(&self.key);
            }
        }
    }
}

/// A key by which a caller contends.
pub(super) struct Claim {
    door: Door,
    leaving: Leaving,
    caller: Caller,
    pub(super) entered: Entered,
    /// The key goes with this: nobody waits for what it was made for.
    ends: bool,
    /// What counts its memory; `None`: what has the key deleted counts it.
    memory: Option<Place>,
}

impl Claim {
    /// The key stays until its owner, or its lease, has it deleted.
    pub(super) fn keep(mut self) -> Entered {
        self.ends = false;
        self.entered.clone()
    }

    /// Has the key deleted, whether or not that is waited for.
    fn leave(&mut self) -> Option<JoinHandle<()>> {
        if !std::mem::take(&mut self.ends) {
            return None;
        }
        let contender = self.entered.contender.clone();
        // Known before anybody can come again.
        let deletion = self.leaving.begin(contender.key.clone());
        let leave = leave(self.door.clone(), contender, self.caller.clone());
        let memory = self.memory.take();
        Some(self.door.serving().detach(async move {
            leave.await;
            drop((deletion, memory));
        }))
    }

    /// The same, waited for: its caller is told afterwards that it does not contend.
    async fn left(&mut self) {
        if let Some(left) = self.leave() {
            // What became of it is told there.
            let _ = left.await;
        }
    }

    /// Has the key deleted even if it was there before.
    pub(super) async fn resign(mut self) {
        self.ends = true;
        self.left().await;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.leave();
    }
}

/// If it fails, the key goes with its lease.
async fn leave(door: Door, contender: Contender, caller: Caller) {
    let leave = contender.leave();
    let until = Instant::now() + door.limits().request_timeout();
    loop {
        match door.change("EtcdLeave", &leave, &caller).await {
            // Its address writes as much as it may: it is let in again soon.
            Err(error) if error.code() == Code::ResourceExhausted && Instant::now() < until => {
                sleep(LEAVE_AGAIN).await;
            }
            Err(error) => {
                tracing::debug!(%error, "who contends no more is in the way until its lease ends");
                return;
            }
            Ok(_) => return,
        }
    }
}

impl Contests {
    pub(super) fn new(door: Door, watch: watch::WatchService) -> Self {
        // The longest key fits into the share of one client.
        let least = 2 * memory_of(KEY_BYTES_MAX);
        let bytes = memory::most(memory::Use::Contests, CONTEST_BYTES_MAX, least);
        let units = bytes / UNIT_BYTES;
        Self {
            door,
            watch,
            leaving: Leaving::default(),
            memory: Places::new(units, units),
        }
    }

    /// Room for who wants to contend.
    ///
    /// # Errors
    /// Those who contend take as much memory as they may, or those of its address do.
    pub(super) fn room(&self, contest: &Contest, call: &Call) -> Result<Place, Status> {
        // The key of the largest lease.
        let units = memory_of(contest.key(i64::MIN).len()).div_ceil(UNIT_BYTES);
        let room = self.memory.take_many(call.remote, units);
        room.map_err(|_| by_way_of_a_client(&EtcdError::TooManyRequests.into()))
    }

    /// The lease by which to contend: a new one for a caller that has none.
    pub(super) async fn lease(&self, wanted: i64, caller: &Caller) -> Result<i64, Status> {
        if wanted != 0 {
            return Ok(wanted);
        }
        let grant = LeaseGrantRequest {
            ttl: LEASE_TTL,
            id: 0,
        };
        let granted = self.door.grant(&grant, caller).await;
        granted
            .map(|(granted, _)| granted.id)
            .map_err(|it| by_way_of_a_client(&it))
    }

    /// Has a transaction carried out.
    pub(super) async fn txn(
        &self,
        method: &'static str,
        txn: &TxnRequest,
        caller: &Caller,
    ) -> Result<TxnResponse, Status> {
        let changed = self.door.change(method, txn, caller).await;
        changed
            .map(|(answer, _)| answer)
            .map_err(|it| by_way_of_a_client(&it))
    }

    /// Enters a contest, by a key that no earlier call with its lease is about to have deleted.
    /// Returns what the key held if it was there already.
    pub(super) async fn enter(
        &self,
        method: &'static str,
        contest: &Contest,
        (lease, value): (i64, Bytes),
        (caller, mut memory): (&Caller, Place),
    ) -> Result<(Claim, Option<Bytes>), Status> {
        let key = contest.key(lease);
        loop {
            // Here, where nothing is left to do once the caller leaves.
            self.leaving.ended(&key).await;
            let entrant = (lease, value.clone());
            let claim = self.enter_once(method, contest, entrant, (caller, memory));
            let mut claim = claim.await?;
            // As large as a value may be, and counted nowhere: a claim that waits does not keep it.
            let held = claim.entered.held.take();
            // An earlier call may have ended meanwhile.
            if held.is_none() || !self.leaving.has(&key) {
                return Ok((claim, held));
            }
            memory = claim.memory.take().expect("the key has not left");
        }
    }

    /// A caller that leaves meanwhile must not leave a key behind, so that it is entered to the end
    /// even then.
    async fn enter_once(
        &self,
        method: &'static str,
        contest: &Contest,
        (lease, value): (i64, Bytes),
        (caller, memory): (&Caller, Place),
    ) -> Result<Claim, Status> {
        let (contests, contest) = (self.clone(), contest.clone());
        let caller = Caller {
            // What it did must be known even if the caller is told that its time is over.
            until: None,
            ..caller.clone()
        };
        let enter = async move {
            let enter = contest.enter(lease, value);
            let answer = contests.txn(method, &enter, &caller).await?;
            let entered = contest.entered(lease, answer)?;
            Ok::<_, Status>(Claim {
                door: contests.door,
                leaving: contests.leaving,
                caller,
                // One that was there may be a lock that is held.
                ends: entered.held.is_none(),
                entered,
                memory: Some(memory),
            })
        };
        let entering = self.door.serving().detach(enter);
        entering.await.map_err(|_| EtcdError::Stopped)?
    }

    /// Waits until nobody is before it. If it had to, returns of when that is known; `lost` says
    /// that its key is gone. Who cannot wait leaves before it is told so: it may come again at
    /// once, with the same lease, and must not find a key that is about to go.
    pub(super) async fn wait(
        &self,
        contest: &Contest,
        claim: &mut Claim,
        call: &Call,
        lost: ContestError,
    ) -> Result<Option<ResponseHeader>, Status> {
        let waited = self.wait_for_turn(contest, claim, call, lost).await;
        if waited.is_err() {
            claim.left().await;
        }
        waited
    }

    async fn wait_for_turn(
        &self,
        contest: &Contest,
        claim: &mut Claim,
        call: &Call,
        lost: ContestError,
    ) -> Result<Option<ResponseHeader>, Status> {
        let contender = claim.entered.contender.clone();
        self.reach(contender.create_revision, call).await?;
        let mut next = self.waits_for(contest, &contender, call, lost).await?;
        if next.is_none() {
            return Ok(None);
        }
        // Also of a key that was there before: its owner waits here now.
        claim.ends = true;
        let mut tail = self.tail(call)?;
        while let Some(watches) = next {
            tail.turn_to(watches);
            tokio::select! {
                // Whatever it says, or if it cannot: it is looked again.
                _ = tail.next() => {}
                over = self.is_over() => return Err(over.into()),
            }
            next = self.waits_for(contest, &contender, call, lost).await?;
        }
        drop(tail);
        // Its lease may have ended while this member was behind.
        self.freshen().await?;
        let own_at = self.own(&contender, call, lost).await?;
        Ok(self.door.header().at(Revision(own_at.unsigned_abs())))
    }

    /// Waits until nobody is served any more: this member stops, or was removed and learns of
    /// nothing.
    pub(super) async fn is_over(&self) -> EtcdError {
        let serving = self.door.serving();
        let mut status = serving.node.status_changes();
        tokio::select! {
            () = serving.stop.cancelled() => {}
            // That nobody says so any more is the end too.
            () = async { status.wait_for(|now| now.removed).await.map_or((), drop) } => {}
        }
        EtcdError::Stopped
    }

    /// What a contender waits for: the end of the key before its own, or of its own; `None`: nobody
    /// is before it.
    async fn waits_for(
        &self,
        contest: &Contest,
        contender: &Contender,
        call: &Call,
        lost: ContestError,
    ) -> Result<Option<[Watched; 2]>, Status> {
        let found = self.find(contest.next_before(contender), call).await?;
        let (before_at, before) = (revision(&found), only(found));
        let own_at = self.own(contender, call, lost).await?;
        let Some(before) = before else {
            return Ok(None);
        };
        Ok(Some([
            watched(&watch_key(&before.key, false, before_at + 1))?,
            watched(&watch_key(&contender.key, false, own_at + 1))?,
        ]))
    }

    /// Watches for a call.
    pub(super) fn tail(&self, call: &Call) -> Result<Tail, Status> {
        let tail = self.watch.tail(&call.on, call.remote);
        tail.map_err(|it| by_way_of_a_client(&self.door.in_etcds_words(&it)))
    }

    /// The revision at which this member still has a contender's key.
    async fn own(
        &self,
        contender: &Contender,
        call: &Call,
        lost: ContestError,
    ) -> Result<i64, Status> {
        let found = self.find(contender.own(), call).await?;
        let at = revision(&found);
        match only(found).is_some_and(|it| contender.is(&it)) {
            true => Ok(at),
            false => Err(lost.into()),
        }
    }

    /// Reads for a call that waits, as fresh as is asked for. It was let in when it began; what it
    /// looks up meanwhile takes turns like any range.
    pub(super) async fn find(
        &self,
        request: RangeRequest,
        call: &Call,
    ) -> Result<RangeResponse, Status> {
        let range = Arc::new(Range::new(&request)?);
        let found = self.keep_asking(|| self.read(&range, call)).await;
        found
            .map(|(found, _)| found)
            .map_err(|it| by_way_of_a_client(&it))
    }

    /// Reads for a call that waits for nothing else, with what the answer takes of the memory for
    /// answers.
    pub(super) async fn find_held(
        &self,
        request: RangeRequest,
        call: &Call,
    ) -> Result<(RangeResponse, Held), Status> {
        let range = Arc::new(Range::new(&request)?);
        let found = self.door.again(|| self.read(&range, call)).await;
        found.map_err(|it| by_way_of_a_client(&it))
    }

    async fn read(&self, range: &Arc<Range>, call: &Call) -> Result<(RangeResponse, Held), Status> {
        let patience = self.door.limits().request_timeout();
        self.door.range(range, &call.caller.source, patience).await
    }

    /// Has this member be as far as that.
    async fn reach(&self, revision: i64, call: &Call) -> Result<(), Status> {
        let serving = self.door.serving();
        let position = Position {
            cluster_id: serving.headers.now().cluster_id.0,
            revision: revision.unsigned_abs(),
        };
        let reached = self.keep_asking(|| serving.reach(position, &call.caller.source));
        reached
            .await
            .map_err(|it| by_way_of_a_client(&self.door.in_etcds_words(&it)))
    }

    /// Has this member be as fresh as a quorum, whoever comes to lead meanwhile.
    async fn freshen(&self) -> Result<(), Status> {
        let serving = self.door.serving();
        let fresh = self.keep_asking(|| serving.freshen(Consistency::Linearizable));
        fresh
            .await
            .map_err(|it| by_way_of_a_client(&self.door.in_etcds_words(&it)))
    }

    /// Asks what a call has to know that waits, until it is answered otherwise than by UNAVAILABLE,
    /// however long that takes: an error would cost a contender its place. The client by which etcd
    /// serves contests rides that out as well.
    async fn keep_asking<T, F>(&self, mut ask: impl FnMut() -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let serving = self.door.serving();
        loop {
            let answered = self.door.again(&mut ask).await;
            let is_over = serving.stop.is_cancelled() || serving.node.status().removed;
            match answered {
                Err(status) if status.code() == Code::Unavailable && !is_over => {}
                answered => return answered,
            }
        }
    }
}

/// What a contender takes whose key is so long.
fn memory_of(key_bytes: usize) -> usize {
    CONTENDER_BYTES + COPIES_OF_KEY * key_bytes
}

/// The contest for a name.
///
/// # Errors
/// The name is too long for a key below it.
pub(super) fn contest(name: &[u8]) -> Result<Contest, Status> {
    // With the slash behind it.
    if name.len() >= KEY_BYTES_MAX {
        let too_large = Status::from(EtcdError::RequestTooLarge);
        return Err(by_way_of_a_client(&too_large));
    }
    Ok(Contest::new(name))
}

/// At which it was read.
pub(super) fn revision(found: &RangeResponse) -> i64 {
    found.header.as_ref().map_or(0, |it| it.revision)
}

/// What a request has watched.
pub(super) fn watched(request: &WatchCreateRequest) -> Result<Watched, Status> {
    let create = Create::new(request).map_err(|it| Status::unknown(it.to_string()))?;
    Ok((create.spec, create.first.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt as _;

    use super::*;

    /// It would hold a lock whose key is about to go.
    #[test]
    fn who_comes_again_waits_for_all_deletions_of_its_key() {
        let (leaving, key) = (Leaving::default(), Bytes::from_static(b"l/1"));
        let at_once = leaving.ended(&key).now_or_never();
        at_once.expect("nothing is deleted");
        let one = leaving.begin(key.clone());
        let other = leaving.clone().begin(key.clone());
        assert!(leaving.has(&key) && !leaving.has(b"l/2"));
        let mut ended = pin!(leaving.ended(&key));
        assert!(ended.as_mut().now_or_never().is_none());
        drop(one);
        assert!(ended.as_mut().now_or_never().is_none(), "another goes on");
        drop(other);
        assert!(ended.as_mut().now_or_never().is_some());
        assert!(leaving.keys().is_empty());
    }

    #[test]
    fn a_name_has_room_for_its_slash_in_a_key() {
        let named = |bytes: usize| contest("n".repeat(bytes).as_bytes());
        assert!(named(KEY_BYTES_MAX - 1).is_ok());
        let refused = named(KEY_BYTES_MAX).unwrap_err();
        assert_eq!(refused.code(), Code::Unknown);
        assert_eq!(refused.message(), EtcdError::RequestTooLarge.to_string());
    }
}
