//! What watches hold that their clients have not read, of all of them together.
//!
//! A stream begins to read history for its watches when there is room for it. An address has half
//! of what no other has, and a quarter more for those of its streams whose clients have read all;
//! beyond it its streams wait for each other, and are told nothing meanwhile. While some wait,
//! those of which nothing was read for longest are given up, each with the revision to begin again
//! at; and if what they were sent is still not read, their connections are closed, for nothing
//! short of that gives it back.
//!
//! Parts of revisions that are sent whole count from when they are read. A stream that has some
//! goes on without waiting, for they are given back only once the rest is read; who would have too
//! many of them ends.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::connections::{Connection, Share};
use crate::server::bodies::CountsParts;

/// What a stream holds at most while it tells a page: the page, and the messages that are made of a
/// part of it.
const WORK_BYTES: usize = 2 << 20;
/// What a stream holds at most of revisions that are sent whole and whose rest is not read: twice
/// what a watch gets of the most keys, all tiny, that one write deletes.
pub(super) const WHOLE_BYTES_MAX: usize = 64 << 20;
/// How often it is looked for whom others wait.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Others wait so long for a client that reads nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// All streams of a member.
#[derive(Clone)]
pub(super) struct Backlogs(Arc<All>);

struct All {
    bytes_max: usize,
    state: Mutex<BacklogState>,
}

#[derive(Default)]
struct BacklogState {
    last: u64,
    bytes: usize,
    streams: BTreeMap<u64, Of>,
    by_address: HashMap<IpAddr, Address>,
}

/// What is held of one stream.
struct Of {
    connection: Arc<Connection>,
    given_up: CancellationToken,
    /// What waits for the client.
    unread_bytes: usize,
    /// Parts of revisions whose rest is not read yet.
    parts_bytes: usize,
    /// When the client last read something, or had read all.
    read_at: Instant,
}

/// What the streams of one address hold.
#[derive(Default)]
struct Address {
    streams: usize,
    bytes: usize,
    /// One of them had no room since it was last looked.
    wants: bool,
    room: Arc<Notify>,
}

/// The part of one stream.
pub(super) struct Backlog {
    all: Arc<All>,
    number: u64,
    address: IpAddr,
    given_up: CancellationToken,
}

/// What is held, until this is dropped.
pub(super) struct Held {
    backlog: Arc<Backlog>,
    bytes: usize,
    kind: HeldFor,
}

/// What it is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldFor {
    /// To tell a page.
    Work,
    /// The client, which has not read it.
    Client,
    /// The rest of its revision.
    Rest,
}

/// Whether a part of a revision may exceed the member's bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// It may: only one stream at a time does so.
    OfStream,
    /// It may not.
    OfMember,
}

impl Backlogs {
    /// So many bytes together.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(All {
            bytes_max,
            state: Mutex::default(),
        }))
    }

    /// Of one more stream, over this connection.
    pub(super) fn begin(&self, connection: &Arc<Connection>) -> Arc<Backlog> {
        let (address, given_up) = (connection.source().address(), CancellationToken::new());
        let mut state = self.0.state();
        state.last += 1;
        let number = state.last;
        state.by_address.entry(address).or_default().streams += 1;
        let of = Of {
            connection: Arc::clone(connection),
            given_up: given_up.clone(),
            unread_bytes: 0,
            parts_bytes: 0,
            read_at: Instant::now(),
        };
        state.streams.insert(number, of);
        Arc::new(Backlog {
            all: Arc::clone(&self.0),
            number,
            address,
            given_up,
        })
    }

    /// How many bytes are held for the streams of an address.
    pub(super) fn held_by(&self, address: IpAddr) -> usize {
        let state = self.0.state();
        state.by_address.get(&address).map_or(0, |it| it.bytes)
    }

    /// Sees to it that none waits for long for clients that do not read, until `stop` is cancelled.
    pub(super) async fn watch_over(self, stop: CancellationToken) {
        let looks = async {
            loop {
                sleep(LOOK_EVERY).await;
                self.look(PATIENCE);
            }
        };
        tokio::select! { () = looks => {} () = stop.cancelled() => {} }
    }

    fn look(&self, patience: Duration) {
        let mut state = self.0.state();
        let wanting = state.by_address.iter_mut().filter(|(_, it)| it.wants);
        let mut wanting: Vec<_> = wanting
            .map(|(address, it)| {
                it.wants = false;
                (*address, it.bytes, Arc::clone(&it.room))
            })
            .collect();
        for (address, own, room) in wanting.drain(..) {
            state.shed((own > 0).then_some(address), patience);
            // Room may have come of what others gave back.
            room.notify_waiters();
        }
    }
}

