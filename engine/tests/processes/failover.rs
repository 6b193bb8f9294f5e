//! Acknowledged means kept, and a linearizable read never goes back, whoever dies.

use dengine_client::{Consistency, RangeQuery};

use crate::harness::{Cluster, Load};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_the_leader_under_load_loses_nothing_and_no_read_goes_back() {
    let mut cluster = Cluster::form(3).await;
    let client = cluster.client().await;
    let load = Load::start(&client);
    load.progress(200).await;
    for _ in 0..3 {
        let leader = cluster.leader().await;
        cluster.members[leader].kill();
        // Two of three go on without it.
        load.progress(100).await;
        cluster.members[leader].start();
        cluster.members[leader].ready().await;
        load.progress(100).await;
    }
    load.finish(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_away_catches_up() {
    let mut cluster = Cluster::form(3).await;
    let client = cluster.client().await;
    let away = cluster.follower().await;
    cluster.members[away].kill();
    let mut revision = 0;
    for n in 0..200 {
        revision = client
            .put(format!("k{n}"), "v")
            .await
            .unwrap()
            .header
            .revision;
    }
    cluster.members[away].start();
    cluster.members[away].ready().await;
    let alone = cluster.members[away].client().await;
    // A linearizable read of that member waits until it has seen everything.
    let read = alone.get("k199", Consistency::Linearizable).await.unwrap();
    assert!(read.kv.is_some() && read.header.revision >= revision);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_members_all_died_at_once_has_all_its_data() {
    let mut cluster = Cluster::form(3).await;
    let client = cluster.client().await;
    let mut acknowledged = Vec::new();
    for n in 0..100 {
        let key = format!("k{n:03}");
        acknowledged.push((
            key.clone(),
            client.put(key, format!("v{n}")).await.unwrap().header,
        ));
    }
    let before = client
        .range(RangeQuery::from(dengine_client::KeyRange::all()))
        .await
        .unwrap();
    for member in &mut cluster.members {
        member.kill();
    }
    for member in &mut cluster.members {
        member.start();
    }
    for member in &cluster.members {
        member.ready().await;
    }
    let client = cluster.client().await;
    let after = client
        .range(RangeQuery::from(dengine_client::KeyRange::all()))
        .await
        .unwrap();
    assert_eq!(after.kvs, before.kvs);
    assert_eq!(after.count, Some(acknowledged.len() as u64));
    assert_eq!(after.header.revision, before.header.revision);
    assert_eq!(after.header.cluster_id, before.header.cluster_id);
    // A clean stop and start keeps it just as well.
    for member in &mut cluster.members {
        assert_eq!(member.terminate().code(), Some(0));
    }
    for member in &mut cluster.members {
        member.start();
    }
    for member in &cluster.members {
        member.ready().await;
    }
    let client = cluster.client().await;
    let again = client
        .range(RangeQuery::from(dengine_client::KeyRange::all()))
        .await
        .unwrap();
    assert_eq!(again.kvs, before.kvs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_told_to_stop_hands_over_first() {
    // A hand-over may take two election timeouts; without one, nobody leads for at least one.
    let mut cluster = Cluster::form_with(3, |member| {
        member.add_args(["--election-ticks", "20"]);
    })
    .await;
    let client = cluster.client().await;
    let load = Load::start(&client);
    load.progress(100).await;
    let leader = cluster.leader().await;
    assert_eq!(cluster.members[leader].terminate().code(), Some(0));
    // It is gone, and another one leads already: nobody had to notice that first.
    let mut leaders = 0;
    for (place, member) in cluster.members.iter().enumerate() {
        if place != leader {
            let status = member.status().await;
            leaders += usize::from(status.leader_id == status.member_id);
        }
    }
    assert_eq!(leaders, 1);
    load.progress(100).await;
    load.finish(&client).await;
}
