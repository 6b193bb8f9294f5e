//! Questions about leases, which only the leader can answer, and what it proposes about them.
//!
//! The answer counts only if it is given by who leads, and by one who has applied whatever an
//! earlier leader may have proposed. So a question is confirmed like a read, and answered only if
//! this member has led in one term all the while.

use std::collections::BTreeMap;

use dengine_kv::{Command, Request, StateMachine, Store, StoreError};
use dengine_planted::planted;
use dengine_types::{LeaseId, Term};

use super::Replica;
use super::lessor::{Asked, LeaseChange, Lessor};
use crate::consensus::{LogRead, Refusal, Role};
use crate::input::{Confirm, EncodedCommand, LeaseAsk, OwnCommands, Token};
use crate::output::Output;
use crate::replica::RequestError;

/// What is known of leases, and who asks about them.
#[derive(Debug)]
pub(super) struct Leases {
    pub(super) lessor: Lessor,
    questions: BTreeMap<Token, Question>,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    lease: LeaseId,
    ask: LeaseAsk,
    /// In which this member led when it was asked.
    term: Term,
    /// Whether it led after that, and has applied what was committed then.
    confirmed: bool,
}

impl Leases {
    pub(super) fn of<S: Store>(machine: &StateMachine<S>) -> Result<Self, StoreError> {
        Ok(Self {
            lessor: Lessor::new(machine.leases()?),
            questions: BTreeMap::new(),
        })
    }

    /// Whether a question waits for more to be applied.
    pub(super) fn await_applied(&self) -> bool {
        self.questions.values().any(|it| it.confirmed)
    }

    /// Forgets those whose callers are gone.
    pub(super) fn prune(&mut self, is_gone: &dyn Fn(Token) -> bool) {
        self.questions.retain(|token, _| !is_gone(*token));
    }

    pub(super) fn forget(&mut self, tokens: &[Token]) {
        for token in tokens {
            self.questions.remove(token);
        }
    }

    /// Takes those out of `tokens` under which it is asked about leases.
    fn take_among(&mut self, tokens: &mut Vec<Token>) -> Vec<Token> {
        if self.questions.is_empty() {
            return Vec::new();
        }
        let asks = |token: &mut Token| self.questions.contains_key(token);
        tokens.extract_if(.., asks).collect()
    }
}

impl<L: LogRead> Replica<L> {
    pub(super) fn on_lease(&mut self, token: Token, lease: LeaseId, ask: LeaseAsk) {
        let state = self.consensus.state();
        if state.role != Role::Leader && !self.is_removed() {
            self.refused.push((vec![token], Refusal::NotLeader));
            return;
        }
        let question = Question {
            lease,
            ask,
            term: state.term,
            confirmed: false,
        };
        self.leases.questions.insert(token, question);
        match planted!(KeepAliveByDeposedLeader) {
            true => self.on_lease_confirmed(token),
            false => self.on_read(token, Confirm::Lease),
        }
    }

    /// These are confirmed, and what they are to see is applied: questions about leases are
    /// answered, and what is left may read.
    pub(super) fn answer_leases(&mut self, tokens: &mut Vec<Token>) {
        for token in self.leases.take_among(tokens) {
            self.on_lease_confirmed(token);
        }
    }

    fn on_lease_confirmed(&mut self, token: Token) {
        if let Some(question) = self.leases.questions.get_mut(&token) {
            question.confirmed = true;
            self.answer_lease(token);
        }
    }

    fn answer_lease(&mut self, token: Token) {
        let Some(question) = self.leases.questions.get(&token).copied() else {
            return;
        };
        let state = self.consensus.state();
        let lessor = &mut self.leases.lessor;
        let leads = state.role == Role::Leader && state.term == question.term;
        if !leads || lessor.term() != Some(question.term) {
            self.leases.questions.remove(&token);
            self.refused.push((vec![token], Refusal::NotLeader));
            return;
        }
        let asked = match question.ask {
            LeaseAsk::KeepAlive => lessor.keep_alive(question.lease, self.now),
            LeaseAsk::Remaining => Asked::Answer(lessor.remaining(question.lease, self.now)),
        };
        match asked {
            Asked::Answer(answer) => {
                self.leases.questions.remove(&token);
                self.outputs.push(Output::Lease { token, answer });
            }
            Asked::Wait => {}
            Asked::Propose(command) => self.propose_own(vec![command], Vec::new()),
        }
    }

    /// Answers what waited for entries that are applied now.
    pub(super) fn on_leases_changed(&mut self, changes: Vec<LeaseChange>) {
        if changes.is_empty() {
            return;
        }
        for change in changes {
            self.leases.lessor.apply(change, self.now);
        }
        self.answer_confirmed_leases();
    }

    fn answer_confirmed_leases(&mut self) {
        let confirmed = self.leases.questions.iter().filter(|(_, it)| it.confirmed);
        let tokens: Vec<_> = confirmed.map(|(token, _)| *token).collect();
        tokens
            .into_iter()
            .for_each(|token| self.answer_lease(token));
    }

    /// The role or the term has changed.
    pub(super) fn lead_leases(&mut self) {
        let state = self.consensus.state();
        let leads = (state.role == Role::Leader).then_some(state.term);
        self.leases.lessor.lead(leads, self.now);
        self.answer_confirmed_leases();
    }

