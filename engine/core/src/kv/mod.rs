//! Key-value semantics: multi-version storage and the deterministic application of commands.
//!
//! - [`store`]: the storage below, an ordered map of bytes with atomic batches, and its conformance suite.
//! - [`layout`]: which bytes the state machine keeps there.
//! - [`command`], [`membership`]: what log entries hold.
//! - [`machine`]: applies entries. [`reader`]: reads the newest or a past revision meanwhile.
//!
//! The semantics are etcd's: the empty store is at revision 1; a request that changes something takes
//! one revision, however many keys it changes; everything else takes none. Nothing here knows the time,
//! draws a random number or depends on the order of a hash map: equal entries make equal bytes.

mod checkpoint;
pub mod command;
mod key_range;
pub mod layout;
pub mod machine;
pub mod membership;
pub mod reader;
mod scan;
pub mod store;
#[cfg(test)]
mod tests;
mod transition;

pub use command::{Command, CommandError, Expected};
pub use key_range::KeyRange;
pub use machine::{Applied, Flusher, Outcome, StateMachine};
pub use membership::{Member, Membership, MembershipChange, MembershipRefusal};
pub use reader::{RangeQuery, RangeResult, ReadError, Reader};
pub use store::{Store, StoreError};

use crate::types::Revision;
use bytes::Bytes;

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
}
