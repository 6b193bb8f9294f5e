//! What a seed decides before anything happens: how large the cluster is, how fast its parts are,
//! and which faults there are. Every seed leaves some faults out, because one kind may hide
//! another's bugs (swarm testing, Groce et al. 2012).

use std::cmp::Reverse;
use std::time::Duration;

use dengine_raft::replica::SyncRule;

use super::focus::Focus;
use super::full_disk;
use super::in_place::TurnsBy;
use super::queue::{MILLI, Nanos, SECOND};
use super::random::Random;
use super::settings::MemberSettings;

/// Ticks in milliseconds, and election timeouts in ticks: as usual, and what else members may be
/// started with.
const TIMERS: [(u64, usize); 5] = [(100, 10), (200, 10), (200, 5), (50, 10), (40, 7)];
/// There are fewer keys than this.
pub(super) const KEYS_MAX: u64 = 8;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// A process is killed; what it wrote, the operating system still has.
    Kill,
    /// One machine loses its power, and with it what was not synced.
    PowerLoss,
    /// All machines do, at once.
    ClusterPowerLoss,
    /// Two groups of members cannot hear each other.
    Partition,
    /// Some links carry messages one way only.
    OneWayPartition,
    /// Nobody hears the leader, or the leader hears nobody.
    LeaderCut,
    /// Somebody who did not hear the leader for long asks for votes just when all others have
    /// restarted and the leader is cut off.
    Usurper,
    /// A leader stops for a while. What somebody who stands for its place meanwhile has to say
    /// arrives when the leader is back.
    DelayedVotes,
    /// A leader hands over, and hears of its end late: first arrives what the others had answered
    /// before. One of its followers hears even later.
    Deposed,
    /// What a leader of five has proposed is displaced in its log, and committed from another one.
    Displacement,
    /// A stream between two members breaks, with what is on its way.
    Reset,
    /// All streams from and to the leader break, again and again.
    Flapping,
    /// What is sent over some links arrives, but not before a while has passed.
    Congestion,
    /// A process is stopped for a while, and its clock goes on.
    Pause,
    /// A machine is suspended for a while, and its clock with it. A leader only where nobody reads
    /// by lease.
    StoppedClock,
    /// A disk takes its time.
    SlowDisk,
    /// A disk has no space for a while.
    FullDisk,
    /// One sync fails.
    FailedSync,
    /// One write fails half way.
    FailedWrite,
    /// A read of the log fails.
    FailedRead,
    /// One flush of the state machine fails.
    FailedFlush,
    /// The operating system writes some of what is not synced.
    WriteBack,
    /// A bit of the log changes on its disk.
    FlippedBit,
    /// A disk is lost.
    LostDisk,
    /// Leadership is handed over.
    Transfer,
    /// The cluster is to have another size.
    Resize,
    /// A member that works is replaced by an empty one.
    Replace,
    /// Nobody writes for a while, and then everybody does.
    Lull,
    /// A member is replaced, and who is to vote afterwards is gone just then, or acknowledges
    /// nothing.
    Silence,
    /// A member is replaced, and all others lose power as soon as it is answered that it is gone,
    /// and it is switched off.
    ForgottenRemoval,
    /// All machines of a site lose power, a majority, and not all there are. Only where that is the
    /// story: see [`loss`](super::loss).
    SiteLoss,
}

impl Fault {
    /// But for those that are drawn apart.
    const ALL: [Self; 30] = [
        Self::Kill,
        Self::PowerLoss,
        Self::ClusterPowerLoss,
        Self::Partition,
        Self::OneWayPartition,
        Self::LeaderCut,
        Self::Usurper,
        Self::DelayedVotes,
        Self::Deposed,
        Self::Displacement,
        Self::Reset,
        Self::Flapping,
        Self::Congestion,
        Self::Pause,
        Self::StoppedClock,
        Self::SlowDisk,
        Self::FullDisk,
        Self::FailedSync,
        Self::FailedWrite,
        Self::FailedRead,
        Self::FailedFlush,
        Self::WriteBack,
        Self::FlippedBit,
        Self::LostDisk,
        Self::Transfer,
        Self::Resize,
        Self::Replace,
        Self::Lull,
        Self::Silence,
        Self::ForgottenRemoval,
    ];

    /// Whether what a member said may be heard when it is long gone.
    pub(super) fn comes_late(self) -> bool {
        matches!(
            self,
            Self::Congestion
                | Self::DelayedVotes
                | Self::Deposed
                | Self::StoppedClock
                | Self::Pause
        )
    }

