//! Watches of clients of etcd, message by message.

use std::time::Duration;

use bytes::Bytes;
use dengine_etcd::etcdserverpb::kv_client::KvClient;
use dengine_etcd::etcdserverpb::maintenance_client::MaintenanceClient;
use dengine_etcd::etcdserverpb::request_op::Request as Operation;
use dengine_etcd::etcdserverpb::watch_client::WatchClient;
use dengine_etcd::etcdserverpb::watch_request::RequestUnion;
use dengine_etcd::etcdserverpb::{
    CompactionRequest, PutRequest, RequestOp, StatusRequest, TxnRequest, WatchCancelRequest,
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use crate::harness::{Cluster, Member, scratch};

/// For all watches of a stream.
const ALL: i64 = -1;
/// Longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(30);

async fn channel(member: &Member) -> Channel {
    let port = member.etcd_port.expect("it serves clients of etcd");
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    endpoint.connect().await.unwrap()
}

/// A stream of watches, and a client that writes at the same member.
struct Watching {
    asks: mpsc::UnboundedSender<WatchRequest>,
    answers: Streaming<WatchResponse>,
    kv: KvClient<Channel>,
}

impl Watching {
    async fn at(member: &Member) -> Self {
        let channel = channel(member).await;
        let (asks, asked) = mpsc::unbounded_channel();
        let mut watch = WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
        let asked = UnboundedReceiverStream::new(asked);
        let answers = watch.watch(Request::new(asked)).await.unwrap();
        Self {
            asks,
            answers: answers.into_inner(),
            kv: KvClient::new(channel),
        }
    }

    fn ask(&self, request: RequestUnion) {
        let request_union = Some(request);
        self.asks.send(WatchRequest { request_union }).unwrap();
    }

    async fn next(&mut self) -> Result<WatchResponse, Status> {
        let next = timeout(PATIENCE, self.answers.message()).await;
        let next = next.expect("there is a message in time")?;
        Ok(next.expect("the stream goes on"))
    }

    /// Creates a watch; the answer.
    async fn create(&mut self, create: WatchCreateRequest) -> WatchResponse {
        self.ask(RequestUnion::CreateRequest(create));
        let created = self.next().await.unwrap();
        assert!(created.created, "{created:?}");
        created
    }

    /// Sets a key; its revision.
    async fn put(&mut self, key: &str, value: &str) -> i64 {
        let put = PutRequest {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            ..PutRequest::default()
        };
        let put = self.kv.put(put).await.unwrap().into_inner();
        put.header.unwrap().revision
    }
}

fn prefix_a() -> WatchCreateRequest {
    WatchCreateRequest {
        key: "a".into(),
        range_end: "b".into(),
        ..WatchCreateRequest::default()
    }
}

fn revision(response: &WatchResponse) -> i64 {
    response.header.as_ref().unwrap().revision
}

async fn cluster(size: usize) -> Cluster {
    Cluster::form_with(size, Member::serve_etcd).await
}

/// Upon a watch that is cancelled with a reason clients end for good; upon this they ask another
/// member. etcdctl divides by the quota.
#[tokio::test]
async fn a_member_without_a_cluster_ends_streams_of_watches_and_has_a_quota() {
    let home = scratch();
    let mut member = Member::new(home.path(), "a");
    member.serve_etcd();
    member.start();
    // It waits for a cluster.
    member.admin().await;
    let mut watching = Watching::at(&member).await;
    watching.ask(RequestUnion::CreateRequest(prefix_a()));
    let status = watching.next().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().starts_with("etcdserver: "), "{status}");
    let mut maintenance = MaintenanceClient::new(channel(&member).await);
    let status = maintenance.status(StatusRequest {}).await.unwrap();
    assert!(status.into_inner().db_size_quota > 0);
}

