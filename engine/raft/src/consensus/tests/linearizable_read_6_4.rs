//! Raft thesis §6.4: a read is confirmed by a round of heartbeats that a majority answers; its index is
//! the leader's commit index when the round began.

use super::cluster::Cluster;
use super::script::{check, run};
use expect_test::expect;

#[test]
fn a_read_waits_for_the_first_commit_of_the_term() {
    check(
        "
            start 1 2 3
            timeout 1
            deliver 1->2
            deliver 2->1
            deliver 1->2
            deliver 2->1
            # Member 1 leads, and has not committed in its term: it does not know yet what is committed.
            read 1
            wire
            deliver
        ",
        &expect![[r#"
            > start 1 2 3
            > timeout 1
              1 is a pre-candidate in term 0
            > deliver 1->2
              1->2 RequestPreVote: term 1, log ends at 0@0
            > deliver 2->1
              2->1 RequestPreVoteResponse: term 1, yes
              1 is a candidate in term 1
              1 writes term 1 and vote 1
            > deliver 1->2
              1->2 RequestVote: term 1, log ends at 0@0
              2 knows no leader in term 1
              2 writes term 1 and vote 1
            > deliver 2->1
              2->1 RequestVoteResponse: term 1, yes
              1 leads term 1
              1 writes 1@1
            # Member 1 leads, and has not committed in its term: it does not know yet what is committed.
            > read 1
              1 is asked for read 1
            > wire
              1->2 Append: term 1, after 0@0 [1@1], commit 0
              1->3 RequestPreVote: term 1, log ends at 0@0
              1->3 RequestVote: term 1, log ends at 0@0
              1->3 Append: term 1, after 0@0 [1@1], commit 0
            > deliver
              2 follows 1 in term 1
              2 writes 1@1
              1 applies 1, which is empty
              2 applies 1, which is empty
              3 knows no leader in term 1
              3 writes term 1 and vote 1
              3 follows 1 in term 1
              3 writes 1@1
              1 may serve read 1 once 1 is applied
              3 applies 1, which is empty
        "#]],
    );
}

#[test]
fn a_read_of_a_follower_waits_for_it_at_the_leader() {
    check(
        "
            start 1 2 3
            cut 3
            hold-disk 1
            elect 1
            sync 1
            deliver
            state
            read 2
            deliver
            # The round reached the leader, which waits for its own disk to commit.
            sync 1
            deliver
        ",
        &expect![[r#"
            > start 1 2 3
            > cut 3
            > hold-disk 1
            > elect 1
              1 is a candidate in term 1
            > sync 1
            > deliver
              2 knows no leader in term 1
              2 writes term 1 and vote 1
              1 leads term 1
              1 writes 1@1
              2 follows 1 in term 1
              2 writes 1@1
            > state
              1 leads term 1; log [1], committed 0, applied 0, on disk 0
              2 follows 1 in term 1; log [1], committed 0, applied 0
              3 knows no leader in term 0; log [], committed 0, applied 0
            > read 2
              2 is asked for read 1
            > deliver
            # The round reached the leader, which waits for its own disk to commit.
            > sync 1
              1 applies 1, which is empty
            > deliver
              2 applies 1, which is empty
              2 may serve read 1 once 1 is applied
        "#]],
    );
}

#[test]
fn one_round_serves_all_reads_that_wait() {
    check(
        "
            start 1 2 3
            elect 1
            # Any reads that came while a round was out share the next one.
            read 1
            read 1
            read 1
            wire
            deliver
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            # Any reads that came while a round was out share the next one.
            > read 1
              1 is asked for read 1
            > read 1
              1 is asked for read 2
            > read 1
              1 is asked for read 3
            > wire
              1->2 Heartbeat: term 1, commit 1, read round
              1->3 Heartbeat: term 1, commit 1, read round
            > deliver
              1 may serve read 1 once 1 is applied
              1 may serve read 2, read 3 once 1 is applied
        "#]],
    );
}

#[test]
fn a_read_that_began_during_a_round_waits_for_the_next() {
    check(
        "
            start 1 2 3
            elect 1
            read 1
            # Read 2 may follow a write that the first round's index does not cover.
            propose 1 x
            read 1
            deliver
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > read 1
              1 is asked for read 1
            # Read 2 may follow a write that the first round's index does not cover.
            > propose 1 x
              1 takes x as 2@1
              1 writes 2@1
            > read 1
              1 is asked for read 2
            > deliver
              1 may serve read 1 once 1 is applied
              2 writes 2@1
              3 writes 2@1
              1 applies 2: x
              1 answers x: done
              1 may serve read 2 once 1 is applied
              2 applies 2: x
              3 applies 2: x
        "#]],
    );
}

#[test]
fn a_follower_asks_the_leader() {
    check(
        "
            start 1 2 3
            elect 1
            propose 1 x
            deliver
            read 2
            deliver 2->1
            wire
            deliver
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > propose 1 x
              1 takes x as 2@1
              1 writes 2@1
            > deliver
              2 writes 2@1
              3 writes 2@1
              1 applies 2: x
              1 answers x: done
              2 applies 2: x
              3 applies 2: x
            > read 2
              2 is asked for read 1
            > deliver 2->1
              2->1 ReadIndex
            > wire
              1->2 Heartbeat: term 1, commit 2, read round
              1->3 Heartbeat: term 1, commit 2, read round
            > deliver
              2 may serve read 1 once 2 is applied
        "#]],
    );
}

#[test]
fn a_leader_that_lost_its_followers_confirms_nothing() {
    check(
        "
            start 1 2 3
            elect 1
            cut 1
            read 1
            tick 3 10
            elect 2
            propose 2 x
            deliver
            # Member 1 still believes that it leads; its read could be stale, and is not confirmed.
            state
            tick 1 60
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 1
            > read 1
              1 is asked for read 1
            > tick 3 10
            > elect 2
              2 leads term 2
            > propose 2 x
              2 takes x as 3@2
              2 writes 3@2
            > deliver
              3 writes 3@2
              2 applies 3: x
              2 answers x: done
              3 applies 3: x
            # Member 1 still believes that it leads; its read could be stale, and is not confirmed.
            > state
              1 leads term 1; log [1], committed 1, applied 1
              2 leads term 2; log [1 2 2], committed 3, applied 3
              3 follows 2 in term 2; log [1 2 2], committed 3, applied 3
            > tick 1 60
              1 knows no leader in term 1
              1 is a pre-candidate in term 1
              1 refuses read 1: no leader confirmed the read in time
        "#]],
    );
}

#[test]
fn a_round_that_was_lost_is_tried_again() {
    check(
        "
            start 1 2 3
            elect 1
            read 2
            lose 2->1
            tick 2 4
            tick 1 1
            deliver
            tick 2 5
            tick 1 1
            deliver
            # The round is an election timeout old.
            tick 2 1
            wire
            deliver
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > read 2
              2 is asked for read 1
            > lose 2->1
            > tick 2 4
            > tick 1 1
            > deliver
            > tick 2 5
            > tick 1 1
            > deliver
            # The round is an election timeout old.
            > tick 2 1
            > wire
              2->1 ReadIndex
            > deliver
              2 may serve read 1 once 1 is applied
        "#]],
    );
}

#[test]
fn a_read_fails_in_time_however_many_rounds_were_lost() {
    check(
        "
            start 1 2 3
            elect 1
            cut 2->1
            read 2
            tick 2 9
            tick 1 1
            deliver
            tick 2 9
            tick 1 1
            deliver
            tick 2 9
            tick 1 1
            deliver
            tick 2 9
            tick 1 1
            deliver
            tick 2 9
            tick 1 1
            deliver
            tick 2 9
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 2->1
            > read 2
              2 is asked for read 1
            > tick 2 9
            > tick 1 1
            > deliver
            > tick 2 9
            > tick 1 1
            > deliver
            > tick 2 9
            > tick 1 1
            > deliver
            > tick 2 9
            > tick 1 1
            > deliver
            > tick 2 9
            > tick 1 1
            > deliver
            > tick 2 9
              2 refuses read 1: no leader confirmed the read in time
        "#]],
    );
}

#[test]
fn a_sole_voter_confirms_at_once() {
    check(
        "
            start 1
            read 1
        ",
        &expect![[r#"
            > start 1
              1 leads term 1
              1 writes term 1 and vote 1, 1@1
              1 applies 1, which is empty
            > read 1
              1 is asked for read 1
              1 may serve read 1 once 1 is applied
        "#]],
    );
}

#[test]
fn a_member_says_whether_it_could_confirm_a_read() {
    let could = |id: u64, script: &str| {
        let cluster = run(Cluster::default(), script);
        cluster.members[&id].consensus.can_confirm_reads()
    };
    assert!(!could(1, "start 1 2 3"), "nobody leads");
    let elected = "start 1 2 3
                   timeout 1
                   deliver 1->2
                   deliver 2->1";
    assert!(!could(1, elected), "it is a candidate");
    let elected = format!(
        "{elected}
         deliver 1->2
         deliver 2->1"
    );
    assert!(!could(1, &elected), "it has committed nothing in its term");
    let elected = format!("{elected}\n deliver");
    assert!(could(1, &elected) && could(2, &elected));
    // A learner never stands, so that it believes in its leader for longer.
    let learner = "bootstrap 1
                   join 2
                   add-learner 1 2
                   deliver
                   tick 2 10";
    assert!(could(2, learner));
    assert!(!could(2, &format!("{learner}\n tick 2 1")));
}
