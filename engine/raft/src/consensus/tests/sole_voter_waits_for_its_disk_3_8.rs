//! Raft thesis §3.8, where the `raft` crate alone would break it: a sole voter wins in the very step in
//! which it raises its term, and the crate lets a leader's messages out before anything is on disk.

use super::script::check;
use expect_test::expect;

#[test]
fn a_sole_voter_tells_its_learner_nothing_before_its_term_is_on_disk() {
    check(
        "
            member 1 voters=1 learners=2 log=1 term=1 commit=1 applied=1
            member 2 voters=1 learners=2 log=1 term=1 commit=1 applied=1
            deliver
            hold-disk 1
            restart 1
            # It leads a term that its disk has not heard of: were it to stop now, it could lead that term again
            # with another log. So nothing is on the wire.
            tick 1 3
            wire
            sync 1
            wire
            deliver
            # From here on it need not wait: entries leave before they are on its own disk (§10.2.1).
            propose 1 x
            wire
        ",
        &expect![[r#"
            > member 1 voters=1 learners=2 log=1 term=1 commit=1 applied=1
              1 leads term 2
              1 writes term 2 and vote 1, 2@2
              1 applies 2, which is empty
            > member 2 voters=1 learners=2 log=1 term=1 commit=1 applied=1
            > deliver
            > hold-disk 1
            > restart 1
              1 leads term 3
              1 writes term 3 and vote 1, 3@3
            # It leads a term that its disk has not heard of: were it to stop now, it could lead that term again
            # with another log. So nothing is on the wire.
            > tick 1 3
            > wire
            > sync 1
              1 applies 3, which is empty
            > wire
              1->2 Append: term 3, after 2@2 [3@3], commit 2
              1->2 Heartbeat: term 3, commit 0
              1->2 Heartbeat: term 3, commit 0
              1->2 Heartbeat: term 3, commit 0
            > deliver
              2 follows 1 in term 3
              2 writes term 3 and vote 0
              2 writes 2@2, 3@3
              2 applies 2, which is empty
              2 applies 3, which is empty
            # From here on it need not wait: entries leave before they are on its own disk (§10.2.1).
            > propose 1 x
              1 takes x as 4@3
              1 writes 4@3
            > wire
              1->2 Append: term 3, after 3@3 [4@3], commit 3
        "#]],
    );
}

#[test]
fn a_sole_voter_does_not_campaign_while_its_log_is_not_on_disk() {
    check(
        "
            start 1 2
            elect 1
            # Member 1 is removed, but goes on to lead until it has applied that; member 2 has, and is alone.
            hold-apply 1
            remove 1 1
            deliver
            hold-disk 2
            propose 1 x
            deliver 1->2
            release-apply 1
            state
            # Member 2 would win at once. First its disk must have what it was given.
            tick 2 50
            state 2
            release-disk 2
            tick 2 20
            state 2
        ",
        &expect![[r#"
            > start 1 2
            > elect 1
              1 leads term 1
            # Member 1 is removed, but goes on to lead until it has applied that; member 2 has, and is alone.
            > hold-apply 1
            > remove 1 1
              1 takes remove 1 as 2@1
              1 writes 2@1
            > deliver
              2 writes 2@1
              2 applies 2: membership, remove 1
            > hold-disk 2
            > propose 1 x
              1 takes x as 3@1
              1 writes 3@1
            > deliver 1->2
              1->2 Append: term 1, after 2@1 [3@1], commit 2
              2 writes 3@1
            > release-apply 1
              1 applies 2: membership, remove 1
              1 answers remove 1: done
              1 knows no leader in term 1
            > state
              1 knows no leader in term 1; log [1 1 1], committed 2, applied 2
              2 follows 1 in term 1; log [1 1 1], committed 2, applied 2, on disk 2
            # Member 2 would win at once. First its disk must have what it was given.
            > tick 2 50
            > state 2
              2 follows 1 in term 1; log [1 1 1], committed 2, applied 2, on disk 2
            > release-disk 2
            > tick 2 20
              2 leads term 2
              2 writes term 2 and vote 2, 4@2
              2 applies 3: x
              2 applies 4, which is empty
            > state 2
              2 leads term 2; log [1 1 1 2], committed 4, applied 4
        "#]],
    );
}
