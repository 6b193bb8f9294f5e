//! Starting a process on a machine: what its folder holds, it takes up.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dengine_data_dir::marks::{Beginning, PowerMark, Unfit};
use dengine_kv::StateMachine;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Log, LogError, LogOptions, LogReader, Position, Recovered};
use dengine_raft::consensus::{ConsensusConfig, ReplicaState};
use dengine_raft::replica::{
    Applier, Keeper, LogWriter, OpenError, Opened, Replica, ReplicaConfig, SlowDisk, first_batch,
    open_member,
};
use dengine_snapshot::{MemberDirs, SnapshotError, Staging};
use dengine_types::{ClusterId, HardState, Index, Revision};

use super::hub::Hub;
use super::process::Process;
use super::snapshots::Snapshots;
use super::{Actor, DRIFT_PERCENT_MAX, Health, Member, new_disk};
use crate::guard::guard;
use crate::invariants::Seen;
use crate::plan::Fault;
use crate::queue::{MILLI, SECOND};
use crate::settings::MemberSettings;
use crate::shadow::Shadow;
use crate::store::SimStore;
use crate::surroundings::{Event, Surroundings};
use crate::ticket::Callers;

/// The cluster of all simulations.
pub(crate) const CLUSTER: ClusterId = ClusterId(0xd00d);

/// For so many election timeouts a member that lost writes leaves it to others to stand for
/// election: what the documentation says, and not what the source has.
const HESITATION_TIMEOUTS: u64 = 5;
/// So many places in history the collector removes at once: a run writes few.
const PLACES_TOGETHER: usize = 16;
/// When a leader hands over for its disk: as members of `dengine` are started, but sooner and more
/// often, for no run lasts long.
const SLOW_DISK: SlowDisk = SlowDisk {
    window: Duration::from_millis(300),
    rest: Duration::from_secs(5),
    ..SlowDisk::of_at_least(Duration::from_millis(5))
};

/// As what a replica starts.
struct Start {
    hard_state: HardState,
    settings: MemberSettings,
    tick: Duration,
    election_ticks: usize,
    beginning: Beginning,
}

/// Why a process did not come up.
enum Refusal {
    /// The folder has lost something.
    Lost(String),
    /// The machine failed this time.
    NotNow(String),
}

impl From<SnapshotError> for Refusal {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Disk(_) => Self::NotNow(error.to_string()),
            _ => Self::Lost(error.to_string()),
        }
    }
}

impl From<LogError> for Refusal {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Disk(_) | LogError::NoSpace(_) => Self::NotNow(error.to_string()),
            _ => Self::Lost(error.to_string()),
        }
    }
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Log(error) => error.into(),
            OpenError::Snapshot(error) => error.into(),
            OpenError::State(_) | OpenError::LogBehindState { .. } => Self::Lost(error.to_string()),
        }
    }
}

impl Member {
    /// Makes the folder that of a member: with the first entry of a cluster's log, or with an empty
    /// log.
    pub(crate) fn found(&mut self, sim: &mut Surroundings, first: bool) {
        self.disk = new_disk(sim);
        let settings = sim.settings();
        let opened = Log::open(self.disk.clone(), self.options(sim, &settings));
        let (mut log, _) = opened.expect("a new disk works");
        if first {
            let batch = first_batch(CLUSTER, self.record.clone(), Revision(1));
            log.append(&batch).expect("a new disk works");
            log.sync().expect("a new disk works");
        }
    }

    fn options(&self, sim: &mut Surroundings, settings: &MemberSettings) -> LogOptions {
        LogOptions {
            segment_bytes: settings.segment_bytes,
            leave_bytes: u64::from(settings.segment_bytes),
            ..LogOptions::new(CLUSTER, self.id, sim.random.next())
        }
    }

    /// Starts the process, unless there is one.
    pub(crate) fn start(&mut self, sim: &mut Surroundings) {
        if self.process.is_some() {
            return;
        }
        let beginning = match self.marks.begin(&self.boot_id(), sim.plan.memory_first) {
            Err(Unfit::GivenUp(reason)) => return self.refuse(sim, &reason),
            Err(Unfit::Suspect) => return self.refuse_suspect(sim),
            Ok(beginning) => beginning,
        };
        if let Some(mark) = &beginning.mark {
            self.marks.power = Some(mark.clone());
        }
        let was_refused = self.health == Health::Lost;
        self.may_be_cut_short(sim);
        let opened = guard(|| self.open(sim, beginning));
        self.was_cut_short(sim);
        match opened {
            Ok(Ok(_)) if was_refused => sim.fail((
                "a refused folder stays refused",
                format!("member {} lost what it promised, and starts", self.id),
            )),
            Ok(Ok(process)) => self.run(sim, process),
            Ok(Err(Refusal::Lost(reason))) => self.refuse(sim, &reason),
            Ok(Err(Refusal::NotNow(reason))) => self.try_later(sim, &reason),
            Err(message) if std::mem::take(&mut self.reading_fails) => {
                self.try_later(sim, &message);
            }
            Err(message) => self.refuse(sim, &message),
        }
    }

