//! What a message says of the snapshot that it brings.

use dengine_types::{Index, MemberId, Term};
use raft::eraftpb::{ConfState, Message, MessageType, Snapshot, SnapshotMetadata};

use super::{Cluster, FOLLOWER, encode, from_2, run};
use crate::consensus::snapshot_position;

/// A message of term 1 that brings a snapshot of these members up to the entry at `index` of
/// `term`.
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
    let consensus = &mut cluster.member(1).consensus;
    let taken = consensus.snapshot_staged(MemberId(2), &encode(message));
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
