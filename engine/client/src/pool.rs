//! Connections: which one serves the next attempt. Knows endpoints and their health, nothing of
//! what is sent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, Result};
use crate::leader::Leader;
use crate::options::ClientOptions;
use crate::pipe::Pipe;
use crate::policy::{Failure, Lanes, Target};
use crate::watch::SharedStream;

/// Largest response that is accepted. No member sends a larger one.
pub(crate) const RESPONSE_BYTES_MAX: usize = dengine_protocol::RESPONSE_BYTES_MAX;

/// Connections to leaders that are not among the endpoints, kept for the next hint.
const HINTED_MAX: usize = 8;

/// How long connections that are not established are waited for once one is.
const OTHERS_PATIENCE: Duration = Duration::from_millis(200);

/// A channel, and why it is not connected if it is not.
type Opened = (Channel, Option<String>);

const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// Checks `host:port` or `http://host:port` and sets everything but the place to connect to.
pub(crate) fn endpoint(address: &str, connect_timeout: Duration) -> Result<Endpoint> {
    let invalid = |why: &str| Error::InvalidOptions {
        message: format!("endpoint {address:?}: {why}; expected host:port"),
    };
    let authority = address
        .strip_prefix("http://")
        .unwrap_or(address)
        .trim_end_matches('/');
    if authority.contains("://") {
        return Err(invalid("only plain HTTP/2 is spoken so far"));
    }
    let (host, port) = authority
        .rsplit_once(':')
        .ok_or_else(|| invalid("the port is missing"))?;
    if host.is_empty() || port.parse::<u16>().is_err() {
        return Err(invalid("the host or the port is not valid"));
    }
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))
        .map_err(|_| invalid("it is not a valid address"))?;
    Ok(endpoint
        .user_agent(concat!("dengine-client/", env!("CARGO_PKG_VERSION")))
        .expect("a literal is a valid header value")
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true))
}

/// All connections of one client.
#[derive(Debug)]
pub(crate) struct Pool {
    epoch: Instant,
    connect_timeout: Duration,
    /// Link `i` leads to endpoint `i % endpoints`, and there is at least one for each endpoint.
    links: Vec<RwLock<Link>>,
    endpoints: Vec<Endpoint>,
    /// Whether a member has ever answered at the endpoint.
    proven: Vec<AtomicBool>,
    /// One for each endpoint, made when it is needed: a connection of its own, so that what watches
    /// are told holds up no answer.
    watching: Vec<Watching>,
    lanes: Lanes,
    leader: Arc<Leader>,
    hinted: Mutex<Vec<(String, Link)>>,
}

/// One connection, for calls of either kind.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) channel: Channel,
    pub(crate) pipe: Pipe,
}

impl Link {
    pub(crate) fn new(channel: Channel, leader: &Arc<Leader>) -> Self {
        // The leader may hold this very link.
        let leader = Arc::downgrade(leader);
        let heard = move |address: &str| {
            if let Some(leader) = leader.upgrade() {
                leader.heard(address);
            }
        };
        Link {
            pipe: Pipe::new(channel.clone(), MetadataMap::new(), Some(Box::new(heard))),
            channel,
        }
    }
}

/// Where an attempt went, to report back on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Lane(usize),
    /// To a leader that is not among the endpoints, over connections of this number.
    Elsewhere(u64),
    Hinted,
}

/// The stream for watches of an endpoint, if there is one.
#[derive(Debug, Default)]
struct Watching(Mutex<Option<Arc<SharedStream>>>);

impl Watching {
    fn stream(&self, endpoint: &Endpoint) -> Arc<SharedStream> {
        let mut stream = lock(&self.0);
        let new = || Arc::new(SharedStream::new(endpoint.connect_lazy()));
        Arc::clone(stream.get_or_insert_with(new))
    }

    /// Not that one any more. Of a thousand watches that it fails, each would else take the place
    /// of the one that others have just opened.
    fn leave(&self, failed: &Arc<SharedStream>) {
        lock(&self.0).take_if(|stream| Arc::ptr_eq(stream, failed));
    }
}

