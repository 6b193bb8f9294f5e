//! Sends to peers.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dengine_data_dir::Identity;
use dengine_kv::Membership;
use dengine_protocol::PEER_FRAME_MESSAGES_MAX;
use dengine_protocol::checks::peer::{self, PROTOCOL};
use dengine_protocol::peer::peer_client::PeerClient;
use dengine_protocol::peer::{Ack, Batch, Frame, Hello, frame};
use dengine_raft::channel::Sender;
use dengine_raft::link_queue::LinkQueue;
use dengine_raft::peer_queue::{Dropped, QueueLimits};
use dengine_raft::replica::Announcement;
use dengine_raft::{Input, Outbound};
use dengine_types::MemberId;
use tokio::sync::{mpsc as queue, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::framed::{self, Opened};
use super::line::Line;
use super::snapshot::{OutgoingSnapshot, SnapshotSender};
use super::{FRAME_BYTES_MAX, Introduced, message_bytes, queue_bytes};
use crate::config::Config;
use crate::node::{ToReplica, metrics};

/// Messages that wait for one peer, whatever their size; more are dropped, and Raft sends them
/// again. A frame may hold all.
const QUEUE_MESSAGES: usize = PEER_FRAME_MESSAGES_MAX;
/// Frames in flight to the connection. With two, one is written while the next one fills.
const FRAMES_IN_FLIGHT: usize = 2;
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// What a peer said before it hung up is here already.
const LAST_WORD_TIMEOUT: Duration = Duration::from_millis(100);
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// The links to all peers, owned by the replica thread.
pub(crate) struct Peers {
    own: Arc<Own>,
    runtime: tokio::runtime::Handle,
    addresses: Addresses,
    links: HashMap<MemberId, Link>,
    snapshots: SnapshotSender,
}

/// What every link needs.
pub(super) struct Own {
    identity: Identity,
    folder_id: String,
    peer_address: String,
    limits: QueueLimits,
    pub(super) inbox: Sender<ToReplica>,
}

impl Own {
    fn tell(&self, news: Input) {
        // If the replica is gone, its links are about to be dropped.
        let _ = self.inbox.send(news.into());
    }

    pub(super) fn hello(&self, to: MemberId) -> Hello {
        Hello {
            protocol: PROTOCOL,
            cluster_id: self.identity.cluster_id.0,
            from: self.identity.member_id.0,
            to: to.0,
            peer_address: self.peer_address.clone(),
            folder_id: self.folder_id.clone(),
            commands_read_max: peer::commands_read_max(),
        }
    }

    /// Tells the replica which commands a peer reads.
    fn note_ack(&self, member: MemberId, ack: &Ack) {
        let announced = Input::Announced {
            member,
            by: Announcement::Ack {
                takes_passed_on: ack.takes_passed_on,
            },
            reads_max: peer::acknowledged(ack),
        };
        // If the replica is gone, nobody needs to know.
        let _ = self.inbox.send(announced.into());
    }
}

/// Where the other members are.
#[derive(Clone)]
pub(super) struct Addresses {
    membership: watch::Receiver<Arc<Membership>>,
    introduced: Introduced,
}

impl Addresses {
    /// The log knows best; until it has told, a member's own word counts.
    pub(super) fn get(&self, member: MemberId) -> Option<String> {
        let membership = self.membership.borrow();
        match membership.members.get(&member) {
            Some(member) => Some(member.peer_address.clone()),
            None if membership.has_removed(member) => None,
            None => self.introduced.get(member),
        }
    }
}

/// # Errors
/// Nobody answers there.
pub(super) async fn connect(address: &str) -> Result<Channel, Status> {
    let unavailable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    Endpoint::from_shared(format!("http://{address}"))
        .map_err(unavailable)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(Some(4 << 20))
        .initial_connection_window_size(Some(16 << 20))
        .http2_keep_alive_interval(Duration::from_secs(2))
        .keep_alive_timeout(Duration::from_secs(2))
        .keep_alive_while_idle(true)
        .connect()
        .await
        .map_err(unavailable)
}

fn queue_limits(config: &Config) -> QueueLimits {
    QueueLimits {
        frame_bytes: message_bytes(config),
        frame_bytes_max: FRAME_BYTES_MAX,
        queue_bytes: queue_bytes(config),
        queue_messages: QUEUE_MESSAGES,
        retry_min: RETRY_MIN,
        retry_max: RETRY_MAX,
    }
}

/// Dropping it ends its task.
struct Link {
    address: String,
    queue: Arc<LinkQueue>,
    line: Arc<Line>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.queue.close();
        self.line.tell();
    }
}

