//! Raft thesis §10.2.1: a leader writes to its disk in parallel with its followers, and counts itself
//! only once its own disk has the entry.

use super::script::check;
use expect_test::expect;

#[test]
fn two_followers_commit_what_the_leader_has_not_on_disk() {
    check(
        "
            start 1 2 3
            elect 1
            hold-disk 1
            propose 1 x
            wire
            deliver
            # The followers are a majority without the leader, which applies only what its own disk holds.
            state
            sync 1
            state 1
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > hold-disk 1
            > propose 1 x
              1 takes x as 2@1
              1 writes 2@1
            > wire
              1->2 Append: term 1, after 1@1 [2@1], commit 1
              1->3 Append: term 1, after 1@1 [2@1], commit 1
            > deliver
              2 writes 2@1
              3 writes 2@1
              2 applies 2: x
              3 applies 2: x
            # The followers are a majority without the leader, which applies only what its own disk holds.
            > state
              1 leads term 1; log [1 1], committed 2, applied 1, on disk 1
              2 follows 1 in term 1; log [1 1], committed 2, applied 2
              3 follows 1 in term 1; log [1 1], committed 2, applied 2
            > sync 1
              1 applies 2: x
              1 answers x: done
            > state 1
              1 leads term 1; log [1 1], committed 2, applied 2
        "#]],
    );
}

#[test]
fn the_leader_counts_itself_only_after_its_disk() {
    check(
        "
            start 1 2 3
            elect 1
            cut 3
            hold-disk 1
            propose 1 x
            deliver
            # Member 2 has the entry, member 1 not yet: one of three.
            state
            sync 1
            state 1
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 3
            > hold-disk 1
            > propose 1 x
              1 takes x as 2@1
              1 writes 2@1
            > deliver
              2 writes 2@1
            # Member 2 has the entry, member 1 not yet: one of three.
            > state
              1 leads term 1; log [1 1], committed 1, applied 1, on disk 1
              2 follows 1 in term 1; log [1 1], committed 1, applied 1
              3 follows 1 in term 1; log [1], committed 1, applied 1
            > sync 1
              1 applies 2: x
              1 answers x: done
            > state 1
              1 leads term 1; log [1 1], committed 2, applied 2
        "#]],
    );
}

#[test]
fn a_follower_acknowledges_only_what_is_on_its_disk() {
    check(
        "
            start 1 2 3
            elect 1
            hold-disk 2
            propose 1 x
            deliver 1->2
            wire
            # An answer to a heartbeat says nothing of the log and need not wait.
            tick 1 1
            deliver 1->2
            deliver 2->1
            sync 2
            deliver 2->1
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > hold-disk 2
            > propose 1 x
              1 takes x as 2@1
              1 writes 2@1
            > deliver 1->2
              1->2 Append: term 1, after 1@1 [2@1], commit 1
              2 writes 2@1
            > wire
              1->3 Append: term 1, after 1@1 [2@1], commit 1
            # An answer to a heartbeat says nothing of the log and need not wait.
            > tick 1 1
            > deliver 1->2
              1->2 Heartbeat: term 1, commit 1
            > deliver 2->1
              2->1 HeartbeatResponse: term 1
            > sync 2
            > deliver 2->1
              2->1 AppendResponse: term 1, has 2
              1 applies 2: x
              1 answers x: done
        "#]],
    );
}