/// Where a watch is begun.
#[derive(Clone, Debug)]
pub(crate) struct WatchRoute {
    lane: usize,
    pub(crate) stream: Arc<SharedStream>,
}

impl WatchRoute {
    pub(crate) fn route(&self) -> Route {
        Route::Lane(self.lane)
    }
}

impl Pool {
    /// Opens the connections.
    ///
    /// # Errors
    /// `InvalidOptions` for a bad endpoint; `Unavailable` if not a single connection came up.
    pub(crate) async fn connect(addresses: &[String], options: &ClientOptions) -> Result<Self> {
        if addresses.is_empty() {
            return Err(Error::InvalidOptions {
                message: "no endpoints were given".to_owned(),
            });
        }
        let endpoints = addresses
            .iter()
            .map(|address| endpoint(address, options.connect_timeout))
            .collect::<Result<Vec<_>>>()?;
        let wanted = options.connections.max(endpoints.len());
        let opening = (0..wanted).map(|i| open(&endpoints[i % endpoints.len()]));
        let opened = open_all(opening, &endpoints).await;
        if let Some(error) = first_error_if_all_failed(&opened) {
            return Err(Error::Unavailable {
                message: error,
                leader: None,
            });
        }
        let leader = Arc::new(Leader::new(
            endpoints.iter().map(authority).collect(),
            options.reached_at.clone(),
            options.connections.div_ceil(endpoints.len()),
            options.connect_timeout,
        ));
        let pool = Pool {
            epoch: Instant::now(),
            connect_timeout: options.connect_timeout,
            lanes: Lanes::new(wanted, options.connections),
            hinted: Mutex::new(Vec::new()),
            links: opened
                .iter()
                .map(|(channel, _)| RwLock::new(Link::new(channel.clone(), &leader)))
                .collect(),
            leader,
            proven: endpoints.iter().map(|_| AtomicBool::default()).collect(),
            watching: endpoints.iter().map(|_| Watching::default()).collect(),
            endpoints,
        };
        for (lane, (_, error)) in opened.iter().enumerate() {
            let reached = |at: usize| opened[at].1.is_none();
            let same_endpoint = (lane % pool.endpoints.len()..wanted).step_by(pool.endpoints.len());
            if error.is_some() && !same_endpoint.clone().any(reached) {
                pool.failed(Route::Lane(lane), &Failure::NotSent);
            }
        }
        Ok(pool)
    }

    /// Time since the pool was made, by which all decisions are taken.
    pub(crate) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// The same time as an instant.
    pub(crate) fn instant(&self, time: Duration) -> Instant {
        self.epoch + time
    }

    /// The lane that the next call starts from.
    pub(crate) fn start(&self) -> usize {
        self.lanes.start()
    }

    /// The lane of a caller that stays with one connection.
    pub(crate) fn pinned(&self, affinity: usize) -> usize {
        self.lanes.pinned(affinity)
    }

    /// The connection for an attempt: to the leader, if it is known and that is where it should go.
    /// An unusable hint counts as none.
    pub(crate) fn resolve(&self, for_leader: bool, target: &Target) -> (Route, Link) {
        let from = match target {
            Target::From(lane) => *lane,
            Target::Leader { address, otherwise } => {
                self.leader.heard(address);
                if self.leader.may_be_tried(address)
                    && let Ok(found) = self.hinted(address)
                {
                    return found;
                }
                *otherwise
            }
        };
        let for_leader = for_leader || matches!(target, Target::Leader { .. });
        if for_leader && let Some((number, link)) = self.leader.elsewhere(from) {
            return (Route::Elsewhere(number), link);
        }
        let beside = |leader| self.lanes.beside(from, leader, self.endpoints.len());
        let leader = self.leader.endpoint().filter(|_| for_leader);
        let lane = self.lanes.pick(leader.map_or(from, beside), self.now());
        let link = self.links[lane].read();
        let link = link.unwrap_or_else(PoisonError::into_inner).clone();
        (Route::Lane(lane), link)
    }