impl All {
    fn state(&self) -> MutexGuard<'_, BacklogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BacklogState {
    /// Gives up who holds most of what that address, or anybody, has, and does not read it.
    fn shed(&mut self, address: Option<IpAddr>, patience: Duration) {
        let of =
            |it: &&Of| address.is_none_or(|address| it.connection.source().address() == address);
        let stuck = |it: &&Of| {
            let connection = &it.connection;
            it.unread_bytes > 0
                && !connection.is_closed()
                && connection.is_overdue(it.read_at, it.unread_bytes, patience)
        };
        let mut stuck: Vec<_> = self.streams.values().filter(of).filter(stuck).collect();
        stuck.sort_unstable_by_key(|it| (it.given_up.is_cancelled(), it.read_at));
        // No connection is closed while there is a stream that can end alone.
        let ended = stuck.first().is_some_and(|it| it.given_up.is_cancelled());
        stuck.retain(|it| it.given_up.is_cancelled() == ended);
        // A quarter of it at a time, so that few go for what others want.
        let all: usize = stuck.iter().map(|it| it.unread_bytes).sum();
        let mut left = all / 4;
        for it in stuck {
            if ended {
                tracing::info!("a connection is closed: its client does not read its watches");
                it.connection.close();
            } else {
                it.given_up.cancel();
            }
            if it.unread_bytes > left {
                return;
            }
            left -= it.unread_bytes;
        }
    }
}

impl Backlog {
    /// Waits until there is room for what it takes to tell a page.
    pub(super) async fn room(self: &Arc<Self>) -> Held {
        loop {
            let room = match self.try_room() {
                Ok(held) => return held,
                Err(room) => room,
            };
            let mut notified = pin!(room.notified());
            // What is given back from now on is heard.
            notified.as_mut().enable();
            match self.try_room() {
                Ok(held) => return held,
                Err(_) => notified.await,
            }
        }
    }

    fn try_room(self: &Arc<Self>) -> Result<Held, Arc<Notify>> {
        let bytes_max = self.all.bytes_max;
        let mut state = self.all.state();
        let taken = state.bytes;
        let of = state.streams.get(&self.number);
        let (unread, parts) = of.map_or((0, 0), |it| (it.unread_bytes, it.parts_bytes));
        let share = match unread {
            0 => Share::THREE_QUARTERS,
            _ => Share::HALF,
        };
        let own = state.by_address.entry(self.address).or_default();
        let more = share.more(bytes_max, taken, own.bytes);
        if parts == 0 && more < WORK_BYTES.min(bytes_max / 8) {
            own.wants = true;
            return Err(Arc::clone(&own.room));
        }
        // If there is more room, the next one may have it.
        own.room.notify_one();
        drop(state);
        Ok(self.hold(WORK_BYTES, HeldFor::Work))
    }

    /// Notes a message that waits for the client to read it.
    pub(super) fn unread(self: &Arc<Self>, bytes: usize) -> Held {
        self.hold(bytes, HeldFor::Client)
    }

    /// Notes a part of a revision whose rest is not read yet; `None` if that is too much for the
    /// stream, or for the member.
    pub(super) fn part_of_revision(self: &Arc<Self>, bytes: usize, bound: Bound) -> Option<Held> {
        let fits = {
            let state = self.all.state();
            let of = state.streams.get(&self.number);
            let of_stream = of.map_or(0, |it| it.parts_bytes);
            let of_address = state.by_address.get(&self.address).map_or(0, |it| it.bytes);
            let more = Share::THREE_QUARTERS.more(self.all.bytes_max, state.bytes, of_address);
            of_stream + bytes <= WHOLE_BYTES_MAX && (bound == Bound::OfStream || bytes <= more)
        };
        fits.then(|| self.hold(bytes, HeldFor::Rest))
    }

    /// Once clients have read enough for a revision to be held whole for this one. Only what is
    /// unread counts: all else may wait for the caller.
    pub(super) async fn few_unread(&self) {
        while !self.has_few_unread() {
            sleep(LOOK_EVERY / 8).await;
        }
    }

