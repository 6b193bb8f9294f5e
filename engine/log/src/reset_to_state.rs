//! The reset of a log that ends before the state that was applied from it.

use dengine_types::{HardState, MemberId};

use super::{Disk, Log, LogError, Position};

/// Resets the log to the last applied entry of a state that is ahead of it. Use it only after a
/// person has accepted that a `memory-first` member lost writes. It is safe because the state holds
/// committed entries only, and term and vote were synced. The log must be opened again afterwards.
///
/// # Errors
///
/// As [`Log::reset`] and [`Log::sync`].
pub fn reset_to_state<D: Disk>(log: &mut Log<D>, applied: Position) -> Result<(), LogError> {
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

#[cfg(test)]
mod tests {
    use dengine_types::{Index, Term};

    use super::super::conformance::{batch, small_options};
    use super::super::memory::MemoryDisk;
    use super::super::{Batch, Recovered};
    use super::*;

    const KNOWN: HardState = HardState {
        term: Term(4),
        vote: MemberId(2),
        commit: Index(2),
    };

    /// What a log of three entries recovers after a reset to `applied`.
    fn reset_and_recovered(applied: Position) -> Recovered {
        let disk = MemoryDisk::new();
        let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
        log.append(&Batch {
            hard_state: Some(KNOWN),
            ..batch(4, 1..=3, 10)
        })
        .unwrap();
        log.sync().unwrap();
        reset_to_state(&mut log, applied).unwrap();
        drop(log);
        Log::open(disk, small_options()).unwrap().1
    }

    #[test]
    fn a_reset_log_continues_after_the_state_and_keeps_term_and_vote() {
        for (term, kept) in [(3, KNOWN.vote), (4, KNOWN.vote), (5, MemberId(0))] {
            let applied = Position {
                index: Index(9),
                term: Term(term),
            };
            let found = reset_and_recovered(applied);
            assert_eq!((found.base, found.last_index), (applied, Index(9)));
            let expected = HardState {
                term: Term(term.max(4)),
                vote: kept,
                commit: Index(9),
            };
            assert_eq!(found.hard_state, expected);
        }
    }
}
