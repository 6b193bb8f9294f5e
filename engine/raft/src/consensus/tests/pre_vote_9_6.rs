//! Raft thesis §9.6: a member that was cut off asks first whether it could win, so its return disturbs
//! nobody.

use super::script::check;
use expect_test::expect;

#[test]
fn a_member_that_was_cut_off_does_not_raise_the_term() {
    check(
        "
            start 1 2 3
            elect 1
            cut 3
            tick 3 100
            tick 1 5
            deliver
            state
            heal
            tick 1 1
            deliver
            state
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 3
            > tick 3 100
              3 is a pre-candidate in term 1
            > tick 1 5
            > deliver
            > state
              1 leads term 1; log [1], committed 1, applied 1
              2 follows 1 in term 1; log [1], committed 1, applied 1
              3 is a pre-candidate in term 1; log [1], committed 1, applied 1
            > heal
            > tick 1 1
            > deliver
              3 follows 1 in term 1
            > state
              1 leads term 1; log [1], committed 1, applied 1
              2 follows 1 in term 1; log [1], committed 1, applied 1
              3 follows 1 in term 1; log [1], committed 1, applied 1
        "#]],
    );
}

#[test]
fn no_pre_vote_while_the_leader_is_heard() {
    check(
        "
            # §4.2.3: whoever hears from a leader helps nobody to replace it.
            start 1 2 3
            elect 1
            timeout 3
            wire
            deliver 3->2
            deliver 3->1
            wire
        ",
        &expect![[r#"
            # §4.2.3: whoever hears from a leader helps nobody to replace it.
            > start 1 2 3
            > elect 1
              1 leads term 1
            > timeout 3
              3 is a pre-candidate in term 1
            > wire
              3->1 RequestPreVote: term 2, log ends at 1@1
              3->2 RequestPreVote: term 2, log ends at 1@1
            > deliver 3->2
              3->2 RequestPreVote: term 2, log ends at 1@1
            > deliver 3->1
              3->1 RequestPreVote: term 2, log ends at 1@1
            > wire
        "#]],
    );
}

#[test]
fn a_pre_vote_that_comes_late_is_no_vote() {
    check(
        "
            start 1 2 3
            timeout 1
            deliver 1->2
            deliver 1->3
            deliver 2->1
            # With this it would have a quorum, if it counted.
            deliver 3->1
            state 1
            deliver 1->3
            deliver 3->1
            state 1
        ",
        &expect![[r#"
            > start 1 2 3
            > timeout 1
              1 is a pre-candidate in term 0
            > deliver 1->2
              1->2 RequestPreVote: term 1, log ends at 0@0
            > deliver 1->3
              1->3 RequestPreVote: term 1, log ends at 0@0
            > deliver 2->1
              2->1 RequestPreVoteResponse: term 1, yes
              1 is a candidate in term 1
              1 writes term 1 and vote 1
            # With this it would have a quorum, if it counted.
            > deliver 3->1
              3->1 RequestPreVoteResponse: term 1, yes
            > state 1
              1 is a candidate in term 1; log [], committed 0, applied 0
            > deliver 1->3
              1->3 RequestVote: term 1, log ends at 0@0
              3 knows no leader in term 1
              3 writes term 1 and vote 1
            > deliver 3->1
              3->1 RequestVoteResponse: term 1, yes
              1 leads term 1
              1 writes 1@1
            > state 1
              1 leads term 1; log [1], committed 0, applied 0
        "#]],
    );
}
