//! Writes of a follower's callers that the leader proposes: as they are passed on, and as a leader
//! takes them.
//!
//! What is passed on goes the way of Raft's messages, keeps the context that the follower gave it,
//! and is answered by the follower once it applies it: no caller's answer travels. How each is
//! proposed once, and in its term only, is [consensus'](crate::consensus). So only a follower that
//! keeps up passes anything on, and no more at a time than does not delay its other messages.
//!
//! A write that the leader refuses is refused here as by any member that does not lead; whoever
//! asked for it may ask the leader itself, which then says why.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use dengine_kv::{Command, Request};
use dengine_planted::planted;
use dengine_types::sync::atomic::Ordering;
use dengine_types::{Index, MemberId, Moment, Term};

mod under_way;

use under_way::To;
pub(super) use under_way::UnderWay;

use super::Replica;
use super::pending::Run;
use super::proposals::Begun;
use super::turns::{Proposer, QueuedWrite, Writer};
use crate::consensus::{
    LARGEST_PASSED_ON_BYTES, LogRead, MESSAGE_BYTES, PassedOn, Proposal, Refusal, ReplicaState,
    Role,
};
use crate::input::{EncodedCommand, Token};
use crate::output::Output;

/// What writes of other members' callers take of a leader's memory while they wait for their turn,
/// at most.
const WAITING_BYTES: usize = 16 << 20;
/// What each takes besides its bytes.
const OVERHEAD_BYTES: usize = 256;
/// What waits for longer at the leader is refused, so that its follower asks as a call does, which
/// waits as long as its caller. At the follower, whoever left keeps its room for as long.
const WAITS_AT_MOST: Duration = Duration::from_secs(4);

/// Whether the leader may be asked to propose this write, if [it is small enough](is_small_enough):
/// one that it would propose as it is. What visits ranges has to wait for its turn with the
/// leader's own, and of sessions and leases each member counts those that it opens.
#[must_use]
pub fn may_be_passed_on(command: &Command) -> bool {
    match command {
        Command::Put(_) | Command::CompareAndSwap { .. } => true,
        Command::Delete { .. } | Command::Batch(_) => !command.visits_ranges(),
        _ => false,
    }
}

/// Whether a write is no larger than what is passed on.
#[must_use]
pub fn is_small_enough(command: &EncodedCommand) -> bool {
    command.data.len() <= LARGEST_PASSED_ON_BYTES
}

/// What a leader reads of a command that another member passes on, if it takes it.
pub type Takes = Box<dyn Fn(&Bytes) -> Option<Request> + Send>;

/// Any command that can be read.
pub(super) fn whatever_it_is(command: &Bytes) -> Option<Request> {
    let logged = Request::decode(command.clone()).ok()?.ok()?;
    Some(logged.request)
}

/// How much another member that leads takes now of what is passed on to it. The replica writes it,
/// any thread reads it.
#[derive(Debug, Default)]
pub struct LeaderTakes(AtomicUsize);

impl LeaderTakes {
    /// So many bytes of a client that waits for none yet; none if it takes nothing.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What other members have passed on to this one.
#[derive(Debug, Default)]
pub(super) struct PassedOnHere {
    /// Of what waits for its turn.
    waiting_bytes: Arc<AtomicUsize>,
    /// What is proposed and not applied: up to which entry, and when each of it arrived.
    proposed: VecDeque<(Index, Vec<Moment>)>,
    ended: Ended,
}

/// Calls of other members' clients that this one, as their leader, has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub calls: u32,
    /// All of them together, since they arrived here.
    pub took: Duration,
}

impl PassedOnHere {
    /// Of what was begun, and is proposed with the entries up to this one.
    pub(super) fn proposed(&mut self, begun: &[Begun], last: Index) {
        let arrived = begun.iter().filter_map(|it| match it {
            Begun::Peer { asked, .. } => Some(asked.since),
            _ => None,
        });
        let arrived: Vec<_> = arrived.collect();
        if !arrived.is_empty() {
            self.proposed.push_back((last, arrived));
        }
    }

    pub(super) fn applied(&mut self, index: Index, now: Moment) {
        while self.proposed.front().is_some_and(|it| it.0 <= index) {
            let (_, arrived) = self.proposed.pop_front().unwrap_or_default();
            self.ended.calls += u32::try_from(arrived.len()).unwrap_or(u32::MAX);
            self.ended.took += arrived.iter().map(|it| now.since(*it)).sum::<Duration>();
        }
    }

    /// This member leads no more: what becomes of it is not for it to say.
    fn lost_lead(&mut self) {
        self.proposed.clear();
    }
}

