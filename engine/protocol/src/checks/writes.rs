//! From requests that change something to commands, and from outcomes to answers.

use dengine_kv as kv;
use dengine_kv::{Command, Expected, KeyRange, Outcome, Put, Refusal};
use dengine_types::{Revision, SessionId};
use tonic::Status;

use crate::KvCall;
use crate::checks::header::Header;
use crate::checks::limits::RequestLimits;
use crate::checks::messages::key_value;
use crate::checks::status::refusal_status;
use crate::v1::compare_and_swap_request::Expected as WireExpected;
use crate::v1::{
    CompactRequest, CompactResponse, CompareAndSwapRequest, CompareAndSwapResponse, DeleteRequest,
    DeleteResponse, PutRequest, PutResponse, ResponseHeader, SessionStamp,
};

/// A request that changes something.
pub trait Mutation: KvCall {
    /// What to replicate.
    ///
    /// # Errors
    /// The request is not well-formed, or beyond the limits.
    fn command(&self, limits: &RequestLimits) -> Result<Command, Status>;

    /// The answer.
    ///
    /// # Errors
    /// The outcome again if it answers another question.
    fn answer(&self, header: Header, outcome: Outcome) -> Result<Self::Answer, Outcome>;

    /// The answer to one that the state machine refused, if refusals are answers too.
    ///
    /// # Errors
    /// They are not: the refusal again.
    fn refused(&self, _: Header, refusal: Refusal) -> Result<Self::Answer, Refusal> {
        Err(refusal)
    }

    /// Leaves out the pairs of an answer that has some; the header that is to say so.
    fn leave_out_pairs(_: &mut Self::Answer) -> Option<&mut ResponseHeader> {
        None
    }
}

/// Why an outcome is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The state machine refused.
    #[error(transparent)]
    Refused(Refusal),
    /// It answered another question than the one that was asked: a bug, and not the caller's,
    /// unless the caller used one sequence of its session for two different requests.
    #[error(
        "the state machine gave an answer of another kind: either this sequence of the session was \
         used for another request, or this is a bug in dengine"
    )]
    OfAnotherKind(Outcome),
}

impl From<NoAnswer> for Status {
    fn from(why: NoAnswer) -> Self {
        match &why {
            NoAnswer::Refused(refusal) => refusal_status(refusal),
            NoAnswer::OfAnotherKind(_) => Self::internal(why.to_string()),
        }
    }
}

/// What to replicate, and who may repeat it.
///
/// # Errors
/// The request is not well-formed, or beyond the limits.
#[inline]
pub fn command<M: Mutation>(request: &M, limits: &RequestLimits) -> Result<kv::Request, Status> {
    Ok(kv::Request {
        command: request.command(limits)?,
        session: request.stamp().map(stamp),
    })
}

/// The answer to a request, from what it came to.
///
/// # Errors
/// It came to nothing that answers it.
#[inline]
pub fn answer<M: Mutation>(
    request: &M,
    mut header: Header,
    outcome: Outcome,
) -> Result<M::Answer, NoAnswer> {
    let outcome = match outcome {
        Outcome::Refused(refusal) => {
            return request.refused(header, refusal).map_err(NoAnswer::Refused);
        }
        Outcome::Trimmed(outcome) => {
            header.trimmed = true;
            *outcome
        }
        other => other,
    };
    request
        .answer(header, outcome)
        .map_err(NoAnswer::OfAnotherKind)
}

fn stamp(stamp: SessionStamp) -> kv::SessionStamp {
    kv::SessionStamp {
        id: SessionId(stamp.session_id),
        sequence: stamp.sequence,
        acknowledged: stamp.acknowledged,
    }
}

impl Mutation for PutRequest {
    fn command(&self, limits: &RequestLimits) -> Result<Command, Status> {
        limits.check_key(&self.key)?;
        limits.check_value(&self.value)?;
        check_stamp(self.session)?;
        Ok(Command::Put(Put {
            prev_kv: self.prev_kv,
            ttl_ms: self.ttl_ms,
            ..Put::new(self.key.clone(), self.value.clone())
        }))
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

    fn leave_out_pairs(answer: &mut PutResponse) -> Option<&mut ResponseHeader> {
        answer.prev_kv = None;
        answer.header.as_mut()
    }
}

impl Mutation for DeleteRequest {
    fn command(&self, limits: &RequestLimits) -> Result<Command, Status> {
        limits.check_key(&self.key)?;
        limits.check_range_end(&self.range_end)?;
        check_stamp(self.session)?;
        Ok(Command::Delete {
            keys: KeyRange::from_wire(&self.key, &self.range_end),
            prev_kv: self.prev_kv,
        })
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

    fn leave_out_pairs(answer: &mut DeleteResponse) -> Option<&mut ResponseHeader> {
        answer.prev_kvs = Vec::new();
        answer.header.as_mut()
    }
}

impl Mutation for CompareAndSwapRequest {
    fn command(&self, limits: &RequestLimits) -> Result<Command, Status> {
        limits.check_key(&self.key)?;
        limits.check_value(&self.value)?;
        check_stamp(self.session)?;
        let expected = match &self.expected {
            Some(WireExpected::ModRevision(revision)) => Expected::ModRevision(Revision(*revision)),
            Some(WireExpected::CurrentValue(value)) => {
                limits.check_value(value)?;
                Expected::Value(value.clone())
            }
            None => {
                return Err(Status::invalid_argument(
                    "expected is missing: give mod_revision (0: the key must not exist) or \
                     current_value",
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

    fn leave_out_pairs(answer: &mut CompareAndSwapResponse) -> Option<&mut ResponseHeader> {
        answer.prev_kv = None;
        answer.header.as_mut()
    }
}

impl Mutation for CompactRequest {
    fn command(&self, _: &RequestLimits) -> Result<Command, Status> {
        check_stamp(self.session)?;
        if self.revision == 0 {
            return Err(Status::invalid_argument(
                "the revision is missing: name the first one that is to stay readable",
            ));
        }
        Ok(Command::Compact {
            revision: Revision(self.revision),
        })
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
pub(crate) fn check_stamp(stamp: Option<SessionStamp>) -> Result<(), Status> {
    match stamp {
        Some(stamp) if stamp.session_id == 0 || stamp.sequence <= stamp.acknowledged => {
            Err(Status::invalid_argument(
                "the session stamp is not valid: it needs a session id, and a sequence above what \
                 is acknowledged",
            ))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::checks::limits::TEST_LIMITS;

    /// It was told that revision 0 is compacted, and that history begins at revision 0.
    #[test]
    fn a_compaction_without_a_revision_is_told_what_it_lacks() {
        let status = CompactRequest::default().command(&TEST_LIMITS).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("revision is missing"), "{status}");
    }
}
