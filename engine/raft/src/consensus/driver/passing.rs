//! Commands that a follower passes on to its leader, which proposes them with the follower's own
//! contexts: so the follower's callers are answered when it applies them itself.
//!
//! Not the crate's way of passing proposals on, though it looks alike on the wire (`MsgPropose`):
//! that one proposes whatever arrives, in whichever term, however often.
//!
//! # Invariants
//! - What is passed on in a term is proposed in that term or never. So once an entry of a later
//!   term is committed, what is not committed by then never will be (Raft thesis §3.6.3: no later
//!   leader's log goes on with entries of an earlier term behind it).
//! - It is proposed once, however often it arrives: the messages of each start of a member are
//!   numbered, and none is taken whose number is not above all before it in this term. A network
//!   that changes their order has some taken for lost, which wait until their callers give up.
//! - A leader that refuses has not proposed, and will not: it says so only of a message whose
//!   number it has not seen, in a term in which it leads. All others it drops without a word, for
//!   it may have taken them already.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dengine_types::{MemberId, Term};
use raft::{StateRole, eraftpb};

use super::Consensus;
use crate::consensus::convert;
use crate::consensus::log_view::LogRead;
use crate::consensus::types::{PassedOn, Proposal, Refusal};

/// Starts of members that passed something on in one term. Members that begin again and again, and
/// peers that make up starts, get no more memory than this.
const STARTS_MAX: usize = 1024;
/// Of a context: its member and that member's start.
const START_BYTES: usize = 16;

/// What was passed on, either way.
#[derive(Debug, Default)]
pub(super) struct Passing {
    /// The number of the newest message of this start.
    number: u64,
    /// Of which term `taken` is.
    term: u64,
    /// The newest message of each start of a member that this leader has seen.
    taken: BTreeMap<[u8; START_BYTES], u64>,
    /// For the replica.
    arrived: Vec<PassedOn>,
}

/// Which start of which member a context is of.
pub(in crate::consensus) fn start_of(context: &[u8]) -> Option<[u8; START_BYTES]> {
    context.first_chunk().copied()
}

/// Whose commands these are.
pub(in crate::consensus) fn client_of(context: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(context).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(context).map(IpAddr::from))
        .ok()
}

fn bytes_of(client: IpAddr) -> Vec<u8> {
    match client {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

impl<L: LogRead> Consensus<L> {
    /// Has the leader propose these commands of a client, and returns who leads, in which term.
    /// They are answered by what is committed, by [`PassedOn::Refused`], or never.
    ///
    /// # Errors
    /// No other member is known to lead; nothing was sent.
    pub fn pass_on(
        &mut self,
        client: IpAddr,
        proposals: Vec<Proposal>,
    ) -> Result<(MemberId, Term), Refusal> {
        self.take_in(Err(Refusal::NotLeader), |it| {
            let raft = &it.node.raft;
            let follows = raft.state == StateRole::Follower && raft.leader_id != raft::INVALID_ID;
            if !follows {
                return Err(Refusal::NotLeader);
            }
            let leader = (MemberId(raft.leader_id), Term(raft.term));
            let entries = proposals.into_iter().map(convert::command_to_raft);
            it.passing.number += 1;
            let message = eraftpb::Message {
                index: it.passing.number,
                context: bytes_of(client),
                entries: entries.collect(),
                ..it.passing_message(leader.0)
            };
            let free = it.outbox.push(vec![message]);
            it.send(free);
            Ok(leader)
        })
    }

    /// Tells a follower that this leader has not proposed what has these contexts, and will not.
    pub fn refuse_passed_on(&mut self, to: MemberId, contexts: Vec<Vec<u8>>) {
        self.take_in((), |it| {
            let entry = |context| eraftpb::Entry {
                context,
                ..eraftpb::Entry::default()
            };
            let message = eraftpb::Message {
                reject: true,
                entries: contexts.into_iter().map(entry).collect(),
                ..it.passing_message(to)
            };
            let free = it.outbox.push(vec![message]);
            it.send(free);
        });
    }

    /// What has arrived since the last call.
    pub fn take_passed_on(&mut self) -> Vec<PassedOn> {
        std::mem::take(&mut self.passing.arrived)
    }

    fn passing_message(&self, to: MemberId) -> eraftpb::Message {
        eraftpb::Message {
            msg_type: eraftpb::MessageType::MsgPropose.into(),
            from: self.config.id.0,
            to: to.0,
            term: self.node.raft.term,
            ..eraftpb::Message::default()
        }
    }

    /// Takes in a message that was checked.
    pub(super) fn on_passed_on(&mut self, message: eraftpb::Message) {
        let by = MemberId(message.from);
        if message.reject {
            let contexts = message.entries.into_iter().map(|it| it.context).collect();
            let refused = PassedOn::Refused { by, contexts };
            return self.passing.arrived.push(refused);
        }
        if !self.takes_for_the_first_time(&message) {
            return;
        }
        let Some(client) = client_of(&message.context) else {
            return;
        };
        let proposal = |entry: eraftpb::Entry| Proposal {
            context: entry.context,
            data: entry.data.into(),
        };
        let proposals = message.entries.into_iter().map(proposal).collect();
        let asked = PassedOn::Asked {
            by,
            term: Term(self.node.raft.term),
            client,
            proposals,
        };
        self.passing.arrived.push(asked);
    }

    /// Whether this member leads in the term of the message, and has seen neither it nor any that
    /// was sent later.
    fn takes_for_the_first_time(&mut self, message: &eraftpb::Message) -> bool {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader || message.term != raft.term {
            return false;
        }
        let start = message.entries.first().map(|it| start_of(&it.context));
        let Some(start) = start.flatten() else {
            return false;
        };
        let passing = &mut self.passing;
        if passing.term != raft.term {
            passing.term = raft.term;
            passing.taken.clear();
        }
        let newest = passing.taken.get(&start).copied();
        let is_known = newest.is_some() || passing.taken.len() < STARTS_MAX;
        if !is_known || newest.is_some_and(|newest| message.index <= newest) {
            return false;
        }
        passing.taken.insert(start, message.index);
        true
    }
}
