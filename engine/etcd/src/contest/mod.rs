//! Contests: locks and elections, as transactions and ranges.
//!
//! Who contends for a name has a key below it, which hangs on its lease; of these keys, the one
//! that was made first holds the lock, or leads. So do the mutexes and elections of etcd's clients,
//! which meet those of the services [`v3lockpb`](crate::v3lockpb) and
//! [`v3electionpb`](crate::v3electionpb) here.

mod errors;
#[cfg(test)]
mod tests;

use bytes::Bytes;

use crate::errors::EtcdError;
use crate::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::etcdserverpb::request_op::Request;
use crate::etcdserverpb::response_op::Response;
use crate::etcdserverpb::watch_create_request::FilterType;
use crate::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp,
    ResponseHeader, TxnRequest, TxnResponse, WatchCreateRequest,
};
use crate::mvccpb::KeyValue;

pub use errors::{ContestError, by_way_of_a_client};

/// How long the lease lasts that a contender without one is given, in seconds.
pub const LEASE_TTL: i64 = 60;

/// All keys of those who contend for one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contest {
    prefix: Bytes,
}

/// A key by which somebody contends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// The key.
    pub key: Bytes,
    /// The revision in which it was made, which is its place.
    pub create_revision: i64,
    /// The lease that it hangs on.
    pub lease: i64,
}

/// What came of asking to contend.
#[derive(Clone, Debug, PartialEq)]
pub struct Entered {
    /// Who contends now.
    pub contender: Contender,
    /// Of the transaction.
    pub header: Option<ResponseHeader>,
}

impl Contest {
    /// That for `name`.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        Self {
            prefix: [name, b"/"].concat().into(),
        }
    }

    /// Keys of the contest.
    fn keys(&self) -> RangeRequest {
        let mut range_end = self.prefix.to_vec();
        if let Some(last) = range_end.last_mut() {
            // A slash: there is a byte behind it.
            *last += 1;
        }
        RangeRequest {
            key: self.prefix.clone(),
            range_end: range_end.into(),
            sort_target: SortTarget::Create.into(),
            limit: 1,
            ..RangeRequest::default()
        }
    }

    /// The key by which a lease contends.
    #[must_use]
    pub fn key(&self, lease: i64) -> Bytes {
        // Clients print a negative id as the number that it is, not as its bits.
        let sign = if lease < 0 { "-" } else { "" };
        let number = format!("{sign}{:x}", lease.unsigned_abs());
        [&self.prefix, number.as_bytes()].concat().into()
    }

    /// How long the longest key is that [`Self::key`] makes.
    #[must_use]
    pub fn key_bytes_max(&self) -> usize {
        // A sign, and the digits of any number.
        self.prefix.len() + 1 + 2 * size_of::<i64>()
    }

    /// Has a lease contend, with `value` unless it does already. What a key has that is there is
    /// not read: it may be large, and all writes behind this one would wait.
    #[must_use]
    pub fn enter(&self, lease: i64, value: Bytes) -> TxnRequest {
        let key = self.key(lease);
        let put = PutRequest {
            key: key.clone(),
            value,
            lease,
            ..PutRequest::default()
        };
        TxnRequest {
            compare: vec![made_in(&key, 0)],
            success: vec![operation(Request::RequestPut(put))],
            failure: vec![operation(Request::RequestRange(RangeRequest {
                keys_only: true,
                ..of(key)
            }))],
        }
    }

    /// Watches for somebody to contend, from that revision on.
    #[must_use]
    pub fn watch_puts(&self, first: i64) -> WatchCreateRequest {
        let RangeRequest { key, range_end, .. } = self.keys();
        WatchCreateRequest {
            key,
            range_end,
            start_revision: first,
            filters: vec![FilterType::Nodelete.into()],
            ..WatchCreateRequest::default()
        }
    }

    /// What came of [`Self::enter`], and whether the key was made.
    ///
    /// # Errors
    /// It answers another question.
    pub fn entered(&self, lease: i64, answer: TxnResponse) -> Result<(Entered, bool), EtcdError> {
        let made = answer.header.as_ref().map_or(0, |it| it.revision);
        let own = answer.responses.into_iter().next();
        let (create_revision, is_new) = match own.and_then(|it| it.response) {
            Some(Response::ResponsePut(_)) if answer.succeeded => (made, true),
            Some(Response::ResponseRange(own)) => {
                let own = only(own).ok_or(EtcdError::OfAnotherKind)?;
                (own.create_revision, false)
            }
            _ => return Err(EtcdError::OfAnotherKind),
        };
        let contender = Contender {
            key: self.key(lease),
            create_revision,
            lease,
        };
        let header = answer.header;
        Ok((Entered { contender, header }, is_new))
    }

    /// Asks who holds the lock, or leads: at most one key.
    #[must_use]
    pub fn first(&self) -> RangeRequest {
        RangeRequest {
            sort_order: SortOrder::Ascend.into(),
            ..self.keys()
        }
    }

    /// Asks for whom a contender waits: the last one before it, as a member has it. Those before it
    /// only grow fewer, so that none is before it any more once a member that has its key says so.
    #[must_use]
    pub fn next_before(&self, contender: &Contender) -> RangeRequest {
        RangeRequest {
            sort_order: SortOrder::Descend.into(),
            max_create_revision: match contender.create_revision - 1 {
                // By itself, no bound.
                0 => -1,
                newest => newest,
            },
            keys_only: true,
            serializable: true,
            ..self.keys()
        }
    }
}

