//! Raft thesis §3.10: a leader brings its successor up to date, takes nothing new meanwhile, and tells it
//! to stand for election at once.

use super::cluster::Cluster;
use super::script::{SEED, check, run};
use expect_test::expect;

#[test]
fn leadership_moves_within_a_round() {
    check(
        "
            start 1 2 3
            elect 1
            propose 1 x
            transfer 1 2
            propose 1 y
            deliver
            state
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > propose 1 x
              1 takes x as 2@1
              1 writes 2@1
            > transfer 1 2
            > propose 1 y
              1 refuses y: the leader takes no proposals now: too much is uncommitted, or leadership is being handed over
            > deliver
              2 writes 2@1
              3 writes 2@1
              1 applies 2: x
              1 answers x: done
              3 applies 2: x
              2 applies 2: x
              2 is a candidate in term 2
              2 writes term 2 and vote 2
              1 knows no leader in term 2
              1 writes term 2 and vote 2
              2 leads term 2
              2 writes 3@2
              1 follows 2 in term 2
              1 writes 3@2
              3 knows no leader in term 2
              3 writes term 2 and vote 2
              2 applies 3, which is empty
              1 applies 3, which is empty
              3 follows 2 in term 2
              3 writes 3@2
              3 applies 3, which is empty
            > state
              1 follows 2 in term 2; log [1 1 2], committed 3, applied 3
              2 leads term 2; log [1 1 2], committed 3, applied 3
              3 follows 2 in term 2; log [1 1 2], committed 3, applied 3
        "#]],
    );
}

#[test]
fn a_transfer_that_does_not_succeed_ends_after_an_election_timeout() {
    check(
        "
            start 1 2 3
            elect 1
            cut 2
            transfer 1 2
            propose 1 x
            tick 1 5
            deliver
            tick 1 5
            deliver
            propose 1 y
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 2
            > transfer 1 2
            > propose 1 x
              1 refuses x: the leader takes no proposals now: too much is uncommitted, or leadership is being handed over
            > tick 1 5
            > deliver
            > tick 1 5
            > deliver
            > propose 1 y
              1 takes y as 2@1
              1 writes 2@1
        "#]],
    );
}

#[test]
fn only_a_leader_can_transfer() {
    check(
        "
            start 1 2 3
            elect 1
            transfer 2 3
            wire
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > transfer 2 3
            > wire
        "#]],
    );
}

/// Who restarted grants no vote for an election timeout, for the leader may hold a lease; a leader that hands over has given it up.
#[test]
fn who_restarted_votes_at_once_for_the_one_that_the_leader_named() {
    check(
        "
            start 1 2 3
            elect 1
            restart 2
            transfer 1 3
            deliver 1->3
            cut 1
            deliver
            state
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > restart 2
            > transfer 1 3
            > deliver 1->3
              1->3 TimeoutNow: term 1
              3 is a candidate in term 2
              3 writes term 2 and vote 3
            > cut 1
            > deliver
              1 knows no leader in term 2
              1 writes term 2 and vote 3
              2 knows no leader in term 2
              2 writes term 2 and vote 3
              3 leads term 2
              3 writes 2@2
              2 follows 3 in term 2
              2 writes 2@2
              3 applies 2, which is empty
              2 applies 2, which is empty
            > state
              1 knows no leader in term 2; log [1], committed 1, applied 1
              2 follows 3 in term 2; log [1 2], committed 2, applied 2
              3 leads term 2; log [1 2], committed 2, applied 2
        "#]],
    );
}

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
