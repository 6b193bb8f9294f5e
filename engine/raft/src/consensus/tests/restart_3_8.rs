//! Raft thesis §3.8: what a member acknowledged is there after a restart.

use super::script::check;
use expect_test::expect;

#[test]
fn a_member_goes_on_where_it_was() {
    check(
        "
            start 1 2 3
            elect 1
            propose 1 x
            deliver
            restart 2
            restart 3
            state
            tick 1 1
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
            > deliver
              2 writes 2@1
              3 writes 2@1
              1 applies 2: x
              1 answers x: done
              2 applies 2: x
              3 applies 2: x
            > restart 2
            > restart 3
            > state
              1 leads term 1; log [1 1], committed 2, applied 2
              2 knows no leader in term 1; log [1 1], committed 2, applied 2
              3 knows no leader in term 1; log [1 1], committed 2, applied 2
            > tick 1 1
            > deliver
              2 follows 1 in term 1
              3 follows 1 in term 1
            > state
              1 leads term 1; log [1 1], committed 2, applied 2
              2 follows 1 in term 1; log [1 1], committed 2, applied 2
              3 follows 1 in term 1; log [1 1], committed 2, applied 2
        "#]],
    );
}

#[test]
fn a_leader_that_lost_what_it_had_not_written_takes_the_others_log() {
    check(
        "
            start 1 2 3
            elect 1
            hold-disk 1
            propose 1 x
            deliver
            restart 1
            release-disk 1
            tick 3 10
            elect 2
            state
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > hold-disk 1
            > propose 1 x
              1 takes x as 2@1
              1 writes 2@1
            > deliver
              2 writes 2@1
              3 writes 2@1
              2 applies 2: x
              3 applies 2: x
            > restart 1
            > release-disk 1
            > tick 3 10
            > elect 2
              2 leads term 2
            > state
              1 follows 2 in term 2; log [1 1 2], committed 3, applied 3
              2 leads term 2; log [1 1 2], committed 3, applied 3
              3 follows 2 in term 2; log [1 1 2], committed 3, applied 3
        "#]],
    );
}
