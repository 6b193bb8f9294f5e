//! etcd's `Election` service.

use std::convert::Infallible;

use bytes::Bytes;
use dengine_etcd::contest::{
    Contender, Contest, ContestError, by_way_of_a_client, only, watch_key,
};
use dengine_etcd::etcdserverpb::{RangeRequest, ResponseHeader};
use dengine_etcd::messages::key_value;
use dengine_etcd::mvccpb::KeyValue;
use dengine_etcd::v3electionpb::election_server::Election;
use dengine_etcd::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use dengine_kv::{Event, EventKind};
use tonic::{Request, Response, Status};

use super::contests::{Call, Claim, Contests, contest, revision, watched};
use super::door::ServedBy;
use crate::server::gate::Kind;
use crate::server::places::Place;
use crate::server::serving::{Caller, counted};
use crate::server::streams::{Beside, streamed};
use crate::server::watch::{Lost, Tail, Teller};

/// Serves elections.
pub(super) struct ElectionService {
    contests: Contests,
}

/// What a call of the service returns.
type Answer<T> = Result<Response<T>, Status>;

impl ElectionService {
    pub(super) fn new(contests: Contests) -> Self {
        Self { contests }
    }
}

impl Contests {
    /// Enters an election, with `value` also if the lease stands already.
    async fn stand(
        &self,
        election: &Contest,
        (lease, value): (i64, Bytes),
        (call, room): (&Call, Place),
    ) -> Result<Claim, Status> {
        let entrant = (lease, value.clone());
        let claim = self.enter("EtcdCampaign", election, entrant, (&call.caller, room));
        let (claim, is_new) = claim.await?;
        if is_new {
            return Ok(claim);
        }
        let contender = &claim.entered.contender;
        // Who cannot be told what it proclaims may lead, and goes on.
        if self.proclaims(contender, &value, call).await? {
            return Ok(claim);
        }
        let proclaimed = self.proclaim(contender, value, &call.caller).await;
        if let Err(error) = proclaimed {
            // So does etcd: what it stands for is not what it wants to.
            claim.resign().await;
            return Err(error);
        }
        Ok(claim)
    }

    /// Whether a contender proclaims this value.
    async fn proclaims(
        &self,
        contender: &Contender,
        value: &Bytes,
        call: &Call,
    ) -> Result<bool, Status> {
        let (found, _held) = self.find_held(contender.proclaimed(), call).await?;
        let own = only(found).filter(|it| contender.is(it));
        Ok(own.is_some_and(|it| it.value == value))
    }

    /// Changes what a contender proclaims; returns of when.
    async fn proclaim(
        &self,
        contender: &Contender,
        value: Bytes,
        caller: &Caller,
    ) -> Result<Option<ResponseHeader>, Status> {
        let proclaim = contender.proclaim(value);
        let answer = self.txn("EtcdProclaim", &proclaim, caller).await?;
        match answer.succeeded {
            true => Ok(answer.header),
            false => Err(ContestError::NotLeader.into()),
        }
    }
}

/// Follows who leads, for a client that is told.
struct Observer {
    contests: Contests,
    election: Contest,
    call: Call,
    tail: Tail,
    /// The tail is that of a leader's key, and not of all.
    has_leader: bool,
    /// Which key with which change the client was told last.
    told: Option<(Bytes, i64)>,
    out: Teller<LeaderResponse>,
}

impl Observer {
    /// Tells until either side ends it; returns why it does.
    async fn run(mut self) -> Status {
        let contests = self.contests.clone();
        let told = async {
            self.look(false).await?;
            loop {
                let events = self.tail.next().await;
                self.see(events).await?;
            }
        };
        let ended: Result<Infallible, Status> = tokio::select! {
            ended = told => ended,
            over = contests.is_over() => Err(over.into()),
        };
        match ended {
            Err(status) => status,
        }
    }

    /// Takes what became of the leader, or that somebody stands.
    async fn see(&mut self, events: Result<Vec<Event>, Lost>) -> Result<(), Status> {
        let Ok(events) = events else {
            return self.look(true).await;
        };
        for event in events {
            if !self.has_leader || event.kind == EventKind::Delete {
                return self.look(true).await;
            }
            let header = self.contests.door.header().at(event.kv.mod_revision);
            self.tell(header, key_value(event.kv)).await?;
        }
        Ok(())
    }

    /// Looks who leads, and follows that one, or all until somebody does. `serializable`: what this
    /// member has will do, which has seen why it looks.
    async fn look(&mut self, serializable: bool) -> Result<(), Status> {
        let first = RangeRequest {
            serializable,
            ..self.election.first()
        };
        let found = self.contests.find(first, &self.call).await?;
        let (from, header) = (revision(&found) + 1, found.header);
        let leader = found.kvs.into_iter().next();
        let watch = match &leader {
            Some(leader) => watch_key(&leader.key, true, from),
            None => self.election.watch_puts(from),
        };
        self.tail.turn_to([watched(&watch)?]);
        self.has_leader = leader.is_some();
        match leader {
            Some(leader) => self.tell(header, leader).await,
            None => Ok(()),
        }
    }

