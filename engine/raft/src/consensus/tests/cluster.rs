//! Members joined by a network that delivers, loses and holds what the script says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use dengine_log::Position;
use dengine_types::{HardState, Index, MemberId};

use super::member::{self, Disk, Machine, Member, describe_state, parse_change};
use crate::consensus::describe::describe;
use crate::consensus::testing::End;
use crate::consensus::{ConsensusConfig, PeerMessageError, Proposal, without_promise};
use crate::input::Token;
use crate::output::Outbound;

/// Sender and receiver.
pub(super) type Link = (u64, u64);

/// Changes the default configuration.
pub(super) type Setting = Box<dyn Fn(&mut ConsensusConfig)>;

#[derive(Default)]
pub(super) struct Cluster {
    pub(super) seed: u64,
    /// For members started from now on.
    pub(super) settings: Vec<Setting>,
    pub(super) members: BTreeMap<u64, Member>,
    pub(super) links: BTreeMap<Link, VecDeque<Bytes>>,
    pub(super) cut: BTreeSet<Link>,
    /// Messages that take longer than any other.
    pub(super) held: BTreeMap<Link, Bytes>,
    /// Members whose answers to heartbeats are those of a version that promised nothing by them.
    pub(super) promise_nothing: BTreeSet<u64>,
    /// What is on its way besides messages: the message that goes with it, and the state.
    pub(super) snapshots: BTreeMap<Link, (Bytes, Machine)>,
    pub(super) contexts: u64,
    pub(super) reads: u64,
    /// What happened, one line each.
    pub(super) transcript: String,
}

impl Cluster {
    pub(super) fn config(&self, id: u64) -> ConsensusConfig {
        let mut config = ConsensusConfig {
            acknowledges_unsynced: true,
            ..ConsensusConfig::new(MemberId(id), self.seed)
        };
        for setting in &self.settings {
            setting(&mut config);
        }
        config
    }

    pub(super) fn start(&mut self, id: u64, disk: Disk, machine: Machine) {
        let mut member = member::start(&self.config(id), disk, machine, 1);
        // Scripts begin with members that have been up for a while.
        member.consensus.grant_votes();
        self.members.insert(id, member);
        self.settle(id);
    }

    pub(super) fn restart(&mut self, id: u64) {
        let member = self.members.remove(&id).unwrap();
        let member = member::restart(member, &self.config(id));
        self.members.insert(id, member);
        self.settle(id);
    }

    pub(super) fn member(&mut self, id: u64) -> &mut Member {
        self.members.get_mut(&id).expect("the member was started")
    }

    pub(super) fn note(&mut self, id: u64, what: impl std::fmt::Display) {
        writeln!(self.transcript, "{id} {what}").unwrap();
    }

    /// Lets something happen to a member and carries out what follows.
    fn step(&mut self, id: u64, happens: impl FnOnce(&mut Member)) {
        happens(self.member(id));
        self.settle(id);
    }

    fn refused(&mut self, id: u64, taken: Result<(), PeerMessageError>) {
        if let Err(error) = taken {
            self.note(id, format_args!("refuses a message: it {error}"));
        }
    }

    pub(super) fn receive(&mut self, id: u64, from: MemberId, bytes: &Bytes) {
        let taken = self.member(id).consensus.message(from, bytes);
        self.refused(id, taken);
        self.settle(id);
    }

    pub(super) fn propose(&mut self, id: u64, texts: &[&str]) {
        let proposals: Vec<_> = texts.iter().map(|text| self.proposal(id, text)).collect();
        self.step(id, |it| {
            let taken = it.consensus.propose(proposals.clone());
            let term = it.consensus.hard_state().term;
            it.host.note_proposed(taken, term, proposals);
        });
    }

    pub(super) fn propose_change(&mut self, id: u64, text: &str) {
        let proposal = self.proposal(id, text);
        let change = parse_change(text.as_bytes()).expect("a membership change");
        self.step(id, |it| {
            let taken = it.consensus.propose_change(proposal.clone(), change);
            let term = it.consensus.hard_state().term;
            it.host.note_proposed(taken, term, vec![proposal]);
        });
    }

    pub(super) fn proposal(&mut self, id: u64, text: &str) -> Proposal {
        self.contexts += 1;
        Proposal {
            context: format!("{id}/{}", self.contexts).into_bytes(),
            data: Bytes::from(text.to_owned()),
        }
    }

    pub(super) fn read(&mut self, id: u64) {
        let token = self.read_token(id, "read");
        self.step(id, |it| it.read(token));
    }

    pub(super) fn lease_read(&mut self, id: u64) {
        let token = self.read_token(id, "lease read");
        self.step(id, |it| it.lease_read(token));
    }

    fn read_token(&mut self, id: u64, kind: &str) -> Token {
        self.reads += 1;
        self.note(id, format!("is asked for {kind} {}", self.reads));
        Token(self.reads)
    }

    /// Lets one tick pass on a member's clock.
    pub(super) fn tick(&mut self, id: u64) {
        let tick = self.config(id).tick;
        self.step(id, |it| {
            it.host.clock = it.host.clock.after(tick);
            it.tick_at(it.host.clock);
        });
    }

    /// Lets time pass on a member's clock, but no tick.
    pub(super) fn wait(&mut self, id: u64, time: Duration) {
        self.step(id, |it| {
            it.host.clock = it.host.clock.after(time);
            it.consensus.observe(it.host.clock);
        });
    }

