//! What the client sends, repeats and returns, against a scripted peer on loopback.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::time::{Duration, Instant};

use dengine_client::{
    Client, ClientOptions, Consistency, Error, Expected, KeyRange, RangeQuery, RetryPolicy,
};
use support::{Peer, Step};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
};
use tonic::Code;

fn options() -> ClientOptions {
    let delay_min = Duration::from_millis(1);
    ClientOptions {
        retry: RetryPolicy {
            delay_min,
            ..RetryPolicy::STANDARD
        },
        ..ClientOptions::default()
    }
}

async fn connect(peers: &[&Peer]) -> Client {
    Client::connect_with(peers.iter().map(|peer| peer.address.clone()), options())
        .await
        .unwrap()
}

/// An address that nothing listens on.
async fn closed_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

#[tokio::test]
async fn results_are_typed() {
    let peer = Peer::start().await;
    let client = connect(&[&peer]).await;

    let put = client.put("a", "1").await.unwrap();
    assert_eq!(
        (put.header.cluster_id, put.header.revision, put.header.term),
        (7, 2, 2)
    );
    let again = client.put_returning_previous("a", "2").await.unwrap();
    assert_eq!(again.previous.unwrap().value, "1");

    let kv = client
        .get("a", Consistency::Linearizable)
        .await
        .unwrap()
        .kv
        .unwrap();
    assert_eq!(
        (kv.value.as_ref(), kv.create_revision, kv.mod_revision),
        (&b"2"[..], 2, 3)
    );
    assert_eq!(kv.version, 2);
    assert_eq!(
        client.get("b", Consistency::Eventual).await.unwrap().kv,
        None
    );

    let swap = client
        .compare_and_swap("a", Expected::Absent, "x")
        .await
        .unwrap();
    assert!(!swap.succeeded);
    assert_eq!(swap.previous.unwrap().mod_revision, 3);
    assert!(
        client
            .compare_and_swap("b", Expected::Absent, "3")
            .await
            .unwrap()
            .succeeded,
        "b did not exist"
    );

    let some = client
        .range(RangeQuery::new(KeyRange::all()).limit(1))
        .await
        .unwrap();
    assert_eq!((some.kvs.len(), some.more, some.count), (1, true, 2));
    assert_eq!(client.delete("a").await.unwrap().deleted, 1);
    assert_eq!(
        client
            .delete_range(KeyRange::prefix(""))
            .await
            .unwrap()
            .deleted,
        1
    );
}

#[tokio::test]
async fn what_was_not_served_is_sent_again() {
    let script = [
        Step::Fail(Code::Unavailable),
        Step::Fail(Code::ResourceExhausted),
    ];
    let peer = Peer::scripted(script).await;
    connect(&[&peer]).await.put("a", "1").await.unwrap();
    assert_eq!(peer.requests(), 3);
}

#[tokio::test]
async fn a_write_of_unknown_outcome_is_never_sent_again() {
    for code in [
        Code::DeadlineExceeded,
        Code::Cancelled,
        Code::Internal,
        Code::Aborted,
    ] {
        let peer = Peer::scripted([Step::Fail(code)]).await;
        let error = connect(&[&peer]).await.put("a", "1").await.unwrap_err();
        assert!(
            matches!(error, Error::UnknownOutcome { .. }),
            "{code:?}: {error}"
        );
        assert_eq!(peer.requests(), 1, "{code:?}");
    }
}

#[tokio::test]
async fn errors_that_no_repetition_mends_are_returned_at_once() {
    for code in [
        Code::InvalidArgument,
        Code::OutOfRange,
        Code::FailedPrecondition,
    ] {
        let peer = Peer::scripted([Step::Fail(code)]).await;
        let error = connect(&[&peer])
            .await
            .get("a", Consistency::Linearizable)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("scripted"), "{error}");
        assert_eq!(peer.requests(), 1, "{code:?}");
    }
}

#[tokio::test]
async fn a_deadline_leaves_a_write_unknown_and_a_read_unanswered() {
    let peer = Peer::scripted([Step::Hang, Step::Hang]).await;
    let short = ClientOptions {
        request_timeout: Duration::from_millis(100),
        ..options()
    };
    let client = Client::connect_with([peer.address.clone()], short)
        .await
        .unwrap();

    let write = client.put("a", "1").await.unwrap_err();
    assert!(matches!(write, Error::UnknownOutcome { .. }), "{write}");
    let read = client.get("a", Consistency::Eventual).await.unwrap_err();
    assert!(matches!(read, Error::Timeout { .. }), "{read}");
    assert_eq!(peer.requests(), 2);
}

/// Closes its first connections once each has carried `key` to it, and counts them.
async fn peer_that_hangs_up(key: &'static [u8], connections: usize) -> (String, CountTask) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move {
        for _ in 0..connections {
            let (stream, _) = listener.accept().await.unwrap();
            read_until(stream, key).await;
        }
    });
    (address, task)
}