    /// The stream for a watch, shared by all watches of that endpoint.
    pub(crate) fn watch(&self, from: usize) -> WatchRoute {
        let lane = self.lanes.pick(from, self.now());
        let place = lane % self.endpoints.len();
        let stream = self.watching[place].stream(&self.endpoints[place]);
        WatchRoute { lane, stream }
    }

    /// The next watch there opens a connection of its own, and maybe to another member; those that
    /// run are not touched.
    pub(crate) fn leave_watching(&self, route: &WatchRoute) {
        self.watching[route.lane % self.endpoints.len()].leave(&route.stream);
    }

    /// A connection to the leader that a member named.
    ///
    /// # Errors
    /// `InvalidOptions` if the hint is not an address.
    fn hinted(&self, leader: &str) -> Result<(Route, Link)> {
        let mut hinted = lock(&self.hinted);
        if let Some((_, link)) = hinted.iter().find(|(address, _)| address == leader) {
            return Ok((Route::Hinted, link.clone()));
        }
        let channel = endpoint(leader, self.connect_timeout)?.connect_lazy();
        let link = Link::new(channel, &self.leader);
        if hinted.len() == HINTED_MAX {
            hinted.remove(0);
        }
        hinted.push((leader.to_owned(), link.clone()));
        Ok((Route::Hinted, link))
    }

    /// A member named the leader: it would answer such calls with less work.
    pub(crate) fn heard_of_leader(&self, named: &str) {
        self.leader.heard(named);
    }

    /// Whoever led may do so no more.
    pub(crate) fn forget_leader(&self) {
        self.leader.forget();
    }

    /// Notes that a call which began to be waited for then, and may not be sent again, has no
    /// answer yet. Where others were answered meanwhile it is only slow.
    pub(crate) fn is_silent(&self, route: Route, since: Duration) {
        let (answers, leads) = match route {
            Route::Lane(lane) => (
                self.lanes.has_served_since(lane, since),
                self.leader.endpoint() == Some(lane % self.endpoints.len()),
            ),
            Route::Elsewhere(number) => (
                self.leader.has_served_since(since),
                self.leader.is_elsewhere(number),
            ),
            Route::Hinted => return,
        };
        if answers {
            return;
        }
        // Another one may lead by now.
        if leads {
            self.leader.forget();
        }
        self.served_nobody(route);
        self.failed(route, &Failure::Lost);
    }

    /// Notes that a call was served.
    pub(crate) fn served(&self, route: Route) {
        match route {
            Route::Lane(lane) => {
                self.lanes.served(lane, self.now());
                self.prove(lane);
            }
            Route::Elsewhere(_) => self.leader.served(self.now()),
            Route::Hinted => {}
        }
    }

    /// Notes that a member answered.
    pub(crate) fn answered(&self, route: Route) {
        if let Route::Lane(lane) = route {
            self.lanes.answered(lane);
            self.prove(lane);
        }
    }

    fn prove(&self, lane: usize) {
        let proven = &self.proven[lane % self.endpoints.len()];
        // Not written to by every call: callers on other cores read it.
        if !proven.load(Ordering::Relaxed) {
            proven.store(true, Ordering::Relaxed);
        }
    }

    /// The address that was given for it, unless a member has ever answered there.
    pub(crate) fn unproven(&self, route: Route) -> Option<String> {
        let Route::Lane(lane) = route else {
            return None;
        };
        let place = lane % self.endpoints.len();
        let proven = self.proven[place].load(Ordering::Relaxed);
        (!proven).then(|| authority(&self.endpoints[place]))
    }

    /// Notes that a call was not served, by a member that can serve nobody; where that goes on,
    /// another connection takes the place of this one. Calls that are under way on the old one keep
    /// it.
    pub(crate) fn served_nobody(&self, route: Route) {
        let Route::Lane(lane) = route else {
            return;
        };
        if self.lanes.renews(lane, self.now()) {
            let endpoint = &self.endpoints[lane % self.endpoints.len()];
            let link = Link::new(endpoint.connect_lazy(), &self.leader);
            let mut place = self.links[lane]
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            *place = link;
        }
    }

