//! Contending for a lock or for the lead: entering, waiting for those who came before, and leaving
//! if the caller does not wait that long. What contests are is in [`dengine_etcd::contest`].

mod stakes;

use std::sync::Arc;

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
use tonic::{Code, Request, Status};

use self::stakes::{Stake, Stakes};
use super::door::Door;
use crate::connections::Connection;
use crate::memory;
use crate::node::answers::Held;
use crate::server::places::{self, Place, Places};
use crate::server::serving::{Caller, connection};
use crate::server::watch::{self, Tail};

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
    stakes: Stakes,
    /// Units of memory. Each contender has some from before it has a key until that is deleted,
    /// which goes on when its call has ended.
    memory: Places,
}

/// A caller that contends.
pub(super) struct Claim {
    stake: Stake,
    pub(super) entered: Entered,
}

impl Claim {
    /// The key stays until its owner, or its lease, has it deleted.
    pub(super) fn keep(self) -> Entered {
        self.stake.win(&self.entered.contender);
        self.entered
    }

    /// Has the key deleted even if it was there before, unless another call contends by it.
    pub(super) async fn resign(mut self) {
        self.stake.waits(&self.entered.contender);
        self.stake.left().await;
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
            stakes: Stakes::default(),
            memory: Places::new(units, units),
        }
    }

    /// Room for who wants to contend.
    ///
    /// # Errors
    /// Those who contend take as much memory as they may, or those of its address do.
    pub(super) fn room(&self, contest: &Contest, call: &Call) -> Result<Place, Status> {
        let units = memory_of(contest.key_bytes_max()).div_ceil(UNIT_BYTES);
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
    /// Returns whether it was made.
    ///
    /// A caller that leaves meanwhile must not leave a key behind, so that it is entered to the end
    /// even then.
    pub(super) async fn enter(
        &self,
        method: &'static str,
        contest: &Contest,
        (lease, value): (i64, Bytes),
        (caller, memory): (&Caller, Place),
    ) -> Result<(Claim, bool), Status> {
        let (contests, contest) = (self.clone(), contest.clone());
        let caller = Caller {
            // What it did must be known even if the caller is told that its time is over.
            until: None,
            ..caller.clone()
        };
        let who = (caller.clone(), memory);
        // Here, where nothing is left to do once the caller leaves.
        let stake = Stake::begin(&self.stakes, contest.key(lease), self.door.clone(), who);
        let mut stake = stake.await;
        let enter = async move {
            let enter = contest.enter(lease, value);
            let answer = contests.txn(method, &enter, &caller).await?;
            let (entered, is_new) = contest.entered(lease, answer)?;
            // One that was there may be a lock that is held.
            if is_new {
                stake.waits(&entered.contender);
            }
            Ok::<_, Status>((Claim { stake, entered }, is_new))
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
            claim.stake.left().await;
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
        claim.stake.waits(&contender);
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
    use super::*;

    #[test]
    fn a_name_has_room_for_its_slash_in_a_key() {
        let named = |bytes: usize| contest("n".repeat(bytes).as_bytes());
        assert!(named(KEY_BYTES_MAX - 1).is_ok());
        let refused = named(KEY_BYTES_MAX).unwrap_err();
        assert_eq!(refused.code(), Code::Unknown);
        assert_eq!(refused.message(), EtcdError::RequestTooLarge.to_string());
    }
}
