//! Who takes the turns of a member's replica and its applier.
//!
//! In `dengine` callers do in the place of their threads while little is under way
//! (`engine/server/src/node/worker.rs`): what follows from a message or a sync follows at once,
//! before anything else arrives, and what is committed is applied at once. In a quarter of the runs
//! it is always so, in another one for half a second out of each second, and in the others their
//! threads are woken first. Decided apart from all that a run draws besides, so that the others are
//! what they would be if there were none.

use super::queue::{Nanos, SECOND};

/// See [the module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TurnsBy {
    #[default]
    Thread,
    Callers,
    /// Now these, now those.
    Either,
}

impl TurnsBy {
    pub(super) fn of(seed: u64) -> Self {
        match seed % 4 {
            1 => Self::Callers,
            2 => Self::Either,
            _ => Self::Thread,
        }
    }

    /// How long it takes until a worker begins, if its thread takes as long to wake.
    pub(super) fn begins_after(self, wakes_in: Nanos, now: Nanos) -> Nanos {
        match self {
            Self::Thread => wakes_in,
            Self::Callers => 0,
            Self::Either if now % SECOND < SECOND / 2 => 0,
            Self::Either => wakes_in,
        }
    }
}
