//! Locks and elections of clients of etcd, whichever members they ask.

use std::time::Duration;

use bytes::Bytes;
use dengine_etcd::KEY_BYTES_MAX;
use dengine_etcd::etcdserverpb::kv_client::KvClient;
use dengine_etcd::etcdserverpb::lease_client::LeaseClient;
use dengine_etcd::etcdserverpb::maintenance_client::MaintenanceClient;
use dengine_etcd::etcdserverpb::{
    DefragmentRequest, LeaseGrantRequest, LeaseLeasesRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest,
};
use dengine_etcd::v3electionpb::election_client::ElectionClient;
use dengine_etcd::v3electionpb::{
    CampaignRequest, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest, ResignRequest,
};
use dengine_etcd::v3lockpb::lock_client::LockClient;
use dengine_etcd::v3lockpb::{LockRequest, LockResponse, UnlockRequest};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::harness::{Cluster, Member, becomes, eventually};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than any test takes.
const LONG: i64 = 600;

async fn cluster() -> Cluster {
    Cluster::form_with(3, Member::serve_etcd).await
}

/// A client of one member, over a connection of its own.
#[derive(Clone)]
struct EtcdClient {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    lock: LockClient<Channel>,
    election: ElectionClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
}

impl EtcdClient {
    async fn of(member: &Member) -> Self {
        let port = member.etcd_port.expect("it serves clients of etcd");
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        let channel = endpoint.connect().await.unwrap();
        Self {
            kv: KvClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            lock: LockClient::new(channel.clone()),
            election: ElectionClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel),
        }
    }

    async fn grant(&mut self, ttl: i64) -> i64 {
        let granted = self.lease.lease_grant(LeaseGrantRequest { ttl, id: 0 });
        granted.await.unwrap().into_inner().id
    }

    async fn revoke(&mut self, id: i64) {
        let revoked = self.lease.lease_revoke(LeaseRevokeRequest { id }).await;
        revoked.unwrap();
    }

    async fn lock(&mut self, name: &str, lease: i64) -> Result<LockResponse, Status> {
        let name = Bytes::copy_from_slice(name.as_bytes());
        let locked = timeout(PATIENCE, self.lock.lock(LockRequest { name, lease })).await;
        locked
            .expect("it is answered in time")
            .map(tonic::Response::into_inner)
    }

    /// Asks for the lock, and waits until it has its place.
    async fn wait_for_lock(
        &mut self,
        name: &'static str,
        lease: i64,
    ) -> JoinHandle<Result<LockResponse, Status>> {
        let mut waits = self.clone();
        let waiting = tokio::spawn(async move { waits.lock(name, lease).await });
        self.has_entered(&format!("{name}/{lease:x}")).await;
        waiting
    }

    async fn has_entered(&self, key: &str) {
        let there = async || self.clone().keys(key).await == [key];
        becomes("its key is there", true, there).await;
    }

    async fn unlock(&mut self, key: Bytes) {
        self.lock.unlock(UnlockRequest { key }).await.unwrap();
    }

    async fn campaign(&mut self, name: &str, lease: i64, value: &str) -> Result<LeaderKey, Status> {
        let campaign = CampaignRequest {
            name: Bytes::copy_from_slice(name.as_bytes()),
            lease,
            value: Bytes::copy_from_slice(value.as_bytes()),
        };
        let won = timeout(PATIENCE, self.election.campaign(campaign)).await;
        let won = won.expect("it is answered in time")?.into_inner();
        Ok(won.leader.expect("it says who leads"))
    }

    async fn leader(&mut self, name: &'static str) -> Result<LeaderResponse, Status> {
        let asked = self.election.leader(LeaderRequest { name: name.into() });
        asked.await.map(tonic::Response::into_inner)
    }

    async fn resign(&mut self, leader: LeaderKey) {
        let leader = Some(leader);
        self.election
            .resign(ResignRequest { leader })
            .await
            .unwrap();
    }

    async fn proclaim(&mut self, leader: &LeaderKey, value: &'static str) -> Result<(), Status> {
        let proclaim = ProclaimRequest {
            leader: Some(leader.clone()),
            value: value.into(),
        };
        self.election.proclaim(proclaim).await.map(drop)
    }

    /// All keys from this one on that begin with it.
    async fn keys(&mut self, prefix: &str) -> Vec<Bytes> {
        let all = RangeRequest {
            key: Bytes::copy_from_slice(prefix.as_bytes()),
            range_end: Bytes::from_static(b"\0"),
            keys_only: true,
            ..RangeRequest::default()
        };
        let found = self.kv.range(all).await.unwrap().into_inner().kvs;
        let keys = found.into_iter().map(|it| it.key);
        keys.filter(|it| it.starts_with(prefix.as_bytes()))
            .collect()
    }
}

