//! Whoever runs the cluster: keeps it at its size, one membership change at a time, and replaces
//! members that are no use any more by empty ones under ids of their own.
//!
//! It knows of members only what they say themselves, and remembers nothing that it could look up,
//! but what it was not answered: that it asks for again.

mod call;
pub(super) mod silence;

use std::collections::BTreeSet;
use std::sync::Arc;

use dengine_kv::Membership;
use dengine_raft::Successor;
use dengine_raft::replica::{MembershipRequest, NewMember, RequestError};
use dengine_types::MemberId;

use super::clock::Clock;
use super::invariants::Broken;
use super::member::{DRIFT_PERCENT_MAX, Health, Member};
use super::queue::{MILLI, Nanos};
use super::random::Random;
use super::surroundings::{Event, Surroundings};
use super::ticket::{Answered, Asker, Request, Ticket};
use super::world::Members;
use super::{loss, targeted_fault};
use call::Call;
use silence::LogEnds;

/// How long it waits for an answer.
const PATIENCE: Nanos = 4_000 * MILLI;

pub(super) struct Operator {
    random: Random,
    /// How many voters there shall be.
    pub(super) wanted: usize,
    /// Members to replace although they work.
    pub(super) condemned: BTreeSet<MemberId>,
    /// Members that it wants to be rid of; they may be gone already.
    leaving: BTreeSet<MemberId>,
    /// Those of which it was answered that they are gone.
    gone: BTreeSet<MemberId>,
    /// An empty folder that is to join. It learns its id from the members.
    candidate: Option<NewMember>,
    folders: u64,
    requests: u64,
    /// Until when it waits for an answer to its last request, or looks away.
    waiting: Option<Nanos>,
    /// The change that a member was asked for last, if it was not answered yet.
    call: Option<Call>,
    /// What it was not answered, so that it may have been done.
    unanswered: Option<MembershipRequest>,
    /// Nothing was answered since it first asked for something.
    unsettled: bool,
    ends: LogEnds,
    /// Since when nobody leads, and a majority of the voters may have lost what it acknowledged.
    stuck_since: Option<Nanos>,
}

