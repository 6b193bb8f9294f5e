//! Watches: changes in their order, resumed over any number of streams and members.

use std::sync::Arc;

use dengine_api::v1::{
    self, CancelCause, WatchCreate, WatchRequest, WatchResponse, watch_client::WatchClient,
    watch_request,
};
use dengine_client_core::{Broken, Failure as Proof, Operation, WatchCursor};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::{
    call::Shared,
    error::{Error, Failure, Result},
    pool::{RESPONSE_BYTES_MAX, Route},
    types::{KeyRange, KeyValue},
};

/// The one watch of its stream.
const WATCH_ID: u64 = 1;

/// What to watch.
///
/// ```
/// use dengine_client::{KeyRange, WatchQuery};
///
/// let query = WatchQuery::new(KeyRange::prefix("user/")).from_revision(17).previous();
/// # let _ = query;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchQuery {
    create: WatchCreate,
    progress: bool,
}

impl WatchQuery {
    /// All changes of these keys from now on: from the present of the member that is asked, which may be a
    /// little behind what this client has seen elsewhere.
    #[must_use]
    pub fn new(range: KeyRange) -> Self {
        WatchQuery {
            create: WatchCreate {
                watch_id: WATCH_ID,
                key: range.start,
                range_end: range.end,
                // What keeps the watch's place in history from being compacted while nothing happens.
                progress_notify: true,
                fragment: true,
                ..WatchCreate::default()
            },
            progress: false,
        }
    }

    /// Begins at this revision, which may lie in the past, if it is not compacted, or in the future.
    #[must_use]
    pub fn from_revision(mut self, revision: u64) -> Self {
        self.create.start_revision = revision;
        self
    }

    /// With each change the pair as it was before, unless that is compacted.
    #[must_use]
    pub fn previous(mut self) -> Self {
        self.create.prev_kv = true;
        self
    }

    /// Also tells now and then how far the watch is: [`WatchUpdate::Progress`].
    #[must_use]
    pub fn progress(mut self) -> Self {
        self.progress = true;
        self
    }

    /// Leaves out deletions.
    #[must_use]
    pub fn only_puts(mut self) -> Self {
        self.create.no_delete = true;
        self
    }

    /// Leaves out what sets a key.
    #[must_use]
    pub fn only_deletes(mut self) -> Self {
        self.create.no_put = true;
        self
    }
}

impl From<KeyRange> for WatchQuery {
    fn from(range: KeyRange) -> Self {
        WatchQuery::new(range)
    }
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The pair after it. Of a deleted key only `key` and `mod_revision` mean anything.
    pub kv: KeyValue,
    /// The pair before it, if that was asked for, existed and is not compacted.
    pub previous: Option<KeyValue>,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It was set.
    Put,
    /// It was deleted, or expired.
    Delete,
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchUpdate {
    /// Changes, in their order. None was told before, and none between them was left out.
    Events {
        /// All of them, at least one.
        events: Vec<Event>,
        /// Everything up to this revision was told, unless `more`.
        revision: u64,
        /// More changes of `revision` follow in the next update.
        more: bool,
    },
    /// Everything up to this revision was told.
    Progress {
        /// That revision.
        revision: u64,
    },
}

/// A watch. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    query: WatchQuery,
    cursor: WatchCursor,
    stream: Option<Stream>,
    lane: usize,
    failures: usize,
}

#[derive(Debug)]
struct Stream {
    route: Route,
    responses: Streaming<WatchResponse>,
    /// The stream of requests stays open as long as this.
    _requests: mpsc::Sender<WatchRequest>,
}

impl Watch {
    pub(crate) async fn begin(shared: Arc<Shared>, query: WatchQuery, lane: usize) -> Result<Self> {
        let mut watch = Watch {
            cursor: WatchCursor::new(query.create.start_revision),
            shared,
            query,
            stream: None,
            lane,
            failures: 0,
        };
        watch.query.create.cluster_id = watch.shared.seen().cluster_id;
        while watch.stream.is_none() {
            if let Err(failure) = watch.open().await {
                watch.pause(failure).await?;
            }
        }
        Ok(watch)
    }

    /// The first revision that was not told completely: where another watch would have to begin.
    #[must_use]
    pub fn next_revision(&self) -> u64 {
        self.cursor.next_revision()
    }

    /// Waits for the next update. When a member fails, the watch goes on at another one from where it was,
    /// within the client's [`RetryPolicy`](crate::RetryPolicy). After an error that is
    /// [`retryable`](Error::retryable), calling again goes on trying. May be dropped at any time without
    /// losing an update.
    ///
    /// # Errors
    /// `Compacted` if what follows is gone; `Unavailable` if no member could be reached for a while.
    pub async fn next(&mut self) -> Result<WatchUpdate> {
        loop {
            let failure = match self.receive().await {
                Ok(Some(update)) => return Ok(update),
                Ok(None) => continue,
                Err(failure) => failure,
            };
            if let Some(stream) = self.stream.take() {
                self.leave(stream.route, &failure);
            }
            self.pause(failure).await?;
        }
    }

    /// Goes on elsewhere, as far as it is up to the member that it does not go on here.
    fn leave(&self, route: Route, failure: &Failure) {
        if failure.proof.unhealthy() {
            self.shared.pool.cool(route);
        }
        if failure.proof.serves_nobody() {
            self.shared.pool.leave_watching(route);
        }
    }

    /// Pauses if the watch may go on after this failure.
    async fn pause(&mut self, failure: Failure) -> Result<()> {
        let policy = self.shared.options.retry;
        if !failure.proof.may_pass(Operation::Read) || self.failures >= policy.retries_max {
            self.failures = 0;
            return Err(failure.error);
        }
        tracing::debug!(error = %failure.error, "the watch broke off, will resume");
        let delay = policy.delay(self.failures, rand::random());
        self.failures += 1;
        self.lane += 1;
        sleep(delay).await;
        Ok(())
    }

