//! Whatever a peer sends, the process goes on; and a message that is refused changes nothing.

use super::cluster::Cluster;
use super::script::run;
use super::wire;
use crate::consensus::{ConsensusConfig, Event, PeerMessageError, snapshot_position};
use crate::log::CONTEXT_BYTES_MAX;
use crate::types::{HardState, Index, MemberId, NUMBER_MAX, Term};
use bytes::Bytes;
use proptest::prelude::*;
use prost_raft::Message as _;
use raft::eraftpb::{
    ConfState, Entry, EntryType, Message, MessageType, Snapshot, SnapshotMetadata,
};

/// Members in many places of Raft; it is always member 1 that gets the messages.
const SETUPS: [&str; 9] = [
    "start 1 2 3",
    "start 1 2 3
     elect 1",
    "start 1 2 3
     elect 2",
    "start 1 2 3
     timeout 1",
    "start 1 2 3
     hold-disk 1
     timeout 1
     deliver 1->2
     deliver 2->1",
    "start 1 2 3
     elect 2
     hold-disk 1
     propose 2 x y
     deliver 2->1
     timeout 1",
    "start 1 2 3
     elect 1
     hold-disk 1
     hold-apply 1
     propose 1 x y
     deliver
     read 1
     add-learner 1 4",
    "join 1",
    "member 1 voters=1 log=1,1,2 term=3 commit=2 applied=1
     member 2
     hold-disk 1
     add-learner 1 2",
];

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
fn offer(cluster: &mut Cluster, stream: u64, bytes: Bytes) -> Result<(), PeerMessageError> {
    let before = fingerprint(cluster);
    let from = MemberId(stream);
    let taken = cluster
        .member(1)
        .consensus
        .step(Event::Message { from, bytes });
    if taken.is_err() {
        assert_eq!(cluster.member(1).consensus.actions(), []);
        assert_eq!(fingerprint(cluster), before);
    }
    cluster.settle(1);
    taken
}

fn encode(message: &Message) -> Bytes {
    Bytes::from(message.encode_to_vec())
}

/// Numbers where things happen, and numbers where things overflow.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0..6_u64,
        1 => u64::MAX - 2..=u64::MAX,
        1 => any::<u64>(),
    ]
}

prop_compose! {
    fn entry()(index in number(), term in number(), kind in 0..4_i32, data in prop::collection::vec(any::<u8>(), 0..8), context in 0..4_u8) -> Entry {
        let data = match context {
            // A read's context of member 1 or 2.
            0 | 1 => [u64::from(context) + 1, 1, 1].map(u64::to_be_bytes).concat(),
            _ => data,
        };
        Entry { entry_type: kind, term, index, data, ..Entry::default() }
    }
}

prop_compose! {
    fn message()(
        kind in prop_oneof![9 => 0..19_i32, 1 => any::<i32>()],
        from in 0..5_u64,
        to in prop_oneof![9 => Just(1_u64), 1 => 0..3_u64],
        numbers in prop::array::uniform7(number()),
        entries in prop::collection::vec(entry(), 0..4),
        follow in any::<bool>(),
        (reject, transfer, round) in any::<(bool, bool, bool)>(),
    ) -> Message {
        let [term, log_term, index, commit, commit_term, hint, snapshot] = numbers;
        let mut message = Message {
            msg_type: kind, from, to, term, log_term, index, commit, commit_term, entries, reject,
            reject_hint: hint,
            request_snapshot: if snapshot > 1 { 0 } else { snapshot },
            ..Message::default()
        };
        if message.msg_type() == MessageType::MsgReadIndex {
            message.term = 0;
        }
        if follow {
            for (entry, offset) in message.entries.iter_mut().zip(1..) {
                entry.index = index.wrapping_add(offset);
                entry.term = term;
            }
        }
        if transfer {
            message.context = b"CampaignTransfer".to_vec();
        } else if round {
            message.context = [1_u64, 1, 1].map(u64::to_be_bytes).concat();
        }
        message
    }
}

