//! How the system schedules the threads of a member.

use std::collections::BTreeSet;
use std::time::Duration;

use dengine_client::{Client, ClientOptions, Wire};
use futures::future::join_all;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::harness::{Cluster, Member, eventually};
use crate::health::scrape;

/// `SCHED_OTHER` and `SCHED_BATCH` of sched(7).
const USUAL: u32 = 0;
const BATCH: u32 = 3;
const CLIENTS: usize = 20;
/// So many of each arrive together, and find a thread together, however many threads there are.
const CALLS: usize = 64;

/// Waits until all threads of the member are scheduled so, and its metric says so.
async fn all_become(policy: u32, member: &Member) {
    let gauge = format!("dengine_batch_scheduling {}\n", u32::from(policy == BATCH));
    eventually(&format!("all threads have policy {policy}"), || async {
        let has_all = member.scheduling_policies() == BTreeSet::from([policy]);
        let says = scrape(member.monitor_port).await.contains(&gauge);
        (has_all && says).then_some(())
    })
    .await;
}

async fn call_without_end(endpoints: Vec<String>, wire: Wire) {
    let options = ClientOptions {
        wire,
        request_timeout: Duration::from_secs(60),
        ..ClientOptions::default()
    };
    let client = Client::connect_with(endpoints, options).await.unwrap();
    loop {
        let puts = join_all((0..CALLS).map(|n| client.put(format!("k{n}"), "v")));
        for put in puts.await {
            put.unwrap();
        }
    }
}

/// A woken thread takes the processor from one that is about to hand over more: a fifth of the
/// processor's time under load was that. One client beside programs that keep all processors busy
/// waits twenty times as long if it doesn't.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn woken_threads_wait_for_those_that_run_while_many_call() {
    let cluster = Cluster::form(1).await;
    let member = &cluster.members[0];
    all_become(USUAL, member).await;
    let mut callers = JoinSet::new();
    for _ in 0..CLIENTS {
        callers.spawn(call_without_end(cluster.endpoints(), Wire::Unary));
    }
    all_become(BATCH, member).await;
    callers.shutdown().await;
    // Though nothing is asked of it any more.
    all_become(USUAL, member).await;
}

/// What a follower passes on is one task of the leader's, however many calls it is: clients of
/// followers had half the rate of the leader's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_waits_for_many_who_call_its_followers() {
    let cluster = Cluster::form(3).await;
    let leader = cluster.leader().await;
    let mut endpoints = cluster.endpoints();
    endpoints.remove(leader);
    let mut callers = JoinSet::new();
    for _ in 0..CLIENTS {
        callers.spawn(call_without_end(endpoints.clone(), Wire::Unary));
    }
    all_become(BATCH, &cluster.members[leader]).await;
}

/// One program with many calls in frames waits for each frame.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_of_one_client_are_not_many_clients() {
    let cluster = Cluster::form(1).await;
    let member = &cluster.members[0];
    let calls = call_without_end(cluster.endpoints(), Wire::default());
    let looks = async {
        for _ in 0..20 {
            sleep(Duration::from_millis(50)).await;
            assert_eq!(member.scheduling_policies(), BTreeSet::from([USUAL]));
        }
    };
    tokio::select! {
        () = calls => unreachable!("it has no end"),
        () = looks => {}
    }
}
