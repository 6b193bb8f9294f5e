//! Raft messages between members: one long-lived gRPC stream from each member to each other one; and
//! snapshots, each by a stream on a connection of its own, so that no heartbeat waits behind one.
//!
//! A stream carries messages one way and begins with a `Hello` that says who speaks to whom in which
//! cluster. Messages may be lost (Raft sends them again) but never arrive at the wrong member, in the
//! wrong cluster, or from a member that was removed.
//!
//! What may not live here: what messages mean. They are opaque bytes, checked by consensus; who may speak is
//! judged in `dengine_wire::peer`.

mod inbound;
mod outbound;
mod runtime;
mod snapshot;
mod strangers;

pub(crate) use inbound::{Listener, PeerEntrance, PeerGate};
pub(crate) use outbound::Peers;
pub(crate) use runtime::PeerRuntime;
pub(crate) use snapshot::{CheckpointFolder, Incoming, OutgoingSnapshot};

use crate::config::{Config, WRITE_BYTES_MAX};
use crate::memory::{self, Use};
use dengine_core::snapshot::MANIFEST_BYTES_MAX;
use dengine_core::types::MemberId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Addresses of members that introduced themselves before the log did; see `Hello.peer_address`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Introduced(Arc<Mutex<HashMap<MemberId, String>>>);

impl Introduced {
    fn get(&self, member: MemberId) -> Option<String> {
        self.0
            .lock()
            .expect("no holder panics")
            .get(&member)
            .cloned()
    }

    fn set(&self, member: MemberId, address: String) {
        // A cluster has few members; whoever floods this with made-up ids gets no further entry.
        const INTRODUCED_MAX: usize = 64;
        let mut known = self.0.lock().expect("no holder panics");
        if known.len() < INTRODUCED_MAX || known.contains_key(&member) {
            known.insert(member, address);
        }
    }
}

/// Bytes of log in one message, unless it is a single entry, and of messages in one frame. A link of 10 MB/s takes a tenth
/// of a second for it, so that a heartbeat behind it is not late.
const MESSAGE_BYTES: usize = 1 << 20;

/// Bytes of messages that wait for one peer; more where a few of the largest entries need more.
const QUEUE_BYTES: usize = 64 << 20;

/// The largest frame: it holds a single message with a single entry. What this member's own configuration says does not
/// count, for the log may hold, and others may send, what was let in before a limit was lowered, or where one is higher.
const FRAME_BYTES_MAX: usize = WRITE_BYTES_MAX + (1 << 20);

const _: () = assert!(FRAME_BYTES_MAX > MANIFEST_BYTES_MAX + (1 << 20));

/// Bytes of log in one message to a peer, unless it is a single entry.
pub(crate) fn message_bytes(config: &Config) -> usize {
    config.limits.max_batch_bytes.min(MESSAGE_BYTES)
}

/// How many messages with log may be on their way to one peer, so that they fit into its queue.
pub(crate) fn messages_in_flight(config: &Config) -> usize {
    (queue_bytes(config) / largest_message(config)).min(256)
}

fn queue_bytes(config: &Config) -> usize {
    let least = 4 * largest_message(config);
    memory::most(Use::ToPeer, QUEUE_BYTES.max(least), least)
}

fn largest_message(config: &Config) -> usize {
    message_bytes(config).max(config.limits.max_write_bytes())
}
