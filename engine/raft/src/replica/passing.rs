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

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use dengine_kv::{Command, Request};
use dengine_types::sync::atomic::Ordering;
use dengine_types::{Index, MemberId, Moment, Term};

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

/// What a follower has passed on and not been answered, at most. What is beyond that goes to the
/// leader as calls do. With 10 MB a second between them, a heartbeat is answered so a tenth of a
/// second later.
const WINDOW_BYTES: usize = 1 << 20;
/// What writes of other members' callers take of a leader's memory while they wait for their turn,
/// at most.
const WAITING_BYTES: usize = 16 << 20;
/// What each takes besides its bytes.
const OVERHEAD_BYTES: usize = 256;
/// What waits for longer at the leader is refused, so that its follower asks as a call does, which
/// waits as long as its caller. At the follower, whoever left keeps its room for as long.
const WAITS_AT_MOST: Duration = Duration::from_secs(4);
/// What is known to be neither committed nor refused by then was dropped on its way, or this member
/// hears nothing.
const TAKEN_FOR_LOST: Duration = WAITS_AT_MOST.saturating_mul(2);

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

/// What this member has passed on and waits for.
#[derive(Debug, Default)]
pub(super) struct PassedOnToLeader {
    waiting: BTreeMap<Token, To>,
    window: Window,
    /// The oldest term in which any of them was passed on.
    oldest: Term,
}

#[derive(Clone, Copy, Debug)]
struct To {
    leader: MemberId,
    term: Term,
    since: Moment,
    client: IpAddr,
    bytes: usize,
}

/// What clients have of [`WINDOW_BYTES`]. None may have more than half of what others leave: the
/// rest of its writes are calls, and at the leader all calls of a member have their turns together.
#[derive(Debug, Default)]
struct Window {
    bytes: usize,
    of_clients: BTreeMap<IpAddr, usize>,
}

impl Window {
    /// For a client that has nothing of it.
    fn room(&self) -> usize {
        (WINDOW_BYTES - self.bytes) / 2
    }

    fn take(&mut self, client: IpAddr, bytes: usize) -> bool {
        let own = self.of_clients.get(&client).copied().unwrap_or_default();
        let most = (WINDOW_BYTES - (self.bytes - own)) / 2;
        if own + bytes > most {
            return false;
        }
        self.bytes += bytes;
        self.of_clients.insert(client, own + bytes);
        true
    }