/// What an election tells next.
async fn next(told: &mut Streaming<LeaderResponse>) -> (Bytes, Bytes) {
    let next = timeout(PATIENCE, told.message()).await;
    let next = next.expect("it is told in time").unwrap();
    let kv = next
        .expect("the stream goes on")
        .kv
        .expect("there is a leader");
    (kv.key, kv.value)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Status>, message: &str) {
    let status = result.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unknown, message));
}

#[tokio::test]
async fn a_lock_is_held_by_one_client_after_the_other() {
    let cluster = cluster().await;
    let mut one = EtcdClient::of(&cluster.members[0]).await;
    let mut other = EtcdClient::of(&cluster.members[1]).await;
    let (lease, others) = (one.grant(LONG).await, other.grant(LONG).await);
    let held = one.lock("l", lease).await.unwrap();
    assert_eq!(held.key, format!("l/{lease:x}"));
    let again = one.lock("l", lease).await.unwrap();
    assert_eq!(again.key, held.key, "the same lease has it already");
    let waits = other.wait_for_lock("l", others).await;
    assert_eq!(one.keys("l/").await.len(), 2);
    // Another name is another lock.
    other.lock("l2", others).await.unwrap();
    assert!(!waits.is_finished(), "the lock is held");
    one.unlock(held.key).await;
    let next = waits.await.unwrap().unwrap();
    assert_eq!(next.key, format!("l/{others:x}"));
    assert!(next.header.unwrap().revision > held.header.unwrap().revision);
    assert_eq!(one.keys("l/").await, [next.key]);
}

#[tokio::test]
async fn a_lease_that_ends_passes_the_lock_on_and_ends_a_wait() {
    let cluster = cluster().await;
    let mut one = EtcdClient::of(&cluster.members[0]).await;
    let mut other = EtcdClient::of(&cluster.members[1]).await;
    let [first, second, third] = [
        one.grant(LONG).await,
        one.grant(LONG).await,
        one.grant(LONG).await,
    ];
    one.lock("l", first).await.unwrap();
    let lost = other.wait_for_lock("l", second).await;
    let waits = other.wait_for_lock("l", third).await;
    one.revoke(second).await;
    refused(lost.await.unwrap(), "mutex: session is expired");
    assert!(!waits.is_finished(), "the first one holds the lock");
    one.revoke(first).await;
    waits.await.unwrap().unwrap();
    refused(
        one.lock("l", second).await,
        "etcdserver: requested lease not found",
    );
    assert_eq!(one.keys("l/").await, [format!("l/{third:x}")]);
    // Without a lease of its own a caller is given one.
    assert_eq!(one.lock("m", 0).await.unwrap().key, one.keys("m/").await[0]);
}

/// All who came later would have waited for one that is not there.
#[tokio::test]
async fn who_no_longer_waits_leaves_no_key() {
    let cluster = cluster().await;
    let mut one = EtcdClient::of(&cluster.members[0]).await;
    let mut other = EtcdClient::of(&cluster.members[1]).await;
    let [first, second, third] = [
        one.grant(LONG).await,
        one.grant(LONG).await,
        one.grant(LONG).await,
    ];
    let held = one.lock("l", first).await.unwrap();
    let leaves = other.wait_for_lock("l", second).await;
    let mut candidate = other.clone();
    one.campaign("e", first, "v").await.unwrap();
    let campaigns = tokio::spawn(async move { candidate.campaign("e", second, "w").await });
    other.has_entered(&format!("e/{second:x}")).await;
    leaves.abort();
    campaigns.abort();
    for name in ["l/", "e/"] {
        let alone = async || one.clone().keys(name).await == [format!("{name}{first:x}")];
        becomes("its key is gone", true, alone).await;
    }
    let waits = other.wait_for_lock("l", third).await;
    one.unlock(held.key).await;
    waits.await.unwrap().unwrap();
}

