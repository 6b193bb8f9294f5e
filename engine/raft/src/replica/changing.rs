//! A change of the members, from what somebody asks for to the answer: what is so already, what is
//! replicated, and what has to be on disk before it is answered.
//!
//! A caller that gets an unknown outcome, or no answer, repeats the call; the result is the same.
//! `dengine` carries the steps out for calls of its `Node`, the simulator for the
//! operator of its cluster.

use std::sync::Arc;

use dengine_kv::{Member, Membership, MembershipChange, Outcome};
use dengine_planted::planted;
use dengine_types::MemberId;

use super::RequestError;
use crate::output::Written;

/// A member that wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// Unique among the members.
    pub name: String,
    /// `host:port` for the other members.
    pub peer_address: String,
    /// `host:port` for clients.
    pub client_address: String,
    /// The id of the new member's data directory (`folder_id`).
    pub folder_id: String,
}

impl NewMember {
    /// The learner that it is under this id.
    #[must_use]
    pub fn under(self, id: MemberId) -> Member {
        Member {
            id,
            name: self.name,
            peer_address: self.peer_address,
            client_address: self.client_address,
            folder_id: self.folder_id,
            voter: false,
        }
    }
}

/// What somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipRequest {
    /// Somebody is to get the log, and not to vote. Idempotent by folder id.
    AddLearner(NewMember),
    /// This learner is to vote.
    Promote(MemberId),
    /// This member is to be gone forever.
    Remove(MemberId),
}

/// It is as was asked for, and outlives any crash of a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Whom it is about.
    pub member: MemberId,
    /// The members then.
    pub membership: Arc<Membership>,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeStep {
    /// [`Input::Read`](crate::Input::Read), and then [`Changing::on_confirmed`] with the members
    /// that this member knows by then.
    Confirm,
    /// [`Write::Change`](crate::Write::Change); then [`Changing::on_written`].
    Replicate(MembershipChange),
    /// [`Write::settle`](crate::Write::settle); then [`Changing::on_written`].
    Settle,
    /// Answer this.
    Over(Result<Changed, RequestError>),
    /// Answer [`RequestError::UnknownOutcome`], with how long it was waited for.
    Unknown,
}

/// One call, step by step.
#[derive(Debug)]
pub struct Changing {
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Asked(MembershipRequest),
    /// The change that concerns this member is replicated.
    Replicated(MemberId),
    /// It is as was asked for, but perhaps not after a restart of all members.
    Unsettled {
        changed: Changed,
        /// By this call.
        just_now: bool,
    },
    Answered,
}

impl Changing {
    /// Begins with what can be said without knowing any member.
    #[must_use]
    pub fn begin(request: MembershipRequest) -> (Self, ChangeStep) {
        let nobody = matches!(request, MembershipRequest::Remove(MemberId(0)));
        let mut changing = Self {
            stage: Stage::Asked(request),
        };
        let step = match nobody {
            true => changing.fail(RequestError::Invalid("id 0 is reserved".to_owned())),
            false => ChangeStep::Confirm,
        };
        (changing, step)
    }

    /// Who the members are, now that a quorum has confirmed that nothing newer was acknowledged
    /// before; or why it has not.
    pub fn on_confirmed(&mut self, members: Result<Arc<Membership>, RequestError>) -> ChangeStep {
        let Stage::Asked(request) = std::mem::replace(&mut self.stage, Stage::Answered) else {
            unreachable!("it is confirmed once, before anything else")
        };
        let members = match members {
            Ok(members) => members,
            Err(error) => return self.fail(error),
        };
        match decide(request, &members) {
            Ok(Decision::Make(change, member)) => {
                self.stage = Stage::Replicated(member);
                ChangeStep::Replicate(change)
            }
            Ok(Decision::IsSo(member)) => self.settle(member, members, false),
            Err(error) => self.fail(error),
        }
    }