    /// As the summary calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kills",
            Self::PowerLoss => "power losses",
            Self::ClusterPowerLoss => "power losses of all",
            Self::SiteLoss => "power losses of a site",
            Self::Partition => "partitions",
            Self::OneWayPartition => "one-way partitions",
            Self::LeaderCut => "leaders cut off",
            Self::Usurper => "usurpers",
            Self::DelayedVotes => "delayed votes",
            Self::Deposed => "leaders deposed unheard",
            Self::Displacement => "displacements",
            Self::Reset => "streams reset",
            Self::Flapping => "streams reset again and again",
            Self::Congestion => "congestions",
            Self::Pause => "pauses",
            Self::StoppedClock => "stopped clocks",
            Self::SlowDisk => "slow disks",
            Self::FullDisk => "full disks",
            Self::FailedSync => "failed syncs",
            Self::FailedWrite => "failed writes",
            Self::FailedRead => "failed reads",
            Self::FailedFlush => "failed flushes",
            Self::WriteBack => "write-backs",
            Self::FlippedBit => "flipped bits",
            Self::LostDisk => "lost disks",
            Self::Transfer => "transfers",
            Self::Resize => "resizes",
            Self::Replace => "replacements",
            Self::Lull => "lulls",
            Self::Silence => "replacements while somebody falls silent",
            Self::ForgottenRemoval => "replacements with a loss of power",
        }
    }
}

/// How the network behaves, partitions apart. Chances are per million messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) latency: Nanos,
    pub(super) loss: u32,
    pub(super) duplicates: u32,
    /// Without it, a message never overtakes an earlier one of its link.
    pub(super) reordering: bool,
    /// A message may also come long after it was sent, to whoever is there then.
    pub(super) strays: u32,
    /// How much a link carries; nothing waits for it if there is no such bound.
    pub(super) bytes_per_second: Option<u64>,
}

/// What clients ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// How many of a thousand operations write.
    pub(super) writes: u64,
    /// Every other client does little but read, and the others little but write.
    pub(super) roles: bool,
    /// Of a hundred reads, how many are linearizable, by lease, within a session; the rest is
    /// eventual.
    pub(super) levels: [u64; 3],
    /// How many of a hundred puts, swaps, and puts of batches have a time to live.
    pub(super) expiring: u64,
}

/// What reads there are: of all kinds, or of one. Whoever only reads by lease is not held up at a
/// leader that is cut off by reads that need a quorum.
const LEVELS: [[u64; 3]; 4] = [[40, 30, 18], [40, 30, 18], [100, 0, 0], [0, 100, 0]];

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// What it is about, if about anything.
    pub(super) focus: Option<Focus>,
    pub(super) members: usize,
    pub(super) clients: u64,
    /// How many of them write within sessions.
    pub(super) sessions: u64,
    pub(super) keys: u64,
    pub(super) watchers: u64,
    /// When the cluster begins to grow: members that come late need a snapshot.
    pub(super) grows_from: Nanos,
    /// How long a client waits between two operations, on average.
    pub(super) think: Nanos,
    /// How long faults happen.
    pub(super) safety: Nanos,
    pub(super) weather: Weather,
    pub(super) sync: Nanos,
    pub(super) apply: Nanos,
    pub(super) turns_by: TurnsBy,
    /// Writes are acknowledged before they are synced: see [`loss`](super::loss).
    pub(super) memory_first: bool,
    /// For how many bytes, and how long, they are not synced then.
    pub(super) sync_bytes: u64,
    pub(super) sync_interval: Duration,
    /// Disks set space aside for a log's segments, as some file systems can't.
    pub(super) reserves: bool,
    /// Whoever has filled a disk takes nothing away again: see [`full_disk`].
    pub(super) stays_full: bool,
    /// Members begin with an older program, and each is replaced after a while.
    pub(super) slow_roll: bool,
    /// What members may be started with, each time again.
    pub(super) settings: Vec<MemberSettings>,
    /// Some values are as long as this, and most as short as can be. A batch with seven of them is
    /// larger than a message and fits into a frame.
    pub(super) value_bytes: Option<u64>,
    /// How many milliseconds members' ticks are long, and how many of them an election timeout is,
    /// at least: one setting, or, where a change of it is being rolled out and perhaps back, the
    /// one before and the one after. Each start takes one of them.
    pub(super) timers: Vec<(u64, usize)>,
    pub(super) load: Load,
    /// Which faults there are, and how long there is none of that kind, on average.
    pub(super) faults: Vec<(Fault, Nanos)>,
}

impl Plan {
    /// In some clusters so few entries that writes wait for their turn although a client has one at
    /// a time. In the others they never do, for then fewer are under way when something fails.
    pub(super) fn shared_entries_min(&self) -> usize {
        match self.clients % 3 {
            0 => 2,
            _ => 1_000_000,
        }
    }

    /// That of a seed, from which further draws come.
    pub(super) fn of(seed: u64, random: &mut Random) -> Self {
        let mut plan = Self::draw(random);
        plan.turns_by = TurnsBy::of(seed);
        full_disk::take_over(&mut plan, seed);
        plan
    }

