//! etcd's v3 protocol, through `etcd-client`: one of its clients per connection, with one stream
//! for its watches.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use dengine_bench_model::results::ReadConsistency;
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, DeleteOptions, GetOptions, KvClient, Member,
    ResponseHeader, Txn, TxnOp,
};

pub(super) use super::etcd_watches::Events;
use super::etcd_watches::Watches;
use super::{Connect, Facts, Found, Leader, NotDeleted, one_cluster};

/// What a server says of a request that it never takes.
const TOO_LARGE: &str = "request is too large";

/// Open connections.
pub struct Connections(Vec<(Client, Arc<Watches>)>);

impl Connections {
    pub(super) async fn open(connect: &Connect) -> anyhow::Result<Self> {
        let clients = open_all(connect, &connect.endpoints).await?;
        // Watches are at followers alone, if any are named.
        let watching = match connect.followers.is_empty() {
            true => clients.clone(),
            false => open_all(connect, &connect.followers).await?,
        };
        let watches = watching.iter().map(Client::watch_client);
        let watches = watches.map(|it| Arc::new(Watches::new(it)));
        Ok(Connections(clients.into_iter().zip(watches).collect()))
    }

    pub(super) fn lane(&self, client: usize) -> Lane {
        let (connection, watches) = &self.0[client % self.0.len()];
        Lane {
            kv: connection.kv_client(),
            watches: Arc::clone(watches),
        }
    }
}

async fn open_all(connect: &Connect, endpoints: &[String]) -> anyhow::Result<Vec<Client>> {
    let mut clients = Vec::with_capacity(connect.connections);
    for i in 0..connect.connections {
        let endpoint = &endpoints[i % endpoints.len()];
        clients.push(open(endpoint, connect.request_timeout).await?);
    }
    Ok(clients)
}

async fn open(endpoint: &str, request_timeout: Duration) -> anyhow::Result<Client> {
    let options = ConnectOptions::new()
        .with_connect_timeout(Duration::from_secs(5))
        .with_timeout(request_timeout);
    Client::connect([endpoint], Some(options))
        .await
        .with_context(|| format!("etcd at {endpoint}"))
}

/// One client's way to the cluster.
pub struct Lane {
    kv: KvClient,
    watches: Arc<Watches>,
}

impl Lane {
    pub(super) async fn put(&mut self, key: Bytes, value: &Bytes) -> Result<u64, String> {
        // etcd-client takes and sends owned vectors; the copies are its price, and small.
        let put = self
            .kv
            .put(key.to_vec(), value.to_vec(), None)
            .await
            .map_err(in_words)?;
        Ok(put.header().map_or(0, |header| header.revision() as u64))
    }

    pub(super) async fn get(
        &mut self,
        key: Bytes,
        fresh: ReadConsistency,
    ) -> Result<Found, String> {
        let options = match fresh {
            ReadConsistency::Linearizable => None,
            // Refused before anything is sent; see `unsupported`.
            ReadConsistency::Lease => return Err("etcd has no lease reads".to_owned()),
            ReadConsistency::Eventual => Some(GetOptions::new().with_serializable()),
        };
        let got = self.kv.get(key.to_vec(), options).await.map_err(in_words)?;
        let revision = got.header().map_or(0, |header| header.revision() as u64);
        let found = got.kvs().first();
        Ok(Found {
            exists: found.is_some(),
            mod_revision: found.map_or(0, |kv| kv.mod_revision() as u64),
            revision,
        })
    }

    pub(super) async fn swap(
        &mut self,
        key: Bytes,
        last: u64,
        value: &Bytes,
    ) -> Result<Option<u64>, String> {
        let is_as_left = Compare::mod_revision(key.to_vec(), CompareOp::Equal, last as i64);
        let put = TxnOp::put(key.to_vec(), value.to_vec(), None);
        let txn = Txn::new().when([is_as_left]).and_then([put]);
        let swap = self.kv.txn(txn).await.map_err(in_words)?;
        let revision = swap.header().map_or(0, |header| header.revision() as u64);
        Ok(swap.succeeded().then_some(revision))
    }

    pub(super) async fn delete(&mut self, from: Vec<u8>, to: Vec<u8>) -> Result<(), NotDeleted> {
        let options = DeleteOptions::new().with_range(to);
        let deleted = self.kv.delete(from, Some(options)).await;
        deleted.map(|_| ()).map_err(|error| NotDeleted {
            is_refused: is_too_large(&error),
            words: in_words(error),
        })
    }

    pub(super) async fn keys(
        &mut self,
        from: Vec<u8>,
        to: Vec<u8>,
        limit: u32,
    ) -> Result<Vec<Bytes>, String> {
        let options = GetOptions::new()
            .with_range(to)
            .with_keys_only()
            .with_limit(limit.into());
        let found = self.kv.get(from, Some(options)).await.map_err(in_words)?;
        let key = |kv: &etcd_client::KeyValue| Bytes::copy_from_slice(kv.key());
        Ok(found.kvs().iter().map(key).collect())
    }

