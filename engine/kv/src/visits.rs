//! How much the ranges of one command visit. The application of an entry can't be stopped, so it
//! needs a limit; and every member must reach the same result, so the limit counts only what all of
//! them have, however their stores are laid out: each existing key, and each deleted one that
//! history still has. From version 4 of commands on, single keys count too that are compared, or
//! read and exist: a batch may name the same large one thousands of times.

use std::ops::ControlFlow;

use super::{KeyRange, RANGE_VISIT_BYTES_MAX, RANGE_VISIT_KEYS_MAX, Refusal};

/// What the ranges of a command have visited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visits {
    had: VisitBounds,
    /// `None`: no limit.
    bounds: Option<VisitBounds>,
    exceeded: bool,
    /// Single keys count as well.
    counts_single_keys: bool,
}

/// The limits of one command.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisitBounds {
    pub(super) keys: usize,
    /// Bytes of these keys and their values, plus an overhead for each.
    pub(super) bytes: usize,
}

impl VisitBounds {
    /// The limits that are part of the meaning of commands.
    pub(super) const ALL: Self = Self {
        keys: RANGE_VISIT_KEYS_MAX,
        bytes: RANGE_VISIT_BYTES_MAX,
    };
}

impl Visits {
    /// For commands that were encoded before there was a limit.
    pub(super) const UNBOUNDED: Self = Self::new(None);

    /// For all other commands.
    pub(super) const fn within(bounds: VisitBounds) -> Self {
        Self::new(Some(bounds))
    }

    const fn new(bounds: Option<VisitBounds>) -> Self {
        Self {
            had: VisitBounds { keys: 0, bytes: 0 },
            bounds,
            exceeded: false,
            counts_single_keys: false,
        }
    }

    /// The same, with single keys counted or not.
    pub(super) const fn with_single_keys(self, counts_single_keys: bool) -> Self {
        Self {
            counts_single_keys,
            ..self
        }
    }

    /// Whether a visit of these keys counts.
    pub(super) fn counts(&self, keys: &KeyRange) -> bool {
        self.counts_single_keys || !matches!(keys, KeyRange::One(_))
    }

    /// Whether too much was visited, so that the command comes to nothing.
    pub(super) fn is_exceeded(&self) -> bool {
        self.exceeded
    }

    /// Counts one more key, with its value. Breaks beyond the limit.
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

    /// Whether a read counts what it does not return, as it did before there was a limit.
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
