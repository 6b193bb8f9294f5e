//! Response headers: where and at which point of history an answer was made.

use std::sync::OnceLock;

use dengine_api::v1::ResponseHeader;
use dengine_core::types::{ClusterId, MemberId, Revision, Term};
use tokio::sync::watch;

use crate::node::{Node, NodeStatus};

/// Makes headers.
pub(in crate::server) struct Headers {
    status: watch::Receiver<NodeStatus>,
    revision: watch::Receiver<Revision>,
    /// Never changes once the member has it.
    identity: OnceLock<(ClusterId, MemberId)>,
}

/// A response header as the present is.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct Header {
    pub(in crate::server) cluster_id: ClusterId,
    pub(in crate::server) member_id: MemberId,
    pub(in crate::server) term: Term,
    /// The newest revision that can be read here.
    pub(in crate::server) revision: Revision,
    /// See the API.
    pub(in crate::server) trimmed: bool,
}

impl Headers {
    /// Of answers that `node` gives.
    pub(in crate::server) fn new(node: &Node) -> Self {
        Self {
            status: node.status_changes(),
            revision: node.revision_changes(),
            identity: OnceLock::new(),
        }
    }

    /// As the present is.
    pub(in crate::server) fn now(&self) -> Header {
        self.in_term(self.status.borrow().term)
    }

    /// Of an answer that was ordered in `term`.
    pub(in crate::server) fn in_term(&self, term: Term) -> Header {
        let identity = self.identity.get().copied().or_else(|| {
            let status = self.status.borrow();
            let identity = (status.cluster_id, status.member_id);
            (identity.0 != ClusterId(0)).then(|| *self.identity.get_or_init(|| identity))
        });
        let (cluster_id, member_id) = identity.unwrap_or_default();
        Header {
            cluster_id,
            member_id,
            term,
            revision: *self.revision.borrow(),
            trimmed: false,
        }
    }
}

impl Header {
    /// For the wire, with another revision than the present one.
    pub(in crate::server) fn at(self, revision: Revision) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.cluster_id.0,
            member_id: self.member_id.0,
            revision: revision.0,
            term: self.term.0,
            trimmed: self.trimmed,
        })
    }

    /// For the wire.
    pub(in crate::server) fn wire(self) -> Option<ResponseHeader> {
        self.at(self.revision)
    }
}
