//! Where acknowledged entries were lost and the others go on without them, a member that still has
//! them ends: Raft (thesis §3.6.3) knows no such case. A member that lost some leaves it to others
//! to stand for election.

use bytes::Bytes;
use dengine_types::{Index, MemberId};
use prost_raft::Message as _;
use raft::eraftpb::{Entry, Message, MessageType};

use super::cluster::Cluster;
use super::script::run;
use crate::consensus::Role;

/// Members 2 and 3 have lost entries 3 and 4, which member 1 has applied, and go on with others.
const LOSS: &str = "
    member 1 voters=1,2,3 log=1,1,1,1 term=1 commit=4 applied=4
    member 2 voters=1,2,3 log=1,1 term=1 commit=2 applied=2
    member 3 voters=1,2,3 log=1,1 term=1 commit=2 applied=2
    cut 1
    elect 2
    propose 2 a b c
    deliver
    heal";

fn after(script: &str, rounds: usize) -> Cluster {
    let round = "\n tick 2 1 \n deliver \n tick 1 1 \n deliver";
    run(
        Cluster::default(),
        &format!("{LOSS}\n{script}{}", round.repeat(rounds)),
    )
}

fn ended(cluster: &Cluster) -> bool {
    let says = cluster
        .transcript
        .contains("1 ends: entry 3 is committed here");
    assert_eq!(cluster.members[&1].consensus.has_ended(), says);
    says
}

#[test]
fn a_member_whose_committed_entries_the_leader_replaces_ends_and_applies_nothing_on_top() {
    // Not at once: anybody could say it once.
    assert!(!ended(&after("", 5)));
    let mut cluster = after("", 15);
    assert!(ended(&cluster), "{}", cluster.transcript);
    let survivor = &cluster.members[&1];
    assert_eq!(survivor.host.machine.applied, Index(4));
    assert_eq!(survivor.host.disk.whole_log().len(), 4);
    // It says so once, and the others go on.
    assert_eq!(cluster.transcript.matches(" ends: ").count(), 1);
    cluster.propose(2, &["d"]);
    cluster.deliver_all();
    assert_eq!(cluster.members[&3].host.machine.applied, Index(7));
    assert_eq!(cluster.members[&1].host.machine.applied, Index(4));
}

/// A message of `member` in `term` to member 1.
fn from_member(member: u64, term: u64, kind: MessageType, message: Message) -> (MemberId, Bytes) {
    let message = Message {
        msg_type: kind.into(),
        from: member,
        to: 1,
        term,
        ..message
    };
    (MemberId(member), Bytes::from(message.encode_to_vec()))
}

/// Of member 2, which leads term 2.
fn from_leader(kind: MessageType, message: Message) -> (MemberId, Bytes) {
    from_member(2, 2, kind, message)
}

/// An append that replaces entry 3, which member 1 has applied.
fn contradiction() -> Message {
    let replaced = Entry {
        index: 3,
        term: 2,
        ..Entry::default()
    };
    Message {
        index: 2,
        log_term: 1,
        entries: vec![replaced],
        ..Message::default()
    }
}

/// It must be said for an election timeout, however long it is followed.
#[test]
fn what_a_leader_says_once_ends_nobody() {
    for (times, ends) in [(1, false), (9, false), (10, true)] {
        let mut cluster = run(Cluster::default(), LOSS);
        for tick in 0..30 {
            let (from, heartbeat) = from_leader(MessageType::MsgHeartbeat, Message::default());
            cluster.receive(1, from, &heartbeat);
            if (6..6 + times).contains(&tick) {
                let (from, append) = from_leader(MessageType::MsgAppend, contradiction());
                cluster.receive(1, from, &append);
            }
            cluster.tick(1);
        }
        assert_eq!(ended(&cluster), ends, "{times}: {}", cluster.transcript);
    }
}

/// However often, and whether or not there is a leader.
#[test]
fn what_others_than_its_leader_say_ends_nobody() {
    for leads in [false, true] {
        let mut cluster = run(Cluster::default(), LOSS);
        for _ in 0..30 {
            if leads {
                let (from, heartbeat) = from_leader(MessageType::MsgHeartbeat, Message::default());
                cluster.receive(1, from, &heartbeat);
            }
            let (from, append) = from_member(3, 3, MessageType::MsgAppend, contradiction());
            cluster.receive(1, from, &append);
            cluster.tick(1);
        }
        let refused = "refuses a message: it contradicts the committed entry 3";
        assert_eq!(cluster.transcript.matches(refused).count(), 30);
        assert!(!ended(&cluster), "{}", cluster.transcript);
    }
}

#[test]
fn it_confirms_no_read_by_that_leader() {
    // It has applied more than the leader has: nothing would have to be waited for.
    let more = "log=1,1,1,1,1,1,1,1 term=1 commit=8 applied=8";
    let script = LOSS.replace("log=1,1,1,1 term=1 commit=4 applied=4", more);
    let round = "\n tick 2 1 \n deliver \n tick 1 1 \n deliver";
    let read = |script: &str| {
        let script = format!(
            "{script}\n tick 2 1 \n deliver \n read 1{}",
            round.repeat(30)
        );
        run(Cluster::default(), &script).transcript
    };
    let transcript = read(&script);
    assert!(!transcript.contains("1 may serve"), "{transcript}");
    // Where the others have lost nothing, the same script confirms it.
    let transcript = read(&script.replace("log=1,1 term=1 commit=2 applied=2", more));
    assert!(transcript.contains("1 may serve"), "{transcript}");
}

