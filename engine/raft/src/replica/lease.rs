//! The leader's lease, as those see it who read.

use dengine_planted::planted;
use dengine_types::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use dengine_types::{Index, Moment};

/// Whether the applied state includes every acknowledged write, readable without asking the replica
/// thread. The replica writes it, any thread reads it.
///
/// Why that is linearizable: the replica takes the word back before a message leaves that tells
/// others of a commit index this member has not applied, or that lets another member be elected. So
/// at the moment at which [`LeaseView::covers`] found it given, whatever anybody was told, as a
/// writer or as a linearizable reader, was applied here; and a read of the state after that moment
/// sees it.
#[derive(Debug, Default)]
pub struct LeaseView {
    /// In nanoseconds of this member's clock. 0: the word is not given.
    until: AtomicU64,
    wanted: AtomicBool,
    reads: AtomicU64,
}

impl LeaseView {
    /// Whether a read of the state that begins after this call may answer one that came in before
    /// it. If not, the replica must be asked. `now` reads the clock, after this call began.
    pub fn covers(&self, now: impl FnOnce() -> Moment) -> bool {
        if !self.wanted.load(Ordering::Relaxed) {
            self.wanted.store(true, Ordering::Relaxed);
        }
        // The clock comes last: the word was given at a moment at which the clock showed no more
        // than this.
        let until = self.until.load(Ordering::Acquire);
        let covers = until != 0 && now() < Moment(until);
        if covers {
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        covers
    }

    /// The lease lasts `until`; without one, or as long as something committed is not applied, the
    /// word is taken back.
    pub(crate) fn publish(&self, until: Option<Moment>, applied: Index, committed: Index) {
        let applied = applied >= committed || planted!(LeaseReadBeforeApply);
        let until = until.filter(|_| applied).unwrap_or_default();
        // Whoever finds the word given finds what was applied before it.
        let order = match planted!(LeaseWordUnordered) {
            true => Ordering::Relaxed,
            false => Ordering::Release,
        };
        self.until.store(until.0, order);
    }

    /// Whether somebody asked since the last call.
    pub(super) fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::Relaxed)
    }

    /// How often it covered a read.
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_covers_reads_within_the_lease_and_only_if_all_is_applied() {
        let view = LeaseView::default();
        let at = |now| move || Moment(now);
        assert!(!view.covers(at(0)), "nothing was published");
        for (until, applied, committed, now, covers) in [
            (Some(Moment(10)), 5, 5, 9, true),
            (Some(Moment(10)), 6, 5, 9, true),
            (Some(Moment(10)), 5, 5, 10, false),
            (Some(Moment(10)), 4, 5, 9, false),
            (None, 5, 5, 0, false),
        ] {
            view.publish(until, Index(applied), Index(committed));
            assert_eq!(view.covers(at(now)), covers, "{until:?} {applied} {now}");
        }
        assert_eq!(view.reads(), 2);
        assert!(view.take_wanted() && !view.take_wanted());
    }
}
