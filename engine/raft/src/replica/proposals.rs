//! Writes whose turn has come: until they are proposed together, and then until each is committed
//! or known not to be.

use dengine_kv::CommandVersion;
use dengine_planted::planted;
use dengine_types::{Entry, Index};

use super::Replica;
use super::pace::load;
use super::pending::{Fate, Run};
use super::turns::{Proposer, QueuedWrite, Writer};
use super::versions::is_newer;
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

    /// Takes those out that can't be proposed in this version; returns the callers among theirs.
    pub(super) fn take_newer(&mut self, version: CommandVersion) -> Vec<Token> {
        let (mut newer, mut kept) = (Vec::new(), Self::default());
        let Self { proposals, begun } = std::mem::take(self);
        for (proposal, begun) in proposals.into_iter().zip(begun) {
            if is_newer(&proposal.data, version) {
                newer.extend(begun.caller());
            } else {
                kept.proposals.push(proposal);
                kept.begun.push(begun);
            }
        }
        *self = kept;
        newer
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Proposal> {
        self.proposals.iter_mut()
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
