//! Raft thesis §3.10: a leader brings its successor up to date, takes nothing new meanwhile, and
//! tells it to stand for election at once.

use super::cluster::Cluster;
use super::script::{SEED, run};

/// A leader without space handed over to another one, and that one back.
#[test]
fn a_leader_knows_who_is_fit_to_lead_from_this_terms_answers_alone() {
    let fit = |cluster: &Cluster, leader: u64| {
        let progress = cluster.members[&leader].consensus.progress();
        let others = progress.iter().filter(|it| it.member.0 != leader);
        others.map(|it| it.fit).collect::<Vec<_>>()
    };
    let cluster = Cluster {
        seed: SEED,
        ..Cluster::default()
    };
    let mut cluster = run(cluster, "start 1 2 3\n elect 1");
    assert_eq!(fit(&cluster, 1), [None; 2], "no heartbeat was answered");
    cluster.member(2).consensus.set_unfit(true);
    let mut cluster = run(cluster, "tick 1 1\n deliver");
    assert_eq!(fit(&cluster, 1), [Some(false), Some(true)]);
    cluster.member(2).consensus.set_unfit(false);
    cluster.member(3).consensus.set_unfit(true);
    let cluster = run(cluster, "tick 1 1\n deliver");
    assert_eq!(fit(&cluster, 1), [Some(true), Some(false)]);
    // Of an earlier version, that says nothing of it.
    let cluster = run(cluster, "promises-nothing 3\n tick 1 1\n deliver");
    assert_eq!(fit(&cluster, 1), [Some(true); 2]);
    let cluster = run(cluster, "transfer 1 2\n deliver\n transfer 2 1\n deliver");
    assert_eq!(fit(&cluster, 1), [None; 2], "that was in another term");
}
