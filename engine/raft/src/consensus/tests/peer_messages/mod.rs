//! Whatever a peer sends, the process goes on; and a message that is refused changes nothing.

mod memory;
mod random;
mod snapshots;
mod terms;

use bytes::Bytes;
use dengine_log::CONTEXT_BYTES_MAX;
use dengine_types::{HardState, MemberId, NUMBER_MAX};
use prost_raft::Message as _;
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};

use super::cluster::Cluster;
use super::script::run;
use crate::consensus::{LARGEST_PASSED_ON_BYTES, MESSAGE_BYTES, PassedOn, PeerMessageError};

/// Everything of member 1 that a message could change.
type Fingerprint = (String, HardState, String);

fn fingerprint(cluster: &Cluster) -> Fingerprint {
    let member = &cluster.members[&1];
    let raft = member.consensus.hard_state();
    (
        cluster.status(1),
        raft,
        format!("{:?}", member.consensus.progress()),
    )
}

/// Offers a message to member 1 and checks that a refusal changed nothing.
fn offer(cluster: &mut Cluster, stream: u64, bytes: &Bytes) -> Result<(), PeerMessageError> {
    let before = fingerprint(cluster);
    let from = MemberId(stream);
    let taken = cluster.member(1).consensus.message(from, bytes);
    if taken.is_err() {
        let outputs = cluster.member(1).consensus.outputs();
        assert!(outputs.is_empty(), "{outputs:?}");
        assert_eq!(fingerprint(cluster), before);
    }
    cluster.settle(1);
    taken
}

fn encode(message: &Message) -> Bytes {
    Bytes::from(message.encode_to_vec())
}

/// A message from member 2 to member 1 in term 1.
fn from_2(kind: MessageType) -> Message {
    let term = u64::from(kind != MessageType::MsgReadIndex);
    Message {
        msg_type: kind.into(),
        from: 2,
        to: 1,
        term,
        ..Message::default()
    }
}

fn past_entry(index: u64, term: u64) -> Entry {
    Entry {
        index,
        term,
        ..Entry::default()
    }
}

/// Offers `message` to member 1 after `setup`, and returns why it was refused.
fn refusal(setup: &str, message: &Message) -> String {
    let mut cluster = run(Cluster::default(), setup);
    let error = offer(&mut cluster, 2, &encode(message)).expect_err("it must be refused");
    error.to_string()
}

const FOLLOWER: &str = "start 1 2 3
                        elect 2";
const LEADER: &str = "start 1 2 3
                      elect 1";

#[test]
fn whose_it_is() {
    let heartbeat = from_2(MessageType::MsgHeartbeat);
    let of_3 = Message {
        from: 3,
        ..heartbeat.clone()
    };
    assert_eq!(
        refusal(FOLLOWER, &of_3),
        "claims to be from member 3 on a stream of member 2"
    );
    let to_3 = Message {
        to: 3,
        ..heartbeat.clone()
    };
    assert_eq!(
        refusal(FOLLOWER, &to_3),
        "is for member 3, this is member 1"
    );
    let mut cluster = run(Cluster::default(), FOLLOWER);
    for own in [0, 1] {
        let message = Message {
            from: own,
            ..heartbeat.clone()
        };
        let error = offer(&mut cluster, own, &encode(&message)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("comes from {own}, which is no peer")
        );
    }
}

#[test]
fn what_kind_it_is() {
    let mut cluster = run(Cluster::default(), FOLLOWER);
    let error = offer(&mut cluster, 2, &Bytes::from_static(b"\xff")).unwrap_err();
    assert!(matches!(error, PeerMessageError::Decode(_)), "{error}");
    let local = [
        MessageType::MsgHup,
        MessageType::MsgBeat,
        MessageType::MsgSnapshot,
        MessageType::MsgUnreachable,
        MessageType::MsgSnapStatus,
        MessageType::MsgCheckQuorum,
        MessageType::MsgTransferLeader,
    ];
    for kind in local {
        let expected = format!(
            "message type {} is not one that members exchange",
            kind as i32
        );
        assert_eq!(refusal(FOLLOWER, &from_2(kind)), expected);
    }
    let unknown = Message {
        msg_type: 99,
        ..from_2(MessageType::MsgHeartbeat)
    };
    assert_eq!(
        refusal(FOLLOWER, &unknown),
        "message type 99 is not one that members exchange"
    );
}

