//! Watches: changes in their order, resumed over any number of streams and members.

mod shared;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use dengine_protocol::v1::{self, CancelCause, WatchCreate, WatchResponse};
use futures::Stream;
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use self::shared::{Attached, Ended};
use crate::call::ClientShared;
use crate::error::{Error, Failure, Result};
use crate::policy::{Broken, Failure as Proof, Failures, Operation, WatchCursor};
use crate::pool::WatchRoute;
use crate::types::{KeyRange, KeyValue};

pub(crate) use self::shared::SharedStream;

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
    /// All changes of these keys from now on: from the present of the member that is asked, which
    /// may be a little behind what this client has seen elsewhere.
    #[must_use]
    pub fn new(range: KeyRange) -> Self {
        WatchQuery {
            create: WatchCreate {
                key: range.start,
                range_end: range.end,
                // What keeps the watch's place in history from being compacted while nothing
                // happens.
                progress_notify: true,
                fragment: true,
                ..WatchCreate::default()
            },
            progress: false,
        }
    }

    /// Begins at this revision, which may lie in the past, if it is not compacted, or in the
    /// future.
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
    /// Changes, in order, each exactly once and without gaps.
    Events {
        /// All of them, at least one.
        events: Vec<Event>,
        /// All changes up to this revision were delivered, unless `more`.
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

/// A watch. Dropping it ends it. All watches of a [`Client`](crate::Client) and its clones share
/// one stream at each member.
///
/// [`Watch::next`] waits for what comes next; as a [`Stream`] a watch yields the same, and ends
/// behind an error that is not [`retryable`](Error::retryable).
///
/// A watch that is not read for a while falls behind without delaying others, and later resumes
/// where it was.
pub struct Watch {
    shared: Arc<ClientShared>,
    query: WatchQuery,
    cursor: WatchCursor,
    place: Place,
    lane: usize,
    failures: Failures,
    /// As a [`Stream`] it has yielded its last.
    ended: bool,
}

/// Where a watch is.
enum Place {
    Nowhere,
    Opening(Opening),
    At(WatchRoute, Attached),
}

/// The first response at a member, or why there is none; and how long that took.
type Opening = Pin<Box<dyn Future<Output = Opened> + Send>>;
type Opened = (
    WatchRoute,
    std::result::Result<(Attached, WatchResponse), Failure>,
    Duration,
);

impl fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Watch");
        debug.field("query", &self.query);
        debug.field("cursor", &self.cursor);
        debug.finish_non_exhaustive()
    }
}

impl Watch {
    pub(crate) async fn begin(
        shared: Arc<ClientShared>,
        query: WatchQuery,
        lane: usize,
    ) -> Result<Self> {
        let mut watch = Watch {
            cursor: WatchCursor::new(query.create.start_revision),
            shared,
            query,
            place: Place::Nowhere,
            lane,
            failures: Failures::default(),
            ended: false,
        };
        watch.query.create.cluster_id = watch.shared.seen().cluster_id;
        poll_fn(|context| watch.poll_begun(context)).await?;
        Ok(watch)
    }

    /// The first revision that was not told completely: where another watch would have to begin.
    #[must_use]
    pub fn next_revision(&self) -> u64 {
        self.cursor.next_revision()
    }

    /// Whether a member serves it, as far as is known. While none does, [`next`](Self::next) looks
    /// for one.
    #[must_use]
    pub fn is_served(&self) -> bool {
        matches!(self.place, Place::At(..))
    }

    /// Waits for the next update. When a member fails, the watch goes on at another one from where
    /// it was, within the client's [`RetryPolicy`](crate::RetryPolicy). After an error that is
    /// [`retryable`](Error::retryable), calling again goes on trying. May be dropped at any time
    /// without losing an update.
    ///
    /// # Errors
    /// `Compacted` if what follows is gone; `Unavailable` if no member could be reached for a
    /// while.
    pub async fn next(&mut self) -> Result<WatchUpdate> {
        poll_fn(|context| self.poll_update(context)).await
    }

