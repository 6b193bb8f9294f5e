//! Raft thesis §6.2: a leader that hears from no majority for an election timeout steps down.

use std::time::Duration;

use super::cluster::Cluster;
use super::script::run;
use crate::consensus::Progress;

/// Its disk is full: heartbeats need none.
#[test]
fn who_answers_and_acknowledges_nothing_does_not_keep_up() {
    let round = "\n tick 1 1 \n deliver".repeat(10);
    let begun = "
            start 1 2 3
            elect 1
            propose 1 x
            deliver
            hold-disk 3
            propose 1 y
            deliver";
    let keep_up = |script: &str| {
        let cluster = run(Cluster::default(), script);
        let progress = cluster.members[&1].consensus.progress();
        assert!(progress.iter().all(|it| it.recently_active));
        progress.iter().map(|it| it.keeps_up).collect::<Vec<_>>()
    };
    assert_eq!(keep_up(begun), [true; 3], "it may only be slow");
    let later = format!("{begun}{}", round.repeat(3));
    assert_eq!(keep_up(&later), [true, true, false]);
    let healed = format!("{later}\n release-disk 3 \n deliver");
    assert_eq!(keep_up(&healed), [true; 3]);
}

/// Member 3 acknowledges nothing any more, and the leader stands still before it can notice: once
/// it goes on, what it knew says nothing about whom the cluster may count on.
#[test]
fn a_leader_that_stood_still_counts_on_whom_it_hears_afterwards() {
    let mut cluster = run(
        Cluster::default(),
        "
            start 1 2 3
            elect 1
            propose 1 x
            deliver
            hold-disk 3
            propose 1 y
            deliver",
    );
    let view = |cluster: &Cluster, of: fn(&Progress) -> bool| {
        let progress = cluster.members[&1].consensus.progress();
        progress.iter().map(of).collect::<Vec<_>>()
    };
    let leader = cluster.member(1);
    leader.host.clock = leader.host.clock.after(Duration::from_secs(60));
    leader.consensus.observe(leader.host.clock);
    let heard = view(&cluster, |it| it.recently_active);
    assert_eq!(heard, [true, false, false]);
    let cluster = run(cluster, "tick 1 1\n deliver");
    assert_eq!(view(&cluster, |it| it.recently_active), [true; 3]);
    assert_eq!(view(&cluster, |it| it.keeps_up), [true, true, false]);
}
