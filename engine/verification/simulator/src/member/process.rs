//! The process on a machine: what its threads share, and the replica's own thread.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dengine_kv::{Collector, CommandVersion, Flusher};
use dengine_log::memory::MemoryDisk;
use dengine_log::{Log, LogReader, Piece};
use dengine_raft::consensus::{ReplicaState, Role};
use dengine_raft::replica::{
    Announcement, AppliedRange, Applier, Keeper, LogWriter, Replica, RequestError,
};
use dengine_raft::{ApplyJob, HandOver, Input, LogJob, Output};
use dengine_snapshot::Staging;
use dengine_types::{Entry, MemberId, Moment};

use super::hub::Hub;
use super::peers::Peer;
use super::snapshots::Snapshots;
use super::{Actor, End, Machine};
use crate::delayed_votes;
use crate::invariants::Seen;
use crate::queue::{MILLI, Nanos};
use crate::settings::MemberSettings;
use crate::shadow::Shadow;
use crate::store::SimStore;
use crate::surroundings::{Event, Surroundings};
use crate::ticket::Callers;

pub(super) struct Process {
    pub(super) replica: Replica<LogReader<MemoryDisk>>,
    pub(super) state: ReplicaState,
    pub(super) shadow: Shadow,
    pub(super) inbox: VecDeque<Input>,
    pub(super) callers: Callers,
    /// What others announced that the replica was not told yet.
    pub(super) hellos: BTreeMap<MemberId, CommandVersion>,
    pub(super) awake: bool,
    /// When the replica wanted to be woken, as last planned.
    pub(super) wakes_at: Option<Moment>,
    pub(super) log: Log<MemoryDisk>,
    pub(super) log_jobs: VecDeque<LogJob>,
    pub(super) log_busy: bool,
    pub(super) log_wakes_at: Nanos,
    /// Of the next segment's file, what another thread fills.
    pub(super) piece: Option<Piece<MemoryDisk>>,
    pub(super) log_writer: LogWriter,
    /// Up to where the newest segment was durable when its last durable batch was written.
    pub(super) proven: (String, u32),
    pub(super) durable: (String, u32),
    pub(super) applier: Applier<SimStore>,
    pub(super) apply_jobs: VecDeque<ApplyJob>,
    pub(super) apply_busy: bool,
    pub(super) flusher: Flusher<SimStore>,
    pub(super) unflushed_bytes: u64,
    pub(super) flush_busy: bool,
    pub(super) keeper: Keeper<SimStore>,
    pub(super) collector: Collector<SimStore>,
    pub(super) hub: Hub,
    pub(super) staging: Staging<MemoryDisk>,
    pub(super) snapshots: Snapshots,
    pub(super) peers: BTreeMap<MemberId, Peer>,
    /// How many ticks it has seen.
    pub(super) ticks: u64,
    /// For so many of them it may not stand for election, unless it hears of a leader.
    pub(super) hesitates: u64,
    /// How long its ticks are.
    pub(super) tick: Duration,
    /// What it was started with.
    pub(super) settings: MemberSettings,
    /// What the state machine has applied and the replica has not been told yet.
    pub(super) untold: Vec<AppliedRange>,
}

impl Process {
    /// Lets the replica look at its inbox soon.
    pub(super) fn wake(&mut self, sim: &mut Surroundings, member: MemberId, boot: u64) {
        if !std::mem::replace(&mut self.awake, true) {
            let delay = sim.begins_after(MILLI / 20);
            let actor = Actor::Replica;
            sim.after(
                delay,
                Event::Act {
                    member,
                    boot,
                    actor,
                },
            );
        }
    }

    /// One round of the replica's thread.
    pub(super) fn think(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        for (member, reads_max) in std::mem::take(&mut self.hellos) {
            let announced = Input::Announced {
                member,
                by: Announcement::Hello,
                reads_max,
            };
            self.replica.handle(announced, machine.clock.read(sim.now));
        }
        // As many as the thread may find before it asks what follows.
        let most = match sim.random.below(4) {
            0 => 1,
            _ => self.inbox.len(),
        };
        for input in self.inbox.drain(..most.min(self.inbox.len())) {
            self.replica.handle(input, machine.clock.read(sim.now));
        }
        if self.hub.is_listened_to() {
            let awaited = Input::CommitsAwaited;
            self.replica.handle(awaited, machine.clock.read(sim.now));
        }
        let now = sim.now;
        let is_gone = |token| self.callers.is_gone(token, now);
        let passed_on = self.replica.counts().writes_passed_on;
        for output in self.replica.outputs(machine.clock.read(now), &is_gone) {
            self.carry_out(sim, machine, output)?;
        }
        if self.replica.counts().writes_passed_on > passed_on {
            sim.count("turns that passed writes on");
        }
        self.awake = false;
        self.plan_wake(sim, machine);
        if !self.inbox.is_empty() {
            self.wake(sim, machine.id, machine.boot);
        }
        Ok(())
    }

