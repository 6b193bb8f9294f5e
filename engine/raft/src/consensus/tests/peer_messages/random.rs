//! Messages at random, and real ones with some fields exchanged, to members in many places of Raft.

use bytes::Bytes;
use proptest::prelude::*;
use prost_raft::Message as _;
use raft::eraftpb::{Entry, Message, MessageType};

use super::{Cluster, encode, offer, run};
use crate::consensus::describe::decode;

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

/// Numbers where things happen, and numbers where things overflow.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0..6_u64,
        1 => u64::MAX - 2..=u64::MAX,
        1 => any::<u64>(),
    ]
}

prop_compose! {
    fn entry()(index in number(), term in number(), kind in 0..4_i32,
               data in prop::collection::vec(any::<u8>(), 0..8), context in 0..4_u8) -> Entry {
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
        8 => (any::<usize>(), message(),
              any::<u32>()).prop_map(|(i, m, fields)| Step::Mutate(i, m, fields)),
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
            let _ = offer(cluster, message.from, &encode(&message));
        }
        Step::Mutate(which, donor, fields) => mutate(cluster, which, donor, fields),
        Step::Bytes(bytes) => {
            let _ = offer(cluster, 2, &Bytes::from(bytes));
        }
        Step::Tick(ticks) => (0..ticks).for_each(|_| cluster.tick_without_clock(1)),
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
            cluster.tick_without_clock(id);
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
    let mut message = decode(bytes);
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
    let _ = offer(cluster, message.from, &encode(&message));
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
        let _ = offer(&mut cluster, message.from, &Bytes::from(bytes));
    }
}