#[test]
fn it_finds_out_although_it_does_not_have_those_entries_in_its_log_any_more() {
    let cluster = run(
        Cluster::default(),
        &format!(
            "{}{}",
            LOSS.replace("cut 1", "truncate 1 4\n cut 1"),
            "\n tick 2 1 \n deliver \n tick 1 1 \n deliver".repeat(15)
        ),
    );
    assert!(
        cluster.transcript.contains("1 ends: "),
        "{}",
        cluster.transcript
    );
}

/// Of a log that is longer, and ends in an earlier term than what is committed here.
#[test]
fn a_leader_that_has_more_entries_of_earlier_terms_is_found_out_as_well() {
    let script = "
        member 1 voters=1,2,3 log=1,1,3 term=3 commit=3 applied=3
        member 2 voters=1,2,3 log=1,1,2,2,2,2 term=3 commit=2 applied=2
        member 3 voters=1,2,3 log=1,1 term=3 commit=2 applied=2
        cut 1
        elect 2
        deliver
        heal";
    let round = "\n tick 2 1 \n deliver \n tick 1 1 \n deliver";
    let cluster = run(Cluster::default(), &format!("{script}{}", round.repeat(15)));
    assert!(
        cluster.transcript.contains("1 ends: "),
        "{}",
        cluster.transcript
    );
    assert_eq!(cluster.members[&1].host.machine.applied, Index(3));
}

#[test]
fn who_agrees_with_its_leader_never_ends() {
    let round = "\n tick 2 1 \n deliver \n tick 1 1 \n deliver";
    let script = LOSS.replace(
        "log=1,1,1,1 term=1 commit=4 applied=4",
        "log=1,1 term=1 commit=2",
    );
    let cluster = run(Cluster::default(), &format!("{script}{}", round.repeat(30)));
    assert!(!ended(&cluster));
    assert_eq!(cluster.members[&1].host.machine.applied, Index(6));
}

/// Where everything was synced, only a liar leads without what was committed, and no member without
/// a vote leads.
#[test]
fn a_liar_ends_nobody() {
    let synced = run(Cluster::default(), "configure acknowledges_unsynced=0");
    let rounds = "\n tick 2 1 \n deliver \n tick 1 1 \n deliver".repeat(30);
    let cluster = run(synced, &format!("{LOSS}{rounds}"));
    assert!(!ended(&cluster));
    // But a member with another history than its leader serves no reads.
    let serves = |id: u64| cluster.members[&id].consensus.can_confirm_reads();
    assert_eq!([1, 2, 3].map(serves), [false, true, true]);
    let of_others = LOSS.replace("member 1 voters=1,2,3", "member 1 voters=1,3,4");
    let cluster = run(Cluster::default(), &format!("{of_others}{rounds}"));
    assert!(!ended(&cluster), "{}", cluster.transcript);
    assert_eq!(cluster.members[&1].host.machine.applied, Index(4));
}

const LOST_WRITES: &str = "configure members=1 lost_writes_accepted=1";

fn with_loss(script: &str) -> Cluster {
    run(run(Cluster::default(), LOST_WRITES), script)
}

#[test]
fn who_lost_writes_stands_after_five_election_timeouts() {
    let voters = "member 1 voters=1,2,3 log=1,1 term=1 commit=2 applied=2";
    let role = |ticks: u64| {
        let cluster = with_loss(&format!("{voters}\n tick 1 {ticks}"));
        cluster.members[&1].consensus.state().role
    };
    assert_eq!(role(49), Role::Follower);
    assert_eq!(role(75), Role::PreCandidate);
}

/// For five election timeouts of ten ticks it stays where the last tick of the first one finds it,
/// and goes on from there.
#[test]
fn who_lost_writes_stands_four_election_timeouts_after_it_would_have() {
    for seed in 0..10 {
        let stands_at = |configure| {
            let cluster = Cluster {
                seed,
                ..Cluster::default()
            };
            let cluster = run(cluster, configure);
            let voters = "member 1 voters=1,2,3 log=1,1 term=1 commit=2 applied=2";
            let mut cluster = run(cluster, voters);
            let ticks = (1..100).find(|_| {
                cluster.tick(1);
                cluster.members[&1].consensus.state().role != Role::Follower
            });
            ticks.expect("it stands")
        };
        assert_eq!(stands_at(LOST_WRITES), stands_at("") + 40);
    }
}

#[test]
fn who_lost_writes_votes_for_whom_has_more() {
    let cluster = with_loss(
        "
        member 1 voters=1,2 log=1,1 term=1 commit=2 applied=2
        member 2 voters=1,2 log=1,1,1 term=1 commit=3 applied=3
        elect 2",
    );
    assert_eq!(
        cluster.members[&1].consensus.state().leader,
        Some(MemberId(2))
    );
    assert_eq!(cluster.members[&1].host.machine.applied, Index(4));
}

#[test]
fn once_it_has_heard_of_a_leader_it_is_as_any_other() {
    let cluster = with_loss(
        "
        member 1 voters=1,2 log=1,1 term=1 commit=2 applied=2
        member 2 voters=1,2 log=1,1,1 term=1 commit=3 applied=3
        elect 2
        cut 2
        tick 1 25",
    );
    let role = cluster.members[&1].consensus.state().role;
    assert_eq!(role, Role::PreCandidate);
}

#[test]
fn a_sole_voter_that_lost_writes_leads_at_once() {
    let cluster = with_loss("member 1 voters=1 log=1,1 term=1 commit=2 applied=2");
    assert_eq!(cluster.members[&1].consensus.state().role, Role::Leader);
}
