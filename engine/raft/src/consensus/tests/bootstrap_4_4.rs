//! Raft thesis §4.4: the first member starts from a log with one membership entry, which names it; all
//! others start empty and are added.

use super::script::check;
use expect_test::expect;

#[test]
fn the_first_member_leads_at_once() {
    check(
        "
            bootstrap 1
            state
        ",
        &expect![[r#"
            > bootstrap 1
              1 applies 1: membership, add-voter 1
              1 leads term 2
              1 writes term 2 and vote 1, 2@2
              1 applies 2, which is empty
            > state
              1 leads term 2; log [1 2], committed 2, applied 2
        "#]],
    );
}

#[test]
fn a_joiner_gets_the_whole_log() {
    check(
        "
            bootstrap 1
            propose 1 x y z
            join 2
            add-learner 1 2
            deliver
            state
        ",
        &expect![[r#"
            > bootstrap 1
              1 applies 1: membership, add-voter 1
              1 leads term 2
              1 writes term 2 and vote 1, 2@2
              1 applies 2, which is empty
            > propose 1 x y z
              1 takes x as 3@2
              1 takes y as 4@2
              1 takes z as 5@2
              1 writes 3@2, 4@2, 5@2
              1 applies 3: x
              1 answers x: done
              1 applies 4: y
              1 answers y: done
              1 applies 5: z
              1 answers z: done
            > join 2
            > add-learner 1 2
              1 takes add-learner 2 as 6@2
              1 writes 6@2
              1 applies 6: membership, add-learner 2
              1 answers add-learner 2: done
            > deliver
              2 follows 1 in term 2
              2 writes term 2 and vote 0
              2 writes 1@1, 2@2, 3@2, 4@2, 5@2, 6@2
              2 applies 1: membership, add-voter 1
              2 applies 2, which is empty
              2 applies 3: x
              2 applies 4: y
              2 applies 5: z
              2 applies 6: membership, add-learner 2
            > state
              1 leads term 2; log [1 2 2 2 2 2], committed 6, applied 6
              2 follows 1 in term 2; log [1 2 2 2 2 2], committed 6, applied 6
        "#]],
    );
}

#[test]
fn a_member_that_knows_nothing_stands_for_no_election() {
    check(
        "
            join 1
            tick 1 100
            state
        ",
        &expect![[r#"
            > join 1
            > tick 1 100
            > state
              1 knows no leader in term 0; log [], committed 0, applied 0
        "#]],
    );
}

#[test]
fn the_first_member_restarts() {
    check(
        "
            bootstrap 1
            propose 1 x
            restart 1
            state
        ",
        &expect![[r#"
            > bootstrap 1
              1 applies 1: membership, add-voter 1
              1 leads term 2
              1 writes term 2 and vote 1, 2@2
              1 applies 2, which is empty
            > propose 1 x
              1 takes x as 3@2
              1 writes 3@2
              1 applies 3: x
              1 answers x: done
            > restart 1
              1 leads term 3
              1 writes term 3 and vote 1, 4@3
              1 applies 4, which is empty
            > state
              1 leads term 3; log [1 2 2 3], committed 4, applied 4
        "#]],
    );
}
