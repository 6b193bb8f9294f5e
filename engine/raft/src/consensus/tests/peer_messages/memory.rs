//! Entries that wait for the disk have a bound, whatever their sender thinks of acknowledgements.

use bytes::Bytes;
use dengine_types::MemberId;
use raft::eraftpb::{Entry, Message, MessageType};

use super::{Cluster, encode, from_2, offer, past_entry, run};
use crate::consensus::decode;

/// Member 1 follows member 2, and its disk stands still.
fn with_a_stuck_disk() -> Cluster {
    let script = "configure cache_bytes=1024 max_message_bytes=1024 max_inflight_messages=4
                  start 1 2 3
                  elect 2
                  hold-disk 1";
    run(Cluster::default(), script)
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
    cluster.members[&1].host.disk.whole_log().len()
}

/// A message of 082bf19 was as large as a batch of its log, so that its follower never caught up
/// once it was upgraded.
#[test]
fn a_large_message_of_small_entries_is_taken() {
    let entry = |index| Entry {
        data: vec![0; 14],
        context: vec![0; 24],
        ..past_entry(index, 1)
    };
    let entries: Vec<_> = (2..).map(entry).take(180_000).collect();
    let append = encode(&Message {
        index: 1,
        log_term: 1,
        entries,
        ..from_2(MessageType::MsgAppend)
    });
    assert!(append.len() > 8 << 20);
    assert!(decode::message(&append).is_ok());
}

/// Entries without anything take much more memory than of the message: so many for each eight
/// bytes, and those of a first message besides.
#[test]
fn a_message_has_no_more_entries_than_its_bytes_may_hold() {
    let message = |count| {
        encode(&Message {
            entries: vec![Entry::default(); count],
            ..from_2(MessageType::MsgAppend)
        })
    };
    let most = |bytes: usize| 256 + bytes / 8;
    let taken = (1..1_000).filter(|count| decode::message(&message(*count)).is_ok());
    let most_taken = taken.max().unwrap();
    assert_eq!(most_taken, most(message(most_taken).len()));
}

/// Whatever its sender thinks of acknowledgements.
#[test]
fn entries_that_wait_for_the_disk_are_bounded() {
    let mut cluster = with_a_stuck_disk();
    for index in 1..100 {
        offer(&mut cluster, 2, &large_append(index)).unwrap();
    }
    let taken = log_end(&cluster);
    assert!(taken < 10, "{}", cluster.status(1));
    // What was dropped is taken once there is room.
    let mut cluster = run(cluster, "release-disk 1");
    let next = u64::try_from(taken).unwrap();
    offer(&mut cluster, 2, &large_append(next)).unwrap();
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
        offer(&mut cluster, 2, &append_of(1, bytes)).unwrap();
        offer(&mut cluster, 2, &append_of(2, 0)).unwrap();
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
        consensus.message(from, &bytes).unwrap();
    }
    cluster.settle(1);
    let taken = log_end(&cluster);
    assert!((5..10).contains(&taken), "{}", cluster.status(1));
}
