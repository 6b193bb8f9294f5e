//! Which messages may leave now, and which must wait for the disk.

use super::event::{AppendId, Outbound};
use crate::types::MemberId;
use bytes::Bytes;
use prost_raft::Message as _;
use raft::eraftpb;
use std::collections::VecDeque;

/// Holds messages back until the appends they depend on are persisted.
#[derive(Default)]
pub(super) struct Outbox {
    /// In the order they were made, so that a follower's answers never overtake each other.
    held: VecDeque<(AppendId, Vec<eraftpb::Message>)>,
}

impl Outbox {
    /// Returns the messages that may leave at once and keeps the rest until `after` is persisted.
    pub(super) fn push(
        &mut self,
        messages: Vec<eraftpb::Message>,
        after: Option<AppendId>,
        persisted: AppendId,
    ) -> Vec<Outbound> {
        match after {
            _ if messages.is_empty() => Vec::new(),
            Some(after) if after > persisted => {
                self.held.push_back((after, messages));
                Vec::new()
            }
            _ => messages.iter().map(encode).collect(),
        }
    }

    /// The messages that `persisted` sets free.
    pub(super) fn release(&mut self, persisted: AppendId) -> Vec<Outbound> {
        let mut free = Vec::new();
        while self
            .held
            .front()
            .is_some_and(|(after, _)| *after <= persisted)
        {
            let (_, messages) = self.held.pop_front().expect("the front was just looked at");
            free.extend(messages.iter().map(encode));
        }
        free
    }
}

fn encode(message: &eraftpb::Message) -> Outbound {
    Outbound {
        to: MemberId(message.to),
        bytes: Bytes::from(message.encode_to_vec()),
    }
}
