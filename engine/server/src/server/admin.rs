//! The `Admin` service. Not bounded by the gate: who repairs a busy cluster must get through. What
//! takes a member long has bounds of its own. The port of clients serves only [`FOR_CLIENTS`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dengine_kv::{Command, Outcome, ReadError, Reader, SESSIONS_MAX, SessionInfo};
use dengine_protocol::checks::messages::{member, members};
use dengine_protocol::checks::status::request_status;
use dengine_protocol::v1::admin_client::AdminClient;
use dengine_protocol::v1::admin_server::{Admin, AdminServer};
use dengine_protocol::v1::{
    AddLearnerRequest, AddLearnerResponse, BootstrapRequest, BootstrapResponse,
    CloseSessionRequest, CloseSessionResponse, HashRequest, HashResponse, JoinRequest,
    JoinResponse, MembersRequest, MembersResponse, PromoteRequest, PromoteResponse, RemoveRequest,
    RemoveResponse, Session, SessionsRequest, SessionsResponse, SnapshotRequest, SnapshotResponse,
    StatusRequest, StatusResponse, TransferLeaderRequest, TransferLeaderResponse,
};
use dengine_types::{ClusterId, MemberId, Revision, SessionId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status};

use super::ADMIN_REQUEST_BYTES_MAX;
use super::aside::Aside;
use super::forward::{Effect, Forwarder, Origin};
use super::messages::{members_view, node_status};
use super::only::Only;
use super::serving::header::Headers;
use super::serving::openers::Openers;
use super::watch::WatchCount;
use crate::config::Config;
use crate::connections::Source;
use crate::node::{NewMember, Node};
use crate::storage::RocksStore;

/// What the port of clients serves: it changes nothing, and costs little. A new RPC needs no
/// thought of that port: what is not named here is refused there.
const FOR_CLIENTS: &[&str] = &["Status", "Members"];

/// A hash reads everything; its caller usually gives up long before.
const HASH_PATIENCE: Duration = Duration::from_secs(3600);

/// Hashes, and snapshots, that are made at once. Each of either uses the whole disk.
const AT_ONCE: usize = 1;

/// Serves `Admin` from a node. Clones share their bounds.
#[derive(Clone)]
pub(super) struct AdminService {
    node: Node,
    config: Arc<Config>,
    forwarder: Forwarder,
    watches: WatchCount,
    openers: Openers,
    aside: Aside,
    headers: Arc<Headers>,
    /// Where all of it is served, for `Status` to tell. Empty: here, or no such address is known.
    elsewhere: String,
    hashes: Arc<Semaphore>,
    snapshots: Arc<Semaphore>,
}

/// What a call of the service returns.
type Answer<T> = Result<Response<T>, Status>;

impl AdminService {
    /// For the admin port. `config` completes what the node tells of itself.
    pub(super) fn new(
        node: Node,
        config: Config,
        forwarder: Forwarder,
        watches: WatchCount,
        openers: Openers,
        aside: Aside,
    ) -> Self {
        Self {
            headers: Arc::new(Headers::new(&node)),
            openers,
            aside,
            node,
            config: Arc::new(config),
            forwarder,
            watches,
            elsewhere: String::new(),
            hashes: Arc::new(Semaphore::new(AT_ONCE)),
            snapshots: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Makes a hash of this member's state for a client, or else an operator, unless it makes one
    /// already.
    pub(super) async fn hashed<T: Send + 'static>(
        &self,
        client: Option<&Source>,
        hash: impl FnOnce(&Reader<RocksStore>) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, Status> {
        let _place = one_of(&self.hashes, "hash")?;
        // Others want the place: it does not wait behind what its client lists.
        let line = (None, client);
        let hashed = self
            .aside
            .read_in_line(&self.node, line, HASH_PATIENCE, hash);
        hashed.await
    }

    /// All of it, for the admin port.
    pub(super) fn in_full(self) -> AdminServer<Self> {
        AdminServer::new(self).max_decoding_message_size(ADMIN_REQUEST_BYTES_MAX)
    }

    /// [`FOR_CLIENTS`] of it, for the client port. What is refused there is not read either.
    pub(super) fn for_clients(mut self) -> Only<AdminServer<Self>> {
        self.elsewhere = self.config.admin_address().unwrap_or_default();
        let refusal = refusal(self.config.listen_admin);
        Only::new(self.in_full(), FOR_CLIENTS, refusal)
    }
}

fn refusal(listen_admin: SocketAddr) -> Status {
    Status::permission_denied(format!(
        "this is the port of clients: this member serves Admin on {listen_admin} (--listen-admin)"
    ))
}

fn one_of(places: &Arc<Semaphore>, what: &str) -> Result<OwnedSemaphorePermit, Status> {
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        Status::resource_exhausted(format!("this member makes a {what} already; retry later"))
    })
}

