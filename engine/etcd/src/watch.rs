//! Watches: what a client asks for, and what it is sent.

use bytes::{Buf, BufMut, Bytes};
use dengine_kv::KeyRange;
use dengine_kv::watch::{EventBatch, WatchSpec};
use dengine_types::Revision;
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};

use crate::errors::EtcdError;
use crate::etcdserverpb::watch_create_request::FilterType;
use crate::etcdserverpb::{WatchCreateRequest, WatchResponse};
use crate::header::{Header, signed};
use crate::mvccpb::{Event, KeyValue};
use crate::{KEY_BYTES_MAX, messages};

/// The id of an answer to no watch in particular: one that was not created, or the progress of all.
pub const NO_WATCH: i64 = -1;

/// How large a message of a watch that takes fragments may be. A single event may be larger.
const MESSAGE_BYTES: usize = 512 * 1024;

/// A watch that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// What it wants. The events of a large revision come in several batches, which whoever serves
    /// the watch puts together for a client that did not ask for `fragment`. No message is for
    /// several watches: [`told`] makes one for each of those that are told the same.
    pub spec: WatchSpec,
    /// The first revision of interest; `None`: the next.
    pub first: Option<Revision>,
    /// The id that it wants; 0: any, see [`WatchIds`].
    pub id: i64,
    /// It is to be sent its progress while it has no events.
    pub progress_notify: bool,
    /// It takes revisions in several messages.
    pub fragment: bool,
}

/// Why a watch is not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchRefusal {
    /// It is to begin below the first revision there ever was.
    #[error("{}", EtcdError::Compacted)]
    Compacted,
    /// A bound of its range is longer than any key. A watch keeps both for as long as it lives.
    #[error("{}", EtcdError::RequestTooLarge)]
    TooLarge,
    /// Its range holds no key.
    #[error("mvcc: watcher range is empty")]
    EmptyRange,
    /// A watch of the stream has that id.
    #[error("mvcc: duplicate watch ID provided on the WatchStream")]
    DuplicateId,
}

impl Create {
    /// Checks what is asked for.
    ///
    /// # Errors
    /// The request can never succeed as it is.
    pub fn new(request: &WatchCreateRequest) -> Result<Self, WatchRefusal> {
        let first = u64::try_from(request.start_revision).map_err(|_| WatchRefusal::Compacted)?;
        // The end of a range that holds the longest key alone has a byte more.
        if request.key.len() > KEY_BYTES_MAX || request.range_end.len() > KEY_BYTES_MAX + 1 {
            return Err(WatchRefusal::TooLarge);
        }
        let key: &[u8] = match &request.key[..] {
            // The smallest there is.
            [] => b"\0",
            key => key,
        };
        let keys = KeyRange::from_wire(key, &request.range_end);
        if matches!(&keys, KeyRange::Between { start, end } if end <= start) {
            return Err(WatchRefusal::EmptyRange);
        }
        let leaves_out = |filter: FilterType| request.filters.contains(&filter.into());
        Ok(Self {
            spec: WatchSpec {
                keys,
                prev_kv: request.prev_kv,
                no_put: leaves_out(FilterType::Noput),
                no_delete: leaves_out(FilterType::Nodelete),
                fragment: true,
                shared: true,
                message_bytes: MESSAGE_BYTES,
            },
            first: (first != 0).then_some(Revision(first)),
            id: request.watch_id,
            progress_notify: request.progress_notify,
            fragment: request.fragment,
        })
    }
}

/// Draws the ids of a stream's watches.
#[derive(Debug, Default)]
pub struct WatchIds {
    next: i64,
}

impl WatchIds {
    /// The id of a new watch, from 0 on if any will do.
    ///
    /// # Errors
    /// The wanted one is taken.
    pub fn choose(
        &mut self,
        wanted: i64,
        is_taken: impl Fn(i64) -> bool,
    ) -> Result<i64, WatchRefusal> {
        if wanted != 0 {
            return match is_taken(wanted) {
                true => Err(WatchRefusal::DuplicateId),
                false => Ok(wanted),
            };
        }
        while is_taken(self.next) {
            self.next += 1;
        }
        let id = self.next;
        self.next += 1;
        Ok(id)
    }
}

/// The watch begins. `revision` is that of the store; for one that begins with the next revision it
/// has to be exactly the one before: a client that loses the stream before the first event begins
/// behind it.
#[must_use]
pub fn created(watch_id: i64, header: Header, revision: Revision) -> WatchResponse {
    WatchResponse {
        header: header.at(revision),
        watch_id,
        created: true,
        ..WatchResponse::default()
    }
}

/// The watch does not begin. Both created and cancelled: clients pair answers with requests by
/// their order.
#[must_use]
pub fn refused(header: Header, reason: String) -> WatchResponse {
    WatchResponse {
        canceled: true,
        cancel_reason: reason,
        ..created(NO_WATCH, header, header.revision)
    }
}

