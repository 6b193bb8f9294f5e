//! Key-value semantics: multi-version storage and the deterministic application of commands.
//!
//! - [`store`]: the storage below, an ordered map of bytes with atomic batches, and its conformance
//!   suite.
//! - [`layout`]: the bytes that the state machine keeps there.
//! - [`command`], [`membership`]: the data of log entries.
//! - [`machine`]: applies entries; [`outcome`] is the result.
//! - [`reader`]: concurrent reads of the newest or a past revision, and of history for watches.
//! - [`Selection`]: which pairs of a range are returned, and in which order.
//! - [`collector`]: concurrent removal of compacted versions.
//! - [`damage`]: reports damage of the store to the member.
//! - [`retention`], [`expiry`]: what a leader proposes on its own, by a clock that is passed in.
//!
//! The semantics are etcd's: the empty store is at revision 1; a request that changes something
//! takes one revision, however many keys it changes; everything else takes none. Nothing here reads
//! a clock, draws a random number or depends on the order of a hash map: equal entries make equal
//! bytes.

mod at_hand;
pub mod collector;
pub mod command;
mod damage;
pub mod expiry;
mod key_cache;
mod key_range;
pub mod layout;
pub mod machine;
pub mod membership;
pub mod outcome;
pub mod reader;
mod recent;
pub mod retention;
pub mod revision_waits;
mod scan;
mod selection;
mod session;
pub mod store;
#[cfg(test)]
mod tests;
mod transition;
mod view;
mod visits;
pub mod watch;

pub use collector::{Collected, Collector};
pub use command::{
    Batch, BatchOperation, Command, CommandError, CommandVersion, Compare, CompareTarget, Expected,
    ExpiredKey, LeaseCheckpoint, LoggedRequest, Put, PutLease, RangeRead, Relation, Request,
    SessionStamp,
};
pub use expiry::{DueSession, Expiry, RETRY as EXPIRY_RETRY};
pub use key_cache::KeyCacheUsage;
pub use key_range::KeyRange;
pub use layout::Stamp;
pub use machine::{Flusher, StateMachine};
pub use membership::{Member, Membership, MembershipChange, MembershipRefusal};
pub use outcome::{Applied, BatchAnswer, LeaseEnd, Outcome, Refusal, RunningRevision};
pub use reader::{
    Attendant, Changes, ChangesQuery, Event, EventKind, ExpiringKey, Gets, LeaseInfo, LogicalHash,
    PageLimits, RangeQuery, RangeResult, ReadError, Reader, RevisionHash, SessionInfo, Survey,
    Want,
};
pub use retention::{Retention, RetentionSetting};
pub use selection::{RevisionBounds, Selected, Selection, SortBy, SortOrder};
pub use store::{Store, StoreError};

use bytes::Bytes;
use dengine_types::{LeaseId, Revision};

// These limits are part of the meaning of commands: members with different limits would diverge. A
// changed limit needs a new `CommandVersion`, and the old limit for the versions before.

/// The maximum number of open sessions. Each costs at most [`SESSION_BYTES_MAX`] and two
/// [`REPLY_BYTES_MAX`] on disk.
pub const SESSIONS_MAX: u64 = 10_000;
/// The maximum number of leases. The leader counts the time of each in memory.
pub const LEASES_MAX: u64 = 1_000_000;
/// The maximum number of stored replies of a session. At the limit, all commands but the oldest
/// open one are refused until the client acknowledges some.
pub const SESSION_REPLIES_MAX: usize = 256;
/// The maximum bytes of stored replies. At the limit, further commands of the session are refused
/// until the client acknowledges some.
pub const SESSION_BYTES_MAX: u64 = 256 << 10;
/// A reply larger than this is stored without its pairs: [`Outcome::Trimmed`].
pub const REPLY_BYTES_MAX: usize = 16 << 10;
/// The maximum bytes of pairs that all reads of one batch return.
pub const BATCH_READ_BYTES_MAX: usize = 4 << 20;
/// The maximum bytes of pairs that all whole reads of a batch return that changes nothing.
pub const READER_BATCH_BYTES_MAX: usize = 48 << 20;
/// The maximum bytes of values that the puts of one batch keep, of which the command has none.
pub const BATCH_KEPT_BYTES_MAX: usize = 4 << 20;
/// How many batches may be within each other. Their records must not have more levels than decoders
/// of protobuf messages take, which is 100.
pub const BATCH_DEPTH_MAX: usize = 32;

/// The maximum that one command may delete by ranges, in bytes: the length of each key plus an
/// overhead of 32 bytes, and its value if that is returned.
///
/// It limits what every member holds in memory while it applies the command, and the number of
/// changes in one revision, to about 200,000 short keys. What watches deliver of them is limited by
/// [`PageLimits`], where with the previous pairs the values count too.
pub const RANGE_DELETE_BYTES_MAX: usize = 8 << 20;

/// The maximum number of keys that the ranges of one command may visit together, in comparisons,
/// reads and deletes alike: existing keys, and deleted ones that history still has. It limits how
/// long every member is busy with one command, to about a tenth of a second if nothing has to be
/// read from disk.
pub const RANGE_VISIT_KEYS_MAX: usize = 1 << 17;

/// The maximum bytes of these keys and their values, plus 32 for each: what may have to be read
/// from disk.
pub const RANGE_VISIT_BYTES_MAX: usize = 128 << 20;

/// The maximum bytes of previous pairs that the puts and single deletes of a batch return together,
/// each with its key and 32 more. Beyond it none are gathered, and the answer is
/// [`Outcome::Trimmed`].
///
/// This limit is not part of the meaning of commands: it leaves out only what is too large to be
/// stored for a session anyway.
pub const PREVIOUS_BYTES_MAX: usize = 16 << 20;
// The stored size of a pair may be as low as a third of the counted one, not less.
const _: () = assert!(PREVIOUS_BYTES_MAX / 4 > REPLY_BYTES_MAX);

/// A key with its value at some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Bytes,
    /// Empty if only keys were requested.
    pub value: Bytes,
    /// The revision that created the key (again, if it was deleted in between).
    pub create_revision: Revision,
    /// The revision that last changed the key.
    pub mod_revision: Revision,
    /// 1 at the creation, one more with each change; starts again after a delete.
    pub version: u64,
    /// The key expires this many milliseconds after its last change; 0 for never.
    pub ttl_ms: u64,
    /// The lease that it is attached to, with which it is deleted; [`LeaseId::NONE`] for none.
    pub lease: LeaseId,
}
