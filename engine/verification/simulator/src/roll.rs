//! A cluster whose members run an older program, which are replaced by the present one, one at a
//! time, while clients write and faults happen.
//!
//! The older program is this one, but that it reads no command above the oldest version, says so in
//! its Hellos and Acks, stops at anything newer, and promises nothing by its answers to a leader's
//! rounds, though it keeps to what the present one promises. All runs decide apart from each
//! other's seeds whether they have a roll, so that those without one are what they would be if
//! there were none; those that are about rolls ([`focus`](super::focus)) always have one.

use std::collections::BTreeMap;

use dengine_kv::CommandVersion;
use dengine_types::MemberId;

use super::queue::{MILLI, Nanos, SECOND};
use super::random::Random;
use super::surroundings::Surroundings;
use super::world::World;

/// A process.
#[derive(Clone, Copy)]
struct Running {
    /// The number of its start, among all of them.
    start: u64,
    /// The newest version of a command that it reads.
    reads_max: CommandVersion,
}

/// Which programs there are.
pub(super) struct Programs {
    random: Random,
    /// What members read whose folders are new.
    pub(super) installed: CommandVersion,
    running: BTreeMap<MemberId, Running>,
    starts: u64,
    /// Each program stays for long.
    slow: bool,
    /// Whether the older program is being replaced, or was.
    pub(super) rolling: bool,
}

impl Programs {
    /// Those of a run, which is perhaps about a roll that takes its time.
    pub(super) fn new(seed: u64, slow_roll: bool) -> Self {
        let mut random = Random::new(seed ^ 0x0072_6f6c_6c21);
        let installed = match random.chance(300_000) || slow_roll {
            true => CommandVersion::OLDEST,
            false => CommandVersion::CURRENT,
        };
        Self {
            random,
            installed,
            running: BTreeMap::new(),
            starts: 0,
            slow: slow_roll,
            rolling: false,
        }
    }

    /// Whether an older program is to be replaced.
    pub(super) fn rolls(&self) -> bool {
        self.installed < CommandVersion::CURRENT
    }

    /// A process starts.
    pub(super) fn runs(&mut self, member: MemberId, reads_max: CommandVersion) {
        self.starts += 1;
        let start = self.starts;
        self.running.insert(member, Running { start, reads_max });
    }

    pub(super) fn ended(&mut self, member: MemberId) {
        self.running.remove(&member);
    }

    /// The number of the start of the process that is running there.
    pub(super) fn start_of(&self, member: MemberId) -> Option<u64> {
        self.running.get(&member).map(|it| it.start)
    }

    /// What a member says in the Hellos and Acks that it sends now.
    pub(super) fn announced_by(&self, member: MemberId) -> CommandVersion {
        let running = self.running.get(&member);
        running.map_or(CommandVersion::OLDEST, |it| it.reads_max)
    }

    /// Whether an older program is running there, which promises nothing.
    pub(super) fn is_older(&self, member: MemberId) -> bool {
        self.announced_by(member) < CommandVersion::CURRENT
    }

    fn until_next(&mut self) -> Nanos {
        match self.slow {
            true => self.random.between(5 * SECOND, 12 * SECOND),
            false => self.random.between(200 * MILLI, 5 * SECOND),
        }
    }
}

/// Plans the roll, if there is one.
pub(super) fn plan(sim: &mut Surroundings) {
    if sim.programs.rolls() {
        let begin = sim.programs.random.between(SECOND, 12 * SECOND);
        sim.then(begin, |world| {
            world
                .sim
                .note(format_args!("the members are to be replaced"));
            // Whoever joins from now on runs the present program.
            world.sim.programs.installed = CommandVersion::CURRENT;
            world.sim.programs.rolling = true;
            world.roll();
        });
    }
}

impl World {
    /// Replaces the program of one more member. A cluster may come to rest in the middle of it.
    fn roll(&mut self) {
        if !self.is_stormy() {
            return;
        }
        let older = |it: &&super::member::Member| it.reads_max < CommandVersion::CURRENT;
        let older: Vec<_> = self
            .members
            .values()
            .filter(older)
            .map(|it| it.id)
            .collect();
        let Some(id) = self.sim.programs.random.pick(&older).copied() else {
            return self.sim.count("rolls completed");
        };
        self.sim.note(format_args!("{id} gets the present program"));
        if let Some(member) = self.members.get_mut(&id) {
            member.reads_max = CommandVersion::CURRENT;
        }
        self.kill(id);
        let wait = self.sim.programs.until_next();
        self.sim.then(wait, Self::roll);
    }
}