impl Peers {
    pub(crate) fn new(
        config: &Config,
        identity: Identity,
        folder_id: String,
        (runtime, snapshot_runtime): (tokio::runtime::Handle, tokio::runtime::Handle),
        membership: watch::Receiver<Arc<Membership>>,
        introduced: Introduced,
        inbox: Sender<ToReplica>,
    ) -> Self {
        let own = Arc::new(Own {
            identity,
            folder_id,
            peer_address: config.advertise_peer.clone(),
            limits: queue_limits(config),
            inbox,
        });
        let addresses = Addresses {
            membership,
            introduced,
        };
        let bytes_per_second = config.snapshot.bytes_per_second;
        let snapshots = SnapshotSender::new(
            Arc::clone(&own),
            // Of their own, so that reading files holds up no heartbeat.
            snapshot_runtime,
            addresses.clone(),
            bytes_per_second,
        );
        Self {
            own,
            runtime,
            addresses,
            links: HashMap::new(),
            snapshots,
        }
    }

    /// Sends a snapshot; [`Input::SnapshotSent`] tells how that ended.
    pub(crate) fn send_snapshot(
        &mut self,
        to: MemberId,
        message: Bytes,
        snapshot: Arc<OutgoingSnapshot>,
    ) {
        self.snapshots.send(to, message, snapshot);
    }

    /// Breaks off whatever snapshots are being sent; each is reported as failed.
    pub(crate) fn cancel_snapshots(&mut self) {
        self.snapshots.cancel();
    }

    /// Queues messages; never waits.
    pub(crate) fn send(&mut self, messages: Vec<Outbound>) {
        let membership = &mut self.addresses.membership;
        if membership.has_changed().unwrap_or(false) {
            membership.mark_unchanged();
            let current: Vec<_> = self.links.keys().copied().collect();
            for member in current {
                let address = self.addresses.get(member);
                let keep = |link: &Link| address.as_ref() == Some(&link.address);
                if !self.links.get(&member).is_some_and(keep) {
                    self.links.remove(&member);
                    self.own.tell(Input::Disconnected(member));
                }
            }
        }
        let mut to: Vec<_> = messages.iter().map(|it| it.to).collect();
        for message in messages {
            self.queue(message);
        }
        to.sort_unstable();
        to.dedup();
        for link in to.iter().filter_map(|to| self.links.get(to)) {
            link.line.send_at_once(&link.queue);
        }
    }

    fn queue(&mut self, message: Outbound) {
        if !self.links.contains_key(&message.to) {
            let Some(address) = self.addresses.get(message.to) else {
                return;
            };
            let link = self.open(message.to, address);
            self.links.insert(message.to, link);
        }
        let to = message.to;
        if let Err(dropped) = self.links[&to].queue.push(message) {
            self.on_dropped(to, dropped);
        }
    }

    fn on_dropped(&self, to: MemberId, dropped: Dropped) {
        ::metrics::counter!(metrics::PEER_MESSAGES_DROPPED_TOTAL).increment(1);
        match dropped {
            Dropped::Full => self.own.tell(Input::Unreachable(to)),
            Dropped::TooLarge { .. } => {
                tracing::error!(to = to.0, %dropped, "a message to a peer was dropped");
            }
        }
    }

    fn open(&self, to: MemberId, address: String) -> Link {
        let link = Link {
            address,
            queue: Arc::new(LinkQueue::new(self.own.limits)),
            line: Arc::default(),
        };
        self.runtime.spawn(LinkTask::of(&link, to, &self.own).run());
        link
    }
}

struct LinkTask {
    own: Arc<Own>,
    to: MemberId,
    address: String,
    queue: Arc<LinkQueue>,
    line: Arc<Line>,
}

impl LinkTask {
    fn of(link: &Link, to: MemberId, own: &Arc<Own>) -> Self {
        Self {
            own: Arc::clone(own),
            to,
            address: link.address.clone(),
            queue: Arc::clone(&link.queue),
            line: Arc::clone(&link.line),
        }
    }