    fn draw(random: &mut Random) -> Self {
        let sizes = [1, 2, 3, 3, 3, 3, 3, 4, 5, 5, 7];
        let memory_first = random.chance(150_000);
        let faults = draw_faults(random);
        let settings = MemberSettings::draw_all(random, 300_000);
        let segment_bytes = settings.iter().map(|it| it.segment_bytes).min();
        let value_bytes_max = u64::from(segment_bytes.unwrap_or_default() / 8).min(1536);
        let mut plan = Self {
            focus: None,
            members: *random.pick(&sizes).expect("not empty"),
            clients: match random.below(4) {
                0 => random.between(6, 10),
                _ => random.between(1, 6),
            },
            sessions: random.below(5),
            keys: random.between(1, KEYS_MAX),
            watchers: random.between(1, 4),
            grows_from: random.below(2) * random.below(15 * SECOND),
            think: (2 << random.below(6)) * MILLI,
            safety: random.between(20, 61) * SECOND,
            weather: Weather::draw(random),
            sync: random.between(50, 3_000) * (MILLI / 1_000),
            apply: random.between(10, 1_000) * (MILLI / 1_000),
            turns_by: TurnsBy::default(),
            memory_first,
            sync_bytes: 1 << random.between(9, 17),
            sync_interval: Duration::from_nanos(random.between(20, 1_000) * MILLI),
            reserves: random.chance(750_000),
            stays_full: false,
            slow_roll: false,
            settings,
            value_bytes: random
                .chance(250_000)
                .then(|| random.between(100, value_bytes_max)),
            timers: Self::draw_timers(random, 250_000),
            load: Load::draw(random),
            faults,
        };
        plan.focus = Focus::draw(random);
        if let Some(focus) = plan.focus {
            focus.narrow(&mut plan, random);
        }
        if plan.memory_first && !plan.focus.is_some_and(Focus::loses_itself) {
            super::loss::plan_losses(&mut plan, random);
        }
        plan
    }

    /// As they are usually, or, so many times in a million, two others or those and others.
    pub(super) fn draw_timers(random: &mut Random, differ: u32) -> Vec<(u64, usize)> {
        let mut timers = vec![TIMERS[0]];
        if random.chance(differ) {
            timers = TIMERS.to_vec();
            while timers.len() > 2 {
                timers.swap_remove(random.below(timers.len() as u64) as usize);
            }
            // A change to shorter ones is what may break a promise.
            timers.sort_by_key(|(tick, ticks)| Reverse(tick * *ticks as u64));
        }
        timers
    }

    /// Whether this is all that goes wrong.
    pub(super) fn is_only(&self, fault: Fault) -> bool {
        self.faults.iter().all(|(kind, _)| *kind == fault) && self.has(fault)
    }

    /// Whether there is such a fault.
    pub(super) fn has(&self, fault: Fault) -> bool {
        self.faults.iter().any(|(kind, _)| *kind == fault)
    }

    pub(super) fn sync_rule(&self) -> SyncRule {
        match self.memory_first {
            true => SyncRule::Later {
                bytes: self.sync_bytes,
                interval: self.sync_interval,
            },
            false => SyncRule::AtOnce,
        }
    }
}

impl Load {
    fn draw(random: &mut Random) -> Self {
        Self {
            writes: match random.below(3) {
                0 => random.between(5, 50),
                _ => random.between(100, 800),
            },
            roles: random.chance(500_000),
            levels: *random.pick(&LEVELS).expect("not empty"),
            expiring: match random.below(4) {
                0 => random.between(16, 60),
                1 => random.between(1, 16),
                _ => 0,
            },
        }
    }

    /// Whether anybody reads by the leader's lease.
    pub(super) fn reads_by_lease(self) -> bool {
        self.levels[1] > 0
    }

    /// How many of a thousand operations of this client write.
    pub(super) fn writes_of(self, client: u64) -> u64 {
        match (self.roles, client % 2) {
            (false, _) => self.writes,
            (true, 0) => 20,
            (true, _) => self.writes.max(500),
        }
    }
}

impl Weather {
    /// Nothing is lost and nothing is slow.
    pub(super) const CALM: Self = Self {
        latency: MILLI,
        loss: 0,
        duplicates: 0,
        reordering: false,
        strays: 0,
        bytes_per_second: None,
    };

    fn draw(random: &mut Random) -> Self {
        let mut some = |most: u64| match random.below(2) {
            0 => 0,
            _ => random.below(most) as u32,
        };
        let (loss, duplicates, strays) = (some(100_000), some(50_000), some(100_000));
        Self {
            latency: random.between(100, 20_000) * (MILLI / 1_000),
            loss,
            duplicates,
            reordering: random.chance(500_000),
            strays,
            bytes_per_second: random
                .chance(300_000)
                .then(|| 1_000 * random.between(30, 1_000)),
        }
    }
}

/// Few or many: a cluster that never comes to rest hides what goes wrong in one that works.
fn draw_faults(random: &mut Random) -> Vec<(Fault, Nanos)> {
    let chances = [100_000, 200_000, 400_000];
    let chance = *random.pick(&chances).expect("not empty");
    let mut faults = Vec::new();
    for fault in Fault::ALL {
        if random.chance(chance) {
            let rare = matches!(
                fault,
                Fault::ClusterPowerLoss | Fault::LostDisk | Fault::FlippedBit
            );
            let seconds = if rare { (8, 40) } else { (2, 20) };
            let mean = random.between(seconds.0 * 1_000, seconds.1 * 1_000) * MILLI;
            faults.push((fault, mean));
        }
    }
    faults
}
