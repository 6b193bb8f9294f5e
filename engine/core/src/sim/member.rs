//! One member: a machine with its disks and its clock, and the process on it, if there is one.
//!
//! The process is the shell around [`Replica`], [`LogWork`] and [`Applier`] that `dengine` builds from threads
//! and queues. Here each of its threads is an [`Actor`], which goes on when the simulation says so; between
//! any two of their turns the process may end.

mod housekeeping;
mod open;
mod serve;
mod snapshots;

use super::clock::Clock;
use super::guard::guard;
use super::invariants::Seen;
use super::plan::Fault;
use super::queue::{MILLI, Nanos};
use super::random::Random;
use super::shadow::Shadow;
use super::store::SimStore;
use super::surroundings::{Event, Surroundings};
use super::ticket::SimEnv;
use crate::consensus::{Role, State};
use crate::kv::{Collector, Flusher, LogicalHash, Member as MemberRecord, Membership, Reader};
use crate::log::memory::MemoryDisk;
use crate::log::{Disk, Log, LogReader};
use crate::replica::{Applier, ApplyJob, Effect, Input, Keeper, LogJob, LogWork, Replica};
use crate::snapshot::{SnapshotId, Staging};
use crate::types::{Index, MemberId};
pub(super) use serve::ReadJob;
pub(super) use snapshots::Parcel;
use snapshots::Snapshots;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How long members' ticks are.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// How many of them an election timeout is, at least.
pub(super) const ELECTION_TICKS: usize = 10;
/// By how much clocks may differ.
pub(super) const DRIFT_PERCENT_MAX: u32 = 10;

/// A thread of a process.
#[derive(Clone, Debug)]
pub(super) enum Actor {
    /// Takes in what queued for the replica.
    Replica,
    /// The same, and a tick.
    Tick,
    /// The log writer writes what queued.
    LogWrite,
    /// The log writer's sync is done.
    LogSync,
    /// The applier applies what queued.
    Apply,
    /// The flusher's flush is done.
    Flush,
    /// A caller that may read does.
    Serve(ReadJob),
    /// The keeper looks what a leader should propose.
    Keep,
    /// The collector removes a little.
    Collect,
    /// A checkpoint of the state machine is made.
    Checkpoint,
    /// Another member sent something about a snapshot.
    Parcel(MemberId, SnapshotId, Box<Parcel>),
    /// A snapshot was not received in time.
    GiveUpSending(MemberId, u64),
    /// The log is reset to the snapshot that was received.
    Install,
}

/// Why a process ended by itself.
pub(super) enum End {
    /// The disk or the store failed, and it said so.
    Failed(String),
    /// It panicked.
    Panicked(String),
    /// Its log and its state were replaced; it starts anew.
    Installed,
}

impl From<String> for End {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// How a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It runs, or can be started.
    Sound,
    /// Its disk has changed behind its back, and it may not have noticed.
    Damaged,
    /// It has lost what it promised to remember, and refuses to start.
    Lost,
}

pub(super) struct Member {
    pub(super) id: MemberId,
    pub(super) record: MemberRecord,
    pub(super) clock: Clock,
    pub(super) health: Health,
    disk: MemoryDisk,
    store: SimStore,
    /// Where a snapshot that comes is put together.
    staged: MemoryDisk,
    process: Option<Process>,
    boot: u64,
    paused_until: Nanos,
    slow_until: Nanos,
    /// The end of the log when it was last synced.
    promised: Index,
    /// A failure was injected that a panic may follow from: the log could not be read.
    reading_fails: bool,
}

struct Process {
    replica: Replica<LogReader<MemoryDisk>, SimEnv>,
    state: State,
    shadow: Shadow,
    inbox: VecDeque<Input<SimEnv>>,
    awake: bool,
    log: Log<MemoryDisk>,
    log_jobs: VecDeque<LogJob>,
    log_busy: bool,
    writing: LogWork,
    /// Whether what is being written must be on disk before anybody hears of it.
    syncing: bool,
    /// Up to where the newest segment was durable when its last durable batch was written.
    proven: (String, u32),
    durable: (String, u32),
    applier: Applier<SimStore, SimEnv>,
    apply_jobs: VecDeque<ApplyJob<SimEnv>>,
    apply_busy: bool,
    flusher: Flusher<SimStore>,
    unflushed_bytes: u64,
    flush_busy: bool,
    keeper: Keeper<SimStore>,
    collector: Collector<SimStore>,
    staging: Staging<MemoryDisk>,
    snapshots: Snapshots,
}