    /// What came of the entry that was to be replicated.
    pub fn on_written(&mut self, written: Result<Written, RequestError>) -> ChangeStep {
        match (std::mem::replace(&mut self.stage, Stage::Answered), written) {
            (Stage::Replicated(member), Ok(written)) => self.on_outcome(member, written.outcome),
            (Stage::Unsettled { changed, .. }, Ok(_)) => ChangeStep::Over(Ok(changed)),
            // It was made, so nothing milder is true.
            (Stage::Unsettled { just_now: true, .. }, Err(_)) => ChangeStep::Unknown,
            (Stage::Replicated(_) | Stage::Unsettled { .. }, Err(error)) => self.fail(error),
            (Stage::Asked(_) | Stage::Answered, _) => unreachable!("nothing was to be replicated"),
        }
    }

    fn on_outcome(&mut self, member: MemberId, outcome: Outcome) -> ChangeStep {
        match outcome {
            Outcome::Membership(Ok(membership)) => self.settle(member, membership, true),
            Outcome::Membership(Err(refusal)) => {
                self.fail(RequestError::Refused(refusal.to_string()))
            }
            Outcome::Put { .. }
            | Outcome::Delete { .. }
            | Outcome::CompareAndSwap { .. }
            | Outcome::Batch { .. }
            | Outcome::Compact { .. }
            | Outcome::SessionOpened { .. }
            | Outcome::SessionKept
            | Outcome::SessionClosed { .. }
            | Outcome::ExpireKeys { .. }
            | Outcome::LeaseGranted { .. }
            | Outcome::LeaseEnded { .. }
            | Outcome::LeasesCheckpointed { .. }
            | Outcome::Empty
            | Outcome::Rejected(_)
            | Outcome::Refused(_)
            | Outcome::Trimmed(_) => {
                unreachable!("a membership entry had the outcome {outcome:?}")
            }
        }
    }

    /// What is so already is settled too: the caller that made it so may have come no further.
    fn settle(
        &mut self,
        member: MemberId,
        membership: Arc<Membership>,
        just_now: bool,
    ) -> ChangeStep {
        let changed = Changed { member, membership };
        if planted!(ChangeNotSettled) {
            return ChangeStep::Over(Ok(changed));
        }
        self.stage = Stage::Unsettled { changed, just_now };
        ChangeStep::Settle
    }

    fn fail(&mut self, error: RequestError) -> ChangeStep {
        self.stage = Stage::Answered;
        ChangeStep::Over(Err(error))
    }
}

enum Decision {
    /// The members are as was asked for, with this one or without it.
    IsSo(MemberId),
    /// This change, which concerns this member, makes them so.
    Make(MembershipChange, MemberId),
}

fn decide(request: MembershipRequest, members: &Membership) -> Result<Decision, RequestError> {
    let refused = |reason| Err(RequestError::Refused(reason));
    match request {
        MembershipRequest::AddLearner(new) => decide_addition(new, members),
        MembershipRequest::Promote(id) => match members.members.get(&id) {
            Some(member) if member.voter => Ok(Decision::IsSo(id)),
            Some(_) => Ok(Decision::Make(MembershipChange::Promote(id), id)),
            None => refused(format!("there is no member {id}")),
        },
        MembershipRequest::Remove(id) if id > members.last_member_id => {
            refused(format!("there was never a member {id}"))
        }
        MembershipRequest::Remove(id) => match members.members.contains_key(&id) {
            true => Ok(Decision::Make(MembershipChange::Remove(id), id)),
            false => Ok(Decision::IsSo(id)),
        },
    }
}

