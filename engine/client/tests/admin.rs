//! The admin client against a scripted Admin service on loopback.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use dengine_client::{AdminClient, AdminOptions, Error};
use dengine_protocol::v1::admin_server::{Admin, AdminServer};
use dengine_protocol::v1::{
    AddLearnerRequest, AddLearnerResponse, BootstrapRequest, BootstrapResponse, HashRequest,
    HashResponse, JoinRequest, JoinResponse, Member, MembersRequest, MembersResponse,
    PromoteRequest, PromoteResponse, RemoveRequest, RemoveResponse, SnapshotRequest,
    SnapshotResponse, StatusRequest, StatusResponse, TransferLeaderRequest, TransferLeaderResponse,
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

/// Knows one folder id, refuses promotions, and never finishes a transfer of leadership.
#[derive(Default)]
struct Peer {
    /// Where it says that the admin port is. If anywhere, hashes are not served here.
    elsewhere: String,
}

fn member() -> Member {
    Member {
        id: 1,
        name: "m-0".to_owned(),
        voter: true,
        ..Member::default()
    }
}

#[tonic::async_trait]
impl Admin for Peer {
    async fn bootstrap(
        &self,
        request: Request<BootstrapRequest>,
    ) -> Result<Response<BootstrapResponse>, Status> {
        match request.get_ref().folder_id.as_str() {
            "folder" => Ok(Response::new(BootstrapResponse {
                member: Some(member()),
            })),
            other => Err(Status::failed_precondition(format!(
                "the folder is not {other}"
            ))),
        }
    }

    async fn join(&self, _: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        Ok(Response::new(JoinResponse {}))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let folder_id = "folder".to_owned();
        Ok(Response::new(StatusResponse {
            folder_id,
            admin_address: self.elsewhere.clone(),
            ..StatusResponse::default()
        }))
    }

    async fn members(
        &self,
        _: Request<MembersRequest>,
    ) -> Result<Response<MembersResponse>, Status> {
        Err(Status::unavailable("no leader"))
    }

    async fn add_learner(
        &self,
        _: Request<AddLearnerRequest>,
    ) -> Result<Response<AddLearnerResponse>, Status> {
        Ok(Response::new(AddLearnerResponse {
            cluster_id: 7,
            member: Some(member()),
            members: vec![member()],
        }))
    }

    async fn promote(
        &self,
        _: Request<PromoteRequest>,
    ) -> Result<Response<PromoteResponse>, Status> {
        Err(Status::failed_precondition("the learner has not caught up"))
    }

    async fn remove(&self, _: Request<RemoveRequest>) -> Result<Response<RemoveResponse>, Status> {
        Ok(Response::new(RemoveResponse {
            members: Vec::new(),
        }))
    }

    async fn transfer_leader(
        &self,
        _: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        std::future::pending().await
    }

    async fn snapshot(
        &self,
        _: Request<SnapshotRequest>,
    ) -> Result<Response<SnapshotResponse>, Status> {
        Ok(Response::new(SnapshotResponse {
            index: 5,
            ..SnapshotResponse::default()
        }))
    }

    async fn sessions(
        &self,
        _: Request<dengine_protocol::v1::SessionsRequest>,
    ) -> Result<Response<dengine_protocol::v1::SessionsResponse>, Status> {
        Err(Status::unimplemented("sessions"))
    }

    async fn close_session(
        &self,
        _: Request<dengine_protocol::v1::CloseSessionRequest>,
    ) -> Result<Response<dengine_protocol::v1::CloseSessionResponse>, Status> {
        Err(Status::unimplemented("close_session"))
    }

    async fn hash(&self, _: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        if !self.elsewhere.is_empty() {
            return Err(Status::permission_denied("this is the port of clients"));
        }
        Ok(Response::new(HashResponse {
            applied_index: 6,
            ..HashResponse::default()
        }))
    }
}

async fn start() -> String {
    serve(Peer::default()).await
}

async fn serve(peer: Peer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let incoming = TcpListenerStream::new(listener);
    tokio::spawn(
        Server::builder()
            .add_service(AdminServer::new(peer))
            .serve_with_incoming(incoming),
    );
    address
}

#[tokio::test]
async fn every_call_reaches_the_member() {
    let admin = AdminClient::connect(&start().await).await.unwrap();
    let folder_id = admin.status().await.unwrap().folder_id;
    assert_eq!(
        admin.bootstrap(7, folder_id).await.unwrap().member,
        Some(member())
    );
    admin.join(JoinRequest::default()).await.unwrap();
    let added = admin
        .add_learner(AddLearnerRequest::default())
        .await
        .unwrap();
    assert_eq!(added.cluster_id, 7);
    admin.remove(1).await.unwrap();
    assert_eq!(admin.snapshot().await.unwrap().index, 5);
    assert_eq!(admin.hash().await.unwrap().applied_index, 6);
}

#[tokio::test]
async fn from_the_port_of_clients_it_finds_the_admin_port() {
    let elsewhere = start().await;
    let clients = serve(Peer { elsewhere }).await;
    let admin = AdminClient::connect(&clients).await.unwrap();
    assert_eq!(admin.hash().await.unwrap().applied_index, 6);
    assert!(!admin.status().await.unwrap().admin_address.is_empty());
}

#[tokio::test]
async fn refusals_keep_the_servers_words() {
    let admin = AdminClient::connect(&start().await).await.unwrap();
    let code = Code::FailedPrecondition;
    let message = "the learner has not caught up".to_owned();
    assert_eq!(
        admin.promote(2).await.unwrap_err(),
        Error::Refused { code, message }
    );
    let wiped = admin.bootstrap(7, "other").await.unwrap_err();
    assert!(
        wiped.to_string().contains("the folder is not other"),
        "{wiped}"
    );
    assert!(admin.members().await.unwrap_err().retryable());
}

/// All that was said was a code.
#[tokio::test]
async fn where_there_is_no_admin_it_says_which_port_to_name() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let of_another_port = Server::builder().add_routes(Routes::default());
    tokio::spawn(of_another_port.serve_with_incoming(TcpListenerStream::new(listener)));
    let admin = AdminClient::connect(&address).await.unwrap();
    for error in [
        admin.status().await.unwrap_err(),
        admin.members().await.unwrap_err(),
        admin.hash().await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.to_string().contains("--listen-admin"), "{error}");
    }
}

#[tokio::test]
async fn a_change_without_an_answer_is_of_unknown_outcome() {
    let request_timeout = Duration::from_millis(100);
    let options = AdminOptions {
        request_timeout,
        ..AdminOptions::default()
    };
    let admin = AdminClient::connect_with(&start().await, options)
        .await
        .unwrap();
    let error = admin.transfer_leader(2).await.unwrap_err();
    assert!(matches!(error, Error::UnknownOutcome { .. }), "{error}");
}

#[tokio::test]
async fn an_address_without_a_server_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = AdminClient::connect(&address).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
}
