//! Which membership changes a leader takes on.

use dengine_kv::MembershipChange;
use dengine_planted::planted;
use dengine_types::{Index, MemberId};

use super::applier::config_change;
use super::{Replica, RequestError};
use crate::consensus::{ConfigChange, LogRead, Progress, Refusal, Role};

/// A learner may vote once it lacks no more than this many entries: about what one message carries.
const PROMOTION_LAG_ENTRIES_MAX: u64 = 1000;

impl<L: LogRead> Replica<L> {
    /// Whether consensus should be asked for this change at all.
    pub(super) fn check_change(
        &self,
        change: &MembershipChange,
    ) -> Result<ConfigChange, RequestError> {
        if self.consensus.state().role != Role::Leader {
            return Err(self.request_error(Refusal::NotLeader));
        }
        if self.change_at > self.applied {
            return Err(RequestError::NotServed {
                reason: "another membership change is under way".to_owned(),
            });
        }
        let checked = match change {
            MembershipChange::Promote(id) => self.check_promotion(*id),
            MembershipChange::Remove(id) => self.check_removal(*id),
            MembershipChange::AddLearner(_) | MembershipChange::Bootstrap { .. } => Ok(()),
        };
        checked.map_err(RequestError::Refused)?;
        Ok(config_change(change))
    }

    fn check_promotion(&self, id: MemberId) -> Result<(), String> {
        let last = self.consensus.last_index();
        may_promote(&self.consensus.progress(), last, id)
    }

    fn check_removal(&self, id: MemberId) -> Result<(), String> {
        may_remove(&self.consensus.progress(), self.config.member_id, id)
    }
}

/// Whether the leader may let this learner vote. From then on it counts towards the quorum, so it
/// must answer, and take entries.
fn may_promote(progress: &[Progress], last: Index, id: MemberId) -> Result<(), String> {
    let learner = progress.iter().find(|p| p.member == id);
    let why = match learner.and_then(|p| p.fit) {
        Some(false) => ": its disk is nearly full, or hangs",
        Some(true) | None => "",
    };
    let Some(learner) = learner.filter(|p| p.matched > Index(0)) else {
        return Err(format!(
            "member {id} has not acknowledged any log entry yet{why}"
        ));
    };
    let lag = last.0.saturating_sub(learner.matched.0);
    if lag > PROMOTION_LAG_ENTRIES_MAX {
        return Err(format!(
            "member {id} lacks {lag} log entries; it can vote once it lacks at most \
             {PROMOTION_LAG_ENTRIES_MAX}{why}"
        ));
    }
    if learner.voter || planted!(SilentLearnerPromoted) {
        return Ok(());
    }
    if !learner.recently_active {
        return Err(format!(
            "member {id} does not answer; with its vote the cluster would need it for a quorum"
        ));
    }
    if !learner.keeps_up && !planted!(StuckLearnerPromoted) {
        return Err(format!(
            "member {id} answers and does not keep up with the log, as if its disk were full; with \
             its vote the cluster would need it for a quorum"
        ));
    }
    let voters = progress.iter().filter(|p| p.voter).count() + 1;
    let answering = answering(progress.iter().filter(|p| p.voter)) + 1;
    if answering < quorum(voters) {
        return Err(format!(
            "with member {id}, only {answering} of {voters} voters would answer and keep up with \
             the log; {} are needed for a quorum",
            quorum(voters)
        ));
    }
    Ok(())
}

/// Whether `leader` may take this member out of the cluster.
fn may_remove(progress: &[Progress], leader: MemberId, id: MemberId) -> Result<(), String> {
    let voters: Vec<_> = progress.iter().filter(|p| p.voter).collect();
    if !voters.iter().any(|p| p.member == id) {
        return Ok(());
    }
    if id == leader && voters.len() > 1 {
        return Err(format!(
            "member {id} leads; transfer leadership to another voter first"
        ));
    }
    let answering = answering(voters.iter().copied().filter(|p| p.member != id));
    let left = voters.len() - 1;
    if left > 0 && answering < quorum(left) {
        return Err(format!(
            "without member {id}, only {answering} of {left} voters answer and keep up with the \
             log; {} are needed for a quorum",
            quorum(left)
        ));
    }
    Ok(())
}

