//! Leases of clients of etcd: granted, kept alive, revoked and expired, whichever member is asked.

use std::time::Duration;

use bytes::Bytes;
use dengine_etcd::etcdserverpb::kv_client::KvClient;
use dengine_etcd::etcdserverpb::lease_client::LeaseClient;
use dengine_etcd::etcdserverpb::watch_client::WatchClient;
use dengine_etcd::etcdserverpb::watch_request::RequestUnion;
use dengine_etcd::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use dengine_etcd::mvccpb::event::EventType;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::harness::{Cluster, Member, becomes, eventually};

/// Longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(30);

async fn cluster() -> Cluster {
    Cluster::form_with(3, Member::serve_etcd).await
}

/// A client of one member.
struct EtcdClient {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    watch: WatchClient<Channel>,
}

impl EtcdClient {
    async fn of(member: &Member) -> Self {
        let port = member.etcd_port.expect("it serves clients of etcd");
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        let channel = endpoint.connect().await.unwrap();
        Self {
            kv: KvClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            watch: WatchClient::new(channel),
        }
    }

    async fn grant(&mut self, id: i64, ttl: i64) -> Result<LeaseGrantResponse, Status> {
        let granted = self.lease.lease_grant(LeaseGrantRequest { ttl, id }).await;
        granted.map(tonic::Response::into_inner)
    }

    async fn revoke(&mut self, id: i64) -> Result<(), Status> {
        let revoked = self.lease.lease_revoke(LeaseRevokeRequest { id }).await;
        revoked.map(drop)
    }

    async fn keep_alive(&mut self, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
        let request = tokio_stream::once(LeaseKeepAliveRequest { id });
        let mut answers = self.lease.lease_keep_alive(request).await?.into_inner();
        Ok(answers.message().await?.expect("it is answered"))
    }

    async fn time_to_live(&mut self, id: i64) -> LeaseTimeToLiveResponse {
        let asked = LeaseTimeToLiveRequest { id, keys: true };
        let answer = self.lease.lease_time_to_live(asked).await;
        answer.unwrap().into_inner()
    }

    async fn leases(&mut self) -> Vec<i64> {
        let listed = self.lease.lease_leases(LeaseLeasesRequest {}).await;
        let listed = listed.unwrap().into_inner().leases;
        listed.into_iter().map(|it| it.id).collect()
    }

    async fn put(&mut self, key: &str, lease: i64) -> Result<(), Status> {
        let put = PutRequest {
            lease,
            ..put(key, "v")
        };
        self.kv.put(put).await.map(drop)
    }

    /// The lease of a key; `None`: there is no such key.
    async fn lease_of(&mut self, key: &str) -> Option<i64> {
        let get = RangeRequest {
            key: key.to_owned().into(),
            ..RangeRequest::default()
        };
        let found = self.kv.range(get).await.unwrap().into_inner();
        found.kvs.first().map(|it| it.lease)
    }

    /// Watches all keys.
    async fn watch(&mut self) -> Streaming<WatchResponse> {
        let create = WatchCreateRequest {
            key: "\0".into(),
            range_end: "\0".into(),
            ..WatchCreateRequest::default()
        };
        let request_union = Some(RequestUnion::CreateRequest(create));
        let asked = tokio_stream::once(WatchRequest { request_union });
        // The stream of requests stays open: its end would be that of the watch.
        let asked = asked.chain(tokio_stream::pending());
        let mut answers = self.watch.watch(asked).await.unwrap().into_inner();
        assert!(next(&mut answers).await.created);
        answers
    }
}

async fn next(answers: &mut Streaming<WatchResponse>) -> WatchResponse {
    let next = timeout(PATIENCE, answers.message()).await;
    let next = next.expect("there is a message in time").unwrap();
    next.expect("the stream goes on")
}

