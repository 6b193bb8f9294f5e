//! Raft thesis §6.4.1: a leader that a quorum has acknowledged lately answers reads by itself.

use expect_test::expect;

use super::cluster::Cluster;
use super::script::run;

/// With each heartbeat, and for three election timeouts after somebody last asked for it.
#[test]
fn a_lease_that_is_asked_for_is_kept_up_for_a_while() {
    let script = "configure heartbeat_ticks=2
                  start 1 2 3
                  elect 1
                  tick 1 5
                  lease-read 1
                  deliver";
    let mut cluster = run(Cluster::default(), script);
    let until = |cluster: &Cluster| cluster.members[&1].consensus.lease_until();
    let mut renewed = Vec::new();
    for tick in 1..=60 {
        let before = until(&cluster);
        cluster = run(
            cluster,
            "tick 1 1
             deliver",
        );
        if until(&cluster) > before {
            renewed.push(tick);
        }
    }
    expect!["[2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28]"]
        .assert_eq(&format!("{renewed:?}"));
}
