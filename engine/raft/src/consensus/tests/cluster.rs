//! Members joined by a network that delivers, loses and holds what the script says.

use super::event::{Event, Said};
use super::member::{Disk, Machine, Member, Write, parse_change};
use super::wire;
use crate::consensus::{ConsensusConfig, Proposal, Role, State, without_promise};
use crate::input::Token;
use crate::output::{LogJob, Outbound, Output};
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
    /// What the proposals of the next event say.
    pub(super) proposed: Vec<(String, Bytes)>,
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
        match self.member(id).consensus.hear(event) {
            Ok(said) => self.note_said(id, said),
            Err(error) => self.note(id, format_args!("refuses a message: it {error}")),
        }
        self.settle(id);
    }

    fn note_said(&mut self, id: u64, said: Said) {
        let proposed = std::mem::take(&mut self.proposed);
        match said {
            Said::Nothing => {}
            Said::Proposed(Ok(first)) => self.note_proposed(id, first, proposed),
            Said::Proposed(Err(refusal)) => {
                for (text, _) in proposed {
                    self.note(id, format_args!("refuses {text}: {refusal}"));
                }
            }
            Said::MayRead(token, index) => self.note_may_read(id, &[token], index),
            Said::ReadsRefused(tokens, refusal) => {
                self.note(id, format_args!("refuses {}: {refusal}", names(&tokens)));
            }
        }
    }

    fn note_proposed(&mut self, id: u64, first: Index, proposed: Vec<(String, Bytes)>) {
        let term = self.member(id).consensus.hard_state().term;
        for (index, (text, context)) in (first.0..).map(Index).zip(proposed) {
            self.note(id, format_args!("takes {text} as {index}@{term}"));
            self.member(id).proposals.insert(index, (text, context));
        }
    }

    fn note_may_read(&mut self, id: u64, tokens: &[Token], index: Index) {
        self.note(
            id,
            format_args!("may serve {} once {index} is applied", names(tokens)),
        );
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

    fn proposal(&mut self, id: u64, text: &str) -> Proposal {
        self.contexts += 1;
        let context = format!("{id}/{}", self.contexts);
        self.proposed
            .push((text.to_owned(), Bytes::from(context.clone())));
        Proposal {
            context: context.into_bytes(),
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

    fn read_token(&mut self, id: u64, kind: &str) -> Token {
        self.reads += 1;
        self.note(id, format!("is asked for {kind} {}", self.reads));
        Token(self.reads)
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

    /// Carries out outputs until there are none.
    pub(super) fn settle(&mut self, id: u64) {
        loop {
            let outputs = self.member(id).consensus.outputs();
            if outputs.is_empty() {
                return;
            }
            for output in outputs {
                self.carry_out(id, output);
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

    fn carry_out(&mut self, id: u64, output: Output) {
        match output {
            Output::Log(LogJob::Append {
                id: append,
                hard_state,
                entries,
            }) => {
                let write = Write {
                    id: append,
                    hard_state,
                    entries,
                };
                let line = self.member(id).disk.describe(&write);
                self.note(id, line);
                self.member(id).disk.writes.push_back(write);
            }
            Output::Send(messages) => self.send(id, messages),
            Output::Apply(job) => self.member(id).machine.waiting.extend(job.entries),
            Output::MayRead { tokens, index } => self.note_may_read(id, &tokens, index),
            Output::StateChanged(state) => self.note(id, describe_state(state)),
            Output::MakeSnapshot => self.make_snapshot(id),
            Output::SendSnapshot { to, message } => {
                let machine = self.member(id).snapshot.clone();
                let machine = machine.expect("a snapshot was made before one is sent");
                self.note(
                    id,
                    format_args!("sends {to} a snapshot of {}", machine.applied),
                );
                self.snapshots.insert((id, to.0), (message, machine));
            }
            Output::Diverged(divergence) => {
                self.note(id, format_args!("ends: {divergence}"));
            }
            Output::Install { base, hard_state } => {
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
            other => panic!("consensus alone does not ask for {other:?}"),
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

fn names(tokens: &[Token]) -> String {
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
