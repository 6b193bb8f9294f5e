//! What a member believes its log to be, on disk or not, as invariants need it: terms only.

use dengine_log::{Disk, LogReader, Position};
use dengine_types::{Entry, Index, Term};

#[derive(Clone, Debug, Default)]
pub(super) struct Shadow {
    base: Position,
    /// Of the entries after `base`.
    terms: Vec<Term>,
}

impl Shadow {
    pub(super) fn of<D: Disk>(log: &LogReader<D>) -> Self {
        let (base, last) = (log.base(), log.last());
        let indexes = base.index.0 + 1..=last.index.0;
        let terms = indexes.map(|index| log.term(Index(index)).expect("it is within the log"));
        Self {
            base,
            terms: terms.collect(),
        }
    }

    /// Forgets what a log does not hold any more, from some entry on.
    pub(super) fn keep_what_is_in<D: Disk>(&mut self, log: &LogReader<D>) {
        let same = |last: Position| match log.term(last.index) {
            Some(term) => term == last.term,
            // Dropped from the front: it is in the state.
            None => last.index < log.base().index,
        };
        while !self.terms.is_empty() && !same(self.last()) {
            self.terms.pop();
        }
    }

    pub(super) fn base(&self) -> Position {
        self.base
    }

    pub(super) fn last(&self) -> Position {
        Position {
            index: Index(self.base.index.0 + self.terms.len() as u64),
            term: self.terms.last().copied().unwrap_or(self.base.term),
        }
    }

    pub(super) fn term(&self, index: Index) -> Option<Term> {
        match index.0.checked_sub(self.base.index.0)? {
            0 => Some(self.base.term),
            place => self.terms.get(place as usize - 1).copied(),
        }
    }

    pub(super) fn append(&mut self, entries: &[Entry]) {
        if let Some(first) = entries.first() {
            let kept = first.index.0.saturating_sub(self.base.index.0 + 1);
            self.terms.truncate(kept as usize);
            self.terms.extend(entries.iter().map(|entry| entry.term));
        }
    }
}
