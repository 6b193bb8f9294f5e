//! Writes whose turn has come, until they are proposed together.

use super::pace::load;
use crate::consensus::Proposal;

/// They become one batch of the log.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    proposals: Vec<Proposal>,
    /// How many records each visits.
    records: Vec<usize>,
}

impl Proposals {
    pub(super) fn add(&mut self, proposal: Proposal, records: usize) {
        self.proposals.push(proposal);
        self.records.push(records);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.proposals.is_empty()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Proposal> {
        self.proposals.iter_mut()
    }

    /// What each of them asks for, in their order.
    pub(super) fn loads(&self) -> impl Iterator<Item = u64> {
        let each = self.records.iter().zip(&self.proposals);
        each.map(|(records, proposal)| load(*records, proposal.data.len() as u64))
    }

    pub(super) fn take(&mut self) -> Vec<Proposal> {
        self.records.clear();
        std::mem::take(&mut self.proposals)
    }
}
