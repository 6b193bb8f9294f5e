//! A system under comparison, as a sequence sees it, and the one that is reached by gRPC.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::contests::Contests;
use crate::generate::STREAMS;
use crate::operation::Operation;
use crate::pb;
use crate::pb::cluster_client::ClusterClient;
use crate::pb::kv_client::KvClient;
use crate::pb::lease_client::LeaseClient;
use crate::pb::maintenance_client::MaintenanceClient;
use crate::pb::watch_client::WatchClient;
use crate::pb::watch_request::RequestUnion;
use crate::pieces::merged;
use crate::reply::Reply;
use crate::stream::{Entry, StreamLog};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long watches may take to catch up, where a request for progress tells.
const SETTLE_PATIENCE: Duration = Duration::from_secs(3);
/// How often progress is asked for, as etcd forgets requests.
const PROGRESS_EVERY: Duration = Duration::from_millis(20);
/// etcd looks for watches that are behind every 100 ms. Where it would not say whether it did, this
/// is waited.
const CATCH_UP: Duration = Duration::from_millis(350);
/// How long events are on their way, where it would not say either.
const ON_THE_WAY: Duration = Duration::from_millis(30);
const MESSAGE_BYTES_MAX: usize = 512 << 20;

/// What the watches of each stream were sent since it was last forgotten, and how streams ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Watched {
    pub(crate) streams: BTreeMap<usize, BTreeMap<i64, Vec<Entry>>>,
    pub(crate) ended: BTreeMap<usize, (tonic::Code, String)>,
}

/// What a sequence is run on.
pub(crate) trait System {
    /// Sends one call, and waits for its answer.
    fn call(&mut self, operation: &Operation) -> impl Future<Output = Reply> + Send;

    /// Waits until every watch was sent all that has happened.
    fn settle(&mut self) -> impl Future<Output = ()> + Send;

    fn watched(&self) -> Watched;

    /// Whether this watch was ended by a compaction. etcd gives its id to no other one until it is
    /// cancelled as well.
    fn keeps(&self, stream: usize, id: i64) -> bool;

    /// Promises that this side broke.
    fn broken(&self) -> Vec<String>;

    /// What was watched is equal on both sides.
    fn forget(&mut self);
}

/// A system behind one address.
pub(crate) struct Client {
    kv: KvClient<Channel>,
    watch: WatchClient<Channel>,
    lease: LeaseClient<Channel>,
    cluster: ClusterClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
    contests: Contests,
    streams: [Option<Stream>; STREAMS],
    /// The newest revision that it named.
    revision: i64,
    /// Added to every revision of a request.
    shift: i64,
}

struct Stream {
    requests: mpsc::Sender<pb::WatchRequest>,
    log: watch::Sender<StreamLog>,
    /// Reads what comes; ends with this.
    _reader: JoinSet<()>,
}

impl Client {
    /// Connects to `host:port`, with or without `http://`.
    pub(crate) async fn connect(address: &str) -> Result<Self> {
        let url = match address.contains("://") {
            true => address.to_owned(),
            false => format!("http://{address}"),
        };
        let endpoint = Endpoint::from_shared(url)?.connect_timeout(PATIENCE);
        let channel = endpoint.connect().await.context("connecting")?;
        let most = MESSAGE_BYTES_MAX;
        Ok(Self {
            kv: KvClient::new(channel.clone()).max_decoding_message_size(most),
            watch: WatchClient::new(channel.clone()).max_decoding_message_size(most),
            lease: LeaseClient::new(channel.clone()).max_decoding_message_size(most),
            cluster: ClusterClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            contests: Contests::over(channel),
            streams: Default::default(),
            revision: 0,
            shift: 0,
        })
    }

    /// A sequence's revision 1 is this one more.
    pub(crate) fn shift_by(&mut self, revisions: i64) {
        self.shift = revisions;
    }

