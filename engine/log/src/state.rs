//! The rules of a log's contents, the same for what is appended and for what is read back:
//! appending checks them before the write, opening checks them again (a pair of assertions around
//! the disk).

use dengine_types::{HardState, Index, MemberId, NUMBER_MAX, Term};

/// The index of an entry and the term in which it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub index: Index,
    pub term: Term,
}

/// Consecutive entries of one term, up to the first of the next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: Index,
    term: Term,
}

/// The state of a log, without the entries themselves.
#[derive(Clone, Debug, Default)]
pub(super) struct LogState {
    base: Position,
    last: Index,
    /// Ascending in both fields; one run for each term that has entries.
    runs: Vec<Run>,
    hard_state: HardState,
}

/// One batch, as far as the rules are concerned. `terms` are those of its entries.
#[derive(Clone, Debug)]
pub(super) struct Change<T> {
    pub(super) previous: Position,
    pub(super) terms: T,
    pub(super) hard_state: Option<HardState>,
    /// Drops everything; the log begins after `previous`.
    pub(super) resets: bool,
}

impl LogState {
    pub(super) fn new(base: Position, hard_state: HardState) -> Self {
        Self {
            base,
            last: base.index,
            runs: Vec::new(),
            hard_state,
        }
    }

    /// The state at the beginning of a segment, from its header. It has to keep the rules of a
    /// reset, which has the same fields.
    pub(super) fn restore(base: Position, hard_state: HardState) -> Result<Self, String> {
        Self::default().check(&Change {
            previous: base,
            terms: std::iter::empty(),
            hard_state: Some(hard_state),
            resets: true,
        })?;
        Ok(Self::new(base, hard_state))
    }

    pub(super) fn hard_state(&self) -> HardState {
        self.hard_state
    }

    pub(super) fn base(&self) -> Position {
        self.base
    }

    pub(super) fn first_index(&self) -> Index {
        self.base.index.next()
    }

    pub(super) fn last(&self) -> Position {
        Position {
            index: self.last,
            term: self.runs.last().map_or(self.base.term, |run| run.term),
        }
    }

    /// The term of an entry of the log, or of the one before the first.
    pub(super) fn term(&self, index: Index) -> Option<Term> {
        if index < self.base.index || index > self.last {
            return None;
        }
        let runs = self.runs.partition_point(|run| run.first <= index);
        Some(
            runs.checked_sub(1)
                .map_or(self.base.term, |run| self.runs[run].term),
        )
    }

    /// Whether `change` may follow the current state.
    pub(super) fn check<T>(&self, change: &Change<T>) -> Result<(), String>
    where
        T: Iterator<Item = Term> + Clone,
    {
        let old = self.hard_state;
        let new = change.hard_state.unwrap_or(old);
        if new.term < old.term {
            return Err(format!(
                "the term goes back from {} to {}",
                old.term, new.term
            ));
        }
        if new.term == old.term && old.vote != MemberId(0) && new.vote != old.vote {
            return Err(format!(
                "the vote of term {} changes from {} to {}",
                new.term, old.vote, new.vote
            ));
        }
        if new.commit < old.commit {
            return Err(format!(
                "the commit index goes back from {} to {}",
                old.commit, new.commit
            ));
        }
        check_number("term", new.term.0)?;
        let previous = change.previous;
        check_number("index", previous.index.0)?;
        if change.resets {
            check_base(previous)?;
        } else {
            self.check_previous(previous, change.terms.clone().next().is_some())?;
        }
        let mut last = previous;
        for term in change.terms.clone() {
            if term == Term(0) {
                return Err(format!("entry {} has term 0", last.index.next()));
            }
            if term < last.term {
                return Err(format!(
                    "entry {} of term {term} follows term {}",
                    last.index.next(),
                    last.term
                ));
            }
            last = Position {
                index: last.index.next(),
                term,
            };
        }
        // Terms never decrease and the commit index is within the log, so this bounds them all.
        check_number("index", last.index.0)?;
        check_number("term", last.term.0)?;
        let end = if last == previous && !change.resets {
            self.last
        } else {
            last.index
        };
        if new.commit > end {
            return Err(format!(
                "commit index {} is past the last entry, {end}",
                new.commit
            ));
        }
        Ok(())
    }

    fn check_previous(&self, previous: Position, has_entries: bool) -> Result<(), String> {
        if previous.index > self.last {
            return Err(format!("entry {} is missing", self.last.next()));
        }
        if has_entries && previous.index < self.hard_state.commit {
            return Err(format!(
                "entry {} is committed and cannot be replaced",
                previous.index.next()
            ));
        }
        match self.term(previous.index) {
            Some(term) if term != previous.term => Err(format!(
                "entry {} has term {term}, not {}",
                previous.index, previous.term
            )),
            Some(_) => Ok(()),
            // Below the base: the entries before were dropped with their segments, and this batch,
            // in a later segment, had replaced what followed.
            None => check_base(previous),
        }
    }

