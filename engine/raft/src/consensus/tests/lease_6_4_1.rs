//! Raft thesis §6.4.1: a leader that a quorum has acknowledged lately answers reads by itself.

use super::cluster::Cluster;
use super::script::{check, check_with, run};
use dengine_types::MemberId;
use expect_test::expect;
use std::collections::VecDeque;
use std::time::Duration;

#[test]
fn a_lease_read_asks_nobody_while_the_lease_holds() {
    check(
        "
            start 1 2 3
            elect 1
            # The first one needs a round, which begins the lease.
            lease-read 1
            deliver
            cut 1
            lease-read 1
            tick 1 8
            lease-read 1
            # Nine ticks, less a tenth for the clocks' drift: here it ends.
            tick 1 1
            lease-read 1
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            # The first one needs a round, which begins the lease.
            > lease-read 1
              1 is asked for lease read 1
            > deliver
              1 may serve read 1 once 1 is applied
            > cut 1
            > lease-read 1
              1 is asked for lease read 2
              1 may serve read 2 once 1 is applied
            > tick 1 8
            > lease-read 1
              1 is asked for lease read 3
              1 may serve read 3 once 1 is applied
            # Nine ticks, less a tenth for the clocks' drift: here it ends.
            > tick 1 1
            > lease-read 1
              1 is asked for lease read 4
        "#]],
    );
}

#[test]
fn the_lease_counts_from_when_the_round_was_sent() {
    check(
        "
            start 1 2 3
            elect 1
            lease-read 1
            tick 1 6
            deliver
            tick 1 2
            lease-read 1
            tick 1 1
            lose
            cut 1
            lease-read 1
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > lease-read 1
              1 is asked for lease read 1
            > tick 1 6
            > deliver
              1 may serve read 1 once 1 is applied
            > tick 1 2
            > lease-read 1
              1 is asked for lease read 2
              1 may serve read 2 once 1 is applied
            > tick 1 1
            > lose
            > cut 1
            > lease-read 1
              1 is asked for lease read 3
        "#]],
    );
}

/// With each heartbeat, and for three election timeouts after somebody last asked for it.
#[test]
fn a_lease_that_is_asked_for_is_kept_up_for_a_while() {
    let cluster = Cluster {
        configure: Some(|config| config.heartbeat_ticks = 2),
        ..Cluster::default()
    };
    let script = "start 1 2 3
                  elect 1
                  tick 1 5
                  lease-read 1
                  deliver";
    let mut cluster = run(cluster, script);
    let until = |cluster: &Cluster| cluster.members[&1].consensus.lease_until();
    let mut renewed = Vec::new();
    for tick in 1..=60 {
        let before = until(&cluster);
        cluster = run(
            cluster,
            "tick 1 1
             deliver",
        );
        if until(&cluster) > before {
            renewed.push(tick);
        }
    }
    expect!["[2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28]"]
        .assert_eq(&format!("{renewed:?}"));
}

#[test]
fn a_transfer_ends_the_lease_for_its_term() {
    check(
        "
            start 1 2 3
            elect 1
            lease-read 1
            deliver
            cut 1
            transfer 1 2
            lease-read 1
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > lease-read 1
              1 is asked for lease read 1
            > deliver
              1 may serve read 1 once 1 is applied
            > cut 1
            > transfer 1 2
            > lease-read 1
              1 is asked for lease read 2
        "#]],
    );
}

#[test]
fn a_membership_change_drops_the_lease() {
    check(
        "
            start 1 2 3
            elect 1
            lease-read 1
            deliver
            join 4
            add-learner 1 4
            deliver
            cut 1
            lease-read 1
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > lease-read 1
              1 is asked for lease read 1
            > deliver
              1 may serve read 1 once 1 is applied
            > join 4
            > add-learner 1 4
              1 takes add-learner 4 as 2@1
              1 writes 2@1
            > deliver
              2 writes 2@1
              3 writes 2@1
              1 applies 2: membership, add-learner 4
              1 answers add-learner 4: done
              2 applies 2: membership, add-learner 4
              3 applies 2: membership, add-learner 4
              4 follows 1 in term 1
              4 writes term 1 and vote 0
              4 writes 1@1, 2@1
              4 applies 1, which is empty
              4 applies 2: membership, add-learner 4
            > cut 1
            > lease-read 1
              1 is asked for lease read 2
        "#]],
    );
}

