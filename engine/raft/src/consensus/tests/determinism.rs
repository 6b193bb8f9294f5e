//! The same inputs give the same outputs, byte for byte; only the seed decides election timeouts.

use super::cluster::Cluster;
use super::script::run;
use crate::consensus::Role;

const SCRIPT: &str = "
    start 1 2 3
    tick 1 25
    tick 2 25
    deliver
    tick 3 25
    deliver
    tick 1 25
    deliver
    propose 1 x
    propose 2 y
    propose 3 z
    read 2
    deliver
    restart 2
    tick 2 25
    deliver
    state
";

fn cluster(seed: u64) -> Cluster {
    Cluster {
        seed,
        ..Cluster::default()
    }
}

#[test]
fn the_same_script_gives_the_same_transcript() {
    for seed in 0..20 {
        let first = run(cluster(seed), SCRIPT);
        let second = run(cluster(seed), SCRIPT);
        assert_eq!(first.transcript, second.transcript, "seed {seed}");
    }
}

/// After how many ticks each of five isolated members stands for election, three times.
fn timeouts(seed: u64) -> Vec<u64> {
    let mut cluster = run(cluster(seed), "start 1 2 3 4 5");
    let mut timeouts = Vec::new();
    for id in 1..=5 {
        for _ in 0..3 {
            cluster.links.clear();
            let mut ticks = 0;
            while cluster.links.is_empty() {
                cluster.tick_without_clock(id);
                ticks += 1;
            }
            assert_eq!(
                cluster.member(id).consensus.state().role,
                Role::PreCandidate
            );
            timeouts.push(ticks);
        }
    }
    timeouts
}

#[test]
fn different_seeds_give_different_election_timeouts() {
    assert_eq!(timeouts(1), timeouts(1));
    assert_ne!(timeouts(1), timeouts(2));
    // The timeouts of one member differ from each other and from its neighbours', and use the whole
    // range of one to two election timeouts (§3.4).
    let mut seen: Vec<_> = (0..20).flat_map(timeouts).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (10..20).collect::<Vec<_>>());
}
