//! The admin client against a scripted peer on loopback.

use std::time::Duration;

use dengine_client::{AdminClient, AdminOptions, Error};
use dengine_fake_kv::{Peer, ScriptStep};
use dengine_protocol::v1::{AddLearnerRequest, JoinRequest};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic::service::Routes;
use tonic::transport::Server;

async fn connect(peer: &Peer) -> AdminClient {
    AdminClient::connect(&peer.address).await.unwrap()
}

#[tokio::test]
async fn every_call_reaches_the_member() {
    let peer = Peer::start().await;
    let admin = connect(&peer).await;
    let folder_id = admin.status().await.unwrap().folder_id;
    assert_eq!(
        admin.bootstrap(7, folder_id).await.unwrap().member,
        Some(peer.member())
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
    let (elsewhere, clients) = (Peer::start().await, Peer::start().await);
    clients.has_its_admin_port_at(&elsewhere.address);
    let admin = connect(&clients).await;
    assert_eq!(admin.hash().await.unwrap().applied_index, 6);
    assert!(!admin.status().await.unwrap().admin_address.is_empty());
}

#[tokio::test]
async fn refusals_keep_the_servers_words() {
    let peer = Peer::start().await;
    let admin = connect(&peer).await;
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
    peer.always(Code::Unavailable);
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
    let peer = Peer::scripted([ScriptStep::Hang]).await;
    let admin = AdminClient::connect_with(&peer.address, options)
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
