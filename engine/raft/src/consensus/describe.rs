//! Messages as a person reads them: for tests and the simulator's trace.

use prost_raft::Message as _;
use raft::eraftpb::{Message, MessageType};

/// # Panics
/// These are no message's bytes.
pub(super) fn decode(bytes: &[u8]) -> Message {
    Message::decode(bytes).expect("members send messages")
}

/// What a message says.
///
/// # Panics
/// These are no message's bytes.
#[must_use]
pub fn describe(bytes: &[u8]) -> String {
    let m = decode(bytes);
    format!("{}->{} {}", m.from, m.to, body(&m))
}

fn body(m: &Message) -> String {
    let name = format!("{:?}", m.msg_type());
    let name = name.trim_start_matches("Msg");
    let term = m.term;
    let verdict = if m.reject { "no" } else { "yes" };
    match m.msg_type() {
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => {
            format!(
                "{name}: term {term}, log ends at {}@{}",
                m.index, m.log_term
            )
        }
        MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => {
            format!("{name}: term {term}, {verdict}")
        }
        MessageType::MsgAppend => {
            let entries: Vec<_> = m
                .entries
                .iter()
                .map(|e| format!("{}@{}", e.index, e.term))
                .collect();
            format!(
                "{name}: term {term}, after {}@{} [{}], commit {}",
                m.index,
                m.log_term,
                entries.join(" "),
                m.commit
            )
        }
        MessageType::MsgAppendResponse if m.reject => {
            format!(
                "{name}: term {term}, no to {}, try {}@{}",
                m.index, m.reject_hint, m.log_term
            )
        }
        MessageType::MsgAppendResponse => {
            let awaited = match m.reject_hint {
                0 => "",
                _ => ", awaits commits",
            };
            format!("{name}: term {term}, has {}{awaited}", m.index)
        }
        MessageType::MsgHeartbeat => {
            let round = if m.context.is_empty() {
                ""
            } else {
                ", read round"
            };
            format!("{name}: term {term}, commit {}{round}", m.commit)
        }
        MessageType::MsgHeartbeatResponse => {
            let round = if m.context.is_empty() {
                ""
            } else {
                ", read round"
            };
            let unfit = if m.reject { ", unfit to lead" } else { "" };
            format!("{name}: term {term}{round}{unfit}")
        }
        MessageType::MsgReadIndex => name.to_owned(),
        MessageType::MsgReadIndexResp => format!("{name}: term {term}, index {}", m.index),
        _ => format!("{name}: term {term}"),
    }
}
