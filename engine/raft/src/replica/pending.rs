//! Who waits for which entry.

use super::env::{Caller, Written};
use super::error::RequestError;
use bytes::Bytes;
use dengine_kv::Applied;
use dengine_planted::planted;
use dengine_types::Index;
use std::collections::BTreeMap;

/// Somebody waits for the entry at `index`, which is theirs only if it carries `context`.
#[derive(Debug)]
pub struct Expected<C> {
    /// Where it was put.
    pub index: Index,
    /// What it carries.
    pub context: Bytes,
    /// Who waits.
    pub caller: C,
}

/// The callers whose proposals are in the log and not yet applied.
pub(super) struct Pending<C> {
    by_index: BTreeMap<Index, Expected<C>>,
}

impl<C> Default for Pending<C> {
    fn default() -> Self {
        Self {
            by_index: BTreeMap::new(),
        }
    }
}

impl<C: Caller<Written>> Pending<C> {
    pub(super) fn expect(&mut self, expected: Expected<C>) {
        // Two proposals at one index: this member led twice, and its log lost the first. Another log may hold it yet, and
        // whoever wins the next election with that commits it (Raft thesis §3.6.2): the caller is let go without an answer.
        let displaced = self.by_index.insert(expected.index, expected);
        if let Some(displaced) = displaced.filter(|_| planted!(DisplacedTakenForDead)) {
            displaced.overwritten();
        }
    }

    /// Answers whoever waits for this entry. An entry of somebody else at a position that was waited for
    /// proves that the proposal is in no log any more.
    pub(super) fn applied(&mut self, applied: Applied) {
        let Some(expected) = self.by_index.remove(&applied.index) else {
            return;
        };
        if expected.context == applied.context || planted!(AnsweredByAnotherEntry) {
            // A caller that gave up is gone; the write stands all the same.
            expected.caller.answer(Ok(Written {
                term: applied.term,
                outcome: applied.outcome,
                visited: applied.visited,
            }));
        } else {
            expected.overwritten();
        }
    }

    /// Forgets callers that gave up.
    pub(super) fn prune(&mut self) {
        self.by_index
            .retain(|_, expected| !expected.caller.is_gone());
    }
}

impl<C: Caller<Written>> Expected<C> {
    fn overwritten(self) {
        self.caller.answer(Err(RequestError::NotServed {
            reason: "the leader changed before a quorum had it".to_owned(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dengine_kv::Outcome;
    use dengine_types::{Revision, Term};
    use std::cell::RefCell;
    use std::rc::Rc;

    /// What callers are told, by their names.
    type Told = Rc<RefCell<Vec<(&'static str, bool)>>>;

    struct Named(&'static str, Told);

    impl Caller<Written> for Named {
        fn is_gone(&self) -> bool {
            self.0 == "gone"
        }

        fn answer(self, answer: Result<Written, RequestError>) {
            self.1.borrow_mut().push((self.0, answer.is_ok()));
        }
    }

    fn expected(index: u64, name: &'static str, told: &Told) -> Expected<Named> {
        Expected {
            index: Index(index),
            context: Bytes::from_static(name.as_bytes()),
            caller: Named(name, Rc::clone(told)),
        }
    }

    fn applied(index: u64, name: &'static str) -> Applied {
        Applied {
            index: Index(index),
            term: Term(9),
            context: Bytes::from_static(name.as_bytes()),
            outcome: Outcome::Put {
                revision: Revision(2),
                prev: None,
            },
            records: 1,
            visited: 0,
        }
    }

    /// Of five members, A puts `first` at 13 and only E gets it. A loses its log from 11 on to another leader, leads again
    /// and puts `second` at 13; but E is elected by those who have neither, and commits `first`.
    #[test]
    fn whoever_was_displaced_is_told_nothing() {
        let told = Told::default();
        let mut pending = Pending::default();
        pending.expect(expected(13, "first", &told));
        pending.expect(expected(13, "second", &told));
        assert!(told.borrow().is_empty(), "nobody knows what becomes of it");
        pending.applied(applied(13, "first"));
        // What is committed in its place proves that the second is in no log that counts.
        assert_eq!(*told.borrow(), [("second", false)]);
    }

    /// Behind a quorum that does not answer, callers give up, and others come.
    #[test]
    fn callers_that_gave_up_are_forgotten_and_no_others() {
        let told = Told::default();
        let mut pending = Pending::default();
        pending.expect(expected(13, "own", &told));
        pending.expect(expected(14, "gone", &told));
        pending.prune();
        assert_eq!(pending.by_index.len(), 1);
        pending.applied(applied(13, "own"));
        assert_eq!(*told.borrow(), [("own", true)]);
    }

    #[test]
    fn an_entry_answers_its_own_caller() {
        let told = Told::default();
        let mut pending = Pending::default();
        pending.expect(expected(13, "own", &told));
        pending.applied(applied(12, "own"));
        pending.applied(applied(13, "own"));
        pending.applied(applied(13, "own"));
        assert_eq!(*told.borrow(), [("own", true)]);
    }
}
