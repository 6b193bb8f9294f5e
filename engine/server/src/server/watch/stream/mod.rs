//! The watches of one client: one task that tells them in order, and the stream that the client
//! reads.

mod outbox;
mod whole;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;

use dengine_kv::watch::{Addressed, Delivery, EventBatch, Reached, WatchSet, WatchSpec, Work};
use dengine_kv::{ChangesQuery, ReadError, Stamp};
use dengine_protocol::checks::status::request_status;
use dengine_protocol::checks::watch::Ending;
use dengine_protocol::v1::CancelCause;
use dengine_types::Revision;
use futures::{Stream, StreamExt, stream};
use metrics::{counter, gauge};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::{Status, Streaming};

use self::outbox::Outbox;
use super::backlog::{Backlog, Held};
use super::dialect::{Asked, Create, Dialect, End, LastWords};
use super::hub::{Listener, PageError};
use super::parts::{Parts, Rest};
use super::{LOOK_EVERY, OPEN_BYTES, WatchShared, no_watch};
use crate::connections::{self, give_way};
use crate::node::Lifecycle;
use crate::server::places::{Connection, Place};
use crate::server::turns::{self, Whose};
use crate::telemetry::metrics as names;

/// A watch takes one place more for each so many bytes of its keys.
const KEY_BYTES_OF_A_PLACE: usize = 4 << 10;

/// Tells the watches of one stream.
pub(super) struct StreamTask<D: Dialect> {
    dialect: D,
    shared: Arc<WatchShared>,
    /// Whose turns it reads history in.
    whose: Whose,
    connection: Connection,
    watches: WatchSet,
    /// One for each of them.
    active: BTreeMap<u64, Active>,
    /// Those that are not among the watches until another has the whole of a revision, each with
    /// where it then begins again. Meanwhile the client gets no answers.
    aside: BTreeMap<u64, (WatchSpec, Revision)>,
    /// The turn to hold more of a revision than the member's bound has room for.
    whole_turn: Option<turns::Turn>,
    /// Says that there may be new history.
    listener: Listener,
    outbox: Outbox<D::Response>,
    /// How far watches come by what is in there.
    reached: Vec<(u64, Reached)>,
    backlog: Arc<Backlog>,
    /// A client asked how far all of them are.
    progress_wanted: bool,
    /// The client asks for nothing more, and wants to be told what it has asked for.
    asks_no_more: bool,
    /// Since when the member cannot answer for its state being recent.
    cut_off_since: Option<Instant>,
    /// It was taken for removed when it was last looked: a peer that knows no better may say so
    /// until the leader is heard.
    was_removed: bool,
}

/// What a watch of this stream has besides its place in history.
struct Active {
    progress_notify: bool,
    told_at: Instant,
    /// Whether a large revision is sent in parts, if all of these are to follow each other.
    in_parts: bool,
    /// The last message was of a revision of which more follows.
    amid: bool,
    /// The parts so far of a revision whose others are not read yet.
    parts: Parts,
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

/// What happened.
enum Turn<R> {
    Requested(Result<Option<R>, Status>),
    /// There may be new work.
    Changed,
    /// There is room for the work that there is.
    Room(Held),
    Look,
    /// Nobody reads any more.
    Unread,
    GivenUp,
    Stop,
}

impl<D: Dialect> StreamTask<D> {
    /// Serves `requests` until either side ends it.
    pub(super) fn start(
        dialect: D,
        shared: Arc<WatchShared>,
        on: &connections::Connection,
        connection: Connection,
        place: Place,
        backlog: Arc<Backlog>,
        requests: Streaming<D::Request>,
    ) -> impl Stream<Item = Result<D::Response, Status>> + Send + use<D> {
        let listener = shared.hub.listen();
        let (outbox, queued) = Outbox::new();
        let (last, words) = oneshot::channel();
        let task = Self {
            dialect,
            shared,
            whose: Some(on.source().address()),
            connection,
            watches: WatchSet::new(listener.stream(), OPEN_BYTES),
            listener,
            active: BTreeMap::new(),
            aside: BTreeMap::new(),
            whole_turn: None,
            outbox,
            reached: Vec::new(),
            backlog,
            progress_wanted: false,
            asks_no_more: false,
            cut_off_since: None,
            was_removed: false,
        };
        on.spawn(async move {
            // Nobody listens any more: nothing is left to say.
            let _ = last.send(task.run(requests).await);
        });
        let last_words = stream::once(async move { words.await.unwrap_or_default() });
        // From here on they count as parts of the body.
        outbox::each(queued)
            .map(Ok)
            .chain(last_words.flat_map(stream::iter))
            // As long as messages may wait for the client, they count, told or not.
            .inspect(move |_| {
                let _ = &place;
            })
    }

