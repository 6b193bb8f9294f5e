//! One call: attempts over the pool's connections, as `dengine-client-core` decides, until it is answered, must
//! not be sent again, or its time is up.

use std::{future::Future, sync::Mutex, sync::PoisonError, time::Duration};

use dengine_api::v1::kv_client::KvClient;
use dengine_client_core::{Attempts, End, Next, Operation, Position};
use tokio::time::{sleep, timeout_at};
use tonic::{Request, Response, Status, transport::Channel};

use crate::{
    error::{Failure, Result},
    message::Message,
    options::ClientOptions,
    pool::{Pool, RESPONSE_BYTES_MAX},
    session::Ticket,
};

/// What the calls of a client and all its clones share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) options: ClientOptions,
    seen: Mutex<Position>,
}

/// A call before it is made.
pub(crate) struct Call<'a> {
    pub(crate) operation: Operation,
    /// The lane that it starts from.
    pub(crate) lane: usize,
    /// When it must be over, by the pool's time.
    pub(crate) deadline: Duration,
    /// Its place in a session, if it has one.
    pub(crate) ticket: Option<&'a Ticket>,
}

impl Shared {
    pub(crate) fn new(pool: Pool, options: ClientOptions) -> Self {
        Shared {
            pool,
            options,
            seen: Mutex::default(),
        }
    }

    /// What was seen of the cluster's history.
    pub(crate) fn seen(&self) -> Position {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what an answer, or another client, has seen.
    pub(crate) fn saw(&self, cluster_id: u64, revision: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.saw(cluster_id, revision);
    }

    /// When a call that begins now must be over, by the pool's time.
    pub(crate) fn deadline(&self) -> Duration {
        self.pool.now() + self.options.request_timeout
    }

    /// Sends `message` until it is answered or must not be sent again.
    pub(crate) async fn call<M, W, F, Fut>(&self, call: Call<'_>, message: &M, send: F) -> Result<W>
    where
        M: Message,
        F: Fn(KvClient<Channel>, Request<M>) -> Fut,
        Fut: Future<Output = std::result::Result<Response<W>, Status>>,
    {
        let Call {
            operation,
            lane,
            deadline,
            ticket,
        } = call;
        let mut attempts = Attempts::new(self.options.retry, operation, lane, deadline);
        let mut target = attempts.first();
        loop {
            let (route, channel) = self.pool.resolve(&target);
            let mut message = message.clone();
            message.see(self.seen());
            if let Some(ticket) = ticket {
                message.stamp(ticket.stamp());
            }
            let failure = match self
                .attempt(operation, message, deadline, &send, channel)
                .await
            {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            if failure.proof.unhealthy() {
                self.pool.cool(route);
            }
            let now = self.pool.now();
            match attempts.failed(&failure.proof, now, rand::random()) {
                Next::Again { after, to } => {
                    tracing::debug!(error = %failure.error, ?after, "attempt failed, will retry");
                    sleep(after).await;
                    target = to;
                }
                Next::Stop(End::LastFailure) => return Err(failure.error),
                Next::Stop(End::UnknownOutcome) => return Err(failure.error.after_unknown()),
            }
        }
    }

    async fn attempt<M, W, F, Fut>(
        &self,
        operation: Operation,
        message: M,
        deadline: Duration,
        send: &F,
        channel: Channel,
    ) -> std::result::Result<W, Failure>
    where
        F: Fn(KvClient<Channel>, Request<M>) -> Fut,
        Fut: Future<Output = std::result::Result<Response<W>, Status>>,
    {
        let mut request = Request::new(message);
        request.set_timeout(deadline.saturating_sub(self.pool.now()));
        let kv = KvClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
        match timeout_at(self.pool.instant(deadline), send(kv, request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Failure::from_status(operation, &status)),
            Err(_) => Err(Failure::deadline(operation, self.options.request_timeout)),
        }
    }
}