#[tokio::test]
async fn every_member_sends_history_and_the_present() {
    let cluster = cluster(3).await;
    for (place, member) in cluster.members.iter().enumerate() {
        let mut watching = Watching::at(member).await;
        let key = format!("a{place}");
        let first = watching.put(&key, "one").await;
        let created = watching.create(prefix_a()).await;
        assert_eq!((created.watch_id, revision(&created)), (0, first));
        let past = WatchCreateRequest {
            start_revision: first,
            prev_kv: true,
            ..prefix_a()
        };
        assert_eq!(watching.create(past).await.watch_id, 1);
        let sent = watching.next().await.unwrap();
        assert_eq!((sent.watch_id, sent.events.len()), (1, 1));
        let second = watching.put(&key, "two").await;
        let mut sent = [
            watching.next().await.unwrap(),
            watching.next().await.unwrap(),
        ];
        sent.sort_by_key(|it| it.watch_id);
        let [newest, with_previous] = sent;
        assert_eq!((newest.watch_id, with_previous.watch_id), (0, 1));
        assert_eq!(revision(&newest), second);
        assert!(newest.events[0].prev_kv.is_none());
        let previous = with_previous.events[0].prev_kv.as_ref().unwrap();
        assert_eq!(previous.value, "one");
        watching.ask(RequestUnion::ProgressRequest(WatchProgressRequest {}));
        let progress = watching.next().await.unwrap();
        assert_eq!((progress.watch_id, progress.events.len()), (ALL, 0));
        assert!(revision(&progress) >= second);
        watching.ask(RequestUnion::CancelRequest(WatchCancelRequest {
            watch_id: 7,
        }));
        watching.ask(RequestUnion::CancelRequest(WatchCancelRequest {
            watch_id: 1,
        }));
        let canceled = watching.next().await.unwrap();
        assert!(
            canceled.canceled,
            "there is no watch 7, and nothing is said of it"
        );
        assert_eq!((canceled.watch_id, &*canceled.cancel_reason), (1, ""));
        assert_eq!(
            watching.create(prefix_a()).await.watch_id,
            2,
            "no id is given twice"
        );
    }
}

#[tokio::test]
async fn a_watch_that_cannot_be_is_created_and_cancelled() {
    let cluster = cluster(1).await;
    let mut watching = Watching::at(&cluster.members[0]).await;
    let empty = WatchCreateRequest {
        range_end: "a".into(),
        ..prefix_a()
    };
    let chosen = WatchCreateRequest {
        watch_id: 5,
        ..prefix_a()
    };
    let before = WatchCreateRequest {
        start_revision: -1,
        ..prefix_a()
    };
    watching.create(chosen.clone()).await;
    for (create, reason) in [
        (empty, "mvcc: watcher range is empty"),
        (
            chosen,
            "mvcc: duplicate watch ID provided on the WatchStream",
        ),
        (
            before,
            "etcdserver: mvcc: required revision has been compacted",
        ),
    ] {
        let refused = watching.create(create).await;
        assert!(refused.canceled);
        assert_eq!((refused.watch_id, &*refused.cancel_reason), (ALL, reason));
    }
    assert_eq!(watching.create(prefix_a()).await.watch_id, 0);
}

#[tokio::test]
async fn a_watch_of_what_is_compacted_is_shown_where_history_begins() {
    let cluster = cluster(1).await;
    let mut watching = Watching::at(&cluster.members[0]).await;
    let mut newest = 0;
    for value in ["1", "2", "3"] {
        newest = watching.put("a", value).await;
    }
    let compact = CompactionRequest {
        revision: newest,
        physical: false,
    };
    watching.kv.compact(compact).await.unwrap();
    let past = WatchCreateRequest {
        start_revision: newest - 1,
        ..prefix_a()
    };
    assert!(!watching.create(past).await.canceled);
    let ended = watching.next().await.unwrap();
    assert!(ended.canceled);
    assert_eq!(
        (ended.compact_revision, &*ended.cancel_reason),
        (newest, "")
    );
}

#[tokio::test]
async fn a_watch_of_revisions_of_another_cluster_is_shown_where_this_one_begins() {
    const FIRST: i64 = 1_000_000_000;
    let flags = ["--first-revision", "1000000000"];
    let cluster = Cluster::form_by(1, Member::serve_etcd, &flags).await;
    let mut watching = Watching::at(&cluster.members[0]).await;
    let from = |start_revision| WatchCreateRequest {
        start_revision,
        ..prefix_a()
    };
    assert!(!watching.create(from(7)).await.canceled);
    let ended = watching.next().await.unwrap();
    assert_eq!((ended.canceled, ended.compact_revision), (true, FIRST));
    let created = watching.create(from(FIRST)).await;
    assert_eq!(revision(&created), FIRST);
    assert_eq!(watching.put("a", "1").await, FIRST + 1);
    let event = watching.next().await.unwrap();
    assert_eq!(event.events[0].kv.as_ref().unwrap().mod_revision, FIRST + 1);
}