/// What it does next.
enum OperatorStep {
    Change(MembershipRequest),
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
            gone: BTreeSet::new(),
            candidate: None,
            folders: 0,
            requests: 0,
            waiting: None,
            call: None,
            unanswered: None,
            unsettled: false,
            ends: LogEnds::default(),
            stuck_since: None,
        }
    }

    /// What a new folder's member is called.
    pub(super) fn new_member(&mut self) -> NewMember {
        self.folders += 1;
        let folder = self.folders;
        NewMember {
            name: format!("member-{folder}"),
            peer_address: format!("peer-{folder}:1"),
            client_address: format!("client-{folder}:1"),
            folder_id: format!("folder-{folder}"),
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
    pub(super) fn on_answer(
        &mut self,
        sim: &mut Surroundings,
        members: &mut Members,
        (request, answered): (u64, Answered),
    ) -> Result<(), Broken> {
        if request != self.requests {
            return Ok(());
        }
        let Some(mut call) = self.call.take() else {
            self.waiting = None;
            return Ok(());
        };
        match call.on_answer(sim, members, answered)? {
            None => self.call = Some(call),
            Some(result) => {
                self.waiting = None;
                self.on_result(sim, call.request, result);
            }
        }
        Ok(())
    }

    fn on_result(
        &mut self,
        sim: &mut Surroundings,
        request: MembershipRequest,
        result: call::Answer,
    ) {
        match (result, request) {
            (Ok(_), request) => {
                self.unsettled = false;
                self.unanswered = None;
                if let MembershipRequest::Remove(id) = request {
                    self.gone.insert(id);
                    targeted_fault::over_removal(sim, id);
                }
            }
            // What was asked before that may be done yet, but as things are it makes no sense to
            // ask again.
            (Err(RequestError::Refused(_) | RequestError::Invalid(_)), _) => self.unanswered = None,
            (Err(_), request) => self.unanswered = Some(request),
        }
    }

    /// Looks at the cluster, and does the next thing.
    pub(super) fn look(&mut self, sim: &mut Surroundings, members: &mut Members) {
        let delay = self.random.spread(300 * MILLI);
        sim.after(delay, Event::Operator);
        let Some((leader, membership)) = newest_leader(members) else {
            return loss::recover_if_needed(sim, members, &mut self.stuck_since);
        };
        self.stuck_since = None;
        self.ends.look(sim.now, &members[&leader]);
        self.welcome(sim, members, &membership);
        self.bid_farewell(sim, members, &membership);
        if self.waiting.is_some_and(|until| sim.now < until) {
            return;
        }
        self.waiting = None;
        if let Some(call) = self.call.take() {
            self.unanswered = Some(call.request);
        }
        let step = match self.unanswered.clone() {
            Some(request) => Some(OperatorStep::Change(request)),
            None => self.next_step(&membership, members, leader),
        };
        if let Some(step) = step {
            self.ask(sim, members, (leader, &membership), step);
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
        for id in self.gone.clone() {
            let gone = membership.last_member_id >= id && !membership.members.contains_key(&id);
            if gone && self.random.chance(200_000) {
                self.switch_off(sim, members, id);
            }
        }
    }

    /// A member that was removed is not needed any more.
    pub(super) fn switch_off(
        &mut self,
        sim: &mut Surroundings,
        members: &mut Members,
        id: MemberId,
    ) {
        if let Some(mut member) = members.remove(&id) {
            member.kill(sim);
            sim.note(format_args!("{id} is switched off"));
        }
        self.gone.remove(&id);
        self.leaving.remove(&id);
        self.condemned.remove(&id);
    }

    fn next_step(
        &mut self,
        now: &Membership,
        members: &Members,
        leader: MemberId,
    ) -> Option<OperatorStep> {
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
            return Some(self.addition());
        }
        if let Some(promotion) = self.promotion(now, members) {
            return Some(promotion);
        }
        if let Some(repetition) = self.repetition(now) {
            return Some(repetition);
        }
        match now.members.len() {
            count if count < self.wanted => Some(self.addition()),
            count if count > self.wanted && sound => {
                let ids: Vec<_> = now.members.keys().copied().collect();
                let id = *self.random.pick(&ids)?;
                Some(self.remove(id, leader))
            }
            _ => {
                // Nothing of it can be in any log that counts, so its folder stays empty forever.
                self.candidate = None;
                None
            }
        }
    }

    /// Mostly of one that is up; that others are refused is the leader's affair.
    fn promotion(&mut self, now: &Membership, members: &Members) -> Option<OperatorStep> {
        let any = self.random.chance(500_000);
        let learner = now
            .learners()
            .find(|m| any || members.get(&m.id).is_some_and(Member::is_up))?;
        Some(OperatorStep::Change(MembershipRequest::Promote(learner.id)))
    }

    /// Something that is so already, if it is not known to stay so.
    fn repetition(&self, now: &Membership) -> Option<OperatorStep> {
        let left = |id: &&MemberId| !self.gone.contains(id) && !now.members.contains_key(id);
        let unheard = self.leaving.iter().find(left).copied();
        let left = unheard.filter(|id| now.last_member_id >= *id);
        let voter = now.voters().next().filter(|_| self.unsettled);
        let again = left.map(MembershipRequest::Remove);
        again
            .or(voter.map(|it| MembershipRequest::Promote(it.id)))
            .map(OperatorStep::Change)
    }

    fn remove(&mut self, id: MemberId, leader: MemberId) -> OperatorStep {
        if id == leader {
            return OperatorStep::Transfer;
        }
        self.leaving.insert(id);
        // An accepted loss may have brought it back.
        self.gone.remove(&id);
        OperatorStep::Change(MembershipRequest::Remove(id))
    }

    fn addition(&mut self) -> OperatorStep {
        let new = match self.candidate.take() {
            Some(new) => new,
            None => self.new_member(),
        };
        self.candidate = Some(new.clone());
        OperatorStep::Change(MembershipRequest::AddLearner(new))
    }

    fn ask(
        &mut self,
        sim: &mut Surroundings,
        members: &mut Members,
        (leader, membership): (MemberId, &Membership),
        step: OperatorStep,
    ) {
        let request = match step {
            OperatorStep::Change(request) => request,
            OperatorStep::Transfer => return self.ask_for_transfer(sim, members, leader),
        };
        if let Some(delay) =
            targeted_fault::over_change(sim, members, (leader, membership), &request)
        {
            // It looks away until nobody can have heard them for long.
            self.waiting = Some(sim.now + delay);
            return;
        }
        self.requests += 1;
        let until = sim.now + PATIENCE;
        self.waiting = Some(until);
        self.unsettled = true;
        let place = (self.requests, leader, until);
        let due = self.ends.due(sim.now);
        self.call = Some(Call::begin(sim, members, place, (request, due)));
    }

    fn ask_for_transfer(
        &mut self,
        sim: &mut Surroundings,
        members: &mut Members,
        leader: MemberId,
    ) {
        self.requests += 1;
        let until = sim.now + PATIENCE;
        self.waiting = Some(until);
        let ticket = Ticket {
            asker: Asker::Operator(self.requests),
            deadline: until,
        };
        let request = Request::Transfer(Successor::Soonest);
        if let Some(member) = members.get_mut(&leader) {
            member.ask(sim, request, ticket);
        }
    }
}

fn is_lost(id: MemberId, members: &Members) -> bool {
    members
        .get(&id)
        .is_none_or(|m| matches!(m.health, Health::Lost | Health::Suspect) || m.is_left_behind())
}

/// The member that says it leads, in the highest term that any such says, and the members it knows.
pub(super) fn newest_leader(members: &Members) -> Option<(MemberId, Arc<Membership>)> {
    let leaders = members.values().filter(|member| member.is_leader());
    let newest = leaders.max_by_key(|member| member.state().map(|state| state.term))?;
    Some((newest.id, newest.membership()?))
}