    async fn send(&mut self, operation: Operation) -> Reply {
        use Operation as Call;
        match operation {
            Call::Range(request) => Reply::of(self.kv.range(request).await, Reply::Range),
            Call::RangeStream(request) => self.range_stream(request).await,
            Call::Put(request) => Reply::of(self.kv.put(request).await, Reply::Put),
            Call::Delete(request) => Reply::of(self.kv.delete_range(request).await, Reply::Delete),
            Call::Txn(request) => Reply::of(self.kv.txn(request).await, Reply::Txn),
            Call::Compact(request) => Reply::of(self.kv.compact(request).await, Reply::Compact),
            Call::Watch { stream, request } => self.watch(stream, request).await,
            Call::Grant(request) => Reply::of(self.lease.lease_grant(request).await, Reply::Grant),
            Call::Revoke(request) => {
                Reply::of(self.lease.lease_revoke(request).await, Reply::Revoke)
            }
            Call::KeepAlive(request) => self.keep_alive(request).await,
            Call::TimeToLive(request) => {
                let answer = self.lease.lease_time_to_live(request).await;
                Reply::of(answer, Reply::TimeToLive)
            }
            Call::Leases(request) => {
                Reply::of(self.lease.lease_leases(request).await, Reply::Leases)
            }
            Call::Lock(request) => self.contests.lock(request).await,
            Call::Unlock(request) => self.contests.unlock(request).await,
            Call::Campaign(request) => self.contests.campaign(request).await,
            Call::Proclaim(request) => self.contests.proclaim(request).await,
            Call::Leader(request) => self.contests.leader(request).await,
            Call::Observe(request) => self.contests.observe(request).await,
            Call::Resign(request) => self.contests.resign(request).await,
            Call::Members(request) => {
                Reply::of(self.cluster.member_list(request).await, Reply::Members)
            }
            Call::Status(request) => {
                Reply::of(self.maintenance.status(request).await, Reply::Status)
            }
            Call::HashKv(request) => {
                Reply::of(self.maintenance.hash_kv(request).await, Reply::HashKv)
            }
            Call::Alarm(request) => Reply::of(self.maintenance.alarm(request).await, Reply::Alarm),
        }
    }

    async fn range_stream(&mut self, request: pb::RangeRequest) -> Reply {
        let pieces = async {
            let pieces = self.kv.range_stream(request).await?.into_inner();
            pieces.collect::<Result<Vec<_>, Status>>().await
        };
        match pieces.await {
            Ok(pieces) => merged(pieces).map_or_else(Reply::Broken, Reply::Range),
            Err(status) => status.into(),
        }
    }

    async fn keep_alive(&mut self, request: pb::LeaseKeepAliveRequest) -> Reply {
        let requests = tokio_stream::once(request);
        let first = async {
            let answers = self.lease.lease_keep_alive(requests).await?;
            answers.into_inner().message().await
        };
        match first.await {
            Ok(answer) => Reply::KeepAlive(answer),
            Err(status) => status.into(),
        }
    }

    async fn watch(&mut self, number: usize, request: pb::WatchRequest) -> Reply {
        let client = &self.watch;
        let stream = self.streams[number % STREAMS].get_or_insert_with(|| open(client));
        let mut created = None;
        let mut answered = false;
        match &request.request_union {
            Some(RequestUnion::CreateRequest(create)) => {
                created = Some(create.start_revision);
                answered = true;
            }
            Some(RequestUnion::CancelRequest(cancel)) => {
                stream
                    .log
                    .send_modify(|log| answered = log.cancel(cancel.watch_id));
            }
            _ => {}
        }
        if stream.requests.send(request).await.is_err() || !answered {
            return Reply::Silence;
        }
        let Some(answer) = stream.answer().await else {
            return Reply::Missing;
        };
        if let Some(start) = created {
            stream.log.send_modify(|log| log.begins(&answer, start));
        }
        Reply::Watch(answer)
    }
}

/// A stream that begins with its first request: the head of etcd's answer comes with its first
/// message.
fn open(client: &WatchClient<Channel>) -> Stream {
    let (requests, queue) = mpsc::channel(16);
    let log = watch::Sender::new(StreamLog::default());
    let reading = read(client.clone(), queue, log.clone());
    let mut reader = JoinSet::new();
    reader.spawn(reading);
    Stream {
        requests,
        log,
        _reader: reader,
    }
}