#[test]
fn a_restarted_member_helps_nobody_within_the_lease_it_may_have_acknowledged() {
    check(
        "
            start 1 2 3
            elect 1
            lease-read 1
            deliver
            restart 2
            restart 3
            lose
            cut 1
            timeout 3
            deliver 3->2
            wire
            # It is up for an election timeout now.
            tick 2 10
            lose
            timeout 3
            deliver 3->2
            wire
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > lease-read 1
              1 is asked for lease read 1
            > deliver
              1 may serve read 1 once 1 is applied
            > restart 2
            > restart 3
            > lose
            > cut 1
            > timeout 3
              3 is a pre-candidate in term 1
            > deliver 3->2
              3->2 RequestPreVote: term 2, log ends at 1@1
            > wire
            # It is up for an election timeout now.
            > tick 2 10
            > lose
            > timeout 3
            > deliver 3->2
              3->2 RequestPreVote: term 2, log ends at 1@1
            > wire
              2->3 RequestPreVoteResponse: term 2, yes
        "#]],
    );
}

#[test]
fn only_the_leader_has_a_lease() {
    check(
        "
            start 1 2 3
            elect 1
            lease-read 2
            deliver
            lease-read 2
            lose
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > lease-read 2
              2 is asked for lease read 1
            > deliver
              2 may serve read 1 once 1 is applied
            > lease-read 2
              2 is asked for lease read 2
            > lose
        "#]],
    );
}

/// What a lease trusts in, and a linearizable read does not: that the clocks run at about the same speed.
#[test]
fn a_clock_that_stands_still_deceives_a_lease_and_no_linearizable_read() {
    check(
        "
            start 1 2 3
            elect 1
            lease-read 1
            deliver
            cut 1
            tick 2 10
            tick 3 10
            elect 2
            propose 2 x
            deliver
            lease-read 1
            read 1
            state
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > lease-read 1
              1 is asked for lease read 1
            > deliver
              1 may serve read 1 once 1 is applied
            > cut 1
            > tick 2 10
            > tick 3 10
            > elect 2
              2 leads term 2
            > propose 2 x
              2 takes x as 3@2
              2 writes 3@2
            > deliver
              3 writes 3@2
              2 applies 3: x
              2 answers x: done
              3 applies 3: x
            > lease-read 1
              1 is asked for lease read 2
              1 may serve read 2 once 1 is applied
            > read 1
              1 is asked for read 3
            > state
              1 leads term 1; log [1], committed 1, applied 1
              2 leads term 2; log [1 2 2], committed 3, applied 3
              3 follows 2 in term 2; log [1 2 2], committed 3, applied 3
        "#]],
    );
}

