//! The rules of membership, one by one and under random changes.

use std::collections::BTreeMap;

use dengine_types::{ClusterId, MemberId, Revision};
use proptest::prelude::*;

use super::{bytes, change_entry, command_entry, put};
use crate::layout::decode_membership;
use crate::membership::{
    MEMBERS_MAX, Member, Membership, MembershipChange, MembershipRefusal, TEXT_BYTES_MAX,
};
use crate::store::MemoryStore;
use crate::{Outcome, ReadError, StateMachine, StoreError};

fn member(id: u64, name: &str) -> Member {
    Member {
        id: MemberId(id),
        name: name.to_owned(),
        peer_address: format!("{name}:4101"),
        client_address: format!("{name}:4100"),
        folder_id: format!("folder of {name}"),
        voter: false,
    }
}

fn bootstrap() -> MembershipChange {
    MembershipChange::Bootstrap {
        cluster_id: ClusterId(7),
        member: member(1, "a"),
        first_revision: Revision(1),
    }
}

/// A cluster with voter 1 and learner 2.
fn pair() -> Membership {
    let mut membership = Membership::default();
    membership.apply(bootstrap()).expect("bootstrap");
    membership
        .apply(MembershipChange::AddLearner(member(2, "b")))
        .expect("add");
    membership
}

/// [`pair`] with the maximum number of further learners.
fn full() -> Membership {
    let more = 3..=MEMBERS_MAX as u64;
    let more = more.map(|id| MembershipChange::AddLearner(member(id, &format!("m{id}"))));
    more.fold(pair(), changed)
}

fn changed(mut membership: Membership, change: MembershipChange) -> Membership {
    membership.apply(change).expect("within the rules");
    membership
}

/// Checks that the change is refused and nothing changes.
#[track_caller]
fn refused(mut membership: Membership, change: MembershipChange) -> MembershipRefusal {
    let before = membership.clone();
    let refusal = membership.apply(change).expect_err("against the rules");
    assert_eq!(membership, before);
    refusal
}

#[test]
fn a_cluster_grows_from_one_voter() {
    let mut membership = pair();
    let voters =
        |membership: &Membership| membership.voters().map(|it| it.id.0).collect::<Vec<_>>();
    assert_eq!(membership.cluster_id, ClusterId(7));
    assert_eq!(voters(&membership), [1]);
    assert_eq!(membership.learners().count(), 1);
    membership
        .apply(MembershipChange::Promote(MemberId(2)))
        .expect("promote");
    assert_eq!(voters(&membership), [1, 2]);
    membership
        .apply(MembershipChange::Remove(MemberId(1)))
        .expect("remove");
    assert_eq!(voters(&membership), [2]);
}

#[test]
fn a_cluster_is_bootstrapped_once_before_any_change() {
    let add = MembershipChange::AddLearner(member(1, "a"));
    assert_eq!(
        refused(Membership::default(), add),
        MembershipRefusal::NotBootstrapped
    );
    assert_eq!(
        refused(pair(), bootstrap()),
        MembershipRefusal::AlreadyBootstrapped(ClusterId(7))
    );
    let nameless = MembershipChange::Bootstrap {
        cluster_id: ClusterId(0),
        member: member(1, "a"),
        first_revision: Revision(1),
    };
    assert!(matches!(
        refused(Membership::default(), nameless),
        MembershipRefusal::Invalid(_)
    ));
}

#[test]
fn member_ids_are_never_reused() {
    let mut membership = pair();
    membership
        .apply(MembershipChange::Remove(MemberId(2)))
        .expect("remove");
    assert_eq!(membership.next_member_id(), MemberId(3));
    let again = MembershipChange::AddLearner(member(2, "b"));
    assert_eq!(
        refused(membership, again),
        MembershipRefusal::IdUsed {
            id: MemberId(2),
            last: MemberId(2)
        }
    );
}

#[test]
fn an_unknown_higher_id_is_not_a_removed_member() {
    let mut membership = pair();
    let removed =
        |membership: &Membership| [1, 2, 3].map(|id| membership.has_removed(MemberId(id)));
    assert_eq!(removed(&membership), [false; 3]);
    membership
        .apply(MembershipChange::Remove(MemberId(2)))
        .expect("remove");
    assert_eq!(removed(&membership), [false, true, false]);
}

