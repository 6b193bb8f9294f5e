//! What a member tells about itself and, while it leads, about the others.

use dengine_kv::CommandVersion;
pub use dengine_raft::replica::{MemberProgress, Role};
use dengine_types::{ClusterId, Index, MemberId, Revision, Term};
use tokio::sync::watch;

use super::commit_waiters::CommitWaiters;
use crate::error::{Fatal, LeaderHint};

/// Whether the member takes part in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    /// An empty data directory: waits to be bootstrapped or joined.
    Waiting,
    /// Has an identity and takes part.
    Running,
}

/// What a member knows of itself. Without an identity, ids and positions are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Waiting or running.
    pub lifecycle: Lifecycle,
    /// From its configuration.
    pub name: String,
    /// Of its data directory.
    pub folder_id: String,
    /// The cluster.
    pub cluster_id: ClusterId,
    /// This member.
    pub member_id: MemberId,
    /// Its part.
    pub role: Role,
    /// Whether that is so: a voter may be taken for a learner at first.
    pub role_is_known: bool,
    /// Whom it follows, if anybody; itself if it leads.
    pub leader: Option<LeaderHint>,
    /// The latest term it knows.
    pub term: Term,
    /// The first entry of its log that is still there.
    pub first_index: Index,
    /// The end of its log.
    pub last_index: Index,
    /// How far it knows the log to be committed.
    pub commit_index: Index,
    /// How far its state machine has come.
    pub applied_index: Index,
    /// The store's revision at `applied_index`.
    pub revision: Revision,
    /// Whether it could answer a linearizable read now, and pass a write on to the leader.
    pub ready: bool,
    /// Whether its disk hangs: its log or its state machine has not got on for several election
    /// timeouts.
    pub stalled: bool,
    /// Whether it is in its cluster no more, as far as it knows.
    pub removed: bool,
    /// Size of its log on disk.
    pub log_bytes: u64,
    /// Estimated size of its state machine.
    pub state_bytes: u64,
    /// Whether its disk is nearly full, so that it takes no write that needs space.
    pub low_on_space: bool,
    /// Bytes that its disk lacks for the snapshot that it was offered last and can't go on without;
    /// 0: none.
    pub snapshot_lacks_bytes: u64,
    /// Bytes that are free on its disk beyond its reserve, once it has looked.
    pub free_bytes: Option<u64>,
    /// In which it writes commands while it leads. `None` while it waits.
    pub command_version: Option<CommandVersion>,
}

impl NodeStatus {
    pub(crate) fn waiting(name: &str, folder_id: &str) -> Self {
        Self {
            lifecycle: Lifecycle::Waiting,
            name: name.to_owned(),
            folder_id: folder_id.to_owned(),
            cluster_id: ClusterId(0),
            member_id: MemberId(0),
            role: Role::Learner,
            role_is_known: false,
            leader: None,
            term: Term(0),
            first_index: Index(0),
            last_index: Index(0),
            commit_index: Index(0),
            applied_index: Index(0),
            revision: Revision(0),
            ready: false,
            stalled: false,
            removed: false,
            log_bytes: 0,
            state_bytes: 0,
            low_on_space: false,
            snapshot_lacks_bytes: 0,
            free_bytes: None,
            command_version: None,
        }
    }
}

/// What a member tells those who hold it, whichever threads it has.
#[derive(Clone)]
pub(super) struct Signals {
    pub(super) status: watch::Sender<NodeStatus>,
    /// What its reader shows.
    pub(super) revision: watch::Sender<Revision>,
    /// Who waits for a later one.
    pub(super) commit_waiters: CommitWaiters,
    /// Why it ended, once it has.
    pub(super) fatal: watch::Sender<Option<Fatal>>,
}

impl Signals {
    /// Of one that waits for an identity.
    pub(super) fn waiting(name: &str, folder_id: &str) -> Self {
        Self {
            status: watch::Sender::new(NodeStatus::waiting(name, folder_id)),
            revision: watch::Sender::new(Revision(0)),
            commit_waiters: CommitWaiters::default(),
            fatal: watch::Sender::new(None),
        }
    }
}

/// The cluster as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembersView {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The leader's term.
    pub term: Term,
    /// The leader.
    pub leader: MemberId,
    /// Everyone, in the order of their ids.
    pub members: Vec<MemberProgress>,
}