    /// Lets one tick pass, and the member's clock stand still.
    pub(super) fn tick_without_clock(&mut self, id: u64) {
        self.step(id, Member::tick);
    }

    pub(super) fn transfer(&mut self, from: u64, to: u64) {
        self.step(from, |it| it.consensus.transfer_leader(MemberId(to)));
    }

    pub(super) fn unreachable(&mut self, at: u64, of: u64) {
        self.step(at, |it| it.consensus.unreachable(MemberId(of)));
    }

    /// Delivers the oldest message of a link; `false` if there is none.
    pub(super) fn deliver_one(&mut self, link: Link, show: bool) -> bool {
        let Some(bytes) = self.links.get_mut(&link).and_then(VecDeque::pop_front) else {
            return false;
        };
        if show {
            writeln!(self.transcript, "{}", describe(&bytes)).unwrap();
        }
        let (from, to) = link;
        self.receive(to, MemberId(from), &bytes);
        true
    }

    /// Delivers everything, and what follows from it, until the network is silent.
    pub(super) fn deliver_all(&mut self) {
        for _ in 0..10_000 {
            let links: Vec<_> = self.links.keys().copied().collect();
            let mut delivered = false;
            for link in links {
                delivered |= self.deliver_one(link, false);
            }
            if !delivered {
                return;
            }
        }
        panic!("the members never stop talking");
    }

    /// Lets the disk sync the oldest write that waits; `false` if there is none.
    pub(super) fn sync_one(&mut self, id: u64) -> bool {
        let Some(append) = self.member(id).host.disk.sync_one() else {
            return false;
        };
        self.step(id, |it| it.consensus.persisted(append));
        true
    }

    pub(super) fn hold_disk(&mut self, id: u64, held: bool) {
        self.step(id, |it| it.host.disk.held = held);
    }

    pub(super) fn hold_apply(&mut self, id: u64, held: bool) {
        self.step(id, |it| it.host.machine.held = held);
    }

    /// Carries out a member's outputs until there are none.
    pub(super) fn settle(&mut self, id: u64) {
        let end = self.member(id).settle();
        let host = &mut self.member(id).host;
        let lines = std::mem::take(&mut host.lines);
        let sent = std::mem::take(&mut host.sent);
        let snapshots = std::mem::take(&mut host.snapshots);
        for line in lines {
            self.note(id, line);
        }
        self.send(id, sent);
        for (to, message, machine) in snapshots {
            self.snapshots.insert((id, to.0), (message, machine));
        }
        match end {
            Ok(()) => {}
            Err(End::Diverged(divergence)) => self.note(id, format_args!("ends: {divergence}")),
            Err(End::Install { base, hard_state }) => self.install(id, base, hard_state),
        }
    }

    /// Lets a snapshot that is on its way arrive, or get lost.
    pub(super) fn deliver_snapshot(&mut self, link: Link, arrives: bool) {
        let (message, machine) = self.snapshots.remove(&link).expect("one is on its way");
        let (from, to) = (MemberId(link.0), MemberId(link.1));
        if arrives {
            self.member(to.0).host.staged = Some(machine);
            let consensus = &mut self.member(to.0).consensus;
            let taken = consensus.snapshot_staged(from, &message);
            self.refused(to.0, taken);
            self.settle(to.0);
        }
        self.step(from.0, |it| it.consensus.snapshot_sent(to, arrives));
    }

    fn install(&mut self, id: u64, base: Position, hard_state: HardState) {
        assert_eq!(
            hard_state.commit, base.index,
            "what is installed is committed"
        );
        let (index, term) = (base.index, base.term);
        self.note(
            id,
            format_args!("resets its log to {index}@{term} and begins again"),
        );
        let host = &mut self.member(id).host;
        host.machine = host.staged.take().expect("it was staged");
        assert_eq!(host.machine.meta().last, base);
        host.disk.writes.clear();
        host.disk.log.reset(base);
        host.disk.hard_state = hard_state;
        self.restart(id);
    }

    /// Lets a member forget the log up to `index`.
    pub(super) fn truncate(&mut self, id: u64, index: Index) {
        self.step(id, |it| it.consensus.truncate(index));
        self.member(id).host.disk.log.truncate_prefix(index);
    }

    fn send(&mut self, id: u64, messages: Vec<Outbound>) {
        for message in messages {
            let link = (id, message.to.0);
            let reachable = self.members.contains_key(&link.1) && !self.cut.contains(&link);
            if reachable {
                let bytes = match self.promise_nothing.contains(&id) {
                    true => without_promise(&message.bytes),
                    false => message.bytes,
                };
                self.links.entry(link).or_default().push_back(bytes);
            }
        }
    }

    /// One line on where a member stands.
    pub(super) fn status(&self, id: u64) -> String {
        let member = &self.members[&id];
        let (disk, machine) = (&member.host.disk, &member.host.machine);
        let mut line = describe_state(member.consensus.state());
        let whole = disk.whole_log();
        let terms: Vec<_> = whole.iter().map(|entry| entry.term.to_string()).collect();
        let (terms, commit) = (terms.join(" "), member.consensus.commit_index());
        let applied = machine.applied;
        write!(
            line,
            "; log [{terms}], committed {commit}, applied {applied}"
        )
        .unwrap();
        if !machine.waiting.is_empty() {
            write!(line, ", {} handed out", machine.waiting.len()).unwrap();
        }
        if !disk.writes.is_empty() {
            let on_disk = disk.log.snapshot().last().map_or(Index(0), |it| it.index);
            write!(line, ", on disk {on_disk}").unwrap();
        }
        line
    }
}
