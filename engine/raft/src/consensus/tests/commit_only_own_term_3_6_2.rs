//! Raft thesis §3.6.2, figure 3.7: an entry of an earlier term is committed only through one of the
//! leader's own term, however many members hold it.

use super::script::check;
use expect_test::expect;

#[test]
fn a_majority_of_copies_does_not_commit_an_old_entry() {
    check(
        "
            # As in (c) of the figure: entry 2 is of term 2, and member 1 leads term 4 and spreads it.
            member 1 voters=1,2,3,4,5 log=1,2 term=3 commit=1 applied=1
            member 2 voters=1,2,3,4,5 log=1,2 term=3 commit=1 applied=1
            member 3 voters=1,2,3,4,5 log=1 term=3 commit=1 applied=1
            cut 1->4
            cut 1->5
            hold-disk 1
            timeout 1
            deliver
            sync 1
            deliver 1->2
            deliver 1->3
            deliver 2->1
            deliver 3->1
            # Member 1 leads. Its own entry 3 is on nobody's disk yet; entry 2 is about to be on three.
            hold-disk 2
            hold-disk 3
            deliver 1->2
            deliver 1->3
            deliver 3->1
            deliver 1->3
            state
            # Only with entry 3 on a majority's disks are both committed, at once.
            sync 3
            deliver 3->1
            sync 1
            state 1
            sync 2
            deliver 2->1
            state 1
        ",
        &expect![[r#"
            # As in (c) of the figure: entry 2 is of term 2, and member 1 leads term 4 and spreads it.
            > member 1 voters=1,2,3,4,5 log=1,2 term=3 commit=1 applied=1
            > member 2 voters=1,2,3,4,5 log=1,2 term=3 commit=1 applied=1
            > member 3 voters=1,2,3,4,5 log=1 term=3 commit=1 applied=1
            > cut 1->4
            > cut 1->5
            > hold-disk 1
            > timeout 1
              1 is a pre-candidate in term 3
            > deliver
              1 is a candidate in term 4
              1 writes term 4 and vote 1
            > sync 1
            > deliver 1->2
              1->2 RequestVote: term 4, log ends at 2@2
              2 knows no leader in term 4
              2 writes term 4 and vote 1
            > deliver 1->3
              1->3 RequestVote: term 4, log ends at 2@2
              3 knows no leader in term 4
              3 writes term 4 and vote 1
            > deliver 2->1
              2->1 RequestVoteResponse: term 4, yes
            > deliver 3->1
              3->1 RequestVoteResponse: term 4, yes
              1 leads term 4
              1 writes 3@4
            # Member 1 leads. Its own entry 3 is on nobody's disk yet; entry 2 is about to be on three.
            > hold-disk 2
            > hold-disk 3
            > deliver 1->2
              1->2 Append: term 4, after 2@2 [3@4], commit 1
              2 follows 1 in term 4
              2 writes 3@4
            > deliver 1->3
              1->3 Append: term 4, after 2@2 [3@4], commit 1
              3 follows 1 in term 4
            > deliver 3->1
              3->1 AppendResponse: term 4, no to 2, try 1@1
            > deliver 1->3
              1->3 Append: term 4, after 1@1 [2@2 3@4], commit 1
              3 writes 2@2, 3@4
            > state
              1 leads term 4; log [1 2 4], committed 1, applied 1, on disk 2
              2 follows 1 in term 4; log [1 2 4], committed 1, applied 1, on disk 2
              3 follows 1 in term 4; log [1 2 4], committed 1, applied 1, on disk 1
            # Only with entry 3 on a majority's disks are both committed, at once.
            > sync 3
            > deliver 3->1
              3->1 AppendResponse: term 4, has 3
            > sync 1
            > state 1
              1 leads term 4; log [1 2 4], committed 1, applied 1
            > sync 2
            > deliver 2->1
              2->1 AppendResponse: term 4, has 3
              1 applies 2: past-2@2
              1 applies 3, which is empty
            > state 1
              1 leads term 4; log [1 2 4], committed 3, applied 3
        "#]],
    );
}

#[test]
fn an_old_entry_that_a_majority_held_is_still_replaced() {
    check(
        "
            # As in (d1): member 5 wins with votes of members that hold entry 2 of term 2, and replaces it.
            member 1 voters=1,2,3,4,5 log=1,2 term=4 commit=1 applied=1
            member 2 voters=1,2,3,4,5 log=1,2 term=4 commit=1 applied=1
            member 3 voters=1,2,3,4,5 log=1,2 term=4 commit=1 applied=1
            member 4 voters=1,2,3,4,5 log=1 term=4 commit=1 applied=1
            member 5 voters=1,2,3,4,5 log=1,3 term=4 commit=1 applied=1
            elect 5
            state
        ",
        &expect![[r#"
            # As in (d1): member 5 wins with votes of members that hold entry 2 of term 2, and replaces it.
            > member 1 voters=1,2,3,4,5 log=1,2 term=4 commit=1 applied=1
            > member 2 voters=1,2,3,4,5 log=1,2 term=4 commit=1 applied=1
            > member 3 voters=1,2,3,4,5 log=1,2 term=4 commit=1 applied=1
            > member 4 voters=1,2,3,4,5 log=1 term=4 commit=1 applied=1
            > member 5 voters=1,2,3,4,5 log=1,3 term=4 commit=1 applied=1
            > elect 5
              5 leads term 5
            > state
              1 follows 5 in term 5; log [1 3 5], committed 3, applied 3
              2 follows 5 in term 5; log [1 3 5], committed 3, applied 3
              3 follows 5 in term 5; log [1 3 5], committed 3, applied 3
              4 follows 5 in term 5; log [1 3 5], committed 3, applied 3
              5 leads term 5; log [1 3 5], committed 3, applied 3
        "#]],
    );
}
