//! The door for clients of etcd, asked as they ask: every answer, and every error by its whole
//! string, at members that lead and at others.

use std::time::{Duration, Instant};

use bytes::Bytes;
use dengine_client::proto::{JoinRequest, Role};
use dengine_etcd::etcdserverpb::cluster_client::ClusterClient;
use dengine_etcd::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use dengine_etcd::etcdserverpb::kv_client::KvClient;
use dengine_etcd::etcdserverpb::lease_client::LeaseClient;
use dengine_etcd::etcdserverpb::maintenance_client::MaintenanceClient;
use dengine_etcd::etcdserverpb::range_request::{SortOrder, SortTarget};
use dengine_etcd::etcdserverpb::request_op::Request as Operation;
use dengine_etcd::etcdserverpb::response_op::Response as Done;
use dengine_etcd::etcdserverpb::watch_client::WatchClient;
use dengine_etcd::etcdserverpb::watch_request::RequestUnion;
use dengine_etcd::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, HashKvRequest, LeaseKeepAliveRequest,
    MemberListRequest, MemberPromoteRequest, MemberRemoveRequest, MoveLeaderRequest, PutRequest,
    RangeRequest, RangeResponse, RequestOp, StatusRequest, TxnRequest, WatchCreateRequest,
    WatchRequest,
};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::harness::{Cluster, Member, becomes, eventually};
use crate::membership::addition;

/// To the end of all keys.
const END: &[u8] = b"\0";

async fn cluster() -> Cluster {
    Cluster::form_with(3, Member::serve_etcd).await
}

/// One whose members clients of etcd may change.
async fn with_changes() -> Cluster {
    let changes = |member: &mut Member| {
        member.serve_etcd();
        member.add_args(["--etcd-membership", "change"]);
    };
    Cluster::form_with(3, changes).await
}

async fn channel(member: &Member) -> Channel {
    let port = member.etcd_port.expect("it serves clients of etcd");
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    endpoint.connect().await.unwrap()
}

async fn kv(member: &Member) -> KvClient<Channel> {
    KvClient::new(channel(member).await)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
}

/// The `KV` service of a follower, and of the leader.
async fn both(cluster: &Cluster) -> [KvClient<Channel>; 2] {
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let [leader, follower] = [leader, follower].map(|place| &cluster.members[place]);
    [kv(follower).await, kv(leader).await]
}

fn put(key: &str, value: impl Into<Bytes>) -> PutRequest {
    PutRequest {
        key: key.to_owned().into(),
        value: value.into(),
        ..PutRequest::default()
    }
}

fn get(key: &str) -> RangeRequest {
    RangeRequest {
        key: key.to_owned().into(),
        ..RangeRequest::default()
    }
}

fn all() -> RangeRequest {
    RangeRequest {
        range_end: END.into(),
        ..get("\0")
    }
}

