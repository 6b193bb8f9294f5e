//! What goes wrong, when its time has come. What waits for its moment is in
//! [`targeted_fault`](super::targeted_fault).

use std::time::Duration;

use dengine_types::MemberId;

use super::full_disk;
use super::member::{Health, Member};
use super::network::Link;
use super::operator::newest_leader;
use super::plan::Fault;
use super::queue::{MILLI, Nanos, SECOND};
use super::surroundings::Event;
use super::world::World;

impl World {
    /// Lets a fault happen, if it can now, and plans the next one of its kind.
    pub(super) fn strike(&mut self, fault: Fault) {
        let mean = self
            .sim
            .plan
            .faults
            .iter()
            .find(|(kind, _)| *kind == fault)
            .map(|(_, mean)| *mean);
        let Some(mean) = mean.filter(|_| self.is_stormy()) else {
            return;
        };
        let next = self.sim.random.between(mean / 4, mean * 7 / 4);
        self.sim.after(next, Event::Strike(fault));
        if self.happen(fault) {
            self.sim.count(fault.name());
        }
    }

    /// Returns whether it could happen.
    fn happen(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::ClusterPowerLoss => return self.all_lose_power(),
            Fault::SiteLoss => return self.site_loses_power(),
            Fault::Partition => return self.split(false),
            Fault::OneWayPartition => return self.split(true),
            Fault::Congestion => return self.congest(),
            Fault::LeaderCut => return self.cut_leader(),
            Fault::Usurper => return self.usurp(),
            Fault::DelayedVotes => return self.stop_leader(),
            Fault::Deposed => return self.depose(),
            Fault::Displacement => return self.displace(),
            Fault::Reset => return self.reset(),
            Fault::Flapping => return self.flap(),
            Fault::Transfer => return self.transfer(),
            Fault::Resize => return self.resize(),
            Fault::Lull => return self.lull(),
            Fault::Replace | Fault::Silence | Fault::ForgottenRemoval => return self.replace(),
            _ => {}
        }
        let Some(id) = self.victim() else {
            return false;
        };
        self.hit(fault, id)
    }

    /// One that runs.
    fn victim(&mut self) -> Option<MemberId> {
        let up = self.members.values().filter(|member| member.is_up());
        let up: Vec<_> = up.map(|member| member.id).collect();
        self.sim.random.pick(&up).copied()
    }

    /// What happens to one member.
    fn hit(&mut self, fault: Fault, id: MemberId) -> bool {
        // Of a memory-first cluster all lose power at once, or one while the others are well.
        let rests = fault == Fault::PowerLoss && self.sim.plan.memory_first;
        let rests = rests || matches!(fault, Fault::FlippedBit | Fault::LostDisk);
        if rests && !self.may_lose(id) {
            return false;
        }
        let until = self.sim.now + self.duration();
        let Self { sim, members, .. } = self;
        let Some(member) = members.get_mut(&id) else {
            return false;
        };
        sim.note(format_args!("FAULT at {id}: {}", fault.name()));
        match fault {
            Fault::Kill => self.end(id),
            Fault::PowerLoss => self.lose_power(id),
            Fault::Pause => member.pause(until),
            Fault::StoppedClock => return self.suspend(id, until),
            Fault::SlowDisk => member.slow_down(until),
            Fault::FullDisk if sim.plan.stays_full => {
                let left = full_disk::space_left(&mut sim.random);
                member.disk().leave_space(left);
            }
            Fault::FullDisk => {
                member.disk().leave_space(sim.random.below(64 << 10));
                member.look_at_space(sim, true);
                sim.queue.push(until, Event::Space(id));
            }
            Fault::FailedSync => member.disk().fail_sync_after(sim.random.below(8)),
            Fault::FailedWrite => member.disk().fail_write_after(sim.random.below(8)),
            Fault::FailedRead => member.fail_read(sim.random.below(16)),
            Fault::FailedFlush => member.fail_flush(),
            Fault::WriteBack => member.write_back(sim),
            Fault::FlippedBit => return self.flip(id),
            Fault::LostDisk => self.lose_disk(id),
            _ => return false,
        }
        true
    }

    /// The machine does not notice how long that takes. Nothing that a member could look at would
    /// tell a leader of it, so its lease is too long then.
    fn suspend(&mut self, id: MemberId, until: Nanos) -> bool {
        let Self { sim, members, .. } = self;
        let member = members.get_mut(&id);
        let may = |it: &&mut Member| !it.is_leader() || !sim.plan.load.reads_by_lease();
        let Some(member) = member.filter(may) else {
            return false;
        };
        member.pause(until);
        member
            .clock
            .stand_still(Duration::from_nanos(until - sim.now));
        true
    }

    fn duration(&mut self) -> Nanos {
        self.sim.random.between(100 * MILLI, 6 * SECOND)
    }

    /// Whether the cluster can do without what this member has on its disk, forever. Only a whole
    /// cluster at rest can.
    pub(super) fn may_lose(&self, id: MemberId) -> bool {
        let Some((_, membership)) = newest_leader(&self.members) else {
            return false;
        };
        membership.members.contains_key(&id)
            && membership.voters().count() >= 3
            && self.operator.is_content(&membership, &self.members)
            && self.members.values().all(Member::is_sound)
    }

    /// A process ends, and one of a `memory-first` member perhaps in good order: what its folder
    /// says then is believed after a power loss too.
    fn end(&mut self, id: MemberId) {
        let Self { sim, members, .. } = self;
        let may_stop = sim.plan.memory_first && sim.random.chance(500_000);
        if let Some(member) = members.get_mut(&id).filter(|_| may_stop) {
            member.stop(sim);
        }
        self.kill(id);
    }

    pub(super) fn kill(&mut self, id: MemberId) {
        let Self { sim, members, .. } = self;
        if let Some(member) = members.get_mut(&id) {
            member.kill(sim);
            self.lose_streams(id);
            self.restart_later(id);
        }
    }

    pub(super) fn lose_power(&mut self, id: MemberId) {
        let Self { sim, members, .. } = self;
        if let Some(member) = members.get_mut(&id) {
            member.lose_power(sim);
            self.lose_streams(id);
            self.restart_later(id);
        }
    }

    pub(super) fn all_lose_power(&mut self) -> bool {
        self.sim.note(format_args!("FAULT: all lose power"));
        let ids: Vec<_> = self.members.keys().copied().collect();
        ids.into_iter().for_each(|id| self.lose_power(id));
        true
    }

    /// What was on its way to a process that is gone is lost with it, mostly.
    pub(super) fn lose_streams(&mut self, id: MemberId) {
        let others: Vec<_> = self.members.keys().copied().collect();
        for other in others {
            if self.sim.random.chance(700_000) {
                self.sim.network.reset((other, id));
            }
        }
    }

    fn restart_later(&mut self, id: MemberId) {
        let delay = match self.sim.random.below(4) {
            0 => self.sim.random.between(MILLI, 50 * MILLI),
            1 => self.sim.random.between(2 * SECOND, 10 * SECOND),
            _ => self.sim.random.between(50 * MILLI, 2 * SECOND),
        };
        self.sim.after(delay, Event::Restart(id));
    }

    fn lose_disk(&mut self, id: MemberId) {
        let Self { sim, members, .. } = self;
        if let Some(member) = members.get_mut(&id) {
            member.lose_disk(sim);
            self.lose_streams(id);
            self.restart_later(id);
        }
    }

    /// Changes a bit of the log that was on disk for long, and ends the process soon after.
    fn flip(&mut self, id: MemberId) -> bool {
        let Self { sim, members, .. } = self;
        let Some(member) = members.get_mut(&id) else {
            return false;
        };
        let Some((name, end)) = member.old_part(&mut sim.random) else {
            return false;
        };
        let (byte, bit) = (
            sim.random.below(end as u64) as usize,
            sim.random.below(8) as u8,
        );
        sim.note(format_args!(
            "bit {bit} of byte {byte} of {name} changes at {id}"
        ));
        member.disk().flip_bit(&name, byte, bit);
        member.health = Health::Damaged;
        self.kill(id);
        true
    }

    fn split(&mut self, one_way: bool) -> bool {
        let links = self.between_two_sides(one_way);
        self.cut(links)
    }

    /// The links between two sides, to one of which everybody belongs.
    fn between_two_sides(&mut self, one_way: bool) -> Vec<Link> {
        let ids: Vec<_> = self.members.keys().copied().collect();
        let side: Vec<bool> = ids
            .iter()
            .map(|_| self.sim.random.chance(400_000))
            .collect();
        let mut links = Vec::new();
        for (a, here) in ids.iter().zip(&side) {
            for (b, there) in ids.iter().zip(&side) {
                let crosses = if one_way {
                    *here && !there
                } else {
                    here != there
                };
                if crosses {
                    links.push((*a, *b));
                }
            }
        }
        links
    }

    fn cut_leader(&mut self) -> bool {
        let Some((leader, _)) = newest_leader(&self.members) else {
            return false;
        };
        let ways = self.sim.random.below(3);
        let others = self.members.keys().filter(|id| **id != leader);
        let links = others.flat_map(|other| [(leader, *other), (*other, leader)]);
        let links = links.filter(|(from, _)| match ways {
            0 => true,
            1 => *from == leader,
            _ => *from != leader,
        });
        let links = links.collect();
        let duration = self.duration();
        self.sim
            .load_wave
            .begin(self.sim.now, self.sim.now + duration);
        self.cut_for(links, duration)
    }

    fn congest(&mut self) -> bool {
        let one_way = self.sim.random.chance(500_000);
        let links = self.between_two_sides(one_way);
        let duration = self.duration();
        self.hold(&links, self.sim.now + duration)
    }

    /// What is sent over these links arrives then or later.
    pub(super) fn hold(&mut self, links: &[Link], until: Nanos) -> bool {
        if links.is_empty() {
            return false;
        }
        let sim = &mut self.sim;
        sim.note(format_args!("FAULT: {} are slow", list(links)));
        links.iter().for_each(|link| sim.network.hold(*link, until));
        true
    }

    fn cut(&mut self, links: Vec<Link>) -> bool {
        let duration = self.duration();
        self.cut_for(links, duration)
    }

    pub(super) fn cut_for(&mut self, links: Vec<Link>, duration: Nanos) -> bool {
        if links.is_empty() {
            return false;
        }
        self.sim
            .note(format_args!("FAULT: {} are cut", list(&links)));
        let until = self.sim.now + duration;
        for link in &links {
            self.sim.network.reset(*link);
        }
        self.sim.network.cut(links.iter().copied());
        self.sim.queue.push(until, Event::Mend(links));
        true
    }

    fn reset(&mut self) -> bool {
        let ids: Vec<_> = self.members.keys().copied().collect();
        let (from, to) = (self.sim.random.pick(&ids), self.sim.random.pick(&ids));
        let (Some(from), Some(to)) = (from, to) else {
            return false;
        };
        self.sim
            .note(format_args!("FAULT: the stream {from}-{to} breaks"));
        self.break_stream((*from, *to));
        true
    }

    pub(super) fn break_stream(&mut self, link: Link) {
        self.sim.network.reset(link);
        self.sim.after(MILLI, Event::Unreachable(link));
    }

    /// Nobody writes for a while, and then everybody does.
    fn lull(&mut self) -> bool {
        self.sim.note(format_args!("FAULT: nobody writes"));
        let lull = self.duration();
        self.sim
            .load_wave
            .begin(self.sim.now + lull, self.sim.now + 2 * lull);
        true
    }

    fn resize(&mut self) -> bool {
        self.operator.wanted = self.sim.random.between(1, 6) as usize;
        let wanted = self.operator.wanted;
        self.sim
            .note(format_args!("FAULT: there are to be {wanted} members"));
        true
    }

    fn replace(&mut self) -> bool {
        let Some((_, membership)) = newest_leader(&self.members) else {
            return false;
        };
        let ids: Vec<_> = membership.members.keys().copied().collect();
        let Some(id) = self.sim.random.pick(&ids).copied() else {
            return false;
        };
        self.sim.note(format_args!("FAULT: {id} is to be replaced"));
        self.operator.condemned.insert(id)
    }
}

fn list(links: &[Link]) -> String {
    let pairs = links.iter().map(|(from, to)| format!("{from}-{to}"));
    pairs.collect::<Vec<_>>().join(" ")
}