/// A write that another member has passed on.
#[derive(Debug)]
pub(super) struct AskedByPeer {
    by: MemberId,
    term: Term,
    since: Moment,
    /// With which it is proposed: that member's, which it knows it by.
    pub(super) context: [u8; Run::CONTEXT_BYTES],
    _room: Room,
}

impl AskedByPeer {
    /// Whether it has waited for so long that it is not proposed any more.
    pub(super) fn is_gone(&self, now: Moment) -> bool {
        now.since(self.since) >= WAITS_AT_MOST
    }
}

/// Of [`WAITING_BYTES`], until it is dropped.
#[derive(Debug)]
struct Room {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Room {
    fn of(all: &Arc<AtomicUsize>, bytes: usize) -> Option<Self> {
        let before = all.fetch_add(bytes, Ordering::Relaxed);
        let room = Self {
            all: Arc::clone(all),
            bytes,
        };
        (before + bytes <= WAITING_BYTES).then_some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<L: LogRead> Replica<L> {
    /// Passes on what may be, of what was begun here, if another member leads that takes it.
    pub(super) fn pass_on(&mut self) {
        let Some(leader) = self.leader_that_takes() else {
            return;
        };
        let window = &mut self.passed_on.window;
        let taken = self.proposals.take_if(|proposal, begun| match begun {
            Begun::Caller {
                passes: Some(client),
                ..
            } => window.take(*client, bytes_of(proposal)),
            _ => false,
        });
        let mut of_clients = BTreeMap::<IpAddr, Message>::new();
        for (proposal, begun) in taken {
            let Begun::Caller {
                token,
                passes: Some(client),
                ..
            } = begun
            else {
                continue;
            };
            let message = of_clients.entry(client).or_default();
            message.add(token, proposal);
            if message.bytes >= MESSAGE_BYTES {
                let full = std::mem::take(message);
                self.send_on(leader, client, full);
            }
        }
        for (client, message) in of_clients {
            self.send_on(leader, client, message);
        }
    }

    fn send_on(&mut self, leader: MemberId, client: IpAddr, message: Message) {
        let Message {
            tokens, proposals, ..
        } = message;
        if tokens.is_empty() {
            return;
        }
        let bytes: Vec<_> = proposals.iter().map(bytes_of).collect();
        match self.consensus.pass_on(leader, client, proposals) {
            Ok(term) => {
                self.counts.writes_passed_on += tokens.len() as u64;
                let since = self.now;
                for (token, bytes) in tokens.into_iter().zip(bytes) {
                    let to = To {
                        leader,
                        term,
                        since,
                        client,
                        bytes,
                    };
                    self.passed_on.add(token, to);
                }
            }
            Err(refusal) => {
                let window = &mut self.passed_on.window;
                window.give_back(client, bytes.into_iter().sum());
                self.refused.push((tokens, refusal));
            }
        }
    }

    /// Takes up what has just arrived.
    pub(super) fn take_passed_on(&mut self) {
        for arrived in self.consensus.take_passed_on() {
            match arrived {
                PassedOn::Asked {
                    by,
                    term,
                    client,
                    proposals,
                } => self.on_asked(by, term, client, proposals),
                PassedOn::NotTaken { by, contexts } => {
                    self.consensus.refuse_passed_on(by, contexts);
                }
                PassedOn::Refused { by, contexts } => self.on_refused_by(by, &contexts),
            }
        }
    }

    fn on_asked(&mut self, by: MemberId, term: Term, client: IpAddr, proposals: Vec<Proposal>) {
        let mut refused = Vec::new();
        for proposal in proposals {
            match self.queued(by, term, &proposal) {
                Some(queued) => self.wait(Writer::Client(client), queued),
                None => refused.push(proposal.context),
            }
        }
        if !refused.is_empty() {
            self.consensus.refuse_passed_on(by, refused);
        }
    }

    /// The write, if this leader takes it: as one of its own callers', as far as it can tell.
    fn queued(&self, by: MemberId, term: Term, proposal: &Proposal) -> Option<QueuedWrite> {
        let data = &proposal.data;
        let request = (self.takes)(data)?;
        if self.is_low_on_space || !may_be_passed_on(&request.command) {
            return None;
        }
        let command = EncodedCommand {
            data: data.clone(),
            records: request.command.records(),
        };
        let room = Room::of(
            &self.passed_on_here.waiting_bytes,
            data.len() + OVERHEAD_BYTES,
        )?;
        let asked = AskedByPeer {
            by,
            term,
            since: self.now,
            context: proposal.context.as_slice().try_into().ok()?,
            _room: room,
        };
        Some(QueuedWrite {
            command,
            proposer: Proposer::Peer(asked),
        })
    }

    /// What was passed on in another term than this one may not be proposed any more.
    pub(super) fn refuse_of_other_terms(&mut self) {
        let term = self.consensus.hard_state().term;
        let is_of_other = |begun: &Begun| match begun {
            Begun::Peer { asked, .. } => asked.term != term,
            _ => false,
        };
        // Not refused: by what the present leader commits, the others learn that it is lost.
        drop(self.proposals.take_if(|_, begun| is_of_other(begun)));
    }

    /// Tells other members whose writes waited for their turn for too long.
    pub(super) fn refuse_gone(&mut self) {
        let gone = self.turns.take_gone().into_iter();
        let of_peers = gone.filter_map(|it| match it.proposer {
            Proposer::Peer(asked) => Some(asked),
            Proposer::Caller { .. } | Proposer::Leader { .. } => None,
        });
        let of_peers = of_peers.collect();
        self.refuse_peers(of_peers);
    }

    /// Tells other members that these are not proposed.
    pub(super) fn refuse_peers(&mut self, asked: Vec<AskedByPeer>) {
        let mut of_members = BTreeMap::<MemberId, Vec<Vec<u8>>>::new();
        for asked in asked {
            let contexts = of_members.entry(asked.by).or_default();
            contexts.push(asked.context.to_vec());
        }
        for (member, contexts) in of_members {
            self.consensus.refuse_passed_on(member, contexts);
        }
    }

    fn on_refused_by(&mut self, by: MemberId, contexts: &[Vec<u8>]) {
        let run = self.run();
        let mut tokens = Vec::new();
        for token in contexts.iter().filter_map(|it| run.token_of(it)) {
            let to = self.passed_on.waiting.get(&token);
            if to.is_some_and(|to| to.leader == by) {
                self.passed_on.remove(token);
                tokens.push(token);
            }
        }
        if !tokens.is_empty() {
            self.refused.push((tokens, Refusal::NotLeader));
        }
    }

    /// What was passed on to this member may not have arrived, and what it says may not. It is
    /// passed nothing more until it has answered a Hello again.
    pub(super) fn forget_passed_on_to(&mut self, leader: MemberId) {
        self.announced.is_disconnected(leader);
        let unknown = self.passed_on.take(|_, to| to.leader == leader);
        if planted!(PassedOnTakenForRefused) && !unknown.is_empty() {
            self.refused.push((unknown, Refusal::NotLeader));
            return;
        }
        self.outputs
            .extend(unknown.into_iter().map(Output::Forgotten));
    }

    /// Of other members' clients, since the last call.
    pub fn take_ended_of_others(&mut self) -> Ended {
        std::mem::take(&mut self.passed_on_here.ended)
    }

    /// The role may be another one.
    pub(super) fn forget_proposed_of_others(&mut self, state: ReplicaState) {
        if state.role != Role::Leader {
            self.passed_on_here.lost_lead();
        }
    }

    pub(super) fn publish_leader_takes(&self) {
        let takes = self.leader_that_takes();
        let bytes = takes.map_or(0, |_| self.passed_on.window.room());
        self.leader_takes.0.store(bytes, Ordering::Relaxed);
    }

    /// The leader, if it takes what this follower passes on. One whose disk hangs, or that lacks
    /// what was committed before (it may wait for a snapshot), would not see for long what became
    /// of it.
    fn leader_that_takes(&self) -> Option<MemberId> {
        let state = self.consensus.state();
        let timeout = self.config.election_timeout;
        let would_see = state.role == Role::Follower
            && self.consensus.can_confirm_reads()
            && self.keeping_up.keeps_up_closely()
            && !self.outstanding.is_stalled(self.now, timeout);
        let takes = |leader: &MemberId| self.announced.takes_passed_on(*leader);
        state.leader.filter(takes).filter(|_| would_see)
    }
}

/// What a write has of what may be under way.
fn bytes_of(proposal: &Proposal) -> usize {
    proposal.data.len() + Run::CONTEXT_BYTES
}

/// What is passed on together.
#[derive(Default)]
struct Message {
    tokens: Vec<Token>,
    proposals: Vec<Proposal>,
    bytes: usize,
}

impl Message {
    fn add(&mut self, token: Token, proposal: Proposal) {
        self.bytes += bytes_of(&proposal);
        self.tokens.push(token);
        self.proposals.push(proposal);
    }
}

#[cfg(test)]
mod tests;
