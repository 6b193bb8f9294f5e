//! What bounds a watch: clients that do not read, revisions that are too large, too many of them;
//! and how it ends.

use std::time::Duration;

use dengine_client::{Batch, Client, KeyRange, Operation, RangeQuery, WatchQuery, WatchUpdate};
use dengine_protocol::v1::watch_client::WatchClient;
use dengine_protocol::v1::watch_request::Request;
use dengine_protocol::v1::{CancelCause, WatchCreate, WatchProgress, WatchRequest, WatchResponse};
use futures::stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

use crate::harness::{Cluster, Member, becomes};
use crate::health::counter;

/// A stream of the protocol itself, which does only what the test says.
struct Raw {
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl Raw {
    async fn open(member: &Member) -> Self {
        let address = format!("http://{}", member.address());
        let client: WatchClient<Channel> = WatchClient::connect(address).await.unwrap();
        let (requests, outgoing) = mpsc::channel(16);
        let mut client = client.max_decoding_message_size(64 << 20);
        let responses = client.watch(ReceiverStream::new(outgoing)).await.unwrap();
        Self {
            requests,
            responses: responses.into_inner(),
        }
    }

    async fn ask(&self, request: Request) {
        let request = WatchRequest {
            request: Some(request),
        };
        self.requests.send(request).await.unwrap();
    }

    async fn create(&mut self, create: WatchCreate) -> WatchResponse {
        self.ask(Request::Create(create)).await;
        self.next().await
    }

    async fn next(&mut self) -> WatchResponse {
        self.responses
            .message()
            .await
            .unwrap()
            .expect("the stream goes on")
    }
}

fn all() -> WatchCreate {
    WatchCreate {
        key: "\0".into(),
        range_end: "\0".into(),
        ..WatchCreate::default()
    }
}

fn check_canceled(response: &WatchResponse, cause: CancelCause, part: &str) {
    assert!(response.canceled, "{response:?}");
    assert_eq!(response.cancel_cause(), cause, "{response:?}");
    assert!(response.cancel_reason.contains(part), "{response:?}");
}

async fn write_large(client: &Client, count: usize) -> u64 {
    let mut last = 0;
    for n in 0..count {
        let put = client.put(format!("k{n}"), vec![b'v'; 512 * 1024]).await;
        last = put.unwrap().header.revision;
    }
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_is_shed_and_holds_up_nobody() {
    let cluster = Cluster::form_with(1, |member| {
        member.add_args(["--stream-stall-timeout-ms", "500"]);
    })
    .await;
    let member = &cluster.members[0];
    let client = cluster.client().await;
    let mut slow = Raw::open(member).await;
    let first = slow.create(all()).await.resume_revision;
    let mut quick = client
        .watch(WatchQuery::new(KeyRange::all()))
        .await
        .unwrap();
    let last = write_large(&client, 40).await;
    let mut told = first;
    while told <= last {
        if let WatchUpdate::Events { revision, .. } = quick.next().await.unwrap() {
            told = revision + 1;
        }
    }
    // It is gone while the other goes on.
    becomes("the slow watch is shed", 1, || async {
        member.status().await.watches
    })
    .await;
    // What it had been told until then is still there to be read, and then why it ended.
    let mut next = first;
    let ending = loop {
        let response = slow.next().await;
        if response.canceled {
            break response;
        }
        for event in &response.events {
            let revision = event.kv.as_ref().unwrap().mod_revision;
            assert_eq!(revision, next, "in order, and none left out");
            next += 1;
        }
    };
    check_canceled(&ending, CancelCause::TooSlow, "--stream-stall-timeout-ms");
    assert_eq!(ending.resume_revision, next, "where it begins again");
    assert!(next <= last, "it was shed before the end");
    let status = slow.responses.message().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_share_responses_if_their_client_reads_such() {
    let cluster = Cluster::form(1).await;
    let client = cluster.client().await;
    let mut stream = Raw::open(&cluster.members[0]).await;
    for (watch_id, shared) in [(1, true), (2, false), (3, true), (4, true)] {
        let create = WatchCreate {
            watch_id,
            shared,
            ..all()
        };
        assert!(stream.create(create).await.created);
    }
    let revision = client.put("k", "v").await.unwrap().header.revision;
    let mut told = Vec::new();
    for _ in 0..2 {
        let response = stream.next().await;
        assert_eq!(response.header.unwrap().revision, revision);
        assert_eq!(response.events.len(), 1, "{response:?}");
        told.push((response.watch_id, response.also_watch_ids));
    }
    told.sort();
    assert_eq!(told, [(1, vec![3, 4]), (2, Vec::new())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_an_application_does_not_read_hold_up_none_of_its_calls() {
    let cluster = Cluster::form(1).await;
    let client = cluster.client().await;
    let mut unread = Vec::new();
    for _ in 0..8 {
        unread.push(
            client
                .watch(WatchQuery::new(KeyRange::all()))
                .await
                .unwrap(),
        );
    }
    write_large(&client, 10).await;
    let count = RangeQuery::new(KeyRange::prefix("k")).count_only();
    let read = client.range(count).await.unwrap();
    assert_eq!(read.count, Some(10));
}

#[tokio::test]
async fn a_revision_larger_than_a_message_is_split_only_if_that_was_allowed() {
    let cluster = Cluster::form(1).await;
    let client = cluster.client().await;
    let mut whole = Raw::open(&cluster.members[0]).await;
    let mut parts = Raw::open(&cluster.members[0]).await;
    let first = whole.create(all()).await.resume_revision;
    let fragment = WatchCreate {
        fragment: true,
        ..all()
    };
    parts.create(fragment).await;
    let batch = (0..100).fold(Batch::new(), |batch, n| {
        batch.then(Operation::put(format!("k{n:03}"), vec![b'v'; 12 * 1024]))
    });
    let revision = client.batch(batch).await.unwrap().header.revision;
    let ending = whole.next().await;
    check_canceled(&ending, CancelCause::TooLarge, "fragment");
    assert_eq!(ending.resume_revision, first);
    let mut keys = Vec::new();
    let mut messages = 0;
    loop {
        let response = parts.next().await;
        assert_eq!(response.header.unwrap().revision, revision);
        let told = response.events.into_iter().filter_map(|it| it.kv);
        keys.extend(told.map(|kv| kv.key));
        messages += 1;
        if !response.fragment {
            break;
        }
    }
    let expect: Vec<_> = (0..100).map(|n| format!("k{n:03}")).collect();
    assert_eq!(keys, expect);
    assert!(messages > 1);
}

#[tokio::test]
async fn what_cannot_be_watched_is_said() {
    let cluster = Cluster::form_with(1, |member| {
        member.add_args(["--max-watches", "2", "--max-watch-streams", "1"]);
    })
    .await;
    let mut raw = Raw::open(&cluster.members[0]).await;
    let empty = raw.create(WatchCreate::default()).await;
    check_canceled(&empty, CancelCause::Invalid, "empty");
    let foreign = WatchCreate {
        cluster_id: 1,
        ..all()
    };
    let foreign = raw.create(foreign).await;
    check_canceled(&foreign, CancelCause::Unavailable, "cluster");
    let chosen = WatchCreate {
        watch_id: 7,
        ..all()
    };
    assert_eq!(raw.create(chosen.clone()).await.watch_id, 7);
    check_canceled(&raw.create(chosen).await, CancelCause::Invalid, "watch 7");
}

#[tokio::test]
async fn the_numbers_of_watches_and_streams_are_bounded() {
    let cluster = Cluster::form_with(1, |member| {
        member.add_args(["--max-watches", "2", "--max-watch-streams", "1"]);
    })
    .await;
    let member = &cluster.members[0];
    let mut raw = Raw::open(member).await;
    let first = raw.create(all()).await.watch_id;
    // The highest id there is, and then one that the server is to choose.
    let highest = WatchCreate {
        watch_id: u64::MAX,
        ..all()
    };
    assert_eq!(raw.create(highest).await.watch_id, u64::MAX);
    check_canceled(
        &raw.create(all()).await,
        CancelCause::TooMany,
        "--max-watches",
    );
    let cancel = dengine_protocol::v1::WatchCancel { watch_id: first };
    raw.ask(Request::Cancel(cancel)).await;
    check_canceled(&raw.next().await, CancelCause::Requested, "");
    assert!(raw.create(all()).await.created, "its place is free again");
    let address = format!("http://{}", member.address());
    let mut another = WatchClient::connect(address).await.unwrap();
    let status = another.watch(stream::pending()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    drop(raw);
    becomes("the watches are gone", 0, || async {
        member.status().await.watches
    })
    .await;
}

#[tokio::test]
async fn progress_that_is_asked_for_comes_behind_every_event() {
    let cluster = Cluster::form(1).await;
    let client = cluster.client().await;
    let mut raw = Raw::open(&cluster.members[0]).await;
    let first = raw.create(all()).await.resume_revision;
    let last = write_large(&client, 10).await;
    raw.ask(Request::Progress(WatchProgress {})).await;
    let mut next = first;
    let progress = loop {
        let response = raw.next().await;
        if response.events.is_empty() {
            break response;
        }
        next += response.events.len() as u64;
    };
    assert_eq!(progress.watch_id, 0);
    assert_eq!(progress.header.unwrap().revision, last);
    assert_eq!(next, last + 1, "every event came before it");
}

#[tokio::test]
async fn a_member_that_stops_or_is_cut_off_ends_its_watches() {
    let mut cluster = Cluster::form_with(3, |member| {
        member.add_args(["--request-timeout-ms", "1000"]);
    })
    .await;
    let follower = cluster.follower().await;
    let mut raw = Raw::open(&cluster.members[follower]).await;
    raw.create(all()).await;
    let status = cluster.members[follower].terminate();
    assert_eq!(
        status.code(),
        Some(0),
        "open watches do not hold up the end"
    );
    check_canceled(&raw.next().await, CancelCause::Unavailable, "shutting down");
    let status = raw.responses.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");

    let alone = (follower + 1) % 3;
    let mut raw = Raw::open(&cluster.members[alone]).await;
    raw.create(all()).await;
    cluster.members[(follower + 2) % 3].kill();
    let ended = tokio::time::timeout(Duration::from_secs(60), raw.next()).await;
    check_canceled(&ended.unwrap(), CancelCause::Unavailable, "contact");
}

/// Each stream is small, and a thousand of them took all the memory there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_watches_that_take_too_much_together_those_end_that_nobody_reads() {
    let cluster = Cluster::form_with(1, |member| {
        // None ends for its own sake.
        member.add_args(["--stream-stall-timeout-ms", "600000"]);
        member.add_args(["--max-answer-bytes", &(16 << 20).to_string()]);
    })
    .await;
    let client = cluster.client().await;
    let mut unread = Vec::new();
    for _ in 0..2 {
        unread.push(Raw::open(&cluster.members[0]).await);
    }
    let mut first = 0;
    for stream in &mut unread {
        first = stream.create(all()).await.resume_revision;
    }
    let last = write_large(&client, 40).await;
    // Of the past, where it has to be read again; in the present it may have been told before there
    // was too much.
    let past = WatchQuery::new(KeyRange::all()).from_revision(first);
    let mut quick = client.watch(past).await.unwrap();
    let mut told = first;
    while told <= last {
        if let WatchUpdate::Events { revision, .. } = quick.next().await.unwrap() {
            told = revision + 1;
        }
    }
    let shed =
        || async { counter(&cluster.members[0], "dengine_watch_streams_shed_total").await > 0 };
    becomes("a stream has ended", true, shed).await;
    let mut ended = 0;
    for stream in &mut unread {
        let mut next = first;
        while next <= last {
            let Ok(Some(response)) = stream.responses.message().await else {
                // It did not read for so long that its connection went too.
                ended += 1;
                break;
            };
            if response.canceled {
                check_canceled(&response, CancelCause::TooSlow, "--max-answer-bytes");
                assert_eq!(response.resume_revision, next, "where it begins again");
                let status = stream.responses.message().await.unwrap_err();
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                ended += 1;
                break;
            }
            for event in &response.events {
                let revision = event.kv.as_ref().unwrap().mod_revision;
                assert_eq!(revision, next, "in order, and none left out");
                next += 1;
            }
        }
    }
    assert!(ended > 0, "others waited for what they held");
}
