//! Connections of clients: how many there are, and the end of those whose clients do not read.
//!
//! Each takes a file descriptor, and the log and RocksDB must never find that there is none left. A connection whose
//! client reads nothing keeps what it was to be sent: nothing short of closing it gives that back.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures::Stream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::node::answers::Held;

/// A client that takes this much in a second reads, however slow its link is.
const READING_BYTES_A_SECOND: usize = 16 * 1024;
/// A client says something as soon as it is connected.
const FIRST_WORD_PATIENCE: Duration = Duration::from_secs(10);
/// Streams of `Kv.Pipeline` on one connection. Our client has one, and a second for a moment.
const PIPELINES_MAX: usize = 16;
/// Of frames that were never read, on one connection; with more of them it is closed.
const STUCK_BYTES_MAX: usize = 4 << 20;

/// All connections of one port. Clones share them.
#[derive(Clone)]
pub(super) struct Connections(Arc<Inner>);

struct Inner {
    limit: usize,
    open: Mutex<Open>,
    epoch: Instant,
}

#[derive(Default)]
struct Open {
    last: u64,
    all: HashMap<u64, Arc<Connection>>,
    by_address: HashMap<IpAddr, usize>,
    /// Connections that were refused since it was last told.
    refused: u64,
}

/// One connection, as whoever serves a call of it sees it.
pub(super) struct Connection {
    epoch: Instant,
    closed: CancellationToken,
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
    stuck: Vec<Held>,
}

/// An answer that is being sent; no more once it is dropped.
pub(super) struct Sending {
    connection: Arc<Connection>,
    number: u64,
}

/// A stream of calls on a connection.
pub(super) struct PipelinePlace(Arc<Connection>);

impl Connections {
    /// At most `limit`, and from one address at most half of them.
    pub(super) fn new(limit: usize) -> Self {
        Self(Arc::new(Inner {
            limit,
            open: Mutex::default(),
            epoch: Instant::now(),
        }))
    }

    /// Closes the connections of clients that read nothing for `patience`, until `stop` is cancelled.
    pub(super) async fn watch_over(self, patience: Duration, stop: CancellationToken) {
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
            if connection.is_unread(patience) {
                tracing::info!("a connection is closed: its client does not read its answers");
                connection.closed.cancel();
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        lock(&self.0.open)
    }

    /// A place for one more from there.
    fn admit(&self, from: IpAddr) -> Option<(u64, Arc<Connection>)> {
        let (limit, of_one) = (self.0.limit, self.0.limit.div_ceil(2));
        let mut open = self.open();
        let count = open.by_address.get(&from).copied().unwrap_or(0);
        if open.all.len() >= limit || count >= of_one {
            open.refused += 1;
            return None;
        }
        open.by_address.insert(from, count + 1);
        open.last += 1;
        let (number, connection) = (open.last, Arc::new(Connection::new(self.0.epoch)));
        open.all.insert(number, Arc::clone(&connection));
        Some((number, connection))
    }

    fn leave(&self, number: u64, from: IpAddr) {
        let mut open = self.open();
        open.all.remove(&number);
        if let Some(count) = open.by_address.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&from);
            }
        }
    }
}

impl Connection {
    pub(super) fn new(epoch: Instant) -> Self {
        let connection = Self {
            epoch,
            closed: CancellationToken::new(),
            taken_at: AtomicU64::new(0),
            pipelines: AtomicUsize::new(0),
            unread: Mutex::default(),
        };
        connection.took();
        connection
    }

    fn took(&self) {
        let now = self.epoch.elapsed().as_millis() as u64;
        self.taken_at.store(now, Ordering::Relaxed);
    }

    /// Whether its client had the time to read `bytes` since then, and did not.
    pub(super) fn is_overdue(&self, since: Instant, bytes: usize, patience: Duration) -> bool {
        let taken = self.epoch + Duration::from_millis(self.taken_at.load(Ordering::Relaxed));
        let on_a_slow_link = Duration::from_secs((bytes / READING_BYTES_A_SECOND) as u64);
        let waited = since.elapsed();
        waited >= patience && (taken.elapsed() >= patience || waited >= patience + on_a_slow_link)
    }

    pub(super) fn is_unread(&self, patience: Duration) -> bool {
        let unread = lock(&self.unread);
        let overdue = |(since, bytes): &(Instant, usize)| self.is_overdue(*since, *bytes, patience);
        unread.answers.values().any(overdue)
    }

    /// Notes an answer of so many bytes that is about to be sent.
    pub(super) fn send(self: &Arc<Self>, bytes: usize) -> Sending {
        let mut unread = lock(&self.unread);
        unread.last += 1;
        let number = unread.last;
        unread.answers.insert(number, (Instant::now(), bytes));
        Sending {
            connection: Arc::clone(self),
            number,
        }
    }

