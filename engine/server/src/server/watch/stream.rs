//! The watches of one client: one task that tells them in order, and the stream that the client
//! reads.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;

use dengine_kv::watch::{Addressed, Delivery, EventBatch, WatchSet, WatchSpec, Work};
use dengine_kv::{ReadError, Stamp};
use dengine_protocol::checks::status::request_status;
use dengine_protocol::checks::watch::{self as messages, Ending};
use dengine_protocol::v1::watch_request::Request as Wanted;
use dengine_protocol::v1::{
    CancelCause, Event, KeyValue, WatchCreate, WatchRequest, WatchResponse,
};
use dengine_types::Revision;
use futures::{Stream, StreamExt, stream};
use metrics::{counter, gauge};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::backlog::{Backlog, Held};
use super::hub::PageError;
use super::places::{Connection, Place};
use super::{LOOK_EVERY, OPEN_BYTES, WatchShared, no_watch};
use crate::connections::{self, give_way};
use crate::node::Lifecycle;
use crate::server::turns::Whose;
use crate::telemetry::metrics as names;

/// Messages that wait for a client to read them.
const QUEUED_MESSAGES: usize = 2;

/// What is said last, behind everything that is queued: it has room even if the queue has none.
type LastWords = Vec<Result<WatchResponse, Status>>;

/// Tells the watches of one stream.
pub(super) struct StreamTask {
    shared: Arc<WatchShared>,
    /// Whose turns it reads history in.
    whose: Whose,
    connection: Connection,
    watches: WatchSet,
    /// One for each of them.
    active: BTreeMap<u64, Active>,
    /// Says that there may be new history.
    changed: watch::Receiver<()>,
    out: mpsc::Sender<(WatchResponse, Held)>,
    backlog: Arc<Backlog>,
    /// A client asked how far all of them are.
    progress_wanted: bool,
    /// Since when the member cannot answer for its state being recent.
    cut_off_since: Option<Instant>,
}

/// What a watch of this stream has besides its place in history.
struct Active {
    progress_notify: bool,
    told_at: Instant,
    _place: Place,
    _counted: Counted,
}

/// Counts a watch for as long as it is there.
struct Counted;

impl Counted {
    fn up() -> Self {
        gauge!(names::WATCHES).increment(1);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        gauge!(names::WATCHES).decrement(1);
    }
}

/// Why the stream ends.
enum End {
    /// The client has gone, or is done.
    Gone,
    /// The client does not read.
    TooSlow,
    /// The same, and others wait for what it holds.
    InTheWay,
    /// The member does not serve any more.
    Unavailable(&'static str),
}

/// What happened.
enum Turn {
    Requested(Option<WatchRequest>),
    /// There may be new work.
    Changed,
    /// There is room for the work that there is.
    Room(Held),
    Look,
    GivenUp,
    Stop,
}

impl StreamTask {
    /// Serves `requests` until either side ends it.
    pub(super) fn start(
        shared: Arc<WatchShared>,
        on: &connections::Connection,
        connection: Connection,
        place: Place,
        backlog: Arc<Backlog>,
        requests: Streaming<WatchRequest>,
    ) -> impl Stream<Item = Result<WatchResponse, Status>> + Send + use<> {
        let (out, queued) = mpsc::channel(QUEUED_MESSAGES);
        let (last, words) = oneshot::channel();
        let task = Self {
            changed: shared.hub.subscribe(),
            shared,
            whose: Some(on.source().address()),
            connection,
            watches: WatchSet::new(OPEN_BYTES),
            active: BTreeMap::new(),
            out,
            backlog,
            progress_wanted: false,
            cut_off_since: None,
        };
        on.spawn(async move {
            // Nobody listens any more: nothing is left to say.
            let _ = last.send(task.run(requests).await);
        });
        let last_words = stream::once(async move { words.await.unwrap_or_default() });
        ReceiverStream::new(queued)
            // From here on it counts as a part of the body.
            .map(|(message, _held)| Ok(message))
            .chain(last_words.flat_map(stream::iter))
            // As long as messages may wait for the client, they count, told or not.
            .inspect(move |_| {
                let _ = &place;
            })
    }

