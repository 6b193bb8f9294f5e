//! Faults that wait for their moment: of all times to lose power, to cut a link or to hand over,
//! these are the worst. Left to chance they would hardly ever meet.

use dengine_kv::Membership;
use dengine_raft::Successor;
use dengine_raft::replica::MembershipRequest;
use dengine_types::{Index, MemberId};

use super::member::Member;
use super::operator::newest_leader;
use super::operator::silence::{LACKS_AFTER, SILENT_AFTER};
use super::plan::Fault;
use super::queue::{MILLI, Nanos, SECOND};
use super::surroundings::{Event, Surroundings};
use super::ticket::{Asker, Request, Ticket};
use super::world::{Members, World};

/// A vote is given, but perhaps not yet on disk.
pub(super) fn over_vote(sim: &mut Surroundings, voter: MemberId, candidate: MemberId) {
    // Of a memory-first cluster all lose power at once, or one while the others are well.
    let loses = sim.plan.has(Fault::PowerLoss) && !sim.plan.memory_first;
    if loses && sim.random.chance(400_000) {
        let delay = sim.random.below(sim.plan.sync);
        sim.then(delay, move |world| world.crash_over_vote(voter, candidate));
    }
}

/// A snapshot is complete, and nothing is decided yet.
pub(super) fn over_snapshot(sim: &mut Surroundings, receiver: MemberId) {
    let crashes = sim.plan.has(Fault::PowerLoss) || sim.plan.has(Fault::Kill);
    if crashes && sim.random.chance(300_000) {
        let delay = sim.random.below(2 * MILLI);
        sim.then(delay, move |world| world.crash_over_snapshot(receiver));
    }
}

/// A change is about to be asked for that counts on who votes then. Returns for how long to look
/// away, if some of them fall silent meanwhile.
pub(super) fn over_change(
    sim: &mut Surroundings,
    members: &Members,
    (leader, known): (MemberId, &Membership),
    request: &MembershipRequest,
) -> Option<Nanos> {
    if !sim.plan.has(Fault::Silence) || !sim.random.chance(500_000) {
        return None;
    }
    let up = |id: &MemberId| members.get(id).filter(|it| it.is_up());
    let hung: Vec<_> = match request {
        MembershipRequest::Promote(id) if known.learners().any(|it| it.id == *id) => {
            let learner = up(id)?;
            if sim.random.chance(500_000) {
                silence(sim, *id);
                return Some(SILENT_AFTER);
            }
            let has_some = learner.applied() > Some(Index(0));
            has_some.then_some(*id).into_iter().collect()
        }
        MembershipRequest::Remove(id) => half_of_those_left(sim, known, leader, *id),
        _ => Vec::new(),
    };
    let begins = |id| up(id).is_some_and(|it| !it.hangs(sim.now));
    if hung.is_empty() || !hung.iter().all(begins) {
        return None;
    }
    hang(sim, hung);
    Some(LACKS_AFTER + SECOND)
}

/// So many others than the leader that without them and the one that is removed there is no quorum,
/// though with it there is.
fn half_of_those_left(
    sim: &mut Surroundings,
    known: &Membership,
    leader: MemberId,
    removed: MemberId,
) -> Vec<MemberId> {
    let voters = known.voters().map(|it| it.id);
    let mut left: Vec<_> = voters.filter(|id| *id != removed).collect();
    if left.len() == known.voters().count() || !left.len().is_multiple_of(2) {
        return Vec::new();
    }
    let half = left.len() / 2;
    left.retain(|id| *id != leader);
    while left.len() > half {
        let place = sim.random.below(left.len() as u64) as usize;
        left.swap_remove(place);
    }
    left
}

fn silence(sim: &mut Surroundings, learner: MemberId) {
    let gone_for = sim.random.between(6 * SECOND, 10 * SECOND);
    sim.then(0, move |world| world.silence_learner(learner, gone_for));
}

