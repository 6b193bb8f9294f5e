//! etcd's `Watch` service: its dialect of what [`watch`] does for all.

use std::time::Duration;

use dengine_etcd::EtcdError;
use dengine_etcd::etcdserverpb::watch_request::RequestUnion as Wanted;
use dengine_etcd::etcdserverpb::watch_server::Watch;
use dengine_etcd::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use dengine_etcd::watch::{self as messages, NO_WATCH, Outgoing, WatchIds};
use dengine_kv::watch::{EventBatch, WatchSet};
use dengine_protocol::checks::watch::Ending;
use dengine_protocol::checks::{Header, RequestLimits};
use dengine_protocol::v1::CancelCause;
use dengine_types::Revision;
use tonic::{Code, Request, Response, Status, Streaming};

use super::door::{Door, ServedBy, header, requires_leader};
use crate::config::Config;
use crate::server::streams::Beside;
use crate::server::watch;
use crate::server::watch::dialect::{Asked, Create, Dialect, End, LastWords};

/// Without a leader for so many election timeouts, a stream ends whose client asked for that.
const LEADERLESS_ELECTIONS: u32 = 3;

/// Serves watches.
pub(super) struct WatchService {
    door: Door,
    watch: watch::WatchService,
}

impl WatchService {
    pub(super) fn new(door: Door, watch: watch::WatchService) -> Self {
        Self { door, watch }
    }
}

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = Beside<WatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.door.admit(request.metadata(), ServedBy::Voters)?;
        let etcd = Etcd {
            ids: WatchIds::default(),
            requires_leader: requires_leader(request.metadata()),
        };
        let served = self.watch.serve(etcd, request);
        Ok(served.map_err(|it| self.door.in_etcds_words(&it))?)
    }
}

/// etcd's protocol of watches, for one stream.
struct Etcd {
    ids: WatchIds,
    /// The client wants the stream to end where there is no leader.
    requires_leader: bool,
}

impl Dialect for Etcd {
    type Request = WatchRequest;
    type Response = Outgoing;

    const WHOLE_REVISIONS: bool = true;
    const RESUMES_WATCHES: bool = false;
    const OUTLIVES_REQUESTS: bool = true;

    fn asked(&self, request: WatchRequest, _: &RequestLimits) -> Option<Asked> {
        Some(match request.request_union? {
            Wanted::CreateRequest(create) => Asked::Create(asked_for(&create)),
            Wanted::CancelRequest(cancel) => Asked::Cancel(own_id(cancel.watch_id)),
            Wanted::ProgressRequest(_) => Asked::Progress,
        })
    }

    fn choose_id(&mut self, chosen: Option<u64>, watches: &WatchSet) -> Result<u64, String> {
        let wanted = chosen.map_or(0, u64::cast_signed);
        let is_taken = |id: i64| watches.contains(own_id(id));
        let id = self.ids.choose(wanted, is_taken);
        id.map(own_id).map_err(|it| it.to_string())
    }

    /// A client that asked for the next revision resumes at the one of this header until it has
    /// got events: a later one would lose some.
    fn created(&self, id: u64, now: Header, asked: Revision, first: Revision) -> Outgoing {
        let revision = match asked {
            Revision(0) => Revision(first.0.saturating_sub(1)),
            _ => now.revision,
        };
        messages::created(id.cast_signed(), header(now), revision).into()
    }

    fn refused(&self, _: Option<u64>, now: Header, ending: Ending, _: &WatchSet) -> Outgoing {
        messages::refused(header(now), ending.reason).into()
    }

    /// By a compact revision, a reason or neither clients know which end it is.
    fn canceled(&self, id: u64, now: Header, ending: Ending) -> Outgoing {
        let (id, header) = (id.cast_signed(), header(now));
        let response = match ending.cause {
            CancelCause::Requested => messages::canceled(id, header),
            CancelCause::Compacted => messages::compacted(id, header, ending.compact_revision),
            _ => WatchResponse {
                cancel_reason: ending.reason,
                ..messages::canceled(id, header)
            },
        };
        response.into()
    }