    async fn run(mut self, mut requests: Streaming<WatchRequest>) -> LastWords {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (stop, backlog) = (self.shared.stop.clone(), Arc::clone(&self.backlog));
        loop {
            // What it is, is looked at again once there is room: meanwhile nothing of history is
            // held for it.
            let wants_room = self.shared.hub.work(&mut self.watches).is_some();
            let turn = tokio::select! {
                biased;
                () = stop.cancelled() => Turn::Stop,
                () = backlog.given_up() => Turn::GivenUp,
                request = requests.message() => Turn::Requested(request.unwrap_or_default()),
                _ = look.tick() => Turn::Look,
                room = backlog.room(), if wants_room => Turn::Room(room),
                changed = self.changed.changed(), if !wants_room => match changed {
                    Ok(()) => Turn::Changed,
                    Err(_) => Turn::Stop,
                },
            };
            if let Err(end) = self.turn(turn).await {
                return self.last_words(&end);
            }
            // Also a stream that always has something to do lets others have their turn.
            poll_fn(|context| give_way(context)).await;
        }
    }

    async fn turn(&mut self, turn: Turn) -> Result<(), End> {
        match turn {
            Turn::Requested(None) => Err(End::Gone),
            Turn::Requested(Some(request)) => self.request(request).await,
            Turn::Changed => Ok(()),
            Turn::Room(_room) => match self.shared.hub.work(&mut self.watches) {
                Some(work) => self.work(work).await,
                None => Ok(()),
            },
            Turn::Look => self.look().await,
            Turn::GivenUp => Err(End::InTheWay),
            Turn::Stop => Err(End::Unavailable("this member is shutting down")),
        }?;
        self.answer_progress().await
    }

    async fn request(&mut self, request: WatchRequest) -> Result<(), End> {
        match request.request {
            Some(Wanted::Create(create)) => self.create(&create).await,
            Some(Wanted::Cancel(cancel)) => {
                self.end(cancel.watch_id, |resume| {
                    Ending::new(CancelCause::Requested, "as requested", resume)
                })
                .await
            }
            Some(Wanted::Progress(_)) => {
                self.progress_wanted = true;
                Ok(())
            }
            // From a newer client; it is told that nothing came of it by the silence.
            None => Ok(()),
        }
    }

    async fn create(&mut self, create: &WatchCreate) -> Result<(), End> {
        let watch_id = match create.watch_id {
            0 => self.free_id(),
            chosen => chosen,
        };
        match self.begin(watch_id, create) {
            Ok((spec, first, active)) => {
                let header = self.shared.headers.now();
                let hub = &self.shared.hub;
                self.watches
                    .insert(watch_id, spec, first, &mut hub.wanted());
                self.active.insert(watch_id, active);
                self.send(messages::created(watch_id, header, first)).await
            }
            Err(ending) => {
                let header = self.shared.headers.now();
                self.send(messages::canceled(watch_id, header, ending))
                    .await
            }
        }
    }

    /// An id that no watch of the stream has; clients may have chosen any of them.
    fn free_id(&self) -> u64 {
        let mut free = 1;
        for id in self.watches.ids() {
            if id != free {
                break;
            }
            free += 1;
        }
        free
    }

    /// What is to be watched, from which revision on.
    fn begin(
        &self,
        watch_id: u64,
        create: &WatchCreate,
    ) -> Result<(WatchSpec, Revision, Active), Ending> {
        let asked = Revision(create.start_revision);
        let refuse = |cause, reason: String| Err(Ending::new(cause, reason, asked));
        let shared = &self.shared;
        let status = shared.node.status();
        if status.lifecycle == Lifecycle::Waiting {
            let reason = "this member belongs to no cluster yet".to_owned();
            return refuse(CancelCause::Unavailable, reason);
        }
        if create.cluster_id != 0 && create.cluster_id != status.cluster_id.0 {
            let reason = format!("this member is of cluster {}", status.cluster_id);
            return refuse(CancelCause::Unavailable, reason);
        }
        if self.watches.contains(watch_id) {
            let reason = format!("the stream has a watch {watch_id} already");
            return refuse(CancelCause::Invalid, reason);
        }
        let spec = match messages::spec(create, &shared.limits.of_requests()) {
            Ok(spec) => spec,
            Err(status) => return refuse(CancelCause::Invalid, status.message().to_owned()),
        };
        let place = match shared.watches.take(self.connection) {
            Ok(place) => place,
            Err(full) => return refuse(CancelCause::TooMany, no_watch(full)),
        };
        let first = match asked {
            Revision(0) => Revision(shared.hub.revision().0 + 1),
            asked => asked,
        };
        let active = Active {
            progress_notify: create.progress_notify,
            told_at: Instant::now(),
            _place: place,
            _counted: Counted::up(),
        };
        Ok((spec, first, active))
    }