    /// Proposes the end of what is over, and records what is left of others.
    pub(super) fn tick_leases(&mut self) {
        let lessor = &mut self.leases.lessor;
        if lessor.term().is_none() {
            return;
        }
        let ends = lessor.ends(self.now);
        let checkpoint = lessor.checkpoint(self.now);
        self.propose_own(checkpoint.into_iter().collect(), ends);
        // What was proposed in vain is proposed again.
        self.answer_confirmed_leases();
    }

    fn propose_own(&mut self, at_once: Vec<Command>, in_turn: Vec<Command>) {
        let version = self.command_version();
        let encode = |commands: Vec<Command>| {
            let each = commands.into_iter();
            each.map(|it| EncodedCommand::new(Request::from(it), version))
                .collect()
        };
        self.on_propose(OwnCommands {
            at_once: encode(at_once),
            in_turn: encode(in_turn),
        });
    }

    /// This member is in its cluster no more.
    pub(super) fn refuse_lease_questions(&mut self) {
        let tokens = self.leases.questions.keys().copied().collect();
        self.refuse(tokens, RequestError::Removed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dengine_kv::CommandVersion;

    use super::*;
    use crate::input::{Input, Write};
    use crate::output::LeaseAnswer;
    use crate::replica::lone::LoneLeader;

    const LEASE: LeaseId = LeaseId(7);

    /// A leader, and what it has answered.
    struct Asking {
        leader: LoneLeader,
        answers: Vec<Result<LeaseAnswer, bool>>,
    }

    impl Asking {
        /// The lease was granted for so long.
        fn granted(ttl_ms: u64) -> Self {
            let mut leader = LoneLeader::new(CommandVersion::CURRENT);
            leader.elect();
            let mut asking = Self {
                leader,
                answers: Vec::new(),
            };
            asking.write(Command::GrantLease {
                lease: LEASE,
                ttl_ms,
            });
            asking
        }

        fn write(&mut self, command: Command) {
            let command = EncodedCommand::new(Request::from(command), CommandVersion::CURRENT);
            self.leader.ask(Write::Command {
                command,
                from: None,
                passes: false,
            });
            self.settle();
        }

        fn ask(&mut self, ask: LeaseAsk) {
            let token = self.leader.replica.name();
            let lease = LEASE;
            let question = Input::Lease { token, lease, ask };
            self.leader.replica.handle(question, self.leader.now);
            self.settle();
        }

        fn settle(&mut self) {
            loop {
                let outputs = self.leader.outputs();
                if outputs.is_empty() {
                    return;
                }
                for output in outputs {
                    match output {
                        Output::Lease { answer, .. } => self.answers.push(Ok(answer)),
                        Output::Refused { error, .. } => {
                            self.answers.push(Err(error.retryable()));
                        }
                        Output::MayRead { .. } => panic!("nobody reads"),
                        other => self.leader.carry_out(other),
                    }
                }
            }
        }

        fn pass(&mut self, time: Duration) {
            let until = self.leader.now.after(time);
            while self.leader.now < until {
                self.leader.tick();
                self.settle();
            }
        }

        fn answered(&mut self) -> Vec<Result<LeaseAnswer, bool>> {
            std::mem::take(&mut self.answers)
        }
    }

    #[test]
    fn a_lease_lasts_as_long_as_it_is_kept_alive() {
        let mut asking = Asking::granted(1_000);
        let kept = Ok(LeaseAnswer::Kept { ttl_ms: 1_000 });
        for _ in 0..5 {
            asking.pass(Duration::from_millis(900));
            asking.ask(LeaseAsk::KeepAlive);
            assert_eq!(asking.answered(), [kept]);
        }
        asking.pass(Duration::from_millis(400));
        asking.ask(LeaseAsk::Remaining);
        let lasts = LeaseAnswer::Lasts {
            ttl_ms: 1_000,
            remaining_ms: 600,
        };
        assert_eq!(asking.answered(), [Ok(lasts)]);
        asking.pass(Duration::from_millis(800));
        for ask in [LeaseAsk::KeepAlive, LeaseAsk::Remaining] {
            asking.ask(ask);
            assert_eq!(asking.answered(), [Ok(LeaseAnswer::NotFound)]);
        }
        assert_eq!(asking.leader.applier.machine().leases(), Ok(vec![]));
    }

    /// What an earlier leader has proposed may be among what is not applied.
    #[test]
    fn a_question_is_answered_once_what_was_committed_before_it_is_applied() {
        let mut asking = Asking::granted(60_000);
        asking.leader.holds_apply = true;
        asking.write(Command::RevokeLease { lease: LEASE });
        asking.ask(LeaseAsk::KeepAlive);
        assert_eq!(asking.answered(), []);
        assert!(asking.leader.replica.awaits_applied());
    }

    #[test]
    fn who_does_not_lead_answers_no_question() {
        let mut asking = Asking {
            leader: LoneLeader::learner(),
            answers: Vec::new(),
        };
        asking.ask(LeaseAsk::KeepAlive);
        assert_eq!(asking.answered(), [Err(true)]);
    }
}
