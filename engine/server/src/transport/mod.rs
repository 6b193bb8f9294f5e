//! Raft messages between members: one long-lived TCP stream of frames
//! ([`peer_frames`](dengine_raft::peer_frames)) from each member to each other one; and snapshots,
//! each by a gRPC stream on a connection of its own, so that no heartbeat waits behind one. Members
//! of older versions send messages over gRPC too, and are sent them so: both come to one port.
//!
//! A stream carries messages one way and begins with a `Hello` that says who speaks to whom in
//! which cluster. Messages may be lost (Raft sends them again) but never arrive at the wrong
//! member, in the wrong cluster, or from a member that was removed.
//!
//! What may not live here: what messages mean. They are opaque bytes, checked by consensus; who may
//! speak is judged in `dengine_protocol::checks::peer`.

mod framed;
mod inbound;
mod line;
mod outbound;
mod runtime;
mod snapshot;
mod strangers;

pub(crate) use inbound::{LeaderNow, Listener, PeerEntrance, PeerGate};
pub(crate) use outbound::Peers;
pub(crate) use runtime::PeerRuntime;
pub(crate) use snapshot::{CheckpointDir, Incoming, OutgoingSnapshot};

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dengine_snapshot::MANIFEST_BYTES_MAX;
use dengine_types::MemberId;

use crate::config::{Config, WRITE_BYTES_MAX};
use crate::memory::{self, Use};

/// Addresses of members that introduced themselves before the log did; see `Hello.peer_address`.
/// They do so with each of their frames, so that whoever floods this with made-up ids keeps no
/// leader from being answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Introduced(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    last: u64,
    /// With a number that is the higher the later it was heard.
    addresses: HashMap<MemberId, (u64, String)>,
}

impl Introduced {
    fn get(&self, member: MemberId) -> Option<String> {
        let known = self.0.lock().expect("no holder panics");
        known.addresses.get(&member).map(|(_, it)| it.clone())
    }

    fn set(&self, member: MemberId, address: String) {
        /// A cluster has few members. Beyond, the one that was not heard for longest is forgotten.
        const INTRODUCED_MAX: usize = 64;
        let mut known = self.0.lock().expect("no holder panics");
        known.last += 1;
        let last = known.last;
        known.addresses.insert(member, (last, address));
        if known.addresses.len() > INTRODUCED_MAX {
            let oldest = known.addresses.iter().min_by_key(|(_, (heard, _))| *heard);
            if let Some(oldest) = oldest.map(|(member, _)| *member) {
                known.addresses.remove(&oldest);
            }
        }
    }
}

/// Bytes of log in one message, unless it is a single entry, and of messages in one frame. A link
/// of 10 MB/s takes a tenth of a second for it, so that a heartbeat behind it is not late.
const MESSAGE_BYTES: usize = 1 << 20;

/// Bytes of messages that wait for one peer; more where a few of the largest entries need more.
const QUEUE_BYTES: usize = 64 << 20;

/// The largest frame: it holds a single message with a single entry. What this member's own
/// configuration says does not count, for the log may hold, and others may send, what was let in
/// before a limit was lowered, or where one is higher.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_makes_up_ids_keeps_no_leader_from_being_answered() {
        let introduced = Introduced::default();
        let leader = MemberId(1);
        for stranger in 100..1_000 {
            introduced.set(leader, "leader:1".to_owned());
            introduced.set(MemberId(stranger), "nobody:1".to_owned());
        }
        assert_eq!(introduced.get(leader).as_deref(), Some("leader:1"));
        assert_eq!(introduced.get(MemberId(100)), None);
        introduced.set(leader, "leader:2".to_owned());
        assert_eq!(introduced.get(leader).as_deref(), Some("leader:2"));
    }
}