    /// Lets the process end somewhere within an installation, if this start has one to complete.
    fn may_be_cut_short(&self, sim: &mut Surroundings) {
        let ends = sim.plan.has(Fault::Kill) || sim.plan.has(Fault::PowerLoss);
        if ends && self.folders.has_staged() && sim.random.chance(700_000) {
            self.folders.end_after(Some(sim.random.below(6) as u32));
        }
    }

    fn was_cut_short(&mut self, sim: &mut Surroundings) {
        if self.folders.was_cut_short() {
            sim.note(format_args!(
                "FAULT at {}: ended in an installation",
                self.id
            ));
            sim.count("installations cut short");
            let loses = sim.plan.has(Fault::PowerLoss) && !sim.plan.memory_first;
            if loses && sim.random.chance(800_000) {
                self.lose_power(sim);
            }
        }
        self.folders.end_after(None);
    }

    fn try_later(&mut self, sim: &mut Surroundings, reason: &str) {
        sim.note(format_args!("{} cannot start: {reason}", self.id));
        let delay = sim.random.between(500 * MILLI, 3 * SECOND);
        sim.after(delay, Event::Restart(self.id));
    }

    /// Whoever lost what it promised must say so, and nobody else may.
    fn refuse(&mut self, sim: &mut Surroundings, reason: &str) {
        let id = self.id;
        sim.note(format_args!("{id} refuses to start: {reason}"));
        if self.health == Health::Sound {
            return sim.fail(("every sound folder opens", format!("member {id}: {reason}")));
        }
        if std::mem::replace(&mut self.health, Health::Lost) != Health::Lost {
            sim.count("members that refused their folder");
        }
        // Whoever runs it starts it again and again, and an operator takes a while to look.
        let delay = sim.random.between(SECOND, 10 * SECOND);
        sim.after(delay, Event::Restart(id));
    }

    fn refuse_suspect(&mut self, sim: &mut Surroundings) {
        let id = self.id;
        sim.note(format_args!(
            "{id} may have lost what it acknowledged, and refuses to start"
        ));
        if self.health == Health::Sound {
            self.health = Health::Suspect;
            sim.count("memory-first members that refused their folder");
        }
        let delay = sim.random.between(SECOND, 10 * SECOND);
        sim.after(delay, Event::Restart(id));
    }

    fn run(&mut self, sim: &mut Surroundings, process: Process) {
        let id = self.id;
        let (last, applied) = (process.shadow.last(), process.applier.machine().applied().0);
        sim.note(format_args!(
            "{id} starts: log to {}, applied {applied}",
            last.index
        ));
        let tick = process.tick;
        self.process = Some(process);
        let machine = self.machine(sim.now);
        machine.plan(sim, 0, Actor::Replica);
        machine.plan(sim, self.clock.wait(tick), Actor::Tick);
        machine.plan(sim, MILLI, Actor::Keep);
        machine.plan(sim, MILLI, Actor::Collect);
        machine.plan(sim, MILLI, Actor::Look);
    }

    fn open(&mut self, sim: &mut Surroundings, beginning: Beginning) -> Result<Process, Refusal> {
        let settings = sim.settings();
        let Opened {
            log,
            recovered,
            state: machine,
            ..
        } = self.open_both(sim, &settings, beginning.lost_writes_accepted)?;
        let incoming = self.folders.incoming().map_err(SnapshotError::from)?;
        let staging = Staging::open(incoming, CLUSTER, u64::MAX)?;
        // It has looked at every byte.
        self.health = Health::Sound;
        if beginning.lost_writes_accepted {
            self.marks.power = self.marks.power.take().map(PowerMark::started);
        }
        let durable = log.durable_to();
        let (keeper, collector) = (
            Keeper::new(machine.reader(), settings.retention()),
            machine.collector().removing_together(PLACES_TOGETHER),
        );
        self.tell_of_start(sim, &recovered.hard_state, machine.applied().0);
        let (tick, election_ticks) = self.pick_timers(sim);
        let start = Start {
            hard_state: recovered.hard_state,
            settings,
            tick,
            election_ticks,
            beginning,
        };
        let replica = self.replica_from(sim, &log, &machine, &start);
        Ok(Process {
            replica,
            state: ReplicaState::default(),
            shadow: Shadow::of(&log.reader()),
            inbox: VecDeque::new(),
            callers: Callers::default(),
            hellos: BTreeMap::new(),
            awake: true,
            wakes_at: None,
            log_writer: LogWriter::new(sim.plan.sync_rule(), &log),
            log,
            log_jobs: VecDeque::new(),
            log_busy: false,
            log_wakes_at: 0,
            piece: None,
            proven: (String::new(), 0),
            durable,
            flusher: machine.flusher(),
            hub: Hub::new(self.id, machine.reader().revision()),
            applier: Applier::new(machine),
            apply_jobs: VecDeque::new(),
            apply_busy: false,
            unflushed_bytes: 0,
            flush_busy: false,
            keeper,
            collector,
            staging,
            snapshots: Snapshots::default(),
            peers: BTreeMap::new(),
            ticks: 0,
            hesitates: match start.beginning.lost_writes_accepted {
                true => HESITATION_TIMEOUTS * election_ticks as u64,
                false => 0,
            },
            tick: start.tick,
            settings,
            untold: Vec::new(),
        })
    }