fn keys(response: &RangeResponse) -> String {
    let key = |key: &Bytes| String::from_utf8_lossy(key).into_owned();
    let keys: Vec<_> = response.kvs.iter().map(|kv| key(&kv.key)).collect();
    keys.join(" ")
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<Response<T>, Status>, code: Code, message: &str) {
    let status = result.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

/// Whichever way a call takes to its service.
#[tokio::test]
async fn a_method_that_is_not_there_is_unimplemented() {
    let cluster = Cluster::form_with(1, Member::serve_etcd).await;
    let member = &cluster.members[0];
    let own = Endpoint::from_shared(format!("http://{}", member.address()));
    let own = own.unwrap().connect().await.unwrap();
    for (channel, service) in [
        (channel(member).await, "etcdserverpb.KV"),
        (own, "dengine.v1.Kv"),
    ] {
        let code = async |path: String| {
            let mut client = Grpc::new(channel.clone());
            client.ready().await.unwrap();
            let codec = ProstCodec::<PutRequest, RangeResponse>::default();
            let path = PathAndQuery::try_from(path).unwrap();
            let answer = client.unary(Request::new(put("key", "value")), path, codec);
            answer
                .await
                .map_or_else(|status| status.code(), |_| Code::Ok)
        };
        for unknown in [
            format!("/{service}/Nothing"),
            format!("/{service}/"),
            format!("/{service}s/Put"),
            "/".to_owned(),
        ] {
            let said = code(unknown.clone()).await;
            assert_eq!(said, Code::Unimplemented, "{unknown}");
        }
        assert_eq!(
            code(format!("/{service}/Put")).await,
            Code::Ok,
            "the body is one"
        );
    }
}

#[tokio::test]
async fn keys_are_written_and_read_at_every_member() {
    let cluster = cluster().await;
    for (place, member) in cluster.members.iter().enumerate() {
        let mut kv = kv(member).await;
        let key = format!("k{place}");
        let first = kv.put(put(&key, "one")).await.unwrap().into_inner();
        let second = PutRequest {
            prev_kv: true,
            ..put(&key, "two")
        };
        let second = kv.put(second).await.unwrap().into_inner();
        let (first, header) = (first.header.unwrap(), second.header.unwrap());
        assert_eq!(header.revision, first.revision + 1);
        assert_eq!(header.member_id, member.status().await.member_id);
        assert_eq!(second.prev_kv.unwrap().value, "one");
        let read = kv.range(get(&key)).await.unwrap().into_inner();
        let found = &read.kvs[0];
        assert_eq!(
            (&found.key[..], &found.value[..]),
            (key.as_bytes(), &b"two"[..])
        );
        assert_eq!(found.create_revision, first.revision);
        assert_eq!(found.mod_revision, header.revision);
        assert_eq!((found.version, found.lease), (2, 0));
        let past = RangeRequest {
            revision: first.revision,
            ..get(&key)
        };
        let past = kv.range(past).await.unwrap().into_inner();
        assert_eq!(past.kvs[0].value, "one");
        assert_eq!(past.header.unwrap().revision, header.revision);
    }
    let mut kv = kv(&cluster.members[0]).await;
    let delete = DeleteRangeRequest {
        key: "k0".into(),
        range_end: "k2".into(),
        prev_kv: true,
    };
    let deleted = kv.delete_range(delete.clone()).await.unwrap().into_inner();
    assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (2, 2));
    let again = kv.delete_range(delete).await.unwrap().into_inner();
    assert_eq!(again.deleted, 0);
    let revision =
        |header: Option<dengine_etcd::etcdserverpb::ResponseHeader>| header.unwrap().revision;
    assert_eq!(
        revision(again.header),
        revision(deleted.header),
        "nothing changed"
    );
}

/// A client that gives no limit never asks for the rest.
#[tokio::test]
async fn a_range_without_a_limit_is_whole_and_its_count_exact() {
    let cluster = cluster().await;
    let [mut follower, mut leader] = both(&cluster).await;
    // More than an answer of our own API has.
    let large = Bytes::from(vec![b'x'; 1 << 20]);
    for key in ["a", "b", "c", "d"] {
        leader.put(put(key, large.clone())).await.unwrap();
    }
    for kv in [&mut leader, &mut follower] {
        let whole = kv.range(all()).await.unwrap().into_inner();
        assert_eq!(keys(&whole), "a b c d");
        assert_eq!((whole.count, whole.more), (4, false));
        let limited = RangeRequest { limit: 2, ..all() };
        let limited = kv.range(limited).await.unwrap().into_inner();
        assert_eq!(keys(&limited), "a b");
        assert_eq!((limited.count, limited.more), (4, true));
        let last = RangeRequest {
            limit: 1,
            sort_order: SortOrder::Descend.into(),
            sort_target: SortTarget::Mod.into(),
            keys_only: true,
            serializable: true,
            ..all()
        };
        let last = becomes_applied(kv, last).await;
        assert_eq!(keys(&last), "d");
        assert_eq!((last.count, last.more), (4, true));
        assert!(last.kvs[0].value.is_empty());
        let counted = RangeRequest {
            count_only: true,
            ..all()
        };
        let counted = kv.range(counted).await.unwrap().into_inner();
        assert_eq!((counted.count, counted.kvs.len()), (4, 0));
    }
}

/// A serializable read, once the member has applied all four keys.
async fn becomes_applied(kv: &KvClient<Channel>, request: RangeRequest) -> RangeResponse {
    let read = async || {
        let mut kv = kv.clone();
        kv.range(request.clone()).await.unwrap().into_inner()
    };
    becomes("the member has applied it", 4, async || read().await.count).await;
    read().await
}