    fn give_back(&mut self, client: IpAddr, bytes: usize) {
        self.bytes -= bytes;
        if let Entry::Occupied(mut own) = self.of_clients.entry(client) {
            *own.get_mut() -= bytes;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

impl PassedOnToLeader {
    /// Somebody waits for what is committed.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What it has of the window is taken.
    fn add(&mut self, token: Token, to: To) {
        if self.waiting.is_empty() {
            self.oldest = to.term;
        }
        self.waiting.insert(token, to);
    }

    fn remove(&mut self, token: Token) -> Option<To> {
        let to = self.waiting.remove(&token)?;
        self.window.give_back(to.client, to.bytes);
        Some(to)
    }

    /// Who waits for this entry, which is committed, if it was passed on in this run.
    pub(super) fn committed(&mut self, entry: &dengine_types::Entry, run: Run) -> Option<Token> {
        if self.waiting.is_empty() {
            return None;
        }
        let token = run.token_of(&entry.context)?;
        self.remove(token).map(|_| token)
    }

    /// Those who wait in vain now that an entry of this term is committed: they were passed on in
    /// an earlier one.
    pub(super) fn overtaken_by(&mut self, term: Term) -> Vec<Token> {
        if self.waiting.is_empty() || term <= self.oldest {
            return Vec::new();
        }
        self.oldest = term;
        self.take(|_, to| to.term < term)
    }

    /// Forgets those whose callers are gone, but not at once: who asks and leaves has no more on
    /// its way than others. Those who have waited for too long, too; of them nobody knows.
    pub(super) fn prune(&mut self, now: Moment, is_gone: &dyn Fn(Token) -> bool) -> Vec<Token> {
        self.take(|token, to| now.since(to.since) >= WAITS_AT_MOST && is_gone(token));
        self.take(|_, to| now.since(to.since) >= TAKEN_FOR_LOST)
    }

    fn take(&mut self, is_taken: impl Fn(Token, &To) -> bool) -> Vec<Token> {
        let waiting = self.waiting.iter();
        let taken = waiting.filter(|(token, to)| is_taken(**token, to));
        let taken: Vec<_> = taken.map(|(token, _)| *token).collect();
        for token in &taken {
            self.remove(*token);
        }
        taken
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

/// What a write has of [`WINDOW_BYTES`].
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
mod tests {
    use dengine_kv::{CommandVersion, Put};

    use super::*;
    use crate::input::{Input, Write};
    use crate::output::Outbound;
    use crate::replica::lone::LoneLeader;
    use crate::replica::{Announcement, RequestError};

    /// What became of a follower's callers.
    #[derive(Debug, PartialEq, Eq)]
    enum Told {
        Applied(Token),
        Refused(Token),
        Lost(Token),
        Forgotten(Token),
    }

    /// Three members, of which the first leads and takes what the second passes on.
    struct Three {
        members: [LoneLeader; 3],
        told: Vec<Told>,
    }

    impl Three {
        fn led_by_the_first() -> Self {
            let mut three = Self {
                members: LoneLeader::three_told_within(Duration::from_secs(3600), 64),
                told: Vec::new(),
            };
            three.has_lead(0);
            three.takes(1, 1, true);
            three.time_passes(3);
            three
        }

        /// Member `by` of the three is the only one whose time passes until it leads.
        fn has_lead(&mut self, by: usize) {
            for _ in 0..200 {
                let leads = self.members[by].replica.consensus().state().role == Role::Leader;
                let agreed = self.members.iter().all(|it| {
                    it.replica.consensus().state().leader == Some(MemberId(by as u64 + 1))
                });
                if leads && agreed {
                    return;
                }
                // The others do not stand, and grant votes once they have been silent for long.
                self.members[by].tick();
                if self.members[by].replica.consensus().state().role != Role::Leader {
                    for other in (0..3).filter(|it| *it != by) {
                        self.members[other].tick();
                        self.settle_alone(other);
                    }
                }
                self.settle();
            }
            panic!("nobody was elected");
        }

        /// So many ticks.
        fn time_passes(&mut self, ticks: usize) {
            for _ in 0..ticks {
                self.members.iter_mut().for_each(LoneLeader::tick);
                self.settle();
            }
        }

        fn takes(&mut self, follower: usize, leader: u64, takes_passed_on: bool) {
            let announced = Input::Announced {
                member: MemberId(leader),
                by: Announcement::Ack { takes_passed_on },
                reads_max: CommandVersion::CURRENT,
            };
            let member = &mut self.members[follower];
            member.replica.handle(announced, member.now);
        }

        /// Does what follows at one, and drops what it says.
        fn settle_alone(&mut self, place: usize) {
            let sent = self.outputs_of(place);
            drop(sent);
        }

        /// What one has to send, once all else is done.
        fn outputs_of(&mut self, place: usize) -> Vec<Outbound> {
            loop {
                let outputs = self.members[place].outputs();
                if outputs.is_empty() {
                    return std::mem::take(&mut self.members[place].sent);
                }
                for output in outputs {
                    match &output {
                        Output::Apply(job) => {
                            let told = job.awaited.iter().map(|(_, it)| Told::Applied(*it));
                            self.told.extend(told);
                        }
                        Output::Refused { tokens, error } => {
                            assert!(matches!(error, RequestError::NotLeader { .. }), "{error}");
                            self.told.extend(tokens.iter().map(|it| Told::Refused(*it)));
                        }
                        Output::Lost(token) => self.told.push(Told::Lost(*token)),
                        Output::Forgotten(token) => self.told.push(Told::Forgotten(*token)),
                        _ => {}
                    }
                    self.members[place].carry_out(output);
                }
            }
        }

        fn deliver(&mut self, from: usize, message: &Outbound) {
            let to = message.to.0 as usize - 1;
            let member = &mut self.members[to];
            let input = Input::Message {
                from: MemberId(from as u64 + 1),
                bytes: message.bytes.clone(),
            };
            member.replica.handle(input, member.now);
        }

        /// Until nobody has anything to say.
        fn settle(&mut self) {
            loop {
                let mut said = false;
                for place in 0..3 {
                    for message in self.outputs_of(place) {
                        said = true;
                        self.deliver(place, &message);
                    }
                }
                if !said {
                    return;
                }
            }
        }

        /// Somebody asks the second for a put.
        fn asks(&mut self, key: &str) -> Token {
            self.asks_from(7, key, Bytes::from_static(b"v"))
        }

        fn asks_from(&mut self, client: u8, key: &str, value: Bytes) -> Token {
            let put = Command::Put(Put::new(key.to_owned(), value));
            self.members[1].ask(Write::Command {
                command: EncodedCommand::new(put.into(), CommandVersion::CURRENT),
                from: Some([10, 0, 0, client].into()),
                passes: true,
            })
        }

        /// And what the second sends for that.
        fn passes(&mut self, key: &str) -> (Token, Vec<Outbound>) {
            let token = self.asks(key);
            (token, self.outputs_of(1))
        }

        /// How many entries with data the first has.
        fn logged(&self) -> usize {
            let entries = self.members[0].appended.iter();
            entries.filter(|it| !it.data.is_empty()).count()
        }
    }

    #[test]
    fn a_followers_caller_is_answered_once_the_follower_has_applied_it() {
        let mut three = Three::led_by_the_first();
        let token = three.asks("a");
        three.settle();
        // It is told at once what is committed, for somebody waits.
        assert_eq!(three.told, [Told::Applied(token)]);
        assert_eq!(three.logged(), 1);
        let ended = three.members[0].replica.take_ended_of_others();
        assert_eq!(ended.calls, 1);
        assert!(!three.members[1].replica.passed_on.is_awaited());
    }

    /// A network that repeats what it carries had a put applied twice.
    #[test]
    fn what_arrives_twice_is_proposed_once() {
        let mut three = Three::led_by_the_first();
        let (first, sent) = three.passes("a");
        let (second, later) = three.passes("b");
        for message in later.iter().chain(&sent).chain(&later) {
            three.deliver(1, message);
        }
        three.settle();
        assert_eq!(three.logged(), 1, "the one that came behind was dropped");
        assert_eq!(three.told, [Told::Applied(second)]);
        assert!(
            three.members[1]
                .replica
                .passed_on
                .waiting
                .contains_key(&first)
        );
    }

    #[test]
    fn whom_the_leader_refuses_is_told_to_ask_it() {
        let mut three = Three::led_by_the_first();
        let leader = &mut three.members[0];
        leader.replica.handle(Input::LowOnSpace(true), leader.now);
        let token = three.asks("a");
        three.settle();
        assert_eq!(three.told, [Told::Refused(token)]);
        assert_eq!(three.logged(), 0);
    }

    #[test]
    fn nothing_is_passed_on_to_who_does_not_take_it() {
        let mut three = Three::led_by_the_first();
        assert!(three.members[1].replica.leader_takes().bytes() > 0);
        three.takes(1, 1, false);
        let (token, sent) = three.passes("a");
        assert!(sent.is_empty(), "{sent:?}");
        assert_eq!(three.told, [Told::Refused(token)]);
        assert_eq!(three.members[1].replica.leader_takes().bytes(), 0);
    }

    #[test]
    fn what_breaks_on_its_way_may_or_may_not_be_proposed() {
        let mut three = Three::led_by_the_first();
        let (token, _) = three.passes("a");
        let follower = &mut three.members[1];
        follower
            .replica
            .handle(Input::Disconnected(MemberId(1)), follower.now);
        three.settle();
        assert_eq!(three.told, [Told::Forgotten(token)]);
        // Later ones wait for the next leader, or for this one.
        let (later, sent) = three.passes("b");
        assert!(sent.is_empty(), "{sent:?}");
        assert_eq!(three.told.last(), Some(&Told::Refused(later)));
    }

    /// Upon a message that had no room, all that were on their way were given up, and nothing was
    /// passed on any more until the stream broke.
    #[test]
    fn a_message_that_was_dropped_says_nothing_of_others() {
        let mut three = Three::led_by_the_first();
        let (dropped, _) = three.passes("a");
        let (token, sent) = three.passes("b");
        let follower = &mut three.members[1];
        follower
            .replica
            .handle(Input::Unreachable(MemberId(1)), follower.now);
        assert!(three.members[1].replica.leader_that_takes().is_some());
        for message in &sent {
            three.deliver(1, message);
        }
        three.settle();
        assert_eq!(three.told, [Told::Applied(token)]);
        // Who waits for it is told nothing certain, and not at the end of an hour.
        three.time_passes(100);
        assert_eq!(three.told[1..], [Told::Forgotten(dropped)]);
        assert_eq!(three.members[1].replica.passed_on.window.bytes, 0);
    }

    /// Answers to heartbeats, and acknowledgements, waited behind all that a client had sent.
    #[test]
    fn no_more_is_on_its_way_than_delays_nothing() {
        let mut three = Three::led_by_the_first();
        let value = Bytes::from(vec![0; LARGEST_PASSED_ON_BYTES - 100]);
        let greedy = (0..40).map(|key| three.asks_from(7, &key.to_string(), value.clone()));
        let greedy: Vec<_> = greedy.collect();
        let mut sent = three.outputs_of(1);
        let bytes: usize = sent.iter().map(|it| it.bytes.len()).sum();
        assert!((WINDOW_BYTES * 3 / 8..WINDOW_BYTES * 5 / 8).contains(&bytes));
        // The others go the way of calls, at once.
        let others = three.told.len();
        let refused = greedy[40 - others..].iter().map(|it| Told::Refused(*it));
        assert_eq!(three.told, refused.collect::<Vec<_>>());
        assert_eq!(
            three.members[1].replica.passed_on.waiting.len(),
            40 - others
        );
        // At the leader it would have its turn behind those.
        let modest = three.asks_from(8, "b", Bytes::from_static(b"v"));
        sent.extend(three.outputs_of(1));
        for message in &sent {
            three.deliver(1, message);
        }
        three.settle();
        assert!(three.told.contains(&Told::Applied(modest)));
        assert_eq!(three.told.len(), 41, "all were answered");
        let window = &three.members[1].replica.passed_on.window;
        assert_eq!((window.bytes, window.of_clients.len()), (0, 0));
    }

    #[test]
    fn clients_that_want_all_of_it_come_to_have_as_much_as_one_another() {
        const EACH: usize = 1 << 10;
        let mut window = Window::default();
        let clients: [_; 7] = std::array::from_fn(|it| IpAddr::from([10, 0, 0, it as u8]));
        for client in clients {
            while window.take(client, EACH) {}
        }
        assert!(!window.take(clients[0], EACH), "it has its share");
        for _ in 0..WINDOW_BYTES / EACH {
            for client in clients {
                if window.of_clients.contains_key(&client) {
                    window.give_back(client, EACH);
                }
                // As many as it asks for, so that what others give back is had by somebody.
                while window.take(client, EACH) {}
            }
        }
        let shares = clients.map(|it| window.of_clients[&it] * (clients.len() + 1));
        let even = |share: usize| share.abs_diff(WINDOW_BYTES) < WINDOW_BYTES / 10;
        assert!(shares.into_iter().all(even), "{shares:?}");
    }

    #[test]
    fn who_asks_and_leaves_has_no_more_on_its_way() {
        let mut passed_on = PassedOnToLeader::default();
        let to = To {
            leader: MemberId(1),
            term: Term(1),
            since: Moment(0),
            client: [10, 0, 0, 7].into(),
            bytes: 7,
        };
        assert!(passed_on.window.take(to.client, to.bytes));
        passed_on.add(Token(1), to);
        let mut left = |after: Duration, is_gone: bool| {
            let forgotten = passed_on.prune(Moment(0).after(after), &|_| is_gone);
            assert_eq!(forgotten, []);
            passed_on.window.bytes
        };
        assert_eq!(left(Duration::ZERO, true), 7);
        assert_eq!(left(WAITS_AT_MOST, false), 7);
        assert_eq!(left(WAITS_AT_MOST, true), 0);
    }

    /// Its clients' writes were answered once it had caught up, or never.
    #[test]
    fn a_follower_that_is_behind_passes_nothing_on() {
        let mut three = Three::led_by_the_first();
        three.members[1].holds_apply = true;
        let (_, sent) = three.passes("a");
        for message in &sent {
            three.deliver(1, message);
        }
        three.settle();
        assert!(three.members[1].replica.leader_that_takes().is_some());
        three.time_passes(20);
        assert!(three.members[2].replica.consensus().can_confirm_reads());
        assert_eq!(three.members[1].replica.leader_that_takes(), None);
        let (later, sent) = three.passes("b");
        assert!(sent.is_empty(), "{sent:?}");
        assert_eq!(three.told.last(), Some(&Told::Refused(later)));
    }

    /// They were dropped, and their callers waited on.
    #[test]
    fn what_waits_for_too_long_at_the_leader_is_refused() {
        let mut three = Three::led_by_the_first();
        let (token, sent) = three.passes("a");
        for message in &sent {
            three.deliver(1, message);
        }
        let leader = &mut three.members[0];
        leader.now = leader.now.after(WAITS_AT_MOST);
        leader.tick();
        three.settle();
        assert_eq!(three.told, [Told::Refused(token)]);
        assert_eq!(three.logged(), 0);
    }

    #[test]
    fn what_a_leader_has_no_room_for_is_refused() {
        let mut three = Three::led_by_the_first();
        let bytes = Arc::clone(&three.members[0].replica.passed_on_here.waiting_bytes);
        bytes.fetch_add(WAITING_BYTES, Ordering::Relaxed);
        let token = three.asks("a");
        three.settle();
        assert_eq!(three.told, [Told::Refused(token)]);
        bytes.fetch_sub(WAITING_BYTES, Ordering::Relaxed);
        let token = three.asks("a");
        three.settle();
        assert_eq!(three.told.last(), Some(&Told::Applied(token)));
        assert_eq!(bytes.load(Ordering::Relaxed), 0);
    }

    /// Its limits are lower, or a peer passes on what no client may ask for.
    #[test]
    fn what_a_leader_does_not_read_is_refused() {
        let mut three = Three::led_by_the_first();
        three.members[0].replica.takes_of_others(Box::new(|_| None));
        let token = three.asks("a");
        three.settle();
        assert_eq!(three.told, [Told::Refused(token)]);
        assert_eq!(three.logged(), 0);
    }

    /// They were dropped until the leader changed, and their callers waited in vain.
    #[test]
    fn a_member_that_started_too_often_is_refused() {
        let mut three = Three::led_by_the_first();
        let told = (1..100).map(|boot| {
            three.members[1].replica.config.boot_nonce = boot;
            let token = three.asks("a");
            three.settle();
            let told = three.told.pop().unwrap();
            assert!([Told::Applied(token), Told::Refused(token)].contains(&told));
            told == Told::Applied(token)
        });
        assert_eq!(told.filter(|it| *it).count(), 64);
    }

    #[test]
    fn nothing_is_passed_on_to_whom_this_member_does_not_follow() {
        let mut three = Three::led_by_the_first();
        let consensus = &mut three.members[1].replica.consensus;
        let passed = consensus.pass_on(MemberId(3), [10, 0, 0, 7].into(), Vec::new());
        assert_eq!(passed, Err(Refusal::NotLeader));
        assert!(three.outputs_of(1).is_empty());
    }

    /// It did not reach the first leader, and must not be proposed by a later one: its caller was
    /// told by then that it is lost.
    #[test]
    fn what_was_passed_on_in_an_earlier_term_is_lost_once_a_later_one_has_committed() {
        let mut three = Three::led_by_the_first();
        let (token, sent) = three.passes("a");
        three.has_lead(2);
        three.settle();
        assert_eq!(three.told, [Told::Lost(token)]);
        three.has_lead(0);
        for message in &sent {
            three.deliver(1, message);
        }
        three.settle();
        assert_eq!(three.logged(), 0);
    }

    #[test]
    fn only_what_names_its_keys_is_passed_on() {
        let put = Command::Put(Put::new("a".to_owned(), Bytes::new()));
        assert!(may_be_passed_on(&put));
        assert!(!may_be_passed_on(&Command::OpenSession { ttl_ms: 1 }));
        let large = EncodedCommand {
            data: Bytes::from(vec![0; LARGEST_PASSED_ON_BYTES + 1]),
            records: 1,
        };
        assert!(!is_small_enough(&large));
    }
}