/// It may come again at once, with the same lease: its key must not go then.
#[tokio::test]
async fn who_cannot_wait_has_left_once_it_is_told() {
    let cluster = Cluster::form_with(1, |member| {
        member.serve_etcd();
        member.add_args(["--max-watch-streams-per-connection", "1"]);
    })
    .await;
    let mut one = EtcdClient::of(&cluster.members[0]).await;
    let mut other = EtcdClient::of(&cluster.members[0]).await;
    let (lease, others) = (one.grant(LONG).await, other.grant(LONG).await);
    let held = one.lock("l", lease).await.unwrap();
    let name = LeaderRequest { name: "e".into() };
    let told = other.election.observe(name).await.unwrap();
    refused(
        other.lock("l", others).await,
        "etcdserver: too many requests",
    );
    assert_eq!(one.keys("l/").await, [held.key]);
    drop(told);
}

/// The key that it finds may be the one that its last call has deleted: it would hold a lock whose
/// key is about to go.
#[tokio::test]
async fn who_comes_again_at_once_keeps_its_lock() {
    let cluster = Cluster::form_with(1, Member::serve_etcd).await;
    let mut one = EtcdClient::of(&cluster.members[0]).await;
    let mut other = EtcdClient::of(&cluster.members[0]).await;
    let (lease, others) = (one.grant(LONG).await, other.grant(LONG).await);
    let held = one.lock("l", lease).await.unwrap();
    let mut waits = other.wait_for_lock("l", others).await;
    for _ in 0..5 {
        waits.abort();
        // Then its call is over for the connection, too.
        let _ = waits.await;
        waits = other.wait_for_lock("l", others).await;
    }
    one.unlock(held.key).await;
    let locked = waits.await.unwrap().unwrap();
    assert_eq!(one.keys("l/").await, [locked.key]);
}

/// So it is when a client comes again before the member learns that its last call is over.
#[tokio::test]
async fn who_gives_up_takes_no_lock_from_another_call_with_its_lease() {
    let cluster = Cluster::form_with(1, Member::serve_etcd).await;
    let mut one = EtcdClient::of(&cluster.members[0]).await;
    let mut other = EtcdClient::of(&cluster.members[0]).await;
    let (lease, others) = (one.grant(LONG).await, other.grant(LONG).await);
    let held = one.lock("l", lease).await.unwrap();
    let gives_up = other.wait_for_lock("l", others).await;
    let mut again = other.clone();
    let waits = tokio::spawn(async move { again.lock("l", others).await });
    // Long enough for it to have found its key.
    other.grant(LONG).await;
    gives_up.abort();
    let _ = gives_up.await;
    other.grant(LONG).await;
    one.unlock(held.key).await;
    let locked = waits.await.unwrap().unwrap();
    assert_eq!(one.keys("l/").await, [locked.key]);
}

/// Who waits, and who observes, would have kept it in memory, however long it is.
#[tokio::test]
async fn a_name_that_is_longer_than_a_key_is_refused_before_all_else() {
    let cluster = Cluster::form_with(1, Member::serve_etcd).await;
    let mut client = EtcdClient::of(&cluster.members[0]).await;
    let name = "n".repeat(40 << 10);
    let asked = || LeaderRequest {
        name: name.clone().into(),
    };
    let too_large = "etcdserver: request is too large";
    refused(client.lock(&name, 0).await, too_large);
    refused(client.campaign(&name, 0, "v").await, too_large);
    refused(client.election.leader(asked()).await.map(drop), too_large);
    refused(client.election.observe(asked()).await.map(drop), too_large);
    let leases = client.lease.lease_leases(LeaseLeasesRequest {}).await;
    let leases = leases.unwrap().into_inner().leases;
    assert!(leases.is_empty(), "none was granted: {leases:?}");
}

/// Who waits keeps its key several times: a crowd with the longest names took all memory.
#[tokio::test]
async fn a_crowd_with_long_names_has_no_more_memory_than_its_share() {
    const CROWD: usize = 300;
    let cluster = Cluster::form_with(1, Member::serve_etcd).await;
    let mut client = EtcdClient::of(&cluster.members[0]).await;
    let name = "n".repeat(KEY_BYTES_MAX - 17);
    let held = client.lock(&name, 0).await.unwrap();
    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        let (mut one, name) = (client.clone(), name.clone());
        crowd.spawn(async move { one.lock(&name, 0).await });
    }
    let told = crowd.join_next().await.expect("not all may wait").unwrap();
    refused(told, "etcdserver: too many requests");
    // It needs far less.
    client.lock("short", 0).await.unwrap();
    // What they had comes back once they are gone and their keys are deleted.
    drop(crowd);
    client.unlock(held.key).await;
    client.lock(&name, 0).await.unwrap();
}