    /// Gets a part of history, if it has to be got, and tells it.
    async fn work(&mut self, work: Work) -> Result<(), End> {
        match work {
            Work::Deliver(page) => {
                let telling = self.watches.deliver(page);
                self.tell(telling).await
            }
            Work::ReadPast(at, mark) => match self.shared.hub.past(self.whose, at, mark).await {
                Ok(page) => {
                    let telling = self.watches.deliver(page);
                    self.tell(telling).await
                }
                Err(error) => self.cannot_read_past(at, &error).await,
            },
            Work::ReadAlone(id, query) => {
                let from = query.from;
                match self.shared.hub.alone(self.whose, query).await {
                    Ok(changes) => {
                        let telling = self.watches.deliver_alone(id, from, changes);
                        self.tell(telling).await
                    }
                    Err(error) => self.end(id, |resume| unread(&error, resume)).await,
                }
            }
        }
    }

    /// Ends those who cannot go on from there.
    async fn cannot_read_past(&mut self, at: Stamp, error: &PageError) -> Result<(), End> {
        let before = match error {
            PageError::Read(ReadError::Compacted { compacted, .. }) => Stamp::start_of(*compacted),
            PageError::Read(
                ReadError::Future { .. } | ReadError::Stopped { .. } | ReadError::Store(_),
            )
            | PageError::Request(_) => at.next(),
        };
        let ids: Vec<_> = self.watches.behind_before(before).collect();
        for id in ids {
            self.end(id, |resume| unread(error, resume)).await?;
        }
        Ok(())
    }

    /// Tells watches what a part of history holds for them.
    async fn tell(&mut self, mut telling: Delivery) -> Result<(), End> {
        while let Some(slice) = self.watches.slice(&mut telling) {
            for Addressed { ids, messages } in slice {
                match messages {
                    Ok(told) => self.send_told(&ids, told).await?,
                    Err(revision) => self.end_too_large(&ids, revision).await?,
                }
            }
        }
        self.watches.finish(telling, &mut self.shared.hub.wanted());
        Ok(())
    }

    async fn send_told(&mut self, ids: &[u64], told: Vec<EventBatch>) -> Result<(), End> {
        let header = self.shared.headers.now();
        for message in told {
            let reached = message.reached();
            self.send(messages::told(ids, header, message)).await?;
            for id in ids {
                self.watches.delivered(*id, reached);
            }
        }
        self.told(ids);
        Ok(())
    }

    /// They need no progress for a while.
    fn told(&mut self, ids: &[u64]) {
        let now = Instant::now();
        for id in ids {
            if let Some(active) = self.active.get_mut(id) {
                active.told_at = now;
            }
        }
    }

    async fn end_too_large(&mut self, ids: &[u64], revision: Revision) -> Result<(), End> {
        for id in ids {
            let reason = format!(
                "revision {revision} has more events than one message holds; watch with `fragment`"
            );
            let cause = CancelCause::TooLarge;
            self.end(*id, |resume| Ending::new(cause, reason, resume))
                .await?;
        }
        Ok(())
    }

    /// Ends a watch, if it is there. `ending` is told the revision to begin again at.
    async fn end(&mut self, id: u64, ending: impl FnOnce(Revision) -> Ending) -> Result<(), End> {
        let resume = self.watches.remove(id, &mut self.shared.hub.wanted());
        self.active.remove(&id);
        let Some(resume) = resume else {
            return Ok(());
        };
        let header = self.shared.headers.now();
        self.send(messages::canceled(id, header, ending(resume)))
            .await
    }

    /// Now and then: progress for those that want it, and whether this member still takes part.
    async fn look(&mut self) -> Result<(), End> {
        self.check_cut_off()?;
        let every = self.shared.limits.watch_progress_interval();
        let due = |it: &Active| it.progress_notify && it.told_at.elapsed() >= every;
        let due = self.active.iter().filter(|(_, it)| due(it));
        let ids: Vec<_> = due.map(|(id, _)| *id).collect();
        let newest = self.shared.hub.revision();
        for (revision, ids) in self.watches.progress_of(ids, newest) {
            self.told(&ids);
            let header = self.shared.headers.now();
            self.send(messages::progress(&ids, header, revision))
                .await?;
        }
        Ok(())
    }

