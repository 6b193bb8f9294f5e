//! Raft thesis, chapter 5: a follower whose entries are gone gets a snapshot.

use super::cluster::Cluster;
use super::script::{SEED, check, run};
use dengine_types::Index;
use expect_test::expect;

#[test]
fn a_follower_that_lacks_forgotten_entries_gets_a_snapshot() {
    check(
        "
            start 1 2 3
            elect 1
            cut 3
            propose 1 a b c
            deliver
            truncate 1 3
            heal
            # The first sign of life of member 3 lets the leader see what it needs, the second finds it made.
            tick 1 1
            deliver
            tick 1 1
            deliver
            deliver-snapshot 1->3
            propose 1 d
            deliver
            tick 1 1
            deliver
            state
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 3
            > propose 1 a b c
              1 takes a as 2@1
              1 takes b as 3@1
              1 takes c as 4@1
              1 writes 2@1, 3@1, 4@1
            > deliver
              2 writes 2@1, 3@1, 4@1
              1 applies 2: a
              1 answers a: done
              1 applies 3: b
              1 answers b: done
              1 applies 4: c
              1 answers c: done
              2 applies 2: a
              2 applies 3: b
              2 applies 4: c
            > truncate 1 3
            > heal
            # The first sign of life of member 3 lets the leader see what it needs, the second finds it made.
            > tick 1 1
            > deliver
              1 makes a snapshot of 4
            > tick 1 1
            > deliver
              1 sends 3 a snapshot of 4
            > deliver-snapshot 1->3
              3 resets its log to 4@1 and begins anew
            > propose 1 d
              1 takes d as 5@1
              1 writes 5@1
            > deliver
              2 writes 5@1
              1 applies 5: d
              1 answers d: done
              2 applies 5: d
            > tick 1 1
            > deliver
              3 follows 1 in term 1
              3 writes 5@1
              3 applies 5: d
            > state
              1 leads term 1; log [1 1], committed 5, applied 5
              2 follows 1 in term 1; log [1 1 1 1 1], committed 5, applied 5
              3 follows 1 in term 1; log [1], committed 5, applied 5
        "#]],
    );
}

#[test]
fn a_lost_snapshot_is_sent_again_as_a_newer_one() {
    check(
        "
            start 1 2 3
            elect 1
            cut 3
            propose 1 a b
            deliver
            truncate 1 2
            heal
            tick 1 1
            deliver
            propose 1 c
            deliver
            lose-snapshot 1->3
            tick 1 1
            deliver
            tick 1 1
            deliver
            deliver-snapshot 1->3
            tick 1 1
            deliver
            state
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 3
            > propose 1 a b
              1 takes a as 2@1
              1 takes b as 3@1
              1 writes 2@1, 3@1
            > deliver
              2 writes 2@1, 3@1
              1 applies 2: a
              1 answers a: done
              1 applies 3: b
              1 answers b: done
              2 applies 2: a
              2 applies 3: b
            > truncate 1 2
            > heal
            > tick 1 1
            > deliver
              1 makes a snapshot of 3
            > propose 1 c
              1 takes c as 4@1
              1 writes 4@1
              1 sends 3 a snapshot of 3
            > deliver
              2 writes 4@1
              1 applies 4: c
              1 answers c: done
              2 applies 4: c
            > lose-snapshot 1->3
            > tick 1 1
            > deliver
              1 makes a snapshot of 4
            > tick 1 1
            > deliver
              1 sends 3 a snapshot of 4
            > deliver-snapshot 1->3
              3 resets its log to 4@1 and begins anew
            > tick 1 1
            > deliver
              3 follows 1 in term 1
            > state
              1 leads term 1; log [1 1], committed 4, applied 4
              2 follows 1 in term 1; log [1 1 1 1], committed 4, applied 4
              3 follows 1 in term 1; log [], committed 4, applied 4
        "#]],
    );
}