#[tokio::test]
async fn errors_are_etcds_to_the_letter() {
    let cluster = cluster().await;
    for mut kv in both(&cluster).await {
        let invalid = |result, message| refused(result, Code::InvalidArgument, message);
        invalid(
            kv.put(put("", "v")).await,
            "etcdserver: key is not provided",
        );
        refused(
            kv.range(get("")).await,
            Code::InvalidArgument,
            "etcdserver: key is not provided",
        );
        let kept = PutRequest {
            ignore_value: true,
            ..put("k", "v")
        };
        invalid(kv.put(kept).await, "etcdserver: value is provided");
        let too_large = put("k", vec![0; 3 << 19]);
        invalid(kv.put(too_large).await, "etcdserver: request is too large");
        let sorted = RangeRequest {
            sort_order: 9,
            ..get("k")
        };
        refused(
            kv.range(sorted).await,
            Code::InvalidArgument,
            "etcdserver: invalid sort option",
        );
        let twice = TxnRequest {
            success: vec![operation(put("k", "1")), operation(put("k", "2"))],
            ..TxnRequest::default()
        };
        refused(
            kv.txn(twice).await,
            Code::InvalidArgument,
            "etcdserver: duplicate key given in txn request",
        );
        let many = TxnRequest {
            success: (0..129)
                .map(|n| operation(put(&n.to_string(), "v")))
                .collect(),
            ..TxnRequest::default()
        };
        refused(
            kv.txn(many).await,
            Code::InvalidArgument,
            "etcdserver: too many operations in txn request",
        );
        let future = RangeRequest {
            revision: 1 << 40,
            ..get("k")
        };
        refused(
            kv.range(future).await,
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
        );
    }
    // Beyond what gRPC takes in at all.
    let mut kv = kv(&cluster.members[0]).await;
    let status = kv.put(put("k", vec![0; 4 << 20])).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
}

#[tokio::test]
async fn history_is_compacted_at_whichever_member_is_asked() {
    let cluster = cluster().await;
    for (round, mut kv) in both(&cluster).await.into_iter().enumerate() {
        let mut revision = 0;
        for value in ["1", "2", "3"] {
            let answer = kv.put(put(&format!("k{round}"), value)).await.unwrap();
            revision = answer.into_inner().header.unwrap().revision;
        }
        let compact = |revision| CompactionRequest {
            revision,
            physical: false,
        };
        kv.compact(compact(revision - 1)).await.unwrap();
        refused(
            kv.compact(compact(revision - 1)).await,
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
        );
        refused(
            kv.compact(compact(revision + 9)).await,
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
        );
        let past = RangeRequest {
            revision: revision - 2,
            ..all()
        };
        refused(
            kv.range(past).await,
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
        );
    }
}

/// Whoever was answered asked the member that it knew, and was served what it had compacted.
#[tokio::test]
async fn what_was_compacted_is_gone_at_the_member_that_was_asked() {
    let cluster = cluster().await;
    let [mut follower, _] = both(&cluster).await;
    for value in 0..20_u8 {
        let written = follower.put(put("k", vec![value])).await.unwrap();
        let revision = written.into_inner().header.unwrap().revision;
        let compact = CompactionRequest {
            revision,
            physical: false,
        };
        follower.compact(compact).await.unwrap();
        let past = RangeRequest {
            revision: revision - 1,
            serializable: true,
            ..all()
        };
        refused(
            follower.range(past).await,
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
        );
    }
}

/// etcd's clients do not repeat a write themselves, and an API server passes the error on.
#[tokio::test]
async fn a_write_waits_for_the_next_leader() {
    let mut cluster = cluster().await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let mut at_follower = kv(&cluster.members[follower]).await;
    cluster.members[leader].kill();
    // One that was passed on to the leader before that was noticed may be of unknown outcome.
    let first = at_follower.put(put("k", "0")).await;
    let unknown = "etcdserver: request timed out";
    assert!(first.is_ok() || first.unwrap_err().message() == unknown);
    let then = at_follower.put(put("k", "1")).await.unwrap();
    assert!(then.into_inner().header.unwrap().revision > 1);
}