fn hang(sim: &mut Surroundings, ids: Vec<MemberId>) {
    let duration = sim.random.between(8 * SECOND, 14 * SECOND);
    sim.then(0, move |world| world.hang(&ids, duration));
}

/// A member was answered to be gone forever: if it is, it is not needed even when nobody remembers
/// anything but its disk.
pub(super) fn over_removal(sim: &mut Surroundings, removed: MemberId) {
    if sim.plan.has(Fault::ForgottenRemoval) && sim.random.chance(500_000) {
        sim.then(0, move |world| world.forget_removal(removed));
    }
}

impl World {
    fn silence_learner(&mut self, learner: MemberId, gone_for: Nanos) {
        let Self { sim, members, .. } = self;
        let member = members.get_mut(&learner).filter(|it| it.is_up());
        if let Some(member) = member {
            sim.note(format_args!(
                "FAULT at {learner}: gone before its promotion"
            ));
            sim.count("learners gone before their promotion");
            member.kill(sim);
            self.lose_streams(learner);
            self.sim.after(gone_for, Event::Restart(learner));
        }
    }

    fn hang(&mut self, ids: &[MemberId], duration: Nanos) {
        let Self { sim, members, .. } = self;
        for id in ids {
            if let Some(member) = members.get_mut(id) {
                sim.note(format_args!("FAULT at {id}: the disk hangs over a change"));
                sim.count("disks that hang over a change of members");
                member.hang(sim.now + duration);
            }
        }
    }

    fn forget_removal(&mut self, removed: MemberId) {
        if self.is_stormy() {
            let Self { sim, members, .. } = self;
            self.operator.switch_off(sim, members, removed);
            sim.count("power losses of all over a removal");
            self.all_lose_power();
        }
    }

    fn crash_over_vote(&mut self, voter: MemberId, candidate: MemberId) {
        self.crash(voter, Fault::PowerLoss, "over a vote");
        if self.sim.random.chance(500_000) {
            // Whoever else voted forgets it too, and the candidate, elected or not, is heard no
            // more.
            let others = self.members.keys().copied();
            let others: Vec<_> = others
                .filter(|id| *id != candidate && *id != voter)
                .collect();
            for other in others {
                self.crash(other, Fault::PowerLoss, "over a vote");
            }
            let delay = 2 * self.sim.plan.weather.latency;
            self.sim.then(delay, move |world| {
                // Until the others have started and elected somebody.
                let duration = world.sim.random.between(5 * SECOND, 15 * SECOND);
                world.isolate(candidate, duration);
            });
        }
    }

    fn crash_over_snapshot(&mut self, receiver: MemberId) {
        let loses = self.sim.plan.has(Fault::PowerLoss) && !self.sim.plan.memory_first;
        let power = loses && self.sim.random.chance(500_000);
        let fault = if power { Fault::PowerLoss } else { Fault::Kill };
        self.crash(receiver, fault, "over a snapshot");
    }

    fn crash(&mut self, id: MemberId, fault: Fault, over: &str) {
        if self.is_stormy() && self.members.get(&id).is_some_and(Member::is_up) {
            self.sim
                .note(format_args!("FAULT at {id}: {} {over}", fault.name()));
            self.sim.count(fault.name());
            match fault {
                Fault::PowerLoss => self.lose_power(id),
                _ => self.kill(id),
            }
        }
    }

    /// Somebody loses sight of the leader, and as nobody writes, misses nothing; a while later the
    /// leader is alone, everybody who could remember it has just restarted, and all clients write.
    pub(super) fn usurp(&mut self) -> bool {
        let Some((leader, membership)) = newest_leader(&self.members) else {
            return false;
        };
        let voters = membership.voters().map(|m| m.id);
        let others: Vec<_> = voters.filter(|id| *id != leader).collect();
        let usurper = self.sim.random.pick(&others).copied();
        let Some(usurper) = usurper.filter(|_| others.len() > 1) else {
            return false;
        };
        let blind = vec![(leader, usurper), (usurper, leader)];
        self.sim.network.cut(blind.iter().copied());
        self.sim.after(8 * SECOND, Event::Mend(blind));
        let delay = self.sim.random.between(1_000 * MILLI, 3_000 * MILLI);
        let end = self.sim.now + delay;
        self.sim.load_wave.begin(end, end + 3 * SECOND);
        self.sim
            .then(delay, move |world| world.forget(leader, usurper, &others));
        true
    }

