//! Which messages may leave now, and which must wait for the disk.

use std::collections::VecDeque;

use dengine_planted::planted;
use raft::eraftpb::{Message, MessageType};

use crate::input::AppendId;

/// Messages held at once. Heartbeats go on while a disk is stuck, so there must be a bound; the
/// oldest go first, for a later message of a kind says all that an earlier one did.
const HELD_MAX: usize = 4096;

/// Holds messages back until the appends they depend on are persisted.
#[derive(Default)]
pub(super) struct Outbox {
    /// In the order they were made, so that a follower's answers never overtake each other.
    held: VecDeque<(AppendId, Message)>,
    /// The newest append that is on disk, and the newest that was handed out.
    persisted: AppendId,
    appended: AppendId,
    /// The append that makes the current term and vote durable.
    term_append: AppendId,
}

impl Outbox {
    pub(super) fn appended(&self) -> AppendId {
        self.appended
    }

    /// How many messages wait for the disk.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Counts one more append; `new_term` says whether it changes term or vote.
    pub(super) fn append(&mut self, new_term: bool) -> AppendId {
        self.appended = AppendId(self.appended.0 + 1);
        if new_term {
            self.term_append = self.appended;
        }
        self.appended
    }

    /// Keeps what must wait, and returns what may leave at once.
    pub(super) fn push(&mut self, messages: Vec<Message>) -> Vec<Message> {
        let mut free = Vec::new();
        for message in messages {
            let after = self.leaves_after(&message);
            if after <= self.persisted {
                free.push(message);
            } else {
                self.held.push_back((after, message));
            }
        }
        self.held
            .drain(..self.held.len().saturating_sub(HELD_MAX))
            .for_each(drop);
        free
    }

    /// Notes that everything up to `id` is on disk, and returns the messages that this sets free.
    pub(super) fn persisted(&mut self, id: AppendId) -> Vec<Message> {
        self.persisted = self.persisted.max(id);
        let held = std::mem::take(&mut self.held);
        let (free, held) = held
            .into_iter()
            .partition::<VecDeque<_>, _>(|(after, _)| *after <= self.persisted);
        self.held = held;
        free.into_iter().map(|(_, message)| message).collect()
    }

    /// Every message says "in this term", which must be on disk first (Raft thesis §3.8). Those
    /// that say "my log holds" also wait for the log. A leader's appends do not say that (§10.2.1),
    /// nor does an answer to a heartbeat.
    fn leaves_after(&self, message: &Message) -> AppendId {
        match message.msg_type() {
            MessageType::MsgAppendResponse if planted!(AppendAcknowledgedEarly) => self.term_append,
            MessageType::MsgAppendResponse
            | MessageType::MsgRequestVote
            | MessageType::MsgRequestPreVote => self.appended,
            _ => self.term_append,
        }
    }
}
