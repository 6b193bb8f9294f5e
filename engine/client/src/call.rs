//! One call: attempts over the pool's connections, as [`policy`](crate::policy) decides, until it
//! is answered, must not be sent again, or its time is up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dengine_protocol::v1::SessionStamp;
use dengine_protocol::v1::kv_client::KvClient;
use dengine_protocol::{KvCall, LEADER_HINT_METADATA};
use tokio::time::sleep;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::error::{Failure, Result};
use crate::options::{ClientOptions, Wire};
use crate::policy::{Attempts, End, Next, Operation, Position, Stamp, Target};
use crate::pool::{Link, Pool, RESPONSE_BYTES_MAX};
use crate::session::Ticket;
use crate::silence::Silence;
use crate::types::position;

/// What the calls of a client and all its clones share.
#[derive(Debug)]
pub(crate) struct ClientShared {
    pub(crate) pool: Pool,
    pub(crate) options: ClientOptions,
    seen: Mutex<Position>,
    retries: AtomicU64,
}

/// A call before it is made.
pub(crate) struct Call<'a> {
    pub(crate) operation: Operation,
    /// The lane that it starts from.
    pub(crate) lane: usize,
    /// When it must be over, by the pool's time.
    pub(crate) deadline: Duration,
    /// Longest that one attempt takes, if that is less than the policy's.
    pub(crate) attempt_max: Duration,
    /// Its place in a session, if it has one.
    pub(crate) ticket: Option<&'a Ticket>,
}

/// Of one attempt, by the pool's time.
#[derive(Clone, Copy)]
struct Times {
    /// When its call began.
    called: Duration,
    /// When it did.
    began: Duration,
    /// When it is given up.
    until: Duration,
}

impl ClientShared {
    pub(crate) fn new(pool: Pool, options: ClientOptions) -> Self {
        ClientShared {
            pool,
            options,
            seen: Mutex::default(),
            retries: AtomicU64::new(0),
        }
    }

    /// Attempts beyond the first of each call.
    pub(crate) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// What was seen of the cluster's history.
    pub(crate) fn seen(&self) -> Position {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what an answer, or another client, has seen.
    pub(crate) fn saw(&self, cluster_id: u64, revision: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.saw(cluster_id, revision);
        self.pool.answered_by(seen.cluster_id);
    }

    /// Session reads begin again, at any cluster.
    pub(crate) fn forget_position(&self) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Position::default();
    }

    /// Sends `message` until it is answered or must not be sent again.
    pub(crate) async fn call<M: KvCall>(&self, call: Call<'_>, message: &M) -> Result<M::Answer> {
        let Call {
            operation,
            lane,
            deadline,
            attempt_max,
            ticket,
        } = call;
        let called = self.pool.now();
        let mut policy = self.options.retry;
        policy.attempt_timeout = policy.attempt_timeout.min(attempt_max);
        let mut attempts = Attempts::new(policy, operation, lane, deadline);
        let mut target = attempts.first();
        let is_spread = self.options.spread_reads && message.may_be_spread();
        let for_leader = message.is_for_leader() && !is_spread;
        loop {
            let (route, link) = self.pool.resolve(for_leader, &target);
            let mut message = message.clone();
            message.set_at_least(position(self.seen()));
            if let Some(ticket) = ticket {
                message.set_stamp(wire(ticket.stamp()));
            }
            let began = self.pool.now();
            let until = attempts.begin(began);
            let silence = Silence {
                at: self.pool.instant(attempts.silent_at()),
                tell: || self.pool.is_silent(route, began),
            };
            let times = Times {
                called,
                began,
                until,
            };
            let attempt = self.attempt(operation, message, times, silence, link);
            let failure = match attempt.await {
                Ok(response) => {
                    self.pool.served(route);
                    return Ok(response);
                }
                Err(failure) => failure,
            };
            // What only took too long may be a member's that is slow.
            let stranger = self.pool.unproven(route);
            let stranger = stranger.filter(|_| self.pool.now() < until);
            let failure = failure.at(stranger.as_deref());
            if failure.proof.unsettles_leader() {
                self.pool.forget_leader();
            }
            if failure.proof.serves_nobody() {
                self.pool.served_nobody(route);
            }
            self.pool.failed(route, &failure.proof);
            target = self.again(&mut attempts, failure).await?;
        }
    }

    /// Where the next attempt goes, once it is time for it; or what the caller is told.
    async fn again(&self, attempts: &mut Attempts, failure: Failure) -> Result<Target> {
        let now = self.pool.now();
        let end = match attempts.failed(&failure.proof, now, rand::random()) {
            Next::Stop(end) => end,
            Next::Again { after, to } => {
                tracing::debug!(error = %failure.error, ?after, "attempt failed, will retry");
                sleep(after).await;
                let Some(end) = attempts.too_late(self.pool.now()) else {
                    self.retries.fetch_add(1, Ordering::Relaxed);
                    return Ok(to);
                };
                end
            }
        };
        Err(match end {
            End::LastFailure => failure.error,
            End::UnknownOutcome => failure.error.after_unknown(),
        })
    }

    async fn attempt<M: KvCall>(
        &self,
        operation: Operation,
        message: M,
        times: Times,
        silence: Silence<impl FnOnce()>,
        link: Link,
    ) -> std::result::Result<M::Answer, Failure> {
        let (deadline, patience) = (times.until, times.until.saturating_sub(times.began));
        // What the caller has waited by then, in earlier attempts too.
        let waited = times.until.saturating_sub(times.called);
        // To wait for a place in its session may have taken all of its time.
        if patience.is_zero() {
            return Err(Failure::not_sent(operation, waited));
        }
        let until = self.pool.instant(times.until);
        let answered = match self.options.wire {
            Wire::Pipelined => {
                let call = link.pipe.call_until(message, patience, until, silence);
                call.await
                    .map_err(|error| Failure::from_pipe(operation, error))?
            }
            Wire::Unary => {
                let call = self.unary(message, deadline, link.channel);
                let answer = silence.wait(call, until).await;
                answer
                    .transpose()
                    .map_err(|status| Failure::from_unary_after(operation, &status, waited))?
            }
        };
        answered.ok_or_else(|| Failure::deadline(operation, waited))
    }

    async fn unary<M: KvCall>(
        &self,
        message: M,
        deadline: Duration,
        channel: Channel,
    ) -> std::result::Result<M::Answer, Status> {
        let mut request = Request::new(message);
        request.set_timeout(deadline.saturating_sub(self.pool.now()));
        let kv = KvClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
        let response = M::alone(kv, request).await?;
        if let Some(leader) = response.metadata().get(LEADER_HINT_METADATA)
            && let Ok(leader) = leader.to_str()
        {
            self.pool.heard_of_leader(leader);
        }
        Ok(response.into_inner())
    }
}

fn wire(stamp: Stamp) -> SessionStamp {
    SessionStamp {
        session_id: stamp.session_id,
        sequence: stamp.sequence,
        acknowledged: stamp.acknowledged,
    }
}
