//! Raft thesis §4.1 and §4.2.1: one member at a time, first as a learner; a change counts once it is
//! applied, and there is no second one before.

use super::script::check;
use expect_test::expect;

#[test]
fn learner_then_voter_then_removed() {
    check(
        "
            bootstrap 1
            join 2
            add-learner 1 2
            deliver
            state
            promote 1 2
            deliver
            # From now on nothing is committed without member 2.
            cut 2
            propose 1 x
            deliver
            state
            heal
            tick 1 1
            deliver
            remove 1 2
            deliver
            propose 1 y
            state
        ",
        &expect![[r#"
            > bootstrap 1
              1 applies 1: membership, add-voter 1
              1 leads term 2
              1 writes term 2 and vote 1, 2@2
              1 applies 2, which is empty
            > join 2
            > add-learner 1 2
              1 takes add-learner 2 as 3@2
              1 writes 3@2
              1 applies 3: membership, add-learner 2
              1 answers add-learner 2: done
            > deliver
              2 follows 1 in term 2
              2 writes term 2 and vote 0
              2 writes 1@1, 2@2, 3@2
              2 applies 1: membership, add-voter 1
              2 applies 2, which is empty
              2 applies 3: membership, add-learner 2
            > state
              1 leads term 2; log [1 2 2], committed 3, applied 3
              2 follows 1 in term 2; log [1 2 2], committed 3, applied 3
            > promote 1 2
              1 takes promote 2 as 4@2
              1 writes 4@2
              1 applies 4: membership, promote 2
              1 answers promote 2: done
            > deliver
              2 writes 4@2
              2 applies 4: membership, promote 2
            # From now on nothing is committed without member 2.
            > cut 2
            > propose 1 x
              1 takes x as 5@2
              1 writes 5@2
            > deliver
            > state
              1 leads term 2; log [1 2 2 2 2], committed 4, applied 4
              2 follows 1 in term 2; log [1 2 2 2], committed 4, applied 4
            > heal
            > tick 1 1
            > deliver
              2 writes 5@2
              1 applies 5: x
              1 answers x: done
              2 applies 5: x
            > remove 1 2
              1 takes remove 2 as 6@2
              1 writes 6@2
            > deliver
              2 writes 6@2
              1 applies 6: membership, remove 2
              1 answers remove 2: done
              2 applies 6: membership, remove 2
            > propose 1 y
              1 takes y as 7@2
              1 writes 7@2
              1 applies 7: y
              1 answers y: done
            > state
              1 leads term 2; log [1 2 2 2 2 2 2], committed 7, applied 7
              2 follows 1 in term 2; log [1 2 2 2 2 2], committed 6, applied 6
        "#]],
    );
}

#[test]
fn a_second_change_becomes_an_empty_entry() {
    check(
        "
            # The crate says nothing when it refuses a change; its proposer finds another entry in its place.
            bootstrap 1
            join 2
            join 3
            hold-disk 1
            add-learner 1 2
            add-learner 1 3
            release-disk 1
        ",
        &expect![[r#"
            # The crate says nothing when it refuses a change; its proposer finds another entry in its place.
            > bootstrap 1
              1 applies 1: membership, add-voter 1
              1 leads term 2
              1 writes term 2 and vote 1, 2@2
              1 applies 2, which is empty
            > join 2
            > join 3
            > hold-disk 1
            > add-learner 1 2
              1 takes add-learner 2 as 3@2
              1 writes 3@2
            > add-learner 1 3
              1 takes add-learner 3 as 4@2
              1 writes 4@2
            > release-disk 1
              1 applies 3: membership, add-learner 2
              1 answers add-learner 2: done
              1 applies 4, which is empty
              1 answers add-learner 3: another entry is in its place
        "#]],
    );
}

#[test]
fn a_leader_removes_itself_and_leads_no_longer() {
    check(
        "
            start 1 2 3
            elect 1
            remove 1 1
            deliver
            state
            propose 1 x
            # It never stands for election again. The others do once they miss it.
            tick 1 100
            tick 3 10
            elect 2
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > remove 1 1
              1 takes remove 1 as 2@1
              1 writes 2@1
            > deliver
              2 writes 2@1
              3 writes 2@1
              1 applies 2: membership, remove 1
              1 answers remove 1: done
              1 knows no leader in term 1
              2 applies 2: membership, remove 1
              3 applies 2: membership, remove 1
            > state
              1 knows no leader in term 1; log [1 1], committed 2, applied 2
              2 follows 1 in term 1; log [1 1], committed 2, applied 2
              3 follows 1 in term 1; log [1 1], committed 2, applied 2
            > propose 1 x
              1 refuses x: this member does not lead
            # It never stands for election again. The others do once they miss it.
            > tick 1 100
            > tick 3 10
            > elect 2
              2 leads term 2
        "#]],
    );
}

#[test]
fn a_learner_forgets_a_leader_that_is_silent() {
    check(
        "
            bootstrap 1
            join 2
            add-learner 1 2
            deliver
            state 2
            tick 2 20
            # So long it may be a pause.
            state 2
            tick 2 1
            state 2
        ",
        &expect![[r#"
            > bootstrap 1
              1 applies 1: membership, add-voter 1
              1 leads term 2
              1 writes term 2 and vote 1, 2@2
              1 applies 2, which is empty
            > join 2
            > add-learner 1 2
              1 takes add-learner 2 as 3@2
              1 writes 3@2
              1 applies 3: membership, add-learner 2
              1 answers add-learner 2: done
            > deliver
              2 follows 1 in term 2
              2 writes term 2 and vote 0
              2 writes 1@1, 2@2, 3@2
              2 applies 1: membership, add-voter 1
              2 applies 2, which is empty
              2 applies 3: membership, add-learner 2
            > state 2
              2 follows 1 in term 2; log [1 2 2], committed 3, applied 3
            > tick 2 20
            # So long it may be a pause.
            > state 2
              2 follows 1 in term 2; log [1 2 2], committed 3, applied 3
            > tick 2 1
              2 knows no leader in term 2
            > state 2
              2 knows no leader in term 2; log [1 2 2], committed 3, applied 3
        "#]],
    );
}
