//! What a seed is about: in every other seed one story is told again and again in a cluster that is
//! well besides, with the settings that the story needs. Left to the draw of everything, what it
//! takes would hardly ever meet in one seed, and each thing more that may go wrong would make that
//! rarer.

use super::plan::{Fault, Plan, Weather};
use super::queue::{MILLI, Nanos, SECOND};
use super::random::Random;

/// A story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Focus {
    /// Leases, and members that restart: perhaps with other timers.
    Usurper,
    /// Leases, and leaders that are cut off while members' timers differ.
    LeaderCut,
    /// Leases, and candidates that are heard late.
    DelayedVotes,
    /// Leases, and leaders that hand over.
    Transfer,
    /// Reads at the followers of a leader that others have replaced.
    Deposed,
    /// Votes, and machines that lose power over them.
    Vote,
    /// Proposals that leave the log of the leader that made them, and are committed all the same.
    Displacement,
    /// Members that are replaced, while those are silent who are to vote afterwards.
    Silence,
    /// Members that are replaced, and all others lose power as soon as one is gone.
    ForgottenRemoval,
    /// Members that are so far behind that they need a snapshot.
    Snapshot,
    /// A leader whose streams break again and again, and nothing else.
    Flapping,
    /// An older program that is replaced slowly, and leaders that are cut off while members' timers
    /// differ.
    Roll,
    /// `memory-first`, and sites that lose power: some have what the others go on without.
    SiteLoss,
}

impl Focus {
    /// Each as often as it stands here.
    const ALL: [Self; 16] = [
        Self::Usurper,
        Self::Usurper,
        Self::LeaderCut,
        Self::DelayedVotes,
        Self::Transfer,
        Self::Deposed,
        Self::Vote,
        Self::Displacement,
        Self::Displacement,
        Self::Silence,
        Self::Silence,
        Self::ForgottenRemoval,
        Self::Snapshot,
        Self::Flapping,
        Self::Roll,
        Self::SiteLoss,
    ];

    /// What the next seed is about, if about anything.
    pub(super) fn draw(random: &mut Random) -> Option<Self> {
        let focused = random.chance(500_000);
        random.pick(&Self::ALL).copied().filter(|_| focused)
    }

    /// Whether it says itself what a `memory-first` cluster loses.
    pub(super) fn loses_itself(self) -> bool {
        matches!(self, Self::SiteLoss | Self::ForgottenRemoval)
    }

    /// Makes a plan one for this story.
    pub(super) fn narrow(self, plan: &mut Plan, random: &mut Random) {
        let often = |random: &mut Random, from: u64, to: u64| random.between(from, to) * SECOND;
        plan.faults.retain(|_| random.chance(100_000));
        plan.weather = Weather {
            latency: random.between(100, 5_000) * (MILLI / 1_000),
            reordering: plan.weather.reordering,
            ..Weather::CALM
        };
        plan.members = *random.pick(&[3, 3, 5]).expect("not empty");
        let (fault, mean) = match self {
            Self::Usurper => (Fault::Usurper, often(random, 4, 8)),
            Self::LeaderCut => (Fault::LeaderCut, often(random, 2, 6)),
            Self::Roll => (Fault::LeaderCut, often(random, 2, 4)),
            Self::DelayedVotes => (Fault::DelayedVotes, often(random, 4, 8)),
            Self::Transfer => (Fault::Transfer, often(random, 1, 4)),
            Self::Deposed => (Fault::Deposed, often(random, 4, 8)),
            Self::Vote => (Fault::PowerLoss, often(random, 2, 8)),
            Self::Displacement => (Fault::Displacement, often(random, 4, 8)),
            Self::Silence => (Fault::Silence, often(random, 2, 6)),
            Self::ForgottenRemoval => (Fault::ForgottenRemoval, often(random, 2, 6)),
            Self::Snapshot => (Fault::Kill, often(random, 1, 4)),
            Self::Flapping => (Fault::Flapping, often(random, 4, 12)),
            Self::SiteLoss => (Fault::SiteLoss, often(random, 6, 12)),
        };
        plan.faults.retain(|(kind, _)| *kind != fault);
        plan.faults.push((fault, mean));
        match self {
            Self::Usurper | Self::LeaderCut => {
                plan.timers = Plan::draw_timers(random, 800_000);
                plan.load.levels = [30, 50, 10];
            }
            Self::DelayedVotes | Self::Transfer => plan.load.levels = [30, 50, 10],
            Self::Deposed => self.read_everywhere(plan, random),
            Self::Vote => {
                plan.memory_first = false;
                plan.faults.push((Fault::Transfer, often(random, 2, 6)));
            }
            Self::Displacement => self.crowd(plan, random),
            Self::Silence => {
                plan.faults.retain(|(kind, _)| !kind.comes_late());
                // Who acknowledges nothing must have missed something.
                plan.load.writes = plan.load.writes.max(200);
            }
            Self::ForgottenRemoval => self.quieten(plan, random),
            Self::Snapshot => self.shorten(plan, random),
            Self::Flapping => self.leave_the_rest(plan),
            Self::Roll => self.roll_slowly(plan, random),
            Self::SiteLoss => self.lose(plan, random),
        }
    }

