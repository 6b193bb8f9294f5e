//! Streams of snapshots. `dengine_snapshot` says what is in them and what survives; here are the
//! connections, the turns and the timeouts.
//!
//! A member sends one snapshot at a time and receives one at a time. A stream that breaks is begun
//! again, and goes on where the receiver says.

mod receive;
mod send;

pub(crate) use receive::Incoming;
pub(super) use receive::{Sender, SnapshotAnswers};
pub(super) use send::SnapshotSender;
pub(crate) use send::{CheckpointDir, OutgoingSnapshot};
