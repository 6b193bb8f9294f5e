//! Passes a request on to the leader: once, over a connection that is kept.
//!
//! An error that the leader itself returned is handed on as it is. An error of the connection says nothing
//! about what the leader did with a write, so it becomes DEADLINE_EXCEEDED unless no connection was made.

use std::{
    collections::HashMap,
    error::Error as _,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dengine_api::{
    FORWARDED_METADATA, LEADER_HINT_METADATA,
    v1::{pipelined_answer::Answer, pipelined_call::Call},
};
use dengine_client::{Pipe, PipeError};
use dengine_wire::status::request_status;
use metrics::counter;
use tonic::{
    ConnectError, Request, Response, Status,
    metadata::{MetadataMap, MetadataValue},
    transport::{Channel, Endpoint},
};

use crate::{
    error::{LeaderHint, RequestError},
    telemetry::metrics as names,
};

/// Longest wait for a connection to the leader.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Connections kept; a cluster has at most 32 members, and addresses that changed are forgotten by this.
const CONNECTIONS_MAX: usize = 64;
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
    timeout: Duration,
}

/// A leader, for calls of either kind.
#[derive(Clone, Debug)]
struct Link {
    channel: Channel,
    pipe: Pipe,
}

/// Whether a request came from a client or from a member that passed it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Waits at most `timeout` for a leader's answer.
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            links: Arc::default(),
            timeout,
        }
    }

    /// What to answer a call of `Kv` that writes, and that this member refused with `error`: if only because
    /// another member leads, and the call was not forwarded before, it is made there, in one stream with all
    /// others.
    pub(super) async fn write(
        &self,
        error: RequestError,
        origin: Origin,
        method: &'static str,
        call: Call,
    ) -> Result<Answer, Status> {
        let leader = to_ask(error, origin)?;
        let link = self.link(&leader)?;
        counter!(names::REQUESTS_FORWARDED_TOTAL, names::METHOD => method).increment(1);
        match tokio::time::timeout(self.timeout, link.pipe.call_framed(call)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(PipeError::Answered(status))) => {
                Err(self.judge(&status, &leader, Effect::Writes))
            }
            Ok(Err(PipeError::NotSent(why))) => Err(unreachable(&leader, &why)),
            Ok(Err(PipeError::Lost(why))) => Err(self.unanswered(&why, &leader, Effect::Writes)),
            Err(_) => Err(self.unanswered("no answer in time", &leader, Effect::Writes)),
        }
    }

    /// What to answer a request that this member refused with `error`: if only because another member
    /// leads, and the request was not forwarded before, `call` is made on that member.
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
        let channel = self.link(&leader)?.channel;
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert(FORWARDED_METADATA, MetadataValue::from_static("1"));
        counter!(names::REQUESTS_FORWARDED_TOTAL, names::METHOD => method).increment(1);
        match tokio::time::timeout(self.timeout, call(channel, request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.judge(&status, &leader, effect)),
            Err(_) => Err(self.unanswered("no answer in time", &leader, effect)),
        }
    }

    /// A connection to the leader, established when it is first used.
    fn link(&self, leader: &LeaderHint) -> Result<Link, Status> {
        let address = &leader.client_address;
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(address) {
            return Ok(link.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| {
            Status::unavailable(format!(
                "the leader's client address {address:?} is unusable: {error}"
            ))
        })?;
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
        };
        links.insert(address.clone(), link.clone());
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
            Effect::Writes => {
                tracing::debug!(leader = %leader.id, reason, "a forwarded write got no answer");
                request_status(&RequestError::UnknownOutcome {
                    waited: self.timeout,
                })
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
        ) => Ok(leader),
        (error, _) => Err(request_status(&error)),
    }
}

/// The leader's own answer, without the headers that belonged to its response.
fn handed_on(status: &Status) -> Status {
    let mut own = Status::new(status.code(), status.message());
    if let Some(hint) = status.metadata().get(LEADER_HINT_METADATA) {
        own.metadata_mut()
            .insert(LEADER_HINT_METADATA, hint.clone());
    }
    own
}

fn unreachable(leader: &LeaderHint, reason: &str) -> Status {
    let address = &leader.client_address;
    Status::unavailable(format!(
        "member {} leads, but can't be reached at {address} ({reason}); nothing was changed, try again",
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
    use dengine_api::v1::PutRequest;
    use dengine_core::types::MemberId;
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
        Forwarder::new(Duration::from_millis(300))
            .write(error, origin, "Put", Call::Put(put))
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
