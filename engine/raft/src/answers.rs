//! Limits the bytes of answers that wait to be sent, for all clients together and for each.
//!
//! What a request returns may be a thousand times as large as the request, and waits for as long as
//! its client takes to read it. So it is counted from when it was read until it is sent. Beyond the
//! bound reads are refused, and writes, which have taken effect, are answered without the pairs
//! that they were to return. A client has at most three quarters of what others leave: one that
//! reads nothing would have everybody else refused, for minutes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use dengine_planted::planted;
use dengine_types::sync::{Mutex, MutexGuard};

/// What is not counted: the number of requests that are served at once bounds it well enough.
pub const SMALL_BYTES: usize = 4096;

/// Largest answer: three quarters of what clients take, so that there is room for what surrounds it
/// and for the other answers of a frame. `dengine` checks that, for this crate knows nothing of
/// clients.
pub const ANSWER_BYTES_MAX: usize = 48 << 20;

/// The bound. Clones share it.
#[derive(Clone, Debug)]
pub struct AnswerBudget(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    limit: usize,
    largest: usize,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    held: usize,
    /// Of those that hold some.
    by_address: BTreeMap<IpAddr, usize>,
}

/// Bytes of it, given back when this is dropped.
#[derive(Debug)]
pub struct Held {
    budget: AnswerBudget,
    whose: IpAddr,
    bytes: usize,
}

impl AnswerBudget {
    /// A budget of this many bytes. A client that holds none may have an answer of up to `largest`
    /// bytes if there is room, whatever its share: otherwise it would never be admitted where the
    /// budget is little more than one answer.
    #[must_use]
    pub fn new(limit: usize, largest: usize) -> Self {
        Self(Arc::new(Budget {
            limit,
            largest,
            counted: Mutex::default(),
        }))
    }

    /// Nothing of it, to begin with, for the client at that address.
    #[must_use]
    pub fn none(&self, whose: IpAddr) -> Held {
        Held {
            budget: self.clone(),
            whose,
            bytes: 0,
        }
    }

    /// Room for an answer of so many bytes to that client, if there is any.
    #[must_use]
    pub fn hold(&self, whose: IpAddr, bytes: usize) -> Option<Held> {
        let mut held = self.none(whose);
        held.add(bytes).then_some(held)
    }

    /// How many bytes that client's answers take.
    #[must_use]
    pub fn held_by(&self, whose: IpAddr) -> usize {
        let counted = self.counted();
        counted.by_address.get(&whose).copied().unwrap_or(0)
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.0
            .counted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Budget {
    /// How many more bytes that client may have.
    fn room(&self, counted: &Counted, whose: IpAddr) -> usize {
        let free = self.limit.saturating_sub(counted.held);
        let own = counted.by_address.get(&whose).copied();
        let left_by_others = free + own.unwrap_or(0);
        let share = left_by_others - left_by_others / 4;
        match own {
            Some(own) => share.saturating_sub(own).min(free),
            None => share.max(self.largest.min(free)),
        }
    }
}

impl Held {
    /// What it counts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes as much more; whether there was room for it.
    pub fn add(&mut self, bytes: usize) -> bool {
        if bytes <= SMALL_BYTES {
            return true;
        }
        if bytes > ANSWER_BYTES_MAX {
            return false;
        }
        let mut counted = self.budget.counted();
        if self.budget.0.room(&counted, self.whose) < bytes {
            return false;
        }
        if planted!(RoomTakenInTwoSteps) {
            let before = counted.held;
            drop(counted);
            counted = self.budget.counted();
            counted.held = counted.held.max(before);
        }
        counted.held += bytes;
        *counted.by_address.entry(self.whose).or_default() += bytes;
        drop(counted);
        self.bytes += bytes;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut counted = self.budget.counted();
        counted.held -= self.bytes;
        if let Some(own) = counted.by_address.get_mut(&self.whose) {
            *own -= self.bytes;
            if *own == 0 {
                counted.by_address.remove(&self.whose);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn beyond_the_bound_there_is_no_room_until_something_is_sent() {
        let budget = AnswerBudget::new(30_000, 30_000);
        let first = budget.hold(address(1), 20_000).expect("there is room");
        assert_eq!([1, 2].map(|it| budget.held_by(address(it))), [20_000, 0]);
        assert!(budget.hold(address(2), 20_000).is_none());
        let mut second = budget.hold(address(2), 10_000).expect("there is room");
        assert!(second.add(SMALL_BYTES), "small answers are not counted");
        assert!(!second.add(SMALL_BYTES + 1));
        drop(first);
        assert!(second.add(12_500));
        drop(second);
        assert_eq!(budget.counted().held, 0);
        assert!(budget.counted().by_address.is_empty());
    }

    #[test]
    fn what_was_refused_or_is_small_is_not_counted() {
        let budget = AnswerBudget::new(30_000, 30_000);
        let mut held = budget.none(address(1));
        for (bytes, counted) in [
            (SMALL_BYTES, 0),
            (10_000, 10_000),
            (30_000, 10_000),
            (5_000, 15_000),
        ] {
            held.add(bytes);
            assert_eq!(held.bytes(), counted, "after {bytes}");
        }
    }

    /// A client that read nothing and sent pings had everybody else's reads refused, for minutes.
    #[test]
    fn who_reads_nothing_leaves_room_to_others() {
        let budget = AnswerBudget::new(160_000, 40_000);
        let hold = |whose, bytes| budget.hold(address(whose), bytes);
        let unread: Vec<_> = std::iter::from_fn(|| hold(1, 5_000)).collect();
        assert_eq!(unread.len(), 24, "three quarters");
        let other: Vec<_> = std::iter::from_fn(|| hold(2, 5_000)).collect();
        assert_eq!(other.len(), 6, "three quarters of the rest");
        assert!(hold(3, 5_000).is_some());
        drop(unread);
        assert!(hold(2, 60_000).is_some() && hold(1, 90_000).is_some());
    }

    #[test]
    fn who_holds_none_may_have_the_largest_answer_and_no_larger_one() {
        let budget = AnswerBudget::new(100_000, 80_000);
        let hold = |whose, bytes| budget.hold(address(whose), bytes);
        assert!(hold(1, 80_001).is_none());
        let largest = hold(1, 80_000).expect("there is room");
        assert!(hold(1, 5_000).is_none(), "it has more than its share");
        assert!(hold(2, 20_000).is_some(), "there is room, and it has none");
        drop(largest);
        let small = hold(1, 5_000).expect("there is room");
        assert!(hold(1, 75_000).is_none(), "it has some");
        assert!(hold(1, 70_000).is_some());
        drop(small);
    }

    #[test]
    fn no_answer_is_larger_than_what_clients_take() {
        let budget = AnswerBudget::new(usize::MAX, 0);
        assert!(budget.hold(address(1), ANSWER_BYTES_MAX).is_some());
        assert!(budget.hold(address(1), ANSWER_BYTES_MAX + 1).is_none());
    }
}