/// It was told to be a learner, upon which clients give up for good.
#[tokio::test]
async fn a_voter_that_crashed_is_a_voter_while_it_applies_its_log_again() {
    let mut cluster = cluster().await;
    let restarted = cluster.follower().await;
    let mut before = kv(&cluster.members[restarted]).await;
    before.put(put("k", "0")).await.unwrap();
    cluster.members[restarted].kill();
    cluster.members[restarted].start();
    let port = cluster.members[restarted].etcd_port.unwrap();
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    let mut kv = KvClient::new(endpoint.connect_lazy());
    let begun = Instant::now();
    while let Err(status) = kv.put(put("k", "1")).await {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{status}");
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_cluster_that_takes_the_place_of_another_begins_above_its_revisions() {
    const FIRST: i64 = 1_000_000_000;
    let flags = ["--first-revision", "1000000000"];
    let mut cluster = Cluster::form_by(3, Member::serve_etcd, &flags).await;
    let mut at_leader = kv(&cluster.members[cluster.leader().await]).await;
    let put = at_leader.put(put("k", "one")).await.unwrap().into_inner();
    assert_eq!(put.header.unwrap().revision, FIRST + 1);
    let restarted = cluster.follower().await;
    cluster.members[restarted].kill();
    cluster.members[restarted].start();
    cluster.members[restarted].ready().await;
    // Who was cut off, and makes the cluster again, is told the same.
    assert!(cluster.init_with(&flags).status.success());
    for member in &cluster.members {
        let mut kv = kv(member).await;
        let read = kv.range(get("k")).await.unwrap().into_inner();
        assert_eq!(read.kvs[0].create_revision, FIRST + 1);
        let at = |revision| RangeRequest { revision, ..all() };
        let empty = kv.range(at(FIRST)).await.unwrap().into_inner();
        assert_eq!(empty.count, 0);
        // A revision of the other cluster.
        refused(
            kv.range(at(FIRST - 1)).await,
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
        );
    }
}

fn operation(put: PutRequest) -> RequestOp {
    RequestOp {
        request: Some(Operation::RequestPut(put)),
    }
}

/// Optimistic, as Kubernetes writes: unless the key was changed since, else read it.
fn optimistic(key: &str, mod_revision: i64, value: &str) -> TxnRequest {
    TxnRequest {
        compare: vec![Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.to_owned().into(),
            target_union: Some(TargetUnion::ModRevision(mod_revision)),
            range_end: Bytes::new(),
        }],
        success: vec![operation(put(key, value.to_owned()))],
        failure: vec![RequestOp {
            request: Some(Operation::RequestRange(get(key))),
        }],
    }
}

#[tokio::test]
async fn a_transaction_writes_or_reads_at_every_member() {
    let cluster = cluster().await;
    for (place, member) in cluster.members.iter().enumerate() {
        let mut kv = kv(member).await;
        let key = format!("k{place}");
        let made = kv.txn(optimistic(&key, 0, "made")).await.unwrap();
        let made = made.into_inner();
        assert!(made.succeeded);
        let revision = made.header.unwrap().revision;
        let Some(Done::ResponsePut(done)) = &made.responses[0].response else {
            panic!("{made:?}");
        };
        assert_eq!(done.header.as_ref().unwrap().revision, revision);
        let refused = kv.txn(optimistic(&key, 0, "again")).await.unwrap();
        let refused = refused.into_inner();
        assert!(!refused.succeeded);
        let Some(Done::ResponseRange(read)) = &refused.responses[0].response else {
            panic!("{refused:?}");
        };
        assert_eq!(read.kvs[0].mod_revision, revision);
        let changed = kv.txn(optimistic(&key, revision, "changed")).await.unwrap();
        assert!(changed.into_inner().succeeded);
        // One that only reads, of what was just written here.
        let read = TxnRequest {
            success: vec![RequestOp {
                request: Some(Operation::RequestRange(get(&key))),
            }],
            ..TxnRequest::default()
        };
        let read = kv.txn(read).await.unwrap().into_inner();
        let Some(Done::ResponseRange(read)) = &read.responses[0].response else {
            panic!("{read:?}");
        };
        assert_eq!(read.kvs[0].value, "changed");
    }
}

/// Who administers a cluster is not who uses its keys.
#[tokio::test]
async fn clients_of_etcd_change_no_members_unless_they_may() {
    let cluster = Cluster::form_with(1, Member::serve_etcd).await;
    let mut members = ClusterClient::new(channel(&cluster.members[0]).await);
    let mut care = MaintenanceClient::new(channel(&cluster.members[0]).await);
    let target_id = cluster.members[0].status().await.member_id;
    let promoted = members.member_promote(MemberPromoteRequest { id: target_id });
    let refusals = [
        promoted.await.unwrap_err(),
        care.move_leader(MoveLeaderRequest { target_id })
            .await
            .unwrap_err(),
    ];
    for status in refusals {
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(status.message().contains("--etcd-membership"), "{status}");
    }
}

/// etcd removes whoever leads; here it was refused, in words that say another reason.
#[tokio::test]
async fn a_member_that_leads_is_removed_too() {
    let cluster = with_changes().await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let id = cluster.members[leader].status().await.member_id;
    let mut members = ClusterClient::new(channel(&cluster.members[follower]).await);
    let removed = members.member_remove(MemberRemoveRequest { id }).await;
    let left = removed.unwrap().into_inner().members;
    assert_eq!(left.len(), 2);
    assert!(left.iter().all(|it| it.id != id));
}

/// It was answered an error, and the member went on: calls were refused as of a learner, upon which
/// clients give up for good, and watches got nothing any more.
#[tokio::test]
async fn a_member_that_was_removed_serves_nobody() {
    let cluster = with_changes().await;
    let removed = &cluster.members[cluster.follower().await];
    let mut kv = kv(removed).await;
    kv.put(put("k", "0")).await.unwrap();
    let watch = WatchCreateRequest {
        key: "k".into(),
        ..WatchCreateRequest::default()
    };
    let requests = tokio_stream::once(WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(watch)),
    });
    let requests = requests.chain(tokio_stream::pending());
    let mut watching = WatchClient::new(channel(removed).await);
    let mut watched = watching.watch(requests).await.unwrap().into_inner();
    assert!(watched.message().await.unwrap().unwrap().created);
    let (keep, kept) = mpsc::unbounded_channel();
    let mut alive = Request::new(UnboundedReceiverStream::new(kept));
    let requires = "true".parse().unwrap();
    alive.metadata_mut().insert("hasleader", requires);
    let mut leases = LeaseClient::new(channel(removed).await);
    let alive = leases.lease_keep_alive(alive).await.unwrap();
    let id = removed.status().await.member_id;
    let mut members = ClusterClient::new(channel(removed).await);
    let left = members.member_remove(MemberRemoveRequest { id }).await;
    let left = left.unwrap().into_inner().members;
    assert!(
        left.len() == 2 && left.iter().all(|it| it.id != id),
        "{left:?}"
    );
    let ended = timeout(Duration::from_secs(10), watched.message()).await;
    let stopped = "etcdserver: server stopped";
    let ended = ended.expect("the watch ends").unwrap_err();
    assert_eq!(
        (ended.code(), ended.message()),
        (Code::Unavailable, stopped)
    );
    refused(kv.put(put("k", "1")).await, Code::Unavailable, stopped);
    // Upon `no leader` clientv3 gives up those that require one.
    keep.send(LeaseKeepAliveRequest { id: 7 }).unwrap();
    let kept = alive.into_inner().message().await.map(Response::new);
    refused(kept, Code::Unavailable, stopped);
    let serializable = RangeRequest {
        serializable: true,
        ..get("k")
    };
    refused(kv.range(serializable).await, Code::Unavailable, stopped);
    let mut care = MaintenanceClient::new(channel(removed).await);
    let status = care.status(StatusRequest {}).await.unwrap().into_inner();
    assert!(!status.is_learner);
}

