//! Connections that come in, of one port: how many there are, and which have to end.
//!
//! Each takes a file descriptor, and the log and RocksDB must never find that there is none left. A
//! connection whose client reads nothing keeps what it was to be sent: nothing short of closing it
//! gives that back.
//!
//! - [`incoming`]: taking them in. [mod@serve]: what is done on them.
//! - [`source`]: where they come from, and what one place may have of what all share.
//! - [`lanes`], [`turn`]: the same of the threads. [`heavy`]: who wants clearly more of them than
//!   others.

mod heavy;
mod incoming;
mod lanes;
mod serve;
mod source;
mod turn;

pub(crate) use heavy::WorkElsewhere;
pub(crate) use incoming::{Guarded, Incoming, OnConnection};
pub use lanes::TASKS_BETWEEN_EVENTS;
pub(crate) use lanes::give_way;
pub(crate) use serve::{Http, serve, serve_by, serve_http};
pub(crate) use source::{Share, Source, Sources, WAITING_UNIT_BYTES, one_client};
pub(crate) use turn::{threads_for_heavy, time_of_this_thread};

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use self::turn::Home;

/// A client that takes this much in a second reads, however slow its link is.
const READING_BYTES_A_SECOND: usize = 16 * 1024;
/// Streams of `Kv.Pipeline` or of reflection on one connection: what is sent on them and not taken
/// fills windows that nothing else bounds. Our client has one, another for what is larger than a
/// frame, and a third for a moment.
pub(crate) const PIPELINES_MAX: usize = 3;
/// Connections that had to make room, and for which something is held still: of all addresses.
const CLOSING_MAX: usize = 512;
/// Of frames that were never read, on one connection; with more of them it is closed.
const STUCK_BYTES_MAX: usize = 4 << 20;

/// All connections of one port. Clones share them.
#[derive(Clone)]
pub(crate) struct Connections(Arc<Inner>);

struct Inner {
    limit: usize,
    when_full: WhenFull,
    sources: Sources,
    open: Mutex<Open>,
    epoch: Instant,
}

/// What happens to a connection for which there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// It is refused. Its client may ask another member, and those who were here first go on.
    Refuse,
    /// The oldest makes room of the address with most of those that have not proven whose they are
    /// ([`Connection::prove`]). Whoever holds connections open to keep others away loses them
    /// first.
    MakeRoom,
}

#[derive(Default)]
struct Open {
    last: u64,
    /// The oldest first.
    all: BTreeMap<u64, Arc<Connection>>,
    by_address: HashMap<IpAddr, usize>,
    /// Those that had to make room, by address: their sockets are closed, and what is held for them
    /// goes once their threads have noticed.
    closing: HashMap<u64, IpAddr>,
    /// Connections that were refused since it was last told.
    refused: u64,
}

/// One connection, as whoever serves a call of it sees it.
pub(crate) struct Connection {
    source: Arc<Source>,
    /// The thread that serves it.
    home: Home,
    speaks: AtomicBool,
    greeted: AtomicBool,
    proven: AtomicBool,
    epoch: Instant,
    closed: CancellationToken,
    /// What it is spoken on, until it is hung up.
    socket: Mutex<Option<TcpStream>>,
    /// When the client last took something, in milliseconds.
    taken_at: AtomicU64,
    pipelines: AtomicUsize,
    unread: Mutex<Unread>,
}

/// What was answered and is not sent.
#[derive(Default)]
struct Unread {
    last: u64,
    answers: HashMap<u64, (Instant, usize)>,
    stuck_bytes: usize,
}

/// An answer that is being sent; no more once it is dropped.
pub(crate) struct Sending {
    connection: Arc<Connection>,
    number: u64,
}

/// A stream of calls on a connection.
pub(crate) struct PipelinePlace(Arc<Connection>);

