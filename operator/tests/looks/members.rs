//! Members that say of themselves what they are told to, on addresses of this machine.

use dengine_api::v1;
use dengine_api::v1::admin_server::{Admin, AdminServer};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

pub(crate) const CLUSTER_ID: u64 = 7;

/// One member of a cluster of three that are all well; the first leads.
struct Member {
    ordinal: u32,
}

/// Starts three members at 127.0.0.1 to 127.0.0.3, and answers their port.
pub(crate) async fn start() -> u16 {
    for _ in 0..100 {
        if let Some(port) = try_start().await {
            return port;
        }
    }
    panic!("no port is free at three addresses");
}

async fn try_start() -> Option<u16> {
    let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = first.local_addr().unwrap().port();
    let mut listeners = vec![first];
    for host in ["127.0.0.2", "127.0.0.3"] {
        listeners.push(TcpListener::bind((host, port)).await.ok()?);
    }
    for (ordinal, listener) in (0..).zip(listeners) {
        let service = AdminServer::new(Member { ordinal });
        let serving = Server::builder().add_service(service);
        tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
    }
    Some(port)
}

fn folder_id(ordinal: u32) -> String {
    format!("folder-{ordinal}")
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Admin for Member {
    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        Ok(Response::new(v1::StatusResponse {
            lifecycle: v1::Lifecycle::Running.into(),
            folder_id: folder_id(self.ordinal),
            cluster_id: CLUSTER_ID,
            member_id: u64::from(self.ordinal) + 1,
            term: 2,
            version: "0.1.0".to_owned(),
            ready: true,
            ..v1::StatusResponse::default()
        }))
    }

    async fn members(&self, _: Request<v1::MembersRequest>) -> Answer<v1::MembersResponse> {
        let members = (0..3).map(|ordinal| v1::MemberProgress {
            member: Some(v1::Member {
                id: u64::from(ordinal) + 1,
                name: format!("demo-{ordinal}"),
                folder_id: folder_id(ordinal),
                voter: true,
                ..v1::Member::default()
            }),
            leader: ordinal == 0,
            reachable: true,
            ..v1::MemberProgress::default()
        });
        Ok(Response::new(v1::MembersResponse {
            cluster_id: CLUSTER_ID,
            term: 2,
            leader_id: 1,
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
