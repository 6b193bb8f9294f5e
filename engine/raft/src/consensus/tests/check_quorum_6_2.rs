//! Raft thesis §6.2: a leader that hears from no majority for an election timeout steps down.

use super::cluster::Cluster;
use super::script::{check, run};
use crate::consensus::Progress;
use expect_test::expect;
use std::time::Duration;

#[test]
fn a_leader_without_followers_steps_down() {
    check(
        "
            start 1 2 3
            elect 1
            cut 1
            propose 1 x
            read 1
            tick 1 20
            state 1
            propose 1 y
            # The read fails once its time is over.
            tick 1 40
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 1
            > propose 1 x
              1 takes x as 2@1
              1 writes 2@1
            > read 1
              1 is asked for read 1
            > tick 1 20
              1 knows no leader in term 1
            > state 1
              1 knows no leader in term 1; log [1 1], committed 1, applied 1
            > propose 1 y
              1 refuses y: this member does not lead
            # The read fails once its time is over.
            > tick 1 40
              1 is a pre-candidate in term 1
              1 refuses read 1: no leader confirmed the read in time
        "#]],
    );
}

#[test]
fn one_follower_of_two_is_enough() {
    check(
        "
            start 1 2 3
            elect 1
            cut 3
            tick 1 5
            deliver
            tick 1 5
            deliver
            tick 1 5
            deliver
            state 1
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 3
            > tick 1 5
            > deliver
            > tick 1 5
            > deliver
            > tick 1 5
            > deliver
            > state 1
              1 leads term 1; log [1], committed 1, applied 1
        "#]],
    );
}

#[test]
fn a_leader_knows_at_any_time_whom_it_heard_from() {
    check(
        "
            start 1 2 3
            elect 1
            cut 3
            # In the tenth tick the leader checks its quorum; what it knows of the others stays.
            tick 1 9
            deliver
            heard 1
            tick 1 1
            heard 1
            deliver
            heard 1
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 3
            # In the tenth tick the leader checks its quorum; what it knows of the others stays.
            > tick 1 9
            > deliver
            > heard 1
              1 heard from 1, 2, 3
            > tick 1 1
            > heard 1
              1 heard from 1, 2
            > deliver
            > heard 1
              1 heard from 1, 2
        "#]],
    );
}

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

/// Member 3 acknowledges nothing any more, and the leader stands still before it can notice: once it
/// goes on, what it knew says nothing about whom the cluster may count on.
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
    leader.clock = leader.clock.after(Duration::from_secs(60));
    leader.consensus.observe(leader.clock);
    assert_eq!(
        view(&cluster, |it| it.recently_active),
        [true, false, false]
    );
    let cluster = run(cluster, "tick 1 1\n deliver");
    assert_eq!(view(&cluster, |it| it.recently_active), [true; 3]);
    assert_eq!(view(&cluster, |it| it.keeps_up), [true, true, false]);
}