    /// The next response, if it says something to the caller.
    async fn receive(&mut self) -> std::result::Result<Option<WatchUpdate>, Failure> {
        if self.stream.is_none() {
            self.open().await?;
        }
        let stream = self.stream.as_mut().expect("it was just opened");
        let response = answered(stream.responses.message().await)?;
        if response.canceled {
            return Err(cancelled(&response));
        }
        self.accept(response).map_err(|broken| broke(&broken))
    }

    fn accept(
        &mut self,
        response: WatchResponse,
    ) -> std::result::Result<Option<WatchUpdate>, Broken> {
        let header = response
            .header
            .ok_or_else(|| Broken("a response without header".to_owned()))?;
        let revision = header.revision;
        if response.events.is_empty() {
            self.cursor.progress(revision)?;
            self.saw(&header);
            return Ok(self
                .query
                .progress
                .then_some(WatchUpdate::Progress { revision }));
        }
        let events = events(response.events)?;
        let revisions = events.iter().map(|event| event.kv.mod_revision);
        let told = self.cursor.events(revisions, revision, response.fragment)?;
        self.saw(&header);
        let events: Vec<_> = events.into_iter().skip(told).collect();
        Ok((!events.is_empty()).then_some(WatchUpdate::Events {
            events,
            revision,
            more: response.fragment,
        }))
    }

    fn saw(&mut self, header: &v1::ResponseHeader) {
        self.failures = 0;
        self.shared.saw(header.cluster_id, header.revision);
    }

    /// Opens a stream and begins the watch on it, where it was.
    async fn open(&mut self) -> std::result::Result<(), Failure> {
        let (route, channel) = self.shared.pool.watch(self.lane);
        let (requests, outgoing) = mpsc::channel(1);
        let create = WatchCreate {
            start_revision: self.cursor.resume(),
            ..self.query.create.clone()
        };
        let request = WatchRequest {
            request: Some(watch_request::Request::Create(create)),
        };
        requests
            .try_send(request)
            .expect("the channel has room for one");
        let mut client = WatchClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
        let limit = self.shared.options.request_timeout;
        let opening = async {
            let answer = client.watch(ReceiverStream::new(outgoing)).await;
            let mut responses = answered(answer.map(|response| Some(response.into_inner())))?;
            let first = answered(responses.message().await)?;
            Ok((responses, first))
        };
        let opened = match timeout(limit, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::deadline(Operation::Read, limit)),
        };
        let (responses, first) = opened.inspect_err(|failure| self.leave(route, failure))?;
        self.begun(&first)
            .inspect_err(|failure| self.leave(route, failure))?;
        self.stream = Some(Stream {
            route,
            responses,
            _requests: requests,
        });
        Ok(())
    }

    fn begun(&mut self, first: &WatchResponse) -> std::result::Result<(), Failure> {
        if first.canceled {
            return Err(cancelled(first));
        }
        if !first.created {
            return Err(broke(&Broken("the watch was not created".to_owned())));
        }
        self.cursor
            .created(first.resume_revision)
            .map_err(|broken| broke(&broken))?;
        if let Some(header) = &first.header {
            // From here on only this cluster will do.
            self.query.create.cluster_id = header.cluster_id;
        }
        Ok(())
    }
}

/// What came of the stream; that it ended is a failure too.
fn answered<T>(answer: std::result::Result<Option<T>, Status>) -> std::result::Result<T, Failure> {
    match answer {
        Ok(Some(it)) => Ok(it),
        Ok(None) => Err(unavailable("the member ended the watch")),
        Err(status) => Err(Failure::from_status(Operation::Read, &status)),
    }
}

fn unavailable(message: &str) -> Failure {
    Failure {
        error: Error::Unavailable {
            message: message.to_owned(),
            leader: None,
        },
        proof: Proof::NotServed { leader: None },
    }
}

fn broke(broken: &Broken) -> Failure {
    Failure {
        error: Error::Unexpected {
            code: Code::Internal,
            message: format!("the watch broke its order: {}", broken.0),
        },
        proof: Proof::Broken,
    }
}

/// Why the server ended the watch.
fn cancelled(response: &WatchResponse) -> Failure {
    let message = response.cancel_reason.clone();
    let refused = |error| Failure {
        error,
        proof: Proof::Refused,
    };
    match response.cancel_cause() {
        CancelCause::Compacted => refused(Error::Compacted {
            compact_revision: response.compact_revision,
        }),
        CancelCause::Invalid | CancelCause::TooLarge => refused(Error::InvalidRequest { message }),
        CancelCause::TooMany => Failure {
            error: Error::Overloaded { message },
            proof: Proof::Overloaded,
        },
        CancelCause::TooSlow
        | CancelCause::Unavailable
        | CancelCause::Requested
        | CancelCause::Unspecified => unavailable(&message),
    }
}

fn events(events: Vec<v1::Event>) -> std::result::Result<Vec<Event>, Broken> {
    events
        .into_iter()
        .map(|event| {
            let kind = match event.kind() {
                v1::event::Kind::Put => EventKind::Put,
                v1::event::Kind::Delete => EventKind::Delete,
                v1::event::Kind::Unspecified => {
                    return Err(Broken("an event of an unknown kind".to_owned()));
                }
            };
            let kv = event
                .kv
                .ok_or_else(|| Broken("an event without its key".to_owned()))?;
            Ok(Event {
                kind,
                kv: kv.into(),
                previous: event.prev_kv.map(KeyValue::from),
            })
        })
        .collect()
}
