//! Leases: which keys are attached to one, and what goes with it.

use dengine_types::{LeaseId, Revision};

use super::{Machine, apply, bytes, command_entry, delete, everything, machine, put, run, show};
use crate::layout::{
    FORMAT_KEY, FORMAT_OLDEST, FORMAT_VERSION, MachineState, STATE_KEY, decode_state, encode_state,
};
use crate::store::{MemoryStore, WriteBatch};
use crate::{
    Batch, BatchOperation, ChangesQuery, Command, CommandVersion, Compare, CompareTarget,
    EventKind, Expected, KeyRange, LEASES_MAX, LeaseCheckpoint, LeaseEnd, Outcome, Put, PutLease,
    Refusal, Relation, Request, StateMachine, Store,
};

const LEASE: LeaseId = LeaseId(7);
const OTHER: LeaseId = LeaseId(-3);

fn grant(lease: LeaseId) -> Command {
    Command::GrantLease {
        lease,
        ttl_ms: 1_000,
    }
}

fn revoke(lease: LeaseId) -> Command {
    Command::RevokeLease { lease }
}

fn put_with(key: &str, lease: PutLease) -> Command {
    Command::Put(Put {
        lease,
        ..Put::new(bytes(key), bytes("v"))
    })
}

fn attach(key: &str, lease: LeaseId) -> Command {
    put_with(key, PutLease::Attach(lease))
}

/// The keys of a lease, separated by spaces; or that there is no such lease.
fn keys_of(machine: &Machine, lease: LeaseId) -> String {
    let found = machine.reader().lease_with_keys(lease, None, usize::MAX);
    found.expect("read").map_or("none".to_owned(), |(_, keys)| {
        let keys: Vec<_> = keys
            .iter()
            .map(|it| it.escape_ascii().to_string())
            .collect();
        keys.join(" ")
    })
}

fn lease_of(machine: &Machine, key: &str) -> Option<LeaseId> {
    let (_, found) = machine.reader().get(&bytes(key), None).expect("read");
    found.map(|kv| kv.lease)
}

fn refused(refusal: Refusal) -> Outcome {
    Outcome::Refused(refusal)
}

#[test]
fn every_change_of_a_key_says_to_which_lease_it_is_attached_then() {
    let swap = Command::CompareAndSwap {
        key: bytes("k"),
        expected: Expected::Value(bytes("v")),
        value: bytes("w"),
        ttl_ms: 0,
    };
    let cases = [
        (attach("k", OTHER), Some(OTHER)),
        (put_with("k", PutLease::Keep), Some(LEASE)),
        (put("k", "w"), Some(LeaseId::NONE)),
        (swap, Some(LeaseId::NONE)),
        (delete("k"), None),
    ];
    for (command, expected) in cases {
        // The cache of keys and the store say the same.
        for cache_bytes in [0, 1 << 20] {
            let store = MemoryStore::default();
            let machine = StateMachine::open_with_key_cache(store, cache_bytes);
            let mut machine = machine.expect("an empty store opens");
            run(
                &mut machine,
                [grant(LEASE), grant(OTHER), attach("k", LEASE)],
            );
            assert_eq!(lease_of(&machine, "k"), Some(LEASE));
            assert_eq!(keys_of(&machine, LEASE), "k");
            apply(&mut machine, command.clone());
            assert_eq!(lease_of(&machine, "k"), expected, "{command:?}");
            for lease in [LEASE, OTHER] {
                let keys = if expected == Some(lease) { "k" } else { "" };
                assert_eq!(keys_of(&machine, lease), keys, "{command:?}");
            }
        }
    }
}

#[test]
fn all_keys_of_a_lease_go_in_one_revision_in_their_order() {
    let mut machine = machine();
    run(&mut machine, [grant(LEASE), grant(OTHER)]);
    run(
        &mut machine,
        ["b", "a\0", "a", "c"].map(|key| attach(key, LEASE)),
    );
    run(
        &mut machine,
        [attach("other", OTHER), put("none", "v"), put("c", "w")],
    );
    let before = machine.revision();
    let revision = before.next();
    let ended = Outcome::LeaseEnded {
        lease: LEASE,
        revision,
        deleted: 3,
        end: LeaseEnd::Gone,
    };
    assert_eq!(apply(&mut machine, revoke(LEASE)), ended);
    assert_eq!(machine.revision(), revision);
    assert_eq!(keys_of(&machine, LEASE), "none");
    let changes = machine.reader().changes(&ChangesQuery {
        prev_kv: true,
        ..ChangesQuery::new(revision, everything())
    });
    let events = changes.expect("read").events;
    let keys: Vec<_> = events.iter().map(|it| &it.kv.key[..]).collect();
    assert_eq!(keys, [&b"a"[..], b"a\0", b"b"]);
    for event in &events {
        assert_eq!(event.kind, EventKind::Delete);
        assert_eq!(event.prev.as_ref().map(|kv| kv.lease), Some(LEASE));
    }
    assert_eq!(show(&machine, "c", None), "w 5/8/2");
    assert_eq!(
        apply(&mut machine, revoke(LEASE)),
        refused(Refusal::LeaseNotFound(LEASE))
    );
    // One without keys takes no revision.
    run(&mut machine, [delete("other"), revoke(OTHER)]);
    assert_eq!(machine.revision(), revision.next());
}