/// Notes what comes until nothing more does.
async fn read(
    mut client: WatchClient<Channel>,
    queue: mpsc::Receiver<pb::WatchRequest>,
    log: watch::Sender<StreamLog>,
) {
    let messages = async {
        let answers = client.watch(ReceiverStream::new(queue)).await?;
        let mut answers = answers.into_inner();
        while let Some(response) = answers.message().await? {
            log.send_modify(|log| log.take(response));
        }
        Ok::<_, Status>(())
    };
    let ended = messages.await;
    let end = ended.err().unwrap_or_else(|| Status::ok("ended"));
    log.send_modify(|log| log.ended = Some((end.code(), end.message().to_owned())));
}

impl Stream {
    async fn answer(&self) -> Option<pb::WatchResponse> {
        let mut news = self.log.subscribe();
        let there = |log: &StreamLog| !log.answers.is_empty() || log.ended.is_some();
        let came = timeout(PATIENCE, news.wait_for(there)).await;
        drop(came.ok()?.ok()?);
        let mut answer = None;
        self.log.send_modify(|log| answer = log.answers.pop_front());
        answer
    }

    async fn settle(&self, revision: i64) {
        let (watches, silent, behind) = {
            let log = self.log.borrow();
            let silent = log.cannot_tell(revision);
            (log.has_watches(), silent, log.is_behind())
        };
        if !watches {
            return;
        }
        if !silent {
            // If it never comes, what was sent is compared all the same.
            let _ = timeout(SETTLE_PATIENCE, self.progress(revision)).await;
        }
        if silent || self.log.borrow().cannot_tell(revision) {
            let wait = if behind { CATCH_UP } else { ON_THE_WAY };
            tokio::time::sleep(wait).await;
        }
        self.log.send_modify(StreamLog::caught_up);
    }

    /// Waits until progress is said, or never will be.
    async fn progress(&self, revision: i64) {
        let mut news = self.log.subscribe();
        let before = self.log.borrow().progress;
        loop {
            let union = RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
            let request = pb::WatchRequest {
                request_union: Some(union),
            };
            if self.requests.send(request).await.is_err() {
                return;
            }
            let over = |log: &StreamLog| {
                let never = !log.has_watches() || log.cannot_tell(revision);
                log.progress > before || log.ended.is_some() || never
            };
            if timeout(PROGRESS_EVERY, news.wait_for(over)).await.is_ok() {
                return;
            }
        }
    }
}

impl System for Client {
    async fn call(&mut self, operation: &Operation) -> Reply {
        let shifted = crate::shift::shifted(operation.clone(), self.shift);
        let answer = timeout(PATIENCE, self.send(shifted)).await;
        let reply = answer.unwrap_or(Reply::Missing);
        self.revision = self.revision.max(reply.revision());
        reply
    }

    async fn settle(&mut self) {
        for stream in self.streams.iter().flatten() {
            stream.settle(self.revision).await;
        }
    }

    fn watched(&self) -> Watched {
        let mut watched = Watched::default();
        for (number, stream) in self.streams.iter().enumerate() {
            let Some(stream) = stream else { continue };
            let log = stream.log.borrow();
            if !log.sent.is_empty() {
                watched.streams.insert(number, log.sent.clone());
            }
            if let Some(end) = &log.ended {
                watched.ended.insert(number, end.clone());
            }
        }
        watched
    }

    fn keeps(&self, stream: usize, id: i64) -> bool {
        let stream = self.streams[stream % STREAMS].as_ref();
        stream.is_some_and(|it| it.log.borrow().keeps(id))
    }

    fn broken(&self) -> Vec<String> {
        let streams = self.streams.iter().flatten();
        streams
            .flat_map(|stream| stream.log.borrow().broken.clone())
            .collect()
    }

    fn forget(&mut self) {
        for stream in self.streams.iter().flatten() {
            stream.log.send_modify(|log| log.sent.clear());
        }
    }
}
