//! Who had others wait for a write that visits much rests before the next one, and nobody rests in
//! its place.

use std::time::{Duration, Instant};

use dengine_protocol::FRAME_BYTES_MAX;
use dengine_protocol::v1::kv_client::KvClient;
use dengine_protocol::v1::operation::{self, Operation as What};
use dengine_protocol::v1::{BatchRequest, CompactRequest, DeleteRequest, Operation, PutRequest};
use futures::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::harness::{Cluster, Member};

/// Deleted keys count for as long as history holds them, so that they can be deleted again and
/// again.
const KEYS: usize = 30_000;
/// What is not held up takes far less, and a rest more.
const LONG: Duration = Duration::from_secs(2);

/// A client at that address.
async fn from(member: &Member, last: u8) -> KvClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", member.address()));
    let endpoint = endpoint
        .unwrap()
        .local_address(Some([127, 0, 0, last].into()));
    KvClient::new(endpoint.connect().await.unwrap())
}

/// Of keys that begin with that.
fn deletes(prefix: &str) -> DeleteRequest {
    DeleteRequest {
        key: prefix.to_owned().into(),
        range_end: format!("{prefix}~").into(),
        ..DeleteRequest::default()
    }
}

fn put(key: String) -> PutRequest {
    PutRequest {
        key: key.into(),
        ..PutRequest::default()
    }
}

async fn fill(member: &Member) {
    let kv = from(member, 1).await;
    for part in 0..KEYS / 1_000 {
        let puts = (0..1_000).map(|n| put(format!("many-{part}-{n}")));
        let puts = puts.map(|put| {
            let mut kv = kv.clone();
            async move { kv.put(put).await.unwrap() }
        });
        join_all(puts).await;
    }
}

/// Somebody else who is served: else nobody waits for anybody.
async fn somebody(member: &Member) -> JoinHandle<()> {
    let mut kv = from(member, 9).await;
    tokio::spawn(async move {
        loop {
            // What became of it is for the test to judge.
            let _ = kv.put(put("else".into())).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

async fn took(kv: &mut KvClient<Channel>, delete: DeleteRequest) -> Duration {
    let begun = Instant::now();
    kv.delete(delete).await.unwrap();
    begun.elapsed()
}

/// What is proposed is applied, whether anybody still waits or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_rests_as_well() {
    let cluster = Cluster::form(1).await;
    let member = &cluster.members[0];
    fill(member).await;
    let somebody = somebody(member).await;
    let mut other = from(member, 3).await;
    let mut leaver = from(member, 2).await;
    // The first of them may leave before it is proposed.
    for _ in 0..20 {
        let _ = timeout(Duration::from_millis(3), leaver.delete(deletes("many"))).await;
    }
    assert!(took(&mut other, deletes("few")).await < LONG);
    assert!(took(&mut leaver, deletes("few")).await > LONG);
    somebody.abort();
}

/// The leader hears of all of them from one address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_through_a_follower_rests_there_and_others_do_not() {
    let cluster = Cluster::form(3).await;
    let leader = cluster.leader().await;
    fill(&cluster.members[leader]).await;
    let somebody = somebody(&cluster.members[leader]).await;
    let follower = &cluster.members[cluster.follower().await];
    let (mut heavy, mut other) = (from(follower, 2).await, from(follower, 3).await);
    assert!(took(&mut heavy, deletes("many")).await < LONG);
    assert!(took(&mut other, deletes("few")).await < LONG);
    assert!(took(&mut heavy, deletes("few")).await > LONG);
    somebody.abort();
}

/// What is larger than a frame is passed on alone, and told what it cost all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_a_large_batch_through_a_follower_rests_as_well() {
    let cluster = Cluster::form(3).await;
    let leader = cluster.leader().await;
    fill(&cluster.members[leader]).await;
    let somebody = somebody(&cluster.members[leader]).await;
    let follower = &cluster.members[cluster.follower().await];
    let mut heavy = from(follower, 2).await;
    let many = deletes("many");
    let delete = operation::Delete {
        key: many.key,
        range_end: many.range_end,
        prev_kv: false,
    };
    let large = operation::Put {
        key: "large".into(),
        value: vec![7; FRAME_BYTES_MAX + 1].into(),
        ..operation::Put::default()
    };
    let then = [What::Delete(delete), What::Put(large)];
    let batch = BatchRequest {
        then: then
            .map(|it| Operation {
                operation: Some(it),
            })
            .into(),
        ..BatchRequest::default()
    };
    heavy.batch(batch).await.unwrap();
    assert!(took(&mut heavy, deletes("few")).await > LONG);
    somebody.abort();
}

/// The leader serves nobody else, as far as it can see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_through_the_same_follower_as_all_others_rests() {
    let cluster = Cluster::form(3).await;
    let leader = cluster.leader().await;
    fill(&cluster.members[leader]).await;
    let follower = &cluster.members[cluster.follower().await];
    let somebody = somebody(follower).await;
    let mut heavy = from(follower, 2).await;
    // Who filled was served by the leader a moment ago.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(took(&mut heavy, deletes("many")).await < LONG);
    assert!(took(&mut heavy, deletes("few")).await > LONG);
    somebody.abort();
}

/// No bound counts what was deleted and compacted, and it takes as long to step over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_steps_over_what_is_gone_rests_as_well() {
    let cluster = Cluster::form(1).await;
    let member = &cluster.members[0];
    fill(member).await;
    let somebody = somebody(member).await;
    let mut other = from(member, 3).await;
    other.delete(deletes("many")).await.unwrap();
    let revision = other.put(put("later".into())).await.unwrap().into_inner();
    let revision = revision.header.unwrap().revision;
    other
        .compact(CompactRequest {
            revision,
            ..CompactRequest::default()
        })
        .await
        .unwrap();
    let mut heavy = from(member, 2).await;
    assert!(took(&mut heavy, deletes("many")).await < LONG);
    assert!(took(&mut heavy, deletes("few")).await > LONG);
    somebody.abort();
}

/// It visited as many keys as it may before it was refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_refused_rests_as_well() {
    let cluster = Cluster::form(1).await;
    let member = &cluster.members[0];
    let kv = from(member, 1).await;
    // Together beyond the bytes that one may visit.
    for part in 0..14 {
        let puts = (0..10).map(|n| PutRequest {
            key: format!("large-{part}-{n}").into(),
            value: vec![0; 1_000_000].into(),
            ..PutRequest::default()
        });
        let puts = puts.map(|put| {
            let mut kv = kv.clone();
            async move { kv.put(put).await.unwrap() }
        });
        join_all(puts).await;
    }
    let somebody = somebody(member).await;
    let mut greedy = from(member, 2).await;
    let refused = greedy.delete(deletes("large")).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(took(&mut greedy, deletes("few")).await > LONG);
    somebody.abort();
}

/// With nobody else there, all is as fast as it can be.
#[tokio::test]
async fn whoever_is_alone_never_rests() {
    let cluster = Cluster::form(1).await;
    let member = &cluster.members[0];
    fill(member).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut alone = from(member, 1).await;
    for _ in 0..3 {
        assert!(took(&mut alone, deletes("many")).await < LONG);
    }
}
