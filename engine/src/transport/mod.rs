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

pub(crate) use inbound::{Listener, PeerEntrance, PeerGate};
pub(crate) use outbound::Peers;
pub(crate) use runtime::PeerRuntime;
pub(crate) use snapshot::{CheckpointFolder, Incoming, OutgoingSnapshot};

use crate::config::Config;
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

/// The largest frame: a batch goes over its bound by at most one message, whose one entry may be the
/// largest write. With small limits it is a snapshot's manifest.
fn frame_bytes_max(config: &Config) -> usize {
    const OVERHEAD_BYTES: usize = 1 << 20;
    let messages = 2 * config.limits.max_batch_bytes + config.limits.max_write_bytes();
    messages.max(MANIFEST_BYTES_MAX) + OVERHEAD_BYTES
}