type CountTask = tokio::task::JoinHandle<()>;

async fn read_until(mut stream: TcpStream, key: &[u8]) {
    let mut seen = Vec::new();
    while !seen.windows(key.len()).any(|window| window == key) {
        assert!(
            stream.read_buf(&mut seen).await.unwrap() > 0,
            "closed before the request came"
        );
    }
}

#[tokio::test]
async fn a_connection_lost_after_a_write_was_sent_leaves_it_unknown() {
    let (address, served) = peer_that_hangs_up(b"needle", 1).await;
    let second = Peer::start().await;
    let client = Client::connect_with([address, second.address.clone()], options())
        .await
        .unwrap();
    let error = client
        .with_affinity(0)
        .put("needle", "1")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::UnknownOutcome { .. }), "{error}");
    served.await.unwrap();
    assert_eq!(second.requests(), 0);
}

#[tokio::test]
async fn a_connection_lost_during_a_read_is_replaced_by_another() {
    let (address, served) = peer_that_hangs_up(b"needle", 1).await;
    let second = Peer::start().await;
    let client = Client::connect_with([address, second.address.clone()], options())
        .await
        .unwrap();
    client
        .with_affinity(0)
        .get("needle", Consistency::Linearizable)
        .await
        .unwrap();
    served.await.unwrap();
    assert_eq!(second.requests(), 1);
}

#[tokio::test]
async fn a_dead_endpoint_costs_no_call() {
    let peer = Peer::start().await;
    let endpoints = [closed_address().await, peer.address.clone()];
    let client = Client::connect_with(endpoints, options()).await.unwrap();
    for _ in 0..10 {
        client.put("a", "1").await.unwrap();
    }
    assert_eq!(peer.requests(), 10);
}

#[tokio::test]
async fn no_endpoint_at_all_is_said_when_connecting() {
    let error = Client::connect([closed_address().await]).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("onnection refused"), "{error}");
}

#[tokio::test]
async fn the_leader_that_a_member_names_is_asked_next() {
    let leader = Peer::start().await;
    let follower = Peer::scripted([Step::NotLeader(leader.address.clone())]).await;
    connect(&[&follower]).await.put("a", "1").await.unwrap();
    assert_eq!((follower.requests(), leader.requests()), (1, 1));
}

#[tokio::test]
async fn a_hint_that_leads_nowhere_falls_back_to_the_endpoints() {
    let hint = Step::NotLeader(closed_address().await);
    let follower = Peer::scripted([hint]).await;
    connect(&[&follower]).await.put("a", "1").await.unwrap();
    assert_eq!(follower.requests(), 2);
}

#[tokio::test]
async fn retries_end_with_the_deadline_and_pause_in_between() {
    let peer = Peer::start().await;
    peer.always(Code::Unavailable);
    let policy = RetryPolicy {
        delay_min: Duration::from_millis(20),
        ..RetryPolicy::STANDARD
    };
    let timeout = Duration::from_millis(300);
    let bounded = ClientOptions {
        request_timeout: timeout,
        retry: policy,
        ..options()
    };
    let client = Client::connect_with([peer.address.clone()], bounded)
        .await
        .unwrap();

    let started = Instant::now();
    let error = client.put("a", "1").await.unwrap_err();
    assert!(
        matches!(error, Error::Unavailable { .. }),
        "not one attempt was served: {error}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert!(
        (2..=5).contains(&peer.requests()),
        "{} attempts",
        peer.requests()
    );
}

#[tokio::test]
async fn retries_can_be_turned_off() {
    let peer = Peer::scripted([Step::Fail(Code::Unavailable)]).await;
    let never = ClientOptions {
        retry: RetryPolicy::NONE,
        ..options()
    };
    let client = Client::connect_with([peer.address.clone()], never)
        .await
        .unwrap();
    client.put("a", "1").await.unwrap_err();
    assert_eq!(peer.requests(), 1);
}

#[tokio::test]
async fn calls_are_spread_over_all_connections_or_stay_on_one() {
    let peer = Peer::start().await;
    let four = ClientOptions {
        connections: 4,
        ..options()
    };
    let client = Client::connect_with([peer.address.clone()], four.clone())
        .await
        .unwrap();
    for _ in 0..8 {
        client.put("a", "1").await.unwrap();
    }
    assert_eq!(peer.connections(), 4);

    let peer = Peer::start().await;
    let client = Client::connect_with([peer.address.clone()], four)
        .await
        .unwrap();
    for _ in 0..8 {
        client.with_affinity(6).put("a", "1").await.unwrap();
    }
    assert_eq!(peer.connections(), 1);
}
