//! However pages are cut, and whatever else is watched: a watch gets everything once, in order, in
//! whole revisions, and never more at once than the limits allow.

mod bounds;
mod member;
mod stories;
mod woken;

use bytes::Bytes;
use dengine_types::LeaseId;

use super::*;
use crate::KeyValue;

const STREAM: StreamId = StreamId(1);

/// An event of about a hundred bytes.
fn event(revision: u64, sub: u32, key: &str) -> Event {
    let kind = match key.len() % 2 {
        0 => EventKind::Delete,
        _ => EventKind::Put,
    };
    let kv = KeyValue {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::from_static(&[0; 36]),
        create_revision: Revision(1),
        mod_revision: Revision(revision),
        version: 1,
        ttl_ms: 0,
        lease: LeaseId::NONE,
    };
    Event {
        kind,
        sub,
        prev: Some(kv.clone()),
        kv,
    }
}

fn everything() -> KeyRange {
    KeyRange::From(Bytes::from_static(b"\0"))
}

fn spec(keys: KeyRange, message_bytes: usize) -> WatchSpec {
    WatchSpec {
        keys,
        prev_kv: false,
        no_put: false,
        no_delete: false,
        fragment: true,
        shared: false,
        message_bytes,
    }
}