/// Commands that a follower passes on have contexts of that follower, all of one start, and nothing
/// that only a log gives; a refusal has contexts of this member, and no commands.
#[test]
fn what_is_passed_on() {
    let entry = |member: u64, boot: u64, data: &[u8]| Entry {
        context: [member, boot, 1].map(u64::to_be_bytes).concat(),
        data: data.to_vec(),
        ..Entry::default()
    };
    let passes = |entries: Vec<Entry>| Message {
        context: vec![10, 0, 0, 1],
        entries,
        ..from_2(MessageType::MsgPropose)
    };
    let placed = Entry {
        index: 7,
        ..entry(2, 1, b"c")
    };
    let no_client = Message {
        context: vec![10],
        ..passes(vec![entry(2, 1, b"c")])
    };
    let too_large = vec![7; LARGEST_PASSED_ON_BYTES + 1];
    let refuses_others = Message {
        reject: true,
        context: Vec::new(),
        ..passes(vec![entry(2, 1, b"")])
    };
    for message in [
        passes(Vec::new()),
        passes(vec![entry(3, 1, b"c")]),
        passes(vec![entry(2, 1, b"c"), entry(2, 2, b"c")]),
        passes(vec![entry(2, 1, b"")]),
        passes(vec![placed]),
        passes(vec![entry(2, 1, &too_large)]),
        passes(vec![entry(2, 1, b"c"); MESSAGE_BYTES / 24]),
        no_client,
        refuses_others,
    ] {
        let refused = refusal(FOLLOWER, &message);
        assert_eq!(refused, "passes on what no member does", "{message:?}");
    }
}

/// It could make up ids without an end, each with starts that are remembered.
#[test]
fn what_is_passed_on_by_no_member_is_not_taken() {
    let passed_on = |from: u64| {
        let mut cluster = run(Cluster::default(), LEADER);
        let message = Message {
            context: vec![10, 0, 0, 1],
            from,
            entries: vec![Entry {
                context: [from, 1, 1].map(u64::to_be_bytes).concat(),
                data: vec![7],
                ..Entry::default()
            }],
            ..from_2(MessageType::MsgPropose)
        };
        offer(&mut cluster, from, &encode(&message)).unwrap();
        cluster.member(1).consensus.take_passed_on().remove(0)
    };
    assert!(matches!(passed_on(2), PassedOn::Asked { .. }));
    assert!(matches!(passed_on(9), PassedOn::NotTaken { .. }));
}

/// An append of entries of three bytes of data, in a log that is no longer young.
fn append_of(entries: u64) -> Message {
    let entry = |index| Entry {
        data: vec![7; 3],
        ..past_entry(index, 1)
    };
    Message {
        index: 1 << 14,
        log_term: 1,
        entries: (1..=entries).map(|it| entry((1 << 14) + it)).collect(),
        ..from_2(MessageType::MsgAppend)
    }
}

/// Each was eighty bytes of memory before any was looked at, so a frame of 64 MiB was more than the
/// process may have.
#[test]
fn entries_are_counted_before_they_are_held() {
    let nothing = |entries| Message {
        entries: vec![Entry::default(); entries],
        ..from_2(MessageType::MsgAppend)
    };
    for entries in [1_000, 200_000] {
        let refused = refusal(FOLLOWER, &nothing(entries));
        let expect = format!("has {entries} entries, more than a message of its size");
        assert_eq!(refused, expect);
    }
    let mut cluster = run(Cluster::default(), FOLLOWER);
    offer(&mut cluster, 2, &encode(&append_of(90_000))).unwrap();
    let few = refusal(FOLLOWER, &nothing(256));
    assert!(few.contains("do not follow"), "{few}");
}

