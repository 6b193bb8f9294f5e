//! What every request of a client passes: the bound on how many are served at once, and the measuring.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use metrics::{Gauge, Histogram, gauge, histogram};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Code, Status};

use super::slow::SlowLog;
use crate::telemetry::metrics as names;

/// Admits and measures requests. Clones share one bound.
#[derive(Clone)]
pub(super) struct Gate {
    places: Arc<Semaphore>,
    limit: usize,
    in_flight: Gauge,
    slow: Arc<SlowLog>,
    /// Of the methods that are called most, so that they need not be looked up each time.
    answered: Arc<[(&'static str, Histogram)]>,
}

/// Requests that were let in together. Their places come back when this is dropped.
pub(super) struct Admitted {
    gate: Gate,
    begun: Instant,
    count: u32,
    _places: OwnedSemaphorePermit,
}

impl Gate {
    /// Lets at most `limit` requests in at once, and logs those that take `slow` or longer.
    pub(super) fn new(limit: usize, slow: Option<Duration>) -> Self {
        let ok = |method| (method, request_seconds(method, Code::Ok));
        Self {
            places: Arc::new(Semaphore::new(limit)),
            limit,
            in_flight: gauge!(names::REQUESTS_IN_FLIGHT),
            slow: Arc::new(SlowLog::new(slow)),
            answered: ["Get", "Put", "Range", "Batch", "CompareAndSwap", "Delete"]
                .map(ok)
                .into(),
        }
    }

    /// Serves one request, unless there are too many.
    pub(super) async fn pass<T>(
        &self,
        method: &'static str,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let Some(admitted) = self.admit(1) else {
            let full = self.full();
            request_seconds(method, full.code()).record(0.0);
            return Err(full);
        };
        let result = work.await;
        let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        admitted.answered(method, code);
        result
    }

    /// Lets as many of `count` requests in as there are places for; `None` if there is not one.
    pub(super) fn admit(&self, count: usize) -> Option<Admitted> {
        let (count, places) = loop {
            let free = self.places.available_permits().min(count);
            let free = u32::try_from(free).ok().filter(|free| *free > 0)?;
            // Somebody else may be faster; then it is looked again.
            if let Ok(places) = Arc::clone(&self.places).try_acquire_many_owned(free) {
                break (free, places);
            }
        };
        self.in_flight.increment(count);
        Some(Admitted {
            gate: self.clone(),
            begun: Instant::now(),
            count,
            _places: places,
        })
    }

    /// What those are told for whom there was no place.
    pub(super) fn full(&self) -> Status {
        let limit = self.limit;
        Status::resource_exhausted(format!(
            "this member serves {limit} requests already; retry later or raise --max-concurrent-requests"
        ))
    }
}

impl Admitted {
    /// How many were let in.
    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// Notes that one of the requests was answered.
    pub(super) fn answered(&self, method: &'static str, code: Code) {
        let took = self.begun.elapsed();
        let known = self.gate.answered.iter().find(|it| it.0 == method);
        match known.filter(|_| code == Code::Ok) {
            Some((_, histogram)) => histogram.record(took),
            None => request_seconds(method, code).record(took),
        }
        self.gate.slow.answered(method, code, took);
    }
}

impl Drop for Admitted {
    /// Also when a caller hangs up.
    fn drop(&mut self) {
        self.gate.in_flight.decrement(self.count);
    }
}

fn request_seconds(method: &'static str, code: Code) -> Histogram {
    histogram!(names::REQUEST_SECONDS, names::METHOD => method, names::CODE => code_name(code))
}

/// The name of a status code in gRPC's own spelling.
pub(super) const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn beyond_the_bound_requests_are_refused_and_a_place_is_given_back() {
        let gate = Gate::new(1, None);
        let inner = gate.clone();
        let outer = gate.pass("Put", async move {
            let refused = inner.pass("Put", async { Ok(()) }).await.unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted);
            assert!(refused.message().contains("--max-concurrent-requests"));
            Ok(())
        });
        outer.await.unwrap();
        gate.pass("Put", async { Ok(()) }).await.unwrap();
    }

    /// A frame may hold more calls than are ever served at once.
    #[test]
    fn of_many_as_many_are_let_in_as_there_is_room_for() {
        let gate = Gate::new(3, None);
        let first = gate.admit(2).expect("there is room");
        let second = gate.admit(1_000).expect("there is room for one");
        assert_eq!((first.count(), second.count()), (2, 1));
        assert!(gate.admit(1).is_none());
        drop(first);
        assert_eq!(gate.admit(1_000).expect("there is room").count(), 2);
    }
}
