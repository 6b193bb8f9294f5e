//! A targeted fault of its own: a leader stops, somebody stands for its place, and what that one
//! has to say arrives only once the leader is back and the others have promised it a lease. Whoever
//! lets the delayed votes undo the promise elects a second leader while the first still answers
//! reads.
//!
//! ```text
//! leader     stops ·················· is back, asks the others ······ hears nobody, has its lease
//! candidate  ···· stands, unheard ········ stands again, unheard ···· is heard all at once
//! ```

use dengine_types::MemberId;

use super::member::Member;
use super::operator::newest_leader;
use super::plan::Fault;
use super::queue::{MILLI, Nanos, SECOND};
use super::surroundings::{Event, Surroundings};
use super::world::World;

/// How long the leader is not heard when the candidate is: longer than any lease.
const AFTERMATH: Nanos = 3 * SECOND;

/// Somebody stands for a place that may not be free.
pub(super) fn over_candidacy(sim: &mut Surroundings, candidate: MemberId) {
    if sim.plan.has(Fault::DelayedVotes) && sim.random.chance(700_000) {
        sim.then(0, move |world| world.delay_votes_of(candidate));
    }
}

impl World {
    /// Lets the leader stop once nothing is being written: whoever misses something can't take its
    /// place.
    pub(super) fn stop_leader(&mut self) -> bool {
        let leader = newest_leader(&self.members).map(|(leader, _)| leader);
        let Some(leader) = leader.filter(|_| !self.is_targeted()) else {
            return false;
        };
        let begin = self.sim.now + 300 * MILLI;
        let end = begin + self.sim.random.between(SECOND, 3 * SECOND);
        self.sim.load_wave.begin(end, end + SECOND);
        self.sim.then(begin - self.sim.now, move |world| {
            let stormy = world.is_stormy();
            let Self { sim, members, .. } = world;
            let member = members.get_mut(&leader).filter(|it| it.is_leader());
            if let Some(member) = member.filter(|_| stormy) {
                sim.note(format_args!("FAULT at {leader}: the leader stops"));
                member.pause(end);
            }
        });
        true
    }

    fn delay_votes_of(&mut self, candidate: MemberId) {
        if let Some(leader) = self.leader_before(candidate)
            && self.is_stormy()
            && !self.is_targeted()
        {
            // By then everybody has lost patience once more, so the candidate asks for votes as
            // soon as it is heard.
            let back = self.sim.now + self.sim.random.between(2_200 * MILLI, 3_500 * MILLI);
            let heard_at = back + self.sim.random.between(100 * MILLI, 500 * MILLI);
            self.sim.targeted_until = heard_at + SECOND;
            self.sim.count("candidates whose votes are delayed");
            self.hold_up(leader, candidate, back, heard_at);
        }
    }

    fn is_targeted(&self) -> bool {
        self.sim.now < self.sim.targeted_until
    }

    /// Who still leads an earlier term than the one that this candidate stands in.
    fn leader_before(&self, candidate: MemberId) -> Option<MemberId> {
        let term = |member: &Member| member.state().map(|state| state.term);
        let stands_in = self.members.get(&candidate).and_then(term);
        let leaders = self.members.values().filter(|member| member.is_leader());
        let earlier = leaders.filter(|member| term(member) < stands_in);
        earlier.max_by_key(|member| term(member)).map(|it| it.id)
    }

    /// The leader is away until `back`; nobody hears the candidate before `heard_at`, and then
    /// nobody hears the leader.
    fn hold_up(&mut self, leader: MemberId, candidate: MemberId, back: Nanos, heard_at: Nanos) {
        let others = self.members.keys().copied();
        let others = others.filter(|id| *id != candidate && *id != leader);
        let others: Vec<_> = others.collect();
        self.silence(leader, candidate, &others, heard_at);
        if let Some(member) = self.members.get_mut(&leader) {
            member.pause(back);
        }
        let led = others.iter().flat_map(|id| [(leader, *id), (*id, leader)]);
        let led: Vec<_> = led.collect();
        // Whatever else has cut them: only a leader that is heard gets a lease.
        self.sim.queue.push(back, Event::Mend(led.clone()));
        // What is written meanwhile the candidate would miss; what is written later shows whether a
        // read is stale.
        self.sim.load_wave.begin(heard_at, heard_at + AFTERMATH);
        self.sim.then(heard_at - self.sim.now, move |world| {
            if world.is_stormy() {
                world.cut_for(led, AFTERMATH);
            }
        });
    }

    /// What the candidate says reaches the others at `heard_at`, and the leader not at all.
    fn silence(
        &mut self,
        leader: MemberId,
        candidate: MemberId,
        others: &[MemberId],
        heard_at: Nanos,
    ) {
        let heard_by = others.iter().map(|id| (candidate, *id));
        let heard_by: Vec<_> = heard_by.collect();
        for link in &heard_by {
            // Its request for votes may be on the way.
            self.sim.network.reset(*link);
        }
        self.hold(&heard_by, heard_at);
        let never = vec![(leader, candidate), (candidate, leader)];
        self.cut_for(never, heard_at - self.sim.now + AFTERMATH);
    }
}
