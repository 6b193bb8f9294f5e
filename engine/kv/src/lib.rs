//! Key-value semantics: multi-version storage and the deterministic application of commands.
//!
//! - [`store`]: the storage below, an ordered map of bytes with atomic batches, and its conformance suite.
//! - [`layout`]: which bytes the state machine keeps there.
//! - [`command`], [`membership`]: what log entries hold.
//! - [`machine`]: applies entries, and [`outcome`] is what comes of them.
//! - [`reader`]: reads the newest or a past revision meanwhile, and history for watches.
//! - [`collector`]: removes what compaction gave up, meanwhile.
//! - [`damage`]: who is told that one of these found the store damaged.
//! - [`retention`], [`expiry`]: what a leader proposes by itself, after a clock that is passed in.
//!
//! The semantics are etcd's: the empty store is at revision 1; a request that changes something takes
//! one revision, however many keys it changes; everything else takes none. Nothing here knows the time,
//! draws a random number or depends on the order of a hash map: equal entries make equal bytes.

pub mod collector;
pub mod command;
mod damage;
pub mod expiry;
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
    ExpiredKey, LoggedRequest, Relation, Request, SessionStamp,
};
pub use expiry::RETRY as EXPIRY_RETRY;
pub use expiry::{DueSession, Expiry};
pub use key_range::KeyRange;
pub use layout::Stamp;
pub use machine::{Flusher, StateMachine};
pub use membership::{Member, Membership, MembershipChange, MembershipRefusal};
pub use outcome::{Applied, BatchAnswer, Outcome, Refusal};
pub use reader::{
    Changes, ChangesQuery, Event, EventKind, ExpiringKey, Gets, LogicalHash, PageLimits,
    RangeQuery, RangeResult, ReadError, Reader, SessionInfo, Survey, Want,
};
pub use retention::{Retention, RetentionSetting};
pub use store::{Store, StoreError};

use bytes::Bytes;
use dengine_types::Revision;

// These bounds are part of what commands mean: members with other ones would come to other states. Whoever
// changes one adds a `CommandVersion`, and keeps the old bound for the versions before.

/// How many sessions may be open. Each costs at most [`SESSION_BYTES_MAX`] and two
/// [`REPLY_BYTES_MAX`] on disk.
pub const SESSIONS_MAX: u64 = 10_000;
/// How many answers are kept for a session; with as many, further commands but the oldest open one are refused until the client
/// acknowledges some.
pub const SESSION_REPLIES_MAX: usize = 256;
/// With so many bytes of answers kept, further commands of a session are refused until the client
/// acknowledges some.
pub const SESSION_BYTES_MAX: u64 = 256 << 10;
/// An answer larger than this is kept without its pairs: [`Outcome::Trimmed`].
pub const REPLY_BYTES_MAX: usize = 16 << 10;
/// How many bytes of pairs the reads of one batch return, together.
pub const BATCH_READ_BYTES_MAX: usize = 4 << 20;

/// How much one command may delete by ranges, in bytes: each key with 32 more, and its value if that is asked for.
///
/// It bounds what every member holds while it applies the command, and how many changes one revision may have. About
/// 200,000 short keys. What a watch tells of them is bounded elsewhere, by [`PageLimits`]: with the pairs before them,
/// the values count too.
pub const RANGE_DELETE_BYTES_MAX: usize = 8 << 20;

/// How many keys the ranges of one command may visit, all together, those of comparisons, reads and deletes alike: keys that
/// exist, and deleted ones that history still holds. It bounds how long every member is busy with one command: about
/// a tenth of a second if nothing has to be read from disk.
pub const RANGE_VISIT_KEYS_MAX: usize = 1 << 17;

/// How many bytes these keys may have, with their values and 32 more for each: what may have to be read from disk.
pub const RANGE_VISIT_BYTES_MAX: usize = 128 << 20;

/// How many bytes of the pairs before them a batch's puts, and its deletes of single keys, return together: each with its
/// key and 32 more. Once there are as many, no more is gathered, and the answer is [`Outcome::Trimmed`].
///
/// This bound is no part of what commands mean: it leaves out only what is too large to be kept for a session anyway.
pub const PREVIOUS_BYTES_MAX: usize = 16 << 20;
// What is kept of a pair may be a third of what counts, not less.
const _: () = assert!(PREVIOUS_BYTES_MAX / 4 > REPLY_BYTES_MAX);

/// A key with its value, as of some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// Its value; empty when only keys were asked for.
    pub value: Bytes,
    /// The revision that created the key (again, if it was deleted in between).
    pub create_revision: Revision,
    /// The revision that last changed the key.
    pub mod_revision: Revision,
    /// 1 on creation, one more with each change; starts over after a delete.
    pub version: u64,
    /// So many milliseconds after its last change the key may be expired; 0: never.
    pub ttl_ms: u64,
}
