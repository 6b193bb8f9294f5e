//! The first entry of a new cluster's log.
//!
//! A cluster begins with one voter, and its log with the entry that says so; everyone who joins
//! later learns the first member from the same entry as all others.

use bytes::Bytes;
use dengine_kv::{Member, MembershipChange};
use dengine_log::Batch;
use dengine_types::{ClusterId, Entry, EntryKind, HardState, Index, MemberId, Revision, Term};

/// The id of the member that begins a cluster.
pub const FIRST_MEMBER: MemberId = MemberId(1);

/// What that member's log holds before it starts: the entry, already committed, and nothing else.
/// The store begins at `first_revision`, which is 1 unless the cluster takes the place of another.
#[must_use]
pub fn first_batch(cluster_id: ClusterId, member: Member, first_revision: Revision) -> Batch {
    let change = MembershipChange::Bootstrap {
        cluster_id,
        member,
        first_revision,
    };
    Batch {
        hard_state: Some(HardState {
            term: Term(1),
            vote: MemberId(0),
            commit: Index(1),
        }),
        entries: vec![Entry {
            index: Index(1),
            term: Term(1),
            kind: EntryKind::Membership,
            context: Bytes::new(),
            data: change.encode(),
        }],
    }
}
