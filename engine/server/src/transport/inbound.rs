//! Lets peers in.

use std::sync::{Arc, RwLock, RwLockWriteGuard};
use std::time::Duration;

use bytes::Bytes;
use dengine_data_dir::Identity;
use dengine_kv::Membership;
use dengine_protocol::checks::peer::Admitted;
use dengine_protocol::checks::{peer, snapshot};
use dengine_protocol::peer::peer_server::{Peer, PeerServer};
use dengine_protocol::peer::{
    Ack, Frame, Hello, SnapshotAnswer, SnapshotDone, SnapshotFrame, snapshot_answer,
};
use dengine_raft::replica::Announcement;
use dengine_raft::{Input, peer_frames};
use dengine_types::MemberId;
use tokio::sync::{Semaphore, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use tower::ServiceBuilder;

use super::framed::Arriving;
use super::snapshot::{Incoming, Sender, SnapshotAnswers};
use super::strangers::{Newcomers, StrangersLayer};
use super::{FRAME_BYTES_MAX, Introduced, PeerRuntime};
use crate::config::Config;
use crate::connections::{self, Connections, Guarded, Http, OnConnection, Sources, WhenFull};
use crate::error::StartError;
use crate::files::{self, Use};
use crate::node::{Inbox, PeerStream, ToReplica};

/// A peer that opened a stream must say Hello within this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections of all peers. Each of at most 31 has one, one for snapshots, and for a moment those
/// that it begins again.
const CONNECTIONS_MAX: usize = 256;
/// A peer has one stream; an old and a new one for a moment. What lies in these windows is not
/// counted; they carry 200 MB/s over a round trip of ten milliseconds.
const HTTP: Http = Http {
    version_1: false,
    stream_window_bytes: 2 << 20,
    connection_window_bytes: 4 << 20,
    streams_max: 8,
    keepalive_interval: Duration::from_secs(5),
    keepalive_timeout: Duration::from_secs(20),
    resets_max: None,
};

/// Tells whom this member follows at present, if anybody.
pub(crate) type LeaderNow = Arc<dyn Fn() -> Option<MemberId> + Send + Sync>;

/// The way from a peer's stream to the replica thread.
pub(crate) struct PeerEntrance {
    pub(crate) identity: Identity,
    pub(crate) membership: watch::Receiver<Arc<Membership>>,
    pub(crate) introduced: Introduced,
    /// Whom this member follows.
    pub(crate) leader: LeaderNow,
    pub(crate) inbox: Inbox,
    /// Bounds the bytes that wait for the replica; a stream that finds none waits, and so does its
    /// peer.
    pub(crate) permits: Arc<Semaphore>,
    /// How many there are.
    pub(crate) permits_max: u32,
    pub(crate) permit_bytes: usize,
    pub(crate) incoming: Incoming,
    /// Ends every stream that came in by this entrance.
    pub(crate) closed: CancellationToken,
}

/// Closed while the member has no identity, and while a snapshot becomes its state.
#[derive(Clone, Default)]
pub(crate) struct PeerGate(Arc<RwLock<Option<Arc<PeerEntrance>>>>);

impl PeerGate {
    /// Lets peers in from now on.
    pub(crate) fn open(&self, entrance: PeerEntrance) {
        let before = self.write().replace(Arc::new(entrance));
        assert!(before.is_none(), "a member runs once at a time");
    }

    /// Lets nobody in from now on, and ends the streams of those who were.
    pub(crate) fn close(&self) {
        if let Some(entrance) = self.write().take() {
            entrance.closed.cancel();
        }
    }

    fn entrance(&self) -> Result<Arc<PeerEntrance>, Status> {
        let entrance = self.0.read().expect("no holder panics").clone();
        entrance.ok_or_else(closed)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<Arc<PeerEntrance>>> {
        self.0.write().expect("no holder panics")
    }
}

/// Listens for peers until it is stopped.
pub(crate) struct Listener {
    stop: CancellationToken,
}

impl Listener {
    pub(crate) async fn start(
        config: &Config,
        gate: PeerGate,
        peers: &PeerRuntime,
    ) -> Result<Self, StartError> {
        let address = config.listen_peer;
        // A socket belongs to the threads that it was made on.
        let listener = peers.handle().spawn(async move {
            dengine_listen::listen(address).and_then(tokio::net::TcpListener::from_std)
        });
        let listener = listener
            .await
            .expect("listening does not panic and is not cancelled")
            .map_err(|source| StartError::Listen { address, source })?;
        let stop = CancellationToken::new();
        let service = Arc::new(PeerService {
            gate,
            newcomers: Newcomers::default(),
            strangers: StrangersLayer::new(),
            stop: stop.clone(),
        });
        // Who holds connections open without a Hello makes room for those who say one.
        let most = files::most(Use::Peers, CONNECTIONS_MAX);
        let connections = Connections::new(most, WhenFull::MakeRoom, &Sources::default());
        let incoming = connections::Incoming::new(listener, connections).greeted();
        let stopped = stop.clone();
        peers.handle().spawn(async move {
            let serve_one = |connection| Arc::clone(&service).serve(connection);
            connections::serve_by(incoming, serve_one, &stopped).await;
        });
        Ok(Self { stop })
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct PeerService {
    gate: PeerGate,
    newcomers: Newcomers,
    strangers: StrangersLayer,
    stop: CancellationToken,
}

impl PeerService {
    /// Serves a connection by what is spoken on it: frames; or HTTP/2 for snapshots, and for
    /// members of versions that knew nothing else.
    async fn serve(self: Arc<Self>, mut connection: Guarded) {
        match connection.begins_with(&peer_frames::MAGIC).await {
            Ok(true) => self.exchange_framed(connection).await,
            Ok(false) => {
                let server = PeerServer::from_arc(Arc::clone(&self));
                let server = server.max_decoding_message_size(FRAME_BYTES_MAX);
                let services = ServiceBuilder::new()
                    .layer(self.strangers.clone())
                    .service(Routes::new(server).prepare());
                connections::serve_http(connection, HTTP, services, self.stop.clone()).await;
            }
            Err(error) => tracing::debug!(%error, "a peer's connection ended"),
        }
    }

    async fn exchange_framed(&self, connection: Guarded) {
        let counted = connection.counted();
        let mut arriving = Arriving::new(connection, self.strangers.newcomer());
        let ended = tokio::select! {
            ended = self.receive_framed(&mut arriving) => ended,
            () = self.stop.cancelled() => Err(stopping()),
            () = counted.closed() => return,
        };
        if let Err(status) = ended {
            arriving.refuse(&status).await;
        }
    }

    async fn receive_framed(&self, arriving: &mut Arriving) -> Result<(), Status> {
        let hello = tokio::time::timeout(HELLO_TIMEOUT, arriving.hello()).await;
        let hello = hello.map_err(|_| Status::deadline_exceeded("no Hello in time"))??;
        let entrance = self.gate.entrance()?;
        self.let_in(&entrance, &hello, arriving.connection())?;
        arriving.accept().await?;
        let received = entrance.receive_framed(&hello, arriving);
        entrance.while_open(&self.stop, received).await
    }
}

#[tonic::async_trait]
impl Peer for PeerService {
    type ExchangeStream = ReceiverStream<Result<Ack, Status>>;
    type SendSnapshotStream = ReceiverStream<Result<SnapshotAnswer, Status>>;

    async fn exchange(
        &self,
        request: Request<Streaming<Frame>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let connection = connection(&request);
        let mut frames = request.into_inner();
        let hello = read_hello(&mut frames).await?;
        let entrance = self.gate.entrance()?;
        self.let_in(&entrance, &hello, &connection)?;
        let (answers, stream) = tokio::sync::mpsc::channel(2);
        answers
            .try_send(Ok(peer::ack()))
            .expect("the channel is new and has room");
        let stop = self.stop.clone();
        let on = Arc::clone(&connection);
        on.spawn(async move {
            let received = entrance.receive(&hello, &connection, frames);
            if let Err(status) = entrance.while_open(&stop, received).await {
                // The peer may be gone already; it will come back with a new stream.
                let _ = answers.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn send_snapshot(
        &self,
        request: Request<Streaming<SnapshotFrame>>,
    ) -> Result<Response<Self::SendSnapshotStream>, Status> {
        let connection = connection(&request);
        let mut frames = request.into_inner();
        let first = tokio::time::timeout(HELLO_TIMEOUT, frames.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no Hello in time"))??;
        let hello = snapshot::hello(first)?;
        let entrance = self.gate.entrance()?;
        self.let_in(&entrance, &hello, &connection)?;
        let (answers, stream) = tokio::sync::mpsc::channel(2);
        let stop = self.stop.clone();
        connection.spawn(async move {
            let received = entrance.receive_snapshot(&hello, frames, &answers);
            if let Err(status) = entrance.while_open(&stop, received).await {
                tracing::info!(from = hello.from, %status, "a snapshot was not received");
                // The peer may be gone already; it will come back with a new stream.
                let _ = answers.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

impl PeerService {
    /// Lets a peer in that has just said Hello. What it is trusted with depends on whether the log
    /// has told of it.
    fn let_in(
        &self,
        entrance: &PeerEntrance,
        hello: &Hello,
        connection: &Arc<connections::Connection>,
    ) -> Result<(), Status> {
        if entrance.greet(hello)?.introduced {
            self.newcomers.greet(connection);
        } else {
            connection.prove();
        }
        Ok(())
    }
}

fn connection<T>(request: &Request<T>) -> Arc<connections::Connection> {
    let connection = request.extensions().get::<OnConnection>();
    let connection = connection.expect("every connection of this port is counted");
    Arc::clone(&connection.connection)
}

fn stopping() -> Status {
    Status::unavailable("this member is stopping")
}

fn closed() -> Status {
    Status::unavailable("this member takes part in no cluster now")
}

/// What the peer sends next, unless the replica has refused what it sent before.
async fn unless_refused<F>(
    stream: &PeerStream,
    next: impl Future<Output = Result<Option<F>, Status>>,
) -> Result<Option<F>, Status> {
    tokio::select! {
        frame = next => frame,
        () = stream.refused() => Err(Status::invalid_argument(
            "refused a message that members never send; this member's log says why",
        )),
    }
}

async fn read_hello(frames: &mut Streaming<Frame>) -> Result<Hello, Status> {
    let first = tokio::time::timeout(HELLO_TIMEOUT, frames.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no Hello in time"))??;
    peer::hello(first)
}

impl PeerEntrance {
    /// Lets a peer in that has just said Hello, and tells the replica which commands it reads.
    ///
    /// # Errors
    /// As [`Self::admit`].
    fn greet(&self, hello: &Hello) -> Result<Admitted, Status> {
        let admitted = self.admit(hello)?;
        let announced = Input::Announced {
            member: admitted.member,
            by: Announcement::Hello,
            reads_max: admitted.reads_max,
        };
        self.inbox.send(announced).map_err(|_| stopping())?;
        Ok(admitted)
    }

    /// # Errors
    /// The peer is not one of this member's, or wants to speak to somebody else.
    fn admit(&self, hello: &Hello) -> Result<Admitted, Status> {
        let Identity {
            cluster_id,
            member_id,
        } = self.identity;
        let admitted = peer::admit(cluster_id, member_id, &self.membership.borrow(), hello)?;
        if admitted.introduced {
            let address = hello.peer_address.clone();
            self.introduced.set(admitted.member, address);
        }
        Ok(admitted)
    }

    /// Works until it is done, the member stops, or it closes this entrance.
    async fn while_open(
        &self,
        stop: &CancellationToken,
        work: impl Future<Output = Result<(), Status>>,
    ) -> Result<(), Status> {
        tokio::select! {
            end = work => end,
            () = stop.cancelled() => Err(stopping()),
            () = self.closed.cancelled() => Err(closed()),
        }
    }

    async fn receive_snapshot(
        &self,
        hello: &Hello,
        frames: Streaming<SnapshotFrame>,
        answers: &SnapshotAnswers,
    ) -> Result<(), Status> {
        let Admitted {
            member: from,
            introduced,
            ..
        } = self.admit(hello)?;
        self.check_stranger(from, introduced)?;
        let sender = Sender {
            member: from,
            introduced,
        };
        let message = self.incoming.receive(sender, frames, answers).await?;
        // The log may have told something new about the peer meanwhile.
        self.admit(hello)?;
        let staged = Input::SnapshotStaged { from, message };
        self.inbox.send_now(staged).map_err(|_| stopping())?;
        let done = snapshot_answer::Kind::Done(SnapshotDone {});
        // The sender may be gone already.
        let _ = answers.send(Ok(SnapshotAnswer { kind: Some(done) })).await;
        Ok(())
    }

    async fn receive(
        &self,
        hello: &Hello,
        connection: &connections::Connection,
        mut frames: Streaming<Frame>,
    ) -> Result<(), Status> {
        let stream = Arc::default();
        while let Some(frame) = unless_refused(&stream, frames.message()).await? {
            let from = self.admit_frame(hello, connection)?;
            let messages = peer::batch(frame)?.messages;
            self.deliver(from, &stream, messages).await?;
        }
        Ok(())
    }

    /// The same of a stream of frames.
    async fn receive_framed(&self, hello: &Hello, arriving: &mut Arriving) -> Result<(), Status> {
        let stream = Arc::default();
        while let Some(frame) = unless_refused(&stream, arriving.next()).await? {
            let from = self.admit_frame(hello, arriving.connection())?;
            let messages = peer::messages(frame)?;
            self.deliver(from, &stream, messages).await?;
        }
        Ok(())
    }

    /// Whose frame it is. Judged again each time: since the stream was opened the log may have told
    /// that the peer was removed, that it is not who it said, or that it is.
    fn admit_frame(
        &self,
        hello: &Hello,
        connection: &connections::Connection,
    ) -> Result<MemberId, Status> {
        let Admitted {
            member: from,
            introduced,
            ..
        } = self.admit(hello)?;
        if !introduced {
            connection.prove();
        }
        self.check_stranger(from, introduced)?;
        Ok(from)
    }

    /// Refuses whom the log has not told of, unless it may be the leader that this member lacks.
    fn check_stranger(&self, from: MemberId, introduced: bool) -> Result<(), Status> {
        match introduced {
            true => may_speak((self.leader)(), from),
            false => Ok(()),
        }
    }

    async fn deliver(
        &self,
        from: MemberId,
        stream: &Arc<PeerStream>,
        messages: Vec<Bytes>,
    ) -> Result<(), Status> {
        let mut together = Vec::new();
        for bytes in messages {
            let wanted = peer::permits(bytes.len(), self.permit_bytes, self.permits_max);
            let permit = match Arc::clone(&self.permits).try_acquire_many_owned(wanted) {
                Ok(permit) => permit,
                // What has its place gives it back only once it is handed over.
                Err(_) => {
                    self.hand_over(std::mem::take(&mut together))?;
                    let permit = Arc::clone(&self.permits).acquire_many_owned(wanted);
                    permit.await.map_err(|_| stopping())?
                }
            };
            together.push(ToReplica::Message {
                from,
                bytes,
                permit,
                stream: Arc::clone(stream),
            });
        }
        self.hand_over(together)
    }

    fn hand_over(&self, messages: Vec<ToReplica>) -> Result<(), Status> {
        let handed_over = self.inbox.send_all(messages);
        handed_over.map_err(|_| stopping())
    }
}

/// Whether somebody may send messages or a snapshot of whom the log has not told. It may be the
/// leader of this member, which does not know it yet; one that follows another, or leads, it could
/// only depose, or fill its disk.
fn may_speak(leader: Option<MemberId>, from: MemberId) -> Result<(), Status> {
    match leader {
        Some(leader) if leader != from => Err(Status::permission_denied(format!(
            "member {leader} leads here, and member {from} is not in this member's log yet: retry \
             once it is"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_say_nothing_to_a_member_that_has_a_leader() {
        let [leader, stranger] = [MemberId(1), MemberId(1 << 40)];
        assert!(may_speak(Some(leader), stranger).is_err());
        assert!(may_speak(None, stranger).is_ok(), "it joins, or was away");
        assert!(may_speak(Some(leader), leader).is_ok());
    }
}