/// clientv3 takes a revision for the beginning of all watches of the stream.
#[tokio::test]
async fn no_progress_is_sent_while_a_watch_begins_in_the_future() {
    let cluster = cluster(1).await;
    let mut watching = Watching::at(&cluster.members[0]).await;
    let now = watching.put("a", "1").await;
    let future = WatchCreateRequest {
        start_revision: now + 3,
        ..prefix_a()
    };
    watching.create(future).await;
    watching.ask(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    // Once this one is created, what was asked for before it is decided.
    let other = WatchCreateRequest {
        key: "b".into(),
        ..WatchCreateRequest::default()
    };
    watching.create(other).await;
    watching.put("a", "2").await;
    watching.put("a", "3").await;
    let fourth = watching.put("a", "4").await;
    let sent = watching.next().await.unwrap();
    assert_eq!((sent.watch_id, sent.events.len()), (0, 1));
    assert_eq!(revision(&sent), fourth);
}

/// More than one message of our own API holds.
#[tokio::test]
async fn a_large_revision_is_one_message_or_parts_that_follow_each_other() {
    const KEYS: usize = 20;
    let cluster = cluster(1).await;
    let mut watching = Watching::at(&cluster.members[0]).await;
    watching.create(prefix_a()).await;
    let in_parts = WatchCreateRequest {
        fragment: true,
        ..prefix_a()
    };
    watching.create(in_parts).await;
    let value = Bytes::from(vec![b'x'; 64 << 10]);
    let put = |n: usize| RequestOp {
        request: Some(Operation::RequestPut(PutRequest {
            key: format!("a{n:02}").into(),
            value: value.clone(),
            ..PutRequest::default()
        })),
    };
    let large = TxnRequest {
        success: (0..KEYS).map(put).collect(),
        ..TxnRequest::default()
    };
    watching.kv.txn(large).await.unwrap();
    let (mut whole, mut parts) = (0, Vec::new());
    while whole == 0 || parts.iter().map(|(count, _)| count).sum::<usize>() < KEYS {
        let sent = watching.next().await.unwrap();
        if sent.watch_id == 0 {
            let unfinished = parts.last().is_some_and(|(_, more): &(usize, bool)| *more);
            assert!(!unfinished, "nothing comes between two parts");
            assert!(!sent.fragment);
            whole += sent.events.len();
        } else {
            parts.push((sent.events.len(), sent.fragment));
        }
    }
    assert_eq!(whole, KEYS);
    assert!(parts.len() > 1, "{parts:?}");
    let (last, others) = parts.split_last().unwrap();
    assert!(!last.1 && others.iter().all(|(_, more)| *more), "{parts:?}");
}

/// Tools that ask once say at once that they ask for nothing more.
#[tokio::test]
async fn a_client_that_asks_for_nothing_more_is_told_what_it_watches() {
    let cluster = cluster(1).await;
    let mut watching = Watching::at(&cluster.members[0]).await;
    watching.create(prefix_a()).await;
    let (nobody, _) = mpsc::unbounded_channel();
    watching.asks = nobody;
    for value in ["1", "2"] {
        let put = watching.put("a", value).await;
        let told = watching.next().await.unwrap();
        assert_eq!(revision(&told), put);
    }
}

/// jetcd ends a watch so and keeps its connection, whose streams would otherwise use up its places.
#[tokio::test]
async fn a_stream_that_is_asked_for_nothing_more_ends_with_its_last_watch() {
    let cluster = cluster(1).await;
    let mut watching = Watching::at(&cluster.members[0]).await;
    let watch_id = watching.create(prefix_a()).await.watch_id;
    let cancel = WatchCancelRequest { watch_id };
    watching.ask(RequestUnion::CancelRequest(cancel));
    let (nobody, _) = mpsc::unbounded_channel();
    watching.asks = nobody;
    let cancelled = watching.next().await.unwrap();
    assert!(cancelled.canceled, "{cancelled:?}");
    let next = timeout(PATIENCE, watching.answers.message()).await;
    let end = next.expect("the stream ends").unwrap();
    assert_eq!(end, None);
}

/// Upon any other code clientv3 ends the watch for good.
#[tokio::test]
async fn a_member_that_stops_has_its_watches_begin_again_elsewhere() {
    let mut cluster = cluster(1).await;
    let mut watching = Watching::at(&cluster.members[0]).await;
    watching.create(prefix_a()).await;
    let (ended, _) = tokio::join!(
        watching.next(),
        tokio::task::spawn_blocking(move || cluster.members[0].terminate())
    );
    let ended = ended.unwrap_err();
    assert_eq!(
        (ended.code(), ended.message()),
        (Code::Unavailable, "etcdserver: server stopped")
    );
}
