//! Response headers as the present is.

use std::sync::OnceLock;

use dengine_protocol::checks::Header;
use dengine_types::{ClusterId, MemberId, Revision, Term};
use tokio::sync::watch;

use crate::node::{Node, NodeStatus};

/// Makes headers.
pub(in crate::server) struct Headers {
    status: watch::Receiver<NodeStatus>,
    revision: watch::Receiver<Revision>,
    /// Never changes once the member has it.
    identity: OnceLock<(ClusterId, MemberId)>,
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