    /// Applies a change that [`LogState::check`] accepted.
    pub(super) fn apply<T: Iterator<Item = Term>>(&mut self, change: Change<T>) {
        if let Some(hard_state) = change.hard_state {
            self.hard_state = hard_state;
        }
        let mut terms = change.terms.peekable();
        if change.resets || (terms.peek().is_some() && change.previous.index < self.base.index) {
            *self = Self::new(change.previous, self.hard_state);
        }
        if terms.peek().is_none() {
            return;
        }
        let first = change.previous.index.next();
        self.runs
            .truncate(self.runs.partition_point(|run| run.first < first));
        self.last = change.previous.index;
        for term in terms {
            self.last = self.last.next();
            if self.runs.last().is_none_or(|run| run.term != term) {
                self.runs.push(Run {
                    first: self.last,
                    term,
                });
            }
        }
    }

    /// Drops the entries up to `base`, which becomes the entry before the first.
    pub(super) fn drop_prefix(&mut self, base: Index) {
        let term = self
            .term(base)
            .expect("the caller took `base` from this log");
        let dropped = self.runs.partition_point(|run| run.first <= base.next());
        if let Some(last) = dropped.checked_sub(1) {
            // The run of the new first entry stays.
            self.runs.drain(..last);
            self.runs[0].first = self.runs[0].first.max(base.next());
            if base == self.last {
                self.runs.clear();
            }
        }
        self.base = Position { index: base, term };
    }
}

/// Whether the log may begin after `base`. For consensus the entry before index 1 has term 0, and
/// no other one.
fn check_base(base: Position) -> Result<(), String> {
    if (base.index == Index(0)) == (base.term == Term(0)) {
        return Ok(());
    }
    Err(format!(
        "the log begins behind entry {} of term {}",
        base.index, base.term
    ))
}