fn put(key: &str, value: &str) -> PutRequest {
    PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..PutRequest::default()
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, message: &str) {
    let status = result.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

#[track_caller]
fn not_found<T: std::fmt::Debug>(result: Result<T, Status>) {
    refused(
        result,
        Code::NotFound,
        "etcdserver: requested lease not found",
    );
}

#[tokio::test]
async fn leases_are_served_at_every_member() {
    let cluster = cluster().await;
    for (place, member) in cluster.members.iter().enumerate() {
        let mut client = EtcdClient::of(member).await;
        let granted = client.grant(0, 600).await.unwrap();
        let id = granted.id;
        assert!(id > 0 && granted.ttl == 600, "{granted:?}");
        assert_eq!(
            client.leases().await,
            [id],
            "it is known where it was granted"
        );
        let keys = [format!("a{place}"), format!("b{place}")];
        for key in &keys {
            client.put(key, id).await.unwrap();
        }
        assert_eq!(client.lease_of(&keys[0]).await, Some(id));
        let kept = client.keep_alive(id).await.unwrap();
        assert_eq!((kept.id, kept.ttl), (id, 600));
        assert!(kept.header.unwrap().revision > granted.header.unwrap().revision);
        let known = client.time_to_live(id).await;
        let attached = keys.clone().map(Bytes::from);
        assert_eq!((known.granted_ttl, &known.keys[..]), (600, &attached[..]));
        assert!((590..=600).contains(&known.ttl), "{known:?}");

        let mut watch = client.watch().await;
        client.revoke(id).await.unwrap();
        let deleted = next(&mut watch).await.events;
        let revisions: Vec<_> = deleted
            .iter()
            .map(|it| {
                assert_eq!(it.r#type(), EventType::Delete);
                it.kv.as_ref().unwrap().mod_revision
            })
            .collect();
        assert_eq!(revisions, [revisions[0]; 2], "all keys go in one revision");
        assert_eq!(client.lease_of(&keys[0]).await, None);
        assert!(client.leases().await.is_empty());
        not_found(client.revoke(id).await);
        not_found(client.put("c", id).await);
        assert_eq!(client.keep_alive(id).await.unwrap().ttl, 0);
        let gone = client.time_to_live(id).await;
        assert_eq!((gone.id, gone.ttl, gone.granted_ttl), (id, -1, 0));
    }
}

#[tokio::test]
async fn a_lease_is_refused_in_etcds_words_or_lasts_as_long_as_an_election() {
    let cluster = cluster().await;
    let mut client = EtcdClient::of(&cluster.members[cluster.follower().await]).await;
    let granted = client.grant(-7, 600).await.unwrap();
    assert_eq!(granted.id, -7);
    refused(
        client.grant(-7, 600).await,
        Code::FailedPrecondition,
        "etcdserver: lease already exists",
    );
    refused(
        client.grant(0, 9_000_000_001).await,
        Code::OutOfRange,
        "etcdserver: too large lease TTL",
    );
    let longest = client.grant(8, 9_000_000_000).await.unwrap();
    assert_eq!(longest.ttl, 9_000_000_000);
    let shortest = client.grant(9, 0).await.unwrap();
    assert!((1..=3).contains(&shortest.ttl), "{shortest:?}");
    not_found(client.revoke(0).await);

    client.put("k", -7).await.unwrap();
    let kept = PutRequest {
        ignore_lease: true,
        ..put("k", "other")
    };
    client.kv.put(kept).await.unwrap();
    assert_eq!(client.lease_of("k").await, Some(-7));
    client.put("k", 0).await.unwrap();
    assert_eq!(
        client.lease_of("k").await,
        Some(0),
        "a put detaches the key"
    );
    client.revoke(-7).await.unwrap();
    assert_eq!(client.lease_of("k").await, Some(0), "it stays");
}

/// Both of its keys go at once, at every member.
#[tokio::test]
async fn a_lease_that_nobody_keeps_alive_ends_with_its_keys() {
    let cluster = cluster().await;
    let mut client = EtcdClient::of(&cluster.members[cluster.follower().await]).await;
    let id = client.grant(0, 3).await.unwrap().id;
    client.put("a", id).await.unwrap();
    client.put("b", id).await.unwrap();
    let mut watch = client.watch().await;
    // For longer than it lasts by itself.
    for _ in 0..6 {
        assert!(client.keep_alive(id).await.unwrap().ttl > 0);
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(client.lease_of("a").await, Some(id));
    let ended = next(&mut watch).await.events;
    let revision = ended[0].kv.as_ref().unwrap().mod_revision;
    let keys: Vec<_> = ended.iter().map(|it| it.kv.as_ref().unwrap()).collect();
    assert!(
        keys.iter().all(|it| it.mod_revision == revision),
        "{keys:?}"
    );
    assert_eq!(keys.len(), 2);
    let gone = async || client_leases(&cluster).await.concat().is_empty();
    becomes("no member has the lease", true, gone).await;
}

/// The lists of all members.
async fn client_leases(cluster: &Cluster) -> Vec<Vec<i64>> {
    let mut all = Vec::new();
    for member in &cluster.members {
        all.push(EtcdClient::of(member).await.leases().await);
    }
    all
}

/// The new leader would have ended it by what it knows itself, or never.
#[tokio::test]
async fn a_lease_that_is_kept_alive_outlives_its_leader() {
    let mut cluster = cluster().await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let mut client = EtcdClient::of(&cluster.members[follower]).await;
    let id = client.grant(0, 10).await.unwrap().id;
    client.put("k", id).await.unwrap();
    assert_eq!(client.keep_alive(id).await.unwrap().ttl, 10);
    cluster.members[leader].kill();
    // A client of etcd begins its stream again upon what is UNAVAILABLE.
    let kept = eventually("the lease is kept alive by another leader", async || {
        let mut client = EtcdClient::of(&cluster.members[follower]).await;
        client.keep_alive(id).await.ok()
    });
    assert_eq!(kept.await.ttl, 10);
    assert_eq!(client.lease_of("k").await, Some(id));
    client.revoke(id).await.unwrap();
    assert_eq!(client.lease_of("k").await, None);
}

#[tokio::test]
async fn without_a_leader_nothing_is_known_of_a_lease() {
    let mut cluster = cluster().await;
    let follower = cluster.follower().await;
    let mut client = EtcdClient::of(&cluster.members[follower]).await;
    let id = client.grant(0, 600).await.unwrap().id;
    for (place, member) in cluster.members.iter_mut().enumerate() {
        if place != follower {
            member.kill();
        }
    }
    let status = client.keep_alive(id).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().starts_with("etcdserver: "), "{status}");
    assert_eq!(client.leases().await, [id], "the list is this member's");
}
