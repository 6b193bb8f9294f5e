//! Handing leadership to another voter (Raft thesis §3.10).

use super::env::Caller;
use super::{Env, Replica, RequestError};
use crate::consensus::{Event, LogRead, Refusal, Role, State};
use crate::types::{MemberId, Moment};

/// A transfer is given up after so many election timeouts.
const PATIENCE_TIMEOUTS: u32 = 2;

/// A transfer that is under way.
pub(super) struct Transfer<C> {
    to: MemberId,
    caller: C,
    give_up_at: Moment,
}

impl<L: LogRead, E: Env> Replica<L, E> {
    pub(super) fn on_transfer(&mut self, to: Option<MemberId>, caller: E::Transfer) {
        match self.check_transfer(to) {
            Ok(to) => {
                self.transfer = Some(Transfer {
                    to,
                    caller,
                    give_up_at: self
                        .now
                        .after(self.config.election_timeout * PATIENCE_TIMEOUTS),
                });
                self.step(Event::TransferLeader(to));
            }
            Err(answer) => caller.answer(answer),
        }
    }

    /// To whom; or the answer, if there is nothing to do or it cannot be done.
    fn check_transfer(
        &self,
        to: Option<MemberId>,
    ) -> Result<MemberId, Result<crate::types::Term, RequestError>> {
        let state = self.consensus.state();
        if to.is_some() && state.leader == to {
            return Err(Ok(state.term));
        }
        if state.role != Role::Leader {
            return Err(Err(self.request_error(Refusal::NotLeader)));
        }
        if self.transfer.is_some() {
            return Err(Err(RequestError::NotServed {
                reason: "another transfer is under way".to_owned(),
            }));
        }
        let to = to.or_else(|| self.successor()).ok_or_else(|| {
            let reason = "no other voter answers that could lead";
            Err(RequestError::Refused(reason.to_owned()))
        })?;
        if !self.is_voter(to) {
            let reason = format!("member {to} is no voter of this cluster");
            return Err(Err(RequestError::Refused(reason)));
        }
        Ok(to)
    }

    /// The voter that would take over soonest: one that answers and lacks the least.
    fn successor(&self) -> Option<MemberId> {
        let progress = self.consensus.progress().into_iter();
        progress
            .filter(|p| p.voter && p.recently_active && p.member != self.config.member_id)
            .max_by_key(|p| (p.matched, std::cmp::Reverse(p.member)))
            .map(|p| p.member)
    }

    pub(super) fn tick_transfer(&mut self) {
        if let Some(late) = self.transfer.take_if(|t| t.give_up_at <= self.now) {
            late.caller.answer(Err(RequestError::NotServed {
                reason: format!("member {} did not take over in time", late.to),
            }));
        }
        if let Some(to) = self.transfer.as_ref().map(|t| t.to) {
            // The first attempt is lost on a voter that has not applied its own promotion yet. Asking
            // again while one is under way changes nothing.
            self.step(Event::TransferLeader(to));
        }
    }

    pub(super) fn finish_transfer(&mut self, state: State) {
        if let Some(done) = self.transfer.take_if(|t| state.leader == Some(t.to)) {
            done.caller.answer(Ok(state.term));
        }
    }
}