/// A response as it is sent: of several with the same events, these are encoded once.
#[derive(Clone, Debug, Default)]
pub struct Outgoing {
    /// Without the events that are encoded.
    pub response: WatchResponse,
    /// The last field of the response, and so what stands behind the others.
    events: Bytes,
}

impl Outgoing {
    /// What it takes while it waits, as if nothing of it were another's too.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let pair =
            |kv: &Option<KeyValue>| kv.as_ref().map_or(0, |kv| kv.key.len() + kv.value.len());
        let event = |it: &Event| size_of::<Event>() + pair(&it.kv) + pair(&it.prev_kv);
        let events: usize = self.response.events.iter().map(event).sum();
        size_of::<Self>() + events + self.events.len()
    }
}

impl Message for Outgoing {
    fn encode_raw(&self, to: &mut impl BufMut) {
        self.response.encode_raw(to);
        to.put_slice(&self.events);
    }

    fn encoded_len(&self) -> usize {
        self.response.encoded_len() + self.events.len()
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        self.response.merge_field(tag, wire_type, from, context)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl From<WatchResponse> for Outgoing {
    fn from(response: WatchResponse) -> Self {
        Self {
            response,
            events: Bytes::new(),
        }
    }
}

/// Events for each of these watches.
#[must_use]
pub fn told(watch_ids: &[i64], header: Header, batch: EventBatch) -> Vec<Outgoing> {
    let events: Vec<_> = batch.events.into_iter().map(messages::event).collect();
    let response = |watch_id, events| WatchResponse {
        header: header.at(batch.revision),
        watch_id,
        fragment: batch.fragment,
        events,
        ..WatchResponse::default()
    };
    // What is large is copied once only.
    if let [watch_id] = watch_ids {
        return vec![response(*watch_id, events).into()];
    }
    let events = WatchResponse {
        events,
        ..WatchResponse::default()
    };
    let events = Bytes::from(events.encode_to_vec());
    let each = watch_ids.iter().map(|watch_id| Outgoing {
        response: response(*watch_id, Vec::new()),
        events: events.clone(),
    });
    each.collect()
}

/// Everything up to `revision` was sent to this watch; with [`NO_WATCH`] to all of the stream. A
/// client goes on behind it, so none of them may begin later.
#[must_use]
pub fn progress(watch_id: i64, header: Header, revision: Revision) -> WatchResponse {
    WatchResponse {
        header: header.at(revision),
        watch_id,
        ..WatchResponse::default()
    }
}

/// The watch has ended because the client wanted it to.
#[must_use]
pub fn canceled(watch_id: i64, header: Header) -> WatchResponse {
    WatchResponse {
        header: header.wire(),
        watch_id,
        canceled: true,
        ..WatchResponse::default()
    }
}

/// The watch has ended because history begins at `compacted`, behind what it was to be sent next.
#[must_use]
pub fn compacted(watch_id: i64, header: Header, compacted: Revision) -> WatchResponse {
    WatchResponse {
        header: header.without_revision(),
        watch_id,
        canceled: true,
        compact_revision: signed(compacted.0),
        ..WatchResponse::default()
    }
}

#[cfg(test)]
mod tests {
    use dengine_kv::{EventKind, Stamp};
    use dengine_types::LeaseId;

    use super::*;
    use crate::mvccpb::event::EventType;

    fn ask(key: &'static str, range_end: &'static str) -> WatchCreateRequest {
        WatchCreateRequest {
            key: key.into(),
            range_end: range_end.into(),
            ..WatchCreateRequest::default()
        }
    }

    /// Each kept up to 2 MiB for as long as it lived, and nothing counted that.
    #[test]
    fn a_range_whose_bounds_are_longer_than_keys_is_refused() {
        let asked = |key: usize, range_end: usize| {
            Create::new(&WatchCreateRequest {
                key: vec![b'k'; key].into(),
                range_end: vec![b'l'; range_end].into(),
                ..WatchCreateRequest::default()
            })
        };
        assert!(asked(KEY_BYTES_MAX, KEY_BYTES_MAX + 1).is_ok());
        assert_eq!(asked(KEY_BYTES_MAX + 1, 0), Err(WatchRefusal::TooLarge));
        assert_eq!(asked(1, KEY_BYTES_MAX + 2), Err(WatchRefusal::TooLarge));
    }

    #[test]
    fn a_range_that_holds_no_key_is_refused() {
        let keys = |key, range_end| Create::new(&ask(key, range_end)).map(|it| it.spec.keys);
        for (key, range_end) in [("b", "a"), ("b", "b"), ("b", "\0a")] {
            assert_eq!(keys(key, range_end), Err(WatchRefusal::EmptyRange));
        }
        for (key, range_end) in [("b", "c"), ("b", ""), ("b", "b\0")] {
            assert!(keys(key, range_end).is_ok());
        }
        let all = Ok(KeyRange::From(Bytes::from_static(b"\0")));
        assert_eq!(keys("", "\0"), all);
        let smallest = Ok(KeyRange::One(Bytes::from_static(b"\0")));
        assert_eq!(keys("", ""), smallest);
    }

    #[test]
    fn history_that_never_was_is_refused_first() {
        let request = WatchCreateRequest {
            start_revision: -1,
            ..ask("b", "a")
        };
        let refusal = Create::new(&request).unwrap_err();
        assert_eq!(refusal, WatchRefusal::Compacted);
        let response = refused(Header::default(), refusal.to_string());
        assert_eq!(response.watch_id, -1);
        assert!(response.created && response.canceled);
        assert_eq!(
            response.cancel_reason,
            "etcdserver: mvcc: required revision has been compacted"
        );
    }

    #[test]
    fn what_is_asked_for_is_what_is_watched() {
        let request = WatchCreateRequest {
            start_revision: 5,
            filters: vec![1, 7],
            prev_kv: true,
            ..ask("b", "")
        };
        let create = Create::new(&request).unwrap();
        assert_eq!(create.first, Some(Revision(5)));
        assert!(create.spec.prev_kv && create.spec.no_delete && !create.spec.no_put);
        assert!(!create.fragment);
        assert!(create.spec.shared, "its events are encoded once for all");
        assert_eq!(Create::new(&ask("b", "")).unwrap().first, None);
    }

    #[test]
    fn ids_begin_at_zero_and_leave_out_those_that_are_taken() {
        let mut ids = WatchIds::default();
        let taken = |id: i64| id == 1 || id == 7;
        assert_eq!(ids.choose(0, taken), Ok(0));
        assert_eq!(ids.choose(0, taken), Ok(2));
        assert_eq!(ids.choose(7, taken), Err(WatchRefusal::DuplicateId));
        assert_eq!(ids.choose(5, taken), Ok(5));
        assert_eq!(ids.choose(0, taken), Ok(3));
    }

    fn batch(revision: u64, keys: &[&'static str], fragment: bool) -> EventBatch {
        let event = |key: &&'static str| dengine_kv::Event {
            kind: EventKind::Delete,
            sub: 0,
            kv: dengine_kv::KeyValue {
                key: Bytes::from_static(key.as_bytes()),
                value: Bytes::new(),
                create_revision: Revision(0),
                mod_revision: Revision(revision),
                version: 0,
                ttl_ms: 0,
                lease: LeaseId::NONE,
            },
            prev: None,
        };
        EventBatch {
            events: keys.iter().map(event).collect(),
            revision: Revision(revision),
            fragment,
            next: Stamp::end_of(Revision(revision)),
        }
    }

    /// What a client makes of it.
    fn received(sent: &Outgoing) -> WatchResponse {
        let bytes = sent.encode_to_vec();
        assert_eq!(bytes.len(), sent.encoded_len());
        WatchResponse::decode(&bytes[..]).unwrap()
    }

    #[test]
    fn events_have_the_revision_of_the_last_one() {
        let sent = told(&[3], Header::default(), batch(5, &["a"], true));
        assert_eq!(sent.len(), 1);
        let response = received(&sent[0]);
        assert_eq!(response.header.unwrap().revision, 5);
        assert_eq!(response.watch_id, 3);
        assert!(response.fragment);
        let event = &response.events[0];
        assert_eq!(event.r#type(), EventType::Delete);
        assert_eq!(event.kv.as_ref().unwrap().mod_revision, 5);
    }

    #[test]
    fn each_of_several_watches_is_told_what_one_alone_is_told() {
        let ids = [0, 3, i64::MIN];
        for fragment in [false, true] {
            let batch = || batch(5, &["a", "b"], fragment);
            let alone = ids.map(|id| received(&told(&[id], Header::default(), batch())[0]));
            let together = told(&ids, Header::default(), batch());
            let received: Vec<_> = together.iter().map(received).collect();
            assert_eq!(received, alone);
            assert_eq!(received[0].events.len(), 2);
        }
    }

    /// A client that does not read may have them wait.
    #[test]
    fn what_waits_counts_with_its_events() {
        let key = "k".repeat(1_000).leak();
        for ids in [&[1][..], &[1, 2]] {
            let told = told(ids, Header::default(), batch(5, &[key], false));
            assert!(told.iter().all(|it| it.memory_bytes() > 1_000));
        }
    }

    /// Clients take one without either for a start in the future.
    #[test]
    fn an_end_by_compaction_has_a_revision_and_no_reason() {
        let response = compacted(3, Header::default(), Revision(5));
        assert!(response.canceled);
        assert_eq!(response.compact_revision, 5);
        assert_eq!(response.cancel_reason, "");
    }
}