#[derive(Clone, Debug)]
enum Step {
    Offer(Message),
    Mutate(usize, Message, u32),
    Bytes(Vec<u8>),
    Tick(u64),
    Propose,
    Read,
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => message().prop_map(Step::Offer),
        8 => (any::<usize>(), message(), any::<u32>()).prop_map(|(i, m, fields)| Step::Mutate(i, m, fields)),
        1 => prop::collection::vec(any::<u8>(), 0..64).prop_map(Step::Bytes),
        2 => (1..12_u64).prop_map(Step::Tick),
        1 => Just(Step::Propose),
        1 => Just(Step::Read),
        1 => Just(Step::Sync),
    ]
}

fn perform(cluster: &mut Cluster, step: Step) {
    match step {
        Step::Offer(message) => {
            let _ = offer(cluster, message.from, encode(&message));
        }
        Step::Mutate(which, donor, fields) => mutate(cluster, which, donor, fields),
        Step::Bytes(bytes) => {
            let _ = offer(cluster, 2, Bytes::from(bytes));
        }
        Step::Tick(ticks) => (0..ticks).for_each(|_| cluster.step(1, Event::Tick)),
        Step::Propose => cluster.propose(1, &["a"]),
        Step::Read => cluster.read(1),
        Step::Sync => {
            cluster.sync_one(1);
        }
    }
}

/// Takes a real message to member 1 and exchanges some of its fields.
fn mutate(cluster: &mut Cluster, which: usize, donor: Message, fields: u32) {
    for id in [2, 3] {
        if cluster.members.contains_key(&id) {
            cluster.step(id, Event::Tick);
        }
        while cluster.deliver_one((1, id), false) {}
    }
    let real: Vec<_> = [2, 3]
        .iter()
        .filter_map(|from| cluster.links.get(&(*from, 1)))
        .flatten()
        .cloned()
        .collect();
    let Some(bytes) = real.get(which % real.len().max(1)) else {
        return;
    };
    let mut message = wire::decode(bytes);
    let takes = |bit: u32| fields & (1 << bit) != 0 && fields & (1 << (bit + 16)) != 0;
    if takes(0) {
        message.msg_type = donor.msg_type;
    }
    if takes(1) {
        message.term = donor.term;
    }
    if takes(2) {
        message.log_term = donor.log_term;
    }
    if takes(3) {
        message.index = donor.index;
    }
    if takes(4) {
        message.commit = donor.commit;
    }
    if takes(5) {
        message.entries.extend(donor.entries);
    }
    if takes(6) {
        message.reject = !message.reject;
    }
    if takes(7) {
        message.reject_hint = donor.reject_hint;
    }
    if takes(8) {
        message.context = donor.context;
    }
    if takes(9) {
        message.commit_term = donor.commit_term;
    }
    if takes(10) {
        message.request_snapshot = donor.request_snapshot;
    }
    let _ = offer(cluster, message.from, encode(&message));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn no_message_panics_and_a_refused_one_changes_nothing(
        setup in prop::sample::select(&SETUPS[..]),
        steps in prop::collection::vec(step(), 1..24),
    ) {
        let mut cluster = run(Cluster::default(), setup);
        for step in steps {
            perform(&mut cluster, step);
        }
    }

    #[test]
    fn flipped_bits_never_panic(
        setup in prop::sample::select(&SETUPS[..]),
        message in message(),
        flips in prop::collection::vec((any::<usize>(), 0..8_u32), 1..4),
    ) {
        let mut cluster = run(Cluster::default(), setup);
        let mut bytes = message.encode_to_vec();
        for (at, bit) in flips {
            if let Some(len) = std::num::NonZeroUsize::new(bytes.len()) {
                bytes[at % len] ^= 1_u8 << bit;
            }
        }
        let _ = offer(&mut cluster, message.from, Bytes::from(bytes));
    }
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
    let error = offer(&mut cluster, 2, encode(message)).expect_err("it must be refused");
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
        let error = offer(&mut cluster, own, encode(&message)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("comes from {own}, which is no peer")
        );
    }
}

