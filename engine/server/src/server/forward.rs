//! Passes a request on to the leader: once, over a connection that is kept.
//!
//! An error that the leader itself returned is handed on as it is. An error of the connection says
//! nothing about what the leader did with a write, so it becomes DEADLINE_EXCEEDED unless no
//! connection was made.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error as _;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dengine_client::{Answered, Counted, Pipe, PipeError, QUEUED_BYTES};
use dengine_protocol::FORWARDED_METADATA;
use dengine_protocol::checks::status::{handed_on, request_status};
use dengine_protocol::v1::StatusRequest;
use dengine_protocol::v1::admin_client::AdminClient;
use dengine_protocol::v1::pipelined_call::Call;
use dengine_types::MemberId;
use metrics::counter;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{ConnectError, Request, Response, Status};

use crate::config::Limits;
use crate::error::{LeaderHint, RequestError};
use crate::telemetry::metrics as names;
use crate::telemetry::traces::TracedWrite;
use crate::write_bytes::{WriteBytes, of_parts_asked};

/// Longest wait for a connection to the leader.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Connections kept; a cluster has at most 32 members, and addresses that changed are forgotten by
/// this.
const CONNECTIONS_MAX: usize = 64;
/// How long to wait for the answer of a deposed leader. If it still works, it has answered all
/// writes that it committed by then.
const DEPOSED_PATIENCE: Duration = Duration::from_millis(500);
/// How often it is looked who leads.
const LEADER_LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// As on the serving side: one connection carries all that this member forwards.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// What becomes of a request whose connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It changes nothing: it was not served, and may be asked again.
    Reads,
    /// It may or may not have taken effect.
    Writes,
}

/// Reaches leaders. Clones share their connections.
#[derive(Clone, Debug)]
pub(super) struct Forwarder {
    links: Arc<Mutex<HashMap<String, Link>>>,
    /// Where they are served, whichever caller is the first to use one: the threads of a client may
    /// be of lower priority ([`Sources`](crate::connections::Sources)), and everybody's requests
    /// pass over the same link.
    threads: Handle,
    timeout: Duration,
    /// Of none, from which each leader's are counted.
    write_bytes: WriteBytes,
}

/// A leader, for calls of either kind.
#[derive(Clone, Debug)]
struct Link {
    channel: Channel,
    pipe: Pipe,
    /// Of writes that wait for its answer. What waits for a leader that vanished is let go when its
    /// connection is given up, and must not keep the next leader's out; while it does, this member
    /// has no writes of its own that wait.
    write_bytes: WriteBytes,
}

/// Whether a request came from a client or from a member that passed it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// May be forwarded.
    Client,
    /// Is never forwarded again, so that members that disagree on the leader form no loop.
    Member,
}

impl Origin {
    /// Reads it off a request.
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        match request.metadata().get(FORWARDED_METADATA) {
            Some(_) => Self::Member,
            None => Self::Client,
        }
    }
}

