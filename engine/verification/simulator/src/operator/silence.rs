//! Whom a leader must not count on when it makes a change, by what the simulator knows of machines
//! and disks.

use std::collections::{BTreeSet, VecDeque};

use dengine_kv::MembershipChange;
use dengine_types::{Index, MemberId, Term};

use crate::invariants::Broken;
use crate::member::Member;
use crate::queue::{Nanos, SECOND};
use crate::surroundings::Surroundings;
use crate::world::Members;

/// Nobody can have heard a member that has been down for longer, if nothing of it comes late: it is
/// twice as long as any election timeout.
pub(crate) const SILENT_AFTER: Nanos = 4 * SECOND;
/// Whoever keeps up has what the leader's log held so long ago: that is more than two election
/// timeouts, by the slowest clock.
pub(crate) const LACKS_AFTER: Nanos = 5 * SECOND;

/// Where the log of who leads ended, and when.
#[derive(Default)]
pub(super) struct LogEnds {
    of: Option<(MemberId, Term)>,
    ends: VecDeque<(Nanos, Index)>,
}

impl LogEnds {
    pub(super) fn look(&mut self, now: Nanos, leader: &Member) {
        let (Some(state), Some(replica)) = (leader.state(), leader.replica()) else {
            return;
        };
        let of = Some((leader.id, state.term));
        if std::mem::replace(&mut self.of, of) != of {
            self.ends.clear();
        }
        self.ends.push_back((now, replica.consensus().last_index()));
        let is_old = |(at, _): &(Nanos, Index)| at + LACKS_AFTER <= now;
        while self.ends.get(1).is_some_and(is_old) {
            self.ends.pop_front();
        }
    }

    /// What whoever keeps up has. Of one that has not led for long, the leader itself can't tell.
    pub(super) fn due(&self, now: Nanos) -> Option<Index> {
        let (at, end) = self.ends.front()?;
        (at + LACKS_AFTER <= now).then_some(*end)
    }
}

/// Whom a change must not count on, since before it was asked for.
pub(super) struct Silence {
    learner: Option<MemberId>,
    /// As they are after the change.
    voters: BTreeSet<MemberId>,
    /// Down for so long that nobody can have heard them.
    down: BTreeSet<MemberId>,
    due: Option<Index>,
}

impl Silence {
    /// Nothing is known where what somebody said may come late.
    pub(super) fn before(
        sim: &Surroundings,
        members: &Members,
        (leader, due): (MemberId, Option<Index>),
        change: &MembershipChange,
    ) -> Option<Self> {
        let late = |(fault, _): &(_, _)| crate::plan::Fault::comes_late(*fault);
        if sim.plan.weather.strays > 0 || sim.plan.faults.iter().any(late) {
            return None;
        }
        let known = members.get(&leader)?.membership()?;
        let mut voters: BTreeSet<_> = known.voters().map(|voter| voter.id).collect();
        let (learner, counts) = match change {
            MembershipChange::Promote(id) => (Some(*id), voters.insert(*id)),
            MembershipChange::Remove(id) => (None, voters.remove(id)),
            MembershipChange::AddLearner(_) | MembershipChange::Bootstrap { .. } => (None, false),
        };
        let down_for = |id| members.get(id).map_or(0, |it| it.down_for(sim.now));
        let down = voters.iter().filter(|id| down_for(id) > SILENT_AFTER);
        counts.then(|| Self {
            learner,
            down: down.copied().collect(),
            voters: voters.clone(),
            due,
        })
    }

    /// The change was made.
    ///
    /// # Errors
    /// It should have been refused.
    pub(super) fn judge(&self, members: &Members) -> Result<(), Broken> {
        let silent = |id: &&MemberId| members.get(id).is_some_and(|it| self.is_silent(it));
        if let Some(learner) = self.learner.as_ref().filter(silent) {
            let what = format!("learner {learner} acknowledges nothing, and got a vote");
            return Err(("silent learners do not vote", what));
        }
        let (voters, silent) = (self.voters.len(), self.voters.iter().filter(silent).count());
        if voters - silent <= voters / 2 {
            let what = format!("{silent} of {voters} voters that are left acknowledge nothing");
            return Err(("changes leave a quorum", what));
        }
        Ok(())
    }

    /// Also now: it may have come back just before the leader looked.
    fn is_silent(&self, member: &Member) -> bool {
        match member.log_end() {
            None => self.down.contains(&member.id),
            end => end < self.due,
        }
    }
}
