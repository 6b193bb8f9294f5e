//! Response headers: where and at which point of history an answer was made.

use dengine_types::{ClusterId, MemberId, Revision, Term};

use crate::etcdserverpb::ResponseHeader;

/// A response header as the present is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Header {
    /// The cluster of the member that answers.
    pub cluster_id: ClusterId,
    /// The member that answers.
    pub member_id: MemberId,
    /// The term in which the answer was ordered, or the present one.
    pub term: Term,
    /// The newest revision that can be read here.
    pub revision: Revision,
}

impl Header {
    /// For the wire, with another revision than the present one.
    #[must_use]
    pub fn at(self, revision: Revision) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.cluster_id.0,
            member_id: self.member_id.0,
            revision: signed(revision.0),
            raft_term: self.term.0,
        })
    }

    /// For the wire.
    #[must_use]
    pub fn wire(self) -> Option<ResponseHeader> {
        self.at(self.revision)
    }

    /// For the wire, of a call that does not touch the store.
    #[must_use]
    pub fn without_revision(self) -> Option<ResponseHeader> {
        self.at(Revision(0))
    }
}

/// The header of an answer within that of a transaction.
pub(crate) fn nested(revision: Revision) -> Option<ResponseHeader> {
    Some(ResponseHeader {
        revision: signed(revision.0),
        ..ResponseHeader::default()
    })
}

/// A number of ours as etcd's API has it. None of ours is that large.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
