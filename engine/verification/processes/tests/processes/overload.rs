//! More than a member can do: it says so, and goes on as if nothing were.
//!
//! It wants the machine for itself, or an election may be the machine's doing: `make overload` runs
//! it, and `make test` does not.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dengine_client::{Client, ClientOptions, Error, RetryPolicy};
use tokio::task::JoinSet;

use crate::harness::{Cluster, Member, eventually};
use crate::large_values::put_by_64_clients;

const CALLERS: usize = 400;
const WRITES_EACH: usize = 25;
const VALUE_BYTES: usize = 16 << 10;
/// Far below what the callers have in flight.
const PENDING: &str = "32";
/// A member at rest has a third of it, and everything that was written fits twice into the rest.
const RESIDENT_BYTES_MAX: u64 = 768 << 20;

/// Counts of how calls ended.
#[derive(Debug, Default)]
struct Ends {
    written: AtomicU64,
    shed: AtomicU64,
}

/// Writes as fast as it may. What is refused is not tried again, but a pause keeps the flood from
/// taking the members' share of the processors: it is their bounds that are tested, not the
/// scheduler.
async fn flood(client: Client, caller: usize, ends: Arc<Ends>) {
    for n in 0..WRITES_EACH {
        let value = vec![b'x'; VALUE_BYTES];
        match client.put(format!("flood {caller} {n}"), value).await {
            Ok(_) => ends.written.fetch_add(1, Relaxed),
            Err(Error::Overloaded { .. }) => ends.shed.fetch_add(1, Relaxed),
            Err(error) => panic!("overload shows itself as: {error}"),
        };
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn limit(member: &mut Member) {
    member.add_args(["--max-pending-proposals", PENDING]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_flooded_member_sheds_keeps_its_leader_and_recovers() {
    let cluster = Cluster::form_with(3, limit).await;
    let leader = &cluster.members[cluster.leader().await];
    let before = leader.status().await;
    let options = ClientOptions {
        connections: 8,
        request_timeout: Duration::from_secs(60),
        retry: RetryPolicy::NONE,
        ..ClientOptions::default()
    };
    let client = Client::connect_with([leader.address()], options)
        .await
        .unwrap();
    let ends = Arc::new(Ends::default());
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        callers.spawn(flood(client.clone(), caller, Arc::clone(&ends)));
    }
    while let Some(caller) = callers.join_next().await {
        caller.expect("a flood is written or shed");
    }
    let (written, shed) = (ends.written.load(Relaxed), ends.shed.load(Relaxed));
    assert!(written > 0 && shed > 0, "{ends:?}");
    for member in &cluster.members {
        let most = member.resident_bytes_most();
        assert!(
            most < RESIDENT_BYTES_MAX,
            "{} held {most} bytes",
            member.name
        );
    }
    eventually("one caller alone is not shed", || async {
        client.put("after", "the flood").await.ok()
    })
    .await;
    let after = leader.status().await;
    assert_eq!(
        (after.leader_id, after.term),
        (before.leader_id, before.term),
        "no election was needed"
    );
}

/// 3 GB through each member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_thousand_values_of_a_megabyte_are_replicated_without_an_election() {
    put_by_64_clients(3_000).await;
}