    /// Lets the replica look what is due when it said that something would be.
    fn plan_wake(&mut self, sim: &mut Surroundings, machine: Machine) {
        let wakes_at = self.replica.wakes_at();
        if let Some(at) = wakes_at.filter(|_| wakes_at != self.wakes_at) {
            let left = at.since(machine.clock.read(sim.now));
            machine.plan(sim, machine.clock.wait(left), Actor::Replica);
        }
        self.wakes_at = wakes_at;
    }

    fn carry_out(
        &mut self,
        sim: &mut Surroundings,
        machine: Machine,
        output: Output,
    ) -> Result<(), End> {
        let member = machine.id;
        match output {
            Output::Log(job) => {
                self.note_append(sim, member, &job);
                self.log_jobs.push_back(job);
                self.plan_log(sim, machine);
            }
            Output::Apply(job) => {
                self.note_commits(sim, member, &job.entries);
                self.apply_jobs.push_back(job);
                self.plan_apply(sim, machine);
            }
            Output::Send(messages) => self.send(sim, machine, messages),
            Output::MayRead { tokens, .. } => {
                tokens.into_iter().for_each(|it| self.callers.may_read(it));
            }
            Output::Refused { tokens, error } => {
                for token in tokens {
                    self.callers.refuse(token, error.clone());
                }
            }
            Output::Lost(token) => self.callers.refuse(token, RequestError::lost()),
            Output::Forgotten(token) => self.callers.forget(token),
            Output::Lease { token, answer } => self.callers.lease(token, answer),
            Output::Transferred { token, .. } => self.callers.transferred(token),
            Output::HandsOver(HandOver { to, own, others }) => {
                sim.count("hand-overs for a slow disk");
                sim.note(format_args!(
                    "{member} hands over to {to}: its disk takes {own:?}, others {others:?}"
                ));
            }
            Output::StateChanged(state) => self.on_state(sim, member, state),
            Output::PeerRefused(error) => {
                sim.count("peers' messages refused");
                sim.note(format_args!("{member} refuses a message: {error}"));
            }
            Output::Flush => self.begin_flush(sim, machine),
            Output::MakeSnapshot => {
                let delay = machine.sync_time(sim) * 10;
                machine.plan(sim, delay, Actor::Checkpoint);
            }
            Output::SendSnapshot { to, message } => self.send_snapshot(sim, machine, to, message),
            Output::DiscardStaged => self.discard_staged()?,
            Output::Diverged(divergence) => return Err(End::Diverged(divergence)),
            Output::Install { base, hard_state } => {
                self.plan_install(sim, machine, base, hard_state);
            }
        }
        Ok(())
    }

    fn note_commits(&self, sim: &mut Surroundings, member: MemberId, entries: &[Entry]) {
        let term = self.replica.consensus().state().term;
        let entries = sim.restored.commits(member, term, entries);
        if entries.is_empty() {
            return;
        }
        sim.progress.committed(&entries);
        sim.see(&Seen::Commits {
            member,
            term,
            entries: &entries,
        });
        self.note_expiries(sim, &entries);
    }

    /// Whoever lost writes leaves it to others to stand for election, for a while.
    fn check_hesitation(&mut self, sim: &mut Surroundings, member: MemberId, state: ReplicaState) {
        if state.leader.is_some() {
            self.hesitates = 0;
        }
        let stands = matches!(state.role, Role::PreCandidate | Role::Candidate);
        let alone = self.replica.membership().voters().count() == 1;
        if stands && !alone && self.ticks < self.hesitates {
            let (ticks, least) = (self.ticks, self.hesitates);
            let what = format!("member {member} stands after {ticks} ticks, not {least}");
            sim.fail(("who lost writes waits", what));
        }
    }

    fn on_state(&mut self, sim: &mut Surroundings, member: MemberId, state: ReplicaState) {
        let (role, term) = (state.role, state.term);
        let leader = state.leader.unwrap_or_default();
        sim.note(format_args!(
            "{member} is {role:?} in term {term}, leader {leader}"
        ));
        if role == Role::Leader && self.state.role != Role::Leader {
            sim.count("elections");
            sim.restored.leads(term);
        }
        if role == Role::Candidate && term != self.state.term {
            delayed_votes::over_candidacy(sim, member);
        }
        self.check_hesitation(sim, member, state);
        self.state = state;
        let log = &self.shadow;
        sim.see(&Seen::State { member, state, log });
    }
}