    fn poll_update(&mut self, context: &mut Context<'_>) -> Poll<Result<WatchUpdate>> {
        loop {
            ready!(self.poll_begun(context))?;
            let Place::At(_, attached) = &mut self.place else {
                continue;
            };
            let failure = match ready!(attached.poll_next(context)) {
                Ok(response) if response.canceled => cancelled(&response),
                Ok(response) => match self.accept(response) {
                    Ok(Some(update)) => return Poll::Ready(Ok(update)),
                    Ok(None) => continue,
                    Err(broken) => broke(&broken),
                },
                Err(Ended::Behind) => {
                    tracing::debug!("the watch was not read for a while, will resume");
                    self.open(Duration::ZERO);
                    continue;
                }
                Err(Ended::Cancelled) => unavailable("the member ended the watch"),
                Err(Ended::Failed(failure)) => failure,
            };
            // It was told at once, whenever that was.
            if let Place::At(route, _) = std::mem::replace(&mut self.place, Place::Nowhere) {
                self.failed(&route, failure, Duration::ZERO)?;
            }
        }
    }

    /// Waits until the watch is begun at some member.
    fn poll_begun(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            let opening = match &mut self.place {
                Place::At(..) => return Poll::Ready(Ok(())),
                Place::Opening(opening) => opening,
                Place::Nowhere => {
                    self.open(Duration::ZERO);
                    continue;
                }
            };
            let (route, opened, took) = ready!(opening.as_mut().poll(context));
            let begun = opened.and_then(|(attached, first)| {
                self.begun(&first)?;
                Ok(attached)
            });
            match begun {
                Ok(attached) => {
                    self.shared.pool.answered(route.route());
                    self.place = Place::At(route, attached);
                }
                Err(failure) => self.failed(&route, failure, took)?,
            }
        }
    }

    /// Goes on elsewhere, after a pause, if the watch may go on after this failure, which took so
    /// long.
    fn failed(&mut self, route: &WatchRoute, failure: Failure, took: Duration) -> Result<()> {
        self.place = Place::Nowhere;
        self.leave(route, &failure);
        let limit = self.shared.options.request_timeout;
        let stranger = self.shared.pool.unproven(route.route());
        let failure = failure.at(stranger.filter(|_| took < limit).as_deref());
        let policy = self.shared.options.retry;
        self.failures.add(&failure.proof, took);
        if !failure.proof.may_pass(Operation::Read) || !policy.may_retry(self.failures) {
            self.failures = Failures::default();
            return Err(failure.error);
        }
        tracing::debug!(error = %failure.error, "the watch broke off, will resume");
        let delay = policy.pause(&failure.proof, self.failures, rand::random());
        self.lane += 1;
        self.open(delay);
        Ok(())
    }

    /// Notes what the failure says of the member.
    fn leave(&self, route: &WatchRoute, failure: &Failure) {
        self.shared.pool.failed(route.route(), &failure.proof);
        if failure.proof.serves_nobody() {
            self.shared.pool.leave_watching(route);
        }
    }

    /// Begins to go on where it was.
    fn open(&mut self, after: Duration) {
        let create = WatchCreate {
            start_revision: self.cursor.resume(),
            ..self.query.create.clone()
        };
        let (shared, lane) = (Arc::clone(&self.shared), self.lane);
        self.place = Place::Opening(Box::pin(async move {
            if !after.is_zero() {
                sleep(after).await;
            }
            let began = Instant::now();
            let route = shared.pool.watch(lane);
            let mut attached = route.stream.attach(create);
            let limit = shared.options.request_timeout;
            let first = match timeout(limit, attached.next()).await {
                Ok(Ok(first)) => Ok((attached, first)),
                Ok(Err(Ended::Failed(failure))) => Err(failure),
                Ok(Err(_)) => Err(unavailable("the member ended the watch")),
                Err(_) => Err(Failure::deadline(Operation::Read, limit)),
            };
            (route, first, began.elapsed())
        }));
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
        self.failures = Failures::default();
        self.shared.saw(header.cluster_id, header.revision);
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

impl Stream for Watch {
    type Item = Result<WatchUpdate>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let watch = self.get_mut();
        if watch.ended {
            return Poll::Ready(None);
        }
        let update = ready!(watch.poll_update(context));
        watch.ended = update.as_ref().is_err_and(|error| !error.retryable());
        Poll::Ready(Some(update))
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
