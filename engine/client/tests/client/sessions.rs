//! Sessions and positions: what the client stamps, repeats and passes on, against a scripted peer.

use std::time::Duration;

use dengine_client::{
    Client, ClientOptions, Consistency, Error, Position, RetryPolicy, SessionOptions,
};
use dengine_fake_kv::{Peer, ScriptStep};
use tonic::Code;

async fn connect(peer: &Peer) -> Client {
    let retry = RetryPolicy {
        delay_min: Duration::from_millis(1),
        ..RetryPolicy::STANDARD
    };
    let options = ClientOptions {
        retry,
        ..ClientOptions::default()
    };
    Client::connect_with([peer.address.clone()], options)
        .await
        .unwrap()
}

async fn with_session(peer: &Peer) -> Client {
    let client = connect(peer).await;
    client
        .with_session(SessionOptions::default())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_write_without_an_answer_is_sent_again_with_its_stamp_and_done_once() {
    for code in [Code::DeadlineExceeded, Code::Cancelled, Code::Internal] {
        let peer = Peer::scripted([ScriptStep::DoneBut(code)]).await;
        let put = with_session(&peer).await.put("a", "1").await.unwrap();
        assert_eq!(put.header.revision, 2, "{code:?}: done once");
        let stamps = peer.stamps();
        assert_eq!(stamps.len(), 2, "{code:?}");
        assert_eq!(stamps[0], stamps[1], "{code:?}");
        assert_eq!((stamps[0].session_id, stamps[0].sequence), (9, 1));
    }
}

#[tokio::test]
async fn answers_are_acknowledged_by_the_next_write() {
    let peer = Peer::start().await;
    let client = with_session(&peer).await;
    for _ in 0..3 {
        client.put("a", "1").await.unwrap();
    }
    let marks: Vec<_> = peer
        .stamps()
        .iter()
        .map(|it| (it.sequence, it.acknowledged))
        .collect();
    assert_eq!(marks, [(1, 0), (2, 1), (3, 2)]);
}

#[tokio::test]
async fn a_lost_session_is_told_and_ends_all_further_writes() {
    let peer = Peer::scripted([ScriptStep::Fail(Code::NotFound)]).await;
    let client = with_session(&peer).await;
    for _ in 0..2 {
        let error = client.put("a", "1").await.unwrap_err();
        assert!(matches!(error, Error::SessionLost { .. }), "{error}");
    }
    assert_eq!(peer.requests(), 1);
}

#[tokio::test]
async fn a_session_lost_after_an_attempt_without_answer_leaves_the_write_unknown() {
    let script = [
        ScriptStep::DoneBut(Code::Internal),
        ScriptStep::Fail(Code::NotFound),
    ];
    let peer = Peer::scripted(script).await;
    let error = with_session(&peer).await.put("a", "1").await.unwrap_err();
    assert!(matches!(error, Error::UnknownOutcome { .. }), "{error}");
    assert_eq!(peer.requests(), 2);
}

#[tokio::test]
async fn a_session_is_kept_alive_until_its_client_is_dropped() {
    let peer = Peer::start().await;
    let options = SessionOptions {
        ttl: Duration::from_millis(30),
    };
    let client = connect(&peer).await.with_session(options).await.unwrap();
    while peer.keep_alives() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(client);
    let after = peer.keep_alives();
    // Ten times as long as the keeper would wait; one more may have been on its way.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(peer.keep_alives() <= after + 1);
}

/// Only the session's own time bounds how long it is waited for a member that says nothing: all
/// others are too long here.
#[tokio::test]
async fn a_session_with_a_short_ttl_outlives_a_silent_member() {
    let (silent, serving) = (Peer::start().await, Peer::start().await);
    let long = Duration::from_secs(600);
    let patient = ClientOptions {
        request_timeout: long,
        retry: RetryPolicy {
            attempt_timeout: long,
            ..RetryPolicy::STANDARD
        },
        ..ClientOptions::default()
    };
    // With one connection the second is asked only when the first does not answer.
    let endpoints = [silent.address.clone(), serving.address.clone()];
    let client = Client::connect_with(endpoints, patient).await.unwrap();
    let ttl = Duration::from_millis(900);
    let options = SessionOptions { ttl };
    let _client = client.with_session(options).await.unwrap();
    silent.falls_silent();
    let kept = async {
        while serving.keep_alives() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let heard = tokio::time::timeout(Duration::from_secs(60), kept).await;
    heard.expect("another member is told that the session is used");
    // Behind the call that opened the session.
    let waited = silent.timeouts_ms().split_off(1);
    assert!(!waited.is_empty(), "it was asked");
    let longest = (ttl / 9).as_millis();
    assert!(
        waited.iter().all(|it| u128::from(*it) <= longest),
        "{waited:?} ms: before the session ends there is time to ask a third member"
    );
}

#[tokio::test]
async fn session_reads_name_what_was_seen() {
    let peer = Peer::start().await;
    let client = connect(&peer).await;
    let read = |client: Client| async move { client.get("a", Consistency::Session).await.unwrap() };
    client.put("a", "1").await.unwrap();
    read(client.clone()).await;
    client.saw(Position {
        cluster_id: 7,
        revision: 40,
    });
    read(client.clone()).await;
    client.get("a", Consistency::Lease).await.unwrap();
    let named: Vec<_> = peer
        .gets()
        .iter()
        .map(|get| get.at_least.map(|it| (it.cluster_id, it.revision)))
        .collect();
    assert_eq!(named, [Some((7, 2)), Some((7, 40)), None]);
}

#[tokio::test]
async fn a_position_can_be_forgotten_for_a_cluster_that_took_the_place_of_another() {
    let peer = Peer::start().await;
    let client = connect(&peer).await;
    client.put("a", "1").await.unwrap();
    client.saw(Position {
        cluster_id: client.position().cluster_id,
        revision: 1_000,
    });
    client.forget_position();
    assert_eq!(client.position(), Position::default());
    client.get("a", Consistency::Session).await.unwrap();
    assert!(client.position().revision < 1_000);
}

/// Each place of the window that becomes free is for one of those that wait, and in their order.
#[tokio::test]
async fn whoever_waits_for_a_place_in_the_window_gets_one_in_turn() {
    let peer = Peer::start().await;
    let client = with_session(&peer).await;
    let puts = (0..1_000).map(|n| {
        let client = client.clone();
        async move { client.put(format!("k{n}"), "v").await.map(drop) }
    });
    let done = futures::future::join_all(puts).await;
    assert!(done.iter().all(Result::is_ok));
}