impl Member {
    /// A machine with an empty folder.
    pub(super) fn new(record: MemberRecord, clock: Clock) -> Self {
        Self {
            id: record.id,
            record,
            clock,
            health: Health::Sound,
            disk: MemoryDisk::new(),
            store: SimStore::default(),
            staged: MemoryDisk::new(),
            process: None,
            boot: 0,
            paused_until: 0,
            slow_until: 0,
            promised: Index(0),
            reading_fails: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    pub(super) fn boot(&self) -> u64 {
        self.boot
    }

    pub(super) fn disk(&self) -> &MemoryDisk {
        &self.disk
    }

    pub(super) fn store(&self) -> &SimStore {
        &self.store
    }

    pub(super) fn pause(&mut self, until: Nanos) {
        self.paused_until = self.paused_until.max(until);
    }

    pub(super) fn slow_down(&mut self, until: Nanos) {
        self.slow_until = self.slow_until.max(until);
    }

    /// Lets a read of the log fail, which ends a process.
    pub(super) fn fail_read(&mut self, after: u64) {
        self.reading_fails = true;
        self.disk.fail_read_after(after);
    }

    /// A segment of the log, and how far from its beginning damage cannot be mistaken for an unfinished write:
    /// something later proves that it was on disk.
    pub(super) fn old_part(&self, random: &mut Random) -> Option<(String, usize)> {
        let (newest, proven) = self.process.as_ref()?.proven.clone();
        let mut segments = self.disk.list().ok()?;
        segments.retain(|name| name.ends_with(".segment") && *name <= newest);
        let name = random.pick(&segments)?.clone();
        let bytes = match name == newest {
            true => proven as usize,
            false => self.disk.contents(&name).len(),
        };
        (bytes > 0).then_some((name, bytes))
    }

    /// Ends all faults of this machine.
    pub(super) fn repair(&mut self) {
        self.paused_until = 0;
        self.slow_until = 0;
        self.disk.set_space_bytes(None);
    }

    /// The process is gone, with all that only its memory held.
    pub(super) fn kill(&mut self, sim: &mut Surroundings) {
        if self.process.take().is_some() {
            self.boot += 1;
            self.store = self.store.reopen(&mut sim.random);
            self.paused_until = 0;
        }
    }

    /// The machine is without power for a moment, and forgets any part of what was not synced.
    pub(super) fn lose_power(&mut self, sim: &mut Surroundings) {
        self.kill(sim);
        let random = &mut sim.random;
        let kept = [0, 500_000, 900_000, 1_000_000][random.below(4) as usize];
        self.disk.power_loss(|| random.chance(kept));
        self.staged.power_loss(|| random.chance(kept));
    }

    /// The operating system writes some of what is not synced.
    pub(super) fn write_back(&mut self, sim: &mut Surroundings) {
        let random = &mut sim.random;
        self.disk.background_write(|| random.chance(500_000));
    }

    /// What the replica says of itself; nothing while there is none.
    pub(super) fn replica(&self) -> Option<&Replica<LogReader<MemoryDisk>, SimEnv>> {
        self.process.as_ref().map(|process| &process.replica)
    }

    pub(super) fn is_leader(&self) -> bool {
        self.process
            .as_ref()
            .is_some_and(|process| process.state.role == Role::Leader)
    }

    pub(super) fn state(&self) -> Option<State> {
        self.process.as_ref().map(|process| process.state)
    }

    pub(super) fn membership(&self) -> Option<Arc<Membership>> {
        self.process
            .as_ref()
            .map(|process| process.applier.machine().membership())
    }

    pub(super) fn reader(&self) -> Option<Reader<SimStore>> {
        self.process
            .as_ref()
            .map(|process| process.applier.machine().reader())
    }

    pub(super) fn applied(&self) -> Option<Index> {
        self.process
            .as_ref()
            .map(|process| process.applier.machine().applied().0)
    }

    /// Hands the replica something; lost if the process is not there.
    pub(super) fn give(&mut self, sim: &mut Surroundings, input: Input<SimEnv>) {
        let (id, boot) = (self.id, self.boot);
        if let Some(process) = &mut self.process {
            process.inbox.push_back(input);
            process.wake(sim, id, boot);
        }
    }

    /// Lets one thread go on.
    pub(super) fn act(&mut self, sim: &mut Surroundings, actor: Actor) {
        if sim.now < self.paused_until {
            let (member, boot) = (self.id, self.boot);
            let event = Event::Act {
                member,
                boot,
                actor,
            };
            return sim.queue.push(self.paused_until, event);
        }
        let end = match guard(|| self.turn(sim, actor)) {
            Ok(Ok(())) => return,
            Ok(Err(end)) => end,
            Err(message) => End::Panicked(message),
        };
        self.end(sim, end);
    }

    fn turn(&mut self, sim: &mut Surroundings, actor: Actor) -> Result<(), End> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let machine = Machine {
            id: self.id,
            boot: self.boot,
            clock: self.clock,
            slow: sim.now < self.slow_until,
        };
        match actor {
            Actor::Replica => return process.think(sim, machine),
            Actor::Tick => {
                process.inbox.push_back(Input::Tick);
                machine.plan(sim, self.clock.wait(TICK), Actor::Tick);
                return process.think(sim, machine);
            }
            Actor::LogWrite => {
                process.write_log(sim, machine)?;
                // Entries that were never committed may be replaced by fewer.
                self.promised = self.promised.min(process.log.reader().last_index());
            }
            Actor::LogSync => {
                process.sync_log(sim, machine)?;
                if process.syncing {
                    self.promised = process.log.reader().last_index();
                }
            }
            Actor::Apply => return process.apply(sim, machine),
            Actor::Flush => return process.flush(sim, machine),
            Actor::Serve(job) => process.serve(sim, machine, job),
            Actor::Keep => return process.keep(sim, machine),
            Actor::Collect => return process.collect(sim, machine),
            Actor::Checkpoint => process.make_snapshot(sim, machine),
            Actor::Parcel(from, id, parcel) => process.on_parcel(sim, machine, (from, id), *parcel),
            Actor::GiveUpSending(to, number) => process.give_up_sending(sim, machine, to, number),
            Actor::Install => return process.install(sim, machine),
        }
        Ok(())
    }

    /// The process ended by itself; whoever runs it starts it again.
    fn end(&mut self, sim: &mut Surroundings, end: End) {
        let id = self.id;
        match end {
            End::Failed(reason) => {
                sim.note(format_args!("{id} ends: {reason}"));
                sim.count("processes that ended by themselves");
            }
            End::Installed => self.promised = Index(0),
            End::Panicked(reason) if self.health == Health::Damaged || self.reading_fails => {
                sim.note(format_args!("{id} panics over its damaged log: {reason}"));
                self.reading_fails = false;
            }
            End::Panicked(reason) => {
                sim.fail(("no panic", format!("member {id}: {reason}")));
            }
        }
        self.kill(sim);
        let delay = sim.random.between(200 * MILLI, 2_000 * MILLI);
        sim.after(delay, Event::Restart(id));
    }
}

/// What a process knows of the machine under it.
#[derive(Clone, Copy)]
struct Machine {
    id: MemberId,
    boot: u64,
    clock: Clock,
    slow: bool,
}

impl Machine {
    fn plan(self, sim: &mut Surroundings, delay: Nanos, actor: Actor) {
        let (member, boot) = (self.id, self.boot);
        sim.after(
            delay,
            Event::Act {
                member,
                boot,
                actor,
            },
        );
    }

