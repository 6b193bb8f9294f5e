//! Taking connections in, as far as there are places, and closing those that have to end.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::lanes::give_way;
use super::{Connection, Connections, Inner, Source, lock};
use crate::memory;

/// A client says something as soon as it is connected, and a peer who it is.
const FIRST_WORD_PATIENCE: Duration = Duration::from_secs(10);
/// While memory is short, a connection of whoever sends much takes something in so often at most.
const HELD_BACK: Duration = Duration::from_millis(250);
/// So many are taken in, or refused, before others have the thread, however many wait at the port:
/// tokio would have a hundred, for milliseconds.
pub(super) const AT_ONCE: u32 = 16;
/// The preface of HTTP/2 (RFC 9113, section 3.4) with the head of the frame that ends it, and less
/// than any request of HTTP/1.1 with a header. What has said less is held by nobody else to
/// account.
const FIRST_WORD_BYTES: usize = 24 + 9;

/// The connections that come in by a listener, as far as there are places.
pub(crate) struct Incoming {
    listener: TcpListener,
    connections: Connections,
    /// After an error such as a lack of file descriptors, the next try waits.
    pause: Option<Pin<Box<Sleep>>>,
    must_be_greeted: bool,
    first_word_patience: Duration,
    /// Taken in since others had the thread.
    at_once: u32,
}

impl Incoming {
    pub(crate) fn new(listener: TcpListener, connections: Connections) -> Self {
        Self {
            listener,
            connections,
            pause: None,
            must_be_greeted: false,
            first_word_patience: FIRST_WORD_PATIENCE,
            at_once: 0,
        }
    }

    /// Who says nothing is waited for so long, for tests.
    #[cfg(test)]
    pub(super) fn patient_for(self, first_word_patience: Duration) -> Self {
        Self {
            first_word_patience,
            ..self
        }
    }

    /// Each must be greeted ([`Connection::greet`]) as soon as otherwise its first word must be
    /// said.
    pub(crate) fn greeted(self) -> Self {
        Self {
            must_be_greeted: true,
            ..self
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
            if this.at_once >= AT_ONCE {
                this.at_once = 0;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            this.at_once += 1;
            match this.listener.poll_accept(context) {
                Poll::Ready(Ok((stream, from))) => {
                    // Dropped, it is closed at once: its client may ask another member.
                    if let Some((number, connection)) = this.connections.admit(from.ip()) {
                        let _ = stream.set_nodelay(true);
                        let tcp = stream.connect_info();
                        *lock(&connection.socket) = Some(stream);
                        return Poll::Ready(Some(Ok(Guarded {
                            held_back: None,
                            silent: Some(Box::pin(sleep(this.first_word_patience))),
                            first_word: 0,
                            must_be_greeted: this.must_be_greeted,
                            closed: Box::pin(connection.closed.clone().cancelled_owned()),
                            tcp,
                            number,
                            connection,
                            connections: Arc::downgrade(&this.connections.0),
                        })));
                    }
                }
                Poll::Ready(Err(error)) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    this.pause = Some(Box::pin(sleep(PAUSE)));
                }
                Poll::Pending => {
                    this.at_once = 0;
                    return Poll::Pending;
                }
            }
        }
    }
}

/// A connection that counts, and that can be closed from outside.
pub(crate) struct Guarded {
    tcp: TcpConnectInfo,
    number: u64,
    connection: Arc<Connection>,
    connections: Weak<Inner>,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Fires if the client has said too little by then, or not who it is; none once it has.
    silent: Option<Pin<Box<Sleep>>>,
    /// Bytes of it that were read.
    first_word: usize,
    must_be_greeted: bool,
    /// Until when nothing is taken in, for memory is short.
    held_back: Option<Pin<Box<Sleep>>>,
}

/// What a call knows of its connection.
#[derive(Clone)]
pub(crate) struct OnConnection {
    pub(crate) connection: Arc<Connection>,
    /// What tonic reads addresses from.
    pub(crate) tcp: TcpConnectInfo,
}

impl Connected for Guarded {
    type ConnectInfo = OnConnection;

    fn connect_info(&self) -> OnConnection {
        OnConnection {
            connection: Arc::clone(&self.connection),
            tcp: self.tcp.clone(),
        }
    }
}

impl Guarded {
    /// Where it comes from.
    pub(super) fn source(&self) -> &Arc<Source> {
        self.connection.source()
    }

    /// What counts it.
    pub(crate) fn counted(&self) -> Arc<Connection> {
        Arc::clone(&self.connection)
    }

