//! Fake members: they answer `Admin` like those of a healthy, idle cluster. For tests of what
//! observes members, where the members themselves are not under test.

use dengine_protocol::v1;
use dengine_protocol::v1::admin_server::{Admin, AdminServer};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// A cluster of voters; the first one leads.
#[derive(Clone, Debug)]
pub struct FakeCluster {
    cluster_id: u64,
    names: Vec<String>,
}

impl FakeCluster {
    /// A cluster with members of these names.
    pub fn new(cluster_id: u64, names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter().collect();
        Self { cluster_id, names }
    }

    /// Serves in the background, as the member at this index of the names.
    pub fn serve(&self, place: usize, listener: TcpListener) {
        let service = AdminServer::new(FakeMember {
            cluster: self.clone(),
            place,
        });
        let serving = Server::builder().add_service(service);
        tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));
    }

    fn folder_id(&self, place: usize) -> String {
        format!("folder-{}-{place}", self.cluster_id)
    }
}

fn member_id(place: usize) -> u64 {
    place as u64 + 1
}

struct FakeMember {
    cluster: FakeCluster,
    place: usize,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Admin for FakeMember {
    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        Ok(Response::new(v1::StatusResponse {
            lifecycle: v1::Lifecycle::Running.into(),
            folder_id: self.cluster.folder_id(self.place),
            cluster_id: self.cluster.cluster_id,
            member_id: member_id(self.place),
            term: 2,
            version: "0.1.0".to_owned(),
            ready: true,
            ..v1::StatusResponse::default()
        }))
    }

    async fn members(&self, _: Request<v1::MembersRequest>) -> Answer<v1::MembersResponse> {
        let names = self.cluster.names.iter().enumerate();
        let members = names.map(|(place, name)| v1::MemberProgress {
            member: Some(v1::Member {
                id: member_id(place),
                name: name.clone(),
                folder_id: self.cluster.folder_id(place),
                voter: true,
                ..v1::Member::default()
            }),
            leader: place == 0,
            reachable: true,
            ..v1::MemberProgress::default()
        });
        Ok(Response::new(v1::MembersResponse {
            cluster_id: self.cluster.cluster_id,
            term: 2,
            leader_id: member_id(0),
            members: members.collect(),
        }))
    }

    async fn bootstrap(&self, _: Request<v1::BootstrapRequest>) -> Answer<v1::BootstrapResponse> {
        Err(Status::unimplemented("bootstrap"))
    }
    async fn join(&self, _: Request<v1::JoinRequest>) -> Answer<v1::JoinResponse> {
        Err(Status::unimplemented("join"))
    }
    async fn add_learner(
        &self,
        _: Request<v1::AddLearnerRequest>,
    ) -> Answer<v1::AddLearnerResponse> {
        Err(Status::unimplemented("add_learner"))
    }
    async fn promote(&self, _: Request<v1::PromoteRequest>) -> Answer<v1::PromoteResponse> {
        Err(Status::unimplemented("promote"))
    }
    async fn remove(&self, _: Request<v1::RemoveRequest>) -> Answer<v1::RemoveResponse> {
        Err(Status::unimplemented("remove"))
    }
    async fn transfer_leader(
        &self,
        _: Request<v1::TransferLeaderRequest>,
    ) -> Answer<v1::TransferLeaderResponse> {
        Err(Status::unimplemented("transfer_leader"))
    }
    async fn snapshot(&self, _: Request<v1::SnapshotRequest>) -> Answer<v1::SnapshotResponse> {
        Err(Status::unimplemented("snapshot"))
    }
    async fn sessions(&self, _: Request<v1::SessionsRequest>) -> Answer<v1::SessionsResponse> {
        Err(Status::unimplemented("sessions"))
    }
    async fn close_session(
        &self,
        _: Request<v1::CloseSessionRequest>,
    ) -> Answer<v1::CloseSessionResponse> {
        Err(Status::unimplemented("close_session"))
    }
    async fn hash(&self, _: Request<v1::HashRequest>) -> Answer<v1::HashResponse> {
        Err(Status::unimplemented("hash"))
    }
}
