//! How many calls are open. Each is a stream of HTTP/2, which takes memory from its headers on
//! until its answer is sent, whatever it asks for: a client that reads nothing keeps what was
//! answered long ago.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::gate::Places;
use crate::connections::{Share, Source};
use crate::memory::{self, Use};

/// What one takes, with an answer that is too small to be counted: six KiB of these measured.
const CALL_BYTES: usize = 8 << 10;
/// At most, however much memory there is.
const CALLS_MAX: usize = 1 << 17;
/// At least: a client of many threads makes so many.
const CALLS_MIN: usize = 1 << 10;

/// The bound of all ports together. Clones share it.
#[derive(Clone)]
pub(super) struct Calls(Places);

/// One that is open, until this is dropped.
pub(super) struct Open {
    source: Arc<Source>,
    _place: OwnedSemaphorePermit,
}

impl Calls {
    /// As many as there is memory for; of one address three quarters.
    pub(super) fn new() -> Self {
        let bytes = memory::most(Use::Calls, CALLS_MAX * CALL_BYTES, CALLS_MIN * CALL_BYTES);
        Self::with(bytes / CALL_BYTES)
    }

    pub(super) fn with(limit: usize) -> Self {
        Self(Places::new(limit, Share::THREE_QUARTERS))
    }

    /// Opens one.
    ///
    /// # Errors
    /// There is no room, or not for this address.
    pub(super) fn open(&self, source: &Arc<Source>) -> Result<Open, Status> {
        let place = self.0.take(1, source.calls.load(Ordering::Relaxed));
        let place = place.ok_or_else(|| {
            Status::resource_exhausted(
                "as many calls are open on this member as there is memory for, or as many of your \
                 address as it may have; read the answers, and make fewer calls at once, or give \
                 the process more memory",
            )
        })?;
        source.calls.fetch_add(1, Ordering::Relaxed);
        Ok(Open {
            source: Arc::clone(source),
            _place: place,
        })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.source.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn one_address_leaves_room_for_others_and_what_is_answered_gives_room() {
        let calls = Calls::with(8);
        let [greedy, other] = [1, 2].map(|last| {
            let address = IpAddr::from([127, 0, 0, last]);
            Arc::new(Source::new(address))
        });
        let mut open: Vec<_> = (0..6).map(|_| calls.open(&greedy).unwrap()).collect();
        assert!(calls.open(&greedy).is_err());
        let others = calls.open(&other).unwrap();
        open.pop();
        assert!(calls.open(&greedy).is_ok());
        drop((open, others));
        assert_eq!(greedy.calls.load(Ordering::Relaxed), 0);
    }
}
