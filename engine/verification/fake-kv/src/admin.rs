//! A cluster of voters, as `Admin` shows it at one of them.

use dengine_protocol::v1::admin_server::Admin;
use dengine_protocol::v1::{
    AddLearnerRequest, AddLearnerResponse, BootstrapRequest, BootstrapResponse,
    CloseSessionRequest, CloseSessionResponse, HashRequest, HashResponse, JoinRequest,
    JoinResponse, Lifecycle, Member, MemberProgress, MembersRequest, MembersResponse,
    PromoteRequest, PromoteResponse, RemoveRequest, RemoveResponse, SessionsRequest,
    SessionsResponse, SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
    TransferLeaderRequest, TransferLeaderResponse,
};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

use crate::{Load, Peer};

type Answer<T> = Result<Response<T>, Status>;

/// A healthy, idle cluster of voters; the first one leads.
#[derive(Clone, Debug)]
pub struct FakeCluster {
    pub(crate) id: u64,
    names: Vec<String>,
    version: &'static str,
}

/// What clients are tested with: one member, of a version that no release has.
impl Default for FakeCluster {
    fn default() -> Self {
        Self {
            version: "9.9.9",
            ..Self::new(7, ["demo-0".to_owned()])
        }
    }
}

impl FakeCluster {
    /// A cluster with members of these names.
    pub fn new(id: u64, names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter().collect();
        let version = "0.1.0";
        Self { id, names, version }
    }

    /// Serves in the background, as the member at this index of the names.
    pub fn serve(&self, place: usize, listener: TcpListener) -> Peer {
        Peer::serving(listener, [], Load::default(), (self.clone(), place))
    }
}

impl Peer {
    /// The member that this is.
    pub fn member(&self) -> Member {
        Member {
            client_address: self.address.clone(),
            ..self.member_at(self.place)
        }
    }

    fn member_at(&self, place: usize) -> Member {
        Member {
            id: place as u64 + 1,
            name: self.cluster.names[place].clone(),
            folder_id: format!("folder-{}-{place}", self.cluster.id),
            voter: true,
            ..Member::default()
        }
    }

    /// Is a client port from now on, of a member whose admin port is there.
    pub fn has_its_admin_port_at(&self, address: &str) {
        address.clone_into(&mut self.state.lock().unwrap().admin_port);
    }

    fn is_no_client_port(&self) -> Result<(), Status> {
        match self.state.lock().unwrap().admin_port.as_str() {
            "" => Ok(()),
            _ => Err(Status::permission_denied("this is the port of clients")),
        }
    }

    /// What becomes of a request to change something.
    async fn change(&self) -> Result<(), Status> {
        self.is_no_client_port()?;
        self.step().await?.map_or(Ok(()), Err)
    }
}

#[tonic::async_trait]
impl Admin for Peer {
    async fn status(&self, _: Request<StatusRequest>) -> Answer<StatusResponse> {
        let member = self.member();
        let state = self.state.lock().unwrap();
        Ok(Response::new(StatusResponse {
            name: member.name,
            lifecycle: Lifecycle::Running.into(),
            folder_id: member.folder_id,
            cluster_id: state.cluster_id,
            member_id: member.id,
            term: state.term,
            version: self.cluster.version.to_owned(),
            ready: true,
            durability: "fsync".to_owned(),
            free_bytes: self.load.free_bytes,
            admin_address: state.admin_port.clone(),
            ..StatusResponse::default()
        }))
    }

    async fn members(&self, _: Request<MembersRequest>) -> Answer<MembersResponse> {
        let own = self.place;
        let places = 0..self.cluster.names.len();
        let mut members: Vec<_> = places
            .map(|place| MemberProgress {
                member: Some(match place == own {
                    true => self.member(),
                    false => self.member_at(place),
                }),
                leader: place == 0,
                reachable: true,
                lag_entries: 0,
            })
            .collect();
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
        let state = self.state.lock().unwrap();
        if let Some(code) = state.always {
            return Err(Status::new(code, "always"));
        }
        Ok(Response::new(MembersResponse {
            cluster_id: state.cluster_id,
            term: state.term,
            leader_id: 1,
            members,
        }))
    }

    async fn snapshot(&self, _: Request<SnapshotRequest>) -> Answer<SnapshotResponse> {
        self.is_no_client_port()?;
        Ok(Response::new(SnapshotResponse {
            index: 5,
            ..SnapshotResponse::default()
        }))
    }

    async fn hash(&self, _: Request<HashRequest>) -> Answer<HashResponse> {
        self.is_no_client_port()?;
        Ok(Response::new(HashResponse {
            applied_index: 6,
            ..HashResponse::default()
        }))
    }

    async fn bootstrap(&self, request: Request<BootstrapRequest>) -> Answer<BootstrapResponse> {
        self.change().await?;
        let member = self.member();
        match request.into_inner().folder_id {
            named if named == member.folder_id => Ok(Response::new(BootstrapResponse {
                member: Some(member),
                ..BootstrapResponse::default()
            })),
            other => Err(Status::failed_precondition(format!(
                "the folder is not {other}"
            ))),
        }
    }

    async fn join(&self, _: Request<JoinRequest>) -> Answer<JoinResponse> {
        self.change().await?;
        Ok(Response::new(JoinResponse {}))
    }

    async fn add_learner(&self, _: Request<AddLearnerRequest>) -> Answer<AddLearnerResponse> {
        self.change().await?;
        Ok(Response::new(AddLearnerResponse {
            cluster_id: self.state.lock().unwrap().cluster_id,
            member: Some(self.member()),
            members: vec![self.member()],
        }))
    }

    async fn promote(&self, _: Request<PromoteRequest>) -> Answer<PromoteResponse> {
        self.change().await?;
        Err(Status::failed_precondition("the learner has not caught up"))
    }

    async fn remove(&self, _: Request<RemoveRequest>) -> Answer<RemoveResponse> {
        self.change().await?;
        Ok(Response::new(RemoveResponse {
            members: Vec::new(),
        }))
    }

    async fn transfer_leader(
        &self,
        _: Request<TransferLeaderRequest>,
    ) -> Answer<TransferLeaderResponse> {
        self.change().await?;
        Err(Status::unimplemented("no test needs it"))
    }

    async fn sessions(&self, _: Request<SessionsRequest>) -> Answer<SessionsResponse> {
        Err(Status::unimplemented("no test needs it"))
    }

    async fn close_session(&self, _: Request<CloseSessionRequest>) -> Answer<CloseSessionResponse> {
        Err(Status::unimplemented("no test needs it"))
    }
}
