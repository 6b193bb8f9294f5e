//! Nothing here grows without a bound, whatever is slow.

use super::cluster::Cluster;
use super::script::{check, check_with, run};
use crate::consensus::{ConsensusConfig, Event, Proposal};
use crate::output::Output;
use bytes::Bytes;
use expect_test::expect;
use prost_raft::Message as _;
use raft::eraftpb::{Message, MessageType};
use std::collections::BTreeSet;

#[test]
fn a_slow_state_machine_is_given_four_batches_and_no_more() {
    check_with(
        |config| config.max_apply_bytes = 30,
        "
            start 1
            hold-apply 1
            propose 1 a b c d e f
            # All are committed, and what fits into four batches is handed out.
            state
            release-apply 1
            state
        ",
        &expect![[r#"
            > start 1
              1 leads term 1
              1 writes term 1 and vote 1, 1@1
              1 applies 1, which is empty
            > hold-apply 1
            > propose 1 a b c d e f
              1 takes a as 2@1
              1 takes b as 3@1
              1 takes c as 4@1
              1 takes d as 5@1
              1 takes e as 6@1
              1 takes f as 7@1
              1 writes 2@1, 3@1, 4@1, 5@1, 6@1, 7@1
            # All are committed, and what fits into four batches is handed out.
            > state
              1 leads term 1; log [1 1 1 1 1 1 1], committed 7, applied 1, 4 handed out
            > release-apply 1
              1 applies 2: a
              1 answers a: done
              1 applies 3: b
              1 answers b: done
              1 applies 4: c
              1 answers c: done
              1 applies 5: d
              1 answers d: done
              1 applies 6: e
              1 answers e: done
              1 applies 7: f
              1 answers f: done
            > state
              1 leads term 1; log [1 1 1 1 1 1 1], committed 7, applied 7
        "#]],
    );
}

#[test]
fn a_leader_takes_only_so_much_that_is_not_committed() {
    check_with(
        |config| {
            config.max_message_bytes = 8;
            config.max_uncommitted_bytes = 8;
        },
        "
            bootstrap 1
            join 2
            hold-disk 1
            propose 1 12345
            propose 1 67890
            # A membership change that found no room does not stand in the way of the next one.
            add-learner 1 2
            release-disk 1
            add-learner 1 2
        ",
        &expect![[r#"
            > bootstrap 1
              1 applies 1: membership, add-voter 1
              1 leads term 2
              1 writes term 2 and vote 1, 2@2
              1 applies 2, which is empty
            > join 2
            > hold-disk 1
            > propose 1 12345
              1 takes 12345 as 3@2
              1 writes 3@2
            > propose 1 67890
              1 refuses 67890: the leader takes no proposals now: too much is uncommitted, or leadership is being handed over
            # A membership change that found no room does not stand in the way of the next one.
            > add-learner 1 2
              1 refuses add-learner 2: the leader takes no proposals now: too much is uncommitted, or leadership is being handed over
            > release-disk 1
              1 applies 3: 12345
              1 answers 12345: done
            > add-learner 1 2
              1 takes add-learner 2 as 4@2
              1 writes 4@2
              1 applies 4: membership, add-learner 2
              1 answers add-learner 2: done
        "#]],
    );
}

/// Only what they take in bytes is bounded.
#[test]
fn a_leader_takes_proposals_although_those_before_are_not_committed() {
    check(
        "
            start 1 2 3
            elect 1
            cut 1
            propose 1 a b c d
            propose 1 e
            propose 1 f
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 1
            > propose 1 a b c d
              1 takes a as 2@1
              1 takes b as 3@1
              1 takes c as 4@1
              1 takes d as 5@1
              1 writes 2@1, 3@1, 4@1, 5@1
            > propose 1 e
              1 takes e as 6@1
              1 writes 6@1
            > propose 1 f
              1 takes f as 7@1
              1 writes 7@1
        "#]],
    );
}

#[test]
fn reads_that_wait_are_counted_with_those_of_the_round() {
    check_with(
        |config| config.max_waiting_reads = 2,
        "
            start 1 2 3
            elect 1
            read 1
            read 1
            read 1
            deliver
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > read 1
              1 is asked for read 1
            > read 1
              1 is asked for read 2
            > read 1
              1 is asked for read 3
              1 refuses read 3: too many reads wait for confirmation
            > deliver
              1 may serve read 1 once 1 is applied
              1 may serve read 2 once 1 is applied
        "#]],
    );
}

#[test]
fn a_stuck_disk_holds_only_so_many_messages() {
    // Each heartbeat is answered, and while the term is not on disk, each answer is held.
    check(
        "
            member 1 voters=1 learners=2 log=1 term=1 commit=1 applied=1
            member 2 voters=1 learners=2
            hold-disk 2
            deliver
            count-held 2
            tick 1 5000
            deliver
            count-held 2
        ",
        &expect![[r#"
            > member 1 voters=1 learners=2 log=1 term=1 commit=1 applied=1
              1 leads term 2
              1 writes term 2 and vote 1, 2@2
              1 applies 2, which is empty
            > member 2 voters=1 learners=2
            > hold-disk 2
            > deliver
            > count-held 2
              2 holds 0 messages
            > tick 1 5000
            > deliver
              2 follows 1 in term 2
              2 writes term 2 and vote 0
            > count-held 2
              2 holds 4096 messages
        "#]],
    );
}

/// The crate answers each sign of life of a follower that lags with as much of the log as fits into a message. With
/// a round of reads all the time, that is all that the leader would do.
#[test]
fn rounds_of_reads_do_not_multiply_what_a_lagging_follower_is_sent() {
    check(
        "
            start 1 2 3
            elect 1
            cut 3
            propose 1 a
            deliver
            heal
            read 1
            deliver 1->2
            deliver 2->1
            read 1
            deliver 1->2
            deliver 2->1
            read 1
            deliver 1->2
            deliver 2->1
            # Three rounds are confirmed, and member 3 answers all of them.
            deliver 1->3
            deliver 3->1
            # The leader tries to go on once.
            wire
            # Its message is lost; so it tries again at the next heartbeat, also if that is part of a round.
            lose
            tick 1 2
            read 1
            deliver 1->3
            deliver 3->1
            wire
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 3
            > propose 1 a
              1 takes a as 2@1
              1 writes 2@1
            > deliver
              2 writes 2@1
              1 applies 2: a
              1 answers a: done
              2 applies 2: a
            > heal
            > read 1
              1 is asked for read 1
            > deliver 1->2
              1->2 Heartbeat: term 1, commit 2, read round
            > deliver 2->1
              2->1 HeartbeatResponse: term 1, read round
              1 may serve read 1 once 2 is applied
            > read 1
              1 is asked for read 2
            > deliver 1->2
              1->2 Heartbeat: term 1, commit 2, read round
            > deliver 2->1
              2->1 HeartbeatResponse: term 1, read round
              1 may serve read 2 once 2 is applied
            > read 1
              1 is asked for read 3
            > deliver 1->2
              1->2 Heartbeat: term 1, commit 2, read round
            > deliver 2->1
              2->1 HeartbeatResponse: term 1, read round
              1 may serve read 3 once 2 is applied
            # Three rounds are confirmed, and member 3 answers all of them.
            > deliver 1->3
              1->3 Heartbeat: term 1, commit 1, read round
              1->3 Heartbeat: term 1, commit 1, read round
              1->3 Heartbeat: term 1, commit 1, read round
            > deliver 3->1
              3->1 HeartbeatResponse: term 1, read round
              3->1 HeartbeatResponse: term 1, read round
              3->1 HeartbeatResponse: term 1, read round
            # The leader tries to go on once.
            > wire
              1->3 Append: term 1, after 2@1 [], commit 2
            # Its message is lost; so it tries again at the next heartbeat, also if that is part of a round.
            > lose
            > tick 1 2
            > read 1
              1 is asked for read 4
            > deliver 1->3
              1->3 Heartbeat: term 1, commit 1
              1->3 Heartbeat: term 1, commit 1
              1->3 Heartbeat: term 1, commit 1, read round
            > deliver 3->1
              3->1 HeartbeatResponse: term 1
              3->1 HeartbeatResponse: term 1
              3->1 HeartbeatResponse: term 1, read round
              1 may serve read 4 once 2 is applied
            > wire
              1->2 Heartbeat: term 1, commit 2
              1->2 Heartbeat: term 1, commit 2
              1->2 Heartbeat: term 1, commit 2, read round
              1->3 Append: term 1, after 2@1 [], commit 2
        "#]],
    );
}

#[test]
fn a_lagging_follower_is_sent_the_log_again_once_in_a_heartbeat_interval() {
    let again = "
            tick 1 1
            lose
            read 1
            deliver 1->3
            deliver 3->1
            lose 1->2
            wire
            lose";
    let script = format!(
        "
            start 1 2 3
            elect 1
            cut 3
            propose 1 a
            deliver
            heal{again}{again}{again}{again}
        "
    );
    check_with(
        |it| it.heartbeat_ticks = 2,
        &script,
        &expect![[r#"
        > start 1 2 3
        > elect 1
          1 leads term 1
        > cut 3
        > propose 1 a
          1 takes a as 2@1
          1 writes 2@1
        > deliver
          2 writes 2@1
          1 applies 2: a
          1 answers a: done
          2 applies 2: a
        > heal
        > tick 1 1
        > lose
        > read 1
          1 is asked for read 1
        > deliver 1->3
          1->3 Heartbeat: term 1, commit 1, read round
        > deliver 3->1
          3->1 HeartbeatResponse: term 1, read round
          1 may serve read 1 once 2 is applied
        > lose 1->2
        > wire
          1->3 Append: term 1, after 2@1 [], commit 2
        > lose
        > tick 1 1
        > lose
        > read 1
          1 is asked for read 2
        > deliver 1->3
          1->3 Heartbeat: term 1, commit 1, read round
        > deliver 3->1
          3->1 HeartbeatResponse: term 1, read round
          1 may serve read 2 once 2 is applied
        > lose 1->2
        > wire
        > lose
        > tick 1 1
        > lose
        > read 1
          1 is asked for read 3
        > deliver 1->3
          1->3 Heartbeat: term 1, commit 1, read round
        > deliver 3->1
          3->1 HeartbeatResponse: term 1, read round
          1 may serve read 3 once 2 is applied
        > lose 1->2
        > wire
          1->3 Append: term 1, after 2@1 [], commit 2
        > lose
        > tick 1 1
        > lose
        > read 1
          1 is asked for read 4
        > deliver 1->3
          1->3 Heartbeat: term 1, commit 1, read round
        > deliver 3->1
          3->1 HeartbeatResponse: term 1, read round
          1 may serve read 4 once 2 is applied
        > lose 1->2
        > wire
        > lose
    "#]],
    );
}

#[test]
fn only_so_many_messages_of_the_log_are_on_their_way_to_a_follower() {
    check_with(
        |it| it.max_inflight_messages = 3,
        "
            start 1 2 3
            elect 1
            cut 1->3
            propose 1 a
            propose 1 b
            propose 1 c
            propose 1 d
            propose 1 e
            wire
        ",
        &expect![[r#"
            > start 1 2 3
            > elect 1
              1 leads term 1
            > cut 1->3
            > propose 1 a
              1 takes a as 2@1
              1 writes 2@1
            > propose 1 b
              1 takes b as 3@1
              1 writes 3@1
            > propose 1 c
              1 takes c as 4@1
              1 writes 4@1
            > propose 1 d
              1 takes d as 5@1
              1 writes 5@1
            > propose 1 e
              1 takes e as 6@1
              1 writes 6@1
            > wire
              1->2 Append: term 1, after 1@1 [2@1], commit 1
              1->2 Append: term 1, after 2@1 [3@1], commit 1
              1->2 Append: term 1, after 3@1 [4@1], commit 1
        "#]],
    );
}

/// A follower that is back answers the first message of the log that it is sent, and then gets all that may be on its way.
#[test]
fn a_message_to_a_lagging_follower_has_a_bound() {
    let configure = |config: &mut ConsensusConfig| {
        config.max_message_bytes = 4 << 10;
        config.max_inflight_messages = 16;
    };
    let cluster = Cluster {
        seed: 7704,
        configure: Some(configure),
        ..Cluster::default()
    };
    let mut cluster = run(cluster, "start 1 2 3\n elect 1\n cut 3");
    let small = "x".repeat(100);
    for round in 0..300 {
        cluster.propose(1, &[small.as_str()]);
        if round % 100 == 50 {
            // Larger than a message is otherwise.
            cluster.propose(1, &["y".repeat(5 << 10).as_str()]);
        }
        cluster.deliver_all();
    }
    cluster.cut.clear();
    cluster.tick(1);
    let mut sizes = Vec::new();
    while cluster.member(3).consensus.last_index() < cluster.member(1).consensus.last_index() {
        let queued = cluster.links.get(&(1, 3)).into_iter().flatten();
        sizes.extend(queued.map(Bytes::len));
        for link in [(1, 3), (3, 1)] {
            while cluster.deliver_one(link, false) {}
        }
    }
    assert!(sizes.len() < 40, "it is sent little at a time: {sizes:?}");
    let largest = sizes.into_iter().max().unwrap();
    assert!((5 << 10..6 << 10).contains(&largest), "{largest}");
}

/// A queue to a peer that is full does without them.
#[test]
fn appends_are_marked_and_nothing_else() {
    let mut cluster = run(
        Cluster::default(),
        "start 1 2 3
         elect 1",
    );
    let consensus = &mut cluster.member(1).consensus;
    let proposal = Proposal {
        data: Bytes::from_static(b"x"),
        context: Vec::new(),
    };
    consensus.step(Event::Propose(vec![proposal])).unwrap();
    for _ in 0..10 {
        consensus.step(Event::Tick).unwrap();
    }
    let mut sent = BTreeSet::new();
    for output in consensus.outputs() {
        let Output::Send(messages) = output else {
            continue;
        };
        for message in messages {
            let kind = Message::decode(message.bytes.as_ref()).unwrap().msg_type();
            assert_eq!(message.carries_log, kind == MessageType::MsgAppend);
            sent.insert(kind as i32);
        }
    }
    let (append, heartbeat) = (MessageType::MsgAppend, MessageType::MsgHeartbeat);
    assert_eq!(sent, BTreeSet::from([append as i32, heartbeat as i32]));
}