impl Connections {
    /// At most `limit`, and from one address at most half of them.
    pub(crate) fn new(limit: usize, when_full: WhenFull, sources: &Sources) -> Self {
        let inner = Arc::new(Inner {
            limit,
            when_full,
            sources: sources.clone(),
            open: Mutex::default(),
            epoch: Instant::now(),
        });
        sources.come_by(&inner);
        Self(inner)
    }

    /// Closes the connections of clients that read nothing for `patience`, until `stop` is
    /// cancelled.
    pub(crate) async fn watch_over(self, patience: Duration, stop: CancellationToken) {
        let looks = async {
            loop {
                tokio::time::sleep(patience / 4).await;
                self.close_unread(patience);
            }
        };
        tokio::select! { () = looks => {} () = stop.cancelled() => {} }
    }

    fn close_unread(&self, patience: Duration) {
        let (all, refused) = {
            let mut open = self.open();
            let all: Vec<_> = open.all.values().cloned().collect();
            (all, std::mem::take(&mut open.refused))
        };
        if refused > 0 {
            let limit = self.0.limit;
            tracing::warn!(
                refused,
                limit,
                "connections were refused (--max-connections)"
            );
        }
        for connection in all {
            if !connection.is_closed() && connection.is_unread(patience) {
                tracing::info!("a connection is closed: its client does not read its answers");
                connection.closed.cancel();
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        lock(&self.0.open)
    }

    /// How many there are from where, of those that are not being closed.
    fn by_address(&self) -> HashMap<IpAddr, usize> {
        let mut by_address = HashMap::new();
        for connection in self.open().all.values().filter(|it| !it.is_closed()) {
            let own = by_address.entry(connection.source.address());
            *own.or_default() += 1;
        }
        by_address
    }

    /// Whether one is being closed, and has its socket still; but for those that made room for
    /// others.
    fn has_closing(&self) -> bool {
        self.open().all.values().any(|it| it.is_closed())
    }

    /// Closes half of those from there, the newest ones, and says how many.
    fn close_half(&self, from: IpAddr) -> usize {
        let open = self.open();
        let is_one = |it: &&Arc<Connection>| it.source.address() == from && !it.is_closed();
        let own: Vec<_> = open.all.values().rev().filter(is_one).collect();
        let half = own.len().div_ceil(2);
        own.into_iter().take(half).for_each(|it| it.close());
        half
    }

    /// A place for one more from there.
    fn admit(&self, from: IpAddr) -> Option<(u64, Arc<Connection>)> {
        let from = one_client(from);
        let (limit, of_one) = (self.0.limit, self.0.limit.div_ceil(2));
        let mut open = self.open();
        let own = open.by_address.get(&from);
        let full_of_one = own.is_some_and(|own| *own >= of_one);
        let room = match (open.all.len() >= limit || full_of_one, self.0.when_full) {
            // However fast they come and have to make room for each other, so much is held for them
            // at most; and of an address half of what others leave, so that it takes ten that do
            // nothing else until the next one finds none.
            _ if Share::HALF.more(CLOSING_MAX, open.closing.len(), open.closing_of(from)) == 0 => {
                false
            }
            (false, _) => true,
            (true, WhenFull::Refuse) => false,
            (true, WhenFull::MakeRoom) => open.make_room(full_of_one.then_some(from)),
        };
        if !room {
            open.refused += 1;
            return None;
        }
        *open.by_address.entry(from).or_default() += 1;
        let source = self.0.sources.of(from);
        open.last += 1;
        let number = open.last;
        let connection = Arc::new(Connection::new(self.0.epoch, source));
        open.all.insert(number, Arc::clone(&connection));
        Some((number, connection))
    }

    /// Gives its place back, unless it had to make room before.
    fn leave(&self, number: u64) {
        let mut open = self.open();
        if open.closing.remove(&number).is_none() {
            open.remove(number);
        }
    }
}

impl Open {
    /// Closes the oldest connection of which nobody knows whose it is: from there, or from where
    /// most of these come. A probe has one.
    fn make_room(&mut self, from: Option<IpAddr>) -> bool {
        let mut strangers = HashMap::<IpAddr, usize>::new();
        for it in self.all.values().filter(|it| !it.is_proven()) {
            *strangers.entry(it.source.address()).or_default() += 1;
        }
        let most = strangers.values().copied().max();
        let has_most = |address: IpAddr| strangers.get(&address).copied() == most;
        let strange = |it: &Connection| {
            let address = it.source.address();
            !it.is_proven() && from.map_or(has_most(address), |from| from == address)
        };
        let oldest = self.all.iter().find(|(_, it)| strange(it));
        let Some(number) = oldest.map(|(number, _)| *number) else {
            return false;
        };
        self.refused += 1;
        if let Some(connection) = self.remove(number) {
            self.closing.insert(number, connection.source.address());
            connection.hang_up();
        }
        true
    }

    fn closing_of(&self, address: IpAddr) -> usize {
        self.closing.values().filter(|it| **it == address).count()
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Connection>> {
        let connection = self.all.remove(&number)?;
        if let Entry::Occupied(mut own) = self.by_address.entry(connection.source.address()) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
        Some(connection)
    }
}

impl Connection {
    fn new(epoch: Instant, source: Arc<Source>) -> Self {
        let connection = Self {
            home: source.home(),
            source,
            speaks: AtomicBool::new(false),
            greeted: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            epoch,
            closed: CancellationToken::new(),
            socket: Mutex::default(),
            taken_at: AtomicU64::new(0),
            pipelines: AtomicUsize::new(0),
            unread: Mutex::default(),
        };
        connection.took();
        connection
    }

    /// One of its own, for tests.
    #[cfg(test)]
    pub(crate) fn alone() -> Self {
        Self::of(Arc::new(Source::new(IpAddr::from([127, 0, 0, 1]))))
    }

    /// One from there, for tests.
    #[cfg(test)]
    pub(crate) fn of(source: Arc<Source>) -> Self {
        Self::new(Instant::now(), source)
    }

    /// Where it comes from.
    pub(crate) fn source(&self) -> &Arc<Source> {
        &self.source
    }

    /// Does this on the thread that serves it, in turns with what is done for others.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.source.spawn(&self.home, work);
    }

    /// Its client has begun to speak.
    fn speaks(&self) {
        self.speaks.store(true, Ordering::Relaxed);
    }

    /// Its client has said who it is, and may stay. Nobody knows whether that is true.
    pub(crate) fn greet(&self) {
        self.greeted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_greeted(&self) -> bool {
        self.greeted.load(Ordering::Relaxed)
    }

    /// It is known now whose it is.
    pub(crate) fn prove(&self) {
        self.greet();
        self.proven.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// Closes it, as soon as it is next read or written.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Closes it, and gives its file descriptor back now: whoever serves it may have much else to
    /// do before.
    fn hang_up(&self) {
        self.close();
        let socket = lock(&self.socket).take();
        drop(socket);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until it is to be closed.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Its client has taken something.
    pub(crate) fn took(&self) {
        let now = self.epoch.elapsed().as_millis() as u64;
        self.taken_at.store(now, Ordering::Relaxed);
    }

    /// Whether its client had the time to read `bytes` since then, and did not.
    pub(crate) fn is_overdue(&self, since: Instant, bytes: usize, patience: Duration) -> bool {
        let taken = self.epoch + Duration::from_millis(self.taken_at.load(Ordering::Relaxed));
        let on_a_slow_link = Duration::from_secs((bytes / READING_BYTES_A_SECOND) as u64);
        let waited = since.elapsed();
        waited >= patience && (taken.elapsed() >= patience || waited >= patience + on_a_slow_link)
    }

    pub(crate) fn is_unread(&self, patience: Duration) -> bool {
        let unread = lock(&self.unread);
        let overdue = |(since, bytes): &(Instant, usize)| self.is_overdue(*since, *bytes, patience);
        unread.answers.values().any(overdue)
    }

    /// Notes an answer of so many bytes that is about to be sent.
    pub(crate) fn send(self: &Arc<Self>, bytes: usize) -> Sending {
        let mut unread = lock(&self.unread);
        unread.last += 1;
        let number = unread.last;
        unread.answers.insert(number, (Instant::now(), bytes));
        Sending {
            connection: Arc::clone(self),
            number,
        }
    }

    /// A stream has ended with frames unread, which the connection keeps until its client reads
    /// them after all.
    pub(crate) fn keeps(&self, bytes: usize) {
        let mut unread = lock(&self.unread);
        unread.stuck_bytes += bytes;
        if unread.stuck_bytes > STUCK_BYTES_MAX {
            self.closed.cancel();
        }
    }

    /// Some of what it kept has gone.
    pub(crate) fn keeps_no_more(&self, bytes: usize) {
        lock(&self.unread).stuck_bytes -= bytes;
    }

    /// A place for one more stream of calls.
    pub(crate) fn pipeline(self: &Arc<Self>) -> Option<PipelinePlace> {
        let place = PipelinePlace(Arc::clone(self));
        (self.pipelines.fetch_add(1, Ordering::Relaxed) < PIPELINES_MAX).then_some(place)
    }
}

impl PipelinePlace {
    /// Whose it is.
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for PipelinePlace {
    fn drop(&mut self) {
        self.0.pipelines.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        lock(&self.connection.unread).answers.remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn one_address_leaves_room_for_others_and_places_come_back() {
        let connections = Connections::new(4, WhenFull::Refuse, &Sources::default());
        let mut numbers = Vec::new();
        while let Some((number, _)) = connections.admit(address(1)) {
            numbers.push(number);
        }
        assert_eq!(numbers.len(), 2);
        assert!(connections.admit(address(2)).is_some());
        assert!(connections.admit(address(3)).is_some());
        assert!(connections.admit(address(4)).is_none());
        connections.leave(numbers[0]);
        assert!(connections.admit(address(4)).is_some());
    }

    /// Who holds connections open keeps nobody away, not even who is held to be as strange.
    #[test]
    fn where_the_oldest_make_room_somebody_new_always_comes_in() {
        let connections = Connections::new(4, WhenFull::MakeRoom, &Sources::default());
        let (first, known) = connections.admit(address(1)).unwrap();
        known.prove();
        let (_, strange) = connections.admit(address(1)).unwrap();
        let others = [2, 2].map(|it| connections.admit(address(it)).unwrap());
        // Half is what one address has: of its own the oldest goes that is strange.
        assert!(connections.admit(address(1)).is_some());
        assert!(!known.closed.is_cancelled() && strange.closed.is_cancelled());
        // All places are taken: the oldest goes of who has most strange ones.
        let (newest, _) = connections.admit(address(3)).unwrap();
        assert!(others[0].1.closed.is_cancelled() && !others[1].1.closed.is_cancelled());
        assert_eq!(connections.open().all.len(), 4);
        // What made room has no place that it could give back.
        connections.leave(others[0].0);
        assert_eq!(connections.open().all.len(), 4);
        connections.leave(newest);
        connections.leave(first);
        assert_eq!(connections.open().all.len(), 2);
        assert_eq!(connections.open().by_address.len(), 2);
    }

    /// However many come from elsewhere, as fast as they can.
    #[test]
    fn a_single_connection_makes_no_room_for_who_has_several() {
        let connections = Connections::new(6, WhenFull::MakeRoom, &Sources::default());
        let (_, probe) = connections.admit(address(9)).unwrap();
        for from in [1, 2, 3].into_iter().cycle().take(100) {
            let (number, _) = connections.admit(address(from)).unwrap();
            // Whoever made room ends soon.
            let ended = std::mem::take(&mut connections.open().closing);
            assert!(!ended.contains_key(&number));
        }
        assert!(!probe.is_closed());
    }

    /// What is held for one that had to make room is there until its thread has noticed.
    #[test]
    fn so_much_is_held_for_one_address_that_is_being_closed_and_others_find_some_more() {
        let connections = Connections::new(4, WhenFull::MakeRoom, &Sources::default());
        let admit = |from| connections.admit(address(from)).map(|(number, _)| number);
        let first = admit(1).unwrap();
        assert!((0..=CLOSING_MAX / 2).all(|_| admit(1).is_some()));
        assert!(admit(1).is_none());
        connections.leave(first);
        assert!(admit(1).is_some() && admit(1).is_none());
        // A probe was refused because of them, and later because of two who did that.
        assert!((0..2 + CLOSING_MAX / 4).all(|_| admit(2).is_some()));
        assert!(admit(2).is_none());
        assert!(admit(3).is_some());
    }

    #[test]
    fn so_many_are_being_closed_in_all() {
        let connections = Connections::new(4, WhenFull::MakeRoom, &Sources::default());
        for from in [1, 2, 3].into_iter().cycle().take(9 * CLOSING_MAX) {
            let _ = connections.admit(address(from));
        }
        let closing = connections.open().closing.len();
        assert!(closing <= CLOSING_MAX, "{closing}");
    }

    /// Sixty-four of them were there until their threads had noticed, and somebody new was refused.
    #[tokio::test]
    async fn a_socket_that_has_to_make_room_is_closed_at_once() {
        use tokio::io::AsyncReadExt as _;
        use tokio::net::TcpListener;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connections = Connections::new(2, WhenFull::MakeRoom, &Sources::default());
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (_, first) = connections.admit(address(1)).unwrap();
        *lock(&first.socket) = Some(stream);
        assert!(connections.admit(address(1)).is_some());
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "while it is held");
    }

    #[test]
    fn whose_it_is_known_of_all_nobody_makes_room() {
        let connections = Connections::new(2, WhenFull::MakeRoom, &Sources::default());
        for from in [1, 2] {
            connections.admit(address(from)).unwrap().1.prove();
        }
        assert!(connections.admit(address(3)).is_none());
    }

    /// Who came by three ports had three shares of the threads, and of the places for requests.
    #[test]
    fn an_address_is_one_source_on_all_ports_until_it_has_left_all() {
        let sources = Sources::default();
        let ports = [(); 2].map(|()| Connections::new(2, WhenFull::Refuse, &sources));
        let (here, one) = ports[0].admit(address(1)).unwrap();
        let (there, other) = ports[1].admit(address(1)).unwrap();
        assert!(Arc::ptr_eq(one.source(), other.source()));
        assert!(ports[0].admit(address(1)).is_none(), "half of each port");
        ports[0].leave(here);
        let left = Arc::downgrade(one.source());
        drop(one);
        let (_, again) = ports[0].admit(address(1)).unwrap();
        assert!(Arc::ptr_eq(again.source(), other.source()));
        ports[1].leave(there);
        drop((ports, again, other));
        assert!(left.upgrade().is_none());
        assert!(sources.is_empty());
    }

    /// So many connections from there.
    fn many(port: &Connections, from: u8, count: usize) -> Vec<(u64, Arc<Connection>)> {
        let one = |_| port.admit(address(from)).unwrap();
        (0..count).map(one).collect()
    }

    #[test]
    fn who_has_most_connections_loses_the_newest_half_of_them_on_each_port() {
        let sources = Sources::default();
        let ports = [&sources, &sources.for_probes()]
            .map(|sources| Connections::new(100, WhenFull::Refuse, sources));
        let most = [many(&ports[0], 1, 4), many(&ports[1], 1, 3)];
        // More than the other has on either port.
        let others = many(&ports[0], 2, 6);
        assert_eq!(sources.shed(), 4);
        let closed = |of: &[(u64, Arc<Connection>)]| {
            of.iter().map(|(_, it)| it.is_closed()).collect::<Vec<_>>()
        };
        assert_eq!(closed(&most[0]), [false, false, true, true]);
        assert_eq!(closed(&most[1]), [false, true, true]);
        assert!(others.iter().all(|(_, it)| !it.is_closed()));
        // Others had to go within 20 ms, for what these had not given back yet.
        assert_eq!(sources.shed(), 0);
        for (port, most) in ports.iter().zip(&most) {
            most.iter().for_each(|(number, _)| port.leave(*number));
        }
        assert_eq!(sources.shed(), 3);
        assert!(others.iter().any(|(_, it)| it.is_closed()));
        drop(ports);
        assert_eq!(sources.shed(), 0, "nobody is left");
    }

    /// A flood of one side port had it wait a second each time.
    #[test]
    fn what_makes_room_on_some_port_has_nobody_wait_who_sheds() {
        let sources = Sources::default();
        let [clients, side] = [(100, WhenFull::Refuse), (2, WhenFull::MakeRoom)]
            .map(|(limit, when_full)| Connections::new(limit, when_full, &sources));
        let most = many(&clients, 1, 8);
        let mut flood = many(&side, 2, 2);
        for left in [4, 2] {
            assert_eq!(sources.shed(), left);
            for (number, _) in most.iter().filter(|(_, it)| it.is_closed()) {
                clients.leave(*number);
            }
            flood.extend(many(&side, 2, 1));
        }
    }

    /// What waits for places was counted nowhere: others were closed for it.
    #[test]
    fn who_has_much_waiting_has_more_than_who_has_some_connections() {
        let sources = Sources::default();
        let port = Connections::new(100, WhenFull::Refuse, &sources);
        let (one, others) = (many(&port, 1, 1), many(&port, 2, 4));
        let units = (16 << 20) / WAITING_UNIT_BYTES;
        let waiting = &one[0].1.source().waiting;
        waiting.store(units, Ordering::Relaxed);
        assert_eq!(sources.shed(), 1);
        assert!(one[0].1.is_closed() && others.iter().all(|(_, it)| !it.is_closed()));
    }

    /// Who held most had one connection, and those of everybody else were closed.
    #[test]
    fn who_holds_much_on_one_connection_has_more_than_who_has_some() {
        let sources = Sources::default();
        let port = Connections::new(100, WhenFull::Refuse, &sources);
        let (one, others) = (many(&port, 1, 1), many(&port, 2, 4));
        // A member that passes on what others write.
        others[0].1.source().sends(64 << 20);
        sources.holds(|from| if from == address(1) { 16 << 20 } else { 0 });
        assert_eq!(sources.shed(), 1);
        assert!(one[0].1.is_closed() && others.iter().all(|(_, it)| !it.is_closed()));
    }

    #[test]
    fn a_slow_link_is_no_client_that_does_not_read() {
        let connection = Connection::alone();
        let long_ago = Instant::now() - 20 * SECOND;
        assert!(!connection.is_overdue(Instant::now(), 1 << 20, 10 * SECOND));
        assert!(
            !connection.is_overdue(long_ago, 1 << 20, 10 * SECOND),
            "something was taken just now"
        );
        assert!(
            connection.is_overdue(long_ago, 10, 10 * SECOND),
            "but not this answer"
        );
    }

    #[test]
    fn what_was_never_read_closes_its_connection_when_it_is_much() {
        let connection = Connection::alone();
        connection.keeps(STUCK_BYTES_MAX);
        connection.keeps_no_more(1);
        connection.keeps(1);
        assert!(!connection.closed.is_cancelled());
        connection.keeps(1);
        assert!(connection.closed.is_cancelled());
    }

    #[test]
    fn streams_of_one_connection_are_few() {
        let connection = Arc::new(Connection::alone());
        let places: Vec<_> = (0..PIPELINES_MAX).map(|_| connection.pipeline()).collect();
        assert!(places.iter().all(Option::is_some));
        assert!(connection.pipeline().is_none());
        drop(places);
        assert!(connection.pipeline().is_some());
    }
}
