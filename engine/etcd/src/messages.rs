//! Types of `dengine-kv` as messages.

use dengine_kv as kv;
use dengine_kv::EventKind;

use crate::header::signed;
use crate::mvccpb::event::EventType;
use crate::mvccpb::{Event, KeyValue};

/// A pair for the wire.
#[must_use]
pub fn key_value(kv: kv::KeyValue) -> KeyValue {
    KeyValue {
        key: kv.key,
        create_revision: signed(kv.create_revision.0),
        mod_revision: signed(kv.mod_revision.0),
        version: signed(kv.version),
        value: kv.value,
        lease: kv.lease.0,
    }
}

/// An event for the wire.
#[must_use]
pub fn event(event: kv::Event) -> Event {
    let kind = match event.kind {
        EventKind::Put => EventType::Put,
        EventKind::Delete => EventType::Delete,
    };
    Event {
        r#type: kind.into(),
        kv: Some(key_value(event.kv)),
        prev_kv: event.prev.map(key_value),
    }
}
