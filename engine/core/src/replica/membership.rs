//! Which membership changes a leader takes on.

use super::applier::config_change;
use super::{Env, Replica, RequestError};
use crate::consensus::{ConfigChange, LogRead, Refusal, Role};
use crate::kv::MembershipChange;
use crate::types::{Index, MemberId};

/// A learner may vote once it lacks no more than this many entries: about what one message carries.
const PROMOTION_LAG_ENTRIES_MAX: u64 = 1000;

impl<L: LogRead, E: Env> Replica<L, E> {
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
        let progress = self.consensus.progress();
        let matched = progress.iter().find(|p| p.member == id).map(|p| p.matched);
        let last = self.consensus.last_index().0;
        let lag = match matched {
            None | Some(Index(0)) => {
                return Err(format!(
                    "member {id} has not acknowledged any log entry yet"
                ));
            }
            Some(matched) => last - matched.0.min(last),
        };
        if lag > PROMOTION_LAG_ENTRIES_MAX {
            return Err(format!(
                "member {id} lacks {lag} log entries; it can vote once it lacks at most \
                 {PROMOTION_LAG_ENTRIES_MAX}"
            ));
        }
        Ok(())
    }

    fn check_removal(&self, id: MemberId) -> Result<(), String> {
        let progress = self.consensus.progress();
        let voters: Vec<_> = progress.iter().filter(|p| p.voter).collect();
        if !voters.iter().any(|p| p.member == id) {
            return Ok(());
        }
        if id == self.config.member_id && voters.len() > 1 {
            return Err(format!(
                "member {id} leads; transfer leadership to another voter first"
            ));
        }
        let left = voters.iter().filter(|p| p.member != id);
        let answering = left.filter(|p| p.recently_active).count();
        let quorum = (voters.len() - 1) / 2 + 1;
        if voters.len() > 1 && answering < quorum {
            return Err(format!(
                "without member {id}, only {answering} of {} voters answer; {quorum} are needed for a quorum",
                voters.len() - 1
            ));
        }
        Ok(())
    }
}