    /// Whether that is so now.
    pub(super) fn has_few_unread(&self) -> bool {
        let mut state = self.all.state();
        let (mut all, mut own) = (0, 0);
        for it in state.streams.values() {
            all += it.unread_bytes;
            if it.connection.source().address() == self.address {
                own += it.unread_bytes;
            }
        }
        let few = Share::HALF.more(self.all.bytes_max, all, own) > 0;
        if !few && let Some(address) = state.by_address.get_mut(&self.address) {
            address.wants = true;
        }
        few
    }

    fn hold(self: &Arc<Self>, bytes: usize, kind: HeldFor) -> Held {
        let mut state = self.all.state();
        state.bytes += bytes;
        if let Some(address) = state.by_address.get_mut(&self.address) {
            address.bytes += bytes;
        }
        if let Some(of) = state.streams.get_mut(&self.number) {
            match kind {
                HeldFor::Work => {}
                HeldFor::Client => {
                    if of.unread_bytes == 0 {
                        of.read_at = Instant::now();
                    }
                    of.unread_bytes += bytes;
                }
                HeldFor::Rest => of.parts_bytes += bytes,
            }
        }
        Held {
            backlog: Arc::clone(self),
            bytes,
            kind,
        }
    }

    /// Once its client had the time to read what waits for it, and did not
    /// ([`Connection::is_overdue`]).
    pub(super) async fn overdue(&self, patience: Duration) {
        while !self.is_overdue(patience) {
            sleep(patience / 8).await;
        }
    }

    fn is_overdue(&self, patience: Duration) -> bool {
        let state = self.all.state();
        let own = state.streams.get(&self.number);
        own.is_some_and(|it| {
            it.connection
                .is_overdue(it.read_at, it.unread_bytes, patience)
        })
    }

    /// Once others have waited for its client.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }
}

