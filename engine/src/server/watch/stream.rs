//! The watches of one client: one task that tells them in order, and the stream that the client reads.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use dengine_api::v1::{
    CancelCause, WatchCreate, WatchRequest, WatchResponse, watch_request::Request as Wanted,
};
use dengine_core::{
    kv::ReadError,
    types::Revision,
    watch::{Misfit, Page, Watch},
};
use dengine_wire::{
    status::request_status,
    watch::{self as messages, Ending},
};
use futures::{Stream, StreamExt, stream};
use metrics::{counter, gauge};
use tokio::{
    sync::{OwnedSemaphorePermit, broadcast, mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{
    LOOK_EVERY, Shared,
    hub::{PAGE_LIMITS, PageError, WantsPrev},
};
use crate::{node::Lifecycle, telemetry::metrics as names};

/// Messages that wait for a client to read them.
const QUEUED_MESSAGES: usize = 2;

/// What is said last, behind everything that is queued: it has room even if the queue has none.
type LastWords = Vec<Result<WatchResponse, Status>>;

/// Tells the watches of one stream.
pub(super) struct StreamTask {
    shared: Arc<Shared>,
    watches: BTreeMap<u64, Active>,
    pages: broadcast::Receiver<Arc<Page>>,
    out: mpsc::Sender<Result<WatchResponse, Status>>,
    /// A client asked how far all of them are.
    progress_wanted: bool,
    /// Since when the member cannot answer for its state being recent.
    cut_off_since: Option<Instant>,
}

/// A watch of this stream.
struct Active {
    watch: Watch,
    progress_notify: bool,
    told_at: Instant,
    _wants_prev: Option<WantsPrev>,
    _place: OwnedSemaphorePermit,
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
    /// The member does not serve any more.
    Unavailable(&'static str),
}

/// What happened.
enum Turn {
    Requested(Option<WatchRequest>),
    Paged(Arc<Page>),
    /// Pages were missed.
    Missed,
    CatchUp,
    Look,
    Stop,
}

impl StreamTask {
    /// Serves `requests` until either side ends it.
    pub(super) fn start(
        shared: Arc<Shared>,
        place: OwnedSemaphorePermit,
        requests: Streaming<WatchRequest>,
    ) -> impl Stream<Item = Result<WatchResponse, Status>> + Send + use<> {
        let (out, queued) = mpsc::channel(QUEUED_MESSAGES);
        let (last, words) = oneshot::channel();
        let task = Self {
            pages: shared.hub.subscribe(),
            shared,
            watches: BTreeMap::new(),
            out,
            progress_wanted: false,
            cut_off_since: None,
        };
        tokio::spawn(async move {
            // Nobody listens any more: nothing is left to say.
            let _ = last.send(task.run(requests).await);
        });
        let last_words = stream::once(async move { words.await.unwrap_or_default() });
        ReceiverStream::new(queued)
            .chain(last_words.flat_map(stream::iter))
            // As long as messages may wait for the client, they count, told or not.
            .inspect(move |_| {
                let _ = &place;
            })
    }

    async fn run(mut self, mut requests: Streaming<WatchRequest>) -> LastWords {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = self.shared.stop.clone();
        loop {
            let behind = self.watches.values().any(|it| !it.watch.is_synced());
            let turn = tokio::select! {
                biased;
                () = stop.cancelled() => Turn::Stop,
                request = requests.message() => Turn::Requested(request.unwrap_or_default()),
                _ = look.tick() => Turn::Look,
                page = self.pages.recv() => match page {
                    Ok(page) => Turn::Paged(page),
                    Err(broadcast::error::RecvError::Lagged(_)) => Turn::Missed,
                    Err(broadcast::error::RecvError::Closed) => Turn::Stop,
                },
                () = std::future::ready(()), if behind => Turn::CatchUp,
            };
            if let Err(end) = self.turn(turn).await {
                return self.last_words(&end);
            }
        }
    }

    async fn turn(&mut self, turn: Turn) -> Result<(), End> {
        match turn {
            Turn::Requested(None) => Err(End::Gone),
            Turn::Requested(Some(request)) => self.request(request).await,
            Turn::Paged(page) => self.page(&page).await,
            Turn::Missed => {
                self.watches.values_mut().for_each(|it| it.watch.missed());
                Ok(())
            }
            Turn::CatchUp => self.catch_up().await,
            Turn::Look => self.look().await,
            Turn::Stop => Err(End::Unavailable("this member is shutting down")),
        }?;
        self.answer_progress().await
    }

    async fn request(&mut self, request: WatchRequest) -> Result<(), End> {
        match request.request {
            Some(Wanted::Create(create)) => self.create(&create).await,
            Some(Wanted::Cancel(cancel)) => match self.watches.get(&cancel.watch_id) {
                Some(active) => {
                    let resume = active.watch.next();
                    let ending = Ending::new(CancelCause::Requested, "as requested", resume);
                    self.cancel(cancel.watch_id, ending).await
                }
                None => Ok(()),
            },
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
            Ok(active) => {
                let header = self.shared.headers.now();
                let first = active.watch.next();
                self.watches.insert(watch_id, active);
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
        for id in self.watches.keys() {
            if *id != free {
                break;
            }
            free += 1;
        }
        free
    }

    fn begin(&self, watch_id: u64, create: &WatchCreate) -> Result<Active, Ending> {
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
        if self.watches.contains_key(&watch_id) {
            let reason = format!("the stream has a watch {watch_id} already");
            return refuse(CancelCause::Invalid, reason);
        }
        let spec = match messages::spec(create, &shared.limits.of_requests()) {
            Ok(spec) => spec,
            Err(status) => return refuse(CancelCause::Invalid, status.message().to_owned()),
        };
        let Ok(place) = Arc::clone(&shared.watches).try_acquire_owned() else {
            let reason = format!(
                "this member has {} watches already; ask another, or raise --max-watches",
                shared.limits.max_watches
            );
            return refuse(CancelCause::TooMany, reason);
        };
        let first = match asked {
            Revision(0) => Revision(shared.hub.revision().0 + 1),
            asked => asked,
        };
        Ok(Active {
            _wants_prev: spec.prev_kv.then(|| shared.hub.wants_prev()),
            watch: Watch::new(spec, first),
            progress_notify: create.progress_notify,
            told_at: Instant::now(),
            _place: place,
            _counted: Counted::up(),
        })
    }

    /// New history, for those that are at its end.
    async fn page(&mut self, page: &Page) -> Result<(), End> {
        let synced = self.watches.iter().filter(|(_, it)| it.watch.is_synced());
        let ids: Vec<_> = synced.map(|(id, _)| *id).collect();
        for id in ids {
            self.tell(id, page).await?;
        }
        Ok(())
    }

    /// One page for each watch that is behind.
    async fn catch_up(&mut self) -> Result<(), End> {
        let behind = self.watches.iter().filter(|(_, it)| !it.watch.is_synced());
        let ids: Vec<_> = behind.map(|(id, _)| *id).collect();
        for id in ids {
            let newest = self.shared.hub.revision();
            let Some(query) = self.active(id).watch.catch_up(newest, PAGE_LIMITS) else {
                continue;
            };
            match self.shared.hub.read(query).await {
                Ok(page) => self.tell(id, &page).await?,
                Err(error) => self.cannot_read(id, error).await?,
            }
        }
        Ok(())
    }

    async fn cannot_read(&mut self, id: u64, error: PageError) -> Result<(), End> {
        let resume = self.watches[&id].watch.next();
        let ending = match error {
            PageError::Read(ReadError::Compacted { compacted, .. }) => Ending {
                compact_revision: compacted,
                ..Ending::new(CancelCause::Compacted, error.to_string(), resume)
            },
            PageError::Read(error) => {
                Ending::new(CancelCause::Unavailable, error.to_string(), resume)
            }
            PageError::Request(error) => {
                let status = request_status(&error);
                Ending::new(CancelCause::Unavailable, status.message(), resume)
            }
        };
        self.cancel(id, ending).await
    }

    /// Tells one watch what a page holds for it.
    async fn tell(&mut self, id: u64, page: &Page) -> Result<(), End> {
        let active = self.active(id);
        let told = match active.watch.cut(page) {
            Ok(told) => told,
            Err(Misfit::Gap) => {
                active.watch.missed();
                return Ok(());
            }
            Err(Misfit::TooLarge { revision }) => {
                let reason = format!(
                    "revision {revision} has more events than one message holds; watch with `fragment`"
                );
                let resume = active.watch.next();
                return self
                    .cancel(id, Ending::new(CancelCause::TooLarge, reason, resume))
                    .await;
            }
        };
        let header = self.shared.headers.now();
        for message in told {
            let (revision, fragment) = (message.revision, message.fragment);
            self.send(messages::told(id, header, message)).await?;
            let active = self.active(id);
            active.watch.told(revision, fragment);
            active.told_at = Instant::now();
        }
        self.active(id).watch.finish(page);
        Ok(())
    }

    async fn cancel(&mut self, id: u64, ending: Ending) -> Result<(), End> {
        self.watches.remove(&id);
        let header = self.shared.headers.now();
        self.send(messages::canceled(id, header, ending)).await
    }

    /// Now and then: progress for those that want it, and whether this member still takes part.
    async fn look(&mut self) -> Result<(), End> {
        self.check_cut_off()?;
        let every = self.shared.limits.watch_progress_interval();
        let due = |it: &Active| it.progress_notify && it.told_at.elapsed() >= every;
        let due = self.watches.iter().filter(|(_, it)| due(it));
        let ids: Vec<_> = due.map(|(id, _)| *id).collect();
        for id in ids {
            let newest = self.shared.hub.revision();
            let active = self.active(id);
            if let Some(revision) = active.watch.progress(newest) {
                active.told_at = Instant::now();
                let header = self.shared.headers.now();
                self.send(messages::progress(id, header, revision)).await?;
            }
        }
        Ok(())
    }

    /// A member that hears of no leader for long tells nothing new, and its clients should ask another.
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
        if !self.watches.values().all(|it| it.watch.is_told(newest)) {
            return Ok(());
        }
        self.progress_wanted = false;
        let header = self.shared.headers.now();
        self.send(messages::progress(0, header, newest)).await
    }

    fn active(&mut self, id: u64) -> &mut Active {
        self.watches
            .get_mut(&id)
            .expect("only this task adds and removes watches, and it has the id from among them")
    }

    /// Queues a message, as soon as there is room, which depends on the client alone.
    async fn send(&self, message: WatchResponse) -> Result<(), End> {
        let patience: Duration = self.shared.limits.stream_stall_timeout();
        match timeout(patience, self.out.send(Ok(message))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Gone),
            Err(_) => Err(End::TooSlow),
        }
    }

    /// What each watch, and the client, is told in the end.
    fn last_words(&self, end: &End) -> LastWords {
        let (cause, reason, status) = match end {
            End::Gone => return Vec::new(),
            End::TooSlow => {
                let reason = format!(
                    "nothing was read for {:?} (--stream-stall-timeout-ms); begin anew at the revision named",
                    self.shared.limits.stream_stall_timeout()
                );
                counter!(names::WATCH_STREAMS_SHED_TOTAL).increment(1);
                let status = Status::resource_exhausted(format!("the watch is too slow: {reason}"));
                (CancelCause::TooSlow, reason, status)
            }
            End::Unavailable(reason) => {
                let status = Status::unavailable(*reason);
                (CancelCause::Unavailable, (*reason).to_owned(), status)
            }
        };
        let header = self.shared.headers.now();
        let mut words: LastWords = Vec::with_capacity(self.watches.len() + 1);
        for (id, active) in &self.watches {
            let ending = Ending::new(cause, reason.clone(), active.watch.next());
            words.push(Ok(messages::canceled(*id, header, ending)));
        }
        words.push(Err(status));
        words
    }
}
