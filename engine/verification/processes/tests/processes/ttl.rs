//! Keys that expire: not before their time, and everywhere at the same revision.

use std::time::{Duration, Instant};

use dengine_client::{Consistency, EventKind, Expected, KeyRange, WatchUpdate};

use crate::harness::{Cluster, becomes, eventually};

#[tokio::test]
async fn a_key_expires_in_its_time_and_a_plain_put_keeps_it() {
    let cluster = Cluster::form(3).await;
    let client = cluster.client().await;
    let ttl = Duration::from_millis(1500);
    let begun = Instant::now();
    let put = client.put_with_ttl("short", "v", ttl).await.unwrap();
    client.put_with_ttl("kept", "v", ttl).await.unwrap();
    client.put("kept", "for good").await.unwrap();
    let swap = client.compare_and_swap_with("swapped", Expected::Absent, "v", Some(ttl));
    assert!(swap.await.unwrap().succeeded);
    let read = client
        .get("short", Consistency::Linearizable)
        .await
        .unwrap();
    if let Some(kv) = read.kv {
        assert_eq!(kv.ttl, Some(ttl));
    }
    let watched = dengine_client::WatchQuery::new(KeyRange::key("short"));
    let mut watch = client
        .watch(watched.from_revision(put.header.revision).only_deletes())
        .await
        .unwrap();
    let WatchUpdate::Events { events, .. } = watch.next().await.unwrap() else {
        panic!("no progress was asked for");
    };
    assert!(begun.elapsed() >= ttl, "it died early");
    assert_eq!((events.len(), events[0].kind), (1, EventKind::Delete));
    for member in &cluster.members {
        let client = member.client().await;
        eventually("both are gone", || async {
            let mut gone = true;
            for key in ["short", "swapped"] {
                let read = client.get(key, Consistency::Linearizable).await.ok()?;
                gone &= read.kv.is_none();
            }
            gone.then_some(())
        })
        .await;
        let kept = client.get("kept", Consistency::Linearizable).await.unwrap();
        assert_eq!(kept.kv.unwrap().ttl, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_outlives_the_leader_that_knew_its_time_and_expires_all_the_same() {
    let mut cluster = Cluster::form(3).await;
    let client = cluster.client().await;
    let ttl = Duration::from_millis(1500);
    let begun = Instant::now();
    client.put_with_ttl("k", "v", ttl).await.unwrap();
    let leader = cluster.leader().await;
    cluster.members[leader].kill();
    eventually("the key is gone", || async {
        let read = client.get("k", Consistency::Linearizable).await.ok()?;
        read.kv.is_none().then_some(())
    })
    .await;
    assert!(begun.elapsed() >= ttl, "it died early");
}

/// Nothing else shows that readers still see what should be gone.
#[tokio::test]
async fn how_far_expiry_is_behind_is_a_metric() {
    let cluster = Cluster::form(1).await;
    let client = cluster.client().await;
    let ttl = Duration::from_millis(200);
    client.put_with_ttl("k", "v", ttl).await.unwrap();
    eventually("it is gone", || async {
        let read = client.get("k", Consistency::Linearizable).await.ok()?;
        read.kv.is_none().then_some(())
    })
    .await;
    becomes("nothing is behind", true, || async {
        let metrics = crate::health::scrape(cluster.members[0].monitor_port).await;
        metrics.contains("\ndengine_expiry_behind_seconds 0\n")
    })
    .await;
}
