//! How far a peer's message may take this member's term.
//!
//! Terms are counted up one election at a time, so one that is far ahead is a lie, or somebody was
//! away for very long. A member that believed any term could be taken to the last one there is,
//! where no election is possible any more; one that only refused would never again listen to a
//! member that was taken further than it.

use dengine_types::{MemberId, NUMBER_MAX};
use raft::eraftpb::{Message, MessageType};

use super::Consensus;
use crate::consensus::log_view::LogRead;
use crate::consensus::validate;

/// Terms that messages may take a member ahead within one election timeout: more than elections
/// bring about in any absence, and so little that with the usual timeouts it takes decades to
/// exhaust them.
const JUMP_MAX: u64 = 1 << 32;

/// See [the module](self).
#[derive(Debug, Default)]
pub(super) struct TermBudget {
    max: u64,
    /// In ticks.
    until: u64,
}

impl<L: LogRead> Consensus<L> {
    /// The last term that is believed now.
    pub(super) fn term_max(&mut self) -> u64 {
        if self.tick >= self.terms.until {
            self.terms = TermBudget {
                max: self.node.raft.term.saturating_add(JUMP_MAX).min(NUMBER_MAX),
                until: self.tick + self.config.election_ticks as u64,
            };
        }
        self.terms.max
    }

    /// Uses a message whose term is too far ahead only as evidence that later terms exist. That is
    /// safe from any sender: a member new to a term has made no promise in it. Returns whether that
    /// was news.
    pub(super) fn approach_term(
        &mut self,
        stream: MemberId,
        message: &Message,
        term_max: u64,
    ) -> bool {
        let raft = &mut self.node.raft;
        let is_peer = validate::check_address(raft, stream.0, message).is_ok();
        let is_news = is_peer && message.term > term_max && raft.term < term_max;
        if is_news {
            // To the crate it is an answer that comes from a later term, and says nothing else.
            let news = Message {
                msg_type: MessageType::MsgHeartbeatResponse as i32,
                term: term_max,
                ..Message::default()
            };
            let _ = raft.step(news);
        }
        is_news
    }
}