    async fn run(mut self, mut requests: Streaming<D::Request>) -> LastWords<D> {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (stop, backlog) = (self.shared.stop.clone(), Arc::clone(&self.backlog));
        loop {
            // What it is, is looked at again once there is room: meanwhile nothing of history is
            // held for it.
            let answers = self.aside.is_empty() && !self.asks_no_more;
            let wants_room = self.shared.hub.has_work(&mut self.watches);
            if !wants_room && let Err(end) = self.answer_progress().await {
                return self.last_words(&end);
            }
            if self.is_done() {
                return self.last_words(&End::Gone);
            }
            let hub = &self.shared.hub;
            let news = hub.news(&self.listener, &mut self.watches, self.progress_wanted);
            let turn = tokio::select! {
                biased;
                () = stop.cancelled() => Turn::Stop,
                () = backlog.given_up() => Turn::GivenUp,
                () = self.outbox.closed() => Turn::Unread,
                request = requests.message(), if answers => Turn::Requested(request),
                _ = look.tick() => Turn::Look,
                room = backlog.room(), if wants_room => Turn::Room(room),
                () = news, if !wants_room => Turn::Changed,
            };
            if let Err(end) = self.turn(turn).await {
                return self.last_words(&end);
            }
            // Also a stream that always has something to do lets others have their turn.
            poll_fn(|context| give_way(context)).await;
        }
    }

    /// Whether there is nothing left to tell, and nothing more will be asked for. Clients of etcd
    /// that end so may keep their connection: their streams must not take its places.
    fn is_done(&self) -> bool {
        self.asks_no_more
            && self.active.is_empty()
            && self.aside.is_empty()
            && !self.progress_wanted
    }

    async fn turn(&mut self, turn: Turn<D::Request>) -> Result<(), End> {
        match turn {
            Turn::Requested(Ok(Some(request))) => self.request(request).await,
            Turn::Requested(Ok(None)) if D::OUTLIVES_REQUESTS => {
                self.asks_no_more = true;
                Ok(())
            }
            Turn::Requested(Ok(None)) | Turn::Unread => Err(End::Gone),
            Turn::Requested(Err(status)) => Err(End::Broken(status)),
            Turn::Changed => Ok(()),
            Turn::Room(_room) => match self.shared.hub.work(&mut self.watches) {
                Some(work) => self.work(work).await,
                None => Ok(()),
            },
            Turn::Look => self.look().await,
            Turn::GivenUp => Err(End::InTheWay),
            Turn::Stop => Err(End::Stopping),
        }?;
        self.take_back();
        self.hand_over().await
    }

