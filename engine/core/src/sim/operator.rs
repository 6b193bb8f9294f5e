//! Whoever runs the cluster: keeps it at its size, one membership change at a time, and replaces members
//! that are no use any more by empty ones under ids of their own.
//!
//! It knows of members only what they say themselves, and remembers nothing that it could look up, so that
//! an answer that never comes costs it nothing but time.

use super::ambush;
use super::clock::Clock;
use super::invariants::Broken;
use super::loss;
use super::member::{DRIFT_PERCENT_MAX, Health, Member};
use super::queue::{MILLI, Nanos, SECOND};
use super::random::Random;
use super::surroundings::{Event, Surroundings};
use super::ticket::{Answered, Asker};
use super::world::Members;
use crate::kv::{Member as MemberRecord, Membership, MembershipChange, Outcome};
use crate::replica::{Input, Request};
use crate::types::MemberId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How long it waits for an answer.
const PATIENCE: Nanos = 4_000 * MILLI;
/// Nobody can have heard a member that has been down for longer, if nothing of it comes late: it is twice as long as any
/// election timeout.
const SILENT_AFTER: Nanos = 4 * SECOND;

pub(super) struct Operator {
    random: Random,
    /// How many voters there shall be.
    pub(super) wanted: usize,
    /// Members to replace although they work.
    pub(super) condemned: BTreeSet<MemberId>,
    /// Members that it wants to be rid of; they may be gone already.
    leaving: BTreeSet<MemberId>,
    /// An empty folder that is to join. It learns its id from the members.
    candidate: Option<MemberRecord>,
    folders: u64,
    requests: u64,
    /// The request that was not answered yet, and until when it waits.
    waiting: Option<Nanos>,
    /// The request is to promote a learner that nobody can have heard for long.
    promotes_silent: bool,
    /// Since when nobody leads, and a majority of the voters may have lost what it acknowledged.
    stuck_since: Option<Nanos>,
    /// No entry behind the last membership change is known to be committed.
    unsettled: bool,
}

/// What it does next.
enum Step {
    Change(MembershipChange),
    /// Makes sure that the membership as it is outlives any crash of a quorum.
    Settle,
    /// The leader is to go, so another has to lead.
    Transfer,
}

impl Operator {
    pub(super) fn new(random: Random, wanted: usize) -> Self {
        Self {
            random,
            wanted,
            condemned: BTreeSet::new(),
            leaving: BTreeSet::new(),
            candidate: None,
            folders: 0,
            requests: 0,
            waiting: None,
            promotes_silent: false,
            stuck_since: None,
            unsettled: true,
        }
    }

    /// What a new folder's member is called.
    pub(super) fn new_record(&mut self, id: MemberId) -> MemberRecord {
        self.folders += 1;
        let folder = self.folders;
        MemberRecord {
            id,
            name: format!("member-{folder}"),
            peer_address: format!("peer-{folder}:1"),
            client_address: format!("client-{folder}:1"),
            folder_id: format!("folder-{folder}"),
            voter: false,
        }
    }

    /// Whether the cluster is as it shall be, and nothing is under way.
    pub(super) fn is_content(&self, membership: &Membership, members: &Members) -> bool {
        let voters = membership.voters().count();
        voters == self.wanted
            && membership.members.len() == voters
            && !self.unsettled
            && self.waiting.is_none()
            && membership
                .members
                .keys()
                .all(|id| !self.is_useless(*id, members))
    }

    fn is_useless(&self, id: MemberId, members: &Members) -> bool {
        is_lost(id, members) || self.condemned.contains(&id)
    }

    /// # Errors
    /// What should have been refused was done.
    pub(super) fn on_answer(&mut self, request: u64, answer: &Answered) -> Result<(), Broken> {
        if request != self.requests {
            return Ok(());
        }
        self.waiting = None;
        let Answered::Written(Ok(written)) = answer else {
            return Ok(());
        };
        if self.promotes_silent {
            let what = "a learner that is down got a vote".to_owned();
            return Err(("silent learners do not vote", what));
        }
        match &written.outcome {
            Outcome::Membership(_) => self.unsettled = true,
            _ => self.unsettled = false,
        }
        Ok(())
    }

    /// Looks at the cluster, and does the next thing.
    pub(super) fn look(&mut self, sim: &mut Surroundings, members: &mut Members) {
        let delay = self.random.spread(300 * MILLI);
        sim.after(delay, Event::Operator);
        let Some((leader, membership)) = newest_leader(members) else {
            return loss::recover_if_needed(sim, members, &mut self.stuck_since);
        };
        self.stuck_since = None;
        self.welcome(sim, members, &membership);
        self.bid_farewell(sim, members, &membership);
        if self.waiting.is_some_and(|until| sim.now < until) {
            return;
        }
        self.waiting = None;
        let step = match self.unsettled {
            true => Some(Step::Settle),
            false => self.next_step(&membership, members, leader),
        };
        self.promotes_silent = false;
        if let Some(step) = step {
            self.ask(sim, members, leader, step);
        }
    }

    /// Starts the candidate once it belongs to the cluster.
    fn welcome(&mut self, sim: &mut Surroundings, members: &mut Members, membership: &Membership) {
        let Some(candidate) = &self.candidate else {
            return;
        };
        let joined = membership
            .members
            .values()
            .find(|m| m.folder_id == candidate.folder_id);
        let Some(record) = joined.cloned() else {
            return;
        };
        self.candidate = None;
        let clock = Clock::draw(&mut self.random, DRIFT_PERCENT_MAX);
        let id = record.id;
        let mut member = Member::new(record, clock, sim.programs.installed);
        member.found(sim, false);
        member.start(sim);
        members.insert(id, member);
    }