    /// Tells those who watch as what it starts.
    fn tell_of_start(&self, sim: &mut Surroundings, restored: &HardState, applied: Index) {
        let (member, reads_max) = (self.id, self.reads_max);
        sim.programs.runs(member, reads_max);
        sim.restored.starts(member, restored.commit.max(applied));
        sim.see(&Seen::Starts {
            member,
            term: restored.term,
            reads_max,
        });
    }

    /// How long its ticks are, and after how many of them it stands for election.
    fn pick_timers(&mut self, sim: &mut Surroundings) -> (Duration, usize) {
        let newest = std::mem::take(&mut self.newest_timers);
        let timers = &sim.plan.timers;
        let timers = match newest {
            true => timers.last().copied(),
            false => sim.random.pick(timers).copied(),
        };
        let (tick_ms, election_ticks) = timers.expect("there is one");
        (Duration::from_millis(tick_ms), election_ticks)
    }

    /// Opens log and state together, and looks whether all is there that was synced.
    fn open_both(
        &self,
        sim: &mut Surroundings,
        settings: &MemberSettings,
        loss_accepted: bool,
    ) -> Result<Opened<MemoryDisk, StateMachine<SimStore>>, Refusal> {
        let id = self.id;
        let found = self.open_log(sim, settings)?;
        let (last, promised) = (found.1.last_index, self.promised);
        if last < promised {
            let what = format!("member {id}: the log ends at {last}, {promised} was synced");
            sim.fail(("what was synced is there", what));
        }
        let reopen = || self.open_log(sim, settings);
        let open_state = || {
            let store = self.folders.open_store()?;
            let machine = StateMachine::open(store)?
                .of_cluster(CLUSTER)?
                .reads_commands_up_to(self.reads_max);
            let (index, term) = machine.applied();
            Ok((machine, Position { index, term }))
        };
        let folders = &self.folders;
        let opened = open_member(folders, CLUSTER, found, reopen, open_state, loss_accepted)?;
        if opened.installed {
            sim.note(format_args!("{id} has taken over the staged snapshot"));
        }
        if let Some(last) = opened.reset_and_recovered {
            sim.note(format_args!(
                "the log of {id}, to {last}, begins again after the state"
            ));
            sim.count("logs that began again after the state");
        }
        Ok(opened)
    }

    fn open_log(
        &self,
        sim: &mut Surroundings,
        settings: &MemberSettings,
    ) -> Result<(Log<MemoryDisk>, Recovered), LogError> {
        let options = self.options(sim, settings);
        Log::open_existing(self.disk.clone(), options)
    }

    fn replica_from(
        &self,
        sim: &mut Surroundings,
        log: &Log<MemoryDisk>,
        machine: &StateMachine<SimStore>,
        start: &Start,
    ) -> Replica<LogReader<MemoryDisk>> {
        let nonce = sim.random.next();
        let (tick, election_ticks) = (start.tick, start.election_ticks);
        let settings = &start.settings;
        let config = ReplicaConfig {
            member_id: self.id,
            boot_nonce: nonce,
            election_timeout: tick * election_ticks as u32,
            max_waiting_reads: 1024,
            log_keep_bytes: settings.log_keep_bytes,
            log_keep_bytes_for_followers: 2 * settings.log_keep_bytes,
            shared_entries_min: sim.plan.shared_entries_min(),
            slow_disk: Some(SLOW_DISK),
        };
        let consensus = ConsensusConfig {
            election_ticks,
            tick,
            max_clock_drift_percent: DRIFT_PERCENT_MAX,
            max_message_bytes: settings.message_bytes as u64,
            max_inflight_messages: settings.messages_in_flight,
            max_uncommitted_bytes: settings.uncommitted_bytes,
            max_apply_bytes: settings.apply_bytes,
            cache_bytes: settings.cache_bytes,
            max_waiting_reads: 1024,
            boot_nonce: nonce,
            lost_writes_accepted: start.beginning.lost_writes_accepted,
            acknowledges_unsynced: start.beginning.acknowledged_unsynced,
            commit_news_delay: Duration::from_millis(settings.commit_news_delay_ms),
            ..ConsensusConfig::new(self.id, sim.random.next())
        };
        Replica::new(config, consensus, start.hard_state, log.reader(), machine)
            .expect("this configuration is sound")
    }
}
