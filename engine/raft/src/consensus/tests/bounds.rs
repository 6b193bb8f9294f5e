//! Nothing here grows without a bound, whatever is slow.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost_raft::Message as _;
use raft::eraftpb::{Message, MessageType};

use super::cluster::Cluster;
use super::script::{SEED, run};

/// A follower that is back answers the first message of the log that it is sent, and then gets all
/// that may be on its way.
#[test]
fn a_message_to_a_lagging_follower_has_a_bound() {
    let cluster = Cluster {
        seed: SEED,
        ..Cluster::default()
    };
    let mut cluster = run(
        cluster,
        "configure max_message_bytes=4096 max_inflight_messages=16
         start 1 2 3
         elect 1
         cut 3",
    );
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
    let proposal = cluster.proposal(1, "x");
    let member = cluster.member(1);
    member.consensus.propose(vec![proposal]).unwrap();
    for _ in 0..10 {
        member.tick();
    }
    member.settle().expect("it goes on");
    let mut sent = BTreeSet::new();
    for message in &member.host.sent {
        let kind = Message::decode(message.bytes.as_ref()).unwrap().msg_type();
        assert_eq!(message.carries_log, kind == MessageType::MsgAppend);
        sent.insert(kind as i32);
    }
    let (append, heartbeat) = (MessageType::MsgAppend, MessageType::MsgHeartbeat);
    assert_eq!(sent, BTreeSet::from([append as i32, heartbeat as i32]));
}
