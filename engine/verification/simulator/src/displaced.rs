//! A targeted fault with five voters: a proposal leaves the log of the leader that made it, is
//! displaced there by another one, and is committed after all, because somebody else still has it
//! (Raft thesis §3.6.2). Whoever was told meanwhile that it came to nothing was told wrong.
//!
//! ```text
//! A  leads, E hears | alone      | follows B, truncates | elected, displaces | alone
//! B  —              | is elected | leads, A hears       | alone              | alone
//! E  takes A's      | alone                                                  | elected, commits
//! ```

use dengine_types::MemberId;

use super::member::Member;
use super::network::Link;
use super::operator::newest_leader;
use super::queue::{MILLI, Nanos, SECOND};
use super::world::World;

/// A step that takes longer has failed.
const PATIENCE: Nanos = 6 * SECOND;

/// Who is who, and what comes next.
#[derive(Clone, Debug)]
pub(super) struct Displacement {
    number: u64,
    first: MemberId,
    last: MemberId,
    others: Vec<MemberId>,
    /// The one of the others that led in between; what it has written would win over what is to be
    /// committed.
    second: Option<MemberId>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// One of the others is to be elected.
    Second,
    /// Whoever led first is to be elected again.
    First,
    /// It goes on without elections.
    Over,
}

impl World {
    /// Begins the fault, if there are five voters and all of them are up.
    pub(super) fn displace(&mut self) -> bool {
        let Some((first, membership)) = newest_leader(&self.members) else {
            return false;
        };
        let up = |id: &MemberId| self.members.get(id).is_some_and(Member::is_up);
        let mut others: Vec<_> = membership.voters().map(|m| m.id).collect();
        let ready = others.len() == 5 && others.iter().all(up) && self.displacement.is_none();
        others.retain(|id| *id != first);
        if !ready || self.sim.now < self.sim.targeted_until {
            return false;
        }
        let last = others.swap_remove(self.sim.random.below(4) as usize);
        let number = self.sim.now;
        self.sim.note(format_args!(
            "FAULT: what {first} and {last} have is to be displaced"
        ));
        self.sim.targeted_until = self.sim.now + 20 * SECOND;
        self.sim
            .load_wave
            .begin(self.sim.now, self.sim.now + 8 * SECOND);
        self.part(&[vec![first, last], others.clone()]);
        let delay = self.sim.random.between(200, 600) * MILLI;
        self.displacement = Some(Displacement {
            number,
            first,
            last,
            others,
            second: None,
            stage: Stage::Over,
        });
        self.displacement_step(delay, number, |world, it| {
            world.part(&[vec![it.first], vec![it.last], it.others.clone()]);
            it.stage = Stage::Second;
            world.displacement_fails_after(PATIENCE, it.number, Stage::Second);
        });
        true
    }

    /// Somebody was elected.
    pub(super) fn displacement_goes_on(&mut self, elected: MemberId) {
        let Some(mut it) = self.displacement.take() else {
            return;
        };
        let mut alone: Vec<_> = it.others.iter().map(|id| vec![*id]).collect();
        alone.push(vec![it.last]);
        match it.stage {
            Stage::Second if it.others.contains(&elected) => {
                alone.retain(|group| group[0] != elected);
                alone.push(vec![it.first, elected]);
                self.part(&alone);
                it.stage = Stage::Over;
                it.second = Some(elected);
                let delay = self.sim.random.between(1_100, 1_800) * MILLI;
                self.displacement_step(delay, it.number, move |world, it| {
                    let mut heard = it.others.clone();
                    heard.retain(|id| *id != elected);
                    heard.push(it.first);
                    world.part(&[heard, vec![elected], vec![it.last]]);
                    it.stage = Stage::First;
                    world.displacement_fails_after(PATIENCE, it.number, Stage::First);
                });
                self.displacement = Some(it);
            }
            Stage::First if it.first == elected => {
                alone.push(vec![it.first]);
                self.part(&alone);
                it.stage = Stage::Over;
                self.sim.count("proposals displaced on purpose");
                // Whoever writes now takes the places of those who still wait for what they
                // proposed first.
                self.sim.load_wave.swap_sides(self.sim.now + 3 * SECOND);
                self.displacement_step(1_200 * MILLI, it.number, |world, it| {
                    let (mut heard, mut alone) = (it.others.clone(), vec![vec![it.first]]);
                    heard.retain(|id| Some(*id) != it.second);
                    heard.push(it.last);
                    alone.extend(it.second.map(|id| vec![id]));
                    alone.push(heard);
                    world.part(&alone);
                    world.displacement_fails_after(PATIENCE, it.number, Stage::Over);
                });
                self.displacement = Some(it);
            }
            _ => self.displacement = Some(it),
        }
    }

    /// Plans a step of the fault of this number.
    fn displacement_step(
        &mut self,
        delay: Nanos,
        number: u64,
        step: impl FnOnce(&mut Self, &mut Displacement) + 'static,
    ) {
        self.sim.then(delay, move |world| {
            let Some(mut it) = world.displacement.take_if(|it| it.number == number) else {
                return;
            };
            if world.is_stormy() {
                step(world, &mut it);
                world.displacement = Some(it);
            }
        });
    }

    /// Lets everybody hear everybody, if the fault is where it was by then.
    fn displacement_fails_after(&mut self, delay: Nanos, number: u64, stage: Stage) {
        self.sim.then(delay, move |world| {
            let same = |it: &mut Displacement| it.number == number && it.stage == stage;
            if world.displacement.take_if(same).is_some() && world.is_stormy() {
                world.part(&[]);
                world.sim.targeted_until = world.sim.now;
            }
        });
    }

    /// Only members of one group hear each other; whoever is in none hears everybody.
    fn part(&mut self, groups: &[Vec<MemberId>]) {
        let group = |id: &MemberId| groups.iter().position(|group| group.contains(id));
        let ids: Vec<_> = self.members.keys().copied().collect();
        let pairs = ids.iter().flat_map(|a| ids.iter().map(|b| (*a, *b)));
        let (cut, heard): (Vec<Link>, Vec<Link>) =
            pairs.filter(|(a, b)| a != b).partition(|link| {
                let (a, b) = (group(&link.0), group(&link.1));
                a.is_some() && b.is_some() && a != b
            });
        self.sim.network.mend(heard);
        cut.iter().for_each(|link| self.sim.network.reset(*link));
        self.sim.network.cut(cut);
    }
}
