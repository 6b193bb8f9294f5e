//! From requests that change something to commands, and from outcomes to answers.

use dengine_kv as kv;
use dengine_kv::{Command, KeyRange, Outcome, Put, PutLease};
use dengine_types::{LeaseId, Revision};
use prost::Message;

use crate::errors::EtcdError;
use crate::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse,
};
use crate::header::{Header, signed};
use crate::messages::key_value;
use crate::{KEY_BYTES_MAX, REQUEST_BYTES_MAX};

/// A request that changes something.
pub trait Mutation: Message + Sized {
    /// Its answer.
    type Response;

    /// Checks what can be judged by the request alone.
    ///
    /// # Errors
    /// The request can never succeed as it is.
    fn check(&self) -> Result<(), EtcdError>;

    /// Whether what it reads may be as the member that is asked has it. Of one that changes
    /// something this says nothing.
    fn is_serializable(&self) -> bool {
        false
    }

    /// What to replicate, of a request that was checked.
    ///
    /// # Errors
    /// It asks for what the state machine does not have.
    fn command(&self) -> Result<Command, EtcdError>;

    /// The answer.
    ///
    /// # Errors
    /// The outcome answers another question.
    fn answer(&self, header: Header, outcome: Outcome) -> Result<Self::Response, EtcdError>;
}

/// What to replicate; what only reads ([`kv::Request::read_only`]) needs no log entry.
///
/// # Errors
/// The request is not well-formed, beyond the limits, or not served.
pub fn command<M: Mutation>(request: &M) -> Result<kv::Request, EtcdError> {
    request.check()?;
    let command = kv::Request::from(request.command()?);
    if command.read_only().is_none() && request.encoded_len() > REQUEST_BYTES_MAX {
        return Err(EtcdError::RequestTooLarge);
    }
    Ok(command)
}

/// The answer to a request, from what it came to.
///
/// # Errors
/// It came to nothing that answers it.
pub fn answer<M: Mutation>(
    request: &M,
    header: Header,
    outcome: Outcome,
) -> Result<M::Response, EtcdError> {
    match outcome {
        Outcome::Refused(refusal) => Err((&refusal).into()),
        // Done, but the pairs that are to be returned are lost. Without them the answer would say
        // that there were none.
        Outcome::Trimmed(_) => Err(EtcdError::Timeout),
        outcome => request.answer(header, outcome),
    }
}

impl Mutation for PutRequest {
    type Response = PutResponse;

    fn check(&self) -> Result<(), EtcdError> {
        check_put(self)
    }

    fn command(&self) -> Result<Command, EtcdError> {
        Ok(Command::Put(Put {
            ignore_value: self.ignore_value,
            prev_kv: self.prev_kv,
            lease: put_lease(self),
            ..Put::new(self.key.clone(), self.value.clone())
        }))
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<PutResponse, EtcdError> {
        match outcome {
            Outcome::Put { revision, prev } => Ok(PutResponse {
                header: header.at(revision),
                prev_kv: prev.map(key_value),
            }),
            _ => Err(EtcdError::OfAnotherKind),
        }
    }
}

/// Checks what can be judged by the request alone.
pub(crate) fn check_put(put: &PutRequest) -> Result<(), EtcdError> {
    if put.key.is_empty() {
        return Err(EtcdError::EmptyKey);
    }
    if put.ignore_value && !put.value.is_empty() {
        return Err(EtcdError::ValueProvided);
    }
    if put.ignore_lease && put.lease != 0 {
        return Err(EtcdError::LeaseProvided);
    }
    // etcd limits the whole request only.
    if put.key.len() > KEY_BYTES_MAX {
        return Err(EtcdError::RequestTooLarge);
    }
    Ok(())
}

/// What becomes of the key's lease.
pub(crate) fn put_lease(put: &PutRequest) -> PutLease {
    match put.lease {
        _ if put.ignore_lease => PutLease::Keep,
        0 => PutLease::None,
        lease => PutLease::Attach(LeaseId(lease)),
    }
}

impl Mutation for DeleteRangeRequest {
    type Response = DeleteRangeResponse;

    fn check(&self) -> Result<(), EtcdError> {
        check_delete(self)
    }

    fn command(&self) -> Result<Command, EtcdError> {
        Ok(Command::Delete {
            keys: KeyRange::from_wire(&self.key, &self.range_end),
            prev_kv: self.prev_kv,
        })
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<DeleteRangeResponse, EtcdError> {
        match outcome {
            Outcome::Delete {
                revision,
                deleted,
                prev,
            } => Ok(DeleteRangeResponse {
                header: header.at(revision),
                deleted: signed(deleted),
                prev_kvs: prev.into_iter().map(key_value).collect(),
            }),
            _ => Err(EtcdError::OfAnotherKind),
        }
    }
}

/// Checks what can be judged by the request alone.
pub(crate) fn check_delete(delete: &DeleteRangeRequest) -> Result<(), EtcdError> {
    match delete.key.is_empty() {
        true => Err(EtcdError::EmptyKey),
        false => Ok(()),
    }
}

impl Mutation for CompactionRequest {
    type Response = CompactionResponse;