impl Forwarder {
    /// With the bounds on requests: how long an answer of the leader is waited for, and for how
    /// many bytes of writes at once. Within the runtime that is to serve its connections.
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            links: Arc::default(),
            threads: Handle::current(),
            timeout: limits.request_timeout(),
            write_bytes: WriteBytes::to_be_passed_on(limits),
        }
    }

    /// How many bytes of a client's writes wait for the answer of a leader.
    pub(super) fn write_bytes_of(&self, from: IpAddr) -> usize {
        let links = self.links();
        links.values().map(|it| it.write_bytes.held_by(from)).sum()
    }

    /// Gives up what still waits for a leader [`DEPOSED_PATIENCE`] after another one is known to
    /// lead: it may hang, or be out of reach. Looks for as long as it is polled.
    pub(super) async fn give_up_deposed(
        self,
        leader: impl Fn() -> Option<LeaderHint>,
    ) -> Infallible {
        let mut present: Option<(MemberId, Instant)> = None;
        loop {
            sleep(LEADER_LOOK_INTERVAL).await;
            let Some(leader) = leader() else {
                continue;
            };
            let since = match present {
                Some((id, since)) if id == leader.id => since,
                _ => present.insert((leader.id, Instant::now())).1,
            };
            if since.elapsed() >= DEPOSED_PATIENCE {
                let why = format!("member {} leads by now", leader.id);
                self.give_up_all_but(&leader.client_address, &why);
            }
        }
    }

    fn give_up_all_but(&self, address: &str, why: &str) {
        let links = self.links();
        let others = links.iter().filter(|(other, _)| *other != address);
        others.for_each(|(_, link)| link.pipe.give_up(why));
    }

    fn links(&self) -> MutexGuard<'_, HashMap<String, Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to answer a call of `Kv` that writes, and that this member refused with `error`: if
    /// only because another member leads, and the call was not forwarded before, it is made there,
    /// in one stream with all others, where so many bytes of its client may wait. The caller waits
    /// until `until`, if it says so. A call that is traced here is traced there.
    pub(super) async fn write(
        &self,
        error: RequestError,
        (origin, from): (Origin, IpAddr),
        method: &'static str,
        call: Call,
        until: Option<Instant>,
        trace: Option<&TracedWrite>,
    ) -> Result<Answered, Status> {
        let leader = to_ask(error, origin)?;
        let link = self.link(&leader.client_address)?;
        let mut counting = link.write_bytes.count(Some(from));
        if !counting.more(QUEUED_BYTES + call.encoded_len() + of_parts_asked(&call)) {
            return Err(request_status(&RequestError::Busy {
                what: "bytes of writes that wait for the leader's answer",
                limit: link.write_bytes.limit(),
            }));
        }
        let counting = Arc::new(counting);
        counter!(names::REQUESTS_FORWARDED_TOTAL, names::METHOD => method).increment(1);
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let patience = left.unwrap_or(self.timeout).min(self.timeout);
        // It may wait to leave for longer than its caller waits for it.
        let counted: Counted = Arc::clone(&counting) as _;
        let span = trace.map(TracedWrite::passed_on);
        let answer = link
            .pipe
            .call_any(call, Some(patience), Some(counted), span);
        let answered = timeout(patience, answer).await;
        if let Some(trace) = trace {
            trace.leader_answered();
        }
        match answered {
            Ok(Ok(answered)) => Ok(answered),
            Ok(Err(PipeError::Answered(status))) => {
                Err(self.judge(&status, &leader, Effect::Writes))
            }
            Ok(Err(PipeError::NotSent(why))) => Err(unreachable(&leader, &why)),
            Ok(Err(PipeError::Lost(why))) => Err(self.unanswered(&why, &leader, Effect::Writes)),
            Err(_) => Err(self.unanswered("no answer in time", &leader, Effect::Writes)),
        }
    }

    /// What to answer a request of `Admin` that this member refused with `error`: if only because
    /// another member leads, and the request was not forwarded before, `call` is made on that
    /// member.
    pub(super) async fn instead<M, T, F>(
        &self,
        error: RequestError,
        origin: Origin,
        method: &'static str,
        effect: Effect,
        message: M,
        call: impl FnOnce(Channel, Request<M>) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let leader = to_ask(error, origin)?;
        let channel = match effect {
            // Answered on the port of clients too.
            Effect::Reads => self.link(&leader.client_address)?.channel,
            Effect::Writes => self.admin_channel(&leader).await?,
        };
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert(FORWARDED_METADATA, MetadataValue::from_static("1"));
        counter!(names::REQUESTS_FORWARDED_TOTAL, names::METHOD => method).increment(1);
        match timeout(self.timeout, call(channel, request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.judge(&status, &leader, effect)),
            Err(_) => Err(self.unanswered("no answer in time", &leader, effect)),
        }
    }

    /// A connection to the port where the leader serves `Admin`, as it says itself; one of a
    /// version that does not say serves it on the port of clients.
    async fn admin_channel(&self, leader: &LeaderHint) -> Result<Channel, Status> {
        let clients = self.link(&leader.client_address)?.channel;
        let mut admin = AdminClient::new(clients.clone());
        let status = match timeout(self.timeout, admin.status(StatusRequest {})).await {
            Ok(Ok(status)) => status.into_inner(),
            Ok(Err(status)) => return Err(unreachable(leader, status.message())),
            Err(_) => return Err(unreachable(leader, "no answer in time")),
        };
        match status.admin_address.as_str() {
            "" => Ok(clients),
            address => Ok(self.link(address)?.channel),
        }
    }

    /// A connection to the leader, established when it is first used.
    fn link(&self, address: &str) -> Result<Link, Status> {
        let mut links = self.links();
        if let Some(link) = links.get(address) {
            return Ok(link.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| {
            Status::unavailable(format!(
                "the leader's address {address:?} is unusable: {error}; nothing was changed"
            ))
        })?;
        let _threads = self.threads.enter();
        let channel = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(5))
            .connect_lazy();
        if links.len() >= CONNECTIONS_MAX {
            links.clear();
        }
        let mut forwarded = MetadataMap::new();
        forwarded.insert(FORWARDED_METADATA, MetadataValue::from_static("1"));
        let link = Link {
            pipe: Pipe::new(channel.clone(), forwarded, None),
            channel,
            write_bytes: self.write_bytes.again(),
        };
        links.insert(address.to_owned(), link.clone());
        Ok(link)
    }

    /// tonic gives a status a source only if it made it up itself, from an error of the connection.
    fn judge(&self, status: &Status, leader: &LeaderHint, effect: Effect) -> Status {
        if status.source().is_none() {
            return handed_on(status);
        }
        if never_connected(status) {
            return unreachable(leader, status.message());
        }
        self.unanswered(status.message(), leader, effect)
    }

    fn unanswered(&self, reason: &str, leader: &LeaderHint, effect: Effect) -> Status {
        match effect {
            Effect::Reads => unreachable(leader, reason),
            // How long was waited says nothing: a connection may break at once.
            Effect::Writes => {
                tracing::debug!(leader = %leader.id, reason, "a forwarded write got no answer");
                Status::deadline_exceeded(format!(
                    "it was passed on to member {}, the leader, whose answer did not arrive \
                     ({reason}): the request may or may not have taken effect",
                    leader.id
                ))
            }
        }
    }
}

