//! Calls to the Admin service of one member. Deliberately thin: the caller decides what to repeat,
//! so nothing is retried here.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dengine_protocol::v1::admin_client::AdminClient as Generated;
use dengine_protocol::v1::{self};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::error::{Error, Failure, Result};
use crate::options::check_timeout;
use crate::policy::Operation;
use crate::pool::{RESPONSE_BYTES_MAX, connect, endpoint};

/// How an [`AdminClient`] connects and waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminOptions {
    /// Longest time to establish the connection. Default 2 s.
    pub connect_timeout: Duration,
    /// Longest time that one call takes. Membership changes wait for a quorum. Default 10 s.
    pub request_timeout: Duration,
}

impl Default for AdminOptions {
    fn default() -> Self {
        AdminOptions {
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(10),
        }
    }
}

/// What people and the operator do to a cluster, through one member.
///
/// Every call that changes something is idempotent on the server (a transfer of leadership aside),
/// so an [`Error::UnknownOutcome`] may be answered by calling again.
///
/// Connects to the member's admin port, or to its client port: that answers
/// [`status`](Self::status) and [`members`](Self::members), and says where the admin port is, to
/// which this then goes for everything else.
///
/// ```no_run
/// use dengine_client::AdminClient;
///
/// # async fn example() -> dengine_client::Result<()> {
/// let member = AdminClient::connect("127.0.0.1:4103").await?;
/// let status = member.status().await?;
/// if status.cluster_id == 0 {
///     member.bootstrap(42, status.folder_id).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AdminClient {
    /// At the address that was given.
    inner: Generated<Channel>,
    /// Where the calls are served that the client port refuses; found when it is first needed.
    admin: Arc<OnceCell<Generated<Channel>>>,
    options: AdminOptions,
}

impl AdminClient {
    /// Connects to the member at `host:port` with the default [`AdminOptions`].
    ///
    /// # Errors
    /// `InvalidOptions` for a bad address; `Unavailable` if it could not be reached.
    pub async fn connect(address: &str) -> Result<Self> {
        Self::connect_with(address, AdminOptions::default()).await
    }

    /// Connects to the member at `host:port`.
    ///
    /// # Errors
    /// `InvalidOptions` for a bad address or option; `Unavailable` if it could not be reached.
    pub async fn connect_with(address: &str, options: AdminOptions) -> Result<Self> {
        check_timeout("connect_timeout", options.connect_timeout)?;
        check_timeout("request_timeout", options.request_timeout)?;
        Ok(AdminClient {
            inner: open(address, options).await?,
            admin: Arc::default(),
            options,
        })
    }

    /// The service at the member's admin port.
    async fn admin(&self) -> Result<Generated<Channel>> {
        let find = async {
            match self.status().await?.admin_address.as_str() {
                "" => Ok(self.inner.clone()),
                address => open(address, self.options).await,
            }
        };
        self.admin.get_or_try_init(|| find).await.cloned()
    }

    /// Makes an empty member the first voter of a new cluster.
    ///
    /// # Errors
    /// `Refused` if the data directory belongs to another cluster or has another folder id.
    pub async fn bootstrap(
        &self,
        cluster_id: u64,
        folder_id: impl Into<String>,
    ) -> Result<v1::BootstrapResponse> {
        let message = v1::BootstrapRequest {
            cluster_id,
            folder_id: folder_id.into(),
            first_revision: 0,
        };
        self.bootstrap_with(message).await
    }

    /// The same, with the revision that the empty store is to have.
    ///
    /// # Errors
    /// Those of [`bootstrap`](Self::bootstrap), and `Refused` if the cluster began at another one.
    pub async fn bootstrap_with(
        &self,
        bootstrap: v1::BootstrapRequest,
    ) -> Result<v1::BootstrapResponse> {
        let mut admin = self.admin().await?;
        let request = self.request(bootstrap);
        self.call(Operation::Write, admin.bootstrap(request)).await
    }

    /// Gives an empty member the identity that [`add_learner`](Self::add_learner) made for it.
    ///
    /// # Errors
    /// `Refused` if the data directory belongs to another cluster or has another folder id.
    pub async fn join(&self, join: v1::JoinRequest) -> Result<v1::JoinResponse> {
        let mut admin = self.admin().await?;
        let request = self.request(join);
        self.call(Operation::Write, admin.join(request)).await
    }

    /// What the member knows of itself; answered without the leader.
    ///
    /// # Errors
    /// `Unavailable` or `Timeout` if the member cannot answer; `Refused` if this is another of its
    /// ports.
    pub async fn status(&self) -> Result<v1::StatusResponse> {
        let request = self.request(v1::StatusRequest {});
        self.call(Operation::Read, self.inner.clone().status(request))
            .await
            .map_err(at_another_port)
    }

