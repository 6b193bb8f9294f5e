//! A log that lost more than the state that was made from it.

use super::{Disk, Log, LogError, Position};
use crate::types::{HardState, MemberId};

/// Begins a log anew after the state, which is ahead of it: only where a person has accepted that a `memory-first` member lost
/// writes. The state holds committed entries only, and term and vote were synced, so nothing that this member promised is
/// broken. The log must be opened again after this.
///
/// # Errors
/// As [`Log::reset`] and [`Log::sync`].
pub fn begin_anew<D: Disk>(log: &mut Log<D>, applied: Position) -> Result<(), LogError> {
    let known = log.hard_state();
    let vote = match known.term < applied.term {
        true => MemberId(0),
        false => known.vote,
    };
    log.reset(
        applied,
        HardState {
            term: known.term.max(applied.term),
            vote,
            commit: applied.index,
        },
    )?;
    log.sync()
}