#[test]
fn what_kind_it_is() {
    let mut cluster = run(Cluster::default(), FOLLOWER);
    let error = offer(&mut cluster, 2, Bytes::from_static(b"\xff")).unwrap_err();
    assert!(matches!(error, PeerMessageError::Decode(_)), "{error}");
    let local = [
        MessageType::MsgHup,
        MessageType::MsgBeat,
        MessageType::MsgPropose,
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

fn terms(cluster: &Cluster) -> Vec<u64> {
    let members = cluster.members.values();
    members.map(|it| it.consensus.hard_state().term.0).collect()
}

/// That there are very late terms.
fn lie() -> Bytes {
    encode(&Message {
        term: u64::MAX,
        ..from_2(MessageType::MsgHeartbeat)
    })
}

/// Nothing else of such a message is believed.
#[test]
fn a_term_that_is_far_ahead_is_approached_by_so_much_in_each_election_timeout() {
    let mut cluster = run(Cluster::default(), FOLLOWER);
    for jumps in 1..=3 {
        offer(&mut cluster, 2, lie()).expect("there are later terms");
        assert_eq!(terms(&cluster)[0] >> 32, jumps);
        let again = offer(&mut cluster, 2, lie()).expect_err("not yet");
        assert_eq!(
            again.to_string(),
            format!("has the impossible term {}", u64::MAX)
        );
        cluster = run(cluster, "tick 1 10");
    }
}

/// It takes nobody anywhere if the message is refused for what else it says.
#[test]
fn the_last_term_that_is_believed_is_not_far_ahead() {
    let mut cluster = run(Cluster::default(), FOLLOWER);
    offer(&mut cluster, 2, lie()).expect("there are later terms");
    let last = terms(&cluster)[0];
    let refused = Message {
        term: last,
        commit: 99,
        ..from_2(MessageType::MsgHeartbeat)
    };
    let mut cluster = run(Cluster::default(), FOLLOWER);
    offer(&mut cluster, 2, encode(&refused)).expect_err("it is not that long");
    assert_eq!(terms(&cluster)[0], 1);
    let taken = Message {
        commit: 0,
        ..refused
    };
    offer(&mut cluster, 2, encode(&taken)).unwrap();
    assert_eq!(terms(&cluster)[0], last);
}

#[test]
fn whoever_was_taken_to_a_late_term_is_heard_again() {
    let mut cluster = run(Cluster::default(), FOLLOWER);
    for _ in 0..3 {
        offer(&mut cluster, 2, lie()).expect("there are later terms");
        cluster = run(
            cluster,
            "tick 1 10
             lose",
        );
    }
    let lied = terms(&cluster)[0];
    for _ in 0..20 {
        cluster = run(
            cluster,
            "tick 1 5
             tick 2 5
             tick 3 5
             deliver",
        );
    }
    let terms = terms(&cluster);
    assert!(terms.iter().all(|term| *term == terms[0]), "{terms:?}");
    assert!(terms[0] >= lied, "{terms:?} and {lied}");
    let leads = |id: &u64| cluster.status(*id).contains("leads");
    assert_eq!([1, 2, 3].iter().filter(|id| leads(id)).count(), 1);
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
            "carries what messages of type {} never do",
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
    offer(&mut cluster, 2, encode(&largest)).expect("a log takes it");
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

/// A message of term 1 that brings a snapshot of these members up to the entry at `index` of `term`.
fn with_snapshot(index: u64, term: u64, conf_state: ConfState) -> Message {
    let metadata = SnapshotMetadata {
        index,
        term,
        conf_state: Some(conf_state),
    };
    Message {
        snapshot: Some(Snapshot {
            metadata: Some(metadata),
            ..Snapshot::default()
        }),
        ..from_2(MessageType::MsgSnapshot)
    }
}

fn voters_and_learners(
    voters: impl IntoIterator<Item = u64>,
    learners: impl IntoIterator<Item = u64>,
) -> ConfState {
    ConfState {
        voters: voters.into_iter().collect(),
        learners: learners.into_iter().collect(),
        ..ConfState::default()
    }
}

/// Why member 1, a follower of member 2, refuses it; nothing if it is taken.
fn snapshot_refusal(message: &Message) -> String {
    let mut cluster = run(Cluster::default(), FOLLOWER);
    let event = Event::Snapshot {
        from: MemberId(2),
        message: encode(message),
    };
    let taken = cluster.member(1).consensus.step(event);
    taken.map_or_else(|error| error.to_string(), |()| String::new())
}

const NO_SNAPSHOT: &str = "describes an impossible snapshot";

#[test]
fn what_snapshot_it_speaks_of() {
    let refused = |index, term| {
        let message = with_snapshot(index, term, voters_and_learners(1..=3, []));
        let position = snapshot_position(&encode(&message)).expect("it speaks of one");
        assert_eq!((position.index, position.term), (Index(index), Term(term)));
        snapshot_refusal(&message)
    };
    assert_eq!(refused(9, 1), "");
    assert_eq!(refused(u64::MAX, 1), NO_SNAPSHOT);
    assert_eq!(refused(0, 1), NO_SNAPSHOT);
    // Its last entry is of no term, or of one that is not yet.
    assert_eq!(refused(9, 0), NO_SNAPSHOT);
    assert_eq!(refused(9, 2), NO_SNAPSHOT);
    assert_eq!(
        snapshot_position(&encode(&from_2(MessageType::MsgAppend))),
        None
    );
}

#[test]
fn which_members_a_snapshot_has() {
    let refused = |conf_state| snapshot_refusal(&with_snapshot(9, 1, conf_state));
    let few = || voters_and_learners(1..=3, []);
    for taken in [
        few(),
        voters_and_learners(1..=3, [4, 5]),
        voters_and_learners([2], 3..=6),
        voters_and_learners(1..=32, []),
        voters_and_learners(1..=20, 21..=32),
    ] {
        assert_eq!(refused(taken.clone()), "", "{taken:?}");
    }
    for impossible in [
        // Nobody votes; one is there twice; one has the id of nobody; more than there may be.
        voters_and_learners([], [1, 2]),
        voters_and_learners([1, 2, 2], []),
        voters_and_learners([1, 2], [2]),
        voters_and_learners([0, 1, 2], []),
        voters_and_learners([1, 2], [0]),
        voters_and_learners(1..=33, []),
        voters_and_learners(1..=20, 21..=33),
        // It stands between two sets of members, and members are changed one at a time.
        ConfState {
            voters_outgoing: vec![1, 2],
            ..few()
        },
        ConfState {
            learners_next: vec![3],
            ..few()
        },
        ConfState {
            auto_leave: true,
            ..few()
        },
    ] {
        assert_eq!(refused(impossible.clone()), NO_SNAPSHOT, "{impossible:?}");
    }
}

/// Member 1 follows member 2, and its disk stands still.
fn with_a_stuck_disk() -> Cluster {
    let small = |config: &mut ConsensusConfig| {
        config.cache_bytes = 1 << 10;
        config.max_message_bytes = 1 << 10;
        config.max_inflight_messages = 4;
    };
    let cluster = Cluster {
        configure: Some(small),
        ..Cluster::default()
    };
    let script = "start 1 2 3
                  elect 2
                  hold-disk 1";
    run(cluster, script)
}

/// An append of one entry of so many bytes behind `index`.
fn append_of(index: u64, bytes: usize) -> Bytes {
    encode(&Message {
        index,
        log_term: 1,
        entries: vec![Entry {
            data: vec![0; bytes],
            ..past_entry(index + 1, 1)
        }],
        ..from_2(MessageType::MsgAppend)
    })
}

fn large_append(index: u64) -> Bytes {
    append_of(index, 1 << 10)
}

fn log_end(cluster: &Cluster) -> usize {
    cluster.members[&1].disk.whole_log().len()
}

/// Whatever its sender thinks of acknowledgements.
#[test]
fn entries_that_wait_for_the_disk_are_bounded() {
    let mut cluster = with_a_stuck_disk();
    for index in 1..100 {
        offer(&mut cluster, 2, large_append(index)).unwrap();
    }
    let taken = log_end(&cluster);
    assert!(taken < 10, "{}", cluster.status(1));
    // What was dropped is taken once there is room.
    let mut cluster = run(cluster, "release-disk 1");
    let next = u64::try_from(taken).unwrap();
    offer(&mut cluster, 2, large_append(next)).unwrap();
    assert!(log_end(&cluster) > taken, "{}", cluster.status(1));
}

/// What fits into the cache, and four messages.
#[test]
fn entries_are_taken_as_long_as_no_more_wait_than_a_leader_may_send() {
    const BOUND: usize = 5 << 10;
    // What an entry counts for beside its data; the first one, of the election, is in memory too.
    const ENTRY: usize = 32;
    for (bytes, taken) in [(BOUND - 2 * ENTRY, 3), (BOUND - 2 * ENTRY + 1, 2)] {
        let mut cluster = with_a_stuck_disk();
        offer(&mut cluster, 2, append_of(1, bytes)).unwrap();
        offer(&mut cluster, 2, append_of(2, 0)).unwrap();
        assert_eq!(log_end(&cluster), taken, "{}", cluster.status(1));
    }
}

/// Those that the disk was not even given yet count too.
#[test]
fn entries_that_come_at_once_are_bounded() {
    let mut cluster = with_a_stuck_disk();
    for index in 1..100 {
        let (from, bytes) = (MemberId(2), large_append(index));
        let consensus = &mut cluster.member(1).consensus;
        consensus.step(Event::Message { from, bytes }).unwrap();
    }
    cluster.settle(1);
    let taken = log_end(&cluster);
    assert!((5..10).contains(&taken), "{}", cluster.status(1));
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
    offer(&mut cluster, 2, encode(&stale)).unwrap();
}

#[test]
fn what_is_beyond_the_log() {
    let heartbeat = Message {
        commit: 9,
        ..from_2(MessageType::MsgHeartbeat)
    };
    assert_eq!(
        refusal(FOLLOWER, &heartbeat),
        "speaks of entry 9; the log here ends at 1"
    );
    let response = Message {
        index: 9,
        ..from_2(MessageType::MsgAppendResponse)
    };
    assert_eq!(
        refusal(LEADER, &response),
        "speaks of entry 9; the log here ends at 1"
    );
    let rejection = Message {
        reject: true,
        ..response
    };
    assert_eq!(
        refusal(LEADER, &rejection),
        "speaks of entry 9; the log here ends at 1"
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
        offer(&mut cluster, 2, encode(&read)).unwrap();
    }
    let error = offer(&mut cluster, 2, encode(&read)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "is a read beyond the 1024 that are being confirmed"
    );
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
    offer(&mut cluster, 2, encode(&vote(1))).expect("it is no candidate yet");
    let granted = Message {
        term: 2,
        ..from_2(MessageType::MsgRequestPreVoteResponse)
    };
    offer(&mut cluster, 2, encode(&granted)).unwrap();
    let refused = Message {
        reject: true,
        ..vote(2)
    };
    offer(&mut cluster, 2, encode(&refused)).expect("that makes nobody lead");
    let error = offer(&mut cluster, 2, encode(&vote(2))).unwrap_err();
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
    offer(&mut cluster, 2, encode(&timeout_now)).unwrap();
}