#[tokio::test]
async fn a_lock_outlives_the_leader() {
    let mut cluster = cluster().await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let third = (0..3).find(|it| ![leader, follower].contains(it)).unwrap();
    let mut holder = EtcdClient::of(&cluster.members[leader]).await;
    let mut waiter = EtcdClient::of(&cluster.members[follower]).await;
    let (lease, waiters) = (holder.grant(LONG).await, waiter.grant(LONG).await);
    let held = holder.lock("l", lease).await.unwrap();
    let waits = waiter.wait_for_lock("l", waiters).await;
    cluster.members[leader].kill();
    let member = &cluster.members[third];
    eventually("another member leads", async || {
        let mut client = EtcdClient::of(member).await;
        let put = PutRequest {
            key: "k".into(),
            ..PutRequest::default()
        };
        client.kv.put(put).await.ok()
    })
    .await;
    let mut elsewhere = EtcdClient::of(member).await;
    assert_eq!(elsewhere.keys("l/").await.len(), 2);
    assert!(!waits.is_finished(), "the lock is held");
    elsewhere.unlock(held.key).await;
    waits.await.unwrap().unwrap();
}

#[tokio::test]
async fn who_leads_is_observed_and_another_comes_after_it() {
    let cluster = cluster().await;
    let mut one = EtcdClient::of(&cluster.members[0]).await;
    let mut other = EtcdClient::of(&cluster.members[1]).await;
    let mut observer = EtcdClient::of(&cluster.members[2]).await;
    refused(observer.leader("e").await, "election: no leader");
    let name = LeaderRequest { name: "e".into() };
    let mut told = observer.election.observe(name).await.unwrap().into_inner();
    let (lease, others) = (one.grant(LONG).await, other.grant(LONG).await);
    let leads = one.campaign("e", lease, "one").await.unwrap();
    assert_eq!((&leads.name[..], leads.lease), (&b"e"[..], lease));
    assert_eq!(next(&mut told).await, (leads.key.clone(), "one".into()));
    let seen = observer.leader("e").await.unwrap().kv.unwrap();
    assert_eq!(
        (seen.key, seen.create_revision),
        (leads.key.clone(), leads.rev)
    );

    let campaign = {
        let mut other = other.clone();
        tokio::spawn(async move { other.campaign("e", others, "two").await })
    };
    other.has_entered(&format!("e/{others:x}")).await;
    one.proclaim(&leads, "one more").await.unwrap();
    assert_eq!(
        next(&mut told).await,
        (leads.key.clone(), "one more".into())
    );
    assert!(!campaign.is_finished(), "there is a leader");
    one.resign(leads.clone()).await;
    let comes = campaign.await.unwrap().unwrap();
    assert_eq!(next(&mut told).await, (comes.key.clone(), "two".into()));

    refused(one.proclaim(&leads, "late").await, "election: not leader");
    // It is the other's by now, and stays.
    one.resign(leads).await;
    assert_eq!(
        observer.leader("e").await.unwrap().kv.unwrap().key,
        comes.key
    );
    let again = other.campaign("e", others, "three").await.unwrap();
    assert_eq!(again, comes, "it leads already");
    assert_eq!(next(&mut told).await, (comes.key.clone(), "three".into()));
    other.revoke(others).await;
    refused(observer.leader("e").await, "election: no leader");
    let nobody = ResignRequest { leader: None };
    let refusal = one.election.resign(nobody).await;
    refused(refusal, "\"leader\" field must be provided");
}

#[tokio::test]
async fn a_member_defragments_when_it_is_told_to() {
    let cluster = cluster().await;
    let mut client = EtcdClient::of(&cluster.members[0]).await;
    let put = PutRequest {
        key: "k".into(),
        value: "v".into(),
        ..PutRequest::default()
    };
    client.kv.put(put).await.unwrap();
    let done = client.maintenance.defragment(DefragmentRequest {}).await;
    assert_eq!(done.unwrap().into_inner().header, None);
    assert_eq!(client.keys("k").await, ["k"]);
}