impl Contender {
    /// Asks for its key without its value, as a member has it.
    #[must_use]
    pub fn own(&self) -> RangeRequest {
        RangeRequest {
            serializable: true,
            keys_only: true,
            ..of(self.key.clone())
        }
    }

    /// Asks for its key, and what it proclaims.
    #[must_use]
    pub fn proclaimed(&self) -> RangeRequest {
        of(self.key.clone())
    }

    /// Whether what was found is its key, and none that was made since.
    #[must_use]
    pub fn is(&self, found: &KeyValue) -> bool {
        found.key == self.key && found.create_revision == self.create_revision
    }

    /// Changes what it proclaims, if its key is there.
    #[must_use]
    pub fn proclaim(&self, value: Bytes) -> TxnRequest {
        self.if_there(Request::RequestPut(PutRequest {
            key: self.key.clone(),
            value,
            lease: self.lease,
            ..PutRequest::default()
        }))
    }

    /// Contends no more. It may be asked for again and again.
    #[must_use]
    pub fn leave(&self) -> TxnRequest {
        self.if_there(Request::RequestDeleteRange(DeleteRangeRequest {
            key: self.key.clone(),
            ..DeleteRangeRequest::default()
        }))
    }

    fn if_there(&self, request: Request) -> TxnRequest {
        TxnRequest {
            compare: vec![made_in(&self.key, self.create_revision)],
            success: vec![operation(request)],
            failure: Vec::new(),
        }
    }
}

/// Watches a key, for its end and, if `values` are wanted, its changes, from that revision on.
#[must_use]
pub fn watch_key(key: &Bytes, values: bool, first: i64) -> WatchCreateRequest {
    let filters = match values {
        true => Vec::new(),
        false => vec![FilterType::Noput.into()],
    };
    WatchCreateRequest {
        key: key.clone(),
        start_revision: first,
        filters,
        ..WatchCreateRequest::default()
    }
}

/// The pair of an answer that has one at most.
#[must_use]
pub fn only(found: RangeResponse) -> Option<KeyValue> {
    found.kvs.into_iter().next()
}

fn of(key: Bytes) -> RangeRequest {
    RangeRequest {
        key,
        ..RangeRequest::default()
    }
}

/// Holds if the key was last made in that revision; 0: it is not there.
fn made_in(key: &Bytes, create_revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::CreateRevision(create_revision)),
        ..Compare::default()
    }
}

fn operation(request: Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}
