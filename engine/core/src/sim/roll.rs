//! A cluster whose members run an older program, which are replaced by the present one, one at a time, while clients
//! write and faults happen.
//!
//! The older program is this one, but that it reads no command above the oldest version, says so in its Hellos, and
//! stops at anything newer. All runs decide apart from each other's seeds whether they have a roll, so that those
//! without one are what they would be if there were none.

use super::queue::{MILLI, Nanos, SECOND};
use super::random::Random;
use super::surroundings::Surroundings;
use super::world::World;
use crate::kv::CommandVersion;
use crate::types::MemberId;
use std::collections::BTreeMap;

/// Which programs there are.
pub(super) struct Programs {
    random: Random,
    /// What members read whose folders are new.
    pub(super) installed: CommandVersion,
    /// What each process reads, or the last one of a member did.
    running: BTreeMap<MemberId, CommandVersion>,
    /// Whether the older program is being replaced, or was.
    pub(super) rolling: bool,
}

impl Programs {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x0072_6f6c_6c21);
        let installed = match random.chance(300_000) {
            true => CommandVersion::OLDEST,
            false => CommandVersion::CURRENT,
        };
        Self {
            random,
            installed,
            running: BTreeMap::new(),
            rolling: false,
        }
    }

    /// A process starts.
    pub(super) fn runs(&mut self, member: MemberId, reads_max: CommandVersion) {
        self.running.insert(member, reads_max);
    }

    /// What a member says in the Hellos that it sends now.
    pub(super) fn announced_by(&self, member: MemberId) -> CommandVersion {
        let running = self.running.get(&member).copied();
        running.unwrap_or(CommandVersion::OLDEST)
    }

    fn until_next(&mut self) -> Nanos {
        self.random.between(200 * MILLI, 5 * SECOND)
    }
}

/// Plans the roll, if there is one.
pub(super) fn plan(sim: &mut Surroundings) {
    if sim.programs.installed < CommandVersion::CURRENT {
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