/// How many of them acknowledge entries, as far as it is known.
fn answering<'a>(members: impl Iterator<Item = &'a Progress>) -> usize {
    let keeps_up = |p: &Progress| p.keeps_up || planted!(StuckVoterCounted);
    members.filter(|p| p.recently_active && keeps_up(p)).count()
}

const fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `+` answers, `-` does not, and `~` does but acknowledges nothing, nor does `!`, which says
    /// that it has no space; a voter unless the id is in `learners`. Member 1 leads.
    fn members(answering: &str, learners: &[u64]) -> Vec<Progress> {
        let of = |(member, sign)| Progress {
            member: MemberId(member),
            matched: Index(if sign == '!' { 0 } else { 100 }),
            recently_active: sign != '-',
            keeps_up: !"~!".contains(sign),
            fit: Some(sign != '!'),
            voter: !learners.contains(&member),
        };
        (1..).zip(answering.chars()).map(of).collect()
    }

    fn promote(answering: &str, learner: u64) -> Result<(), String> {
        let members = members(answering, &[learner]);
        may_promote(&members, Index(150), MemberId(learner))
    }

    #[test]
    fn a_learner_that_is_silent_is_not_promoted() {
        assert_eq!(promote("++", 2), Ok(()));
        assert!(promote("+-", 2).unwrap_err().contains("does not answer"));
        assert!(promote("++--", 4).unwrap_err().contains("does not answer"));
    }

    /// Its disk is full, and it answers heartbeats all the same.
    #[test]
    fn a_learner_that_acknowledges_nothing_is_not_promoted() {
        let refused = promote("+~", 2).unwrap_err();
        assert!(refused.contains("does not keep up"), "{refused}");
        assert!(promote("+++~", 4).is_err());
    }

    /// "Has not acknowledged any log entry yet" was all that one heard of a newcomer that refused a
    /// snapshot for want of space.
    #[test]
    fn a_learner_without_space_is_not_promoted_and_it_is_said_why() {
        let refused = promote("++!", 3).unwrap_err();
        assert!(refused.contains("its disk is nearly full"), "{refused}");
    }

    /// Its disk is full, and it answers heartbeats all the same.
    #[test]
    fn who_acknowledges_nothing_is_no_quorum() {
        let remove = |answering| may_remove(&members(answering, &[]), MemberId(1), MemberId(2));
        assert_eq!(remove("+++"), Ok(()));
        assert!(remove("++~").unwrap_err().contains("keep up with the log"));
        assert!(promote("+~~+", 4).unwrap_err().contains("keep up"));
    }

    #[test]
    fn a_promotion_leaves_a_quorum_that_answers() {
        // Three of four voters answer then.
        assert_eq!(promote("++-+", 4), Ok(()));
        let refused = promote("+--+", 4).unwrap_err();
        assert!(
            refused.contains("only 2 of 4 voters would answer"),
            "{refused}"
        );
        assert_eq!(promote("+++--+", 6), Ok(()));
        assert!(promote("++---+", 6).is_err());
    }

    #[test]
    fn a_learner_that_lags_is_not_promoted() {
        let mut members = members("++", &[2]);
        let last = Index(100 + PROMOTION_LAG_ENTRIES_MAX);
        assert_eq!(may_promote(&members, last, MemberId(2)), Ok(()));
        assert!(may_promote(&members, last.next(), MemberId(2)).is_err());
        members[1].matched = Index(0);
        assert!(may_promote(&members, Index(1), MemberId(2)).is_err());
        assert!(may_promote(&members, Index(1), MemberId(3)).is_err());
    }

    #[test]
    fn a_removal_leaves_a_quorum_that_answers() {
        let remove = |answering: &str, id| may_remove(&members(answering, &[]), MemberId(1), id);
        assert_eq!(remove("+++", MemberId(3)), Ok(()));
        assert_eq!(remove("++-", MemberId(3)), Ok(()));
        assert!(remove("++-", MemberId(2)).is_err());
        assert!(remove("+++", MemberId(1)).is_err());
        assert_eq!(remove("+", MemberId(1)), Ok(()));
        assert_eq!(remove("+", MemberId(7)), Ok(()));
    }
}
