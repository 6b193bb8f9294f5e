//! What members of earlier versions said otherwise, for those who let them take part.

use super::describe::decode;
use bytes::Bytes;
use prost_raft::Message as _;
use raft::eraftpb::MessageType;

/// This message as members sent it that promised nothing by their answers to a leader's rounds, though they kept to it.
pub fn without_promise(bytes: &Bytes) -> Bytes {
    let mut message = decode(bytes);
    if message.msg_type() != MessageType::MsgHeartbeatResponse {
        return bytes.clone();
    }
    message.reject_hint = 0;
    message.encode_to_vec().into()
}

/// This message as members sent it whose heartbeats told nothing of the leader's log.
#[cfg(test)]
pub(crate) fn without_leader_log(bytes: &Bytes) -> Bytes {
    let mut message = decode(bytes);
    if message.msg_type() != MessageType::MsgHeartbeat {
        return bytes.clone();
    }
    (message.index, message.reject_hint) = (0, 0);
    message.encode_to_vec().into()
}
