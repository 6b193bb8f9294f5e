//! From requests that change something to commands, and from outcomes to answers.

use dengine_api::{
    KvCall,
    v1::{
        CompactRequest, CompactResponse, CompareAndSwapRequest, CompareAndSwapResponse,
        DeleteRequest, DeleteResponse, PutRequest, PutResponse, SessionStamp,
        compare_and_swap_request::Expected as WireExpected,
    },
};
use dengine_core::{
    kv::{self, Command, Expected, KeyRange, Outcome, RangeQuery},
    types::{Revision, SessionId},
};
use tonic::Status;

use super::{Serving, header::Header};
use crate::{
    config::Limits,
    node::Written,
    server::{
        forward::Origin,
        messages::{check_key, check_range_end, check_value, key_value},
        status::refusal_status,
    },
};

/// A request that changes something.
pub(super) trait Mutation: KvCall + prost::Message {
    /// What to replicate, if the request is well-formed and within the limits.
    fn command(&self, limits: &Limits) -> Result<Command, Status>;

    /// Its place in a session.
    fn stamp(&self) -> Option<SessionStamp> {
        None
    }

    /// Ranges whose pairs the answer is to hold.
    fn returned(&self) -> Vec<KeyRange> {
        Vec::new()
    }

    /// The answer; the outcome again if it answers another question.
    fn answer(&self, header: Header, outcome: Outcome) -> Result<Self::Answer, Outcome>;
}

impl Serving {
    /// Proposes what `request` asks for, or has the leader answer instead.
    pub(super) async fn write<M: Mutation>(
        &self,
        request: M,
        origin: Origin,
    ) -> Result<M::Answer, Status> {
        self.gate
            .pass(M::METHOD, self.propose(request, origin))
            .await
    }

    async fn propose<M: Mutation>(&self, request: M, origin: Origin) -> Result<M::Answer, Status> {
        let command = self.command(&request)?;
        self.check_returned(request.returned()).await?;
        match self.node.write(command).await {
            Ok(written) => self.answer(&request, written),
            Err(error) => {
                let forwarded = self
                    .forwarder
                    .write(error, origin, M::METHOD, request.framed());
                M::unframed(forwarded.await?).map_err(|_| {
                    Status::internal("the leader answered another question than was asked")
                })
            }
        }
    }

    /// What to replicate, if the request is well-formed and within the limits.
    pub(super) fn command<M: Mutation>(&self, request: &M) -> Result<kv::Request, Status> {
        Ok(kv::Request {
            command: request.command(&self.limits)?,
            session: request.stamp().map(stamp),
        })
    }

    /// The answer to a request, from what it came to.
    pub(super) fn answer<M: Mutation>(
        &self,
        request: &M,
        written: Written,
    ) -> Result<M::Answer, Status> {
        answer(request, self.headers.in_term(written.term), written.outcome)
    }

    /// What a delete returns is gathered while it is applied, by every member: it must not be large. Judged
    /// by what this member sees now, which is all that can be known before the delete has its place in the
    /// log.
    async fn check_returned(&self, ranges: Vec<KeyRange>) -> Result<(), Status> {
        for keys in ranges {
            let query = RangeQuery {
                max_bytes: self.limits.max_range_bytes,
                ..RangeQuery::new(keys)
            };
            if self.read(query).await?.more {
                return Err(Status::invalid_argument(format!(
                    "prev_kv: the range holds more than {} bytes (--max-range-bytes); delete it in parts, or without prev_kv",
                    self.limits.max_range_bytes
                )));
            }
        }
        Ok(())
    }
}

fn answer<M: Mutation>(
    request: &M,
    mut header: Header,
    outcome: Outcome,
) -> Result<M::Answer, Status> {
    let outcome = match outcome {
        Outcome::Refused(refusal) => return Err(refusal_status(&refusal)),
        Outcome::Trimmed(outcome) => {
            header.trimmed = true;
            *outcome
        }
        other => other,
    };
    request
        .answer(header, outcome)
        .map_err(|other| unexpected(M::METHOD, &other))
}

/// The state machine answered another question than the one that was asked: a bug, and not the caller's, unless
/// the caller used one sequence of its session for two different requests.
fn unexpected(method: &str, outcome: &Outcome) -> Status {
    tracing::error!(
        method,
        ?outcome,
        "the state machine gave an answer of another kind"
    );
    Status::internal(
        "the state machine gave an answer of another kind: either this sequence of the session was used for another request, or this is a bug in dengine",
    )
}

