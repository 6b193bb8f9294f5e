//! Handing leadership to another voter (Raft thesis §3.10).

use dengine_types::{MemberId, Moment};

use super::{Replica, RequestError};
use crate::consensus::{LogRead, Progress, Refusal, ReplicaState, Role};
use crate::input::{Successor, Token};
use crate::output::Output;

/// A transfer is given up after so many election timeouts.
const PATIENCE_TIMEOUTS: u32 = 2;

/// A transfer that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    to: MemberId,
    /// `None` if nobody asked for it.
    token: Option<Token>,
    give_up_at: Moment,
}

/// What there is to do for a transfer.
enum Check {
    /// To this voter.
    To(MemberId),
    /// Nothing: it leads.
    Leads,
}

impl<L: LogRead> Replica<L> {
    pub(super) fn on_transfer(&mut self, token: Token, to: Successor) {
        match self.check_transfer(to) {
            Ok(Check::To(to)) => self.begin_transfer(Some(token), to),
            Ok(Check::Leads) => {
                let term = self.consensus.state().term;
                self.outputs.push(Output::Transferred { token, term });
            }
            Err(error) => self.refuse(vec![token], error),
        }
    }

    pub(super) fn begin_transfer(&mut self, token: Option<Token>, to: MemberId) {
        let patience = self.config.election_timeout * PATIENCE_TIMEOUTS;
        self.transfer = Some(Transfer {
            to,
            token,
            give_up_at: self.now.after(patience),
        });
        self.consensus.transfer_leader(to);
    }

    fn check_transfer(&self, to: Successor) -> Result<Check, RequestError> {
        let state = self.consensus.state();
        if let Successor::Named(to) = to
            && state.leader == Some(to)
        {
            return Ok(Check::Leads);
        }
        if state.role != Role::Leader {
            return Err(self.request_error(Refusal::NotLeader));
        }
        if self.transfer.is_some() {
            return Err(RequestError::NotServed {
                reason: "another transfer is under way".to_owned(),
            });
        }
        let others = self.consensus.progress();
        let others = others.iter().filter(|p| p.member != self.config.member_id);
        let to = successor(to, others).ok_or_else(|| {
            let reason = "no other voter answers that could lead";
            RequestError::Refused(reason.to_owned())
        })?;
        if !self.is_voter(to) {
            let reason = format!("member {to} is no voter of this cluster");
            return Err(RequestError::Refused(reason));
        }
        Ok(Check::To(to))
    }

    pub(super) fn tick_transfer(&mut self) {
        if let Some(late) = self.transfer.take_if(|t| t.give_up_at <= self.now) {
            let error = RequestError::NotServed {
                reason: format!("member {} did not take over in time", late.to),
            };
            self.refuse(late.token.into_iter().collect(), error);
        }
        if let Some(to) = self.transfer.as_ref().map(|t| t.to) {
            // The first attempt is lost on a voter that has not applied its own promotion yet.
            // Asking again while one is under way changes nothing.
            self.consensus.transfer_leader(to);
        }
    }

    pub(super) fn finish_transfer(&mut self, state: ReplicaState) {
        if let Some(done) = self.transfer.take_if(|t| state.leader == Some(t.to)) {
            let term = state.term;
            let done = done.token.map(|token| Output::Transferred { token, term });
            self.outputs.extend(done);
        }
    }
}

/// Of those that answer, the one that lacks the least would take over soonest.
fn successor<'a>(to: Successor, others: impl Iterator<Item = &'a Progress>) -> Option<MemberId> {
    let could = others.filter(|p| p.voter && p.recently_active);
    // A voter that is far behind, or waits for a snapshot, does not take over in time, and nothing
    // else is served meanwhile.
    let soonest = |p: &&Progress| {
        let suits = (p.keeps_up, p.fit != Some(false));
        (suits, p.matched, std::cmp::Reverse(p.member))
    };
    match to {
        Successor::Named(member) => Some(member),
        Successor::Soonest => could.max_by_key(soonest).map(|p| p.member),
        Successor::Fit => could
            .filter(|p| p.fit == Some(true) && p.keeps_up)
            .max_by_key(soonest)
            .map(|p| p.member),
    }
}

#[cfg(test)]
mod tests {
    use dengine_types::Index;

    use super::*;

    #[test]
    fn who_has_space_comes_before_who_lacks_less_and_nobody_is_asked_for_a_disk_that_nobody_has() {
        const YES: Option<bool> = Some(true);
        const NO: Option<bool> = Some(false);
        let of = |member, matched, fit| Progress {
            member: MemberId(member),
            matched: Index(matched),
            recently_active: true,
            keeps_up: true,
            fit,
            voter: true,
        };
        let silent = |it| Progress {
            recently_active: false,
            ..it
        };
        let learner = |it| Progress { voter: false, ..it };
        let behind = |it| Progress {
            keeps_up: false,
            ..it
        };
        for (others, soonest, fit) in [
            (vec![of(2, 7, YES), of(3, 9, NO)], Some(2), Some(2)),
            (vec![of(2, 7, YES), of(3, 9, YES)], Some(3), Some(3)),
            (vec![of(2, 9, YES), of(3, 9, YES)], Some(2), Some(2)),
            (vec![of(2, 7, NO), of(3, 9, NO)], Some(3), None),
            (vec![of(2, 7, None), of(3, 9, NO)], Some(2), None),
            (vec![of(2, 7, YES), of(3, 9, None)], Some(3), Some(2)),
            (vec![silent(of(2, 9, YES)), of(3, 7, NO)], Some(3), None),
            (vec![learner(of(2, 9, YES))], None, None),
            (vec![behind(of(2, 3, YES)), of(3, 9, NO)], Some(3), None),
            (
                vec![behind(of(2, 3, YES)), behind(of(3, 9, NO))],
                Some(2),
                None,
            ),
        ] {
            let chosen = |to| successor(to, others.iter()).map(|it| it.0);
            let chosen = (chosen(Successor::Soonest), chosen(Successor::Fit));
            assert_eq!(chosen, (soonest, fit), "{others:?}");
        }
        let named = Successor::Named(MemberId(4));
        assert_eq!(successor(named, [].iter()), Some(MemberId(4)));
    }
}
