//! How a watch goes on over broken streams, against a scripted peer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::time::Duration;

use dengine_api::v1::{CancelCause, Event, KeyValue, ResponseHeader, WatchResponse, event::Kind};
use dengine_client::{
    Client, ClientOptions, Error, KeyRange, RetryPolicy, Watch, WatchQuery, WatchUpdate,
};
use support::{Peer, Script, balanced};
use tonic::Status;

fn header(revision: u64) -> Option<ResponseHeader> {
    Some(ResponseHeader {
        cluster_id: 7,
        member_id: 1,
        revision,
        term: 2,
        trimmed: false,
    })
}

fn created(first: u64) -> Result<WatchResponse, Status> {
    Ok(WatchResponse {
        header: header(first - 1),
        watch_id: 1,
        created: true,
        resume_revision: first,
        ..WatchResponse::default()
    })
}

fn event(revision: u64, key: &str) -> Event {
    Event {
        kind: Kind::Put.into(),
        kv: Some(KeyValue {
            key: key.to_owned().into(),
            mod_revision: revision,
            ..KeyValue::default()
        }),
        prev_kv: None,
    }
}

fn told(revision: u64, fragment: bool, events: Vec<Event>) -> Result<WatchResponse, Status> {
    Ok(WatchResponse {
        header: header(revision),
        watch_id: 1,
        fragment,
        events,
        ..WatchResponse::default()
    })
}

fn ended(cause: CancelCause) -> Result<WatchResponse, Status> {
    Ok(WatchResponse {
        header: header(9),
        watch_id: 1,
        canceled: true,
        cancel_cause: cause.into(),
        cancel_reason: "scripted".to_owned(),
        compact_revision: 8,
        ..WatchResponse::default()
    })
}

async fn watch(peer: &Peer, query: WatchQuery) -> Watch {
    watch_at(&peer.address, query).await
}

async fn watch_at(address: &str, query: WatchQuery) -> Watch {
    let retry = RetryPolicy {
        delay_min: Duration::from_millis(1),
        delay_max: Duration::from_millis(2),
        ..RetryPolicy::STANDARD
    };
    let options = ClientOptions {
        retry,
        ..ClientOptions::default()
    };
    let client = Client::connect_with([address], options).await.unwrap();
    client.watch(query).await.unwrap()
}

fn all() -> WatchQuery {
    WatchQuery::new(KeyRange::all())
}

async fn keys(watch: &mut Watch) -> Vec<String> {
    match watch.next().await.unwrap() {
        WatchUpdate::Events { events, .. } => events
            .iter()
            .map(|event| String::from_utf8_lossy(&event.kv.key).into_owned())
            .collect(),
        WatchUpdate::Progress { .. } => Vec::new(),
    }
}

/// Plays the scripts and asserts what is told over all of them, and where each stream began.
async fn check(scripts: Vec<Script>, expect: &[&[&str]], starts: &[u64]) {
    let peer = Peer::start().await;
    peer.watches(scripts);
    let mut watch = watch(&peer, all()).await;
    for expected in expect {
        assert_eq!(keys(&mut watch).await, *expected);
    }
    let begun: Vec<_> = peer.created().iter().map(|it| it.start_revision).collect();
    assert_eq!(begun, starts);
}

#[tokio::test]
async fn a_broken_stream_is_resumed_behind_the_last_response() {
    let broken = Err(Status::unavailable("scripted"));
    let scripts = vec![
        vec![
            created(3),
            told(4, false, vec![event(3, "a"), event(4, "b")]),
            broken,
        ],
        vec![created(5), told(7, false, vec![event(7, "c")])],
    ];
    check(scripts, &[&["a", "b"], &["c"]], &[0, 5]).await;
}

#[tokio::test]
async fn a_watch_of_a_member_without_a_leader_goes_on_at_another_behind_the_same_address() {
    // Whether the member says so later, or at once.
    moves_on(vec![created(3), ended(CancelCause::Unavailable)]).await;
    moves_on(vec![ended(CancelCause::Unavailable)]).await;
}

