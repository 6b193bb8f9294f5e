//! Response headers: where and at which point of history an answer was made.

use dengine_types::{ClusterId, MemberId, Revision, Term};

use crate::v1::ResponseHeader;

/// A response header as the present is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Header {
    /// Of whoever answers.
    pub cluster_id: ClusterId,
    /// Who answers.
    pub member_id: MemberId,
    /// In which term the answer was ordered, or the present one.
    pub term: Term,
    /// The newest revision that can be read here.
    pub revision: Revision,
    /// See the API.
    pub trimmed: bool,
}

impl Header {
    /// For the wire, with another revision than the present one.
    #[must_use]
    #[inline]
    pub fn at(self, revision: Revision) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.cluster_id.0,
            member_id: self.member_id.0,
            revision: revision.0,
            term: self.term.0,
            trimmed: self.trimmed,
        })
    }

    /// For the wire.
    #[must_use]
    #[inline]
    pub fn wire(self) -> Option<ResponseHeader> {
        self.at(self.revision)
    }
}