    /// Has the client told, unless that was what it was told last.
    async fn tell(
        &mut self,
        header: Option<ResponseHeader>,
        leader: KeyValue,
    ) -> Result<(), Status> {
        let told = Some((leader.key.clone(), leader.mod_revision));
        if self.told == told {
            return Ok(());
        }
        self.told = told;
        let bytes = size_of::<LeaderResponse>() + leader.key.len() + leader.value.len();
        let kv = Some(leader);
        let response = LeaderResponse { header, kv };
        self.out.tell(response, bytes).await
    }
}

/// Who a leader says that it is.
fn named(leader: Option<LeaderKey>) -> Result<LeaderKey, ContestError> {
    leader.ok_or(ContestError::MissingLeaderKey)
}

/// The same, by a lease.
fn contender(leader: LeaderKey, lease: i64) -> Contender {
    Contender {
        key: leader.key,
        create_revision: leader.rev,
        lease,
    }
}

#[tonic::async_trait]
impl Election for ElectionService {
    async fn campaign(&self, request: Request<CampaignRequest>) -> Answer<CampaignResponse> {
        let contests = &self.contests;
        contests.door.admit(request.metadata(), ServedBy::Voters)?;
        let call = Call::of(&request);
        let CampaignRequest {
            mut name,
            lease,
            value,
        } = request.into_inner();
        let election = contest(&name)?;
        // A part of the message keeps all of it, and this one is there for as long as it waits.
        name = Bytes::copy_from_slice(&name);
        let room = contests.room(&election, &call)?;
        let lease = contests.lease(lease, &call.caller).await?;
        let claim = contests.stand(&election, (lease, value), (&call, room));
        let mut claim = claim.await?;
        let lost = ContestError::NotLeader;
        contests.wait(&election, &mut claim, &call, lost).await?;
        let entered = claim.keep();
        Ok(Response::new(CampaignResponse {
            header: entered.header,
            leader: Some(LeaderKey {
                name,
                key: entered.contender.key,
                rev: entered.contender.create_revision,
                lease,
            }),
        }))
    }

    async fn proclaim(&self, request: Request<ProclaimRequest>) -> Answer<ProclaimResponse> {
        let contests = &self.contests;
        contests.door.admit(request.metadata(), ServedBy::Voters)?;
        let caller = Caller::of(&request);
        let ProclaimRequest { leader, value } = request.into_inner();
        let leader = named(leader)?;
        let lease = contests.lease(leader.lease, &caller).await?;
        let contender = contender(leader, lease);
        let header = contests.proclaim(&contender, value, &caller).await?;
        Ok(Response::new(ProclaimResponse { header }))
    }

    async fn leader(&self, request: Request<LeaderRequest>) -> Answer<LeaderResponse> {
        let contests = &self.contests;
        contests.door.admit(request.metadata(), ServedBy::Voters)?;
        let call = Call::of(&request);
        let election = contest(&request.get_ref().name)?;
        let find = contests.find_held(election.first(), &call);
        let gate = &contests.door.serving().gate;
        let passed = gate.pass("EtcdLeader", Kind::Read, &call.caller.source, find);
        let found = passed.await;
        let found = found.map_err(|it| by_way_of_a_client(&contests.door.in_etcds_words(&it)))?;
        let (found, held) = found;
        let header = found.header;
        let leader = only(found).ok_or(ContestError::NoLeader)?;
        let kv = Some(leader);
        Ok(counted((LeaderResponse { header, kv }, Some(held))))
    }

    type ObserveStream = Beside<LeaderResponse>;

    async fn observe(&self, request: Request<LeaderRequest>) -> Answer<Self::ObserveStream> {
        let contests = &self.contests;
        contests.door.admit(request.metadata(), ServedBy::Voters)?;
        let call = Call::of(&request);
        let election = contest(&request.get_ref().name)?;
        let tail = contests.tail(&call)?;
        let counted_by = tail.counted_by();
        let (out, told) = tail.teller();
        let observer = Observer {
            tail,
            contests: contests.clone(),
            election,
            call,
            has_leader: false,
            told: None,
            out,
        };
        let on = observer.call.on();
        Ok(streamed(told.until(&on, observer.run()), counted_by))
    }

    /// Also of one that leads no more: there is nothing left to do.
    async fn resign(&self, request: Request<ResignRequest>) -> Answer<ResignResponse> {
        let contests = &self.contests;
        contests.door.admit(request.metadata(), ServedBy::Voters)?;
        let caller = Caller::of(&request);
        let leader = named(request.into_inner().leader)?;
        let lease = leader.lease;
        let leave = contender(leader, lease).leave();
        let answer = contests.txn("EtcdResign", &leave, &caller).await?;
        Ok(Response::new(ResignResponse {
            header: answer.header,
        }))
    }
}
