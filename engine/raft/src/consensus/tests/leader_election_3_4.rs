//! Raft thesis §3.4: a member that hears from no leader stands for election, and a majority's votes make
//! it the leader of the term.

use super::script::check;
use expect_test::expect;

#[test]
fn a_majority_elects_a_leader() {
    check(
        "
            start 1 2 3
            timeout 1
            wire
            deliver
            state
        ",
        &expect![[r#"
            > start 1 2 3
            > timeout 1
              1 is a pre-candidate in term 0
            > wire
              1->2 RequestPreVote: term 1, log ends at 0@0
              1->3 RequestPreVote: term 1, log ends at 0@0
            > deliver
              1 is a candidate in term 1
              1 writes term 1 and vote 1
              2 knows no leader in term 1
              2 writes term 1 and vote 1
              3 knows no leader in term 1
              3 writes term 1 and vote 1
              1 leads term 1
              1 writes 1@1
              2 follows 1 in term 1
              2 writes 1@1
              3 follows 1 in term 1
              3 writes 1@1
              1 applies 1, which is empty
              2 applies 1, which is empty
              3 applies 1, which is empty
            > state
              1 leads term 1; log [1], committed 1, applied 1
              2 follows 1 in term 1; log [1], committed 1, applied 1
              3 follows 1 in term 1; log [1], committed 1, applied 1
        "#]],
    );
}

#[test]
fn a_minority_elects_nobody() {
    check(
        "
            start 1 2 3
            cut 1
            timeout 1
            deliver
            timeout 1
            state 1
        ",
        &expect![[r#"
            > start 1 2 3
            > cut 1
            > timeout 1
              1 is a pre-candidate in term 0
            > deliver
            > timeout 1
            > state 1
              1 is a pre-candidate in term 0; log [], committed 0, applied 0
        "#]],
    );
}

#[test]
fn a_second_candidate_of_the_same_term_gets_no_second_vote() {
    check(
        "
            start 1 2 3
            timeout 1
            deliver 1->2
            deliver 2->1
            timeout 3
            deliver 3->2
            deliver 2->3
            # Both are candidates of term 1, and member 2 has one vote.
            deliver 1->2
            deliver 3->2
            deliver 2->1
            deliver 2->3
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
            > timeout 3
              3 is a pre-candidate in term 0
            > deliver 3->2
              3->2 RequestPreVote: term 1, log ends at 0@0
            > deliver 2->3
              2->3 RequestPreVoteResponse: term 1, yes
              3 is a candidate in term 1
              3 writes term 1 and vote 3
            # Both are candidates of term 1, and member 2 has one vote.
            > deliver 1->2
              1->2 RequestVote: term 1, log ends at 0@0
              2 knows no leader in term 1
              2 writes term 1 and vote 1
            > deliver 3->2
              3->2 RequestVote: term 1, log ends at 0@0
            > deliver 2->1
              2->1 RequestVoteResponse: term 1, yes
              1 leads term 1
              1 writes 1@1
            > deliver 2->3
              2->3 RequestVoteResponse: term 1, no
        "#]],
    );
}

#[test]
fn a_candidate_with_a_shorter_log_is_refused() {
    check(
        "
            # §3.6.1: the winner's log holds everything that is committed.
            member 1 voters=1,2,3 log=1 term=1
            member 2 voters=1,2,3 log=1,1 term=1
            member 3 voters=1,2,3 log=1,1 term=1
            timeout 1
            deliver
            state
            timeout 2
            deliver
            state
        ",
        &expect![[r#"
            # §3.6.1: the winner's log holds everything that is committed.
            > member 1 voters=1,2,3 log=1 term=1
            > member 2 voters=1,2,3 log=1,1 term=1
            > member 3 voters=1,2,3 log=1,1 term=1
            > timeout 1
              1 is a pre-candidate in term 1
            > deliver
              1 knows no leader in term 1
            > state
              1 knows no leader in term 1; log [1], committed 0, applied 0
              2 knows no leader in term 1; log [1 1], committed 0, applied 0
              3 knows no leader in term 1; log [1 1], committed 0, applied 0
            > timeout 2
              2 is a pre-candidate in term 1
            > deliver
              2 is a candidate in term 2
              2 writes term 2 and vote 2
              1 knows no leader in term 2
              1 writes term 2 and vote 2
              3 knows no leader in term 2
              3 writes term 2 and vote 2
              2 leads term 2
              2 writes 3@2
              1 follows 2 in term 2
              3 follows 2 in term 2
              3 writes 3@2
              1 writes 2@1, 3@2
              2 applies 1: past-1@1
              2 applies 2: past-2@1
              2 applies 3, which is empty
              1 applies 1: past-1@1
              1 applies 2: past-2@1
              1 applies 3, which is empty
              3 applies 1: past-1@1
              3 applies 2: past-2@1
              3 applies 3, which is empty
            > state
              1 follows 2 in term 2; log [1 1 2], committed 3, applied 3
              2 leads term 2; log [1 1 2], committed 3, applied 3
              3 follows 2 in term 2; log [1 1 2], committed 3, applied 3
        "#]],
    );
}