#[test]
fn names_folder_ids_and_peer_addresses_are_unique() {
    let taken = |what| MembershipRefusal::Taken {
        what,
        owner: MemberId(2),
    };
    let cases: [(fn(&mut Member), _); 3] = [
        (|new| new.name = "b".to_owned(), "name"),
        (|new| new.folder_id = "folder of b".to_owned(), "folder id"),
        (|new| new.peer_address = "b:4101".to_owned(), "peer address"),
    ];
    for (change, what) in cases {
        let mut new = member(3, "c");
        change(&mut new);
        assert_eq!(
            refused(pair(), MembershipChange::AddLearner(new)),
            taken(what)
        );
    }
}

#[test]
fn empty_and_overlong_texts_are_refused() {
    let cases: [fn(&mut Member); 4] = [
        |new| new.id = MemberId(0),
        |new| new.name.clear(),
        |new| new.folder_id.clear(),
        |new| new.client_address = "x".repeat(1000),
    ];
    for change in cases {
        let mut new = member(3, "c");
        change(&mut new);
        assert!(matches!(
            refused(pair(), MembershipChange::AddLearner(new)),
            MembershipRefusal::Invalid(_)
        ));
    }
}

#[test]
fn changes_of_unknown_members_are_refused() {
    let unknown = MembershipRefusal::Unknown(MemberId(9));
    let promote = MembershipChange::Promote(MemberId(9));
    assert_eq!(refused(pair(), promote), unknown);
    let remove = MembershipChange::Remove(MemberId(9));
    assert_eq!(refused(pair(), remove), unknown);
}

#[test]
fn the_last_voter_cannot_be_removed() {
    assert_eq!(
        refused(pair(), MembershipChange::Remove(MemberId(1))),
        MembershipRefusal::LastVoter(MemberId(1))
    );
    assert_eq!(
        refused(pair(), MembershipChange::Promote(MemberId(1))),
        MembershipRefusal::AlreadyVoter(MemberId(1))
    );
}

#[test]
fn the_number_of_members_is_bounded() {
    let one_more = MembershipChange::AddLearner(member(99, "z"));
    assert_eq!(refused(full(), one_more), MembershipRefusal::TooMany);
}

#[test]
fn the_largest_number_is_refused_as_an_id() {
    let last = MembershipChange::AddLearner(member(u64::MAX - 1, "c"));
    let membership = changed(pair(), last);
    let next = membership.next_member_id();
    assert_eq!(next, MemberId(u64::MAX));
    let add = MembershipChange::AddLearner(member(next.0, "d"));
    let begin = MembershipChange::Bootstrap {
        cluster_id: ClusterId(7),
        member: member(next.0, "a"),
        first_revision: Revision(1),
    };
    for (membership, change) in [(membership, add), (Membership::default(), begin)] {
        assert!(matches!(
            refused(membership, change),
            MembershipRefusal::Invalid(_)
        ));
    }
}

#[test]
fn any_id_in_an_entry_gets_an_answer() {
    let mut machine = super::machine();
    let add = MembershipChange::AddLearner(member(2, "b"));
    let first = [change_entry(1, bootstrap()), change_entry(2, add)];
    machine.apply(&first).expect("apply");
    let changes = [0, u64::MAX].into_iter().flat_map(|id| {
        [
            MembershipChange::AddLearner(member(id, "c")),
            MembershipChange::Promote(MemberId(id)),
            MembershipChange::Remove(MemberId(id)),
        ]
    });
    for (change, index) in changes.zip(3..) {
        let applied = machine.apply(&[change_entry(index, change)]);
        let outcome = applied.expect("apply").remove(0).outcome;
        assert!(
            matches!(outcome, Outcome::Membership(Err(_))),
            "{outcome:?}"
        );
    }
    assert_eq!(*machine.membership(), pair());
}

#[test]
fn memberships_round_trip() {
    let removed = changed(pair(), MembershipChange::Remove(MemberId(2)));
    let mut last = member(u64::MAX - 1, "c");
    last.client_address = "x".repeat(TEXT_BYTES_MAX);
    let last = changed(pair(), MembershipChange::AddLearner(last));
    for membership in [Membership::default(), pair(), full(), removed, last] {
        assert_eq!(decode_membership(&membership.encode()), Ok(membership));
    }
}