    pub(super) async fn list(
        &mut self,
        mut from: Vec<u8>,
        to: Vec<u8>,
        page: u32,
    ) -> Result<u64, String> {
        let (mut found, mut revision) = (0, 0);
        loop {
            let options = GetOptions::new()
                .with_range(to.clone())
                .with_limit(page.into())
                .with_revision(revision);
            let got = self.kv.get(from, Some(options)).await.map_err(in_words)?;
            found += got.kvs().len() as u64;
            if revision == 0 {
                revision = got.header().map_or(0, ResponseHeader::revision);
            }
            match got.kvs().last().filter(|_| got.more()) {
                Some(last) => from = [last.key(), &[0]].concat(),
                None => return Ok(found),
            }
        }
    }

    pub(super) async fn watch(&self, key: Bytes) -> Result<Events, String> {
        self.watches.watch(key).await
    }
}

/// Of a deletion, only members of DEngine say so: etcd has no bound for what one takes away.
fn is_too_large(error: &etcd_client::Error) -> bool {
    let etcd_client::Error::GRpcStatus(status) = error else {
        return false;
    };
    status.message().ends_with(TOO_LARGE)
}

pub(super) fn in_words(error: etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) => {
            let said = format!("{:?}: {}", status.code(), status.message());
            // What went wrong on this side is in the innermost cause.
            innermost(&status).map_or(said.clone(), |cause| format!("{said}: {cause}"))
        }
        other => other.to_string(),
    }
}

fn innermost(error: &dyn std::error::Error) -> Option<String> {
    let source = error.source()?;
    innermost(source).or_else(|| Some(source.to_string()))
}

pub(super) async fn facts(endpoints: &[String]) -> anyhow::Result<Facts> {
    let mut facts = Facts::default();
    let mut clusters = Vec::with_capacity(endpoints.len());
    let mut asked_at = Vec::with_capacity(endpoints.len());
    let mut leader_id = 0;
    let mut last = None;
    for endpoint in endpoints {
        let mut client = open(endpoint, Duration::from_secs(5)).await?;
        let asked = client
            .status()
            .await
            .map_err(in_words)
            .map_err(anyhow::Error::msg);
        let status = asked.with_context(|| format!("status of {endpoint}"))?;
        let told_by = |id: fn(&ResponseHeader) -> u64| status.header().map_or(0, id);
        clusters.push((endpoint.clone(), told_by(ResponseHeader::cluster_id)));
        asked_at.push((told_by(ResponseHeader::member_id), endpoint.as_str()));
        facts.version = Some(status.version().to_owned());
        facts.term = facts.term.max(status.raft_term());
        leader_id = status.leader();
        last = Some(client);
    }
    one_cluster(&clusters)?;
    let mut client = last.context("no endpoints were given")?;
    let listed = client
        .member_list()
        .await
        .map_err(in_words)
        .map_err(anyhow::Error::msg);
    let listed = listed.context("members of the cluster")?;
    let told = listed.members().iter();
    let told =
        told.filter_map(|member| Some((member.id(), member.client_urls().first()?.as_str())));
    let told: Vec<_> = told.collect();
    let address = |member: &Member| address(member.id(), &told, &asked_at);
    let leader = listed
        .members()
        .iter()
        .find(|member| member.id() == leader_id);
    facts.leader = leader.map(|member| Leader {
        name: member.name().to_owned(),
        address: address(member).unwrap_or_default(),
    });
    let others = listed.members().iter();
    let others = others.filter(|it| it.id() != leader_id && !it.is_learner());
    facts.followers = others.filter_map(address).collect();
    facts.members = listed
        .members()
        .iter()
        .map(|member| member.name().to_owned())
        .collect();
    facts.members.sort();
    Ok(facts)
}

/// Where a member is reached: at the address that it is told to have. Members of DEngine that share
/// a host are all told to be at the port of the one that was asked. Then it is at the endpoint that
/// answered as this member.
fn address(id: u64, told: &[(u64, &str)], asked_at: &[(u64, &str)]) -> Option<String> {
    let of = |places: &[(u64, &str)]| {
        let place = places.iter().find(|(member, _)| *member == id);
        place.map(|(_, address)| host_port(address))
    };
    let own = of(told)?;
    let sharing = told.iter().filter(|(_, url)| host_port(url) == own);
    match sharing.count() {
        1 => Some(own),
        _ => of(asked_at),
    }
}

fn host_port(url: &str) -> String {
    url.trim_start_matches("http://")
        .trim_end_matches('/')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_share_an_address_are_known_by_their_answers() {
        let apart = [(1, "http://a:2379"), (2, "http://b:2379/")];
        let balancer = [(1, "service:2379")];
        assert_eq!(address(2, &apart, &balancer).as_deref(), Some("b:2379"));
        let one_host = [(1, "http://a:7001"), (2, "http://a:7001")];
        let asked = [(1, "a:7001"), (2, "a:7002")];
        assert_eq!(address(2, &one_host, &asked).as_deref(), Some("a:7002"));
        assert_eq!(address(2, &one_host, &asked[..1]), None, "it was not asked");
        assert_eq!(address(3, &apart, &asked), None, "it has not begun yet");
    }

    #[test]
    fn what_is_too_large_is_refused_for_good() {
        let refuses = |words: &str| {
            let status = tonic::Status::invalid_argument(words);
            is_too_large(&etcd_client::Error::GRpcStatus(status))
        };
        assert!(refuses("etcdserver: request is too large"));
        assert!(!refuses("etcdserver: key is not provided"));
    }
}
