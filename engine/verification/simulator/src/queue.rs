//! Everything that is going to happen, in the order of simulated time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Simulated nanoseconds since the simulation began. No member knows them: each has a clock of its
/// own.
pub(super) type Nanos = u64;

/// One millisecond.
pub(super) const MILLI: Nanos = 1_000_000;
pub(super) const SECOND: Nanos = 1_000 * MILLI;

struct Due<T> {
    at: Nanos,
    /// Among events of one moment, the one that was planned first comes first.
    order: u64,
    event: T,
}

/// A queue ordered by time.
pub(super) struct Queue<T> {
    heap: BinaryHeap<Due<T>>,
    planned: u64,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            planned: 0,
        }
    }

    pub(super) fn push(&mut self, at: Nanos, event: T) {
        self.planned += 1;
        let order = self.planned;
        self.heap.push(Due { at, order, event });
    }

    pub(super) fn pop(&mut self) -> Option<(Nanos, T)> {
        self.heap.pop().map(|due| (due.at, due.event))
    }
}

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Due<T> {}

impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Due<T> {
    /// Reversed: the heap gives its greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[test]
    fn events_come_by_time_and_then_as_planned() {
        let mut queue = Queue::new();
        for (at, event) in [(3, "d"), (1, "a"), (2, "b"), (2, "c")] {
            queue.push(at, event);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(1, "a"), (2, "b"), (2, "c"), (3, "d")]);
    }
}