impl CountsParts for Backlog {
    fn part(self: Arc<Self>, bytes: usize) -> Box<dyn Any + Send + Sync> {
        Box::new(self.unread(bytes))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Backlog {
            all,
            number,
            address,
            ..
        } = &*self.backlog;
        let mut state = all.state();
        state.bytes -= self.bytes;
        if let Some(of) = state.streams.get_mut(number) {
            match self.kind {
                HeldFor::Work => {}
                HeldFor::Client => {
                    of.unread_bytes -= self.bytes;
                    of.read_at = Instant::now();
                }
                HeldFor::Rest => of.parts_bytes -= self.bytes,
            }
        }
        if let Some(address) = state.by_address.get_mut(address) {
            address.bytes -= self.bytes;
            address.room.notify_one();
        }
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        let mut state = self.all.state();
        state.streams.remove(&self.number);
        if let Some(address) = state.by_address.get_mut(&self.address) {
            address.streams -= 1;
            if address.streams == 0 {
                state.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::connections::Source;

    const MAX: usize = 16 * WORK_BYTES;

    fn connection(last: u8) -> Arc<Connection> {
        let source = Source::new(IpAddr::from([10, 0, 0, last]));
        Arc::new(Connection::of(Arc::new(source)))
    }

    fn now(backlog: &Arc<Backlog>) -> Option<Held> {
        backlog.room().now_or_never()
    }

    #[test]
    fn one_address_leaves_room_to_others() {
        let backlogs = Backlogs::new(MAX);
        let [greedy, other] = [1, 2].map(|last| backlogs.begin(&connection(last)));
        let work: Vec<_> = std::iter::from_fn(|| now(&greedy)).collect();
        assert_eq!(work.len(), 12);
        assert!(now(&other).is_some());
        let held = [1, 2, 3].map(|last| backlogs.held_by([10, 0, 0, last].into()));
        assert_eq!(held, [12 * WORK_BYTES, 0, 0]);
        drop(work);
        assert_eq!(backlogs.0.state().bytes, 0);
        drop((greedy, other));
        let state = backlogs.0.state();
        assert!(state.streams.is_empty() && state.by_address.is_empty());
    }

    /// Streams of one address whose clients read go on beside a stream whose client does not.
    #[test]
    fn who_has_not_read_has_less() {
        let backlogs = Backlogs::new(MAX);
        let [slow, quick] = [(); 2].map(|()| backlogs.begin(&connection(1)));
        let unread = slow.unread(8 * WORK_BYTES);
        assert!(now(&slow).is_none());
        assert!(now(&quick).is_some());
        drop(unread);
        assert!(now(&slow).is_some());
    }

    /// They were counted only once the last was read: a thousand watches had one revision each.
    #[test]
    fn parts_of_revisions_count_when_they_are_read() {
        let backlogs = Backlogs::new(MAX);
        let [own, other] = [(); 2].map(|()| backlogs.begin(&connection(1)));
        let part = || own.part_of_revision(WORK_BYTES, Bound::OfMember);
        let parts: Vec<_> = std::iter::from_fn(part).collect();
        assert_eq!(parts.len(), 12);
        assert_eq!(backlogs.held_by([10, 0, 0, 1].into()), 12 * WORK_BYTES);
        assert!(now(&other).is_none());
        assert!(now(&own).is_some(), "only it can give them back");
        drop(parts);
        assert!(now(&other).is_some());
        assert_eq!(backlogs.0.state().bytes, 0);
    }

    /// A revision that is larger than what all of them may have has to reach its watch too.
    #[test]
    fn one_revision_may_be_larger_than_what_all_may_have() {
        let backlogs = Backlogs::new(MAX);
        let own = backlogs.begin(&connection(1));
        let part = || own.part_of_revision(WORK_BYTES, Bound::OfStream);
        let parts: Vec<_> = std::iter::from_fn(part).collect();
        assert_eq!(parts.len(), WHOLE_BYTES_MAX / WORK_BYTES);
        drop(parts);
        assert!(own.has_few_unread());
        let unread = own.unread(MAX / 2);
        assert!(!own.has_few_unread(), "that one after the other adds up");
        drop(unread);
        assert!(own.has_few_unread());
    }

    #[tokio::test]
    async fn for_whom_others_wait_is_given_up_and_then_closed() {
        let backlogs = Backlogs::new(MAX);
        let (slow_on, quick_on) = (connection(1), connection(1));
        let (slow, quick) = (backlogs.begin(&slow_on), backlogs.begin(&quick_on));
        let unread = slow.unread(12 * WORK_BYTES);
        backlogs.look(Duration::ZERO);
        assert!(!slow.given_up.is_cancelled(), "nobody waits");
        assert!(now(&quick).is_none());
        backlogs.look(Duration::from_secs(60));
        assert!(!slow.given_up.is_cancelled(), "others wait for a while");
        assert!(now(&quick).is_none());
        backlogs.look(Duration::ZERO);
        assert!(slow.given_up.is_cancelled() && !slow_on.is_closed());
        assert!(now(&quick).is_none());
        backlogs.look(Duration::ZERO);
        assert!(slow_on.is_closed() && !quick_on.is_closed());
        assert!(!quick.given_up.is_cancelled());
        let (waited, ()) = tokio::join!(quick.room(), async { drop(unread) });
        drop(waited);
    }

    /// A stream over a link of 40 KB a second ended, though its client read all the time.
    #[tokio::test]
    async fn who_reads_slowly_is_waited_for_and_who_reads_nothing_is_not() {
        const PATIENCE: Duration = Duration::from_millis(40);
        let backlogs = Backlogs::new(MAX);
        let (slow_on, silent_on) = (connection(1), connection(2));
        let (slow, silent) = (backlogs.begin(&slow_on), backlogs.begin(&silent_on));
        let _unread = [&slow, &silent].map(|it| it.unread(WORK_BYTES));
        let reads = async {
            loop {
                sleep(PATIENCE / 8).await;
                slow_on.took();
            }
        };
        tokio::select! {
            () = silent.overdue(PATIENCE) => {}
            () = reads => {}
        }
        assert!(!slow.is_overdue(PATIENCE));
    }

    /// What an address has not taken itself, it need not give back.
    #[test]
    fn an_address_is_not_given_up_for_others_that_have_something() {
        let backlogs = Backlogs::new(MAX);
        let [greedy, other] = [1, 2].map(|last| backlogs.begin(&connection(last)));
        let _other_unread = other.unread(WORK_BYTES);
        let _unread = greedy.unread(13 * WORK_BYTES);
        assert!(now(&greedy).is_none());
        backlogs.look(Duration::ZERO);
        assert!(greedy.given_up.is_cancelled() && !other.given_up.is_cancelled());
    }
}
