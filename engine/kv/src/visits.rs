//! How much the ranges of one command visit. Whoever applies an entry waits for nothing and can't be stopped, so this
//! needs a bound; and every member has to come to the same end, so the bound counts what all of them have, however
//! their stores lie on disk: each key that exists, and each deleted one that history still holds.

use super::{RANGE_VISIT_BYTES_MAX, RANGE_VISIT_KEYS_MAX, Refusal};
use std::ops::ControlFlow;

/// What the ranges of a command have visited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visits {
    had: VisitBounds,
    /// `None`: all they like.
    bounds: Option<VisitBounds>,
    exceeded: bool,
}

/// How much one command may visit.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisitBounds {
    /// Keys.
    pub(super) keys: usize,
    /// Bytes of these keys, their values, and some for each.
    pub(super) bytes: usize,
}

impl VisitBounds {
    /// What is part of what commands mean.
    pub(super) const ALL: Self = Self {
        keys: RANGE_VISIT_KEYS_MAX,
        bytes: RANGE_VISIT_BYTES_MAX,
    };
}

impl Visits {
    /// Of a command that was encoded before there was a bound.
    pub(super) const UNBOUNDED: Self = Self::new(None);

    /// Of every other command.
    pub(super) const fn within(bounds: VisitBounds) -> Self {
        Self::new(Some(bounds))
    }

    const fn new(bounds: Option<VisitBounds>) -> Self {
        Self {
            had: VisitBounds { keys: 0, bytes: 0 },
            bounds,
            exceeded: false,
        }
    }

    /// Takes note of one more key, with its value. Breaks if that is too much.
    pub(super) fn add(&mut self, bytes: usize) -> ControlFlow<()> {
        let had = VisitBounds {
            keys: self.had.keys + 1,
            bytes: self.had.bytes.saturating_add(bytes),
        };
        let beyond = |most: VisitBounds| had.keys > most.keys || had.bytes > most.bytes;
        if self.bounds.is_some_and(beyond) {
            self.exceeded = true;
            return ControlFlow::Break(());
        }
        self.had = had;
        ControlFlow::Continue(())
    }

    /// How many keys were visited, or KiB of them if these are more.
    pub(super) fn visited(&self) -> usize {
        self.had.keys.max(self.had.bytes >> 10)
    }

    /// Whether a read goes on to count what it does not return, as it did before there was a bound.
    pub(super) fn count_all(&self) -> bool {
        self.bounds.is_none()
    }

    /// Refuses the command if it visited too much.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        match self.bounds.filter(|_| self.exceeded) {
            None => Ok(()),
            Some(bounds) => Err(Refusal::RangesTooLarge {
                keys_max: bounds.keys as u64,
                bytes_max: bounds.bytes as u64,
            }),
        }
    }
}
