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
