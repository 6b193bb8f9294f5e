//! Watches: what a client asks for, and what it is told.

use dengine_kv as kv;
use dengine_kv::watch::{EventBatch, WatchSpec};
use dengine_kv::{EventKind, KeyRange};
use dengine_types::Revision;
use tonic::Status;

use crate::checks::header::Header;
use crate::checks::limits::RequestLimits;
use crate::checks::messages::key_value;
use crate::v1::event::Kind;
use crate::v1::{CancelCause, Event, WatchCreate, WatchResponse};

/// How large a message may be. A single event may be larger.
const MESSAGE_BYTES: usize = 512 * 1024;

/// What a client asks for.
///
/// # Errors
/// The request can never succeed as it is.
pub fn spec(create: &WatchCreate, limits: &RequestLimits) -> Result<WatchSpec, Status> {
    limits.check_key(&create.key)?;
    limits.check_range_end(&create.range_end)?;
    let keys = KeyRange::from_wire(&create.key, &create.range_end);
    if matches!(&keys, KeyRange::Between { start, end } if end <= start) {
        return Err(Status::invalid_argument(
            "the range contains no key, so the watch could never have an event: range_end must be \
             behind key",
        ));
    }
    Ok(WatchSpec {
        keys,
        prev_kv: create.prev_kv,
        no_put: create.no_put,
        no_delete: create.no_delete,
        fragment: create.fragment,
        shared: create.shared,
        message_bytes: MESSAGE_BYTES,
    })
}

/// Events, for these watches.
#[must_use]
pub fn told(watch_ids: &[u64], header: Header, told: EventBatch) -> WatchResponse {
    WatchResponse {
        header: header.at(told.revision),
        fragment: told.fragment,
        events: told.events.into_iter().map(event).collect(),
        ..addressed(watch_ids)
    }
}

fn addressed(watch_ids: &[u64]) -> WatchResponse {
    let (first, others) = watch_ids.split_first().unwrap_or((&0, &[]));
    WatchResponse {
        watch_id: *first,
        also_watch_ids: others.to_vec(),
        ..WatchResponse::default()
    }
}

/// The watch begins.
#[must_use]
pub fn created(watch_id: u64, header: Header, first: Revision) -> WatchResponse {
    WatchResponse {
        header: header.wire(),
        watch_id,
        created: true,
        resume_revision: first.0,
        ..WatchResponse::default()
    }
}

/// Everything up to `revision` was told to these watches; to all of the stream, if none is named.
#[must_use]
pub fn progress(watch_ids: &[u64], header: Header, revision: Revision) -> WatchResponse {
    WatchResponse {
        header: header.at(revision),
        ..addressed(watch_ids)
    }
}

/// Why a watch ends, and where it would have gone on.
#[derive(Clone, Debug)]
pub struct Ending {
    /// In the API's words.
    pub cause: CancelCause,
    /// In words.
    pub reason: String,
    /// Where history begins, if that is the reason.
    pub compact_revision: Revision,
    /// The first revision that was not told.
    pub resume: Revision,
}

impl Ending {
    /// For a cause that needs no more than words.
    #[must_use]
    pub fn new(cause: CancelCause, reason: impl Into<String>, resume: Revision) -> Self {
        Self {
            cause,
            reason: reason.into(),
            compact_revision: Revision(0),
            resume,
        }
    }
}

/// The watch has ended.
#[must_use]
pub fn canceled(watch_id: u64, header: Header, ending: Ending) -> WatchResponse {
    WatchResponse {
        header: header.wire(),
        watch_id,
        canceled: true,
        cancel_cause: ending.cause.into(),
        cancel_reason: ending.reason,
        compact_revision: ending.compact_revision.0,
        resume_revision: ending.resume.0,
        ..WatchResponse::default()
    }
}

fn event(event: kv::Event) -> Event {
    let kind = match event.kind {
        EventKind::Put => Kind::Put,
        EventKind::Delete => Kind::Delete,
    };
    Event {
        kind: kind.into(),
        kv: Some(key_value(event.kv)),
        prev_kv: event.prev.map(key_value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_holds_no_key_is_refused() {
        let limits = RequestLimits {
            max_key_bytes: 16,
            max_value_bytes: 16,
            max_range_bytes: 16,
            max_batch_operations: 1,
            max_batch_request_bytes: 16,
        };
        let ask = |key: &'static str, range_end: &'static str| {
            let create = WatchCreate {
                key: key.into(),
                range_end: range_end.into(),
                ..WatchCreate::default()
            };
            spec(&create, &limits).map(|spec| spec.keys)
        };
        for (key, range_end) in [("b", "a"), ("b", "b"), ("b", "\0a")] {
            let status = ask(key, range_end).unwrap_err();
            assert!(status.message().contains("range_end"), "{status}");
        }
        for (key, range_end) in [("b", "c"), ("b", "\0"), ("b", ""), ("b", "b\0")] {
            ask(key, range_end).unwrap();
        }
    }
}