#[test]
fn new_members_need_printable_names_and_dialable_addresses() {
    let asks = |change: &dyn Fn(&mut Member)| {
        let mut member = member(2, "b");
        change(&mut member);
        member.check_texts().is_ok()
    };
    assert!(asks(&|_| {}));
    for name in ["a\nb", "\u{1b}[31mred", "a\tb", "\u{85}", ""] {
        assert!(!asks(&|member| member.name = name.to_owned()), "{name:?}");
        assert!(
            !asks(&|member| member.folder_id = name.to_owned()),
            "{name:?}"
        );
    }
    for (address, fine) in [
        ("10.0.0.1:4101", true),
        ("dengine-0.dengine-peers.ns.svc:4101", true),
        ("[::1]:4101", true),
        ("[fe80::1%eth0]:4101", true),
        ("host:65535", true),
        ("host:0", false),
        ("host:65536", false),
        ("host:+1", false),
        ("host:", false),
        ("host", false),
        (":4101", false),
        ("::1:4101", false),
        ("[::1:4101", false),
        ("[host]:4101", false),
        ("http://host:4101", false),
        ("ho st:4101", false),
        ("host\n:4101", false),
        ("", false),
    ] {
        assert_eq!(
            asks(&|member| member.peer_address = address.to_owned()),
            fine,
            "{address:?}"
        );
        assert_eq!(
            asks(&|member| member.client_address = address.to_owned()),
            fine,
            "{address:?}"
        );
    }
}

/// Found by review: consensus did not start with learners only, and there is no next id after the
/// largest number.
#[test]
fn an_impossible_record_is_refused() {
    let of = |membership: &mut Membership, change: fn(&mut Member)| {
        change(membership.members.get_mut(&MemberId(2)).expect("a member"));
    };
    let bend: [&dyn Fn(&mut Membership); 14] = [
        &|it| it.members.clear(),
        &|it| drop(it.members.remove(&MemberId(1))),
        &|it| it.cluster_id = ClusterId(0),
        &|it| it.last_member_id = MemberId(0),
        &|it| it.last_member_id = MemberId(1),
        &|it| it.last_member_id = MemberId(u64::MAX),
        &|it| of(it, |member| member.id = MemberId(0)),
        &|it| of(it, |member| member.id = MemberId(1)),
        &|it| of(it, |member| member.id = MemberId(3)),
        &|it| of(it, |member| member.name = "a".to_owned()),
        &|it| of(it, |member| member.name.clear()),
        &|it| of(it, |member| member.folder_id = "x".repeat(513)),
        &|it| {
            it.members.insert(MemberId(3), member(u64::MAX, "c"));
            it.last_member_id = MemberId(u64::MAX);
        },
        &|it| {
            *it = full();
            it.members.insert(MemberId(99), member(99, "z"));
            it.last_member_id = MemberId(99);
        },
    ];
    let bent = bend.map(|bend| {
        let mut membership = pair();
        bend(&mut membership);
        membership
    });
    let empty = Membership {
        last_member_id: MemberId(1),
        ..Membership::default()
    };
    for membership in bent.iter().chain([&empty]) {
        let refused = decode_membership(&membership.encode());
        assert!(
            matches!(refused, Err(StoreError::Corrupt(_))),
            "{membership:?}"
        );
    }
}

#[test]
fn a_membership_survives_a_reopen_and_takes_no_revision() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let entries = [
        change_entry(1, bootstrap()),
        change_entry(2, MembershipChange::AddLearner(member(2, "b"))),
        change_entry(3, MembershipChange::Remove(MemberId(1))),
    ];
    let applied = machine.apply(&entries).expect("apply");
    assert_eq!(
        applied[2].outcome,
        Outcome::Membership(Err(MembershipRefusal::LastVoter(MemberId(1))))
    );
    assert_eq!(*machine.membership(), pair());
    assert_eq!(machine.revision(), Revision(1));
    drop(machine);
    let machine = StateMachine::open(store).expect("open again");
    assert_eq!(*machine.membership(), pair());
}

fn beginning_at(first_revision: u64) -> MembershipChange {
    MembershipChange::Bootstrap {
        cluster_id: ClusterId(7),
        member: member(1, "a"),
        first_revision: Revision(first_revision),
    }
}

