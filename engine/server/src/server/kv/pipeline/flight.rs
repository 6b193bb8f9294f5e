//! Frames of answers on their way to the client. HTTP/2 keeps one that it cannot send, and the
//! connection another one behind it: each counts until it is gone, whether or not the next one was
//! asked for.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::connections::Connection;
use crate::node::answers::Held;
use crate::server::bodies::CountsParts;

/// What one stream has on its way.
#[derive(Default)]
pub(in crate::server) struct Flight(Mutex<FlightState>);

#[derive(Default)]
struct FlightState {
    /// What counts the memory of frames that were made and are in no part yet.
    waiting: Vec<Held>,
    bytes: usize,
    /// When the last part went, or the first came.
    moved_at: Option<Instant>,
    /// Which keeps what is not sent, since the stream has ended.
    kept_by: Option<Arc<Connection>>,
}

/// A part of the body.
struct Flying {
    flight: Arc<Flight>,
    bytes: usize,
    _held: Vec<Held>,
}

impl Flight {
    fn state(&self) -> MutexGuard<'_, FlightState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What counts a frame, which is in the next part.
    pub(super) fn hold(&self, held: Vec<Held>) {
        self.state().waiting.extend(held);
    }

    /// The stream has ended with this unread: the connection keeps it.
    pub(super) fn strand(&self, connection: &Arc<Connection>) {
        let mut state = self.state();
        connection.keeps(state.bytes);
        state.kept_by = Some(Arc::clone(connection));
    }

    /// How many bytes the client has not taken, and since when it has taken nothing. `None`: it has
    /// all.
    pub(super) fn unread(&self) -> Option<(Instant, usize)> {
        let state = self.state();
        let since = state.moved_at.filter(|_| state.bytes > 0);
        since.map(|since| (since, state.bytes))
    }
}

impl CountsParts for Flight {
    fn part(self: Arc<Self>, bytes: usize) -> Box<dyn Any + Send + Sync> {
        let held = {
            let mut state = self.state();
            if state.bytes == 0 {
                state.moved_at = Some(Instant::now());
            }
            state.bytes += bytes;
            if let Some(connection) = &state.kept_by {
                connection.keeps(bytes);
            }
            std::mem::take(&mut state.waiting)
        };
        Box::new(Flying {
            flight: self,
            bytes,
            _held: held,
        })
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        let mut state = self.flight.state();
        state.bytes -= self.bytes;
        state.moved_at = Some(Instant::now());
        if let Some(connection) = &state.kept_by {
            connection.keeps_no_more(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::answers::AnswerBudget;

    /// It was given back when the next frame was asked for, which is before this one is sent.
    #[test]
    fn a_frame_counts_until_its_part_is_gone() {
        let budget = AnswerBudget::new(10_000, 10_000);
        let hold = |bytes| budget.hold([10, 0, 0, 1].into(), bytes);
        let flight = Arc::new(Flight::default());
        flight.hold(hold(9_000).into_iter().collect());
        let first = Arc::clone(&flight).part(9_000);
        let second = Arc::clone(&flight).part(10);
        assert_eq!(flight.unread().expect("nothing was read").1, 9_010);
        assert!(hold(9_000).is_none());
        drop(first);
        assert!(hold(9_000).is_some());
        assert_eq!(flight.unread().expect("a part was read").1, 10);
        drop(second);
        assert!(flight.unread().is_none());
    }

    /// It counted for as long as there was the connection: streams that were given up now and then
    /// closed it in the end.
    #[test]
    fn what_is_read_after_all_is_no_longer_kept() {
        let connection = Arc::new(Connection::alone());
        for _ in 0..1_000 {
            let flight = Arc::new(Flight::default());
            let part = Arc::clone(&flight).part(64 << 10);
            flight.strand(&connection);
            drop(part);
        }
        assert!(!connection.is_closed());
    }
}