/// Commands that are applied together see each other's effects before any is written.
#[test]
fn a_lease_that_is_granted_used_and_revoked_in_one_step_leaves_nothing() {
    let mut machine = machine();
    let commands = [
        grant(LEASE),
        attach("a", LEASE),
        attach("b", LEASE),
        put("b", "kept"),
        revoke(LEASE),
        attach("late", LEASE),
    ];
    let entries = (1..)
        .zip(commands)
        .map(|(index, it)| command_entry(index, it));
    let entries: Vec<_> = entries.collect();
    let applied = machine.apply_step(&entries).expect("apply");
    assert_eq!(applied.len(), entries.len(), "in one step");
    let late = &applied.last().expect("six").outcome;
    assert_eq!(*late, refused(Refusal::LeaseNotFound(LEASE)));
    assert_eq!(show(&machine, "a", None), "-");
    assert_eq!(lease_of(&machine, "b"), Some(LeaseId::NONE));
    assert_eq!(machine.reader().leases(None, 9), Ok(vec![]));
}

#[test]
fn what_cannot_be_done_changes_nothing() {
    let mut machine = machine();
    run(&mut machine, [grant(LEASE), put("k", "1")]);
    let before = (machine.revision(), keys_of(&machine, LEASE));
    let of_batch = |lease| {
        let put = |key: &str, lease| {
            BatchOperation::Put(Put {
                lease,
                ..Put::new(bytes(key), bytes("v"))
            })
        };
        Command::Batch(Batch {
            then: vec![put("k", PutLease::Attach(LEASE)), put("new", lease)],
            ..Batch::default()
        })
    };
    let cases = [
        (grant(LEASE), Refusal::LeaseExists(LEASE)),
        (grant(LeaseId::NONE), Refusal::LeaseNotFound(LeaseId::NONE)),
        (attach("k", OTHER), Refusal::LeaseNotFound(OTHER)),
        (put_with("new", PutLease::Keep), Refusal::KeyNotFound),
        (
            of_batch(PutLease::Attach(OTHER)),
            Refusal::LeaseNotFound(OTHER),
        ),
        (of_batch(PutLease::Keep), Refusal::KeyNotFound),
    ];
    for (command, refusal) in cases {
        assert_eq!(
            apply(&mut machine, command.clone()),
            refused(refusal),
            "{command:?}"
        );
        assert_eq!((machine.revision(), keys_of(&machine, LEASE)), before);
    }
}

/// The leader saw it end, and it was granted again, or a checkpoint says that it lives.
#[test]
fn an_expiry_ends_only_the_lease_that_its_leader_saw() {
    let mut machine = machine();
    let expire = |seen| Command::ExpireLease { lease: LEASE, seen };
    let touched = |machine: &Machine| {
        let lease = machine.reader().lease(LEASE).expect("read");
        lease.map(|it| (it.touched, it.remaining_ms))
    };
    run(&mut machine, [grant(LEASE), attach("k", LEASE)]);
    let first = touched(&machine).expect("granted").0;
    let checkpoint = |remaining_ms, seen| Command::CheckpointLeases {
        leases: [LEASE, OTHER]
            .map(|lease| LeaseCheckpoint {
                lease,
                remaining_ms,
                seen,
            })
            .to_vec(),
    };
    let recorded = apply(&mut machine, checkpoint(5_000, first));
    let whole = LeaseCheckpoint {
        lease: LEASE,
        remaining_ms: 1_000,
        seen: first,
    };
    assert_eq!(
        recorded,
        Outcome::LeasesCheckpointed {
            leases: vec![whole]
        }
    );
    let Outcome::LeaseEnded { end, .. } = apply(&mut machine, expire(first)) else {
        panic!("it is about a lease");
    };
    assert_eq!(
        (end, keys_of(&machine, LEASE)),
        (LeaseEnd::NotDone, "k".to_owned())
    );
    let (second, remaining_ms) = touched(&machine).expect("it lives");
    assert_eq!(remaining_ms, 1_000);
    let void = Outcome::LeasesCheckpointed { leases: vec![] };
    assert_eq!(apply(&mut machine, checkpoint(7, first)), void);
    run(&mut machine, [expire(second)]);
    assert_eq!(keys_of(&machine, LEASE), "none");
    assert_eq!(show(&machine, "k", None), "-");
}

