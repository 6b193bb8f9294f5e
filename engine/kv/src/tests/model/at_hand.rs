//! A step that would have to be waited for leaves no trace, wherever it is given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use proptest::prelude::*;

use super::generate::draft;
use super::properties::{records_and_outcomes, resolve};
use super::{Model, VISIT_BOUNDS};
use crate::store::{MemoryStore, Scope, Store, StoreError, WriteBatch};
use crate::{Applied, StateMachine};

/// Does not have everything at hand.
struct Slow {
    store: MemoryStore,
    /// Whether it has what it is asked for next, over and over again.
    has: Vec<bool>,
    asked: Arc<AtomicUsize>,
}

impl Slow {
    fn ask(&self) -> Result<(), StoreError> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        match self.has[asked % self.has.len()] {
            true => Ok(()),
            false => Err(StoreError::NotAtHand),
        }
    }
}

impl Store for Slow {
    type Cursor<'a> = <MemoryStore as Store>::Cursor<'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.store.get(key)
    }

    fn cursor(&self, scope: Scope) -> Self::Cursor<'_> {
        self.store.cursor(scope)
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.store.write(batch)
    }

    fn get_at_hand(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.ask()?;
        self.store.get(key)
    }

    fn write_at_hand(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.ask()?;
        self.store.write(batch)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.store.flush()
    }

    fn approximate_bytes(&self) -> u64 {
        self.store.approximate_bytes()
    }
}

proptest! {
    #[test]
    fn steps_that_are_given_up_leave_no_trace(
        drafts in prop::collection::vec(draft(), 1..60),
        cuts in prop::collection::vec(1..5_usize, 60),
        has in prop::collection::vec(any::<bool>(), 1..20),
    ) {
        let (entries, expected) = resolve(&mut Model::new(), 0, &drafts);
        let store = MemoryStore::default();
        let asked = Arc::default();
        let slow = Slow { store: store.clone(), has, asked };
        let mut machine = StateMachine::open(slow).expect("open");
        machine.bound_visits(VISIT_BOUNDS);
        let mut outcomes = Vec::new();
        let (mut rest, mut cuts) = (&entries[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let together = *cuts.next().expect("they go round");
            let next = &rest[..together.min(rest.len())];
            let applied: Vec<Applied> = match machine.apply_step_at_hand(next).expect("apply") {
                Some(applied) => applied,
                None => machine.apply_step(next).expect("apply"),
            };
            rest = &rest[applied.len()..];
            outcomes.extend(applied.into_iter().map(|it| it.outcome));
        }
        prop_assert_eq!(&outcomes, &expected);
        let (records, _) = records_and_outcomes(&entries);
        prop_assert_eq!(store.dump(), records);
    }
}
