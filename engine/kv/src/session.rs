//! One client session: which of its commands were applied, and which replies are stored.
//!
//! The client numbers its commands. Replies above the acknowledged sequence are stored, so a
//! repeated command gets the same reply. The storage of a session is limited: commands of a client
//! that acknowledges nothing are refused before anything of them is applied.

use std::collections::BTreeMap;

use dengine_planted::planted;
use dengine_types::{Index, SessionId};
use prost::Message as _;

use super::store::StoreError;
use super::{Refusal, SESSION_BYTES_MAX, SESSION_REPLIES_MAX};

/// A session as stored, besides the replies themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) ttl_ms: u64,
    /// The last entry that used it.
    pub(super) last_used: Index,
    /// The client has the replies to all commands up to here.
    pub(super) acknowledged: u64,
    /// Size of every stored reply, by the command's sequence. All of them are above `acknowledged`.
    pub(super) replies: BTreeMap<u64, u64>,
}

/// What to do with a command of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Apply,
    /// It was applied; its reply is stored.
    Repeat,
    Refuse(Refusal),
}

impl Session {
    pub(super) fn new(ttl_ms: u64, opened: Index) -> Self {
        Self {
            ttl_ms,
            last_used: opened,
            ..Self::default()
        }
    }

    /// Records that the client has all replies up to `sequence`. Returns those that can be dropped.
    pub(super) fn acknowledge(&mut self, sequence: u64) -> Vec<u64> {
        self.acknowledged = self.acknowledged.max(sequence);
        let mut dropped = Vec::new();
        while let Some(oldest) = self.replies.first_entry()
            && *oldest.key() <= self.acknowledged
        {
            dropped.push(oldest.remove_entry().0);
        }
        dropped
    }

    /// Whether a command may be applied.
    pub(super) fn admit(&self, sequence: u64) -> Admission {
        if sequence <= self.acknowledged {
            return Admission::Refuse(Refusal::Acknowledged {
                sequence,
                acknowledged: self.acknowledged,
            });
        }
        if self.replies.contains_key(&sequence) && !planted!(RepeatAppliedAgain) {
            return Admission::Repeat;
        }
        // The client can acknowledge nothing before it has the reply to its oldest open command, so
        // that one is never refused; there is only one such, so the limit holds.
        let oldest = sequence == self.acknowledged + 1;
        let bytes = self.reply_bytes();
        if !oldest && (self.replies.len() >= SESSION_REPLIES_MAX || bytes >= SESSION_BYTES_MAX) {
            return Admission::Refuse(Refusal::WindowFull {
                replies: self.replies.len() as u64,
                bytes,
            });
        }
        Admission::Apply
    }

    /// Size of all stored replies.
    pub(super) fn reply_bytes(&self) -> u64 {
        // Saturating, because the record may be damaged.
        let sizes = self.replies.values();
        sizes.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let replies = self.replies.iter();
        SessionRecord {
            ttl_ms: self.ttl_ms,
            last_used: self.last_used.0,
            acknowledged: self.acknowledged,
            replies: replies
                .map(|(&sequence, &bytes)| ReplyRecord { sequence, bytes })
                .collect(),
        }
        .encode_to_vec()
    }

    /// Decodes the record in the store.
    pub(super) fn decode(id: SessionId, record: &[u8]) -> Result<Self, StoreError> {
        let record = SessionRecord::decode(record)
            .map_err(|error| StoreError::Corrupt(format!("session {id}: {error}")))?;
        let replies = record.replies.into_iter();
        Ok(Self {
            ttl_ms: record.ttl_ms,
            last_used: Index(record.last_used),
            acknowledged: record.acknowledged,
            replies: replies.map(|it| (it.sequence, it.bytes)).collect(),
        })
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct SessionRecord {
    #[prost(uint64, tag = "1")]
    ttl_ms: u64,
    #[prost(uint64, tag = "2")]
    last_used: u64,
    #[prost(uint64, tag = "3")]
    acknowledged: u64,
    #[prost(message, repeated, tag = "4")]
    replies: Vec<ReplyRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReplyRecord {
    #[prost(uint64, tag = "1")]
    sequence: u64,
    #[prost(uint64, tag = "2")]
    bytes: u64,
}
