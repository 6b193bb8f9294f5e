//! Who waits at this member for what is committed: watches, and reads of a revision that is not
//! here yet. While there are some, the leader tells this member of commits at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many there are. Clones count the same ones.
#[derive(Clone, Debug, Default)]
pub(super) struct CommitWaiters(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct CommitWaiter(CommitWaiters);

impl CommitWaiters {
    pub(super) fn one_more(&self) -> CommitWaiter {
        self.0.fetch_add(1, Ordering::Relaxed);
        CommitWaiter(self.clone())
    }

    pub(super) fn are_there(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for CommitWaiter {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_some_until_the_last_one_goes() {
        let waiters = CommitWaiters::default();
        assert!(!waiters.are_there());
        let (first, second) = (waiters.one_more(), waiters.clone().one_more());
        drop(first);
        assert!(waiters.are_there());
        drop(second);
        assert!(!waiters.are_there());
    }
}