#[test]
fn a_snapshot_never_replaces_entries_that_were_acknowledged() {
    check(
        "
            start 1 2 3
            elect 1
            cut 3
            propose 1 a b
            deliver
            truncate 1 2
            heal
            tick 1 1
            deliver
            tick 1 1
            deliver
            # Before it arrives, another leader brings member 3 further than the snapshot.
            hold-disk 1
            cut 1
            tick 3 10
            elect 2
            propose 2 c
            deliver
            heal
            state 3
            deliver-snapshot 1->3
            state 3
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 3
            > propose 1 a b
              1 takes a as 2@1
              1 takes b as 3@1
              1 writes 2@1, 3@1
            > deliver
              2 writes 2@1, 3@1
              1 applies 2: a
              1 answers a: done
              1 applies 3: b
              1 answers b: done
              2 applies 2: a
              2 applies 3: b
            > truncate 1 2
            > heal
            > tick 1 1
            > deliver
              1 makes a snapshot of 3
            > tick 1 1
            > deliver
              1 sends 3 a snapshot of 3
            # Before it arrives, another leader brings member 3 further than the snapshot.
            > hold-disk 1
            > cut 1
            > tick 3 10
            > elect 2
              2 leads term 2
            > propose 2 c
              2 takes c as 5@2
              2 writes 5@2
            > deliver
              3 writes 5@2
              2 applies 5: c
              2 answers c: done
              3 applies 5: c
            > heal
            > state 3
              3 follows 2 in term 2; log [1 1 1 2 2], committed 5, applied 5
            > deliver-snapshot 1->3
            > state 3
              3 follows 2 in term 2; log [1 1 1 2 2], committed 5, applied 5
        "#]],
    );
}

#[test]
fn a_new_member_gets_a_snapshot_that_knows_it() {
    check(
        "
            start 1 2 3
            elect 1
            propose 1 a b
            deliver
            truncate 1 3
            join 4
            add-learner 1 4
            deliver
            tick 1 1
            deliver
            deliver-snapshot 1->4
            tick 1 1
            deliver
            promote 1 4
            deliver
            state
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > propose 1 a b
              1 takes a as 2@1
              1 takes b as 3@1
              1 writes 2@1, 3@1
            > deliver
              2 writes 2@1, 3@1
              3 writes 2@1, 3@1
              1 applies 2: a
              1 answers a: done
              1 applies 3: b
              1 answers b: done
              2 applies 2: a
              2 applies 3: b
              3 applies 2: a
              3 applies 3: b
            > truncate 1 3
            > join 4
            > add-learner 1 4
              1 takes add-learner 4 as 4@1
              1 writes 4@1
            > deliver
              2 writes 4@1
              3 writes 4@1
              1 applies 4: membership, add-learner 4
              1 answers add-learner 4: done
              2 applies 4: membership, add-learner 4
              3 applies 4: membership, add-learner 4
              4 follows 1 in term 1
              4 writes term 1 and vote 0
              1 makes a snapshot of 4
            > tick 1 1
            > deliver
              1 sends 4 a snapshot of 4
            > deliver-snapshot 1->4
              4 resets its log to 4@1 and begins anew
            > tick 1 1
            > deliver
              4 follows 1 in term 1
            > promote 1 4
              1 takes promote 4 as 5@1
              1 writes 5@1
            > deliver
              2 writes 5@1
              3 writes 5@1
              4 writes 5@1
              1 applies 5: membership, promote 4
              1 answers promote 4: done
              2 applies 5: membership, promote 4
              3 applies 5: membership, promote 4
              4 applies 5: membership, promote 4
            > state
              1 leads term 1; log [1 1], committed 5, applied 5
              2 follows 1 in term 1; log [1 1 1 1 1], committed 5, applied 5
              3 follows 1 in term 1; log [1 1 1 1 1], committed 5, applied 5
              4 follows 1 in term 1; log [1], committed 5, applied 5
        "#]],
    );
}

#[test]
fn a_snapshot_serves_for_as_long_as_the_log_goes_on_right_behind_it() {
    check(
        "
            start 1 2 3
            elect 1
            cut 3
            propose 1 a b c
            deliver
            truncate 1 3
            heal
            tick 1 1
            deliver
            truncate 1 4
            tick 1 1
            deliver
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 3
            > propose 1 a b c
              1 takes a as 2@1
              1 takes b as 3@1
              1 takes c as 4@1
              1 writes 2@1, 3@1, 4@1
            > deliver
              2 writes 2@1, 3@1, 4@1
              1 applies 2: a
              1 answers a: done
              1 applies 3: b
              1 answers b: done
              1 applies 4: c
              1 answers c: done
              2 applies 2: a
              2 applies 3: b
              2 applies 4: c
            > truncate 1 3
            > heal
            > tick 1 1
            > deliver
              1 makes a snapshot of 4
            > truncate 1 4
            > tick 1 1
            > deliver
              1 sends 3 a snapshot of 4
        "#]],
    );
}

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
