//! Values of a megabyte: replicated like others, and nobody is deposed for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dengine_client::{Client, ClientOptions, RetryPolicy};
use dengine_protocol::v1::PutRequest;
use dengine_protocol::v1::kv_client::KvClient;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::harness::{Cluster, Member, eventually};

const MEGABYTE: usize = 1_000_000;
const CLIENTS: usize = 64;

/// Every failure counts.
async fn client_without_retries(cluster: &Cluster) -> Client {
    let options = ClientOptions {
        connections: 8,
        request_timeout: Duration::from_secs(60),
        retry: RetryPolicy::NONE,
        ..ClientOptions::default()
    };
    Client::connect_with(cluster.endpoints(), options)
        .await
        .unwrap()
}

/// `puts` of them by 64 clients at once: none fails, and nobody else comes to lead.
pub(crate) async fn put_by_64_clients(puts: usize) {
    let patient = |member: &mut Member| member.add_args(["--request-timeout-ms", "60000"]);
    let cluster = Cluster::form_with(3, patient).await;
    let before = cluster.members[cluster.leader().await].status().await;
    let client = client_without_retries(&cluster).await;
    let mut writers = JoinSet::new();
    for writer in 0..CLIENTS {
        let client = client.clone();
        writers.spawn(async move {
            for n in (writer..puts).step_by(CLIENTS) {
                let value = vec![n as u8; MEGABYTE];
                let put = client.put(format!("large/{n}"), value).await;
                put.unwrap_or_else(|error| panic!("put {n} of {puts}: {error}"));
            }
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer.expect("no put fails");
    }
    let written = cluster.members[cluster.leader().await].status().await;
    for member in &cluster.members {
        let after = eventually("it has all of them", || async {
            let status = member.status().await;
            (status.applied_index >= written.commit_index).then_some(status)
        })
        .await;
        assert_eq!(
            (after.leader_id, after.term),
            (before.leader_id, before.term),
            "no election was needed"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_a_megabyte_are_replicated_without_an_election() {
    put_by_64_clients(300).await;
}

/// By entries alone: the log keeps them for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_50_mb_behind_catches_up_under_10_mb_a_second() {
    const BEHIND: usize = 50;
    const A_SECOND: u32 = 10;
    let mut cluster = Cluster::form(3).await;
    let away = cluster.follower().await;
    cluster.members[away].kill();
    let client = client_without_retries(&cluster).await;
    for n in 0..BEHIND {
        let value = vec![n as u8; MEGABYTE];
        eventually("it is written", || async {
            client.put(format!("behind/{n}"), value.clone()).await.ok()
        })
        .await;
    }
    let leader = cluster.leader().await;
    let before = cluster.members[leader].status().await;
    let stop = tokio_util::sync::CancellationToken::new();
    let writer = tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
        let begun = Instant::now();
        for n in 0_u32.. {
            tokio::time::sleep_until(begun + Duration::from_secs(1) * n / A_SECOND).await;
            let value = vec![n as u8; MEGABYTE];
            client.put(format!("beside/{n}"), value).await.unwrap();
        }
    }));
    cluster.members[away].start();
    cluster.members[away].ready().await;
    eventually("it is at most a second behind", || async {
        let leads = cluster.members[leader].status().await.commit_index;
        let follows = cluster.members[away].status().await;
        (follows.applied_index + u64::from(A_SECOND) >= leads).then_some(())
    })
    .await;
    stop.cancel();
    assert!(writer.await.unwrap().is_none(), "no put failed");
    let after = cluster.members[leader].status().await;
    assert_eq!(
        (after.leader_id, after.term),
        (before.leader_id, before.term),
        "no election was needed"
    );
    let follower = cluster.members[away].logged();
    assert!(
        !follower.contains("installing a snapshot"),
        "it was sent entries: {follower}"
    );
}

/// A client at that address.
async fn from(member: &Member, last: u8) -> KvClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", member.address()));
    let address = [127, 0, 0, last].into();
    let endpoint = endpoint.unwrap().local_address(Some(address));
    KvClient::new(endpoint.connect().await.unwrap())
}

/// They were all that may wait, and the writes of everybody else were refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_values_of_one_client_leave_room_for_others() {
    const ALL_BYTES: &str = "8388608";
    let limited =
        |member: &mut Member| member.add_args(["--max-pending-proposal-bytes", ALL_BYTES]);
    let cluster = Cluster::form_with(3, limited).await;
    let put = |key: String, bytes: usize| PutRequest {
        key: key.into(),
        value: vec![0; bytes].into(),
        ..PutRequest::default()
    };
    for member in [cluster.leader().await, cluster.follower().await] {
        let member = &cluster.members[member];
        let mut greedy = JoinSet::new();
        let refused = Arc::new(AtomicUsize::new(0));
        for writer in 0..24 {
            let (mut client, refused) = (from(member, 1).await, Arc::clone(&refused));
            greedy.spawn(async move {
                for _ in 0..20 {
                    match client.put(put(format!("greedy/{writer}"), MEGABYTE)).await {
                        Err(status) if status.code() == Code::ResourceExhausted => {
                            refused.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                        written => drop(written.unwrap()),
                    }
                }
            });
        }
        let mut other = from(member, 2).await;
        while !greedy.is_empty() {
            while let Some(done) = greedy.try_join_next() {
                done.unwrap();
            }
            let put = other.put(put("other".to_owned(), MEGABYTE / 10)).await;
            put.expect("there is room for others");
        }
        assert!(
            refused.load(Ordering::Relaxed) > 0,
            "it wanted more than there is"
        );
    }
}