    /// Has the thread that serves it wait for its socket, in place of the one that took it in.
    ///
    /// # Errors
    /// The system takes no more sockets there.
    pub(super) fn settle(&self) -> io::Result<()> {
        let Some(runtime) = self.connection.home.runtime() else {
            return Ok(());
        };
        let mut socket = lock(&self.connection.socket);
        if let Some(stream) = socket.take() {
            let stream = stream.into_std()?;
            let _within = runtime.enter();
            *socket = Some(TcpStream::from_std(stream)?);
        }
        Ok(())
    }

    /// Has the system notice that its client is gone, which says nothing of it by itself: nothing
    /// is heard for `silence`, nor in answer to four questions as far apart.
    pub(crate) fn keep_alive(&self, silence: Duration) {
        const QUESTIONS: u32 = 4;
        let keepalive = TcpKeepalive::new().with_time(silence);
        let keepalive = keepalive.with_interval(silence).with_retries(QUESTIONS);
        if let Some(socket) = &*lock(&self.connection.socket)
            && let Err(error) = SockRef::from(socket).set_tcp_keepalive(&keepalive)
        {
            tracing::debug!(%error, "a connection is kept without a look whether it is alive");
        }
    }

    /// Whether what its client says begins so. Nothing of it is taken.
    ///
    /// # Errors
    /// It is to be closed, or nothing is said in time.
    pub(crate) async fn begins_with<const N: usize>(&mut self, word: &[u8; N]) -> io::Result<bool> {
        /// Between two looks at a word of which a part has come; twice as long each time.
        const PAUSE: Duration = Duration::from_millis(5);
        let mut pause = PAUSE;
        loop {
            let mut seen = [0; N];
            let count = poll_fn(|context| {
                self.check_open(context)?;
                let seen = &mut ReadBuf::new(&mut seen);
                self.on_socket(|socket| socket.poll_peek(context, seen))
            });
            let count = count.await?;
            if count == 0 || seen[..count] != word[..count] {
                return Ok(false);
            }
            if count == N {
                return Ok(true);
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Does this with its socket, unless that was closed.
    fn on_socket<T>(
        &self,
        act: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut *lock(&self.connection.socket) {
            Some(socket) => act(Pin::new(socket)),
            None => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
        }
    }

    /// Asked by reads and by writes: while a client takes nothing, HTTP/2 does not read what it
    /// says.
    fn check_open(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.closed.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if self.must_be_greeted && self.connection.is_greeted() {
            self.silent = None;
        }
        if let Some(silent) = &mut self.silent
            && silent.as_mut().poll(context).is_ready()
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Whoever sends much waits while memory is short, but not forever: what it was sent may be
    /// what ends the shortage. So does whoever came as a peer and is no member, as far as anybody
    /// knows. Not a member, whose log would fall behind: what is held for members is counted
    /// ([`memory`]).
    fn hold_back(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let is_concerned = || match self.must_be_greeted {
            false => self.source().sends_much(),
            true => !self.connection.is_proven(),
        };
        let must_wait = memory::is_short() && is_concerned();
        if self.held_back.is_none() && must_wait {
            self.held_back = Some(Box::pin(sleep(HELD_BACK)));
        }
        if let Some(held_back) = &mut self.held_back {
            ready!(held_back.as_mut().poll(context));
        }
        Poll::Ready(())
    }

    /// So much was read.
    fn hear(&mut self, bytes: usize) {
        if self.first_word >= FIRST_WORD_BYTES {
            return;
        }
        self.first_word += bytes;
        if self.first_word >= FIRST_WORD_BYTES {
            self.connection.speaks();
            if !self.must_be_greeted {
                self.silent = None;
            }
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
        ready!(give_way(context));
        if self.source().is_behind(&self.connection.home) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.hold_back(context));
        let before = buffer.filled().len();
        let read = self.on_socket(|socket| socket.poll_read(context, buffer));
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            self.held_back = None;
            self.source().sends(bytes);
        }
        self.hear(bytes);
        read
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_open(context)?;
        ready!(give_way(context));
        let written = self.on_socket(|socket| socket.poll_write(context, bytes));
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_open(context)?;
        ready!(give_way(context));
        let written = self.on_socket(|socket| socket.poll_write_vectored(context, buffers));
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        // As a TCP socket's are.
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.on_socket(|socket| socket.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.on_socket(|socket| socket.poll_shutdown(context))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Others may hold the connection for longer than it is served.
        lock(&self.connection.socket).take();
        if let Some(connections) = self.connections.upgrade() {
            Connections(connections).leave(self.number);
        }
    }
}