/// The crate forgets that it follows a leader as soon as it hears of a later term.
#[test]
fn whoever_acknowledged_a_round_votes_for_nobody_even_if_it_hears_of_a_later_term() {
    check(
        "
            start 1 2 3
            elect 1
            cut 1
            tick 2 10
            timeout 3
            deliver 3->2
            deliver 2->3
            # Member 3 stands in term 2, and nobody hears of it.
            lose 3->2
            timeout 2
            deliver 2->3
            # Member 3 tells member 2 of term 2, and that takes a while.
            wire
            # Meanwhile their old leader is back and gets a lease from member 2.
            tick 3 9
            heal
            lease-read 1
            deliver 1->2
            deliver 2->1
            lose 1->3
            cut 1
            deliver 3->2
            # While the lease lasts, member 2 may not vote.
            timeout 3
            deliver
            state
            lease-read 1
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 1
            > tick 2 10
            > timeout 3
              3 is a pre-candidate in term 1
            > deliver 3->2
              3->2 RequestPreVote: term 2, log ends at 1@1
            > deliver 2->3
              2->3 RequestPreVoteResponse: term 2, yes
              3 is a candidate in term 2
              3 writes term 2 and vote 3
            # Member 3 stands in term 2, and nobody hears of it.
            > lose 3->2
            > timeout 2
              2 is a pre-candidate in term 1
            > deliver 2->3
              2->3 RequestPreVote: term 2, log ends at 1@1
            # Member 3 tells member 2 of term 2, and that takes a while.
            > wire
              3->2 RequestPreVoteResponse: term 2, no
            # Meanwhile their old leader is back and gets a lease from member 2.
            > tick 3 9
            > heal
            > lease-read 1
              1 is asked for lease read 1
            > deliver 1->2
              1->2 Heartbeat: term 1, commit 1, read round
              2 follows 1 in term 1
            > deliver 2->1
              2->1 HeartbeatResponse: term 1, read round
              1 may serve read 1 once 1 is applied
            > lose 1->3
            > cut 1
            > deliver 3->2
              3->2 RequestPreVoteResponse: term 2, no
              2 knows no leader in term 2
              2 writes term 2 and vote 0
            # While the lease lasts, member 2 may not vote.
            > timeout 3
              3 is a pre-candidate in term 2
            > deliver
            > state
              1 leads term 1; log [1], committed 1, applied 1
              2 knows no leader in term 2; log [1], committed 1, applied 1
              3 is a pre-candidate in term 2; log [1], committed 1, applied 1
            > lease-read 1
              1 is asked for lease read 2
              1 may serve read 2 once 1 is applied
        "#]],
    );
}

/// While shorter ticks are rolled out, the leader comes last.
#[test]
fn a_leader_counts_on_what_the_others_promise_and_not_on_its_own_settings() {
    check_with(
        |config| {
            if config.id != MemberId(1) {
                config.tick = Duration::from_millis(10);
            }
        },
        "
            start 1 2 3
            elect 1
            lease-read 1
            deliver
            # Nine ticks of 10 ms, less a tenth, are over before one of 100 ms is.
            lease-read 1
            cut 1
            tick 1 7
            tick 2 10
            tick 3 10
            elect 3
            propose 3 x
            deliver
            lease-read 1
            state
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > lease-read 1
              1 is asked for lease read 1
            > deliver
              1 may serve read 1 once 1 is applied
            # Nine ticks of 10 ms, less a tenth, are over before one of 100 ms is.
            > lease-read 1
              1 is asked for lease read 2
              1 may serve read 2 once 1 is applied
            > cut 1
            > tick 1 7
            > tick 2 10
            > tick 3 10
            > elect 3
              3 leads term 2
            > propose 3 x
              3 takes x as 3@2
              3 writes 3@2
            > deliver
              2 writes 3@2
              3 applies 3: x
              3 answers x: done
              2 applies 3: x
            > lease-read 1
              1 is asked for lease read 3
            > state
              1 leads term 1; log [1], committed 1, applied 1
              2 follows 3 in term 2; log [1 2 2], committed 3, applied 3
              3 leads term 2; log [1 2 2], committed 3, applied 3
        "#]],
    );
}

/// The tail of a roll-out of longer ticks.
#[test]
fn one_member_with_a_short_promise_is_left_out_of_a_quorum_that_has_another() {
    check_with(
        |config| {
            if config.id == MemberId(2) {
                config.tick = Duration::from_millis(10);
            }
        },
        "
            start 1 2 3
            elect 1
            lease-read 1
            deliver 1->2
            deliver 2->1
            tick 1 1
            # Of member 2, which answered first, nothing is left.
            lease-read 1
            deliver 1->3
            deliver 3->1
            # Member 3 promised for longer.
            lease-read 1
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > lease-read 1
              1 is asked for lease read 1
            > deliver 1->2
              1->2 Heartbeat: term 1, commit 1, read round
            > deliver 2->1
              2->1 HeartbeatResponse: term 1, read round
              1 may serve read 1 once 1 is applied
            > tick 1 1
            # Of member 2, which answered first, nothing is left.
            > lease-read 1
              1 is asked for lease read 2
            > deliver 1->3
              1->3 Heartbeat: term 1, commit 1, read round
              1->3 Heartbeat: term 1, commit 1
              1->3 Heartbeat: term 1, commit 1, read round
            > deliver 3->1
              3->1 HeartbeatResponse: term 1, read round
              3->1 HeartbeatResponse: term 1
              3->1 HeartbeatResponse: term 1, read round
            # Member 3 promised for longer.
            > lease-read 1
              1 is asked for lease read 3
              1 may serve read 3 once 1 is applied
        "#]],
    );
}