    /// A member that hears of no leader for long tells nothing new, and its clients should ask
    /// another.
    fn check_cut_off(&mut self) -> Result<(), End> {
        if self.shared.node.status().ready {
            self.cut_off_since = None;
            return Ok(());
        }
        let since = *self.cut_off_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.shared.limits.request_timeout() {
            return Err(End::Unavailable(
                "this member has had no contact with a leader for a while",
            ));
        }
        Ok(())
    }

    /// Once all watches were told everything there is.
    async fn answer_progress(&mut self) -> Result<(), End> {
        if !self.progress_wanted {
            return Ok(());
        }
        let newest = self.shared.hub.revision();
        // Pages that are on their way are told first.
        if !self.watches.is_delivered(newest) {
            return Ok(());
        }
        self.progress_wanted = false;
        let header = self.shared.headers.now();
        self.send(messages::progress(&[], header, newest)).await
    }

    /// Queues a message, as soon as there is room, which depends on the client alone, and on a slow
    /// link takes longer.
    async fn send(&self, message: WatchResponse) -> Result<(), End> {
        let patience = self.shared.limits.stream_stall_timeout();
        let held = self.backlog.unread(memory_bytes(&message));
        tokio::select! {
            biased;
            sent = self.out.send((message, held)) => sent.map_err(|_| End::Gone),
            () = self.backlog.given_up() => Err(End::InTheWay),
            () = self.backlog.overdue(patience) => Err(End::TooSlow),
        }
    }

    /// What each watch, and the client, is told in the end.
    fn last_words(&self, end: &End) -> LastWords {
        let (cause, reason, status) = match end {
            End::Gone => return Vec::new(),
            End::TooSlow => {
                let reason = format!(
                    "the client read nothing, or too little, for {:?} \
                     (--stream-stall-timeout-ms); resume at the given revision",
                    self.shared.limits.stream_stall_timeout()
                );
                too_slow(reason)
            }
            End::InTheWay => too_slow(
                "unread watch messages use all memory for them (half of --max-answer-bytes), or \
                 the share of your address; resume at the given revision"
                    .to_owned(),
            ),
            End::Unavailable(reason) => {
                let status = Status::unavailable(*reason);
                (CancelCause::Unavailable, (*reason).to_owned(), status)
            }
        };
        let header = self.shared.headers.now();
        let mut words: LastWords = Vec::with_capacity(self.watches.len() + 1);
        for id in self.watches.ids() {
            let resume = self.watches.next(id).unwrap_or(Revision(0));
            let ending = Ending::new(cause, reason.clone(), resume);
            words.push(Ok(messages::canceled(id, header, ending)));
        }
        words.push(Err(status));
        words
    }
}

impl Drop for StreamTask {
    fn drop(&mut self) {
        self.watches.clear(&mut self.shared.hub.wanted());
    }
}

fn too_slow(reason: String) -> (CancelCause, String, Status) {
    counter!(names::WATCH_STREAMS_SHED_TOTAL).increment(1);
    let status = Status::resource_exhausted(format!("the watch is too slow: {reason}"));
    (CancelCause::TooSlow, reason, status)
}

/// What a message takes while it waits, which of small events is several times what it will be sent
/// as.
fn memory_bytes(message: &WatchResponse) -> usize {
    let pair = |kv: &Option<KeyValue>| kv.as_ref().map_or(0, |kv| kv.key.len() + kv.value.len());
    let event = |it: &Event| size_of::<Event>() + pair(&it.kv) + pair(&it.prev_kv);
    let events: usize = message.events.iter().map(event).sum();
    let ids = size_of_val(message.also_watch_ids.as_slice());
    size_of::<WatchResponse>() + ids + events
}

/// Why a watch ends whose history could not be read.
fn unread(error: &PageError, resume: Revision) -> Ending {
    match error {
        PageError::Read(ReadError::Compacted { compacted, .. }) => Ending {
            compact_revision: *compacted,
            ..Ending::new(CancelCause::Compacted, error.to_string(), resume)
        },
        PageError::Read(error) => Ending::new(CancelCause::Unavailable, error.to_string(), resume),
        PageError::Request(error) => {
            let status = request_status(error);
            Ending::new(CancelCause::Unavailable, status.message(), resume)
        }
    }
}
