//! Each read level is what it says, and no more.

use std::time::Duration;

use dengine_client::{Client, ClientOptions, Consistency, Error, Position, RetryPolicy};
use tonic::Code;

use crate::harness::{Cluster, Member, eventually};
use crate::health::counter;

/// Patient with the member, and told every failure.
async fn client(member: &Member) -> Client {
    let options = ClientOptions {
        request_timeout: Duration::from_secs(30),
        retry: RetryPolicy::NONE,
        spread_reads: true,
        ..ClientOptions::default()
    };
    Client::connect_with([member.address()], options)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_session_read_waits_for_what_was_seen_and_an_eventual_one_does_not() {
    let cluster = Cluster::form(3).await;
    let follower = cluster.follower().await;
    let writer = cluster.client().await;
    let seen = writer.put("k", "old").await.unwrap().header;
    let reader = client(&cluster.members[follower]).await;
    let ahead = Position {
        cluster_id: seen.cluster_id,
        revision: seen.revision + 3,
    };
    let waiting = tokio::spawn({
        let reader = reader.clone();
        reader.saw(ahead);
        async move { reader.get("k", Consistency::Session).await }
    });
    let eventual = reader.get("k", Consistency::Eventual).await.unwrap();
    assert!(eventual.header.revision < ahead.revision);
    assert!(!waiting.is_finished(), "what was seen is not there yet");
    for value in ["a", "b", "new"] {
        writer.put("k", value).await.unwrap();
    }
    let read = waiting.await.unwrap().unwrap();
    assert_eq!(&read.kv.unwrap().value[..], b"new");
    assert!(read.header.revision >= ahead.revision);
}

#[tokio::test]
async fn without_a_quorum_a_session_read_is_served_up_to_what_the_member_has() {
    let mut cluster = Cluster::form_with(3, |member| {
        member.add_args(["--request-timeout-ms", "1000"]);
    })
    .await;
    let writer = cluster.client().await;
    let put = || async { writer.put("k", "v").await.ok() };
    let seen = eventually("a write is acknowledged", put).await.header;
    let survivor = cluster.leader().await;
    for place in 0..3 {
        if place != survivor {
            cluster.members[place].kill();
        }
    }
    let reader = client(&cluster.members[survivor]).await;
    reader.saw(Position {
        cluster_id: seen.cluster_id,
        revision: seen.revision,
    });
    let read = reader.get("k", Consistency::Session).await.unwrap();
    assert_eq!(&read.kv.unwrap().value[..], b"v");
    for fresh in [Consistency::Linearizable, Consistency::Lease] {
        eventually("without a quorum nothing fresh is served", || async {
            let read = reader.get("k", fresh).await;
            matches!(read, Err(Error::Unavailable { .. } | Error::Timeout { .. })).then_some(())
        })
        .await;
    }
    reader.saw(Position {
        cluster_id: seen.cluster_id,
        revision: seen.revision + 1,
    });
    let error = reader.get("k", Consistency::Session).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let stranger = client(&cluster.members[survivor]).await;
    stranger.saw(Position {
        cluster_id: seen.cluster_id ^ 1,
        revision: 1,
    });
    let error = stranger.get("k", Consistency::Session).await.unwrap_err();
    let refused = matches!(
        &error,
        Error::Refused {
            code: Code::FailedPrecondition,
            ..
        }
    );
    assert!(refused, "{error}");
}

#[tokio::test]
async fn every_level_reads_ones_own_writes_but_eventual() {
    let cluster = Cluster::form(3).await;
    for member in &cluster.members {
        let client = client(member).await;
        for (n, level) in [
            Consistency::Linearizable,
            Consistency::Lease,
            Consistency::Session,
        ]
        .into_iter()
        .cycle()
        .take(30)
        .enumerate()
        {
            let value = n.to_string();
            let put = client.put("own", value.clone()).await.unwrap().header;
            let read = client.get("own", level).await.unwrap();
            assert_eq!(read.kv.unwrap().value, value, "{level:?}");
            assert!(read.header.revision >= put.revision);
        }
    }
}

/// How many rounds of messages `count` reads at the leader cost, one after the other, and how many
/// the lease answered.
async fn cost(leader: &Member, level: Consistency, count: u64) -> (u64, u64) {
    let client = client(leader).await;
    let all = || async {
        let confirmed = counter(leader, "dengine_reads_confirmed_total").await;
        let rounds = counter(leader, "dengine_read_rounds_total").await;
        (
            confirmed,
            rounds,
            counter(leader, "dengine_lease_reads_total").await,
        )
    };
    client.get("k", level).await.unwrap();
    let before = all().await;
    for _ in 0..count {
        client.get("k", level).await.unwrap();
    }
    // They are counted once a tick.
    let after = eventually("all reads are counted", || async {
        Some(all().await).filter(|after| after.0 >= before.0 + count)
    })
    .await;
    (after.1 - before.1, after.2 - before.2)
}

#[tokio::test]
async fn lease_reads_cost_no_rounds_and_linearizable_ones_do() {
    let cluster = Cluster::form(3).await;
    cluster.client().await.put("k", "v").await.unwrap();
    let leader = &cluster.members[cluster.leader().await];
    let (rounds, by_lease) = cost(leader, Consistency::Linearizable, 500).await;
    assert!(rounds >= 499 && by_lease == 0, "{rounds} {by_lease}");
    let (rounds, by_lease) = cost(leader, Consistency::Lease, 1000).await;
    // The lease itself is renewed now and then, and may lapse on a busy machine.
    assert!(by_lease > 500 && rounds < 500, "{rounds} {by_lease}");
}

/// Found by torture: a client that meets a member which was wiped, and is about to join again, has
/// to ask another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_a_cluster_refuses_a_session_read_for_now_and_not_for_ever() {
    let cluster = Cluster::start(1, |_| {});
    let client = cluster.members[0].client().await;
    client.saw(Position {
        cluster_id: 77,
        revision: 3,
    });
    let read = client.get("k", Consistency::Session).await;
    assert!(matches!(read, Err(Error::Unavailable { .. })), "{read:?}");
}
