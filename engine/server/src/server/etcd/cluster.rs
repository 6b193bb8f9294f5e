//! etcd's `Cluster` service. Adding a member needs the folder that it has made, which etcd's API
//! does not name: members are added with `dengine admin` or by the operator.

use std::sync::Arc;

use dengine_etcd::EtcdError;
use dengine_etcd::cluster::{member_list, members};
use dengine_etcd::etcdserverpb::cluster_server::Cluster;
use dengine_etcd::etcdserverpb::{
    self, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
use dengine_kv::{Member, Membership};
use dengine_protocol::v1::admin_server::Admin as _;
use dengine_protocol::v1::{Consistency, PromoteRequest, RemoveRequest, TransferLeaderRequest};
use dengine_types::MemberId;
use tokio::time::{Instant, sleep};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};

use super::door::{ASK_AGAIN, Door, ServedBy};
use crate::server::admin::AdminService;

/// Serves the list of members.
pub(super) struct ClusterService {
    door: Door,
    /// Carries out what changes the members, here or at the leader.
    admin: AdminService,
}

/// What a call of the service returns.
type Answer<T> = Result<Response<T>, Status>;

impl ClusterService {
    pub(super) fn new(door: Door, admin: AdminService) -> Self {
        Self { door, admin }
    }

    /// The members as a quorum has them.
    async fn members(&self, metadata: &MetadataMap) -> Result<Arc<Membership>, Status> {
        self.door.admit(metadata, ServedBy::Voters)?;
        let fresh = self.door.serving().freshen(Consistency::Linearizable).await;
        fresh.map_err(|it| self.door.in_etcds_words(&it))?;
        self.members_here()
    }

    /// The members as this one has them.
    fn members_here(&self) -> Result<Arc<Membership>, Status> {
        let node = &self.door.serving().node;
        Ok(node.membership().map_err(|_| EtcdError::Stopped)?)
    }

    /// etcd removes a member that leads as any other; here another one has to lead by then. Says
    /// whether one has just come to. If none takes the lead, the removal is refused.
    async fn move_lead_from(&self, id: MemberId, members: &Membership) -> bool {
        let leader = self.door.serving().node.leader();
        if leader.is_none_or(|it| it.id != id) {
            return false;
        }
        for voter in members.voters().filter(|it| it.id != id) {
            let transfer = TransferLeaderRequest {
                member_id: voter.id.0,
            };
            match self.admin.transfer_leader(Request::new(transfer)).await {
                Ok(_) => return true,
                Err(status) => {
                    tracing::debug!(%status, member = %voter.id, "does not take the lead");
                }
            }
        }
        false
    }

    /// Has the leader remove a member. One that leads newly has heard of no other yet, and refuses
    /// for a moment what could leave it alone.
    async fn remove(&self, member_id: u64, leads_newly: bool) -> Result<(), Status> {
        let until = Instant::now() + self.door.limits().request_timeout();
        let may_change = |status: &Status| {
            let code = status.code();
            matches!(code, Code::FailedPrecondition | Code::Unavailable)
        };
        loop {
            let remove = Request::new(RemoveRequest { member_id });
            match self.admin.remove(remove).await {
                Ok(_) => return Ok(()),
                Err(status) if leads_newly && may_change(&status) && Instant::now() < until => {
                    sleep(ASK_AGAIN).await;
                }
                Err(status) => {
                    return Err(unchanged(&status, EtcdError::MemberNotEnoughStarted));
                }
            }
        }
    }

    fn listed(&self, membership: &Membership) -> Vec<etcdserverpb::Member> {
        members(membership, self.client_urls())
    }

    /// Where another member serves clients of etcd is not known here: at the host where it serves
    /// our own, and at the port of this one.
    fn client_urls(&self) -> impl Fn(&Member) -> Vec<String> + use<> {
        let config = self.door.serving().node.config();
        let port = config.etcd_address().map_or(0, |it| it.port());
        move |member| client_urls(&member.client_address, port)
    }
}

fn client_urls(client_address: &str, port: u16) -> Vec<String> {
    let host = client_address.rsplit_once(':').map(|it| it.0);
    host.map(|host| format!("http://{host}:{port}"))
        .into_iter()
        .collect()
}

/// The members once this one is removed.
fn without(members: &Membership, removed: MemberId) -> Arc<Membership> {
    let mut left = members.clone();
    left.members.remove(&removed);
    Arc::new(left)
}

/// Why members were not changed, in etcd's words: `refused`, if the leader did not agree.
fn unchanged(status: &Status, refused: EtcdError) -> Status {
    match status.code() {
        Code::FailedPrecondition => refused.into(),
        _ => EtcdError::Timeout.into(),
    }
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_add(&self, _: Request<MemberAddRequest>) -> Answer<MemberAddResponse> {
        Err(EtcdError::NotServed(
            "MemberAdd, which does not name the folder of the new member: `dengine admin` adds it",
        )
        .into())
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Answer<MemberRemoveResponse> {
        self.door.admit_change_of_members()?;
        let members = self.members(request.metadata()).await?;
        let member_id = request.get_ref().id;
        if !members.members.contains_key(&MemberId(member_id)) {
            return Err(EtcdError::MemberNotFound.into());
        }
        let leads_newly = self.move_lead_from(MemberId(member_id), &members).await;
        self.remove(member_id, leads_newly).await?;
        let own = self.door.serving().node.status().member_id;
        let members = match MemberId(member_id) == own {
            // It is asked by nobody any more, and knows no quorum.
            true => without(&members, own),
            false => self.members(request.metadata()).await?,
        };
        Ok(Response::new(MemberRemoveResponse {
            header: self.door.header().without_revision(),
            members: self.listed(&members),
        }))
    }

    async fn member_update(&self, _: Request<MemberUpdateRequest>) -> Answer<MemberUpdateResponse> {
        Err(EtcdError::NotServed("MemberUpdate: a member tells its own addresses").into())
    }

    async fn member_list(&self, request: Request<MemberListRequest>) -> Answer<MemberListResponse> {
        let members = match request.get_ref().linearizable {
            true => self.members(request.metadata()).await?,
            false => {
                self.door.admit(request.metadata(), ServedBy::All)?;
                self.members_here()?
            }
        };
        let header = self.door.header();
        let urls = self.client_urls();
        Ok(Response::new(member_list(header, &members, urls)))
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Answer<MemberPromoteResponse> {
        self.door.admit_change_of_members()?;
        let members = self.members(request.metadata()).await?;
        let member_id = request.get_ref().id;
        match members.members.get(&MemberId(member_id)) {
            None => return Err(EtcdError::MemberNotFound.into()),
            Some(member) if member.voter => return Err(EtcdError::MemberNotLearner.into()),
            Some(_) => {}
        }
        let promote = Request::new(PromoteRequest { member_id });
        let promoted = self.admin.promote(promote).await;
        promoted.map_err(|it| unchanged(&it, EtcdError::LearnerNotReady))?;
        let members = self.members(request.metadata()).await?;
        Ok(Response::new(MemberPromoteResponse {
            header: self.door.header().without_revision(),
            members: self.listed(&members),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// clientv3 goes where the list of members says.
    #[test]
    fn members_are_where_clients_of_etcd_are_served() {
        let check = |address: &str, expect: &[&str]| {
            assert_eq!(client_urls(address, 2379), expect);
        };
        check("a.example:4100", &["http://a.example:2379"]);
        check("[fd00::1]:4100", &["http://[fd00::1]:2379"]);
        check("", &[]);
    }
}