/// Whom to ask instead of a member that refused with `error`, if that makes sense.
fn to_ask(error: RequestError, origin: Origin) -> Result<LeaderHint, Status> {
    match (error, origin) {
        (
            RequestError::NotLeader {
                leader: Some(leader),
            },
            Origin::Client,
        ) if leader.client_address.is_empty() => Err(Status::unavailable(format!(
            "member {} leads, but its address is not known here yet; nothing was changed, try \
             again",
            leader.id
        ))),
        (
            RequestError::NotLeader {
                leader: Some(leader),
            },
            Origin::Client,
        ) => Ok(leader),
        (error, _) => Err(request_status(&error)),
    }
}

fn unreachable(leader: &LeaderHint, reason: &str) -> Status {
    let address = &leader.client_address;
    Status::unavailable(format!(
        "member {} leads, but can't be reached at {address} ({reason}); nothing was changed, try \
         again",
        leader.id
    ))
}

fn never_connected(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use dengine_protocol::LEADER_HINT_METADATA;
    use dengine_protocol::v1::PutRequest;
    use tokio::net::TcpListener;
    use tonic::Code;

    use super::*;

    async fn forward_put(address: String, origin: Origin) -> Status {
        let leader = LeaderHint {
            id: MemberId(1),
            client_address: address,
        };
        let error = RequestError::NotLeader {
            leader: Some(leader),
        };
        let put = PutRequest::default();
        let limits = Limits {
            request_timeout_ms: 300,
            ..Limits::default()
        };
        let from = IpAddr::from([10, 0, 0, 1]);
        Forwarder::new(&limits)
            .write(error, (origin, from), "Put", Call::Put(put), None, None)
            .await
            .unwrap_err()
    }

    #[tokio::test]
    async fn without_a_connection_nothing_was_changed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        assert_eq!(
            forward_put(address, Origin::Client).await.code(),
            Code::Unavailable
        );
    }

    /// Where it was a heavy client, everybody's writes waited for a thread of lower priority.
    #[test]
    fn a_link_is_served_where_the_forwarder_was_made_whoever_uses_it_first() {
        let runtime = || tokio::runtime::Runtime::new().unwrap();
        let (usual, of_heavy) = (runtime(), runtime());
        let alive = |it: &tokio::runtime::Runtime| it.metrics().num_alive_tasks();
        let limits = Limits {
            request_timeout_ms: 300,
            ..Limits::default()
        };
        let forwarder = usual.block_on(async { Forwarder::new(&limits) });
        // Nothing accepts what the system connects.
        let leader = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let leader = LeaderHint {
            id: MemberId(1),
            client_address: leader.local_addr().unwrap().to_string(),
        };
        let error = RequestError::NotLeader {
            leader: Some(leader),
        };
        let from = (Origin::Client, IpAddr::from([10, 0, 0, 1]));
        let put = Call::Put(PutRequest::default());
        let write = forwarder.write(error, from, "Put", put, None, None);
        let unanswered = of_heavy.block_on(write).unwrap_err();
        assert_eq!(unanswered.code(), Code::DeadlineExceeded, "{unanswered}");
        assert_eq!(alive(&of_heavy), 0);
        assert!(alive(&usual) > 0);
    }

    /// They had it refused for some eight seconds, until the connection to the one that vanished
    /// was given up.
    #[tokio::test]
    async fn writes_stuck_on_their_way_to_one_leader_keep_none_from_the_next() {
        let forwarder = Forwarder::new(&Limits {
            request_timeout_ms: 300,
            max_pending_proposal_bytes: 8 << 20,
            ..Limits::default()
        });
        // Nothing accepts what the system connects.
        let leaders = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let put = |to: usize, client: u8| {
            let leader = Some(LeaderHint {
                id: MemberId(1),
                client_address: leaders[to].local_addr().unwrap().to_string(),
            });
            let put = PutRequest {
                value: vec![0; 1 << 20].into(),
                ..PutRequest::default()
            };
            let from = (Origin::Client, IpAddr::from([10, 0, 0, client]));
            let error = RequestError::NotLeader { leader };
            forwarder.write(error, from, "Put", Call::Put(put), None, None)
        };
        // Counted in this order, before any of them is given up.
        let puts = (0..12).map(|client| put(0, client)).chain([put(1, 12)]);
        let mut refused = futures::future::join_all(puts).await;
        let code = |it: Result<Answered, Status>| it.unwrap_err().code();
        let last = refused.pop().map(code);
        assert_eq!(last, Some(Code::DeadlineExceeded));
        let first = refused.into_iter().map(code);
        assert!(first.filter(|it| *it == Code::ResourceExhausted).count() > 4);
    }

    #[tokio::test]
    async fn a_connection_that_breaks_or_stays_silent_leaves_the_outcome_open() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let silent = tokio::spawn(async move {
            let held = listener.accept().await.unwrap();
            tokio::time::sleep(Duration::from_secs(30)).await;
            drop(held);
        });
        let status = forward_put(address, Origin::Client).await;
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        silent.abort();
    }

    /// The caller has waited for next to nothing, and must not be told of the whole time that it
    /// was ready to wait.
    #[tokio::test]
    async fn a_connection_that_breaks_is_not_called_a_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { drop(listener.accept().await.unwrap()) });
        let status = forward_put(address, Origin::Client).await;
        assert!(!status.message().contains("within"), "{status}");
    }

    /// They waited for five seconds, and those of the next leader's first three behind them.
    #[tokio::test]
    async fn writes_that_wait_for_a_leader_that_hangs_are_given_up_when_another_one_leads() {
        // Nothing accepts what the system connects.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let hint = |id, client_address| LeaderHint {
            id: MemberId(id),
            client_address,
        };
        let hangs = hint(1, listener.local_addr().unwrap().to_string());
        let leads = Mutex::new(hangs.clone());
        let forwarder = Forwarder::new(&Limits {
            request_timeout_ms: 60_000,
            ..Limits::default()
        });
        let error = RequestError::NotLeader {
            leader: Some(hangs),
        };
        let from = (Origin::Client, IpAddr::from([10, 0, 0, 1]));
        let put = Call::Put(PutRequest::default());
        let write = forwarder.write(error, from, "Put", put, None, None);
        let leader = || Some(leads.lock().unwrap().clone());
        let looking = forwarder.clone().give_up_deposed(leader);
        let elects = async {
            sleep(2 * DEPOSED_PATIENCE).await;
            *leads.lock().unwrap() = hint(2, "127.0.0.1:1".into());
            sleep(Duration::from_secs(30)).await;
        };
        let refused = tokio::select! {
            refused = write => refused.unwrap_err(),
            never = looking => match never {},
            () = elects => panic!("it was not given up"),
        };
        assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused}");
        assert!(
            refused.message().contains("member 2 leads by now"),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn a_leader_whose_address_is_not_known_yet_is_no_bad_address() {
        let status = forward_put(String::new(), Origin::Client).await;
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("not known"), "{status}");
    }

    #[tokio::test]
    async fn a_forwarded_request_is_not_forwarded_again() {
        let status = forward_put("127.0.0.1:1".into(), Origin::Member).await;
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(
            status.metadata().get(LEADER_HINT_METADATA).unwrap(),
            "127.0.0.1:1"
        );
    }
}
