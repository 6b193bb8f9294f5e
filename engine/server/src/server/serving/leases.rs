//! Questions about leases, which only the leader can answer.

use dengine_protocol::v1::kv_client::KvClient;
use dengine_protocol::v1::{AskLeaseRequest, AskLeaseResponse};
use dengine_raft::{LeaseAnswer, LeaseAsk};
use dengine_types::LeaseId;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::Serving;
use crate::server::forward::{Effect, Origin};

/// The name of the call by which a member asks the leader.
pub(in crate::server) const ASK_LEASE: &str = "AskLease";

impl Serving {
    /// Asks about a lease here, or at the leader. Nothing has to be known of what became of it: it
    /// may be asked again.
    pub(in crate::server) async fn ask_lease(
        &self,
        asked: AskLeaseRequest,
        origin: Origin,
    ) -> Result<AskLeaseResponse, Status> {
        let ask = match asked.keep_alive {
            true => LeaseAsk::KeepAlive,
            false => LeaseAsk::Remaining,
        };
        let answered = self.node.ask_lease(LeaseId(asked.lease), ask).await;
        let error = match answered {
            Ok(answer) => {
                return Ok(AskLeaseResponse {
                    header: self.headers.now().wire(),
                    ..response(answer)
                });
            }
            Err(error) => error,
        };
        let there = |channel: Channel, request: Request<AskLeaseRequest>| async move {
            KvClient::new(channel).ask_lease(request).await
        };
        self.forwarder
            .instead(error, origin, ASK_LEASE, Effect::Reads, asked, there)
            .await
    }
}

/// Without a header.
fn response(answer: LeaseAnswer) -> AskLeaseResponse {
    let known = |ttl_ms, remaining_ms| AskLeaseResponse {
        header: None,
        found: true,
        ttl_ms,
        remaining_ms,
    };
    match answer {
        LeaseAnswer::Kept { ttl_ms } => known(ttl_ms, ttl_ms),
        LeaseAnswer::Lasts {
            ttl_ms,
            remaining_ms,
        } => known(ttl_ms, remaining_ms),
        LeaseAnswer::NotFound => AskLeaseResponse::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease that is known and over must not pass for one that does not exist.
    #[test]
    fn an_answer_says_whether_there_is_such_a_lease() {
        let over = response(LeaseAnswer::Lasts {
            ttl_ms: 5,
            remaining_ms: 0,
        });
        assert_eq!((over.found, over.ttl_ms, over.remaining_ms), (true, 5, 0));
        let kept = response(LeaseAnswer::Kept { ttl_ms: 5 });
        assert_eq!((kept.found, kept.ttl_ms, kept.remaining_ms), (true, 5, 5));
        assert!(!response(LeaseAnswer::NotFound).found);
    }
}