    /// Several proposals have to wait in the log of a leader that nobody hears, and it takes five
    /// for the rest. Whoever read from that leader would wait too, and write nothing. With few
    /// keys, somebody sees what was done twice; and no write may wait for its turn
    /// ([`Plan::shared_entries_min`]), for then there are not several.
    fn crowd(self, plan: &mut Plan, random: &mut Random) {
        plan.members = 5;
        plan.clients = *random.pick(&[8, 10, 11]).expect("not empty");
        plan.keys = random.between(1, 3);
        plan.load.levels = [0, 0, 50];
        plan.think = (2 << random.below(4)) * MILLI;
        plan.safety = random.between(40, 71) * SECOND;
    }

    /// It takes five, and reads at all of them; but whoever waits for an answer already asks no
    /// more, so clients are not always busy. With few keys, somebody sees that a read is stale.
    fn read_everywhere(self, plan: &mut Plan, random: &mut Random) {
        plan.members = 5;
        plan.grows_from = 0;
        plan.clients = *random.pick(&[8, 10, 11]).expect("not empty");
        plan.keys = random.between(1, 3);
        plan.load.levels = [100, 0, 0];
        plan.think = (8 << random.below(3)) * MILLI;
        plan.safety = random.between(40, 71) * SECOND;
        plan.weather.reordering = false;
    }

    /// Any write that is committed would take the news of a removal to the disks of those who are
    /// left; and only a few cannot do without the one that is gone.
    fn quieten(self, plan: &mut Plan, random: &mut Random) {
        plan.members = *random.pick(&[1, 1, 2]).expect("not empty");
        plan.clients = 1;
        plan.load.writes = random.between(5, 50);
        plan.load.roles = false;
        plan.think = (64 << random.below(3)) * MILLI;
    }

    /// Nothing is kept of the log, and what is flushed is told late.
    fn shorten(self, plan: &mut Plan, random: &mut Random) {
        for settings in &mut plan.settings {
            settings.log_keep_bytes = random.below(1 << 10);
            settings.flush_bytes = 1 << random.between(8, 11);
        }
        plan.grows_from = random.below(15 * SECOND);
        let every: Nanos = random.between(3, 10) * SECOND;
        let others = [Fault::PowerLoss, Fault::Replace, Fault::Partition];
        for other in others
            .into_iter()
            .filter(|it| !plan.has(*it))
            .collect::<Vec<_>>()
        {
            plan.faults.push((other, every));
        }
    }

    /// Leases that are long, of leaders that are to hand over to others now and then, and members
    /// that lose patience early.
    fn roll_slowly(self, plan: &mut Plan, random: &mut Random) {
        plan.slow_roll = true;
        let long = *random.pick(&[(100, 10), (200, 10)]).expect("not empty");
        plan.timers = vec![long, (40, 7)];
        plan.load.levels = [30, 50, 10];
        plan.safety = random.between(40, 71) * SECOND;
        plan.faults.retain(|(kind, _)| *kind != Fault::Transfer);
        let every: Nanos = random.between(2, 5) * SECOND;
        plan.faults.push((Fault::Transfer, every));
    }

    /// Whoever has what the others go on without is asked in the moment before it finds that out.
    fn lose(self, plan: &mut Plan, random: &mut Random) {
        plan.memory_first = true;
        if random.chance(500_000) {
            plan.load.levels = [100, 0, 0];
            plan.clients = plan.clients.max(6);
            plan.think = (2 << random.below(3)) * MILLI;
        }
    }

    /// A short election timeout, which no stream that is opened again may outlast. Whoever needs a
    /// snapshot is away for a while.
    fn leave_the_rest(self, plan: &mut Plan) {
        plan.faults.retain(|(kind, _)| *kind == Fault::Flapping);
        plan.memory_first = false;
        plan.timers = vec![(50, 10)];
        for settings in &mut plan.settings {
            settings.log_keep_bytes = u64::MAX / 4;
        }
    }
}
