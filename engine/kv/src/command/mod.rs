//! What the data of a [`Command`](dengine_types::EntryKind::Command) entry holds: a [`Request`].
//!
//! One byte of format version, then a protobuf message (`encoding.rs`). Protobuf readers skip fields
//! they do not know, which members of one cluster must never do with a command: whoever adds a field or
//! a kind raises the version, and members that do not know that version stop instead of applying
//! something else. Older versions keep their meaning for ever (`version.rs`).

mod batch;
mod encoding;
mod records;
mod version;

pub use batch::{Batch, BatchOperation, Compare, CompareTarget, Relation};
pub use version::CommandVersion;

use super::KeyRange;
use bytes::Bytes;
use dengine_types::{Index, Revision, SessionId};

/// A command and who may repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Makes the command safe to repeat. `None`: applied as often as it was proposed. Only commands of
    /// [`Command::may_be_stamped`] may carry one.
    pub session: Option<SessionStamp>,
    /// What to do.
    pub command: Command,
}

/// A request as the log holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    /// In which it was written; says what the request means.
    pub version: CommandVersion,
    /// What was written.
    pub request: Request,
}

/// Names one command of one client, however often it is proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStamp {
    /// The client's session, from [`Outcome::SessionOpened`](super::Outcome::SessionOpened).
    pub id: SessionId,
    /// Names the command within the session; the client counts from 1 and uses no number for two commands.
    pub sequence: u64,
    /// The client has the answers to all commands up to here, and repeats none of them. Always below
    /// `sequence`.
    pub acknowledged: u64,
}

/// A request to change the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Sets a key.
    Put {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
        /// Answer with the pair as it was before.
        prev_kv: bool,
        /// The key may be expired so many milliseconds after this put; 0: never. Takes the place of what
        /// an earlier put said.
        ttl_ms: u64,
    },
    /// Deletes keys.
    Delete {
        /// Which.
        keys: KeyRange,
        /// Answer with the pairs that were deleted.
        prev_kv: bool,
    },
    /// Sets a key if it is in the expected state.
    CompareAndSwap {
        /// The key.
        key: Bytes,
        /// What it must be.
        expected: Expected,
        /// Its new value.
        value: Bytes,
        /// As in [`Self::Put`].
        ttl_ms: u64,
    },
    /// Compares, and then does one or another list of operations, all in one revision.
    Batch(Batch),
    /// Gives up history: afterwards nothing can be read or watched below this revision.
    Compact {
        /// The first revision that stays readable.
        revision: Revision,
    },
    /// Opens a session.
    OpenSession {
        /// The session may be expired when it was not used for so many milliseconds.
        ttl_ms: u64,
    },
    /// Uses a session without doing anything.
    KeepAlive {
        /// Which.
        session: SessionId,
    },
    /// Ends a session, with all replies that were kept for it.
    CloseSession {
        /// Which.
        session: SessionId,
    },
    /// Ends a session if it was not used since. The leader proposes it, after its own clock.
    ExpireSession {
        /// Which.
        session: SessionId,
        /// [`SessionInfo::last_used`](super::SessionInfo::last_used) as the leader saw it.
        last_used: Index,
    },
    /// Deletes those of these keys that were not changed since. The leader proposes it, after its own
    /// clock.
    ExpireKeys {
        /// Which.
        keys: Vec<ExpiredKey>,
    },
}

/// A key whose time is over, unless it was changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredKey {
    /// The key.
    pub key: Bytes,
    /// The revision of the put that gave it the time that is over.
    pub mod_revision: Revision,
}

/// The state in which a compare-and-swap wants the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Last changed by this revision; `Revision(0)`: absent.
    ModRevision(Revision),
    /// Present, with exactly this value.
    Value(Bytes),
}

/// Why bytes are not a command. Every member finds the same, so the entry is refused, not fatal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Not even a message.
    #[error("the entry does not hold a command: {0}")]
    Malformed(String),
    /// A message that leaves open what to do.
    #[error("the command lacks its {0}")]
    Incomplete(&'static str),
}

impl Request {
    /// The batch, if it changes nothing and its answer is not to be kept: such a one needs no place in the log
    /// ([`Reader::batch`](super::Reader::batch)).
    #[must_use]
    pub fn read_only(&self) -> Option<&Batch> {
        match &self.command {
            Command::Batch(batch) if self.session.is_none() && batch.reads_only() => Some(batch),
            _ => None,
        }
    }
}

impl Command {
    /// Whether it may visit more records than it names keys, while it is applied.
    #[must_use]
    pub fn visits_ranges(&self) -> bool {
        self.ranges().next().is_some()
    }

    /// The ranges that it visits.
    pub fn ranges(&self) -> impl Iterator<Item = &KeyRange> {
        let (one, batch) = match self {
            Self::Delete { keys, .. } => (Some(keys), None),
            Self::Batch(batch) => (None, Some(batch)),
            _ => (None, None),
        };
        let all = one
            .into_iter()
            .chain(batch.into_iter().flat_map(Batch::keys));
        all.filter(|keys| !matches!(keys, KeyRange::One(_)))
    }

    /// How many records it may visit, as far as it says so itself, one at least: what applying it asks of a member besides its bytes.
    /// Not what its ranges visit, which have bounds of their own.
    #[must_use]
    pub fn records(&self) -> usize {
        match self {
            Self::Batch(batch) => {
                let operations = batch.then.len().max(batch.otherwise.len());
                (batch.compares.len() + operations).max(1)
            }
            Self::ExpireKeys { keys } => keys.len().max(1),
            Self::Put { .. }
            | Self::Delete { .. }
            | Self::CompareAndSwap { .. }
            | Self::Compact { .. }
            | Self::OpenSession { .. }
            | Self::KeepAlive { .. }
            // It does not say how many replies go with the session.
            | Self::CloseSession { .. }
            | Self::ExpireSession { .. } => 1,
        }
    }

    /// Whether [`Request::session`] may be given with it. Commands about sessions cannot, and those that
    /// the leader proposes need not.
    #[must_use]
    pub fn may_be_stamped(&self) -> bool {
        match self {
            Self::Put { .. }
            | Self::Delete { .. }
            | Self::CompareAndSwap { .. }
            | Self::Batch(_)
            | Self::Compact { .. } => true,
            Self::OpenSession { .. }
            | Self::KeepAlive { .. }
            | Self::CloseSession { .. }
            | Self::ExpireSession { .. }
            | Self::ExpireKeys { .. } => false,
        }
    }
}

impl From<Command> for Request {
    fn from(command: Command) -> Self {
        Self {
            session: None,
            command,
        }
    }
}
