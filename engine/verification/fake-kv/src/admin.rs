//! A cluster of one, as `Admin` shows it.

use dengine_protocol::v1::admin_server::Admin;
use dengine_protocol::v1::{
    AddLearnerRequest, AddLearnerResponse, BootstrapRequest, BootstrapResponse,
    CloseSessionRequest, CloseSessionResponse, HashRequest, HashResponse, JoinRequest,
    JoinResponse, Member, MemberProgress, MembersRequest, MembersResponse, PromoteRequest,
    PromoteResponse, RemoveRequest, RemoveResponse, SessionsRequest, SessionsResponse,
    SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse, TransferLeaderRequest,
    TransferLeaderResponse,
};
use tonic::{Request, Response, Status};

use crate::Peer;

impl Peer {
    fn member(&self) -> Member {
        Member {
            id: 1,
            name: "demo-0".to_owned(),
            client_address: self.address.clone(),
            voter: true,
            ..Member::default()
        }
    }
}

#[tonic::async_trait]
impl Admin for Peer {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        Ok(Response::new(StatusResponse {
            name: "demo-0".to_owned(),
            cluster_id: 7,
            ready: true,
            version: "9.9.9".to_owned(),
            durability: "fsync".to_owned(),
            free_bytes: self.load.free_bytes,
            ..StatusResponse::default()
        }))
    }

    async fn members(
        &self,
        _: Request<MembersRequest>,
    ) -> Result<Response<MembersResponse>, Status> {
        let term = self.state.lock().unwrap().term;
        let member = Some(self.member());
        let mut members = vec![MemberProgress {
            member,
            leader: true,
            reachable: true,
            lag_entries: 0,
        }];
        members.extend(self.load.beside.iter().map(|address| MemberProgress {
            member: Some(Member {
                id: 2,
                name: "demo-1".to_owned(),
                client_address: address.clone(),
                ..self.member()
            }),
            leader: false,
            reachable: true,
            lag_entries: 0,
        }));
        Ok(Response::new(MembersResponse {
            cluster_id: 7,
            term,
            leader_id: 1,
            members,
        }))
    }

    async fn snapshot(
        &self,
        _: Request<SnapshotRequest>,
    ) -> Result<Response<SnapshotResponse>, Status> {
        Err(Status::unimplemented("snapshot"))
    }

    async fn sessions(
        &self,
        _: Request<SessionsRequest>,
    ) -> Result<Response<SessionsResponse>, Status> {
        Err(Status::unimplemented("sessions"))
    }

    async fn close_session(
        &self,
        _: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        Err(Status::unimplemented("close_session"))
    }

    async fn hash(&self, _: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        Err(Status::unimplemented("hash"))
    }

    async fn bootstrap(
        &self,
        _: Request<BootstrapRequest>,
    ) -> Result<Response<BootstrapResponse>, Status> {
        Err(Status::unimplemented("bootstrap"))
    }

    async fn join(&self, _: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        Err(Status::unimplemented("join"))
    }

    async fn add_learner(
        &self,
        _: Request<AddLearnerRequest>,
    ) -> Result<Response<AddLearnerResponse>, Status> {
        Err(Status::unimplemented("add learner"))
    }

    async fn promote(
        &self,
        _: Request<PromoteRequest>,
    ) -> Result<Response<PromoteResponse>, Status> {
        Err(Status::unimplemented("promote"))
    }

    async fn remove(&self, _: Request<RemoveRequest>) -> Result<Response<RemoveResponse>, Status> {
        Err(Status::unimplemented("remove"))
    }

    async fn transfer_leader(
        &self,
        _: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        Err(Status::unimplemented("transfer leader"))
    }
}
