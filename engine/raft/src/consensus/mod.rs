//! Raft, as a synchronous struct: it is told what happens, and returns [`Output`](crate::Output)s.
//! [`Replica`](crate::replica::Replica) drives it.
//!
//! The algorithm is the `raft` crate's. This module adds what that crate leaves to its user: which
//! messages may leave before which record is on disk, rounds of linearizable reads, validation of
//! everything a peer sends, membership changes one at a time, and determinism.
//!
//! What may live here: decisions. What may not: clocks (a tick is told), I/O (an append is an
//! output), randomness that was not passed in, and any type of the `raft` crate in a public
//! signature.
//!
//! # Invariants
//! - No message leaves before the term and vote it was made under are on disk (Raft thesis §3.8),
//!   not even from a leader that is its cluster's only voter, which the `raft` crate alone would
//!   let through.
//! - A leader's appends leave before its own disk has them (§10.2.1); it counts itself towards the
//!   quorum only once they are.
//! - A proposal is answered from its applied entry, by the caller of this module: the `raft` crate
//!   turns a refused membership change into an empty entry without a word.
//! - A peer's message that the crate would treat as fatal is refused before it is stepped.
//! - A leader that applies its own removal leads no longer; the crate would go on, and stop the
//!   process when it next counted itself.
//! - A sole voter campaigns only once its log is on disk: it wins at once, and the crate takes the
//!   log of a winner to be there.
//! - A committed entry is never replaced. A leader that keeps on trying has a log of another
//!   history, and the member ends for good; it confirms no read of such a leader either.
//! - A member that starts grants no vote for one election timeout or one second (`PROMISE_MAX`),
//!   whichever is longer: it may have promised a lease to a leader that it no longer remembers.
//! - A snapshot is installed by replacing log and state machine and starting again; there is no
//!   other way, and a crash at any point of it ends in the same place.
//! - A message carries so many bytes of entries, or a single entry.
//! - What is committed and what is held in memory are bounded apart: a slow state machine leaves
//!   entries in the log, a stuck disk drops the oldest messages.

mod appends;
mod apply_window;
mod config;
mod convert;
mod decode;
#[cfg(any(test, feature = "testing"))]
mod describe;
mod driver;
mod lease;
mod log_view;
mod messages;
#[cfg(any(test, feature = "testing"))]
mod older;
mod reads;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod types;
mod validate;

#[cfg(test)]
mod tests;

pub use config::{ConsensusConfig, ConsensusConfigError};
#[cfg(any(test, feature = "testing"))]
pub use describe::describe;
pub use driver::passing::{LARGEST_PASSED_ON_BYTES, MESSAGE_BYTES};
pub use driver::{Consensus, Restored, snapshot_position};
pub use log_view::{LogRead, LogReadError};
#[cfg(test)]
pub(crate) use older::without_leader_commit;
#[cfg(any(test, feature = "testing"))]
pub use older::without_promise;
pub use types::{
    ConfigChange, ConfigChangeKind, PassedOn, Progress, Proposal, Refusal, ReplicaState, Role,
};
pub use validate::PeerMessageError;
