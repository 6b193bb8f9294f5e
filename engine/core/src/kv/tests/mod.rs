//! Tests of the state machine as a whole.

mod compare;
mod decode;
mod machine;
mod membership;
mod model;

use super::store::{MemoryStore, conformance::Suite};
use super::{Command, KeyRange, MembershipChange, Request};
use crate::types::{Entry, EntryKind, Index, Term};
use bytes::Bytes;

#[test]
fn memory_store_conforms() {
    Suite::new(MemoryStore::default).test_all();
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> Command {
    Command::Put {
        key: bytes(key),
        value: bytes(value),
        prev_kv: true,
        ttl_ms: 0,
    }
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

fn between(start: &str, end: &str) -> KeyRange {
    KeyRange::Between {
        start: bytes(start),
        end: bytes(end),
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

fn command_entry(index: u64, command: Command) -> Entry {
    entry(index, EntryKind::Command, Request::from(command).encode())
}

fn change_entry(index: u64, change: MembershipChange) -> Entry {
    entry(index, EntryKind::Membership, change.encode())
}
