//! Raft thesis, chapter 5: a follower whose entries are gone gets a snapshot.

use dengine_types::Index;

use super::cluster::Cluster;
use super::script::{SEED, run};

/// Its own commit index says nothing of that.
#[test]
fn who_waits_for_a_snapshot_knows_how_far_it_is_behind_from_the_present_leader_alone() {
    let script = "
        start 1 2 3
        elect 1
        cut 3
        propose 1 a b c
        deliver
        truncate 1 3
        heal";
    let told = |cluster: &Cluster, id: u64| {
        let told = cluster.members[&id].consensus.leader_commit();
        told.map(|(_, commit)| commit.0)
    };
    let cluster = Cluster {
        seed: SEED,
        ..Cluster::default()
    };
    let cluster = run(cluster, script);
    assert_eq!(told(&cluster, 3), None, "no heartbeat has come");
    assert_eq!(told(&cluster, 1), Some(4), "it is its own");
    let cluster = run(cluster, "tick 1 1\n deliver 1->3\n lose");
    assert_eq!(told(&cluster, 3), Some(4));
    assert_eq!(cluster.members[&3].consensus.commit_index(), Index(1));
    // Another one leads that has the whole log: what the first one told counts no more.
    let cluster = run(cluster, "cut 1\n tick 3 10\n elect 2");
    assert_eq!(told(&cluster, 3), None, "no heartbeat of it has come");
    let cluster = run(cluster, "tick 2 1\n deliver");
    assert_eq!(told(&cluster, 3), Some(5));
    assert_eq!(cluster.members[&3].consensus.commit_index(), Index(5));
    let again = "restart 2\n up-for-a-while 2\n tick 3 10\n elect 2";
    let cluster = run(cluster, again);
    assert_eq!(
        told(&cluster, 3),
        None,
        "no heartbeat of this term has come"
    );
    let cluster = run(cluster, "timeout 3");
    assert_eq!(told(&cluster, 3), None, "it follows nobody");
}