/// A number takes a byte there, and eight in memory.
#[test]
fn a_list_of_members_is_measured_before_it_is_held() {
    let snapshot = Snapshot {
        data: vec![0; 5_000],
        ..Snapshot::default()
    };
    let message = Message {
        snapshot: Some(snapshot),
        ..from_2(MessageType::MsgAppend)
    };
    let refused = refusal(FOLLOWER, &message);
    assert_eq!(refused, "describes an impossible snapshot");
}

#[test]
fn a_change_is_of_one_member() {
    let append = |changes| Message {
        index: 1,
        log_term: 1,
        entries: vec![Entry {
            entry_type: EntryType::EntryConfChangeV2.into(),
            data: [0x12, 0].repeat(changes),
            ..past_entry(2, 1)
        }],
        ..from_2(MessageType::MsgAppend)
    };
    assert_eq!(refusal(FOLLOWER, &append(2)), "entry 2 cannot be read");
    let mut cluster = run(Cluster::default(), FOLLOWER);
    offer(&mut cluster, 2, &encode(&append(1))).unwrap();
}

#[test]
fn which_term_it_is_of() {
    let without = Message {
        term: 0,
        ..from_2(MessageType::MsgHeartbeat)
    };
    assert_eq!(refusal(FOLLOWER, &without), "has the impossible term 0");
    let read = Message {
        term: 1,
        ..from_2(MessageType::MsgReadIndex)
    };
    assert_eq!(refusal(LEADER, &read), "has the impossible term 1");
}

#[test]
fn what_it_has_no_use_for() {
    let entry = Entry::default();
    for message in [
        Message {
            context: vec![0; 25],
            ..from_2(MessageType::MsgHeartbeat)
        },
        Message {
            entries: vec![entry],
            ..from_2(MessageType::MsgHeartbeat)
        },
        Message {
            snapshot: Some(Snapshot::default()),
            ..from_2(MessageType::MsgReadIndex)
        },
    ] {
        let expected = format!(
            "has fields that messages of type {} never have",
            message.msg_type
        );
        assert_eq!(refusal(FOLLOWER, &message), expected);
    }
}

#[test]
fn which_entries_it_carries() {
    let append = |index, log_term, entries: &[Entry]| Message {
        index,
        log_term,
        entries: entries.to_vec(),
        ..from_2(MessageType::MsgAppend)
    };
    let broken = [
        // A gap, an overflow, terms that go down, a term after the message's, no term.
        append(1, 1, &[past_entry(3, 1)]),
        append(u64::MAX, 1, &[past_entry(0, 1)]),
        append(1, 1, &[past_entry(2, 0)]),
        append(1, 1, &[past_entry(2, 2)]),
        append(0, 0, &[past_entry(1, 0)]),
        // The crate reads the term of an entry it does not have as 0, and would find a match.
        append(7, 0, &[past_entry(8, 1)]),
        append(0, 1, &[]),
        append(1, 2, &[]),
    ];
    for message in broken {
        let expected = format!(
            "entries do not follow from index {} in term 1",
            message.index
        );
        assert_eq!(refusal(FOLLOWER, &message), expected);
    }
    let with_context = |bytes| Entry {
        context: vec![0; bytes],
        ..past_entry(2, 1)
    };
    let largest = append(1, 1, &[with_context(CONTEXT_BYTES_MAX)]);
    let mut cluster = run(Cluster::default(), FOLLOWER);
    offer(&mut cluster, 2, &encode(&largest)).expect("a log takes it");
    let no_log_takes_it = with_context(CONTEXT_BYTES_MAX + 1);
    assert_eq!(
        refusal(FOLLOWER, &append(1, 1, &[no_log_takes_it])),
        "entry 2 cannot be read"
    );
    let last = NUMBER_MAX;
    assert_eq!(
        refusal(FOLLOWER, &append(last, 1, &[past_entry(last + 1, 1)])),
        format!("entries do not follow from index {last} in term 1")
    );
    for (kind, data) in [
        (EntryType::EntryConfChange as i32, &b""[..]),
        (2, b"\xff"),
        (9, b""),
    ] {
        let entry = Entry {
            entry_type: kind,
            data: data.to_vec(),
            ..past_entry(2, 1)
        };
        assert_eq!(
            refusal(FOLLOWER, &append(1, 1, &[entry])),
            "entry 2 cannot be read"
        );
    }
}

