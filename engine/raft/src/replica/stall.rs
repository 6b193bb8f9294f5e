//! Whether the log and the state machine get on. A disk that hangs reports no error, and a leader
//! goes on sending heartbeats without it: the others follow, and nothing is applied or answered.

use std::collections::VecDeque;
use std::time::Duration;

use dengine_types::{Index, Moment};

use crate::input::AppendId;

/// Longer than a disk under load takes for a sync, in election timeouts.
const PATIENCE_TIMEOUTS: u32 = 4;

/// What was handed out and is not done, the oldest first, and since when.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    appends: VecDeque<(AppendId, Moment)>,
    applies: VecDeque<(Index, Moment)>,
}

impl Outstanding {
    pub(super) fn append(&mut self, id: AppendId, now: Moment) {
        self.appends.push_back((id, now));
    }

    pub(super) fn persisted(&mut self, id: AppendId) {
        while self
            .appends
            .front()
            .is_some_and(|(oldest, _)| *oldest <= id)
        {
            self.appends.pop_front();
        }
    }

    pub(super) fn apply(&mut self, last: Index, now: Moment) {
        self.applies.push_back((last, now));
    }

    pub(super) fn applied(&mut self, index: Index) {
        while self
            .applies
            .front()
            .is_some_and(|(oldest, _)| *oldest <= index)
        {
            self.applies.pop_front();
        }
    }

    /// Whether something has been under way for too long.
    pub(super) fn is_stalled(&self, now: Moment, election_timeout: Duration) -> bool {
        let append = self.appends.front().map(|(_, since)| *since);
        let apply = self.applies.front().map(|(_, since)| *since);
        let patience = election_timeout * PATIENCE_TIMEOUTS;
        [append, apply]
            .into_iter()
            .flatten()
            .any(|since| since.after(patience) < now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);

    fn at(second: u64) -> Moment {
        Moment(second * 1_000_000_000)
    }

    #[test]
    fn what_is_not_done_for_long_is_a_stall_until_it_is_done() {
        let mut outstanding = Outstanding::default();
        outstanding.append(AppendId(1), at(0));
        outstanding.append(AppendId(2), at(3));
        assert!(!outstanding.is_stalled(at(4), TIMEOUT));
        assert!(outstanding.is_stalled(at(5), TIMEOUT));
        outstanding.persisted(AppendId(1));
        assert!(!outstanding.is_stalled(at(7), TIMEOUT));
        outstanding.persisted(AppendId(2));
        assert!(!outstanding.is_stalled(at(100), TIMEOUT));
        outstanding.apply(Index(9), at(100));
        outstanding.applied(Index(8));
        assert!(outstanding.is_stalled(at(105), TIMEOUT));
        outstanding.applied(Index(9));
        assert!(!outstanding.is_stalled(at(105), TIMEOUT));
    }
}