    fn events(&self, ids: &[u64], now: Header, batch: EventBatch) -> Vec<Outgoing> {
        let ids: Vec<_> = ids.iter().map(|id| id.cast_signed()).collect();
        messages::told(&ids, header(now), batch)
    }

    fn progress(&self, ids: &[u64], now: Header, revision: Revision) -> Vec<Outgoing> {
        let progress = |id| messages::progress(id, header(now), revision).into();
        match ids {
            [] => vec![progress(NO_WATCH)],
            ids => ids.iter().map(|id| progress(id.cast_signed())).collect(),
        }
    }

    /// A client resumes all of them behind the revision that it gets: one that begins later
    /// would begin too early.
    fn answers_progress(&self, watches: &WatchSet, newest: Revision) -> bool {
        let next = Revision(newest.0 + 1);
        let starts = watches.ids().filter_map(|id| watches.next(id));
        starts.max().is_none_or(|latest| latest <= next)
    }

    fn memory_bytes(message: &Outgoing) -> usize {
        message.memory_bytes()
    }

    fn leaderless_max(&self, config: &Config) -> Option<Duration> {
        self.requires_leader
            .then(|| config.election_timeout() * LEADERLESS_ELECTIONS)
    }

    /// Clients begin again elsewhere upon this code, each watch where it was, and end for good upon
    /// any other but INTERNAL: so it is all that they are told, unless what they sent was wrong.
    fn last_words(&self, end: &End, _: Header, _: &WatchSet) -> LastWords<Self> {
        vec![Err(match end {
            End::Gone => return Vec::new(),
            End::Broken(status) => unreadable(status),
            End::TooSlow(_) | End::InTheWay => {
                Status::unavailable("etcdserver: the client does not read its watches")
            }
            End::TooLarge => {
                Status::unavailable("etcdserver: a revision is too large to be sent whole")
            }
            End::Stopping | End::Removed => EtcdError::Stopped.into(),
            End::NoLeader => EtcdError::NoLeader.into(),
            End::Unserved(reason) => Status::unavailable(format!("etcdserver: {reason}")),
        })]
    }
}

fn asked_for(request: &WatchCreateRequest) -> Create {
    let create = messages::Create::new(request);
    let start = u64::try_from(request.start_revision).unwrap_or_default();
    Create {
        id: (request.watch_id != 0).then(|| own_id(request.watch_id)),
        cluster_id: 0,
        start: Revision(start),
        // What is said under this id is said of all watches of the stream.
        progress_notify: request.progress_notify && request.watch_id != NO_WATCH,
        in_parts: request.fragment,
        spec: create.map(|it| it.spec).map_err(|it| it.to_string()),
    }
}

/// What is wrong with what a client sent, as etcd's server says it.
fn unreadable(status: &Status) -> Status {
    match status.code() {
        // It took too long to arrive, or too much came so at a time: another try may go well.
        Code::ResourceExhausted => Status::unavailable(format!("etcdserver: {}", status.message())),
        Code::OutOfRange => Status::resource_exhausted(status.message()),
        _ => status.clone(),
    }
}