    async fn request(&mut self, request: D::Request) -> Result<(), End> {
        let limits = self.shared.limits.of_requests();
        match self.dialect.asked(request, &limits) {
            Some(Asked::Create(create)) => self.create(create).await,
            Some(Asked::Cancel(id)) => {
                self.end(id, |resume| {
                    Ending::new(CancelCause::Requested, "as requested", resume)
                })
                .await
            }
            Some(Asked::Progress) => {
                self.want_progress(true);
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, create: Create) -> Result<(), End> {
        let asked = create.start;
        let chosen = create.id;
        let began = self.begin(create);
        let header = self.shared.headers.now();
        let (id, spec, first, active) = match began {
            Ok(began) => began,
            Err(ending) => {
                self.may_end_alone(&ending)?;
                let watches = &self.watches;
                let refused = self.dialect.refused(chosen, header, ending, watches);
                return self.send(refused).await;
            }
        };
        let hub = &self.shared.hub;
        self.watches.insert(id, spec, first, &mut hub.wanted());
        self.active.insert(id, active);
        let created = self.dialect.created(id, header, asked, first);
        self.send(created).await
    }

    /// What is to be watched, from which revision on.
    fn begin(&mut self, create: Create) -> Result<(u64, WatchSpec, Revision, Active), Ending> {
        let asked = create.start;
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
        let spec = match create.spec {
            Ok(spec) => spec,
            Err(reason) => return refuse(CancelCause::Invalid, reason),
        };
        // It keeps its keys for as long as it lives, however long they are.
        let places = 1 + spec.keys.bytes() / KEY_BYTES_OF_A_PLACE;
        let place = match shared.watches.take_many(self.connection, places) {
            Ok(place) => place,
            Err(full) => return refuse(CancelCause::TooMany, no_watch(full)),
        };
        let id = match self.dialect.choose_id(create.id, &self.watches) {
            Ok(id) => id,
            Err(reason) => return refuse(CancelCause::Invalid, reason),
        };
        let first = match asked {
            Revision(0) => Revision(shared.hub.revision().0 + 1),
            asked => asked,
        };
        let active = Active {
            progress_notify: create.progress_notify,
            told_at: Instant::now(),
            in_parts: create.in_parts,
            amid: false,
            parts: Parts::default(),
            _place: place,
            _counted: Counted::up(),
        };
        Ok((id, spec, first, active))
    }

    /// Gets a part of history, if it has to be got, and tells it.
    async fn work(&mut self, work: Work) -> Result<(), End> {
        match work {
            Work::Deliver(page) => {
                let telling = self.watches.deliver(page);
                self.tell(telling, Rest::MayWait).await
            }
            Work::ReadPast(at, mark) => match self.shared.hub.past(self.whose, at, mark).await {
                Ok(page) => {
                    let telling = self.watches.deliver(page);
                    self.tell(telling, Rest::MayWait).await
                }
                Err(error) => self.cannot_read_past(at, &error).await,
            },
            // Others wait for the turn that a watch of this stream has.
            Work::ReadAlone(id, _) if self.whole_turn.is_some() && !self.has_parts(id) => {
                self.set_aside(id);
                Ok(())
            }
            Work::ReadAlone(id, query) => {
                let read = self.read_alone(id, query).await;
                self.whole_turn = None;
                read
            }
        }
    }

    /// Reads for one watch, and for no other until it has got the whole of a revision of which it
    /// has got a part.
    async fn read_alone(&mut self, id: u64, mut query: ChangesQuery) -> Result<(), End> {
        loop {
            let from = query.from;
            let changes = match self.shared.hub.alone(self.whose, query.clone()).await {
                Ok(changes) => changes,
                Err(error) => return self.end(id, |resume| unread(&error, resume)).await,
            };
            query.from = changes.next;
            let found = !changes.events.is_empty();
            let telling = self.watches.deliver_alone(id, from, changes);
            self.tell(telling, Rest::IsNext).await?;
            // Where a message ends amid a revision, all that was read is told.
            if !found || !self.active.get(&id).is_some_and(|it| it.amid) {
                return Ok(());
            }
            if self.shared.stop.is_cancelled() {
                return Err(End::Stopping);
            }
            self.hand_over().await?;
            poll_fn(|context| give_way(context)).await;
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
    async fn tell(&mut self, mut telling: Delivery, rest: Rest) -> Result<(), End> {
        while let Some(slice) = self.watches.slice(&mut telling) {
            for Addressed { ids, messages } in slice {
                match messages {
                    Ok(told) => self.send_told(&ids, told, rest).await?,
                    Err(revision) => self.end_too_large(&ids, revision).await?,
                }
            }
            // How the next one is cut depends on how far they have come.
            self.hand_over().await?;
        }
        self.watches.finish(telling, &mut self.shared.hub.wanted());
        Ok(())
    }

    async fn send_told(
        &mut self,
        ids: &[u64],
        told: Vec<EventBatch>,
        rest: Rest,
    ) -> Result<(), End> {
        for message in told {
            // Before it is sent: if that hands over, they have come that far.
            let reached = message.reached();
            self.reached.extend(ids.iter().map(|id| (*id, reached)));
            match D::WHOLE_REVISIONS {
                true => self.send_whole(ids, message, rest).await?,
                false => self.send_events(ids, message).await?,
            }
        }
        self.told(ids);
        Ok(())
    }

    async fn send_events(&mut self, ids: &[u64], batch: EventBatch) -> Result<(), End> {
        let header = self.shared.headers.now();
        self.send_all(self.dialect.events(ids, header, batch)).await
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
        // It begins again behind what it is told.
        self.hand_over().await?;
        let resume = self.watches.remove(id, &mut self.shared.hub.wanted());
        self.active.remove(&id);
        let Some(resume) = resume else {
            return Ok(());
        };
        let ending = ending(resume);
        self.may_end_alone(&ending)?;
        let header = self.shared.headers.now();
        let canceled = self.dialect.canceled(id, header, ending);
        self.send(canceled).await
    }

    /// # Errors
    /// Its client would not begin again.
    fn may_end_alone(&self, ending: &Ending) -> Result<(), End> {
        let is_for_now = ending.cause == CancelCause::Unavailable;
        match is_for_now && !D::RESUMES_WATCHES {
            true => Err(End::Unserved(ending.reason.clone())),
            false => Ok(()),
        }
    }

    /// Now and then: progress for those that want it, and whether this member still takes part.
    async fn look(&mut self) -> Result<(), End> {
        self.check_cut_off()?;
        // It passes what it was not woken for: its watches have got that too.
        let _ = self.shared.hub.has_work(&mut self.watches);
        let every = self.shared.limits.watch_progress_interval();
        let due = |it: &Active| it.progress_notify && it.told_at.elapsed() >= every;
        let due = self.active.iter().filter(|(_, it)| due(it));
        let ids: Vec<_> = due.map(|(id, _)| *id).collect();
        let newest = self.shared.hub.revision();
        for (revision, ids) in self.watches.progress_of(ids, newest) {
            self.told(&ids);
            let header = self.shared.headers.now();
            let progress = self.dialect.progress(&ids, header, revision);
            self.send_all(progress).await?;
        }
        Ok(())
    }

    /// A member that hears of no leader tells nothing new, nor does one that was removed.
    fn check_cut_off(&mut self) -> Result<(), End> {
        let status = self.shared.node.status();
        if std::mem::replace(&mut self.was_removed, status.removed) && status.removed {
            return Err(End::Removed);
        }
        if status.ready {
            self.cut_off_since = None;
            return Ok(());
        }
        let since = *self.cut_off_since.get_or_insert_with(Instant::now);
        let most = self.dialect.leaderless_max(self.shared.node.config());
        match most.is_some_and(|most| since.elapsed() >= most) {
            true => Err(End::NoLeader),
            false => Ok(()),
        }
    }

    /// All watches have got everything only once this stream has passed what they do not want.
    fn want_progress(&mut self, wanted: bool) {
        self.progress_wanted = wanted;
        let stream = self.listener.stream();
        self.shared.hub.wanted().set_of_all(stream, wanted);
    }

    /// Once all watches were told everything there is.
    async fn answer_progress(&mut self) -> Result<(), End> {
        if !self.progress_wanted || !self.aside.is_empty() {
            return Ok(());
        }
        let newest = self.shared.hub.revision();
        // Pages that are on their way are told first.
        if !self.watches.is_delivered(newest) {
            return Ok(());
        }
        self.want_progress(false);
        if !self.dialect.answers_progress(&self.watches, newest) {
            return Ok(());
        }
        let header = self.shared.headers.now();
        let progress = self.dialect.progress(&[], header, newest);
        self.send_all(progress).await?;
        self.hand_over().await
    }

    async fn send_all(&mut self, messages: Vec<D::Response>) -> Result<(), End> {
        for message in messages {
            self.send(message).await?;
        }
        Ok(())
    }

    /// Sends a message, at the latest once this turn is over.
    async fn send(&mut self, message: D::Response) -> Result<(), End> {
        let bytes = D::memory_bytes(&message);
        match self.outbox.put(message, bytes) {
            true => self.hand_over().await,
            false => Ok(()),
        }
    }

    /// Does not leave what is sent waiting: something is next that takes time, or depends on how
    /// far watches have come.
    async fn hand_over(&mut self) -> Result<(), End> {
        let patience = self.shared.limits.stream_stall_timeout();
        self.outbox.hand_over(&self.backlog, patience).await?;
        for (id, reached) in self.reached.drain(..) {
            self.watches.delivered(id, reached);
        }
        Ok(())
    }

    /// What is not handed over is not told: watches begin again before it.
    fn last_words(&self, end: &End) -> LastWords<D> {
        if matches!(end, End::TooSlow(_) | End::InTheWay) {
            counter!(names::WATCH_STREAMS_SHED_TOTAL).increment(1);
        }
        let header = self.shared.headers.now();
        self.dialect.last_words(end, header, &self.watches)
    }
}

impl<D: Dialect> Drop for StreamTask<D> {
    fn drop(&mut self) {
        self.watches.clear(&mut self.shared.hub.wanted());
    }
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
