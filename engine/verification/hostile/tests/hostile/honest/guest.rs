//! Honest clients of etcd's API, beside those that only write and read. Once a second somebody new
//! takes a lease, watches a key that hangs on it, and goes again. And somebody stays, whose lease
//! is kept alive and whose watch tells of every write.

use anyhow::{Context as _, Result, ensure};
use dengine_etcd::etcdserverpb::kv_client::KvClient;
use dengine_etcd::etcdserverpb::lease_client::LeaseClient;
use dengine_etcd::etcdserverpb::watch_client::WatchClient;
use dengine_etcd::etcdserverpb::watch_request::RequestUnion;
use dengine_etcd::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use futures::channel::mpsc;
use tokio::sync::Mutex;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::{PATIENCE, within};

/// Of each lease; it is kept alive once a second.
const TTL_SECONDS: i64 = 10;

/// Somebody new.
pub(super) async fn visit(endpoints: &[String], number: u64) -> Result<()> {
    let mut guest = Guest::come(endpoints, number).await?;
    guest.look_around(number).await?;
    guest.go().await
}

/// Who stays; whoever met an error comes again the next time.
#[derive(Default)]
pub(super) struct Stays(Mutex<Option<Guest>>);

impl Stays {
    pub(super) async fn look_around(&self, endpoints: &[String], number: u64) -> Result<()> {
        let mut stays = self.0.lock().await;
        let mut guest = match stays.take() {
            Some(guest) => guest,
            None => Guest::come(endpoints, number).await?,
        };
        guest.look_around(number).await?;
        *stays = Some(guest);
        Ok(())
    }
}

/// One of them: a lease, and a watch of the key that hangs on it.
struct Guest {
    kv: KvClient<Channel>,
    leases: LeaseClient<Channel>,
    key: String,
    lease: i64,
    keep: mpsc::Sender<LeaseKeepAliveRequest>,
    kept: Streaming<LeaseKeepAliveResponse>,
    events: Streaming<WatchResponse>,
    // With it the watch would end.
    _watch: mpsc::Sender<WatchRequest>,
}

impl Guest {
    /// Does all that comes first, at one of the members.
    async fn come(endpoints: &[String], number: u64) -> Result<Self> {
        let endpoint = &endpoints[number as usize % endpoints.len()];
        let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?;
        let endpoint = endpoint.connect_timeout(PATIENCE);
        let channel = within("connect", endpoint.connect()).await?;
        let mut leases = LeaseClient::new(channel.clone());
        let grant = LeaseGrantRequest {
            ttl: TTL_SECONDS,
            id: 0,
        };
        let granted = within("take a lease", leases.lease_grant(grant)).await?;
        let lease = granted.into_inner().id;
        let key = format!("guest/{lease:x}");
        let (keep, asked) = mpsc::channel(1);
        let kept = within("keep leases alive", leases.lease_keep_alive(asked)).await?;
        let (watch, events) = watch(channel.clone(), &key).await?;
        Ok(Self {
            kv: KvClient::new(channel),
            leases,
            key,
            lease,
            keep,
            kept: kept.into_inner(),
            events,
            _watch: watch,
        })
    }

    /// Keeps the lease alive, writes, and sees that by the watch and by a read.
    async fn look_around(&mut self, number: u64) -> Result<()> {
        self.keep_alive().await?;
        let put = PutRequest {
            key: self.key.clone().into(),
            value: number.to_string().into(),
            lease: self.lease,
            ..PutRequest::default()
        };
        let put = within("write", self.kv.put(put)).await?.into_inner();
        let revision = put.header.context("a write has a header")?.revision;
        self.see(revision).await?;
        let get = RangeRequest {
            key: self.key.clone().into(),
            ..RangeRequest::default()
        };
        let found = within("read", self.kv.range(get)).await?.into_inner();
        let found = found.kvs.first().context("read nothing")?;
        ensure!(found.mod_revision == revision, "read another write");
        Ok(())
    }

    async fn keep_alive(&mut self) -> Result<()> {
        let keep = LeaseKeepAliveRequest { id: self.lease };
        self.keep.try_send(keep).context("keep the lease alive")?;
        let kept = within("keep the lease alive", self.kept.message()).await?;
        let kept = kept.context("keep the lease alive: the stream ended")?;
        ensure!(kept.ttl > 0, "the lease has ended");
        Ok(())
    }

    /// That the watch tells of this write next.
    async fn see(&mut self, revision: i64) -> Result<()> {
        loop {
            let told = within("see the write", self.events.message()).await?;
            let told = told.context("see the write: the stream ended")?;
            ensure!(!told.canceled, "watch: {}", told.cancel_reason);
            let Some(event) = told.events.first() else {
                continue;
            };
            let seen = event.kv.as_ref().map(|kv| kv.mod_revision);
            ensure!(seen == Some(revision), "saw another write");
            return Ok(());
        }
    }

    async fn go(mut self) -> Result<()> {
        let revoke = LeaseRevokeRequest { id: self.lease };
        within("give the lease back", self.leases.lease_revoke(revoke)).await?;
        Ok(())
    }
}

/// Watches a key; returns once it does.
async fn watch(
    channel: Channel,
    key: &str,
) -> Result<(mpsc::Sender<WatchRequest>, Streaming<WatchResponse>)> {
    let create = WatchCreateRequest {
        key: key.to_owned().into(),
        ..WatchCreateRequest::default()
    };
    let (mut requests, asked) = mpsc::channel(1);
    requests.try_send(WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    })?;
    let mut client = WatchClient::new(channel);
    let events = within("watch", client.watch(asked)).await?;
    let mut events = events.into_inner();
    let created = within("watch", events.message()).await?;
    let created = created.context("watch: the stream ended")?;
    ensure!(created.created && !created.canceled, "watch: refused");
    Ok((requests, events))
}