fn decide_addition(new: NewMember, members: &Membership) -> Result<Decision, RequestError> {
    let mut known = members.members.values();
    if let Some(member) = known.find(|it| it.folder_id == new.folder_id) {
        return Ok(Decision::IsSo(member.id));
    }
    let member = new.under(members.next_member_id());
    let invalid = |refusal| RequestError::Invalid(ToString::to_string(&refusal));
    member.check_texts().map_err(invalid)?;
    let id = member.id;
    Ok(Decision::Make(MembershipChange::AddLearner(member), id))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dengine_kv::MembershipRefusal;
    use dengine_types::{ClusterId, Revision, Term};

    use super::*;

    fn new_member(folder: &str) -> NewMember {
        NewMember {
            name: format!("name of {folder}"),
            peer_address: "peer:1".to_owned(),
            client_address: "client:1".to_owned(),
            folder_id: folder.to_owned(),
        }
    }

    /// Voter 1, learner 2, and no 3 any more.
    fn members() -> Membership {
        let first = NewMember {
            peer_address: "first:1".to_owned(),
            ..new_member("first")
        };
        let second = NewMember {
            peer_address: "second:1".to_owned(),
            ..new_member("second")
        };
        let mut members = Membership::default();
        let cluster_id = ClusterId(7);
        let changes = [
            MembershipChange::Bootstrap {
                cluster_id,
                member: first.under(MemberId(1)),
                first_revision: Revision(1),
            },
            MembershipChange::AddLearner(second.under(MemberId(2))),
            MembershipChange::AddLearner(new_member("third").under(MemberId(3))),
            MembershipChange::Remove(MemberId(3)),
        ];
        for change in changes {
            members.apply(change).unwrap();
        }
        members
    }

    fn confirmed(request: MembershipRequest, members: &Membership) -> (Changing, ChangeStep) {
        let (mut changing, step) = Changing::begin(request);
        assert_eq!(step, ChangeStep::Confirm, "whoever only thinks it leads");
        let step = changing.on_confirmed(Ok(Arc::new(members.clone())));
        (changing, step)
    }

    fn written(outcome: Outcome) -> Result<Written, RequestError> {
        Ok(Written {
            term: Term(1),
            outcome,
            visited: 0,
        })
    }

    fn unknown() -> RequestError {
        RequestError::UnknownOutcome {
            waited: Duration::from_secs(1),
        }
    }

    fn refused(step: ChangeStep) -> String {
        match step {
            ChangeStep::Over(Err(RequestError::Refused(reason))) => reason,
            other => panic!("{other:?}"),
        }
    }

    /// Takes the step that was asked for, applies it, and goes on to what it is then.
    fn replicate(
        changing: &mut Changing,
        step: ChangeStep,
        members: &mut Membership,
    ) -> ChangeStep {
        let ChangeStep::Replicate(change) = step else {
            panic!("{step:?}")
        };
        let applied = members.apply(change).map(|()| Arc::new(members.clone()));
        changing.on_written(written(Outcome::Membership(applied)))
    }

    fn requests() -> [(MembershipRequest, MemberId); 3] {
        let add = MembershipRequest::AddLearner(new_member("new"));
        let (second, fourth) = (MemberId(2), MemberId(4));
        [
            (add, fourth),
            (MembershipRequest::Promote(second), second),
            (MembershipRequest::Remove(second), second),
        ]
    }

    #[test]
    fn a_change_is_answered_once_it_is_settled() {
        for (request, member) in requests() {
            let mut members = members();
            let (mut changing, step) = confirmed(request, &members);
            let step = replicate(&mut changing, step, &mut members);
            assert_eq!(step, ChangeStep::Settle);
            let membership = Arc::new(members);
            let changed = Changed { member, membership };
            let step = changing.on_written(written(Outcome::Empty));
            assert_eq!(step, ChangeStep::Over(Ok(changed)));
        }
    }

    #[test]
    fn what_was_made_and_not_settled_has_an_unknown_outcome() {
        for (request, _) in requests() {
            let mut members = members();
            let (mut changing, step) = confirmed(request, &members);
            assert_eq!(
                replicate(&mut changing, step, &mut members),
                ChangeStep::Settle
            );
            let error = RequestError::NotLeader { leader: None };
            assert_eq!(changing.on_written(Err(error)), ChangeStep::Unknown);
        }
    }

    /// No caller heard whether it was made. A caller that asks again hears of the same members, and
    /// not before they are settled.
    #[test]
    fn what_is_asked_again_after_an_unknown_outcome_becomes_the_same() {
        for (request, member) in requests() {
            let mut members = members();
            let (mut changing, step) = confirmed(request.clone(), &members);
            replicate(&mut changing, step, &mut members);
            let (mut again, step) = confirmed(request.clone(), &members);
            assert_eq!(step, ChangeStep::Settle, "{request:?}");
            let membership = Arc::new(members.clone());
            let changed = Changed { member, membership };
            let answered = again.on_written(written(Outcome::Empty));
            assert_eq!(answered, ChangeStep::Over(Ok(changed)));
            // This call has changed nothing, so why it could not settle is true as it stands.
            let (mut again, _) = confirmed(request, &members);
            let error = RequestError::NotLeader { leader: None };
            let step = again.on_written(Err(error.clone()));
            assert_eq!(step, ChangeStep::Over(Err(error)));
        }
    }

    #[test]
    fn what_was_not_made_is_made_when_it_is_asked_again() {
        for (request, _) in requests() {
            let members = members();
            let (mut changing, first) = confirmed(request.clone(), &members);
            let step = changing.on_written(Err(unknown()));
            assert_eq!(step, ChangeStep::Over(Err(unknown())));
            assert_eq!(confirmed(request, &members).1, first);
        }
    }

    #[test]
    fn nothing_is_changed_before_a_read_is_confirmed() {
        for (request, _) in requests() {
            let (mut changing, _) = Changing::begin(request);
            let error = RequestError::NotLeader { leader: None };
            let step = changing.on_confirmed(Err(error.clone()));
            assert_eq!(step, ChangeStep::Over(Err(error)));
        }
    }

    #[test]
    fn who_does_not_exist_is_refused() {
        let refused = |request| refused(confirmed(request, &members()).1);
        let (third, fourth) = (MemberId(3), MemberId(4));
        let promote = |id| refused(MembershipRequest::Promote(id));
        assert_eq!(promote(third), "there is no member 3");
        assert_eq!(promote(fourth), "there is no member 4");
        let removal = refused(MembershipRequest::Remove(fourth));
        assert_eq!(removal, "there was never a member 4");
        let (_, step) = Changing::begin(MembershipRequest::Remove(MemberId(0)));
        let invalid = RequestError::Invalid("id 0 is reserved".to_owned());
        assert_eq!(step, ChangeStep::Over(Err(invalid)));
    }

    /// Also of the one that joined last.
    #[test]
    fn who_was_ever_a_member_can_be_removed() {
        let mut members = members();
        let third = MemberId(3);
        let remove = |id, members: &Membership| confirmed(MembershipRequest::Remove(id), members).1;
        assert_eq!(remove(third, &members), ChangeStep::Settle, "it is gone");
        let fourth = MemberId(4);
        let joins = MembershipChange::AddLearner(new_member("fourth").under(fourth));
        members.apply(joins).unwrap();
        let leaves = MembershipChange::Remove(fourth);
        assert_eq!(remove(fourth, &members), ChangeStep::Replicate(leaves));
    }

    #[test]
    fn a_new_member_gets_an_id_of_its_own_and_must_have_sound_addresses() {
        let add = |new| confirmed(MembershipRequest::AddLearner(new), &members());
        let expected = new_member("new").under(MemberId(4));
        let expected = MembershipChange::AddLearner(expected);
        assert_eq!(add(new_member("new")).1, ChangeStep::Replicate(expected));
        let unsound = NewMember {
            peer_address: "nowhere".to_owned(),
            ..new_member("new")
        };
        let step = add(unsound).1;
        assert!(matches!(
            step,
            ChangeStep::Over(Err(RequestError::Invalid(_)))
        ));
    }

    #[test]
    fn what_the_state_machine_refuses_is_refused() {
        let (mut changing, _) = confirmed(MembershipRequest::Promote(MemberId(2)), &members());
        let refusal = MembershipRefusal::AlreadyVoter(MemberId(2));
        let step = changing.on_written(written(Outcome::Membership(Err(refusal.clone()))));
        assert_eq!(refused(step), refusal.to_string());
    }
}
