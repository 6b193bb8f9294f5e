//! Watches in our own protocol.

use std::time::Duration;

use dengine_kv::watch::{EventBatch, WatchSet};
use dengine_protocol::checks::watch::{self as messages, Ending};
use dengine_protocol::checks::{Header, RequestLimits};
use dengine_protocol::v1::watch_request::Request as Wanted;
use dengine_protocol::v1::{CancelCause, Event, KeyValue, WatchRequest, WatchResponse};
use dengine_types::Revision;
use tonic::Status;

use super::dialect::{Asked, Create, Dialect, End, LastWords};
use crate::config::Config;

/// Our own protocol; it notes nothing.
pub(super) struct Native;

impl Dialect for Native {
    type Request = WatchRequest;
    type Response = WatchResponse;

    const WHOLE_REVISIONS: bool = false;
    const RESUMES_WATCHES: bool = true;
    const OUTLIVES_REQUESTS: bool = false;

    /// Something else is from a newer client; silence says that nothing came of it.
    fn asked(&self, request: WatchRequest, limits: &RequestLimits) -> Option<Asked> {
        Some(match request.request? {
            Wanted::Create(create) => Asked::Create(Create {
                id: (create.watch_id != 0).then_some(create.watch_id),
                cluster_id: create.cluster_id,
                start: Revision(create.start_revision),
                progress_notify: create.progress_notify,
                in_parts: create.fragment,
                spec: messages::spec(&create, limits).map_err(|it| it.message().to_owned()),
            }),
            Wanted::Cancel(cancel) => Asked::Cancel(cancel.watch_id),
            Wanted::Progress(_) => Asked::Progress,
        })
    }

    fn choose_id(&mut self, chosen: Option<u64>, watches: &WatchSet) -> Result<u64, String> {
        let id = chosen.unwrap_or_else(|| free_id(watches));
        match watches.contains(id) {
            true => Err(format!("the stream has a watch {id} already")),
            false => Ok(id),
        }
    }

    fn created(&self, id: u64, header: Header, _: Revision, first: Revision) -> WatchResponse {
        messages::created(id, header, first)
    }

    fn refused(
        &self,
        chosen: Option<u64>,
        header: Header,
        ending: Ending,
        watches: &WatchSet,
    ) -> WatchResponse {
        let id = chosen.unwrap_or_else(|| free_id(watches));
        messages::canceled(id, header, ending)
    }

    fn canceled(&self, id: u64, header: Header, ending: Ending) -> WatchResponse {
        messages::canceled(id, header, ending)
    }

    fn events(&self, ids: &[u64], header: Header, batch: EventBatch) -> Vec<WatchResponse> {
        vec![messages::told(ids, header, batch)]
    }

    fn progress(&self, ids: &[u64], header: Header, revision: Revision) -> Vec<WatchResponse> {
        vec![messages::progress(ids, header, revision)]
    }

    fn answers_progress(&self, _: &WatchSet, _: Revision) -> bool {
        true
    }

    /// Of small events it is several times what it will be sent as.
    fn memory_bytes(message: &WatchResponse) -> usize {
        let pair =
            |kv: &Option<KeyValue>| kv.as_ref().map_or(0, |kv| kv.key.len() + kv.value.len());
        let event = |it: &Event| size_of::<Event>() + pair(&it.kv) + pair(&it.prev_kv);
        let events: usize = message.events.iter().map(event).sum();
        let ids = size_of_val(message.also_watch_ids.as_slice());
        size_of::<WatchResponse>() + ids + events
    }

    /// A member that hears of no leader for long tells nothing new, and its clients should ask
    /// another.
    fn leaderless_max(&self, config: &Config) -> Option<Duration> {
        Some(config.limits.request_timeout())
    }

    fn last_words(&self, end: &End, header: Header, watches: &WatchSet) -> LastWords<Self> {
        let Some((cause, reason, status)) = ending(end) else {
            return Vec::new();
        };
        let mut words: LastWords<Self> = Vec::with_capacity(watches.len() + 1);
        for id in watches.ids() {
            let resume = watches.next(id).unwrap_or(Revision(0));
            let ending = Ending::new(cause, reason.clone(), resume);
            words.push(Ok(messages::canceled(id, header, ending)));
        }
        words.push(Err(status));
        words
    }
}

/// Clients may have chosen any of them.
fn free_id(watches: &WatchSet) -> u64 {
    let mut free = 1;
    for id in watches.ids() {
        if id != free {
            break;
        }
        free += 1;
    }
    free
}

fn ending(end: &End) -> Option<(CancelCause, String, Status)> {
    Some(match end {
        End::Gone => return None,
        End::Broken(status) => (
            CancelCause::Unavailable,
            status.message().to_owned(),
            status.clone(),
        ),
        End::TooSlow(patience) => too_slow(format!(
            "the client read nothing, or too little, for {patience:?} (--stream-stall-timeout-ms); \
             resume at the given revision"
        )),
        End::InTheWay => too_slow(
            "unread watch messages use all memory for them (half of --max-answer-bytes), or the \
             share of your address; resume at the given revision"
                .to_owned(),
        ),
        End::TooLarge => unavailable("a revision is larger than what this member holds of it"),
        End::Stopping => unavailable("this member is shutting down"),
        End::Removed => unavailable("this member was removed from its cluster"),
        End::NoLeader => unavailable("this member has had no contact with a leader for a while"),
        End::Unserved(reason) => unavailable(reason),
    })
}

fn too_slow(reason: String) -> (CancelCause, String, Status) {
    let status = Status::resource_exhausted(format!("the watch is too slow: {reason}"));
    (CancelCause::TooSlow, reason, status)
}

fn unavailable(reason: &str) -> (CancelCause, String, Status) {
    let status = Status::unavailable(reason);
    (CancelCause::Unavailable, reason.to_owned(), status)
}