/// A revoke that was refused would leave the lease alive forever.
#[test]
fn a_lease_with_too_many_keys_for_one_command_is_over_at_once_and_its_keys_go_in_parts() {
    let mut machine = machine();
    let key = |number: usize| format!("{number:032768}");
    run(&mut machine, [grant(LEASE)]);
    // Nine MiB of keys.
    run(
        &mut machine,
        (0..288).map(|number| attach(&key(number), LEASE)),
    );
    let before = machine.revision();
    let Outcome::LeaseEnded { deleted, end, .. } = apply(&mut machine, revoke(LEASE)) else {
        panic!("a revoke is not refused");
    };
    assert_eq!((deleted, end), (255, LeaseEnd::Dying));
    assert_eq!(machine.revision(), before.next());
    // Nobody sees it any more, and no new one takes its keys over.
    let not_found = refused(Refusal::LeaseNotFound(LEASE));
    assert_eq!(apply(&mut machine, attach("k", LEASE)), not_found);
    assert_eq!(apply(&mut machine, revoke(LEASE)), not_found);
    let exists = refused(Refusal::LeaseExists(LEASE));
    assert_eq!(apply(&mut machine, grant(LEASE)), exists);
    let left = machine.reader().lease(LEASE).expect("read");
    let left = left.filter(|it| it.dying).expect("it is dying");
    let expire = Command::ExpireLease {
        lease: LEASE,
        seen: left.touched,
    };
    let Outcome::LeaseEnded { deleted, end, .. } = apply(&mut machine, expire) else {
        panic!("an expiry is not refused");
    };
    assert_eq!((deleted, end), (33, LeaseEnd::Gone));
    assert_eq!(machine.revision(), before.next().next());
    assert_eq!(keys_of(&machine, LEASE), "none");
}

#[test]
fn the_number_of_leases_is_bounded() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    run(&mut machine, [grant(LEASE)]);
    let record = store.get(STATE_KEY).expect("read").expect("a state");
    let full = MachineState {
        leases: LEASES_MAX,
        ..decode_state(&record).expect("a state")
    };
    let mut batch = WriteBatch::default();
    batch.put(STATE_KEY, &encode_state(&full));
    store.write(&batch).expect("write");
    let mut machine = StateMachine::open(store).expect("open");
    let too_many = refused(Refusal::TooManyLeases(LEASES_MAX));
    assert_eq!(apply(&mut machine, grant(OTHER)), too_many);
    run(&mut machine, [revoke(LEASE)]);
    assert!(matches!(
        apply(&mut machine, grant(OTHER)),
        Outcome::LeaseGranted { .. }
    ));
}

/// A program from before leases opens the state as long as it can read the log.
#[test]
fn the_format_is_raised_by_the_first_command_that_older_programs_do_not_read() {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let format = || {
        let format = store.get(FORMAT_KEY).expect("read").expect("a format");
        let state = store.get(STATE_KEY).expect("read").expect("a state");
        let of_state = decode_state(&state).expect("a state").format;
        let format = u32::from_be_bytes(format[..].try_into().expect("four bytes"));
        assert_eq!(format, of_state);
        format
    };
    let mut write = |command, version| {
        let index = machine.applied().0.next().0;
        let data = Request::from(command).encode(version);
        let entry = super::entry(index, dengine_types::EntryKind::Command, data);
        machine.apply(&[entry]).expect("apply");
    };
    assert_eq!(format(), FORMAT_OLDEST);
    write(put("k", "v"), CommandVersion::OLDEST);
    write(put("k", "v"), CommandVersion::CURRENT);
    assert_eq!(format(), FORMAT_OLDEST);
    write(grant(LEASE), CommandVersion::CURRENT);
    assert_eq!(format(), FORMAT_VERSION);
    write(put("k", "v"), CommandVersion::OLDEST);
    assert_eq!(format(), FORMAT_VERSION, "it is not lowered again");
    assert_eq!(
        StateMachine::open(store).expect("open").revision(),
        Revision(4)
    );
}

#[test]
fn a_comparison_with_a_lease_takes_none_for_zero() {
    let mut machine = machine();
    run(
        &mut machine,
        [grant(LEASE), attach("k", LEASE), put("none", "v")],
    );
    let mut holds = |key: &str, lease| {
        let compare = Compare {
            keys: KeyRange::One(bytes(key)),
            relation: Relation::Equal,
            target: CompareTarget::Lease(lease),
        };
        let batch = Batch {
            compares: vec![compare],
            ..Batch::default()
        };
        let read = machine.reader().batch(&batch).expect("read");
        let Outcome::Batch { succeeded, .. } = apply(&mut machine, Command::Batch(batch)) else {
            panic!("a batch is not refused");
        };
        assert_eq!(format!("{read:?}").contains("succeeded: true"), succeeded);
        succeeded
    };
    assert!(holds("k", LEASE) && !holds("k", LeaseId::NONE));
    assert!(holds("none", LeaseId::NONE) && holds("missing", LeaseId::NONE));
}
