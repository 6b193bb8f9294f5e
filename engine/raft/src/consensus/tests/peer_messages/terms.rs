//! Terms that are far ahead: a peer that lies about them takes no member out of reach.

use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};

use super::{Cluster, FOLLOWER, encode, from_2, offer, run};

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
        offer(&mut cluster, 2, &lie()).expect("there are later terms");
        assert_eq!(terms(&cluster)[0] >> 32, jumps);
        let again = offer(&mut cluster, 2, &lie()).expect_err("not yet");
        assert_eq!(
            again.to_string(),
            format!("has the impossible term {}", u64::MAX)
        );
        cluster = run(cluster, "tick 1 10");
    }
}

/// It changes no term if the message is refused for what else it says.
#[test]
fn the_last_term_that_is_believed_is_not_far_ahead() {
    let mut cluster = run(Cluster::default(), FOLLOWER);
    offer(&mut cluster, 2, &lie()).expect("there are later terms");
    let last = terms(&cluster)[0];
    let refused = Message {
        term: last,
        commit: 99,
        ..from_2(MessageType::MsgHeartbeat)
    };
    let mut cluster = run(Cluster::default(), FOLLOWER);
    offer(&mut cluster, 2, &encode(&refused)).expect_err("it is not that long");
    assert_eq!(terms(&cluster)[0], 1);
    let taken = Message {
        commit: 0,
        ..refused
    };
    offer(&mut cluster, 2, &encode(&taken)).unwrap();
    assert_eq!(terms(&cluster)[0], last);
}

#[test]
fn whoever_was_taken_to_a_late_term_is_heard_again() {
    let mut cluster = run(Cluster::default(), FOLLOWER);
    for _ in 0..3 {
        offer(&mut cluster, 2, &lie()).expect("there are later terms");
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