    /// How long a sync takes.
    fn sync_time(self, sim: &mut Surroundings) -> Nanos {
        let mean = sim.plan.sync * if self.slow { 200 } else { 1 };
        sim.random.spread(mean)
    }
}

impl Process {
    /// Lets the replica look at its inbox soon.
    fn wake(&mut self, sim: &mut Surroundings, member: MemberId, boot: u64) {
        if !std::mem::replace(&mut self.awake, true) {
            let delay = sim.random.spread(MILLI / 20);
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
    fn think(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        // As many as the thread may find before it asks what follows.
        let most = match sim.random.below(4) {
            0 => 1,
            _ => self.inbox.len(),
        };
        for input in self.inbox.drain(..most.min(self.inbox.len())) {
            self.replica.handle(input, machine.clock.read(sim.now));
        }
        for effect in self.replica.effects(machine.clock.read(sim.now)) {
            self.carry_out(sim, machine, effect)?;
        }
        self.awake = false;
        if !self.inbox.is_empty() {
            self.wake(sim, machine.id, machine.boot);
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        sim: &mut Surroundings,
        machine: Machine,
        effect: Effect<SimEnv>,
    ) -> Result<(), End> {
        let member = machine.id;
        match effect {
            Effect::Log(job) => {
                self.note_append(sim, member, &job);
                self.log_jobs.push_back(job);
                self.plan_log(sim, machine);
            }
            Effect::Apply(job) => {
                if let ApplyJob::Entries(entries) = &job {
                    let term = self.replica.consensus().state().term;
                    sim.see(&Seen::Commits {
                        member,
                        term,
                        entries,
                    });
                    self.note_expiries(sim, entries);
                }
                self.apply_jobs.push_back(job);
                self.plan_apply(sim, machine);
            }
            Effect::Send(messages) => {
                for message in messages {
                    sim.send((member, message.to), &message.bytes);
                }
            }
            Effect::StateChanged(state) => self.on_state(sim, member, state),
            Effect::PeerRefused(error) => {
                sim.count("peers' messages refused");
                sim.note(format_args!("{member} refuses a message: {error}"));
            }
            Effect::MakeSnapshot => {
                let delay = machine.sync_time(sim) * 10;
                machine.plan(sim, delay, Actor::Checkpoint);
            }
            Effect::SendSnapshot { to, message } => self.send_snapshot(sim, machine, to, message),
            Effect::DiscardStaged => self.discard_staged()?,
            Effect::Install { base, hard_state } => {
                self.plan_install(sim, machine, base, hard_state);
            }
        }
        Ok(())
    }

    fn note_append(&mut self, sim: &mut Surroundings, member: MemberId, job: &LogJob) {
        let LogJob::Append {
            entries,
            hard_state,
            ..
        } = job
        else {
            return;
        };
        if let Some(hard) = hard_state {
            let (term, vote, commit) = (hard.term, hard.vote, hard.commit);
            sim.note(format_args!(
                "{member} notes term {term}, vote {vote}, commit {commit}"
            ));
        }
        if hard_state.is_some_and(|hard| hard.vote != MemberId(0) && hard.vote != member) {
            crash_over_vote(sim, member);
        }
        if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
            let (from, to, term) = (first.index, last.index, last.term);
            sim.note(format_args!(
                "{member} appends {from} to {to} of term {term}"
            ));
        }
        // As of this action: the state that was reported may be older.
        let (state, log) = (self.replica.consensus().state(), &self.shadow);
        sim.see(&Seen::Appends {
            member,
            state,
            log,
            entries,
        });
        self.shadow.append(entries);
    }

    fn on_state(&mut self, sim: &mut Surroundings, member: MemberId, state: State) {
        let (role, term) = (state.role, state.term);
        let leader = state.leader.unwrap_or_default();
        sim.note(format_args!(
            "{member} is {role:?} in term {term}, leader {leader}"
        ));
        if role == Role::Leader && self.state.role != Role::Leader {
            sim.count("elections");
        }
        self.state = state;
        let log = &self.shadow;
        sim.see(&Seen::State { member, state, log });
    }

    fn plan_log(&mut self, sim: &mut Surroundings, machine: Machine) {
        if !self.log_jobs.is_empty() && !std::mem::replace(&mut self.log_busy, true) {
            let delay = sim.random.spread(MILLI / 50);
            machine.plan(sim, delay, Actor::LogWrite);
        }
        // The reset is the last thing that the log writer does.
        if self.snapshots.is_installing() && !std::mem::replace(&mut self.log_busy, true) {
            machine.plan(sim, MILLI, Actor::Install);
        }
    }

    fn write_log(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        self.writing = LogWork::collect(self.log_jobs.drain(..));
        let must_sync = self.writing.must_sync(self.log.hard_state());
        self.writing
            .write(&mut self.log)
            .map_err(|e| e.to_string())?;
        // Without need, it syncs now and then.
        self.syncing = must_sync || !sim.plan.memory_first || sim.random.chance(50_000);
        let delay = if self.syncing {
            machine.sync_time(sim)
        } else {
            MILLI / 100
        };
        machine.plan(sim, delay, Actor::LogSync);
        Ok(())
    }

    fn sync_log(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        if self.syncing {
            self.log.sync().map_err(|e| e.to_string())?;
            self.proven = std::mem::replace(&mut self.durable, self.log.durable_to());
        }
        if let Some(id) = self.writing.persisted() {
            sim.note(format_args!("{} has append {} on disk", machine.id, id.0));
            self.inbox.push_back(Input::Persisted(id));
            self.wake(sim, machine.id, machine.boot);
        }
        self.writing
            .tidy(&mut self.log)
            .map_err(|e| e.to_string())?;
        self.log_busy = false;
        self.plan_log(sim, machine);
        Ok(())
    }

    fn plan_apply(&mut self, sim: &mut Surroundings, machine: Machine) {
        if !self.apply_jobs.is_empty() && !std::mem::replace(&mut self.apply_busy, true) {
            let delay = sim.random.spread(sim.plan.apply);
            machine.plan(sim, delay, Actor::Apply);
        }
    }

    fn apply(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        let jobs = std::iter::from_fn(|| self.apply_jobs.pop_front());
        let range = self.applier.work(jobs).map_err(|e| e.to_string())?;
        self.apply_busy = false;
        self.plan_apply(sim, machine);
        let Some(range) = range else { return Ok(()) };
        let (member, index) = (machine.id, range.index);
        sim.note(format_args!(
            "{member} has applied {index}, revision {}",
            range.revision
        ));
        let (revision, now) = (range.revision, sim.now);
        sim.see(&Seen::Reaches { revision, now });
        if index.0.is_multiple_of(8) {
            self.show_hash(sim, member);
        }
        if let Some(membership) = &range.membership {
            sim.note(format_args!("{member} knows {}", names(membership)));
            sim.see(&Seen::Members(membership));
        }
        self.unflushed_bytes += range.bytes;
        self.plan_flush(sim, machine);
        self.inbox.push_back(Input::Applied(range));
        self.wake(sim, machine.id, machine.boot);
        Ok(())
    }

    /// Members at one index must come to one hash.
    fn show_hash(&self, sim: &mut Surroundings, member: MemberId) {
        let found = self.applier.machine().reader().logical_hash();
        let LogicalHash {
            applied_index: index,
            hash,
            ..
        } = found.expect("memory can be read");
        sim.see(&Seen::Applied {
            member,
            index,
            hash,
        });
    }

    fn plan_flush(&mut self, sim: &mut Surroundings, machine: Machine) {
        let due = self.unflushed_bytes >= sim.plan.flush_bytes;
        if due && !std::mem::replace(&mut self.flush_busy, true) {
            self.unflushed_bytes = 0;
            let delay = machine.sync_time(sim) * 10;
            machine.plan(sim, delay, Actor::Flush);
        }
    }

    fn flush(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        let index = self.flusher.flush().map_err(|e| e.to_string())?;
        sim.note(format_args!(
            "{} has flushed what is applied up to {index}",
            machine.id
        ));
        sim.count("flushes");
        self.flush_busy = false;
        self.inbox.push_back(Input::Flushed(index));
        self.wake(sim, machine.id, machine.boot);
        Ok(())
    }
}

fn names(membership: &Membership) -> String {
    let name = |m: &MemberRecord| match m.voter {
        true => m.id.to_string(),
        false => format!("learner {}", m.id),
    };
    let names: Vec<_> = membership.members.values().map(name).collect();
    names.join(", ")
}

/// Of all moments to lose power, the one in which a vote is given but perhaps not yet on disk is among the worst.
fn crash_over_vote(sim: &mut Surroundings, member: MemberId) {
    let powerless = sim
        .plan
        .faults
        .iter()
        .any(|(fault, _)| *fault == Fault::PowerLoss);
    if powerless && sim.random.chance(200_000) {
        let delay = sim.random.below(sim.plan.sync);
        sim.then(delay, move |world| world.crash(member));
    }
}