fn answer<T>(result: Result<T, Status>) -> Answer<T> {
    result.map(Response::new)
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn bootstrap(&self, request: Request<BootstrapRequest>) -> Answer<BootstrapResponse> {
        let BootstrapRequest {
            cluster_id,
            folder_id,
            first_revision,
        } = request.into_inner();
        let first = Revision(first_revision.max(1));
        let begun = self
            .node
            .bootstrap_at(ClusterId(cluster_id), &folder_id, first);
        answer(match begun.await {
            Ok(first) => Ok(BootstrapResponse {
                member: Some(member(first)),
                first_revision,
            }),
            Err(error) => Err(request_status(&error)),
        })
    }

    async fn join(&self, request: Request<JoinRequest>) -> Answer<JoinResponse> {
        let JoinRequest {
            cluster_id,
            member_id,
            folder_id,
        } = request.into_inner();
        let result = self
            .node
            .join(ClusterId(cluster_id), MemberId(member_id), &folder_id)
            .await;
        answer(
            result
                .map(|()| JoinResponse {})
                .map_err(|error| request_status(&error)),
        )
    }

    async fn status(&self, _: Request<StatusRequest>) -> Answer<StatusResponse> {
        // A member that waits has no history.
        let compacted = self.node.reader().map(|it| it.compact_revision());
        answer(Ok(node_status(
            self.node.status(),
            &self.config,
            self.elsewhere.clone(),
            compacted.unwrap_or_default(),
            self.watches.now(),
        )))
    }

    async fn members(&self, request: Request<MembersRequest>) -> Answer<MembersResponse> {
        let origin = Origin::of(&request);
        answer(match self.node.members().await {
            Ok(view) => Ok(members_view(view)),
            Err(error) => {
                let call =
                    |channel, ask| async move { AdminClient::new(channel).members(ask).await };
                let ask = request.into_inner();
                self.forwarder
                    .instead(error, origin, "Members", Effect::Reads, ask, call)
                    .await
            }
        })
    }

    async fn add_learner(&self, request: Request<AddLearnerRequest>) -> Answer<AddLearnerResponse> {
        let origin = Origin::of(&request);
        let add = request.into_inner();
        let new = NewMember {
            name: add.name.clone(),
            peer_address: add.peer_address.clone(),
            client_address: add.client_address.clone(),
            folder_id: add.folder_id.clone(),
        };
        answer(match self.node.add_learner(new).await {
            Ok((id, membership)) => Ok(AddLearnerResponse {
                cluster_id: membership.cluster_id.0,
                member: membership.members.get(&id).cloned().map(member),
                members: members(&membership),
            }),
            Err(error) => {
                let call =
                    |channel, add| async move { AdminClient::new(channel).add_learner(add).await };
                self.forwarder
                    .instead(error, origin, "AddLearner", Effect::Writes, add, call)
                    .await
            }
        })
    }

    async fn promote(&self, request: Request<PromoteRequest>) -> Answer<PromoteResponse> {
        let origin = Origin::of(&request);
        let promote = request.into_inner();
        answer(match self.node.promote(MemberId(promote.member_id)).await {
            Ok(membership) => Ok(PromoteResponse {
                members: members(&membership),
            }),
            Err(error) => {
                let call =
                    |channel, ask| async move { AdminClient::new(channel).promote(ask).await };
                self.forwarder
                    .instead(error, origin, "Promote", Effect::Writes, promote, call)
                    .await
            }
        })
    }

    async fn remove(&self, request: Request<RemoveRequest>) -> Answer<RemoveResponse> {
        let origin = Origin::of(&request);
        let remove = request.into_inner();
        answer(match self.node.remove(MemberId(remove.member_id)).await {
            Ok(membership) => Ok(RemoveResponse {
                members: members(&membership),
            }),
            Err(error) => {
                let call =
                    |channel, ask| async move { AdminClient::new(channel).remove(ask).await };
                self.forwarder
                    .instead(error, origin, "Remove", Effect::Writes, remove, call)
                    .await
            }
        })
    }

    async fn transfer_leader(
        &self,
        request: Request<TransferLeaderRequest>,
    ) -> Answer<TransferLeaderResponse> {
        let origin = Origin::of(&request);
        let transfer = request.into_inner();
        answer(
            match self
                .node
                .transfer_leader(MemberId(transfer.member_id))
                .await
            {
                Ok(term) => Ok(TransferLeaderResponse { term: term.0 }),
                Err(error) => {
                    let call = |channel, ask| async move {
                        AdminClient::new(channel).transfer_leader(ask).await
                    };
                    let effect = Effect::Writes;
                    self.forwarder
                        .instead(error, origin, "TransferLeader", effect, transfer, call)
                        .await
                }
            },
        )
    }

    async fn snapshot(&self, _: Request<SnapshotRequest>) -> Answer<SnapshotResponse> {
        let place = one_of(&self.snapshots, "snapshot")?;
        // It goes on when its caller leaves, and so does its place.
        let node = self.node.clone();
        let index = tokio::spawn(async move {
            let index = node.snapshot().await;
            drop(place);
            index
        });
        let index = index
            .await
            .map_err(|_| Status::internal("the snapshot ended early"))?;
        let index = index.map_err(|error| request_status(&error))?;
        let reader = self.node.reader().map_err(|error| request_status(&error))?;
        answer(Ok(SnapshotResponse {
            index: index.0,
            bytes: reader.approximate_bytes(),
            member_id: self.node.status().member_id.0,
        }))
    }

    async fn hash(&self, _: Request<HashRequest>) -> Answer<HashResponse> {
        let hashed = self.hashed(None, Reader::logical_hash).await?;
        answer(Ok(HashResponse {
            applied_index: hashed.applied_index.0,
            revision: hashed.revision.0,
            compact_revision: hashed.compact_revision.0,
            hash: hashed.hash,
            member_id: self.node.status().member_id.0,
        }))
    }

    async fn sessions(&self, _: Request<SessionsRequest>) -> Answer<SessionsResponse> {
        let read = |reader: &Reader<_>| {
            // As old as what follows, or older: what is listed may have been used since.
            let applied_index = reader.applied_index();
            let most = usize::try_from(SESSIONS_MAX).unwrap_or(usize::MAX);
            Ok((applied_index, reader.sessions(SessionId(0), most)?))
        };
        let patience = self.config.limits.request_timeout();
        let read = self.aside.read(&self.node, None, patience, read).await?;
        let (applied_index, sessions) = read;
        answer(Ok(SessionsResponse {
            sessions: sessions.iter().map(|it| self.session(it)).collect(),
            sessions_max: SESSIONS_MAX,
            applied_index: applied_index.0,
            member_id: self.node.status().member_id.0,
        }))
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Answer<CloseSessionResponse> {
        let origin = Origin::of(&request);
        let close = request.into_inner();
        let session = SessionId(close.session_id);
        answer(
            match self.node.write(Command::CloseSession { session }).await {
                Ok(written) => match written.outcome {
                    Outcome::SessionClosed { closed } => Ok(CloseSessionResponse {
                        header: self.headers.in_term(written.term).wire(),
                        closed,
                    }),
                    _ => Err(Status::internal("the session's end came to something else")),
                },
                Err(error) => {
                    let call = |channel, close| async move {
                        AdminClient::new(channel).close_session(close).await
                    };
                    self.forwarder
                        .instead(error, origin, "CloseSession", Effect::Writes, close, call)
                        .await
                }
            },
        )
    }
}

impl AdminService {
    fn session(&self, info: &SessionInfo) -> Session {
        let opened_from = self.openers.client_of(info.id);
        Session {
            id: info.id.0,
            ttl_ms: info.ttl_ms,
            last_used_index: info.last_used.0,
            replies: info.replies,
            reply_bytes: info.reply_bytes,
            opened_from: opened_from.map_or_else(String::new, |it| it.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use std::task::{Context, Poll};

    use dengine_protocol::FILE_DESCRIPTOR_SET;
    use dengine_protocol::v1::admin_server::SERVICE_NAME;
    use prost::Message;
    use prost_types::FileDescriptorSet;
    use tonic::Code;
    use tonic::body::Body;
    use tonic::codegen::http;
    use tonic::server::NamedService;
    use tower::{Service, ServiceExt};

    use super::*;

    /// Serves whatever it is asked.
    #[derive(Clone)]
    struct Anything;

    impl NamedService for Anything {
        const NAME: &'static str = SERVICE_NAME;
    }

    impl Service<http::Request<Body>> for Anything {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = Ready<Result<http::Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: http::Request<Body>) -> Self::Future {
            ready(Ok(Status::ok("served").into_http()))
        }
    }

    /// The methods of `Admin`, as the protocol has them.
    fn methods() -> BTreeSet<String> {
        let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let mut methods = BTreeSet::new();
        for file in &set.file {
            for service in &file.service {
                if format!("{}.{}", file.package(), service.name()) == SERVICE_NAME {
                    methods.extend(service.method.iter().map(|it| it.name().to_owned()));
                }
            }
        }
        methods
    }

    #[tokio::test]
    async fn clients_are_served_what_is_named_and_refused_all_else() {
        let refusal = refusal(SocketAddr::from(([127, 0, 0, 1], 4103)));
        let port = Only::new(Anything, FOR_CLIENTS, refusal);
        let methods = methods();
        assert!(methods.len() > FOR_CLIENTS.len(), "{methods:?}");
        let mut served = BTreeSet::new();
        // A later version has one more.
        for method in methods.iter().map(String::as_str).chain(["OfTomorrow"]) {
            let path = format!("/{SERVICE_NAME}/{method}");
            let request = http::Request::builder().uri(path).body(Body::empty());
            let answer = port.clone().oneshot(request.unwrap()).await.unwrap();
            let status = Status::from_header_map(answer.headers()).unwrap();
            if status.code() == Code::Ok {
                served.insert(method);
                continue;
            }
            assert_eq!(status.code(), Code::PermissionDenied, "{method}");
            let message = "this is the port of clients: this member serves Admin on \
                127.0.0.1:4103 (--listen-admin)";
            assert_eq!(status.message(), message, "{method}");
        }
        assert_eq!(served, BTreeSet::from(["Members", "Status"]));
    }

    /// Each snapshot was a flush of its own, however many were asked for at once.
    #[test]
    fn one_is_made_at_a_time() {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let place = one_of(&places, "snapshot").unwrap();
        let refused = one_of(&places, "snapshot").unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        drop(place);
        assert!(one_of(&places, "snapshot").is_ok());
    }
}
