//! Writes whose turn has come: until they are proposed together, and then until each is committed
//! or known not to be.

use dengine_planted::planted;
use dengine_types::{Entry, Index};

use super::Replica;
use super::pace::load;
use super::pending::{Fate, Run};
use super::turns::{Proposer, QueuedWrite, Writer};
use crate::consensus::{LogRead, Proposal, Refusal};
use crate::input::{EncodedCommand, Token};
use crate::output::Output;

/// They become one batch of the log.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    proposals: Vec<Proposal>,
    /// Whose each of them is.
    begun: Vec<Begun>,
}

#[derive(Debug)]
enum Begun {
    /// Of a caller; it visits so many records.
    Caller { token: Token, records: usize },
    /// The leader's own, which may have to be proposed again.
    Leader(QueuedWrite),
}

impl Begun {
    fn caller(&self) -> Option<Token> {
        match self {
            Self::Caller { token, .. } => Some(*token),
            Self::Leader(_) => None,
        }
    }

    fn records(&self) -> usize {
        match self {
            Self::Caller { records, .. } => *records,
            Self::Leader(own) => own.command.records,
        }
    }
}

impl Proposals {
    fn add(&mut self, write: QueuedWrite, context: Vec<u8>) {
        let (data, begun) = match write.proposer {
            Proposer::Caller(token) => {
                let EncodedCommand { data, records } = write.command;
                (data, Begun::Caller { token, records })
            }
            Proposer::Leader { .. } => (write.command.data.clone(), Begun::Leader(write)),
        };
        self.proposals.push(Proposal { context, data });
        self.begun.push(begun);
    }

    /// Takes out those that `is_taken` says, which sees each once, in their order, and may change
    /// it; returns the callers among theirs.
    pub(super) fn take_if(
        &mut self,
        mut is_taken: impl FnMut(&mut Proposal) -> bool,
    ) -> Vec<Token> {
        let (mut callers, mut kept) = (Vec::new(), 0);
        for place in 0..self.proposals.len() {
            if is_taken(&mut self.proposals[place]) {
                callers.extend(self.begun[place].caller());
            } else {
                self.proposals.swap(kept, place);
                self.begun.swap(kept, place);
                kept += 1;
            }
        }
        self.proposals.truncate(kept);
        self.begun.truncate(kept);
        callers
    }

    /// What each of them asks for, in their order.
    pub(super) fn loads(&self) -> impl Iterator<Item = u64> {
        let each = self.begun.iter().zip(&self.proposals);
        each.map(|(begun, proposal)| load(begun.records(), proposal.data.len() as u64))
    }
}

impl<L: LogRead> Replica<L> {
    /// The next proposals have this one among them.
    pub(super) fn begin(&mut self, write: QueuedWrite) {
        let name = match write.proposer {
            Proposer::Caller(token) => token,
            Proposer::Leader { .. } => self.name(),
        };
        let context = self.run().context(name).to_vec();
        self.proposals.add(write, context);
    }

    /// Proposes all that were begun.
    pub(super) fn propose(&mut self) {
        if self.proposals.begun.is_empty() {
            return;
        }
        let before = self.consensus.last_index();
        let loads: Vec<_> = self.proposals.loads().collect();
        let Proposals { proposals, begun } = std::mem::take(&mut self.proposals);
        if self.consensus.has_ended() {
            return;
        }
        let proposed = self.consensus.propose(proposals);
        // Where all are refused nothing is on its way to be committed.
        if self.consensus.last_index() > before {
            self.pace.proposed(before.next(), &loads, self.now);
        }
        match proposed {
            Ok(first) => self.on_proposed(first, &begun),
            Err(refusal) => self.on_refused(begun, refusal),
        }
    }

    fn on_proposed(&mut self, first: Index, begun: &[Begun]) {
        for (index, begun) in (first.0..).zip(begun) {
            if let Begun::Caller { token, .. } = begun {
                self.expect(Index(index), *token);
            }
        }
    }

    /// Somebody waits for what stands there now.
    pub(super) fn expect(&mut self, index: Index, token: Token) {
        if let Some(displaced) = self.pending.proposed(index, token) {
            self.outputs.push(match planted!(DisplacedTakenForDead) {
                true => Output::Lost(displaced),
                false => Output::Forgotten(displaced),
            });
        }
    }

    /// Those among committed entries that somebody waits for.
    pub(super) fn awaited(&mut self, committed: &[Entry]) -> Vec<(Index, Token)> {
        let mut awaited = Vec::new();
        let run = self.run();
        for entry in committed {
            match self.pending.committed(entry, run) {
                Some(Fate::Committed(token)) => awaited.push((entry.index, token)),
                Some(Fate::Lost(token)) => self.outputs.push(Output::Lost(token)),
                None => {}
            }
        }
        awaited
    }

    /// Clients are told, and try again. What the leader proposes of its own accord waits for its
    /// turn instead, or nothing more of its kind would be proposed before
    /// [`EXPIRY_RETRY`](dengine_kv::EXPIRY_RETRY) is over.
    fn on_refused(&mut self, begun: Vec<Begun>, refusal: Refusal) {
        let mut tokens = Vec::new();
        for begun in begun {
            match begun {
                Begun::Caller { token, .. } => tokens.push(token),
                Begun::Leader(own) if refusal == Refusal::Overloaded => {
                    self.wait(Writer::Leader, own);
                }
                Begun::Leader(_) => {}
            }
        }
        self.refused.push((tokens, refusal));
    }

    pub(super) fn run(&self) -> Run {
        Run {
            member_id: self.config.member_id,
            boot_nonce: self.config.boot_nonce,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_types::Moment;

    use super::*;

    const COUNT: u8 = 100;

    /// As many writes, each with its number as its context and as its records.
    fn proposals() -> Proposals {
        let mut proposals = Proposals::default();
        for number in 0..COUNT {
            let proposer = match number % 10 {
                0 => Proposer::Leader {
                    since: Moment::default(),
                },
                _ => Proposer::Caller(Token(number.into())),
            };
            let command = EncodedCommand {
                data: Bytes::new(),
                records: number.into(),
            };
            proposals.add(QueuedWrite { command, proposer }, vec![number]);
        }
        proposals
    }

    /// A batch of thousands that were refused was searched once for each of them.
    #[test]
    fn each_is_looked_at_once_and_what_is_left_is_in_order() {
        let mut proposals = proposals();
        let mut seen = Vec::new();
        let callers = proposals.take_if(|proposal| {
            let number = proposal.context[0];
            seen.push(number);
            number % 2 != 1
        });
        let all: Vec<_> = (0..COUNT).collect();
        assert_eq!(seen, all);
        let (odd, even): (Vec<u8>, Vec<u8>) = all.into_iter().partition(|it| it % 2 == 1);
        let of_callers = even.into_iter().filter(|it| it % 10 != 0);
        let expect: Vec<_> = of_callers.map(|it| Token(it.into())).collect();
        assert_eq!(callers, expect);
        let left = proposals.proposals.iter().map(|it| it.context[0]);
        assert_eq!(left.collect::<Vec<_>>(), odd);
        let whose = proposals.begun.iter().map(Begun::records);
        assert!(
            whose.eq(odd.into_iter().map(usize::from)),
            "each has its own"
        );
    }
}