    fn forget(&mut self, leader: MemberId, usurper: MemberId, others: &[MemberId]) {
        if !self.is_stormy() {
            return;
        }
        let links = others.iter().flat_map(|id| [(leader, *id), (*id, leader)]);
        self.cut_for(links.collect(), 3 * SECOND);
        for id in others.iter().filter(|id| **id != usurper) {
            let Self { sim, members, .. } = self;
            if let Some(member) = members.get_mut(id) {
                member.kill(sim);
                member.take_newest_timers();
                let delay = sim.random.between(MILLI, 20 * MILLI);
                sim.after(delay, Event::Restart(*id));
            }
        }
    }

    /// Leadership is handed over, and perhaps the old leader hears no more of it.
    pub(super) fn transfer(&mut self) -> bool {
        let Some((leader, membership)) = newest_leader(&self.members) else {
            return false;
        };
        let voters: Vec<_> = membership.voters().map(|m| m.id).collect();
        let to = self.sim.random.pick(&voters).copied();
        let to = match self.sim.random.below(10) {
            0 => Successor::Soonest,
            1 => Successor::Fit,
            _ => to.map_or(Successor::Soonest, Successor::Named),
        };
        self.ask_to_hand_over(leader, to);
        if self.sim.random.chance(500_000) {
            // Just when the other begins to ask for votes.
            let delay = self.sim.random.below(4 * self.sim.plan.weather.latency);
            self.sim.then(delay, move |world| {
                let duration = world.sim.random.between(100 * MILLI, 6 * SECOND);
                world.isolate(leader, duration);
                let now = world.sim.now;
                world.sim.load_wave.begin(now, now + duration);
            });
        }
        true
    }

    pub(super) fn ask_to_hand_over(&mut self, leader: MemberId, to: Successor) {
        self.sim
            .note(format_args!("FAULT: {leader} is to hand over to {to:?}"));
        let ticket = Ticket {
            asker: Asker::Nobody,
            deadline: u64::MAX,
        };
        let Self { sim, members, .. } = self;
        if let Some(member) = members.get_mut(&leader) {
            member.ask(sim, Request::Transfer(to), ticket);
        }
    }

    /// The leader's streams break again and again. They are opened again at once, so all hear it.
    pub(super) fn flap(&mut self) -> bool {
        let leader = newest_leader(&self.members).map(|(leader, _)| leader);
        let free = self.sim.now >= self.sim.targeted_until;
        let Some(leader) = leader.filter(|_| free) else {
            return false;
        };
        self.sim.note(format_args!(
            "FAULT at {leader}: streams break again and again"
        ));
        let end = self.sim.now + self.sim.random.between(6 * SECOND, 15 * SECOND);
        self.sim.targeted_until = end;
        self.flap_until(end, leader);
        true
    }

    fn flap_until(&mut self, end: Nanos, leader: MemberId) {
        if self.sim.now >= end || !self.is_stormy() {
            return;
        }
        let others: Vec<_> = self.members.keys().copied().collect();
        for other in others.into_iter().filter(|id| *id != leader) {
            self.break_stream((leader, other));
            self.break_stream((other, leader));
        }
        let delay = self.sim.random.between(300 * MILLI, 700 * MILLI);
        self.sim
            .then(delay, move |world| world.flap_until(end, leader));
    }

    /// Nobody hears this member, and it hears nobody.
    pub(super) fn isolate(&mut self, id: MemberId, duration: u64) {
        if self.is_stormy() {
            let others = self.members.keys().filter(|other| **other != id);
            let links = others.flat_map(|other| [(id, *other), (*other, id)]);
            let links = links.collect();
            self.cut_for(links, duration);
        }
    }
}