    /// Switches off who is gone, sooner or later.
    fn bid_farewell(
        &mut self,
        sim: &mut Surroundings,
        members: &mut Members,
        membership: &Membership,
    ) {
        if self.unsettled {
            return;
        }
        for id in self.leaving.clone() {
            let gone = membership.last_member_id >= id && !membership.members.contains_key(&id);
            if gone && self.random.chance(200_000) {
                if let Some(mut member) = members.remove(&id) {
                    member.kill(sim);
                    sim.note(format_args!("{id} is switched off"));
                }
                self.leaving.remove(&id);
                self.condemned.remove(&id);
            }
        }
    }

    fn next_step(&mut self, now: &Membership, members: &Members, leader: MemberId) -> Option<Step> {
        let alone = now.voters().count() == 1;
        // Who is lost first, then who works and is to go all the same.
        let lost = now.members.keys().find(|id| is_lost(**id, members));
        // As long as one may be lost, the cluster cannot do without another.
        let sound = members.values().all(Member::is_sound);
        let condemned = now
            .members
            .keys()
            .find(|id| sound && self.condemned.contains(id));
        let useless = lost.or(condemned);
        if let Some(id) = useless.copied() {
            if !alone || now.voters().all(|voter| voter.id != id) {
                return Some(self.remove(id, leader));
            }
            // The last voter cannot go before another can take its place.
            if now.members.len() > 1 {
                return self.promotion(now, members);
            }
            return Some(self.addition(now));
        }
        if let Some(promotion) = self.promotion(now, members) {
            return Some(promotion);
        }
        match now.members.len() {
            count if count < self.wanted => Some(self.addition(now)),
            count if count > self.wanted && sound => {
                let ids: Vec<_> = now.members.keys().copied().collect();
                let id = *self.random.pick(&ids)?;
                Some(self.remove(id, leader))
            }
            _ => {
                // Nothing of it can be in any log that counts, so its folder stays empty for ever.
                self.candidate = None;
                None
            }
        }
    }

    /// Mostly of one that is up; that others are refused is the leader's affair.
    fn promotion(&mut self, now: &Membership, members: &Members) -> Option<Step> {
        let any = self.random.chance(500_000);
        let learner = now
            .learners()
            .find(|m| any || members.get(&m.id).is_some_and(Member::is_up))?;
        Some(Step::Change(MembershipChange::Promote(learner.id)))
    }

    fn remove(&mut self, id: MemberId, leader: MemberId) -> Step {
        if id == leader {
            return Step::Transfer;
        }
        self.leaving.insert(id);
        Step::Change(MembershipChange::Remove(id))
    }

    fn addition(&mut self, now: &Membership) -> Step {
        let id = now.next_member_id();
        let mut record = match self.candidate.take() {
            Some(record) => record,
            None => self.new_record(id),
        };
        record.id = id;
        self.candidate = Some(record.clone());
        Step::Change(MembershipChange::AddLearner(record))
    }

    fn ask(&mut self, sim: &mut Surroundings, members: &mut Members, leader: MemberId, step: Step) {
        if let Step::Change(MembershipChange::Promote(id)) = step
            && members.get(&id).is_some_and(Member::is_up)
            && ambush::over_promotion(sim, id)
        {
            // It looks away until nobody can have heard that learner for long.
            self.waiting = Some(sim.now + SILENT_AFTER);
            return;
        }
        self.requests += 1;
        let until = sim.now + PATIENCE;
        self.waiting = Some(until);
        let caller = sim.mailbox.ticket(Asker::Operator(self.requests), until);
        let request = match step {
            Step::Change(change) => {
                sim.note(format_args!("operator asks {leader} for {}", name(&change)));
                sim.count("membership changes asked for");
                self.unsettled = true;
                self.promotes_silent = is_silent(sim, members, &change);
                Request::Change { change, caller }
            }
            Step::Settle => Request::settle(caller),
            Step::Transfer => Request::Transfer { to: None, caller },
        };
        if let Some(member) = members.get_mut(&leader) {
            member.give(sim, Input::Request(request));
        }
    }
}

/// Whether it promotes a member that has been down for longer than any election timeout, and of which nothing comes late.
fn is_silent(sim: &Surroundings, members: &Members, change: &MembershipChange) -> bool {
    let late = sim.plan.weather.strays > 0 || sim.plan.faults.iter().any(|(it, _)| it.comes_late());
    let MembershipChange::Promote(id) = change else {
        return false;
    };
    let down_for = members.get(id).map_or(0, |it| it.down_for(sim.now));
    !late && down_for > SILENT_AFTER
}

fn is_lost(id: MemberId, members: &Members) -> bool {
    members
        .get(&id)
        .is_none_or(|m| matches!(m.health, Health::Lost | Health::Suspect))
}

fn name(change: &MembershipChange) -> String {
    match change {
        MembershipChange::Bootstrap { .. } => "a bootstrap".to_owned(),
        MembershipChange::AddLearner(member) => {
            format!("learner {}, {}", member.id, member.folder_id)
        }
        MembershipChange::Promote(id) => format!("the promotion of {id}"),
        MembershipChange::Remove(id) => format!("the removal of {id}"),
    }
}

/// The member that says it leads, in the highest term that any such says, and the members it knows.
pub(super) fn newest_leader(members: &Members) -> Option<(MemberId, Arc<Membership>)> {
    let leaders = members.values().filter(|member| member.is_leader());
    let newest = leaders.max_by_key(|member| member.state().map(|state| state.term))?;
    Some((newest.id, newest.membership()?))
}