fn stamp(stamp: SessionStamp) -> kv::SessionStamp {
    kv::SessionStamp {
        id: SessionId(stamp.session_id),
        sequence: stamp.sequence,
        acknowledged: stamp.acknowledged,
    }
}

impl Mutation for PutRequest {
    fn command(&self, limits: &Limits) -> Result<Command, Status> {
        check_key(&self.key, limits)?;
        check_value(&self.value, limits)?;
        check_stamp(self.session)?;
        Ok(Command::Put {
            key: self.key.clone(),
            value: self.value.clone(),
            prev_kv: self.prev_kv,
            ttl_ms: self.ttl_ms,
        })
    }

    fn stamp(&self) -> Option<SessionStamp> {
        self.session
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<PutResponse, Outcome> {
        match outcome {
            Outcome::Put { revision, prev } => Ok(PutResponse {
                header: header.at(revision),
                prev_kv: prev.map(key_value),
            }),
            other => Err(other),
        }
    }
}

impl Mutation for DeleteRequest {
    fn command(&self, limits: &Limits) -> Result<Command, Status> {
        check_key(&self.key, limits)?;
        check_range_end(&self.range_end, limits)?;
        check_stamp(self.session)?;
        Ok(Command::Delete {
            keys: KeyRange::from_wire(self.key.clone(), self.range_end.clone()),
            prev_kv: self.prev_kv,
        })
    }

    fn stamp(&self) -> Option<SessionStamp> {
        self.session
    }

    fn returned(&self) -> Vec<KeyRange> {
        if !self.prev_kv || self.range_end.is_empty() {
            return Vec::new();
        }
        vec![KeyRange::from_wire(
            self.key.clone(),
            self.range_end.clone(),
        )]
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<DeleteResponse, Outcome> {
        match outcome {
            Outcome::Delete {
                revision,
                deleted,
                prev,
            } => Ok(DeleteResponse {
                header: header.at(revision),
                deleted,
                prev_kvs: prev.into_iter().map(key_value).collect(),
            }),
            other => Err(other),
        }
    }
}

impl Mutation for CompareAndSwapRequest {
    fn command(&self, limits: &Limits) -> Result<Command, Status> {
        check_key(&self.key, limits)?;
        check_value(&self.value, limits)?;
        check_stamp(self.session)?;
        let expected = match &self.expected {
            Some(WireExpected::ModRevision(revision)) => Expected::ModRevision(Revision(*revision)),
            Some(WireExpected::CurrentValue(value)) => {
                check_value(value, limits)?;
                Expected::Value(value.clone())
            }
            None => {
                return Err(Status::invalid_argument(
                    "expected is missing: give mod_revision (0: the key must not exist) or current_value",
                ));
            }
        };
        Ok(Command::CompareAndSwap {
            key: self.key.clone(),
            expected,
            value: self.value.clone(),
            ttl_ms: self.ttl_ms,
        })
    }

    fn stamp(&self) -> Option<SessionStamp> {
        self.session
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<CompareAndSwapResponse, Outcome> {
        match outcome {
            Outcome::CompareAndSwap {
                revision,
                succeeded,
                prev,
            } => Ok(CompareAndSwapResponse {
                header: header.at(revision),
                succeeded,
                prev_kv: prev.map(key_value),
            }),
            other => Err(other),
        }
    }
}

impl Mutation for CompactRequest {
    fn command(&self, _: &Limits) -> Result<Command, Status> {
        check_stamp(self.session)?;
        Ok(Command::Compact {
            revision: Revision(self.revision),
        })
    }

    fn stamp(&self) -> Option<SessionStamp> {
        self.session
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<CompactResponse, Outcome> {
        match outcome {
            Outcome::Compact { revision } => Ok(CompactResponse {
                header: header.at(revision),
            }),
            other => Err(other),
        }
    }
}

/// Checks what a stamp can be judged by alone.
pub(super) fn check_stamp(stamp: Option<SessionStamp>) -> Result<(), Status> {
    match stamp {
        Some(stamp) if stamp.session_id == 0 || stamp.sequence <= stamp.acknowledged => {
            Err(Status::invalid_argument(
                "the session stamp is not valid: it needs a session id, and a sequence above what is acknowledged",
            ))
        }
        _ => Ok(()),
    }
}
