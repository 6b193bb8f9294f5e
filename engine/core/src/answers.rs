//! How many bytes of answers may wait to be sent, of all clients together.
//!
//! What a request returns may be a thousand times as large as the request, and waits for as long as its client takes to
//! read it. So it is counted from when it was read until it is sent. Beyond the bound reads are refused, and writes,
//! which have taken effect, are answered without the pairs that they were to return.

use crate::planted::planted;
use crate::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// What is not counted: the number of requests that are served at once bounds it well enough.
pub const SMALL_BYTES: usize = 4096;

/// Largest answer: three quarters of what clients take, so that there is room for what surrounds it and for the other
/// answers of a frame. `dengine` checks that, for this crate knows nothing of clients.
pub const ANSWER_BYTES_MAX: usize = 48 << 20;

/// The bound. Clones share it.
#[derive(Clone, Debug)]
pub struct AnswerBudget(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    held: AtomicUsize,
    limit: usize,
}

/// Bytes of it, given back when this is dropped.
#[derive(Debug)]
pub struct Held {
    budget: AnswerBudget,
    bytes: usize,
}

impl AnswerBudget {
    /// So many bytes may be held at once.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Budget {
            held: AtomicUsize::new(0),
            limit,
        }))
    }

    /// Nothing of it, to begin with.
    #[must_use]
    pub fn none(&self) -> Held {
        Held {
            budget: self.clone(),
            bytes: 0,
        }
    }

    /// Room for an answer of so many bytes, if there is any.
    #[must_use]
    pub fn hold(&self, bytes: usize) -> Option<Held> {
        let mut held = self.none();
        held.add(bytes).then_some(held)
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
        let Budget { held, limit } = &*self.budget.0;
        let room = |now: usize| now.checked_add(bytes).filter(|more| more <= limit);
        // Only the count itself matters, so no order with anything else is needed.
        let taken = if planted!(RoomTakenInTwoSteps) {
            let more = room(held.load(Ordering::Relaxed));
            more.inspect(|more| held.store(*more, Ordering::Relaxed))
                .is_some()
        } else {
            held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
                .is_ok()
        };
        self.bytes += if taken { bytes } else { 0 };
        taken
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
