//! A load finds what a server breaks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use dengine_checker::Rule;
use dengine_client::Client;
use dengine_fake_kv::{Peer, ScriptStep};
use dengine_load::{COUNTER, Load, Outcome};
use tonic::Code;

/// Two writers and two readers, until so much is done.
async fn under_load(peer: &Peer, writes: usize, reads: usize) -> (Client, Load) {
    let client = Client::connect([&peer.address]).await.unwrap();
    let clients = || vec![client.clone(), client.clone()];
    let load = Load::start(clients(), clients(), Duration::from_millis(1));
    let done = async {
        while load.acknowledged() < writes || load.reads() < reads {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), done)
        .await
        .unwrap();
    (client, load)
}

async fn finish((client, load): (Client, Load)) -> Outcome {
    load.finish(&client).await.unwrap()
}

#[tokio::test]
async fn a_server_that_keeps_its_promises_passes() {
    let peer = Peer::start().await;
    let outcome = finish(under_load(&peer, 50, 50).await).await;
    let judged = outcome.verdict.unwrap();
    assert!(
        judged.answered >= 100 && judged.undecided == 0,
        "{judged:?}"
    );
    assert!(outcome.acknowledged >= 50 && outcome.lost.is_empty());
    assert_eq!((outcome.unknown, outcome.refused), (0, 0));
    assert_eq!(outcome.first_error, None);
}

#[tokio::test]
async fn a_write_that_is_gone_is_found() {
    let peer = Peer::start().await;
    let load = under_load(&peer, 50, 0).await;
    peer.loses("writer-1/00000003");
    let outcome = finish(load).await;
    assert_eq!(outcome.lost, ["writer-1/00000003"]);
    assert_eq!(outcome.verdict.unwrap_err().rule, Rule::WrongAtRevision);
}

#[tokio::test]
async fn a_write_that_was_done_twice_is_found() {
    let peer = Peer::start().await;
    let load = under_load(&peer, 50, 0).await;
    peer.holds("writer-1/00000003", b"value 3 of 1".to_vec());
    let outcome = finish(load).await;
    assert!(outcome.lost.is_empty());
    assert!(outcome.verdict.is_err());
}

#[tokio::test]
async fn a_counter_that_goes_back_is_found() {
    let peer = Peer::start().await;
    let load = under_load(&peer, 0, 50).await;
    peer.holds(COUNTER, b"0".to_vec());
    let more = load.1.reads() + 50;
    while load.1.reads() < more {
        tokio::task::yield_now().await;
    }
    assert!(finish(load).await.verdict.is_err());
}

#[tokio::test]
async fn errors_are_counted_and_what_no_election_explains_is_told() {
    let peer = Peer::scripted([ScriptStep::Fail(Code::InvalidArgument)]).await;
    let outcome = finish(under_load(&peer, 50, 50).await).await;
    assert_eq!((outcome.unknown, outcome.refused), (0, 1));
    assert!(outcome.unexpected.is_some());
    assert_eq!(outcome.first_error, outcome.unexpected);
    let peer = Peer::start().await;
    let load = under_load(&peer, 50, 50).await;
    peer.always(Code::Aborted);
    let before = load.1.acknowledged();
    while load.1.first_error().is_none() {
        tokio::task::yield_now().await;
    }
    assert!(
        load.1.acknowledged() - before <= 2,
        "nothing is acknowledged any more"
    );
}