/// A client may choose negative ids: each is another number here.
fn own_id(id: i64) -> u64 {
    id.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use dengine_kv::watch::StreamId;

    use super::*;

    fn etcd() -> Etcd {
        Etcd {
            ids: WatchIds::default(),
            requires_leader: false,
        }
    }

    fn no_watches() -> WatchSet {
        WatchSet::new(StreamId(1), 0)
    }

    fn now() -> Header {
        Header {
            revision: Revision(9),
            ..Header::default()
        }
    }

    /// A client that reconnects before it got events would have lost those in between.
    #[test]
    fn a_watch_of_the_next_revision_is_created_right_before_it() {
        let created = |asked, first| {
            let response = etcd().created(0, now(), Revision(asked), Revision(first));
            response.response.header.map(|it| it.revision)
        };
        assert_eq!(created(0, 8), Some(7));
        assert_eq!(created(3, 3), Some(9));
    }

    #[test]
    fn a_watch_that_does_not_begin_is_created_and_cancelled() {
        let asked = asked_for(&WatchCreateRequest {
            key: "b".into(),
            range_end: "a".into(),
            ..WatchCreateRequest::default()
        });
        let reason = asked.spec.expect_err("the range is empty");
        let ending = Ending::new(CancelCause::Invalid, reason, Revision(0));
        let refused = etcd().refused(None, now(), ending, &no_watches()).response;
        assert!(refused.created && refused.canceled);
        assert_eq!(refused.watch_id, NO_WATCH);
        assert_eq!(refused.cancel_reason, "mvcc: watcher range is empty");
    }

    /// Its progress was that of all, of which others had not got everything.
    #[test]
    fn a_watch_that_is_numbered_as_all_are_is_sent_no_progress() {
        let wants_progress = |watch_id| {
            let request = WatchCreateRequest {
                progress_notify: true,
                watch_id,
                ..WatchCreateRequest::default()
            };
            asked_for(&request).progress_notify
        };
        assert!(wants_progress(0) && wants_progress(-2));
        assert!(!wants_progress(NO_WATCH));
    }

    #[test]
    fn the_end_of_a_watch_says_which_it_is() {
        let canceled = |cause, compact_revision| {
            let ending = Ending {
                compact_revision: Revision(compact_revision),
                ..Ending::new(cause, "words", Revision(3))
            };
            let canceled = etcd().canceled(2, now(), ending).response;
            assert!(canceled.canceled && !canceled.created);
            (canceled.compact_revision, canceled.cancel_reason)
        };
        assert_eq!(canceled(CancelCause::Requested, 0), (0, String::new()));
        assert_eq!(canceled(CancelCause::Compacted, 5), (5, String::new()));
        let words = "words".to_owned();
        assert_eq!(canceled(CancelCause::Unavailable, 0), (0, words));
    }

    /// clientv3 begins again upon UNAVAILABLE, and ends for good upon anything else.
    #[test]
    fn a_stream_ends_so_that_its_client_begins_again() {
        let ends = [
            End::TooSlow(Duration::ZERO),
            End::InTheWay,
            End::TooLarge,
            End::Stopping,
            End::Removed,
            End::NoLeader,
            End::Unserved("installing".to_owned()),
        ];
        for end in ends {
            let mut words = etcd().last_words(&end, now(), &no_watches());
            let status = words.pop().expect("it has last words").unwrap_err();
            assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
            assert!(words.is_empty());
        }
    }

    /// With no status, or any that is not true, its other watches ended for good.
    #[test]
    fn what_a_client_sent_is_called_wrong_only_if_it_was() {
        for (status, code) in [
            (
                Status::resource_exhausted("it did not arrive"),
                Code::Unavailable,
            ),
            (
                Status::out_of_range("it is too large"),
                Code::ResourceExhausted,
            ),
            (Status::internal("it is no request"), Code::Internal),
        ] {
            let end = End::Broken(status);
            let mut words = etcd().last_words(&end, now(), &no_watches());
            let said = words.pop().expect("it has last words").unwrap_err();
            assert_eq!(said.code(), code, "{said}");
        }
    }

    #[test]
    fn only_a_client_that_requires_a_leader_is_left_without_one() {
        let config = Config::default();
        assert_eq!(etcd().leaderless_max(&config), None);
        let requires_leader = Etcd {
            requires_leader: true,
            ..etcd()
        };
        let most = requires_leader.leaderless_max(&config);
        assert_eq!(most, Some(3 * config.election_timeout()));
    }
}