/// Members of earlier versions say nothing of how long they wait.
#[test]
fn whoever_promises_nothing_gives_no_lease() {
    check(
        "
            start 1 2 3
            promises-nothing 2
            promises-nothing 3
            elect 1
            lease-read 1
            deliver
            lease-read 1
            deliver
        ",
        &expect![[r#"
            > start 1 2 3
            > promises-nothing 2
            > promises-nothing 3
            > elect 1
              1 leads term 1
            > lease-read 1
              1 is asked for lease read 1
            > deliver
              1 may serve read 1 once 1 is applied
            > lease-read 1
              1 is asked for lease read 2
            > deliver
              1 may serve read 2 once 1 is applied
        "#]],
    );
}

/// It may have promised up to a second when it ran with longer ticks.
#[test]
fn a_member_that_restarts_with_shorter_ticks_keeps_what_it_promised_with_longer_ones() {
    let mut cluster = run(
        Cluster::default(),
        "
            start 1 2 3
            elect 1
            lease-read 1
            deliver
            cut 1
        ",
    );
    cluster.configure = Some(|config| {
        if config.id != MemberId(1) {
            config.tick = Duration::from_millis(10);
        }
    });
    let cluster = run(
        cluster,
        "
            restart 2
            restart 3
            lose
            # Neither votes for the other, nor stands itself.
            tick 2 99
            tick 3 99
            tick 1 8
            lease-read 1
            state
            tick 3 1
            tick 2 20
            deliver
        ",
    );
    expect![[r#"
        > start 1 2 3
        > elect 1
          1 leads term 1
        > lease-read 1
          1 is asked for lease read 1
        > deliver
          1 may serve read 1 once 1 is applied
        > cut 1
        > restart 2
        > restart 3
        > lose
        # Neither votes for the other, nor stands itself.
        > tick 2 99
        > tick 3 99
        > tick 1 8
        > lease-read 1
          1 is asked for lease read 2
          1 may serve read 2 once 1 is applied
        > state
          1 leads term 1; log [1], committed 1, applied 1
          2 knows no leader in term 1; log [1], committed 1, applied 1
          3 knows no leader in term 1; log [1], committed 1, applied 1
        > tick 3 1
          3 is a pre-candidate in term 1
        > tick 2 20
          2 is a pre-candidate in term 1
        > deliver
          2 is a candidate in term 2
          2 writes term 2 and vote 2
          3 is a candidate in term 2
          3 writes term 2 and vote 3
    "#]]
    .assert_eq(&cluster.transcript);
}

/// It comes late, from a time in which the same member led.
#[test]
fn a_heartbeat_of_an_earlier_term_keeps_nobody_from_voting() {
    let mut cluster = run(
        Cluster::default(),
        "start 1 2 3
         elect 1
         tick 1 1",
    );
    let early = cluster.links.get_mut(&(1, 2)).and_then(VecDeque::pop_front);
    let mut cluster = run(
        cluster,
        "lose
         tick 1 10
         tick 2 10
         tick 3 10
         lose
         elect 3
         tick 1 10
         tick 2 10
         lose
         elect 1
         tick 1 1
         deliver
         cut 1
         tick 2 9
         lose",
    );
    cluster.transcript.clear();
    let link = cluster.links.entry((1, 2)).or_default();
    link.extend(early);
    let cluster = run(
        cluster,
        "deliver 1->2
         lose
         tick 2 1
         lose
         timeout 3
         lose 3->1
         deliver 3->2
         wire",
    );
    expect![[r#"
        > deliver 1->2
          1->2 Heartbeat: term 1, commit 1
        > lose
        > tick 2 1
        > lose
        > timeout 3
          3 is a pre-candidate in term 3
        > lose 3->1
        > deliver 3->2
          3->2 RequestPreVote: term 4, log ends at 3@3
        > wire
          2->3 RequestPreVoteResponse: term 4, yes
    "#]]
    .assert_eq(&cluster.transcript);
}