#[test]
fn what_is_committed_stays() {
    let follower = "member 1 voters=1,2,3 log=1,1,2 term=2 commit=2 applied=2";
    let append = Message {
        term: 3,
        index: 1,
        log_term: 1,
        entries: vec![past_entry(2, 3)],
        ..from_2(MessageType::MsgAppend)
    };
    assert_eq!(
        refusal(follower, &append),
        "contradicts the committed entry 2"
    );
    let after = Message {
        index: 2,
        log_term: 2,
        entries: vec![],
        ..append.clone()
    };
    assert_eq!(
        refusal(follower, &after),
        "contradicts the committed entry 2"
    );
    // Terms never fall along a log, so what is before the third entry, of term 2, has no later one.
    let compacted = "member 1 voters=1,2,3 log=1,1,2,3,3 term=3 commit=5 applied=5
                     truncate 1 3";
    let before = Message {
        log_term: 3,
        entries: vec![],
        ..append.clone()
    };
    assert_eq!(
        refusal(compacted, &before),
        "contradicts the committed entry 1"
    );
    // One of an earlier term is answered, so that its sender learns of the later one.
    let mut cluster = run(Cluster::default(), follower);
    let stale = Message {
        term: 1,
        entries: vec![past_entry(2, 1)],
        ..append
    };
    offer(&mut cluster, 2, &encode(&stale)).unwrap();
}

#[test]
fn what_is_beyond_the_log() {
    let heartbeat = Message {
        commit: 9,
        ..from_2(MessageType::MsgHeartbeat)
    };
    assert_eq!(
        refusal(FOLLOWER, &heartbeat),
        "refers to entry 9; the log here ends at 1"
    );
    let response = Message {
        index: 9,
        ..from_2(MessageType::MsgAppendResponse)
    };
    assert_eq!(
        refusal(LEADER, &response),
        "refers to entry 9; the log here ends at 1"
    );
    let rejection = Message {
        reject: true,
        ..response
    };
    assert_eq!(
        refusal(LEADER, &rejection),
        "refers to entry 9; the log here ends at 1"
    );
    let hint = Message {
        index: 1,
        reject_hint: u64::MAX,
        ..rejection.clone()
    };
    let expected = format!(
        "rejects the append after entry 1 and suggests entry {}",
        u64::MAX
    );
    assert_eq!(refusal(LEADER, &hint), expected);
    let snapshot = Message {
        index: 1,
        request_snapshot: 1,
        ..rejection
    };
    assert_eq!(refusal(LEADER, &snapshot), "asks for a snapshot");
}

#[test]
fn a_term_has_one_leader() {
    let follower = "start 1 2 3
                    elect 3";
    let read = Message {
        entries: vec![Entry {
            data: [1_u64, 1, 1].map(u64::to_be_bytes).concat(),
            ..Entry::default()
        }],
        ..from_2(MessageType::MsgReadIndexResp)
    };
    let kinds = [
        MessageType::MsgAppend,
        MessageType::MsgHeartbeat,
        MessageType::MsgTimeoutNow,
    ];
    for message in kinds.map(from_2).into_iter().chain([read]) {
        let expected = "comes from member 2, which does not lead here";
        assert_eq!(refusal(follower, &message), expected);
        assert_eq!(refusal(LEADER, &message), expected);
    }
}

