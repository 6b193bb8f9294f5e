//! Locks and elections of a system, as one caller sees them who waits for nobody.

use std::collections::BTreeMap;

use bytes::Bytes;
use tonic::Code;
use tonic::transport::Channel;

use crate::operation::AS_CAMPAIGNED;
use crate::pb;
use crate::pb::election_client::ElectionClient;
use crate::pb::lock_client::LockClient;
use crate::reply::Reply;

/// Calls them.
pub(crate) struct Contests {
    lock: LockClient<Channel>,
    election: ElectionClient<Channel>,
    /// By key, the revision that its last campaign was answered.
    campaigned: BTreeMap<Bytes, i64>,
}

impl Contests {
    pub(crate) fn over(channel: Channel) -> Self {
        Self {
            lock: LockClient::new(channel.clone()),
            election: ElectionClient::new(channel),
            campaigned: BTreeMap::new(),
        }
    }

    pub(crate) async fn lock(&mut self, request: pb::LockRequest) -> Reply {
        Reply::of(self.lock.lock(request).await, Reply::Lock)
    }

    pub(crate) async fn unlock(&mut self, request: pb::UnlockRequest) -> Reply {
        Reply::of(self.lock.unlock(request).await, Reply::Unlock)
    }

    pub(crate) async fn campaign(&mut self, request: pb::CampaignRequest) -> Reply {
        let reply = Reply::of(self.election.campaign(request).await, Reply::Campaign);
        if let Reply::Campaign(response) = &reply
            && let Some(leader) = &response.leader
        {
            self.campaigned.insert(leader.key.clone(), leader.rev);
        }
        reply
    }

    pub(crate) async fn proclaim(&mut self, mut request: pb::ProclaimRequest) -> Reply {
        self.fill_in(&mut request.leader);
        Reply::of(self.election.proclaim(request).await, Reply::Proclaim)
    }

    pub(crate) async fn resign(&mut self, mut request: pb::ResignRequest) -> Reply {
        self.fill_in(&mut request.leader);
        Reply::of(self.election.resign(request).await, Reply::Resign)
    }

    pub(crate) async fn leader(&mut self, request: pb::LeaderRequest) -> Reply {
        Reply::of(self.election.leader(request).await, Reply::Leader)
    }

    /// What is told first. While nobody leads that would be nothing, so it is not asked for.
    pub(crate) async fn observe(&mut self, request: pb::LeaderRequest) -> Reply {
        let leader = self.leader(request.clone()).await;
        if leader.code() != Code::Ok {
            return leader;
        }
        let first = async {
            let told = self.election.observe(request).await?;
            told.into_inner().message().await
        };
        match first.await {
            Ok(Some(response)) => Reply::Leader(response),
            Ok(None) => Reply::Silence,
            Err(status) => status.into(),
        }
    }

    fn fill_in(&self, leader: &mut Option<pb::LeaderKey>) {
        if let Some(leader) = leader
            && leader.rev == AS_CAMPAIGNED
        {
            leader.rev = self.campaigned.get(&leader.key).copied().unwrap_or(0);
        }
    }
}
