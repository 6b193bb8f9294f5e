//! Real processes, disks and sockets, with everything going wrong that can; and then a checker.
//!
//! `make torture` runs this for minutes, `make test` for half a minute. Clients write down what
//! they asked and were told while members are killed, paused, cut off, filled up, replaced, added,
//! removed and moved from the lead. At the end of each round everything is healed, writes must
//! succeed again, all members must hold the same, and [`dengine_checker`] judges the history. What
//! went wrong is left in a folder whose name is printed.
//!
//! Each member lives in a network namespace of its own, made by this test; so it has to run as
//! root. The test itself moves into another one, the hub that connects them.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![expect(
    clippy::print_stderr,
    reason = "a run of minutes says what it is doing, and where it left what"
)]

mod clients;
mod cluster;
mod faults;
mod member;
mod network;
mod round;

use std::time::{Duration, Instant};

use dengine_testkit::{Random, settings};

use cluster::Cluster;

/// Members of the cluster in the beginning.
const MEMBERS: usize = 3;
/// It never becomes smaller: somebody has to be there to hand over to.
const MEMBERS_MIN: usize = 2;
/// It never becomes larger.
const MEMBERS_MAX: usize = 5;

#[test]
fn what_clients_see_under_faults_is_linearizable() {
    let Some(network) = network::inside() else {
        return network::run_inside("what_clients_see_under_faults_is_linearizable");
    };
    let seed = settings::text("DENGINE_TORTURE_SEED");
    let seed = seed.map(|it| it.parse().expect("a seed is a number"));
    let seed = seed.unwrap_or_else(rand::random);
    let budget = settings::duration("DENGINE_TORTURE_DURATION").unwrap_or(Duration::from_secs(30));
    eprintln!("torture: {budget:?} with SEED={seed}");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(torture(network, seed, budget));
}

async fn torture(network: network::Network, seed: u64, budget: Duration) {
    let begun = Instant::now();
    // What happens when is up to the machine, so a seed repeats the plan, not the run.
    let mut dice = Random::new(seed);
    let mut cluster = Cluster::form(network, MEMBERS).await;
    let mut rounds = round::Rounds::new(seed);
    while rounds.is_empty() || begun.elapsed() < budget {
        let left = budget.saturating_sub(begun.elapsed());
        rounds.run(&mut cluster, &mut dice, left).await;
    }
    eprintln!("torture: {rounds}, no violation");
}