#[tokio::test]
async fn a_serializable_transaction_needs_no_quorum() {
    let mut cluster = cluster().await;
    let mut kv = kv(&cluster.members[0]).await;
    kv.put(put("k", "0")).await.unwrap();
    for member in &mut cluster.members[1..] {
        member.kill();
    }
    let txn = |serializable| TxnRequest {
        success: vec![RequestOp {
            request: Some(Operation::RequestRange(RangeRequest {
                serializable,
                ..get("k")
            })),
        }],
        ..TxnRequest::default()
    };
    let read = kv.txn(txn(true)).await.unwrap().into_inner();
    let Some(Done::ResponseRange(read)) = &read.responses[0].response else {
        panic!("{read:?}");
    };
    assert_eq!(read.kvs[0].value, "0");
    let fresh = kv.txn(txn(false)).await.unwrap_err();
    assert_eq!(fresh.code(), Code::Unavailable, "{fresh}");
}

/// Who knows one address, as that of a Service, was refused for good while it led to a newcomer.
#[tokio::test]
async fn a_learner_that_is_ready_serves_every_call() {
    let cluster = Cluster::form_with(1, Member::serve_etcd).await;
    let mut newcomer = Member::new(cluster.home.path(), "newcomer");
    newcomer.serve_etcd();
    newcomer.start();
    let status = newcomer.status().await;
    let admin = cluster.members[0].admin().await;
    let added = admin.add_learner(addition(&status)).await.unwrap();
    let join = JoinRequest {
        cluster_id: added.cluster_id,
        member_id: added.member.expect("it says which").id,
        folder_id: status.folder_id,
    };
    newcomer.admin().await.join(join).await.unwrap();
    newcomer.ready().await;
    let mut kv = kv(&newcomer).await;
    kv.put(put("a", "1")).await.unwrap();
    let found = kv.range(get("a")).await.unwrap().into_inner();
    assert_eq!(found.kvs[0].value, "1");
    assert_eq!(newcomer.status().await.role(), Role::Learner);
}