fn check_number(what: &str, number: u64) -> Result<(), String> {
    if number <= NUMBER_MAX {
        return Ok(());
    }
    Err(format!("{what} {number} is above {NUMBER_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(base: (u64, u64), terms: &[u64]) -> LogState {
        let base = Position {
            index: Index(base.0),
            term: Term(base.1),
        };
        let mut state = LogState::new(base, HardState::default());
        let terms = terms.iter().copied().map(Term);
        let change = Change {
            previous: base,
            terms,
            hard_state: None,
            resets: false,
        };
        state.check(&change).unwrap();
        state.apply(change);
        state
    }

    fn terms(state: &LogState) -> Vec<u64> {
        (state.base().index.0..=state.last().index.0)
            .map(|index| state.term(Index(index)).unwrap().0)
            .collect()
    }

    #[test]
    fn terms_are_known_after_any_prefix_is_dropped() {
        let all = [1, 1, 2, 2, 2, 5, 5, 6];
        for dropped in 0..=all.len() {
            let mut state = state((10, 1), &all);
            state.drop_prefix(Index(10 + dropped as u64));
            let expected: Vec<u64> = [1].iter().chain(&all).skip(dropped).copied().collect();
            assert_eq!(terms(&state), expected);
            assert_eq!(state.term(Index(9 + dropped as u64)), None);
            assert_eq!(state.term(Index(19)), None);
        }
    }

    #[test]
    fn a_suffix_is_replaced() {
        for kept in 0..=4 {
            let mut state = state((0, 0), &[1, 1, 2, 2]);
            let previous = Index(kept);
            let previous = Position {
                index: previous,
                term: state.term(previous).unwrap(),
            };
            let terms_new = [Term(3), Term(4)].into_iter();
            let change = Change {
                previous,
                terms: terms_new,
                hard_state: None,
                resets: false,
            };
            state.check(&change).unwrap();
            state.apply(change);
            let mut expected = [0, 1, 1, 2, 2][..=kept as usize].to_vec();
            expected.extend([3, 4]);
            assert_eq!(terms(&state), expected);
        }
    }

    #[test]
    fn changes_that_raft_never_makes_are_refused() {
        let check = |previous: (u64, u64), terms: &[u64], hard_state: Option<(u64, u64, u64)>| {
            let mut state = state((0, 0), &[1, 1, 2, 2]);
            state.hard_state = HardState {
                term: Term(2),
                vote: MemberId(1),
                commit: Index(2),
            };
            let hard_state = hard_state.map(|(term, vote, commit)| HardState {
                term: Term(term),
                vote: MemberId(vote),
                commit: Index(commit),
            });
            let previous = Position {
                index: Index(previous.0),
                term: Term(previous.1),
            };
            let terms = terms.iter().copied().map(Term);
            let change = Change {
                previous,
                terms,
                hard_state,
                resets: false,
            };
            state.check(&change).err().unwrap_or_default()
        };
        assert_eq!(check((4, 2), &[2], Some((2, 1, 5))), "");
        assert_eq!(check((2, 1), &[3], Some((3, 2, 3))), "");
        assert_eq!(
            check((4, 2), &[], Some((1, 1, 2))),
            "the term goes back from 2 to 1"
        );
        assert_eq!(
            check((4, 2), &[], Some((2, 3, 2))),
            "the vote of term 2 changes from 1 to 3"
        );
        assert_eq!(check((5, 2), &[2], None), "entry 5 is missing");
        assert_eq!(
            check((1, 1), &[3], None),
            "entry 2 is committed and cannot be replaced"
        );
        assert_eq!(check((3, 1), &[3], None), "entry 3 has term 2, not 1");
        assert_eq!(
            check((4, 2), &[1], None),
            "entry 5 of term 1 follows term 2"
        );
        assert_eq!(check((4, 2), &[0], None), "entry 5 has term 0");
        assert_eq!(
            check((4, 2), &[2], Some((2, 1, 6))),
            "commit index 6 is past the last entry, 5"
        );
        let huge = NUMBER_MAX + 1;
        let above = |what: &str| format!("{what} {huge} is above {NUMBER_MAX}");
        assert_eq!(check((4, 2), &[NUMBER_MAX], Some((NUMBER_MAX, 0, 5))), "");
        assert_eq!(check((4, 2), &[2, huge], None), above("term"));
        assert_eq!(check((4, 2), &[], Some((huge, 0, 2))), above("term"));
        assert_eq!(check((huge, 2), &[2], None), above("index"));
    }

    #[test]
    fn a_log_begins_only_after_a_possible_entry() {
        let begin = |base: (u64, u64), term: u64, commit: u64| {
            let base = Position {
                index: Index(base.0),
                term: Term(base.1),
            };
            let hard_state = HardState {
                term: Term(term),
                vote: MemberId(1),
                commit: Index(commit),
            };
            LogState::restore(base, hard_state)
                .err()
                .unwrap_or_default()
        };
        let huge = NUMBER_MAX + 1;
        let above = |what: &str| format!("{what} {huge} is above {NUMBER_MAX}");
        let behind =
            |index: u64, term: u64| format!("the log begins behind entry {index} of term {term}");
        assert_eq!(begin((0, 0), 0, 0), "");
        assert_eq!(begin((0, 0), 3, 0), "");
        assert_eq!(begin((5, 2), 3, 5), "");
        assert_eq!(begin((NUMBER_MAX, NUMBER_MAX), NUMBER_MAX, 5), "");
        assert_eq!(begin((5, 0), 3, 5), behind(5, 0));
        assert_eq!(begin((0, 2), 3, 0), behind(0, 2));
        assert_eq!(begin((huge, 2), 3, 5), above("index"));
        assert_eq!(begin((5, huge), 3, 5), above("term"));
        assert_eq!(begin((5, 2), huge, 5), above("term"));
        assert_eq!(
            begin((5, 2), 3, 6),
            "commit index 6 is past the last entry, 5"
        );
    }

    #[test]
    fn indexes_are_bounded_by_the_largest_number() {
        let state = state((NUMBER_MAX - 1, 1), &[1]);
        let change = Change {
            previous: state.last(),
            terms: std::iter::once(Term(1)),
            hard_state: None,
            resets: false,
        };
        let rule = format!("index {} is above {NUMBER_MAX}", NUMBER_MAX + 1);
        assert_eq!(state.check(&change), Err(rule));
    }

    #[test]
    fn a_log_is_reset_only_to_a_possible_entry() {
        let state = state((5, 2), &[2]);
        let check = |index: u64, term: u64, resets: bool| {
            let change = Change {
                previous: Position {
                    index: Index(index),
                    term: Term(term),
                },
                terms: std::iter::once(Term(3)),
                hard_state: None,
                resets,
            };
            state.check(&change).err().unwrap_or_default()
        };
        for resets in [true, false] {
            assert_eq!(check(0, 0, resets), "");
            assert_eq!(check(4, 1, resets), "");
            assert_eq!(
                check(4, 0, resets),
                "the log begins behind entry 4 of term 0"
            );
            assert_eq!(
                check(0, 1, resets),
                "the log begins behind entry 0 of term 1"
            );
        }
    }
}
