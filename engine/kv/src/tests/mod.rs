//! Tests of the state machine as a whole.

mod batch;
mod compaction;
mod compare;
pub(crate) mod counting;
mod damage;
mod decode;
mod expiry;
mod hashes;
mod history;
mod leases;
mod machine;
mod membership;
mod model;
mod returned;
mod sessions;
mod steps;
mod transactions;
mod version_4;
mod versions;
mod visits;

use bytes::Bytes;
use dengine_types::{Entry, EntryKind, Index, Revision, SessionId, Term};

use super::store::MemoryStore;
use super::store::conformance::Suite;
use super::{
    Command, CommandVersion, KeyRange, MembershipChange, Outcome, Put, Reader, Request,
    SessionStamp, StateMachine,
};

type Machine = StateMachine<MemoryStore>;

#[test]
fn memory_store_conforms() {
    Suite::new(MemoryStore::default).test_all();
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> Command {
    put_for(key, value, 0)
}

fn put_for(key: &str, value: &str, ttl_ms: u64) -> Command {
    Command::Put(Put {
        prev_kv: true,
        ttl_ms,
        ..Put::new(bytes(key), bytes(value))
    })
}

fn delete(key: &str) -> Command {
    delete_keys(KeyRange::One(bytes(key)))
}

fn delete_keys(keys: KeyRange) -> Command {
    Command::Delete {
        keys,
        prev_kv: true,
    }
}

fn compact(revision: u64) -> Command {
    Command::Compact {
        revision: Revision(revision),
    }
}

fn between(start: &str, end: &str) -> KeyRange {
    KeyRange::Between {
        start: bytes(start),
        end: bytes(end),
    }
}

fn everything() -> KeyRange {
    KeyRange::From(Bytes::new())
}

/// A command of a session.
fn stamped(session: SessionId, sequence: u64, acknowledged: u64, command: Command) -> Request {
    Request {
        session: Some(SessionStamp {
            id: session,
            sequence,
            acknowledged,
        }),
        command,
    }
}

/// An entry of term 1 whose context is its index.
fn entry(index: u64, kind: EntryKind, data: Bytes) -> Entry {
    Entry {
        index: Index(index),
        term: Term(1),
        kind,
        context: Bytes::copy_from_slice(&index.to_be_bytes()),
        data,
    }
}

pub(crate) fn command_entry(index: u64, command: impl Into<Request>) -> Entry {
    entry(
        index,
        EntryKind::Command,
        command.into().encode(CommandVersion::CURRENT),
    )
}

fn change_entry(index: u64, change: MembershipChange) -> Entry {
    entry(index, EntryKind::Membership, change.encode())
}

fn machine() -> Machine {
    StateMachine::open(MemoryStore::default()).expect("an empty store opens")
}

/// Applies a command as a batch of its own and returns the outcome.
fn apply(machine: &mut Machine, command: impl Into<Request>) -> Outcome {
    let index = machine.applied().0.next().0;
    let applied = machine.apply(&[command_entry(index, command)]);
    applied.expect("apply").remove(0).outcome
}

/// Applies each command as a batch of its own and returns the last outcome.
fn run(machine: &mut Machine, commands: impl IntoIterator<Item = Command>) -> Outcome {
    let answers = commands.into_iter().map(|command| apply(machine, command));
    answers.last().unwrap_or(Outcome::Empty)
}

/// `value create/mod/version` of a key, or `-`.
fn show(machine: &Machine, key: &str, revision: Option<u64>) -> String {
    let reader: Reader<_> = machine.reader();
    let (_, found) = reader
        .get(&bytes(key), revision.map(Revision))
        .expect("readable revision");
    found.map_or("-".to_owned(), |kv| {
        format!(
            "{} {}/{}/{}",
            kv.value.escape_ascii(),
            kv.create_revision,
            kv.mod_revision,
            kv.version
        )
    })
}

/// Removes all garbage from a store, and returns what is left.
fn all_collected(store: &MemoryStore) -> Vec<(Bytes, Bytes)> {
    let machine = StateMachine::open(store.clone()).expect("open");
    let mut collector = machine.collector().removing_together(1);
    while !collector.step(3).expect("collect").done {}
    store.dump()
}