#[tokio::test]
async fn the_cluster_is_known_and_its_lead_is_handed_over() {
    let cluster = with_changes().await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let (leader, follower) = (&cluster.members[leader], &cluster.members[follower]);
    let mut members = ClusterClient::new(channel(follower).await);
    let linearizable = MemberListRequest { linearizable: true };
    let listed = members.member_list(linearizable).await.unwrap();
    let listed = listed.into_inner();
    assert_eq!(listed.header.unwrap().revision, 0);
    let ids: Vec<_> = listed.members.iter().map(|it| it.id).collect();
    assert_eq!(ids.len(), 3);
    assert!(listed.members.iter().all(|it| !it.is_learner));
    let port = follower.etcd_port.unwrap();
    let own = follower.status().await.member_id;
    let own = listed.members.iter().find(|it| it.id == own).unwrap();
    assert_eq!(own.client_ur_ls, [format!("http://127.0.0.1:{port}")]);
    refused(
        members
            .member_promote(MemberPromoteRequest { id: 99 })
            .await,
        Code::NotFound,
        "etcdserver: member not found",
    );
    refused(
        members
            .member_promote(MemberPromoteRequest { id: ids[0] })
            .await,
        Code::FailedPrecondition,
        "etcdserver: can only promote a learner member",
    );
    let mut care = MaintenanceClient::new(channel(leader).await);
    let status = care.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.version, "3.6.0");
    assert_eq!(status.leader, leader.status().await.member_id);
    assert!(status.errors.is_empty() && !status.is_learner);
    let hash = care.hash_kv(HashKvRequest::default()).await.unwrap();
    assert_ne!(hash.into_inner().hash, 0);
    let target_id = follower.status().await.member_id;
    let move_leader = MoveLeaderRequest { target_id };
    let mut elsewhere = MaintenanceClient::new(channel(follower).await);
    refused(
        elsewhere.move_leader(move_leader).await,
        Code::FailedPrecondition,
        "etcdserver: not leader",
    );
    let nowhere = MoveLeaderRequest { target_id: 99 };
    refused(
        care.move_leader(nowhere).await,
        Code::FailedPrecondition,
        "etcdserver: bad leader transferee",
    );
    // A hand-over that was given up, as on a slow disk, is asked for again.
    eventually("the lead is handed over", || async {
        let moved = care.clone().move_leader(move_leader).await;
        let is_elsewhere = |it: Status| it.message() == "etcdserver: not leader";
        (moved.is_ok() || moved.is_err_and(is_elsewhere)).then_some(())
    })
    .await;
    becomes("the other one leads", target_id, async || {
        let status = elsewhere.clone().status(StatusRequest {}).await.unwrap();
        status.into_inner().leader
    })
    .await;
}

/// A whole request of a client that gives up early must not end its connection.
#[tokio::test]
async fn a_client_that_gives_up_many_calls_keeps_its_connection() {
    let cluster = cluster().await;
    let kv = kv(&cluster.members[0]).await;
    for _ in 0..4 {
        let calls = (0..512).map(|_| {
            let mut kv = kv.clone();
            async move {
                let call = kv.range(all());
                let _ = tokio::time::timeout(Duration::from_micros(200), call).await;
            }
        });
        futures::future::join_all(calls).await;
    }
    kv.clone().put(put("k", "v")).await.unwrap();
}