/// Plays `script` to a watch, which must go on at another member behind the same address.
async fn moves_on(script: Script) {
    let (calls, away, serving) = (
        Peer::start().await,
        Peer::start().await,
        Peer::start().await,
    );
    away.watches([script]);
    serving.watches([vec![created(3), told(3, false, vec![event(3, "a")])]]);
    // The first connection of a client is for calls.
    let address = balanced(&[&calls, &away, &serving]).await;
    let mut watch = watch_at(&address, all()).await;
    assert_eq!(keys(&mut watch).await, ["a"]);
    assert_eq!((away.created().len(), serving.created().len()), (1, 1));
}

#[tokio::test]
async fn a_watch_that_was_shed_goes_on_where_it_was() {
    for cause in [
        CancelCause::TooSlow,
        CancelCause::Unavailable,
        CancelCause::TooMany,
    ] {
        let scripts = vec![
            vec![
                created(3),
                told(3, false, vec![event(3, "a")]),
                ended(cause),
            ],
            vec![created(4), told(4, false, vec![event(4, "b")])],
        ];
        check(scripts, &[&["a"], &["b"]], &[0, 4]).await;
    }
}

#[tokio::test]
async fn a_revision_in_fragments_is_told_once_over_two_streams() {
    let broken = Err(Status::unavailable("scripted"));
    let parts = |from: usize, to: usize| {
        let names = ["a", "b", "c"];
        names[from..to].iter().map(|name| event(3, name)).collect()
    };
    let scripts = vec![
        vec![created(3), told(3, true, parts(0, 2)), broken],
        vec![
            created(3),
            told(3, true, parts(0, 1)),
            told(3, false, parts(1, 3)),
        ],
    ];
    check(scripts, &[&["a", "b"], &["c"]], &[0, 3]).await;
}

#[tokio::test]
async fn progress_moves_the_point_to_resume_from() {
    let broken = Err(Status::unavailable("scripted"));
    let scripts = vec![
        vec![created(3), told(9, false, Vec::new()), broken],
        vec![created(10), told(10, false, vec![event(10, "a")])],
    ];
    check(scripts, &[&["a"]], &[0, 10]).await;
}

#[tokio::test]
async fn progress_is_told_to_whom_asks() {
    let peer = Peer::start().await;
    peer.watches([vec![created(3), told(9, false, Vec::new())]]);
    let mut watch = watch(&peer, all().progress()).await;
    let update = watch.next().await.unwrap();
    assert_eq!(update, WatchUpdate::Progress { revision: 9 });
    assert_eq!(watch.next_revision(), 10);
}

#[tokio::test]
async fn what_is_compacted_is_told_and_not_skipped() {
    let peer = Peer::start().await;
    peer.watches([vec![created(3), ended(CancelCause::Compacted)]]);
    let mut watch = watch(&peer, all()).await;
    let error = watch.next().await.unwrap_err();
    assert_eq!(
        error,
        Error::Compacted {
            compact_revision: 8
        }
    );
}

#[tokio::test]
async fn a_stream_that_leaves_events_out_is_refused() {
    let peer = Peer::start().await;
    peer.watches([vec![created(3), told(5, false, vec![event(2, "a")])]]);
    let mut watch = watch(&peer, all()).await;
    let error = watch.next().await.unwrap_err();
    assert!(matches!(error, Error::Unexpected { .. }), "{error}");
}

#[tokio::test]
async fn once_begun_a_watch_stays_with_its_cluster() {
    let peer = Peer::start().await;
    let broken = Err(Status::unavailable("scripted"));
    peer.watches([
        vec![created(3), broken],
        vec![created(3), told(3, false, vec![event(3, "a")])],
    ]);
    let mut watch = watch(&peer, all()).await;
    assert_eq!(keys(&mut watch).await, ["a"]);
    let clusters: Vec<_> = peer.created().iter().map(|it| it.cluster_id).collect();
    assert_eq!(clusters, [0, 7]);
}