#[test]
fn a_cluster_begins_at_the_revision_that_it_is_told() {
    const FIRST: u64 = 1_000_000_000;
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    assert_eq!(machine.reader().first_revision(), Ok(Revision(1)));
    let entries = [
        change_entry(1, beginning_at(FIRST)),
        command_entry(2, put("a", "1")),
    ];
    let applied = machine.apply(&entries).expect("apply");
    let put = Outcome::Put {
        revision: Revision(FIRST + 1),
        prev: None,
    };
    assert_eq!(applied[1].outcome, put);
    let hash = machine.reader().logical_hash().expect("hash");
    drop(machine);
    let machine = StateMachine::open(store).expect("open again");
    let reader = machine.reader();
    assert_eq!(reader.first_revision(), Ok(Revision(FIRST)));
    assert_eq!(reader.logical_hash().expect("hash"), hash);
    let at = |revision| reader.get(&bytes("a"), Some(Revision(revision)));
    assert_eq!(at(FIRST).expect("it is empty there").1, None);
    assert!(at(FIRST + 1).expect("the put").1.is_some());
    // What was before it was another cluster's.
    assert!(matches!(at(FIRST - 1), Err(ReadError::Compacted { .. })));
}

#[test]
fn a_first_revision_that_leaves_no_room_is_refused() {
    for first in [0, 1 << 62, u64::MAX] {
        let refusal = refused(Membership::default(), beginning_at(first));
        assert_eq!(refusal, MembershipRefusal::FirstRevision(Revision(first)));
        let mut machine = super::machine();
        let entry = change_entry(1, beginning_at(first));
        let applied = machine.apply(&[entry]).expect("apply").remove(0);
        assert_eq!(applied.outcome, Outcome::Membership(Err(refusal)));
        assert_eq!(machine.revision(), Revision(1));
    }
}

/// Otherwise it would begin at 1 there, and the members would disagree.
#[test]
fn a_first_revision_stops_a_program_that_does_not_know_it() {
    assert_eq!(beginning_at(1).encode()[0], 1);
    assert_eq!(beginning_at(2).encode()[0], 2);
    for first in [1, 2] {
        let decoded = MembershipChange::decode(&beginning_at(first).encode());
        assert_eq!(decoded.expect("it is read"), Ok(beginning_at(first)));
    }
}

fn change() -> impl Strategy<Value = MembershipChange> {
    let id = || (0..8_u64).prop_map(MemberId);
    let new = || (0..8_u64, 0..5_u8).prop_map(|(id, name)| member(id, &format!("m{name}")));
    prop_oneof![
        1 => (0..3_u64, new()).prop_map(|(cluster, member)| MembershipChange::Bootstrap {
            cluster_id: ClusterId(cluster),
            member,
            first_revision: Revision(1),
        }),
        3 => new().prop_map(MembershipChange::AddLearner),
        2 => id().prop_map(MembershipChange::Promote),
        2 => id().prop_map(MembershipChange::Remove),
    ]
}

proptest! {
    #[test]
    fn no_sequence_of_changes_breaks_a_rule(changes in prop::collection::vec(change(), 1..60)) {
        let mut membership = Membership::default();
        let mut folders = BTreeMap::new();
        for change in changes {
            let before = membership.clone();
            let decoded = MembershipChange::decode(&change.clone().encode());
            prop_assert_eq!(decoded, Ok(Ok(change.clone())));
            if membership.apply(change).is_err() {
                prop_assert_eq!(&membership, &before);
                continue;
            }
            prop_assert_eq!(Membership::decode(&membership.encode()), Ok(membership.clone()));
            prop_assert!(membership.voters().next().is_some());
            prop_assert!(membership.cluster_id != ClusterId(0));
            prop_assert!(before.members.is_empty() || membership.cluster_id == before.cluster_id);
            prop_assert!(membership.last_member_id >= before.last_member_id);
            let differs = |id: &MemberId| membership.members.get(id) != before.members.get(id);
            let ids = before.members.keys().chain(membership.members.keys());
            let changed: std::collections::BTreeSet<_> = ids.filter(|id| differs(id)).collect();
            prop_assert_eq!(changed.len(), 1, "one member at a time");
            for (id, member) in &membership.members {
                prop_assert!(*id <= membership.last_member_id);
                let bound = folders.entry(*id).or_insert_with(|| member.folder_id.clone());
                prop_assert_eq!(&*bound, &member.folder_id, "an id belongs to one folder \
                    permanently");
            }
        }
    }
}