    fn check(&self) -> Result<(), EtcdError> {
        // History never begins below. etcd takes 0 once, of a store that was never compacted.
        match self.revision <= 0 {
            true => Err(EtcdError::Compacted),
            false => Ok(()),
        }
    }

    fn command(&self) -> Result<Command, EtcdError> {
        let revision = u64::try_from(self.revision).map_err(|_| EtcdError::Compacted)?;
        Ok(Command::Compact {
            revision: Revision(revision),
        })
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<CompactionResponse, EtcdError> {
        match outcome {
            Outcome::Compact { revision } => Ok(CompactionResponse {
                header: header.at(revision),
            }),
            _ => Err(EtcdError::OfAnotherKind),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_kv::Refusal;
    use dengine_types::{ClusterId, MemberId, Term};

    use super::*;
    use crate::etcdserverpb::ResponseHeader;

    const HEADER: Header = Header {
        cluster_id: ClusterId(1),
        member_id: MemberId(2),
        term: Term(3),
        revision: Revision(9),
    };

    fn put(key: &'static str) -> PutRequest {
        PutRequest {
            key: key.into(),
            value: "v".into(),
            ..PutRequest::default()
        }
    }

    fn refused<M: Mutation>(request: &M) -> EtcdError {
        command(request).unwrap_err()
    }

    #[test]
    fn bad_puts_are_refused_in_etcds_order() {
        let mut request = PutRequest {
            lease: 7,
            ignore_value: true,
            ignore_lease: true,
            ..put("")
        };
        assert_eq!(refused(&request), EtcdError::EmptyKey);
        request.key = "k".into();
        assert_eq!(refused(&request), EtcdError::ValueProvided);
        request.value = Bytes::new();
        assert_eq!(refused(&request), EtcdError::LeaseProvided);
        request.lease = 0;
        assert!(command(&request).is_ok());
    }

    #[test]
    fn a_request_is_bounded_as_a_whole() {
        let mut request = put("k");
        request.value = vec![7; REQUEST_BYTES_MAX - 7].into();
        assert_eq!(request.encoded_len(), REQUEST_BYTES_MAX);
        assert!(command(&request).is_ok());
        request.prev_kv = true;
        assert_eq!(refused(&request), EtcdError::RequestTooLarge);
        let mut request = put("k");
        request.key = vec![b'k'; KEY_BYTES_MAX].into();
        assert!(command(&request).is_ok());
        request.key = vec![b'k'; KEY_BYTES_MAX + 1].into();
        assert_eq!(refused(&request), EtcdError::RequestTooLarge);
    }

    #[test]
    fn requests_become_commands() {
        let found = command(&put("k")).unwrap().command;
        let expect = Command::put("k", "v");
        assert_eq!(found, expect);
        let lease = |lease, ignore_lease| {
            put_lease(&PutRequest {
                lease,
                ignore_lease,
                ..put("k")
            })
        };
        assert_eq!(lease(-7, false), PutLease::Attach(LeaseId(-7)));
        assert_eq!(lease(0, true), PutLease::Keep);
        let delete = DeleteRangeRequest {
            key: "k".into(),
            range_end: "\0".into(),
            prev_kv: true,
        };
        let expect = Command::Delete {
            keys: KeyRange::From("k".into()),
            prev_kv: true,
        };
        assert_eq!(command(&delete).unwrap().command, expect);
        assert_eq!(refused(&DeleteRangeRequest::default()), EtcdError::EmptyKey);
        let compact = |revision| CompactionRequest {
            revision,
            physical: false,
        };
        let expect = Command::Compact {
            revision: Revision(5),
        };
        assert_eq!(command(&compact(5)).unwrap().command, expect);
        assert_eq!(refused(&compact(0)), EtcdError::Compacted);
        assert_eq!(refused(&compact(-1)), EtcdError::Compacted);
    }

    #[test]
    fn an_answer_has_the_revision_of_its_outcome() {
        let revision = Revision(7);
        let outcome = Outcome::Put {
            revision,
            prev: None,
        };
        let expect = PutResponse {
            header: Some(ResponseHeader {
                cluster_id: 1,
                member_id: 2,
                revision: 7,
                raft_term: 3,
            }),
            prev_kv: None,
        };
        assert_eq!(answer(&put("k"), HEADER, outcome), Ok(expect));
        let refusal = Outcome::Refused(Refusal::DuplicateKey);
        let found = answer(&put("k"), HEADER, refusal);
        assert_eq!(found, Err(EtcdError::DuplicateKey));
        let other = Outcome::Compact { revision };
        let found = answer(&put("k"), HEADER, other);
        assert_eq!(found, Err(EtcdError::OfAnotherKind));
    }

    /// It would say that the key did not exist before.
    #[test]
    fn an_outcome_without_its_pairs_is_no_answer() {
        let put_outcome = Outcome::Put {
            revision: Revision(7),
            prev: None,
        };
        let trimmed = Outcome::Trimmed(Box::new(put_outcome));
        let found = answer(&put("k"), HEADER, trimmed);
        assert_eq!(found, Err(EtcdError::Timeout));
    }
}
