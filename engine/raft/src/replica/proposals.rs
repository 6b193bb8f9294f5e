//! Writes whose turn has come: until they are proposed together, and then until each is committed
//! or known not to be.

use std::net::IpAddr;

use dengine_planted::planted;
use dengine_types::{Entry, Index};

use super::Replica;
use super::pace::load;
use super::passing::AskedByPeer;
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
pub(super) enum Begun {
    /// Of a caller; it visits so many records.
    Caller {
        token: Token,
        records: usize,
        /// Whose it is, if it may be passed on to the leader.
        passes: Option<IpAddr>,
    },
    /// Of a caller of another member.
    Peer { asked: AskedByPeer, records: usize },
    /// The leader's own, which may have to be proposed again.
    Leader(QueuedWrite),
}

impl Begun {
    fn records(&self) -> usize {
        match self {
            Self::Caller { records, .. } | Self::Peer { records, .. } => *records,
            Self::Leader(own) => own.command.records,
        }
    }
}

impl Proposals {
    fn add(&mut self, write: QueuedWrite, context: Vec<u8>) {
        let EncodedCommand { data, records } = write.command;
        let (data, begun) = match write.proposer {
            Proposer::Caller { token, passes } => {
                let begun = Begun::Caller {
                    token,
                    records,
                    passes,
                };
                (data, begun)
            }
            Proposer::Peer(asked) => (data, Begun::Peer { asked, records }),
            proposer @ Proposer::Leader { .. } => {
                let command = EncodedCommand { data, records };
                let own = QueuedWrite { command, proposer };
                (own.command.data.clone(), Begun::Leader(own))
            }
        };
        self.proposals.push(Proposal { context, data });
        self.begun.push(begun);
    }

    /// Takes out those that `is_taken` says, which sees each once, in their order, and may change
    /// it.
    pub(super) fn take_if(
        &mut self,
        mut is_taken: impl FnMut(&mut Proposal, &Begun) -> bool,
    ) -> Vec<(Proposal, Begun)> {
        let (mut taken, mut kept) = (Vec::new(), 0);
        for place in 0..self.proposals.len() {
            if is_taken(&mut self.proposals[place], &self.begun[place]) {
                taken.push(place);
            } else if taken.is_empty() {
                kept += 1;
            }
        }
        if taken.is_empty() {
            return Vec::new();
        }
        let (proposals, begun) = (self.proposals.split_off(kept), self.begun.split_off(kept));
        let mut next = taken.iter().copied().peekable();
        let mut out = Vec::with_capacity(taken.len());
        for (place, one) in (kept..).zip(proposals.into_iter().zip(begun)) {
            if next.next_if_eq(&place).is_some() {
                out.push(one);
            } else {
                self.proposals.push(one.0);
                self.begun.push(one.1);
            }
        }
        out
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
        let context = match &write.proposer {
            Proposer::Caller { token, .. } => self.run().context(*token).to_vec(),
            Proposer::Peer(asked) => asked.context.to_vec(),
            Proposer::Leader { .. } => {
                let name = self.name();
                self.run().context(name).to_vec()
            }
        };
        self.proposals.add(write, context);
    }

    /// Proposes all that were begun.
    pub(super) fn propose(&mut self) {
        self.pass_on();
        self.refuse_of_other_terms();
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
            Ok(first) => {
                self.on_proposed(first, &begun);
                let last = self.consensus.last_index();
                self.passed_on_here.proposed(&begun, last);
            }
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
            let passed_on = self.passed_on.committed(entry, run);
            awaited.extend(passed_on.map(|token| (entry.index, token)));
            let lost = self.passed_on.overtaken_by(entry.term);
            self.outputs.extend(lost.into_iter().map(Output::Lost));
        }
        awaited
    }

    /// Clients are told, and try again. What the leader proposes of its own accord waits for its
    /// turn instead, or nothing more of its kind would be proposed before
    /// [`EXPIRY_RETRY`](dengine_kv::EXPIRY_RETRY) is over.
    fn on_refused(&mut self, begun: Vec<Begun>, refusal: Refusal) {
        let (mut tokens, mut of_peers) = (Vec::new(), Vec::new());
        for begun in begun {
            match begun {
                Begun::Caller { token, .. } => tokens.push(token),
                Begun::Peer { asked, .. } => of_peers.push(asked),
                Begun::Leader(own) if refusal == Refusal::Overloaded => {
                    self.wait(Writer::Leader, own);
                }
                Begun::Leader(_) => {}
            }
        }
        self.refused.push((tokens, refusal));
        self.refuse_peers(of_peers);
    }

    /// The callers of what was taken out, to be refused. Those of other members are told so.
    pub(super) fn tokens_of(&mut self, taken: Vec<(Proposal, Begun)>) -> Vec<Token> {
        let (mut tokens, mut of_peers) = (Vec::new(), Vec::new());
        for (_, begun) in taken {
            match begun {
                Begun::Caller { token, .. } => tokens.push(token),
                Begun::Peer { asked, .. } => of_peers.push(asked),
                Begun::Leader(_) => {}
            }
        }
        self.refuse_peers(of_peers);
        tokens
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
                _ => Proposer::Caller {
                    token: Token(number.into()),
                    passes: None,
                },
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
        let taken = proposals.take_if(|proposal, _| {
            let number = proposal.context[0];
            seen.push(number);
            number % 2 != 1
        });
        let all: Vec<_> = (0..COUNT).collect();
        assert_eq!(seen, all);
        let (odd, even): (Vec<u8>, Vec<u8>) = all.into_iter().partition(|it| it % 2 == 1);
        let whose = |begun: &Begun| match begun {
            Begun::Caller { token, .. } => Some(*token),
            _ => None,
        };
        let named = |number: u8| (!number.is_multiple_of(10)).then_some(Token(number.into()));
        let of_taken: Vec<_> = taken
            .iter()
            .map(|(proposal, begun)| (proposal.context[0], whose(begun)))
            .collect();
        let expect: Vec<_> = even.into_iter().map(|it| (it, named(it))).collect();
        assert_eq!(of_taken, expect);
        let left = proposals.proposals.iter().map(|it| it.context[0]);
        assert_eq!(left.collect::<Vec<_>>(), odd);
        let whose = proposals.begun.iter().map(Begun::records);
        assert!(
            whose.eq(odd.into_iter().map(usize::from)),
            "each has its own"
        );
    }
}
