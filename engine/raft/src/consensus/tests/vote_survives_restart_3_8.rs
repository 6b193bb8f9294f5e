//! Raft thesis §3.8: term and vote are on disk before they are told, so no member votes twice in a term,
//! also not after a restart.

use super::script::check;
use expect_test::expect;

#[test]
fn a_vote_leaves_only_after_it_is_on_disk() {
    check(
        "
            member 1 voters=1,2,3 term=4
            member 2 voters=1,2,3 term=4
            member 3 voters=1,2,3 term=4
            hold-disk 2
            timeout 1
            deliver 1->2
            deliver 2->1
            # Now member 1 asks for the vote itself, and member 2 grants it.
            deliver 1->2
            wire
            sync 2
            wire
        ",
        &expect![[r#"
            > member 1 voters=1,2,3 term=4
            > member 2 voters=1,2,3 term=4
            > member 3 voters=1,2,3 term=4
            > hold-disk 2
            > timeout 1
              1 is a pre-candidate in term 4
            > deliver 1->2
              1->2 RequestPreVote: term 5, log ends at 0@0
            > deliver 2->1
              2->1 RequestPreVoteResponse: term 5, yes
              1 is a candidate in term 5
              1 writes term 5 and vote 1
            # Now member 1 asks for the vote itself, and member 2 grants it.
            > deliver 1->2
              1->2 RequestVote: term 5, log ends at 0@0
              2 knows no leader in term 5
              2 writes term 5 and vote 1
            > wire
              1->3 RequestPreVote: term 5, log ends at 0@0
              1->3 RequestVote: term 5, log ends at 0@0
            > sync 2
            > wire
              1->3 RequestPreVote: term 5, log ends at 0@0
              1->3 RequestVote: term 5, log ends at 0@0
              2->1 RequestVoteResponse: term 5, yes
        "#]],
    );
}

#[test]
fn a_vote_that_was_told_is_remembered() {
    check(
        "
            start 1 2 3
            timeout 1
            deliver 1->2
            deliver 2->1
            timeout 3
            deliver 3->2
            deliver 2->3
            # Both 1 and 3 ask for votes in term 1; member 2 votes for 1 and stops.
            deliver 1->2
            lose 2->1
            restart 2
            up-for-a-while 2
            deliver 3->2
            wire
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
            # Both 1 and 3 ask for votes in term 1; member 2 votes for 1 and stops.
            > deliver 1->2
              1->2 RequestVote: term 1, log ends at 0@0
              2 knows no leader in term 1
              2 writes term 1 and vote 1
            > lose 2->1
            > restart 2
            > up-for-a-while 2
            > deliver 3->2
              3->2 RequestVote: term 1, log ends at 0@0
            > wire
              1->3 RequestPreVote: term 1, log ends at 0@0
              1->3 RequestVote: term 1, log ends at 0@0
              2->3 RequestVoteResponse: term 1, no
              3->1 RequestPreVote: term 1, log ends at 0@0
              3->1 RequestVote: term 1, log ends at 0@0
        "#]],
    );
}

#[test]
fn a_vote_that_was_lost_was_never_told() {
    check(
        "
            start 1 2 3
            timeout 1
            deliver 1->2
            deliver 2->1
            timeout 3
            deliver 3->2
            deliver 2->3
            hold-disk 2
            deliver 1->2
            # Member 2 voted for 1, and stops before that is on its disk. It may vote for 3 now: nobody counted the
            # other vote.
            restart 2
            deliver 3->2
            sync 2
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
            > hold-disk 2
            > deliver 1->2
              1->2 RequestVote: term 1, log ends at 0@0
              2 knows no leader in term 1
              2 writes term 1 and vote 1
            # Member 2 voted for 1, and stops before that is on its disk. It may vote for 3 now: nobody counted the
            # other vote.
            > restart 2
            > deliver 3->2
              3->2 RequestVote: term 1, log ends at 0@0
              2 knows no leader in term 1
              2 writes term 1 and vote 3
            > sync 2
            > deliver 2->1
            > deliver 2->3
              2->3 RequestVoteResponse: term 1, yes
              3 leads term 1
              3 writes 1@1
        "#]],
    );
}

#[test]
fn a_candidate_asks_only_after_its_own_vote_is_on_disk() {
    check(
        "
            start 1 2 3
            hold-disk 1
            timeout 1
            deliver 1->2
            deliver 2->1
            wire
            sync 1
            wire
        ",
        &expect![[r#"
            > start 1 2 3
            > hold-disk 1
            > timeout 1
              1 is a pre-candidate in term 0
            > deliver 1->2
              1->2 RequestPreVote: term 1, log ends at 0@0
            > deliver 2->1
              2->1 RequestPreVoteResponse: term 1, yes
              1 is a candidate in term 1
              1 writes term 1 and vote 1
            > wire
              1->3 RequestPreVote: term 1, log ends at 0@0
            > sync 1
            > wire
              1->2 RequestVote: term 1, log ends at 0@0
              1->3 RequestPreVote: term 1, log ends at 0@0
              1->3 RequestVote: term 1, log ends at 0@0
        "#]],
    );
}
