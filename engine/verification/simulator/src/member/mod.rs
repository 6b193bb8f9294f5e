//! One member: a machine with its disks and its clock, and the process on it, if there is one.
//!
//! The process is the shell around [`Replica`], [`LogWriter`](dengine_raft::replica::LogWriter) and
//! [`Applier`](dengine_raft::replica::Applier) that `dengine` builds from threads and queues. Here
//! each of its threads is an [`Actor`], which goes on when the simulation says so; between any two
//! of their turns the process may end.

mod applier;
mod housekeeping;
mod hub;
mod log_writer;
mod open;
mod peers;
mod process;
mod serve;
mod snapshots;
mod waiting;

use std::sync::Arc;

use dengine_data_dir::marks::{Marks, PowerMark, Unfit};
use dengine_kv::{CommandVersion, Member as MemberRecord, Membership, Reader};
use dengine_log::memory::MemoryDisk;
use dengine_log::{Disk, LogError, LogReader};
use dengine_raft::consensus::{ReplicaState, Role};
use dengine_raft::replica::Replica;
use dengine_raft::{Divergence, Input};
use dengine_snapshot::{NotStaged, SnapshotId};
use dengine_types::{Index, MemberId, Term};

use super::clock::Clock;
use super::folders::SimFolders;
use super::guard::guard;
use super::queue::{MILLI, Nanos};
use super::random::Random;
use super::shadow::Shadow;
use super::store::SimStore;
use super::surroundings::{Event, Surroundings};
use super::ticket::{Answered, Asker, Request, Ticket};
pub(super) use hub::{WatchMessage, all_keys};
use process::Process;
pub(super) use serve::ReadJob;
pub(super) use snapshots::Parcel;

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
    /// The log writer has waited long enough.
    LogWake,
    /// The log writer's sync is done.
    LogSync,
    /// A piece of the next segment's file is filled.
    LogFill,
    /// The applier applies what queued.
    Apply,
    /// The applier tells how far it is.
    TellApplied,
    /// The stream to a member takes another frame, or is opened.
    Transmit(MemberId),
    /// A member answers the Hello of a stream to it; the number of its start goes with it.
    Ack(MemberId, u64),
    /// The flusher's flush is done.
    Flush,
    /// A caller that may read does.
    Serve(ReadJob),
    /// The keeper looks what a leader should propose.
    Keep,
    /// The collector removes a little.
    Collect,
    /// The hub reads a page for the watches.
    Hub,
    /// A stream of watches goes on.
    Stream(u64),
    /// The streams tell of progress.
    Look,
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
    Panicked(String),
    /// Its log and its state were replaced; it starts again.
    Installed,
    /// They were to be, and are not: it starts again as it was.
    GoesOn(NotStaged),
    /// Its history was given up, and it says so.
    Diverged(Divergence),
}