    /// The members of the cluster with the leader's view of their progress.
    ///
    /// # Errors
    /// `Unavailable` while no leader is known or no quorum confirms it; `Refused` if this is
    /// another of its ports.
    pub async fn members(&self) -> Result<v1::MembersResponse> {
        let request = self.request(v1::MembersRequest {});
        self.call(Operation::Read, self.inner.clone().members(request))
            .await
            .map_err(at_another_port)
    }

    /// Adds a member that receives the log but does not vote. Idempotent by folder id.
    ///
    /// # Errors
    /// `UnknownOutcome` if it may or may not have been added: call again.
    pub async fn add_learner(
        &self,
        learner: v1::AddLearnerRequest,
    ) -> Result<v1::AddLearnerResponse> {
        let mut admin = self.admin().await?;
        let request = self.request(learner);
        self.call(Operation::Write, admin.add_learner(request))
            .await
    }

    /// Makes a learner a voter.
    ///
    /// # Errors
    /// `Refused` until the learner has caught up: call again later.
    pub async fn promote(&self, member_id: u64) -> Result<v1::PromoteResponse> {
        let mut admin = self.admin().await?;
        let request = self.request(v1::PromoteRequest { member_id });
        self.call(Operation::Write, admin.promote(request)).await
    }

    /// Removes a member; its id is never used again.
    ///
    /// # Errors
    /// `Refused` if the remaining voters that answer could not form a quorum.
    pub async fn remove(&self, member_id: u64) -> Result<v1::RemoveResponse> {
        let mut admin = self.admin().await?;
        let request = self.request(v1::RemoveRequest { member_id });
        self.call(Operation::Write, admin.remove(request)).await
    }

    /// Hands leadership to a voter; returns once that voter leads.
    ///
    /// # Errors
    /// `UnknownOutcome` if it may still happen: ask [`members`](Self::members) who leads.
    pub async fn transfer_leader(&self, member_id: u64) -> Result<v1::TransferLeaderResponse> {
        let mut admin = self.admin().await?;
        let request = self.request(v1::TransferLeaderRequest { member_id });
        self.call(Operation::Write, admin.transfer_leader(request))
            .await
    }

    /// Makes the state of this member durable now, so that its log before it may go.
    ///
    /// # Errors
    /// `Timeout` if it takes longer than the request timeout: it goes on all the same.
    pub async fn snapshot(&self) -> Result<v1::SnapshotResponse> {
        let mut admin = self.admin().await?;
        let request = self.request(v1::SnapshotRequest {});
        self.call(Operation::Read, admin.snapshot(request)).await
    }

    /// A hash of what this member holds, equal on members that applied the same entries.
    ///
    /// # Errors
    /// `Unavailable` or `Timeout` if the member cannot answer.
    pub async fn hash(&self) -> Result<v1::HashResponse> {
        let mut admin = self.admin().await?;
        let request = self.request(v1::HashRequest {});
        self.call(Operation::Read, admin.hash(request)).await
    }

    /// The open sessions, as this member has them in its state.
    ///
    /// # Errors
    /// `Unavailable` or `Timeout` if the member cannot answer.
    pub async fn sessions(&self) -> Result<v1::SessionsResponse> {
        let mut admin = self.admin().await?;
        let request = self.request(v1::SessionsRequest {});
        self.call(Operation::Read, admin.sessions(request)).await
    }

    /// Ends a session of any client. Idempotent.
    ///
    /// # Errors
    /// `UnknownOutcome` if it may or may not have ended: call again.
    pub async fn close_session(&self, session_id: u64) -> Result<v1::CloseSessionResponse> {
        let mut admin = self.admin().await?;
        let request = self.request(v1::CloseSessionRequest { session_id });
        self.call(Operation::Write, admin.close_session(request))
            .await
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.set_timeout(self.options.request_timeout);
        request
    }

    async fn call<T>(
        &self,
        operation: Operation,
        answer: impl Future<Output = std::result::Result<Response<T>, Status>>,
    ) -> Result<T> {
        match timeout(self.options.request_timeout, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Failure::from_status(operation, &status).error),
            Err(_) => Err(Error::deadline(operation, self.options.request_timeout)),
        }
    }
}

/// Every member has always served these calls, where it serves any of `Admin`. Who does not says so
/// by a code without words.
fn at_another_port(error: Error) -> Error {
    match error {
        Error::Refused {
            code: code @ Code::Unimplemented,
            ..
        } => Error::Refused {
            code,
            message: "there is no Admin at this port, as there is none at those for peers and for \
                probes: name the member's admin port (--listen-admin, 4103 unless set) or its port \
                for clients (--listen-client, 4100 unless set)"
                .to_owned(),
        },
        other => other,
    }
}

/// Connects to one port of a member.
async fn open(address: &str, options: AdminOptions) -> Result<Generated<Channel>> {
    let connecting = endpoint(address, options.connect_timeout)?;
    let channel = connect(&connecting).await;
    let channel = channel.map_err(|message| Error::Unavailable {
        message,
        leader: None,
    })?;
    Ok(Generated::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX))
}
