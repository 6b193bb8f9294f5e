//! A targeted fault with five voters: a leader hands over, and does not hear that it was replaced
//! before what the others had answered it until then has arrived. One follower still takes it for
//! the leader, and asks it what may be read. Whoever took those answers for answers to what is
//! asked since would let it read what is not the newest.
//!
//! ```text
//! leader    asks all for a round | hands over | is asked again by its follower | gets the answers
//! others    answer, unheard      | elect one of them, and take writes ···········
//! follower  hears the leader alone ··············································
//! ```

use dengine_raft::Successor;
use dengine_types::MemberId;

use super::member::Member;
use super::operator::newest_leader;
use super::queue::{MILLI, Nanos, SECOND};
use super::world::World;

/// Nothing is written for so long before, for a leader hands over at once to whoever has all.
const LULL: Nanos = 300 * MILLI;
/// How long there is much to write afterwards.
const AFTERMATH: Nanos = 3 * SECOND;

impl World {
    /// Begins the fault, if there are five voters or more and all of them are up.
    pub(super) fn depose(&mut self) -> bool {
        let Some((leader, membership)) = newest_leader(&self.members) else {
            return false;
        };
        let up = |id: &MemberId| self.members.get(id).is_some_and(Member::is_up);
        let mut others: Vec<_> = membership.voters().map(|it| it.id).collect();
        let ready = others.len() >= 5 && others.iter().all(up);
        if !ready || self.sim.now < self.sim.targeted_until {
            return false;
        }
        others.retain(|id| *id != leader);
        let place = self.sim.random.below(others.len() as u64) as usize;
        let follower = others.swap_remove(place);
        self.sim.note(format_args!(
            "FAULT: {leader} and {follower} are to hear late of the next leader"
        ));
        let begin = self.sim.now + LULL;
        self.sim.targeted_until = begin + AFTERMATH;
        self.sim.load_wave.begin(begin, begin + AFTERMATH);
        self.sim.then(LULL, move |world| {
            if world.is_stormy() {
                world.replace_unheard(leader, follower, &others);
            }
        });
        true
    }

    fn replace_unheard(&mut self, leader: MemberId, follower: MemberId, others: &[MemberId]) {
        let now = self.sim.now;
        let heard_at = now + self.sim.random.between(100 * MILLI, 1_500 * MILLI);
        let to_leader: Vec<_> = others.iter().map(|id| (*id, leader)).collect();
        self.hold(&to_leader, heard_at);
        let to_follower: Vec<_> = others.iter().map(|id| (*id, follower)).collect();
        let later = self.sim.random.between(100 * MILLI, SECOND);
        self.hold(&to_follower, heard_at + later);
        let Some(heir) = self.sim.random.pick(others).copied() else {
            return;
        };
        // Until then it may begin a round that the others answer.
        let delay = self.sim.random.between(1, 9) * self.sim.plan.weather.latency;
        self.sim.then(delay, move |world| {
            if world.is_stormy() {
                world.ask_to_hand_over(leader, Successor::Named(heir));
            }
        });
    }
}
