//! Members joined by a network that delivers, loses and holds what the script says.

use super::member::{Disk, Machine, Member, Write, parse_change};
use super::wire;
use crate::consensus::{
    Action, ConsensusConfig, Event, Outbound, ReadToken, Role, State, Token, without_promise,
};
use bytes::Bytes;
use dengine_log::Position;
use dengine_types::{Entry, EntryKind, HardState, Index, MemberId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

/// Sender and receiver.
pub(super) type Link = (u64, u64);

#[derive(Default)]
pub(super) struct Cluster {
    pub(super) seed: u64,
    /// Changes the default configuration of members started from now on.
    pub(super) configure: Option<fn(&mut ConsensusConfig)>,
    pub(super) members: BTreeMap<u64, Member>,
    pub(super) links: BTreeMap<Link, VecDeque<Bytes>>,
    pub(super) cut: BTreeSet<Link>,
    /// Members whose answers to heartbeats are those of a version that promised nothing by them.
    pub(super) promise_nothing: BTreeSet<u64>,
    /// What is on its way besides messages: the message that goes with it, and the state.
    pub(super) snapshots: BTreeMap<Link, (Bytes, Machine)>,
    /// What the proposals that were not answered yet say.
    pub(super) proposed: BTreeMap<Token, (String, Bytes)>,
    pub(super) tokens: u64,
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
        if let Some(configure) = self.configure {
            configure(&mut config);
        }
        config
    }

    pub(super) fn start(&mut self, id: u64, disk: Disk, machine: Machine) {
        let mut member = Member::start(&self.config(id), disk, machine, 1);
        // Scripts begin with members that have been up for a while.
        member.consensus.grant_votes();
        self.members.insert(id, member);
        self.settle(id);
    }

    pub(super) fn restart(&mut self, id: u64) {
        let member = self.members.remove(&id).unwrap();
        let member = member.restart(&self.config(id));
        self.members.insert(id, member);
        self.settle(id);
    }

    pub(super) fn member(&mut self, id: u64) -> &mut Member {
        self.members.get_mut(&id).expect("the member was started")
    }

    pub(super) fn note(&mut self, id: u64, what: impl std::fmt::Display) {
        writeln!(self.transcript, "  {id} {what}").unwrap();
    }

    /// Lets `event` happen to a member and carries out what follows.
    pub(super) fn step(&mut self, id: u64, event: Event) {
        if let Err(error) = self.member(id).consensus.step(event) {
            self.note(id, format_args!("refuses a message: it {error}"));
        }
        self.settle(id);
    }

    pub(super) fn propose(&mut self, id: u64, texts: &[&str]) {
        let proposals = texts.iter().map(|text| self.proposal(id, text)).collect();
        self.step(id, Event::Propose(proposals));
    }

    pub(super) fn propose_change(&mut self, id: u64, text: &str) {
        let proposal = self.proposal(id, text);
        let change = parse_change(text.as_bytes()).expect("a membership change");
        self.step(id, Event::ProposeChange { proposal, change });
    }

    fn proposal(&mut self, id: u64, text: &str) -> crate::consensus::Proposal {
        self.tokens += 1;
        let context = Bytes::from(format!("{id}/{}", self.tokens));
        self.proposed
            .insert(Token(self.tokens), (text.to_owned(), context.clone()));
        crate::consensus::Proposal {
            token: Token(self.tokens),
            context,
            data: Bytes::from(text.to_owned()),
        }
    }

    pub(super) fn read(&mut self, id: u64) {
        let token = self.read_token(id, "read");
        self.step(id, Event::Read(token));
    }

    pub(super) fn lease_read(&mut self, id: u64) {
        let token = self.read_token(id, "lease read");
        self.step(id, Event::LeaseRead(token));
    }

    fn read_token(&mut self, id: u64, kind: &str) -> ReadToken {
        self.reads += 1;
        self.note(id, format!("is asked for {kind} {}", self.reads));
        ReadToken(self.reads)
    }

    /// Lets one tick pass on a member's clock.
    pub(super) fn tick(&mut self, id: u64) {
        let tick = self.config(id).tick;
        let member = self.member(id);
        member.clock = member.clock.after(tick);
        member.consensus.observe(member.clock);
        self.step(id, Event::Tick);
    }

    /// Delivers the oldest message of a link; `false` if there is none.
    pub(super) fn deliver_one(&mut self, link: Link, show: bool) -> bool {
        let Some(bytes) = self.links.get_mut(&link).and_then(VecDeque::pop_front) else {
            return false;
        };
        if show {
            writeln!(self.transcript, "  {}", wire::describe(&bytes)).unwrap();
        }
        let (from, to) = link;
        let from = MemberId(from);
        self.step(to, Event::Message { from, bytes });
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

    pub(super) fn sync_one(&mut self, id: u64) -> bool {
        let synced = self.member(id).disk.sync_one();
        if let Some(append) = synced {
            self.step(id, Event::Persisted(append));
        }
        synced.is_some()
    }

    /// Applies everything that waits to be applied.
    pub(super) fn apply_waiting(&mut self, id: u64) {
        let waiting = std::mem::take(&mut self.member(id).machine.waiting);
        if let Some(last) = waiting.back() {
            let index = last.index;
            let changes = waiting
                .iter()
                .filter_map(|entry| self.apply(id, entry))
                .collect();
            self.step(id, Event::Applied { index, changes });
        }
    }

    fn apply(&mut self, id: u64, entry: &Entry) -> Option<crate::consensus::ConfigChange> {
        let text = String::from_utf8_lossy(&entry.data).into_owned();
        match (text.as_str(), entry.kind) {
            ("", _) => self.note(id, format_args!("applies {}, which is empty", entry.index)),
            (text, EntryKind::Command) => {
                self.note(id, format_args!("applies {}: {text}", entry.index));
            }
            (text, EntryKind::Membership) => {
                self.note(
                    id,
                    format_args!("applies {}: membership, {text}", entry.index),
                );
            }
        }
        let member = self.member(id);
        let change = member.machine.apply(entry);
        if let Some((text, context)) = member.proposals.remove(&entry.index) {
            match context == entry.context {
                true => self.note(id, format_args!("answers {text}: done")),
                false => self.note(
                    id,
                    format_args!("answers {text}: another entry is in its place"),
                ),
            }
        }
        change
    }

    /// Carries out actions until there are none.
    pub(super) fn settle(&mut self, id: u64) {
        loop {
            let actions = self.member(id).consensus.actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                self.carry_out(id, action);
            }
            let member = self.member(id);
            if !member.disk.held {
                while self.sync_one(id) {}
            }
            if !self.member(id).machine.held {
                self.apply_waiting(id);
            }
        }
    }

    fn carry_out(&mut self, id: u64, action: Action) {
        match action {
            Action::Append {
                id: append,
                hard_state,
                entries,
            } => {
                let write = Write {
                    id: append,
                    hard_state,
                    entries,
                };
                let line = self.member(id).disk.describe(&write);
                self.note(id, line);
                self.member(id).disk.writes.push_back(write);
            }
            Action::Send(messages) => self.send(id, messages),
            Action::Apply(entries) => self.member(id).machine.waiting.extend(entries),
            Action::Proposed { token, index, term } => {
                let (text, context) = self.proposed.remove(&token).unwrap();
                self.note(id, format_args!("takes {text} as {index}@{term}"));
                self.member(id).proposals.insert(index, (text, context));
            }
            Action::Refused { token, refusal } => {
                let (text, _) = self.proposed.remove(&token).unwrap();
                self.note(id, format_args!("refuses {text}: {refusal}"));
            }
            Action::ReadReady { tokens, index, .. } => {
                self.note(
                    id,
                    format_args!("may serve {} once {index} is applied", names(&tokens)),
                );
            }
            Action::ReadRefused { tokens, refusal } => {
                self.note(id, format_args!("refuses {}: {refusal}", names(&tokens)));
            }
            Action::StateChanged(state) => self.note(id, describe_state(state)),
            Action::MakeSnapshot => self.make_snapshot(id),
            Action::SendSnapshot { to, message } => {
                let machine = self.member(id).snapshot.clone();
                let machine = machine.expect("a snapshot was made before one is sent");
                self.note(
                    id,
                    format_args!("sends {to} a snapshot of {}", machine.applied),
                );
                self.snapshots.insert((id, to.0), (message, machine));
            }
            Action::Diverged(divergence) => {
                self.note(id, format_args!("ends: {divergence}"));
            }
            Action::Install { base, hard_state } => {
                assert_eq!(
                    hard_state.commit, base.index,
                    "what is installed is committed"
                );
                let (index, term) = (base.index, base.term);
                self.note(
                    id,
                    format_args!("resets its log to {index}@{term} and begins anew"),
                );
                self.install(id, base, hard_state);
            }
        }
    }

    fn make_snapshot(&mut self, id: u64) {
        let machine = self.member(id).machine.clone();
        self.note(id, format_args!("makes a snapshot of {}", machine.applied));
        let made = Event::SnapshotMade(Some(machine.meta()));
        self.member(id).snapshot = Some(machine);
        // The caller is about to ask what follows.
        let stepped = self.member(id).consensus.step(made);
        stepped.expect("a snapshot of one's own is not refused");
    }

    /// Lets a snapshot that is on its way arrive, or get lost.
    pub(super) fn deliver_snapshot(&mut self, link: Link, arrives: bool) {
        let (message, machine) = self.snapshots.remove(&link).expect("one is on its way");
        let (from, to) = (MemberId(link.0), MemberId(link.1));
        if arrives {
            self.member(to.0).staged = Some(machine);
            self.step(to.0, Event::Snapshot { from, message });
        }
        self.step(from.0, Event::SnapshotSent { to, ok: arrives });
    }

    fn install(&mut self, id: u64, base: Position, hard_state: HardState) {
        let mut member = self.members.remove(&id).unwrap();
        member.machine = member.staged.take().expect("it was staged");
        assert_eq!(member.machine.meta().last, base);
        member.disk.writes.clear();
        member.disk.log.reset(base);
        member.disk.hard_state = hard_state;
        let member = member.restart(&self.config(id));
        self.members.insert(id, member);
    }

    /// Lets a member forget the log up to `index`.
    pub(super) fn truncate(&mut self, id: u64, index: Index) {
        self.step(id, Event::Truncate(index));
        self.member(id).disk.log.truncate_prefix(index);
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
        let mut line = describe_state(member.consensus.state());
        let whole = member.disk.whole_log();
        let terms: Vec<_> = whole.iter().map(|entry| entry.term.to_string()).collect();
        let (commit, applied) = (member.consensus.commit_index(), member.machine.applied);
        write!(
            line,
            "; log [{}], committed {commit}, applied {applied}",
            terms.join(" ")
        )
        .unwrap();
        if !member.machine.waiting.is_empty() {
            write!(line, ", {} handed out", member.machine.waiting.len()).unwrap();
        }
        if !member.disk.writes.is_empty() {
            let Index(on_disk) = member
                .disk
                .log
                .snapshot()
                .last()
                .map_or(Index(0), |e| e.index);
            write!(line, ", on disk {on_disk}").unwrap();
        }
        line
    }
}

fn names(tokens: &[ReadToken]) -> String {
    let names: Vec<_> = tokens
        .iter()
        .map(|token| format!("read {}", token.0))
        .collect();
    names.join(", ")
}

pub(super) fn describe_state(state: State) -> String {
    let term = state.term;
    match (state.role, state.leader) {
        (Role::Leader, _) => format!("leads term {term}"),
        (Role::Follower, Some(leader)) => format!("follows {leader} in term {term}"),
        (Role::Follower, None) => format!("knows no leader in term {term}"),
        (Role::PreCandidate, _) => format!("is a pre-candidate in term {term}"),
        (Role::Candidate, _) => format!("is a candidate in term {term}"),
    }
}