#[test]
fn a_read_carries_its_senders_context() {
    let entry = |member: u64| Entry {
        data: [member, 1, 1].map(u64::to_be_bytes).concat(),
        ..Entry::default()
    };
    let cases = [
        vec![],
        vec![Entry::default()],
        vec![entry(3)],
        vec![entry(2), entry(2)],
    ];
    for entries in cases {
        let read = Message {
            entries,
            ..from_2(MessageType::MsgReadIndex)
        };
        assert_eq!(
            refusal(LEADER, &read),
            "carries a read context that is not its sender's"
        );
    }
    let mut cluster = run(Cluster::default(), LEADER);
    let mut read = from_2(MessageType::MsgReadIndex);
    for count in 0..1024_u64 {
        let data = [2, 1, count].map(u64::to_be_bytes).concat();
        read.entries = vec![Entry {
            data,
            ..Entry::default()
        }];
        offer(&mut cluster, 2, &encode(&read)).unwrap();
    }
    // The first began a round. Of the others the newest waits for the next.
    let there_and_back = "deliver 1->2\n deliver 2->1\n";
    let cluster = run(cluster, &there_and_back.repeat(4));
    let confirmed = cluster.transcript.matches("1->2 ReadIndexResp").count();
    assert_eq!(confirmed, 2, "{}", cluster.transcript);
}

/// A follower that answers heartbeats, and never the rounds that they are, while the other one is
/// away: each round that is given up would stay.
#[test]
fn rounds_that_nobody_confirms_are_bounded() {
    let mut cluster = run(Cluster::default(), LEADER);
    cluster.cut.extend([(1, 2), (1, 3)]);
    let mut read = from_2(MessageType::MsgReadIndex);
    let alive = encode(&from_2(MessageType::MsgHeartbeatResponse));
    for count in 0..2_000_u64 {
        let data = [2, 1, count].map(u64::to_be_bytes).concat();
        read.entries = vec![Entry {
            data,
            ..Entry::default()
        }];
        if let Err(error) = offer(&mut cluster, 2, &encode(&read)) {
            let bound = "is a read beyond the 1024 that are being confirmed";
            return assert_eq!(error.to_string(), bound);
        }
        for _ in 0..10 {
            cluster.tick(1);
            offer(&mut cluster, 2, &alive).unwrap();
        }
    }
    panic!("they are not");
}

#[test]
fn nobody_makes_a_member_lead_before_its_log_is_on_disk() {
    let vote = |term| Message {
        term,
        ..from_2(MessageType::MsgRequestVoteResponse)
    };
    let candidate = "start 1 2 3
                     elect 3
                     hold-disk 1
                     propose 3 x
                     deliver 3->1
                     tick 2 10
                     timeout 1";
    let mut cluster = run(Cluster::default(), candidate);
    offer(&mut cluster, 2, &encode(&vote(1))).expect("it is no candidate yet");
    let granted = Message {
        term: 2,
        ..from_2(MessageType::MsgRequestPreVoteResponse)
    };
    offer(&mut cluster, 2, &encode(&granted)).unwrap();
    let refused = Message {
        reject: true,
        ..vote(2)
    };
    offer(&mut cluster, 2, &encode(&refused)).expect("that makes nobody lead");
    let error = offer(&mut cluster, 2, &encode(&vote(2))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "comes before this member's log is on disk"
    );

    let alone = "start 2 1
                 elect 2
                 hold-apply 2
                 remove 2 2
                 deliver
                 hold-disk 1
                 propose 2 x
                 deliver 2->1";
    let timeout_now = from_2(MessageType::MsgTimeoutNow);
    assert_eq!(
        refusal(alone, &timeout_now),
        "comes before this member's log is on disk"
    );
    // With others it stands for election once it is, and they judge by what it has then.
    let with_others = "start 1 2 3
                       elect 2
                       hold-disk 1
                       propose 2 x
                       deliver 2->1";
    let mut cluster = run(Cluster::default(), with_others);
    offer(&mut cluster, 2, &encode(&timeout_now)).unwrap();
}
