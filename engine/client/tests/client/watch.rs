//! How a watch goes on over broken streams, against a scripted peer.

use std::time::Duration;

use dengine_client::{
    Client, ClientOptions, Error, KeyRange, RetryPolicy, Watch, WatchQuery, WatchUpdate,
};
use dengine_fake_kv::{Between, Load, Peer, Script, balanced};
use dengine_protocol::v1::event::Kind;
use dengine_protocol::v1::{CancelCause, Event, KeyValue, ResponseHeader, WatchResponse};
use futures::StreamExt;
use tokio::net::TcpListener;
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

/// tonic makes a bug of the member's of it, and the watch ended.
#[tokio::test]
async fn a_stream_that_something_in_between_has_cut_is_resumed() {
    let peer = Peer::start().await;
    peer.tells(1, 2..3);
    peer.is_behind_what_answers(Between::Http(200));
    let cut = async {
        while peer.watch_streams() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        peer.is_behind_nothing();
    };
    tokio::join!(watch(&peer, all()), cut);
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
async fn a_watch_says_whether_a_member_serves_it() {
    let peer = Peer::start().await;
    let left = vec![created(3), ended(CancelCause::Unavailable)];
    let goes_on = vec![created(3), told(3, false, vec![event(3, "a")])];
    peer.watches([left, goes_on]);
    let options = ClientOptions {
        retry: RetryPolicy::NONE,
        ..ClientOptions::default()
    };
    let client = Client::connect_with([peer.address.clone()], options)
        .await
        .unwrap();
    let mut watch = client.watch(all()).await.unwrap();
    assert!(watch.is_served());
    let error = watch.next().await.unwrap_err();
    assert!(error.retryable() && !watch.is_served(), "{error}");
    assert_eq!(keys(&mut watch).await, ["a"]);
    assert!(watch.is_served());
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

async fn client(peer: &Peer) -> Client {
    Client::connect([&peer.address]).await.unwrap()
}

/// The revisions of the events of the next update.
async fn revisions(watch: &mut Watch) -> Vec<u64> {
    match watch.next().await.unwrap() {
        WatchUpdate::Events { events, .. } => {
            events.iter().map(|event| event.kv.mod_revision).collect()
        }
        WatchUpdate::Progress { .. } => Vec::new(),
    }
}

#[tokio::test]
async fn all_watches_of_a_client_share_one_stream_and_end_alone() {
    let peer = Peer::start().await;
    peer.tells(8, 3..5);
    let client = client(&peer).await;
    let mut watches = Vec::new();
    for key in 0..100_u32 {
        let key = KeyRange::key(format!("k{key}"));
        watches.push(client.watch(key).await.unwrap());
    }
    for (number, watch) in watches.iter_mut().enumerate() {
        let WatchUpdate::Events { events, .. } = watch.next().await.unwrap() else {
            panic!("no progress was asked for");
        };
        assert_eq!(
            events[0].kv.key,
            format!("k{number}"),
            "each is told its own"
        );
    }
    drop(watches.remove(41));
    while peer.cancelled() != [42] {
        tokio::task::yield_now().await;
    }
    assert_eq!(revisions(&mut watches[0]).await, [4], "the others go on");
    drop(watches);
    let mut again = client.watch(KeyRange::all()).await.unwrap();
    assert_eq!(revisions(&mut again).await, [3]);
    assert_eq!(
        peer.watch_streams(),
        2,
        "the last watch closed the first one"
    );
}

#[tokio::test]
async fn watches_that_are_told_the_same_share_its_response() {
    let peer = Peer::under(Load {
        tells: true,
        ..Load::default()
    })
    .await;
    let client = client(&peer).await;
    let mut watches = Vec::new();
    for key in ["k", "other", "k", "k"] {
        watches.push(client.watch(KeyRange::key(key)).await.unwrap());
    }
    let mut written = Vec::new();
    for key in ["k", "k", "other"] {
        written.push(client.put(key, "v").await.unwrap().header.revision);
    }
    for place in [0, 2, 3] {
        for revision in &written[..2] {
            assert_eq!(revisions(&mut watches[place]).await, [*revision]);
        }
    }
    assert_eq!(revisions(&mut watches[1]).await, written[2..]);
    assert_eq!(peer.watch_responses(), 3);
    drop(watches.remove(2));
    let last = client.put("k", "v").await.unwrap().header.revision;
    for place in [0, 2] {
        let told = revisions(&mut watches[place]).await;
        assert_eq!(told, [last], "the others go on");
    }
}

/// Each watch took the turn of trying it, and told nobody that it had answered.
#[tokio::test]
async fn watches_come_back_to_a_member_that_was_away() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let away = closed.local_addr().unwrap();
    drop(closed);
    let other = Peer::start().await;
    let options = ClientOptions {
        connections: 2,
        ..ClientOptions::default()
    };
    let endpoints = [away.to_string(), other.address.clone()];
    let client = Client::connect_with(endpoints, options).await.unwrap();
    let back = Peer::listening(TcpListener::bind(away).await.unwrap(), []);
    for peer in [&back, &other] {
        peer.tells(8, 3..4);
    }
    while back.created().is_empty() {
        client.watch(KeyRange::all()).await.unwrap();
    }
    for _ in 0..4 {
        client.watch(KeyRange::all()).await.unwrap();
    }
    assert_eq!(back.created().len(), 3, "half of them");
}

#[tokio::test]
async fn a_watch_that_is_not_read_holds_up_no_other_and_goes_on_where_it_was() {
    let peer = Peer::start().await;
    peer.tells(100 << 10, 3..43);
    let client = client(&peer).await;
    let mut unread = client.watch(KeyRange::key("unread")).await.unwrap();
    let mut read = client.watch(KeyRange::key("read")).await.unwrap();
    for revision in 3..43 {
        assert_eq!(revisions(&mut read).await, [revision]);
    }
    // The other may have fallen behind as well, for a moment.
    while !peer.cancelled().contains(&1) {
        tokio::task::yield_now().await;
    }
    for revision in 3..43 {
        assert_eq!(
            revisions(&mut unread).await,
            [revision],
            "once, and in order"
        );
    }
    let starts: Vec<_> = peer.created().iter().map(|it| it.start_revision).collect();
    assert!(starts.len() > 2, "{starts:?}");
    assert!((4..43).contains(&starts[2]), "{starts:?}");
    assert_eq!(peer.watch_streams(), 1);
}

#[tokio::test]
async fn as_a_stream_a_watch_ends_behind_an_error_that_stays() {
    let peer = Peer::start().await;
    let told = told(4, false, vec![event(3, "a"), event(4, "b")]);
    peer.watches([vec![created(3), told, ended(CancelCause::Compacted)]]);
    let updates: Vec<_> = watch(&peer, all()).await.collect().await;
    assert_eq!(updates.len(), 2);
    assert!(matches!(
        updates[0],
        Ok(WatchUpdate::Events { revision: 4, .. })
    ));
    assert!(matches!(updates[1], Err(Error::Compacted { .. })));
}