impl From<String> for End {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// No disk is to blame for a batch that breaks a rule of the log.
impl From<LogError> for End {
    fn from(error: LogError) -> Self {
        match error {
            LogError::InvalidBatch(_) => Self::Panicked(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
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
    /// It may have lost what it acknowledged (durability `memory-first`), and refuses to start.
    Suspect,
}

pub(super) struct Member {
    pub(super) id: MemberId,
    pub(super) record: MemberRecord,
    pub(super) clock: Clock,
    pub(super) health: Health,
    /// The newest version of a command that the program reads which is installed here.
    pub(super) reads_max: CommandVersion,
    /// Of the log.
    disk: MemoryDisk,
    /// Of the state, and of snapshots that are to replace it.
    folders: SimFolders,
    process: Option<Process>,
    /// What processes that ended had answered.
    answers: Vec<(Asker, Answered)>,
    boot: u64,
    paused_until: Nanos,
    slow_until: Nanos,
    /// Until then nothing that is asked of the log's disk comes to an end.
    hangs_until: Nanos,
    /// The end of the log when it was last synced.
    promised: Index,
    /// A failure was injected that a panic may follow from: the log could not be read.
    reading_fails: bool,
    /// Since when there is no process.
    down_since: Nanos,
    /// What its folder says of how it ended.
    marks: Marks,
    /// How often its machine lost power.
    power_losses: u64,
    /// What the log was when it was last synced, less what was replaced since; known only of
    /// `memory-first` members.
    synced: Shadow,
    /// The next start takes the newest of the plan's timers, whichever it would take otherwise.
    newest_timers: bool,
}

impl Member {
    /// A machine with an empty folder.
    pub(super) fn new(record: MemberRecord, clock: Clock, reads_max: CommandVersion) -> Self {
        Self {
            id: record.id,
            record,
            clock,
            health: Health::Sound,
            reads_max,
            disk: MemoryDisk::new(),
            folders: SimFolders::default(),
            process: None,
            answers: Vec::new(),
            boot: 0,
            paused_until: 0,
            slow_until: 0,
            hangs_until: 0,
            promised: Index(0),
            reading_fails: false,
            down_since: 0,
            marks: Marks::default(),
            power_losses: 0,
            synced: Shadow::default(),
            newest_timers: false,
        }
    }

    /// It is restarted because its timers were changed, if they are being changed.
    pub(super) fn take_newest_timers(&mut self) {
        self.newest_timers = true;
    }

    fn machine(&self, now: Nanos) -> Machine {
        Machine {
            id: self.id,
            boot: self.boot,
            clock: self.clock,
            slow: now < self.slow_until,
        }
    }

    fn process_mut(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }

    pub(super) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// For how long it has not been up; 0 if it is.
    pub(super) fn down_for(&self, now: Nanos) -> Nanos {
        match self.is_up() {
            true => 0,
            false => now - self.down_since,
        }
    }

    /// The stream to another member broke.
    pub(super) fn stream_broke(&mut self, sim: &mut Surroundings, to: MemberId) {
        let machine = self.machine(sim.now);
        if let Some(process) = &mut self.process {
            process.stream_broke(sim, machine, to);
        }
    }

    pub(super) fn boot(&self) -> u64 {
        self.boot
    }

    pub(super) fn disk(&self) -> &MemoryDisk {
        &self.disk
    }

    /// Lets the next flush of the state fail.
    pub(super) fn fail_flush(&self) {
        self.folders.fail_flush();
    }

    pub(super) fn pause(&mut self, until: Nanos) {
        self.paused_until = self.paused_until.max(until);
    }

    pub(super) fn slow_down(&mut self, until: Nanos) {
        self.slow_until = self.slow_until.max(until);
    }

    /// The log's disk hangs. What is asked of the member besides, it answers.
    pub(super) fn hang(&mut self, until: Nanos) {
        self.hangs_until = until;
    }

    pub(super) fn hangs(&self, now: Nanos) -> bool {
        now < self.hangs_until
    }

    /// Lets a read of the log fail, which ends a process.
    pub(super) fn fail_read(&mut self, after: u64) {
        self.reading_fails = true;
        self.disk.fail_read_after(after);
    }

    /// A segment of the log, and how far from its beginning damage cannot be mistaken for an
    /// unfinished write: something later proves that it was on disk.
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
    pub(super) fn repair(&mut self, stays_full: bool) {
        self.paused_until = 0;
        self.slow_until = 0;
        self.hangs_until = 0;
        if !stays_full {
            self.disk.set_space_bytes(None);
        }
    }

    /// What the kernel calls the machine's present start.
    fn boot_id(&self) -> String {
        format!("start {}", self.power_losses)
    }

    /// The process is gone, with all that only its memory held.
    pub(super) fn kill(&mut self, sim: &mut Surroundings) {
        if let Some(mut process) = self.process.take() {
            self.answers.extend(process.callers.take_answers());
            self.boot += 1;
            self.down_since = sim.now;
            sim.programs.ended(self.id);
            self.folders.kill(&mut sim.random);
            self.paused_until = 0;
            if self.disk.has_unwritten() && sim.random.chance(500_000) {
                self.disk.evict();
            }
        }
    }

    /// It is told to stop, and says at its end that everything is on its disk. Its machine may be
    /// started again then.
    pub(super) fn stop(&mut self, sim: &mut Surroundings) {
        let Some(process) = &mut self.process else {
            return;
        };
        let synced = process.log.sync();
        mark_loss(&mut self.marks, process, &synced);
        if synced.is_ok() {
            self.note_synced(sim);
            self.marks.power = self.marks.power.take().map(PowerMark::ended);
            sim.count("processes that ended in good order");
        }
        self.kill(sim);
        if sim.random.chance(500_000) {
            self.lose_power(sim);
        }
    }

    /// All that its log has is on its disk.
    fn note_synced(&mut self, sim: &Surroundings) {
        if let Some(process) = &self.process {
            self.promised = process.log.reader().last_index();
            if sim.plan.memory_first {
                self.synced = Shadow::of(&process.log.reader());
            }
        }
    }

    /// The machine is without power for a moment, and forgets any part of what was not synced.
    pub(super) fn lose_power(&mut self, sim: &mut Surroundings) {
        self.kill(sim);
        let random = &mut sim.random;
        let kept = [0, 500_000, 900_000, 1_000_000][random.below(4) as usize];
        self.disk.power_loss(|| random.chance(kept));
        self.folders.lose_power(random);
        self.power_losses += 1;
    }

    /// The log is gone, perhaps with the state. What says whose folder it is, is still there.
    pub(super) fn lose_disk(&mut self, sim: &mut Surroundings) {
        self.kill(sim);
        self.disk = new_disk(sim);
        if sim.random.chance(500_000) {
            self.folders = SimFolders::default();
        }
        self.promised = Index(0);
        self.synced = Shadow::default();
        self.health = Health::Damaged;
    }

    /// What `dengine recover --accept-lost-writes` does to its folder. Returns whether it had
    /// anything to do.
    pub(super) fn accept_lost_writes(&mut self) -> bool {
        let boot_id = self.boot_id();
        let was_suspect = self.marks.check(&boot_id) == Err(Unfit::Suspect);
        if was_suspect {
            self.marks.power = Some(PowerMark::loss_accepted(&boot_id));
            self.health = match self.health {
                Health::Suspect => Health::Sound,
                other => other,
            };
        }
        was_suspect
    }

    /// Whether nothing is wrong with what its disk holds, as far as the simulator knows; it may not
    /// have noticed itself.
    pub(super) fn is_sound(&self) -> bool {
        self.health == Health::Sound && self.marks.check(&self.boot_id()).is_ok()
    }

    /// Whether its disk has this entry of this term, whatever became of its memory.
    pub(super) fn has_synced(&self, index: Index, term: Term) -> bool {
        let base = self.synced.base().index;
        self.health != Health::Lost && (index < base || self.synced.term(index) == Some(term))
    }

    /// The operating system writes some of what is not synced.
    pub(super) fn write_back(&mut self, sim: &mut Surroundings) {
        let random = &mut sim.random;
        self.disk.background_write(|| random.chance(500_000));
    }

    /// What the replica says of itself; nothing while there is none.
    pub(super) fn replica(&self) -> Option<&Replica<LogReader<MemoryDisk>>> {
        self.process.as_ref().map(|process| &process.replica)
    }

    pub(super) fn is_leader(&self) -> bool {
        self.process
            .as_ref()
            .is_some_and(|process| process.state.role == Role::Leader)
    }

    /// Whether what is committed here contradicts its leader, which it has never known as a voter:
    /// an accepted loss took that leader's promotion. It takes nothing from it then, and does not
    /// end. The runbook has it replaced.
    pub(super) fn is_left_behind(&self) -> bool {
        let leader = self.state().and_then(|state| state.leader);
        let votes = |id| {
            self.membership()
                .is_some_and(|it| it.voters().any(|voter| voter.id == id))
        };
        let contradicted = |it: &Replica<_>| it.consensus().is_contradicted();
        self.replica().is_some_and(contradicted) && leader.is_some_and(|id| !votes(id))
    }

    /// Whether it may answer reads by its lease.
    pub(super) fn holds_lease(&self, now: Nanos) -> bool {
        let replica = self.replica();
        replica.is_some_and(|it| it.consensus().holds_lease(self.clock.read(now)))
    }

    /// Whether a lease read need not ask the replica.
    pub(super) fn lease_covers(&self, now: Nanos) -> bool {
        let replica = self.replica();
        replica.is_some_and(|it| it.lease().covers(|| self.clock.read(now)))
    }

    pub(super) fn state(&self) -> Option<ReplicaState> {
        self.process.as_ref().map(|process| process.state)
    }

    /// Where its log ends, as far as it is written; nothing while there is no process.
    pub(super) fn log_end(&self) -> Option<Index> {
        let process = self.process.as_ref();
        process.map(|process| process.log.reader().last_index())
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
    pub(super) fn give(&mut self, sim: &mut Surroundings, input: Input) {
        let (id, boot) = (self.id, self.boot);
        if let Some(process) = &mut self.process {
            process.inbox.push_back(input);
            process.wake(sim, id, boot);
        }
    }

    /// Asks the replica for something; lost if the process is not there.
    pub(super) fn ask(&mut self, sim: &mut Surroundings, request: Request, ticket: Ticket) {
        if let Some(process) = &mut self.process {
            let token = process.replica.name();
            let input = process.callers.ask(token, request, ticket);
            self.give(sim, input);
        }
    }

    /// What the process has answered since the last call.
    pub(super) fn take_answers(&mut self) -> Vec<(Asker, Answered)> {
        let mut answers = std::mem::take(&mut self.answers);
        if let Some(process) = &mut self.process {
            answers.extend(process.callers.take_answers());
        }
        answers
    }

    /// The process has looked how much of its disk is free.
    pub(super) fn look_at_space(&mut self, sim: &mut Surroundings, is_low: bool) {
        if let Some(process) = &mut self.process {
            process.log_writer.save_space(is_low);
        }
        self.give(sim, Input::LowOnSpace(is_low));
    }

    /// Another member says Hello; the replica hears of it before the message that comes behind.
    pub(super) fn greet(&mut self, from: MemberId, reads_max: CommandVersion) {
        if let Some(process) = &mut self.process {
            process.hellos.insert(from, reads_max);
        }
    }

    /// Lets one thread go on.
    pub(super) fn act(&mut self, sim: &mut Surroundings, actor: Actor) {
        let until = match actor {
            Actor::LogWrite | Actor::LogSync | Actor::LogFill => self.hangs_until,
            _ => 0,
        };
        let until = until.max(self.paused_until);
        if sim.now < until {
            let (member, boot) = (self.id, self.boot);
            let event = Event::Act {
                member,
                boot,
                actor,
            };
            return sim.queue.push(until, event);
        }
        let end = match guard(|| self.turn(sim, actor)) {
            Ok(Ok(())) => return,
            Ok(Err(end)) => end,
            Err(message) => End::Panicked(message),
        };
        self.end(sim, end);
    }

    fn turn(&mut self, sim: &mut Surroundings, actor: Actor) -> Result<(), End> {
        let machine = self.machine(sim.now);
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        match actor {
            Actor::Replica => return process.think(sim, machine),
            Actor::Tick => {
                process.ticks += 1;
                process.inbox.push_back(Input::Tick);
                machine.plan(sim, self.clock.wait(process.tick), Actor::Tick);
                return process.think(sim, machine);
            }
            Actor::LogWrite | Actor::LogWake => {
                let written = match actor {
                    Actor::LogWrite => process.write_log(sim, machine),
                    _ => process.wake_log(sim, machine),
                };
                mark_loss(&mut self.marks, process, &written);
                written?;
                // Entries that were never committed may be replaced by fewer.
                self.promised = self.promised.min(process.log.reader().last_index());
                self.synced.keep_what_is_in(&process.log.reader());
            }
            Actor::LogSync => {
                let synced = process.sync_log(sim, machine);
                mark_loss(&mut self.marks, process, &synced);
                synced?;
                self.note_synced(sim);
            }
            Actor::LogFill => {
                let filled = process.fill_piece(machine.clock.read(sim.now));
                mark_loss(&mut self.marks, process, &filled);
                filled?;
            }
            Actor::Apply => return process.apply(sim, machine),
            Actor::TellApplied => process.tell_applied(sim, machine),
            Actor::Transmit(to) => process.go_on_sending(sim, machine, to),
            Actor::Ack(by, start) => process.on_ack(sim, machine, by, start),
            Actor::Flush => return process.flush(sim, machine),
            Actor::Serve(job) => process.serve(sim, machine, job),
            Actor::Keep => return process.keep(sim, machine),
            Actor::Collect => return process.collect(sim, machine),
            Actor::Hub => process.follow(sim, machine),
            Actor::Stream(id) => process.stream(sim, machine, id),
            Actor::Look => process.look(sim, machine),
            Actor::Checkpoint => process.make_snapshot(sim, machine),
            Actor::Parcel(from, id, parcel) => process.on_parcel(sim, machine, (from, id), *parcel),
            Actor::GiveUpSending(to, number) => process.give_up_sending(sim, machine, to, number),
            Actor::Install => return process.install(sim, machine),
        }
        Ok(())
    }

    /// Only who still has what the others go on without may end for good. It notes that in its
    /// folder.
    fn give_up(&mut self, sim: &mut Surroundings, divergence: Divergence) {
        let id = self.id;
        sim.note(format_args!("{id} ends for good: {divergence}"));
        sim.count("members whose history was given up");
        if !sim.restored.holds(id) {
            let what = format!("member {id}, of which nothing was given up: {divergence}");
            sim.fail(("every sound folder opens", what));
        }
        self.marks.given_up = Some(divergence.to_string());
        self.health = Health::Lost;
    }

    /// The process ended by itself; whoever runs it starts it again.
    fn end(&mut self, sim: &mut Surroundings, end: End) {
        let id = self.id;
        match end {
            End::Failed(reason) => {
                sim.note(format_args!("{id} ends: {reason}"));
                sim.count("processes that ended by themselves");
            }
            End::Diverged(divergence) => self.give_up(sim, divergence),
            End::Installed => {
                sim.restored.installed(id);
                self.promised = Index(0);
                self.synced = Shadow::default();
            }
            End::GoesOn(reason) => {
                sim.note(format_args!("{id} goes on as it was: {reason}"));
                sim.count("snapshots gone when they were to be installed");
            }
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

/// An empty one.
fn new_disk(sim: &Surroundings) -> MemoryDisk {
    let disk = MemoryDisk::new();
    if !sim.plan.reserves {
        disk.cannot_reserve();
    }
    disk
}

/// A log that failed over what others were told of makes the folder suspect: the system may drop
/// what it could not write, also under the same boot.
fn mark_loss<E>(marks: &mut Marks, process: &Process, result: &Result<(), E>) {
    if result.is_err() && process.may_have_lost() {
        marks.power = Some(PowerMark::sync_failed());
    }
}
