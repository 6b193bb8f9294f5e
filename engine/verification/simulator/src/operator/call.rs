//! A change that a member is asked for. What its `Node` does around core's [`Changing`] is done
//! here: nothing but what that says.

use std::time::Duration;

use dengine_kv::Outcome;
use dengine_raft::replica::{ChangeStep, Changed, Changing, MembershipRequest, RequestError};
use dengine_raft::{Confirm, Write, Written};
use dengine_types::{Index, MemberId};

use super::silence::Silence;
use crate::invariants::Broken;
use crate::member::Member;
use crate::queue::Nanos;
use crate::surroundings::Surroundings;
use crate::ticket::{Answered, Asker, Request, Ticket};
use crate::world::Members;

pub(super) struct Call {
    pub(super) request: MembershipRequest,
    /// Of all requests of the operator.
    number: u64,
    /// Whom it was sent to.
    at: MemberId,
    until: Nanos,
    changing: Changing,
    /// What whoever keeps up has, if the leader can tell.
    due: Option<Index>,
    /// Whom the change must not count on.
    silence: Option<Silence>,
}

/// What a call came to.
pub(super) type Answer = Result<Changed, RequestError>;

impl Call {
    pub(super) fn begin(
        sim: &mut Surroundings,
        members: &mut Members,
        (number, at, until): (u64, MemberId, Nanos),
        (request, due): (MembershipRequest, Option<Index>),
    ) -> Self {
        sim.note(format_args!("operator asks {at} for {}", name(&request)));
        sim.count("membership changes asked for");
        let (changing, step) = Changing::begin(request.clone());
        let mut call = Self {
            request,
            number,
            at,
            until,
            changing,
            due,
            silence: None,
        };
        call.go_on(sim, members, step);
        call
    }

    /// Goes on with what the replica or the applier answered. Returns the answer to the call, once
    /// there is one.
    ///
    /// # Errors
    /// What should have been refused was done.
    pub(super) fn on_answer(
        &mut self,
        sim: &mut Surroundings,
        members: &mut Members,
        answered: Answered,
    ) -> Result<Option<Answer>, Broken> {
        let step = match answered {
            Answered::MayRead(read) => {
                let Some(known) = members.get(&self.at).and_then(Member::membership) else {
                    return Ok(None);
                };
                self.changing.on_confirmed(read.map(|()| known))
            }
            Answered::Written(written) => {
                if let Some(silence) = self.silence.take().filter(|_| was_made(&written)) {
                    silence.judge(members)?;
                }
                self.changing.on_written(written)
            }
            Answered::Lease(_) | Answered::Leads => return Ok(None),
        };
        Ok(self.go_on(sim, members, step))
    }

    fn go_on(
        &mut self,
        sim: &mut Surroundings,
        members: &mut Members,
        step: ChangeStep,
    ) -> Option<Answer> {
        let request = match step {
            ChangeStep::Confirm => Request::Read(Confirm::Quorum),
            ChangeStep::Replicate(change) => {
                self.silence = Silence::before(sim, members, (self.at, self.due), &change);
                Request::Write(Write::Change(change))
            }
            ChangeStep::Settle => Request::Write(Write::settle()),
            ChangeStep::Over(answer) => return Some(answer),
            ChangeStep::Unknown => {
                let waited = Duration::ZERO;
                return Some(Err(RequestError::UnknownOutcome { waited }));
            }
        };
        if let Some(member) = members.get_mut(&self.at) {
            let ticket = Ticket {
                asker: Asker::Operator(self.number),
                deadline: self.until,
            };
            member.ask(sim, request, ticket);
        }
        None
    }
}

fn was_made(written: &Result<Written, RequestError>) -> bool {
    let outcome = written.as_ref().map(|written| &written.outcome);
    matches!(outcome, Ok(Outcome::Membership(Ok(_))))
}

fn name(request: &MembershipRequest) -> String {
    match request {
        MembershipRequest::AddLearner(new) => format!("a learner, {}", new.folder_id),
        MembershipRequest::Promote(id) => format!("the promotion of {id}"),
        MembershipRequest::Remove(id) => format!("the removal of {id}"),
    }
}