    /// Notes how a call failed: whether its connection is passed over for a while.
    pub(crate) fn failed(&self, route: Route, failure: &Failure) {
        match (route, failure) {
            (Route::Lane(lane), failure) => self.lanes.failed(lane, self.now(), failure),
            (Route::Elsewhere(number), Failure::NotSent | Failure::Lost) => {
                self.leader.lost(number);
            }
            (Route::Elsewhere(_) | Route::Hinted, _) => {}
        }
    }

    /// Notes which cluster answered a call.
    pub(crate) fn answered_by(&self, cluster_id: u64) {
        self.leader.leads(cluster_id);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.leader.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until one channel is connected, and then a moment for the others: an endpoint that is
/// silent must not cost those that answer the whole time for connecting. What is not connected by
/// then connects on first use.
async fn open_all(
    opening: impl Iterator<Item = impl Future<Output = Opened>>,
    endpoints: &[Endpoint],
) -> Vec<Opened> {
    let number = |(place, open)| async move { (place, open.await) };
    let mut opening: FuturesUnordered<_> = opening.enumerate().map(number).collect();
    let mut opened: Vec<Option<Opened>> = (0..opening.len()).map(|_| None).collect();
    let mut others_until = None;
    loop {
        let next = match others_until {
            None => opening.next().await,
            Some(until) => timeout_at(until, opening.next()).await.unwrap_or(None),
        };
        let Some((place, channel)) = next else { break };
        if channel.1.is_none() && others_until.is_none() {
            others_until = Some(Instant::now() + OTHERS_PATIENCE);
        }
        opened[place] = Some(channel);
    }
    let lazy = |(place, opened): (usize, Option<Opened>)| {
        opened.unwrap_or_else(|| {
            let endpoint = &endpoints[place % endpoints.len()];
            let why = format!("{}: not connected yet", authority(endpoint));
            (endpoint.connect_lazy(), Some(why))
        })
    };
    opened.into_iter().enumerate().map(lazy).collect()
}

/// A channel that is connected, or one that connects on first use and the reason why.
async fn open(endpoint: &Endpoint) -> Opened {
    match connect(endpoint).await {
        Ok(channel) => (channel, None),
        Err(message) => {
            tracing::debug!(error = message, "endpoint did not connect");
            (endpoint.connect_lazy(), Some(message))
        }
    }
}

/// Connects, or says where and why not.
pub(crate) async fn connect(endpoint: &Endpoint) -> std::result::Result<Channel, String> {
    let place = authority(endpoint);
    let limit = endpoint
        .get_connect_timeout()
        .expect("set on every endpoint that is made here");
    // Bounds the look-up of the name too, which the endpoint's own limit leaves out.
    match timeout(limit, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(format!("{place}: {}", innermost(&error))),
        Err(_) => Err(format!("{place}: not connected within {limit:?}")),
    }
}

/// `host:port`.
fn authority(endpoint: &Endpoint) -> String {
    let authority = endpoint.uri().authority();
    authority.map_or_else(String::new, ToString::to_string)
}

fn innermost(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

fn first_error_if_all_failed(opened: &[Opened]) -> Option<String> {
    if opened.iter().all(|(_, error)| error.is_some()) {
        opened.first().and_then(|(_, error)| error.clone())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_endpoints_are_named() {
        for bad in [
            "",
            "nohost",
            ":4100",
            "host:port",
            "https://host:4100",
            "a b:1",
        ] {
            let error = endpoint(bad, Duration::from_secs(1)).unwrap_err();
            assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
        }
        for good in [
            "host:4100",
            "http://host:4100",
            "http://host:4100/",
            "[::1]:4100",
        ] {
            endpoint(good, Duration::from_secs(1)).unwrap();
        }
    }

    #[tokio::test]
    async fn each_watch_that_a_stream_fails_leaves_that_one_only() {
        let endpoint = endpoint("host:4100", Duration::from_secs(1)).unwrap();
        let watching = Watching::default();
        let failed = watching.stream(&endpoint);
        assert!(Arc::ptr_eq(&failed, &watching.stream(&endpoint)));
        watching.leave(&failed);
        let next = watching.stream(&endpoint);
        watching.leave(&failed);
        assert!(Arc::ptr_eq(&next, &watching.stream(&endpoint)));
    }
}
