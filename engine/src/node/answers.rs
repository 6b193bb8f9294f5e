//! How many bytes of answers may wait to be sent, of all clients together.
//!
//! What a request returns may be a thousand times as large as the request, and waits for as long as its client takes to
//! read it. So it is counted from when it was read until it is sent. Beyond the bound reads are refused, and writes,
//! which have taken effect, are answered without the pairs that they were to return.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is not counted: the number of requests that are served at once bounds it well enough.
pub(crate) const SMALL_BYTES: usize = 4096;

/// Largest answer. With what surrounds it, and a frame's other answers, a client still takes it.
pub(crate) const ANSWER_BYTES_MAX: usize = dengine_api::RESPONSE_BYTES_MAX / 4 * 3;

/// The bound. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct AnswerBudget(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    held: AtomicUsize,
    limit: usize,
}

/// Bytes of it, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    budget: AnswerBudget,
    bytes: usize,
}

impl AnswerBudget {
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Budget {
            held: AtomicUsize::new(0),
            limit,
        }))
    }

    /// Nothing of it, to begin with.
    pub(crate) fn none(&self) -> Held {
        Held {
            budget: self.clone(),
            bytes: 0,
        }
    }

    /// Room for an answer of so many bytes, if there is any.
    pub(crate) fn hold(&self, bytes: usize) -> Option<Held> {
        let mut held = self.none();
        held.add(bytes).then_some(held)
    }
}

impl Held {
    /// What it counts.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes as much more; whether there was room for it.
    pub(crate) fn add(&mut self, bytes: usize) -> bool {
        if bytes <= SMALL_BYTES {
            return true;
        }
        if bytes > ANSWER_BYTES_MAX {
            return false;
        }
        let Budget { held, limit } = &*self.budget.0;
        let room = |now: usize| now.checked_add(bytes).filter(|more| more <= limit);
        let taken = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        self.bytes += taken.map_or(0, |_| bytes);
        taken.is_ok()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.0.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_bound_there_is_no_room_until_something_is_sent() {
        let budget = AnswerBudget::new(30_000);
        let first = budget.hold(20_000).expect("there is room");
        assert!(budget.hold(20_000).is_none());
        let mut second = budget.hold(10_000).expect("there is room");
        assert!(second.add(SMALL_BYTES), "small answers are not counted");
        assert!(!second.add(SMALL_BYTES + 1));
        drop(first);
        assert!(second.add(20_000));
        drop(second);
        assert_eq!(budget.0.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn no_answer_is_larger_than_what_clients_take() {
        let budget = AnswerBudget::new(usize::MAX);
        assert!(budget.hold(ANSWER_BYTES_MAX).is_some());
        assert!(budget.hold(ANSWER_BYTES_MAX + 1).is_none());
    }
}