    /// A stream has ended with a frame unread. The connection keeps the frame, and so what counts it.
    pub(super) fn keeps(&self, bytes: usize, held: Vec<Held>) {
        let mut unread = lock(&self.unread);
        unread.stuck_bytes += bytes;
        unread.stuck.extend(held);
        if unread.stuck_bytes > STUCK_BYTES_MAX {
            self.closed.cancel();
        }
    }

    /// A place for one more stream of calls.
    pub(super) fn pipeline(self: &Arc<Self>) -> Option<PipelinePlace> {
        let place = PipelinePlace(Arc::clone(self));
        (self.pipelines.fetch_add(1, Ordering::Relaxed) < PIPELINES_MAX).then_some(place)
    }
}

impl PipelinePlace {
    /// Whose it is.
    pub(super) fn connection(&self) -> &Connection {
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

/// The connections that come in by a listener, as far as there are places.
pub(super) struct Incoming {
    listener: TcpListener,
    connections: Connections,
    /// After an error such as a lack of file descriptors, the next try waits.
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Incoming {
    pub(super) fn new(listener: TcpListener, connections: Connections) -> Self {
        Self {
            listener,
            connections,
            pause: None,
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Guarded>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        const PAUSE: Duration = Duration::from_millis(50);
        let this = &mut *self;
        loop {
            if let Some(pause) = &mut this.pause {
                if pause.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                this.pause = None;
            }
            match this.listener.poll_accept(context) {
                Poll::Ready(Ok((stream, from))) => {
                    // Dropped, it is closed at once: its client may ask another member.
                    if let Some((number, connection)) = this.connections.admit(from.ip()) {
                        let _ = stream.set_nodelay(true);
                        return Poll::Ready(Some(Ok(Guarded {
                            silent: Some(Box::pin(tokio::time::sleep(FIRST_WORD_PATIENCE))),
                            closed: Box::pin(connection.closed.clone().cancelled_owned()),
                            stream,
                            from: from.ip(),
                            number,
                            connection,
                            connections: Arc::downgrade(&this.connections.0),
                        })));
                    }
                }
                Poll::Ready(Err(error)) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    this.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// A connection that counts, and that can be closed from outside.
pub(super) struct Guarded {
    stream: TcpStream,
    from: IpAddr,
    number: u64,
    connection: Arc<Connection>,
    connections: Weak<Inner>,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Fires if the client has said nothing by then; none once it has.
    silent: Option<Pin<Box<tokio::time::Sleep>>>,
}

/// What a call knows of its connection.
#[derive(Clone)]
pub(super) struct OnConnection {
    pub(super) connection: Arc<Connection>,
    /// What tonic reads addresses from.
    pub(super) tcp: TcpConnectInfo,
}

impl Connected for Guarded {
    type ConnectInfo = OnConnection;

    fn connect_info(&self) -> OnConnection {
        OnConnection {
            connection: Arc::clone(&self.connection),
            tcp: self.stream.connect_info(),
        }
    }
}

impl Guarded {
    fn check_open(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.closed.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }

    fn note(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(1..)) = written {
            self.connection.took();
        }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_open(context)?;
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        match &mut self.silent {
            Some(silent) if read.is_pending() => match silent.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                Poll::Pending => Poll::Pending,
            },
            _ => {
                self.silent = None;
                read
            }
        }
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(connections) = self.connections.upgrade() {
            Connections(connections).leave(self.number, self.from);
        }
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
        let connections = Connections::new(4);
        let mut numbers = Vec::new();
        while let Some((number, _)) = connections.admit(address(1)) {
            numbers.push(number);
        }
        assert_eq!(numbers.len(), 2);
        assert!(connections.admit(address(2)).is_some());
        assert!(connections.admit(address(3)).is_some());
        assert!(connections.admit(address(4)).is_none());
        connections.leave(numbers[0], address(1));
        assert!(connections.admit(address(4)).is_some());
    }

    #[test]
    fn a_slow_link_is_no_client_that_does_not_read() {
        let connection = Connection::new(Instant::now());
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
        let connection = Connection::new(Instant::now());
        connection.keeps(STUCK_BYTES_MAX, Vec::new());
        assert!(!connection.closed.is_cancelled());
        connection.keeps(1, Vec::new());
        assert!(connection.closed.is_cancelled());
    }

    #[test]
    fn streams_of_one_connection_are_few() {
        let connection = Arc::new(Connection::new(Instant::now()));
        let places: Vec<_> = (0..PIPELINES_MAX).map(|_| connection.pipeline()).collect();
        assert!(places.iter().all(Option::is_some));
        assert!(connection.pipeline().is_none());
        drop(places);
        assert!(connection.pipeline().is_some());
    }
}
