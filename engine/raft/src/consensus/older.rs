//! What members of earlier versions said otherwise, for those who let them take part.

use bytes::Bytes;
use prost_raft::Message as _;
use raft::eraftpb::MessageType;

use super::describe::decode;

/// This message as members sent it that by their answers to a leader's rounds promised nothing,
/// though they kept to it, and did not say whether they were fit to lead.
pub fn without_promise(bytes: &Bytes) -> Bytes {
    let mut message = decode(bytes);
    if message.msg_type() != MessageType::MsgHeartbeatResponse {
        return bytes.clone();
    }
    (message.reject_hint, message.reject) = (0, false);
    message.encode_to_vec().into()
}

/// This message as members sent it whose heartbeats did not tell what is committed.
#[cfg(test)]
pub(crate) fn without_leader_commit(bytes: &Bytes) -> Bytes {
    let mut message = decode(bytes);
    if message.msg_type() != MessageType::MsgHeartbeat {
        return bytes.clone();
    }
    message.reject_hint = 0;
    message.encode_to_vec().into()
}