    /// Connects again and again until the link is dropped.
    async fn run(self) {
        let mut told = String::new();
        while let Err(status) = self.exchange().await {
            if self.queue.is_closed() {
                return;
            }
            self.tell(&status, &mut told);
            if peer::says_removed(&status) {
                self.own.tell(Input::Removed);
            }
            let pause = self.queue.broke();
            self.own.tell(Input::Disconnected(self.to));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.queue.closed() => return,
            }
        }
    }

    /// Who is down comes back by itself. Who refuses this member will do so again, and says what a
    /// person has to do: that is told once, though it is heard at every try.
    fn tell(&self, status: &Status, told: &mut String) {
        let (to, address) = (self.to.0, &self.address);
        if status.code() != Code::FailedPrecondition {
            tracing::debug!(to, address, %status, "a peer cannot be reached");
        } else if told != status.message() {
            status.message().clone_into(told);
            tracing::warn!(to, address, refusal = %told, "a peer refuses this member's stream");
        }
    }

    /// Sends until the link is dropped (`Ok`) or the stream breaks (`Err`).
    async fn exchange(&self) -> Result<(), Status> {
        let opening = framed::open(&self.address, self.own.hello(self.to));
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, opening).await;
        match opened.map_err(|_| Status::deadline_exceeded("no answer to the Hello"))?? {
            Opened::Framed { ack, stream } => {
                // Before anything is said because of the Ack.
                self.queue.opened();
                self.own.note_ack(self.to, &ack);
                self.exchange_framed(stream).await
            }
            Opened::SpeaksGrpc => self.exchange_by_grpc().await,
        }
    }

    async fn exchange_framed(&self, stream: framed::Stream) -> Result<(), Status> {
        self.line.open(Arc::clone(stream.socket()));
        let mut ended = pin!(stream.ended());
        let sent = tokio::select! {
            why = &mut ended => Err(why),
            sent = self.line.send_rest(&self.queue) => match sent {
                Ok(()) => Ok(()),
                // A peer that hangs up may have said why, and that is still to be read.
                Err(error) => {
                    let why = tokio::time::timeout(LAST_WORD_TIMEOUT, ended).await;
                    Err(why.unwrap_or_else(|_| framed::broke(&error)))
                }
            },
        };
        self.line.close();
        sent
    }

    /// To a member of a version that knows no frames.
    async fn exchange_by_grpc(&self) -> Result<(), Status> {
        let channel = connect(&self.address).await?;
        let (frames, stream) = queue::channel(FRAMES_IN_FLIGHT);
        frames
            .try_send(self.hello())
            .expect("the channel is new and has room");
        let mut client = PeerClient::new(channel).max_encoding_message_size(FRAME_BYTES_MAX);
        let exchange = client.exchange(ReceiverStream::new(stream));
        let mut acks = tokio::time::timeout(CONNECT_TIMEOUT, exchange)
            .await
            .map_err(|_| Status::deadline_exceeded("no answer to the Hello"))??
            .into_inner();
        let Some(ack) = acks.message().await? else {
            return Err(Status::unavailable("the peer ended the stream"));
        };
        self.queue.opened();
        self.own.note_ack(self.to, &ack);
        tokio::select! {
            end = acks.message() => {
                end?;
                Err(Status::unavailable("the peer ended the stream"))
            }
            end = self.send_to(&frames) => end,
        }
    }

    /// Sends everything that queued as soon as there is room for a frame; nothing waits on a timer.
    async fn send_to(&self, frames: &queue::Sender<Frame>) -> Result<(), Status> {
        loop {
            let slot = frames.reserve().await;
            let slot = slot.map_err(|_| Status::unavailable("the stream broke"))?;
            let Some(messages) = self.queue.next_frame().await else {
                return Ok(());
            };
            slot.send(Frame {
                kind: Some(frame::Kind::Batch(Batch { messages })),
            });
        }
    }

    fn hello(&self) -> Frame {
        Frame {
            kind: Some(frame::Kind::Hello(self.own.hello(self.to))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use dengine_raft::channel::channel;
    use dengine_types::ClusterId;

    use super::*;

    /// It tried again forever, for each member that had ever been removed.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_task_of_a_dropped_link_ends_though_nobody_answers() {
        let long = Duration::from_secs(20);
        // Nobody listens there any more.
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = gone.local_addr().unwrap().to_string();
        drop(gone);
        let (inbox, told) = channel();
        let own = Own {
            identity: Identity {
                cluster_id: ClusterId(1),
                member_id: MemberId(1),
            },
            folder_id: String::new(),
            peer_address: String::new(),
            limits: queue_limits(&Config::default()),
            inbox,
        };
        let link = Link {
            address,
            queue: Arc::new(LinkQueue::new(own.limits)),
            line: Arc::default(),
        };
        let task = LinkTask::of(&link, MemberId(2), &Arc::new(own));
        let ends = tokio::spawn(task.run());
        for _ in 0..2 {
            let input = told.recv_timeout(long).expect("it tries again and again");
            assert!(matches!(
                input,
                ToReplica::Input(Input::Disconnected(MemberId(2)))
            ));
        }
        drop(link);
        let ended = tokio::time::timeout(long, ends).await;
        ended.expect("it ends").expect("it does not panic");
    }
}
