//! When the log was synced lately, for the traces of writes: which sync brought a write to this
//! member's disk.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use dengine_raft::AppendId;

/// Syncs that are remembered: more than there are between a batch and its application, unless that
/// takes very long.
const SYNCS_MAX: usize = 64;

/// The last syncs, in their order. Clones share them. The default remembers none.
#[derive(Clone, Debug, Default)]
pub(super) struct Syncs(Option<Arc<Mutex<VecDeque<Synced>>>>);

#[derive(Clone, Copy, Debug)]
struct Synced {
    /// This is on disk, and what was appended before.
    up_to: AppendId,
    from: Instant,
    to: Instant,
}

impl Syncs {
    /// Remembers some.
    pub(super) fn remembered() -> Self {
        Self(Some(Arc::default()))
    }

    /// That much is on disk since the sync that took so long.
    pub(super) fn note(&self, up_to: AppendId, (from, to): (Instant, Instant)) {
        let Some(syncs) = &self.0 else {
            return;
        };
        let mut syncs = syncs.lock().unwrap_or_else(PoisonError::into_inner);
        if syncs.len() == SYNCS_MAX {
            syncs.pop_front();
        }
        syncs.push_back(Synced { up_to, from, to });
    }

    /// The sync that brought this to the disk. `None` if it is not known to be there, or no longer
    /// known since when.
    pub(super) fn of(&self, id: AppendId) -> Option<(Instant, Instant)> {
        let syncs = self.0.as_ref()?.lock();
        let syncs = syncs.unwrap_or_else(PoisonError::into_inner);
        let at = syncs.partition_point(|it| it.up_to < id);
        // Before the first that is remembered there may have been another one with it.
        let may_be_older = at == 0 && syncs.len() == SYNCS_MAX;
        let synced = syncs.get(at).filter(|_| !may_be_older)?;
        Some((synced.from, synced.to))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_write_is_of_the_first_sync_that_has_it() {
        let (syncs, start) = (Syncs::remembered(), Instant::now());
        let time = |n: u64| (start, start + Duration::from_secs(n));
        for n in [2, 5, 6] {
            syncs.note(AppendId(n), time(n));
        }
        let of = |n| syncs.of(AppendId(n));
        assert_eq!([of(1), of(2)], [Some(time(2)); 2]);
        assert_eq!([of(3), of(5)], [Some(time(5)); 2]);
        assert_eq!([of(6), of(7)], [Some(time(6)), None]);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_older_is_not_known() {
        let (syncs, now) = (Syncs::remembered(), Instant::now());
        for n in 1..=2 * SYNCS_MAX as u64 {
            syncs.note(AppendId(n), (now, now));
        }
        assert_eq!(syncs.of(AppendId(1)), None);
        assert!(syncs.of(AppendId(2 * SYNCS_MAX as u64)).is_some());
        let off = Syncs::default();
        off.note(AppendId(1), (now, now));
        assert_eq!(off.of(AppendId(1)), None);
    }
}
