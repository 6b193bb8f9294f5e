//! Opening, keeping and closing sessions.

use dengine_kv::{Command, Outcome};
use dengine_types::SessionId;
use tonic::Status;

use crate::checks::header::Header;
use crate::checks::limits::RequestLimits;
use crate::checks::writes::Mutation;
use crate::v1::{
    CloseSessionRequest, CloseSessionResponse, KeepAliveSessionRequest, KeepAliveSessionResponse,
    OpenSessionRequest, OpenSessionResponse,
};

/// What a session gets that asks for nothing.
const TTL_DEFAULT_MS: u64 = 60_000;
/// Shorter ones would be lost to every election.
const TTL_MIN_MS: u64 = 1_000;
/// For longer nobody should have to keep the answers for a client that is gone.
const TTL_MAX_MS: u64 = 3_600_000;

/// What is granted to who asks for `ttl_ms`.
fn granted(ttl_ms: u64) -> u64 {
    match ttl_ms {
        0 => TTL_DEFAULT_MS,
        asked => asked.clamp(TTL_MIN_MS, TTL_MAX_MS),
    }
}

impl Mutation for OpenSessionRequest {
    fn command(&self, _: &RequestLimits) -> Result<Command, Status> {
        Ok(Command::OpenSession {
            ttl_ms: granted(self.ttl_ms),
        })
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<OpenSessionResponse, Outcome> {
        match outcome {
            Outcome::SessionOpened { session } => Ok(OpenSessionResponse {
                header: header.wire(),
                session_id: session.0,
                ttl_ms: granted(self.ttl_ms),
            }),
            other => Err(other),
        }
    }
}

impl Mutation for KeepAliveSessionRequest {
    fn command(&self, _: &RequestLimits) -> Result<Command, Status> {
        Ok(Command::KeepAlive {
            session: SessionId(self.session_id),
        })
    }

    fn answer(
        &self,
        header: Header,
        outcome: Outcome,
    ) -> Result<KeepAliveSessionResponse, Outcome> {
        match outcome {
            Outcome::SessionKept => Ok(KeepAliveSessionResponse {
                header: header.wire(),
            }),
            other => Err(other),
        }
    }
}

impl Mutation for CloseSessionRequest {
    fn command(&self, _: &RequestLimits) -> Result<Command, Status> {
        Ok(Command::CloseSession {
            session: SessionId(self.session_id),
        })
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<CloseSessionResponse, Outcome> {
        match outcome {
            Outcome::SessionClosed { closed } => Ok(CloseSessionResponse {
                header: header.wire(),
                closed,
            }),
            other => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_granted_within_bounds() {
        for (asked, expect) in [
            (0, TTL_DEFAULT_MS),
            (1, TTL_MIN_MS),
            (5_000, 5_000),
            (u64::MAX, TTL_MAX_MS),
        ] {
            assert_eq!(granted(asked), expect, "{asked}");
        }
    }
}
