//! Raft thesis §3.5: an append is taken only where the entry before it matches; what contradicts the
//! leader's log is replaced.

use super::script::check;
use expect_test::expect;

#[test]
fn a_contradicting_suffix_is_overwritten() {
    check(
        "
            # Figure 3.6: followers that miss entries, have extra ones, or both.
            member 1 voters=1,2,3 log=1,1,1,4,4,5,5,6,6,6 term=6 commit=3 applied=3
            member 2 voters=1,2,3 log=1,1,1,4 term=6 commit=3 applied=3
            member 3 voters=1,2,3 log=1,1,1,2,2,2,3,3,3,3,3 term=6 commit=3 applied=3
            elect 1
            state
        ",
        &expect![[r#"
            # Figure 3.6: followers that miss entries, have extra ones, or both.
            > member 1 voters=1,2,3 log=1,1,1,4,4,5,5,6,6,6 term=6 commit=3 applied=3
            > member 2 voters=1,2,3 log=1,1,1,4 term=6 commit=3 applied=3
            > member 3 voters=1,2,3 log=1,1,1,2,2,2,3,3,3,3,3 term=6 commit=3 applied=3
            > elect 1
              1 leads term 7
            > state
              1 leads term 7; log [1 1 1 4 4 5 5 6 6 6 7], committed 11, applied 11
              2 follows 1 in term 7; log [1 1 1 4 4 5 5 6 6 6 7], committed 11, applied 11
              3 follows 1 in term 7; log [1 1 1 4 4 5 5 6 6 6 7], committed 11, applied 11
        "#]],
    );
}

#[test]
fn the_leader_skips_a_whole_term_with_each_refusal() {
    check(
        "
            member 1 voters=1,2 log=1,1,4,4,4 term=4 commit=2 applied=2
            member 2 voters=1,2 log=1,1,2,2,2,2 term=4 commit=2 applied=2
            timeout 1
            deliver 1->2
            deliver 2->1
            deliver 1->2
            deliver 2->1
            deliver 1->2
            deliver 2->1
            deliver 1->2
            deliver 2->1
        ",
        &expect![[r#"
            > member 1 voters=1,2 log=1,1,4,4,4 term=4 commit=2 applied=2
            > member 2 voters=1,2 log=1,1,2,2,2,2 term=4 commit=2 applied=2
            > timeout 1
              1 is a pre-candidate in term 4
            > deliver 1->2
              1->2 RequestPreVote: term 5, log ends at 5@4
            > deliver 2->1
              2->1 RequestPreVoteResponse: term 5, yes
              1 is a candidate in term 5
              1 writes term 5 and vote 1
            > deliver 1->2
              1->2 RequestVote: term 5, log ends at 5@4
              2 knows no leader in term 5
              2 writes term 5 and vote 1
            > deliver 2->1
              2->1 RequestVoteResponse: term 5, yes
              1 leads term 5
              1 writes 6@5
            > deliver 1->2
              1->2 Append: term 5, after 5@4 [6@5], commit 2
              2 follows 1 in term 5
            > deliver 2->1
              2->1 AppendResponse: term 5, no to 5, try 5@2
            > deliver 1->2
              1->2 Append: term 5, after 2@1 [3@4 4@4 5@4 6@5], commit 2
              2 writes 3@4, 4@4, 5@4, 6@5
            > deliver 2->1
              2->1 AppendResponse: term 5, has 6
              1 applies 3: past-3@4
              1 applies 4: past-4@4
              1 applies 5: past-5@4
              1 applies 6, which is empty
        "#]],
    );
}

#[test]
fn what_was_replaced_on_the_way_to_the_disk_does_not_count() {
    check(
        "
            # Member 3 gets entry 2 of term 1, and before its disk has it, another one of term 2.
            member 1 voters=1,2,3,4,5
            member 2 voters=1,2,3,4,5
            member 3 voters=1,2,3,4,5
            member 4 voters=1,2,3,4,5
            member 5 voters=1,2,3,4,5
            elect 1
            hold-disk 3
            cut 1->2
            cut 1->4
            cut 1->5
            propose 1 x
            deliver 1->3
            cut 1
            tick 3 10
            tick 4 10
            tick 5 10
            elect 2
            propose 2 y
            deliver
            state
            lose
            # Its disk syncs the first entry 2, which is no news to anyone by now.
            sync 3
            wire
            sync 3
            wire
            sync 3
            wire
            state 3
        ",
        &expect![[r#"
            # Member 3 gets entry 2 of term 1, and before its disk has it, another one of term 2.
            > member 1 voters=1,2,3,4,5
            > member 2 voters=1,2,3,4,5
            > member 3 voters=1,2,3,4,5
            > member 4 voters=1,2,3,4,5
            > member 5 voters=1,2,3,4,5
            > elect 1
              1 leads term 1
            > hold-disk 3
            > cut 1->2
            > cut 1->4
            > cut 1->5
            > propose 1 x
              1 takes x as 2@1
              1 writes 2@1
            > deliver 1->3
              1->3 Append: term 1, after 1@1 [2@1], commit 1
              3 writes 2@1
            > cut 1
            > tick 3 10
            > tick 4 10
            > tick 5 10
            > elect 2
              2 leads term 2
            > propose 2 y
              2 takes y as 3@2
              2 writes 3@2
            > deliver
              4 writes 3@2
              5 writes 3@2
              2 applies 3: y
              2 answers y: done
              4 applies 3: y
              5 applies 3: y
            > state
              1 leads term 1; log [1 1], committed 1, applied 1
              2 leads term 2; log [1 2 2], committed 3, applied 3
              3 follows 2 in term 2; log [1 2], committed 1, applied 1, on disk 1
              4 follows 2 in term 2; log [1 2 2], committed 3, applied 3
              5 follows 2 in term 2; log [1 2 2], committed 3, applied 3
            > lose
            # Its disk syncs the first entry 2, which is no news to anyone by now.
            > sync 3
            > wire
            > sync 3
            > wire
              3->2 RequestVoteResponse: term 2, no
            > sync 3
            > wire
              3->2 RequestVoteResponse: term 2, no
              3->2 AppendResponse: term 2, has 2
            > state 3
              3 follows 2 in term 2; log [1 2], committed 1, applied 1
        "#]],
    );
}
