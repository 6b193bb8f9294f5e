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
//!   number it has not seen, in a term in which it leads, or of a start that it takes nothing of in
//!   that term. All others it drops without a word, for it may have taken them already.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dengine_planted::planted;
use dengine_types::{MemberId, Term};
use raft::{StateRole, eraftpb};

use super::Consensus;
use crate::consensus::convert;
use crate::consensus::log_view::LogRead;
use crate::consensus::types::{PassedOn, Proposal, Refusal};

/// A larger command is not passed on: other messages to the leader, with which it counts what a
/// quorum has, would wait behind it.
pub const LARGEST_PASSED_ON_BYTES: usize = 64 << 10;
/// Commands and contexts of one message, but for its last command. A leader's heartbeats are
/// answered behind it.
pub const MESSAGE_BYTES: usize = 256 << 10;

/// Starts of one member that passed something on in one term. A member that begins again and again,
/// and a peer that makes up starts, gets no more memory than this, and no other member has less for
/// it.
const STARTS_MAX: usize = 64;
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

/// Whether these are more than one message may have, or larger.
pub(in crate::consensus) fn are_too_much(commands: &[eraftpb::Entry]) -> bool {
    let mut bytes = 0;
    commands.iter().any(|it| {
        let is_full = bytes >= MESSAGE_BYTES;
        bytes += it.data.len() + it.context.len();
        is_full || it.data.len() > LARGEST_PASSED_ON_BYTES
    })
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
    /// Has this leader propose these commands of a client, and returns in which term. They are
    /// answered by what is committed, by [`PassedOn::Refused`], or never.
    ///
    /// # Errors
    /// It does not lead any more, as far as this member knows; nothing was sent.
    pub fn pass_on(
        &mut self,
        leader: MemberId,
        client: IpAddr,
        proposals: Vec<Proposal>,
    ) -> Result<Term, Refusal> {
        self.take_in(Err(Refusal::NotLeader), |it| {
            let raft = &it.node.raft;
            if raft.state != StateRole::Follower || raft.leader_id != leader.0 {
                return Err(Refusal::NotLeader);
            }
            let term = Term(raft.term);
            let entries = proposals.into_iter().map(convert::command_to_raft);
            it.passing.number += 1;
            let message = eraftpb::Message {
                index: it.passing.number,
                context: bytes_of(client),
                entries: entries.collect(),
                ..it.passing_message(leader)
            };
            let free = it.outbox.push(vec![message]);
            it.send(free);
            Ok(term)
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
        let Some(client) = client_of(&message.context) else {
            return;
        };
        match self.takes(&message) {
            Takes::Yes => {}
            Takes::NothingOfThisStart => {
                let contexts = message.entries.into_iter().map(|it| it.context).collect();
                let not_taken = PassedOn::NotTaken { by, contexts };
                return self.passing.arrived.push(not_taken);
            }
            Takes::NotAgain => return,
        }
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

    /// What this member leads in the term of it takes once, and not if it has seen what was sent
    /// later.
    fn takes(&mut self, message: &eraftpb::Message) -> Takes {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader || message.term != raft.term {
            return Takes::NotAgain;
        }
        let start = message.entries.first().map(|it| start_of(&it.context));
        let Some(start) = start.flatten() else {
            return Takes::NotAgain;
        };
        let passing = &mut self.passing;
        if passing.term != raft.term {
            passing.term = raft.term;
            passing.taken.clear();
        }
        match passing.taken.get(&start) {
            Some(newest) if message.index <= *newest && !planted!(PassedOnTakenAgain) => {
                return Takes::NotAgain;
            }
            // Whoever is no member may go by any id.
            None if raft.prs().get(message.from).is_none() || passing.is_full_for(start) => {
                return Takes::NothingOfThisStart;
            }
            _ => {}
        }
        passing.taken.insert(start, message.index);
        Takes::Yes
    }
}

/// What a leader does with what is passed on to it.
enum Takes {
    Yes,
    /// Nor will it in this term: of the starts that it knows it forgets none, and who is no member
    /// never becomes one under this id.
    NothingOfThisStart,
    /// It may have taken it, or may take it in another term.
    NotAgain,
}

impl Passing {
    /// Whether there is no room for one more start of that member.
    fn is_full_for(&self, start: [u8; START_BYTES]) -> bool {
        let of_one = |end: u8| {
            let mut bound = start;
            bound[size_of::<u64>()..].fill(end);
            bound
        };
        let known = self.taken.range(of_one(0)..=of_one(u8::MAX));
        known.count() >= STARTS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(member: u64, boot: u64) -> [u8; START_BYTES] {
        let mut start = [0; START_BYTES];
        start.copy_from_slice([member, boot].map(u64::to_be_bytes).as_flattened());
        start
    }

    /// One that made up starts had all others' writes dropped until the leader changed.
    #[test]
    fn a_member_with_many_starts_leaves_room_to_others() {
        let mut passing = Passing::default();
        for boot in 0..STARTS_MAX as u64 {
            assert!(!passing.is_full_for(start(2, boot)));
            passing.taken.insert(start(2, boot), 1);
        }
        assert!(passing.is_full_for(start(2, u64::MAX)));
        assert!(!passing.is_full_for(start(1, 7)) && !passing.is_full_for(start(3, 7)));
    }

    #[test]
    fn a_message_has_so_much_and_no_more() {
        let are_too_much = |count: usize, bytes: usize| {
            let entry = eraftpb::Entry {
                context: vec![0; 24],
                data: vec![0; bytes],
                ..eraftpb::Entry::default()
            };
            are_too_much(&vec![entry; count])
        };
        assert!(!are_too_much(4, LARGEST_PASSED_ON_BYTES));
        assert!(are_too_much(5, LARGEST_PASSED_ON_BYTES));
        assert!(are_too_much(1, LARGEST_PASSED_ON_BYTES + 1));
        assert!(are_too_much(MESSAGE_BYTES / 24, 1));
        assert!(!are_too_much(0, 0));
    }
}
