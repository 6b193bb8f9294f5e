//! How much the ranges of one command visit. Whoever applies an entry waits for nothing and can't be stopped, so this
//! needs a bound; and every member has to come to the same end, so the bound counts what all of them have, however
//! their stores lie on disk: each key that exists, and each deleted one that history still holds.

use super::{RANGE_VISIT_BYTES_MAX, RANGE_VISIT_KEYS_MAX, Refusal};
use std::ops::ControlFlow;

/// What the ranges of a command may still visit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visits {
    /// `None`: all they like.
    left: Option<VisitBounds>,
    bounds: VisitBounds,
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
    pub(super) const UNBOUNDED: Self = Self {
        left: None,
        bounds: VisitBounds::ALL,
        exceeded: false,
    };

    /// Of every other command.
    pub(super) fn within(bounds: VisitBounds) -> Self {
        Self {
            left: Some(bounds),
            bounds,
            exceeded: false,
        }
    }

    /// Takes note of one more key, with its value. Breaks if that is too much.
    pub(super) fn add(&mut self, bytes: usize) -> ControlFlow<()> {
        let Some(left) = &mut self.left else {
            return ControlFlow::Continue(());
        };
        match (left.keys.checked_sub(1), left.bytes.checked_sub(bytes)) {
            (Some(keys), Some(bytes)) => {
                *left = VisitBounds { keys, bytes };
                ControlFlow::Continue(())
            }
            _ => {
                self.exceeded = true;
                ControlFlow::Break(())
            }
        }
    }

    /// How many keys were visited, or KiB of them if these are more; 0 where nothing bounds them.
    pub(super) fn visited(&self) -> usize {
        self.left.map_or(0, |left| {
            let keys = self.bounds.keys - left.keys;
            keys.max((self.bounds.bytes - left.bytes) >> 10)
        })
    }

    /// Whether a read goes on to count what it does not return, as it did before there was a bound.
    pub(super) fn count_all(&self) -> bool {
        self.left.is_none()
    }

    /// Refuses the command if it visited too much.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        match self.exceeded {
            false => Ok(()),
            true => Err(Refusal::RangesTooLarge {
                keys_max: self.bounds.keys as u64,
                bytes_max: self.bounds.bytes as u64,
            }),
        }
    }
}
