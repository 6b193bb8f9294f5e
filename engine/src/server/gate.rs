//! What every request of a client passes: the bound on how many are served at once, of which no client takes all, and
//! the measuring.

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use metrics::{Gauge, Histogram, gauge, histogram};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Code, Status};

use super::slow::SlowLog;
use crate::{
    connections::{Share, Source},
    telemetry::metrics as names,
};

/// What one client may have of the places that no other has.
const SHARE: Share = Share::THREE_QUARTERS;

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
    source: Arc<Source>,
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
        source: &Arc<Source>,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let Some(admitted) = self.admit(1, source) else {
            let full = self.full();
            request_seconds(method, full.code()).record(0.0);
            return Err(full);
        };
        let result = work.await;
        let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        admitted.answered(method, code);
        result
    }

    /// Lets as many of `count` requests in as there are places for that it may have; `None` if there is not one.
    pub(super) fn admit(&self, count: usize, source: &Arc<Source>) -> Option<Admitted> {
        let (count, places) = loop {
            let taken = self.limit.saturating_sub(self.places.available_permits());
            let own = source.requests.load(Ordering::Relaxed);
            let more = SHARE.more(self.limit, taken, own).min(count);
            let more = u32::try_from(more).ok().filter(|more| *more > 0)?;
            // Somebody else may be faster; then it is looked again.
            if let Ok(places) = Arc::clone(&self.places).try_acquire_many_owned(more) {
                break (more, places);
            }
        };
        source.requests.fetch_add(count as usize, Ordering::Relaxed);
        self.in_flight.increment(count);
        Some(Admitted {
            gate: self.clone(),
            begun: Instant::now(),
            count,
            source: Arc::clone(source),
            _places: places,
        })
    }

    /// What those are told for whom there was no place.
    pub(super) fn full(&self) -> Status {
        let limit = self.limit;
        Status::resource_exhausted(format!(
            "this member serves as many requests as it does at once ({limit}), or as many of your address as it may have of them; retry later or raise --max-concurrent-requests"
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
        let count = self.count as usize;
        self.source.requests.fetch_sub(count, Ordering::Relaxed);
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
    use std::net::IpAddr;

    use super::*;

    fn source(last: u8) -> Arc<Source> {
        Arc::new(Source::new(IpAddr::from([10, 0, 0, last])))
    }

    #[tokio::test]
    async fn beyond_the_bound_requests_are_refused_and_a_place_is_given_back() {
        let (gate, source) = (Gate::new(1, None), source(1));
        let (inner, from) = (gate.clone(), Arc::clone(&source));
        let outer = gate.pass("Put", &source, async move {
            let refused = inner.pass("Put", &from, async { Ok(()) }).await;
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted);
            assert!(refused.message().contains("--max-concurrent-requests"));
            Ok(())
        });
        outer.await.unwrap();
        let again = gate.pass("Put", &source, async { Ok(()) });
        again.await.unwrap();
    }

    /// A frame may hold more calls than are ever served at once.
    #[test]
    fn of_many_as_many_are_let_in_as_there_is_room_for() {
        let (gate, one, other) = (Gate::new(3, None), source(1), source(2));
        let first = gate.admit(2, &one).expect("there is room");
        let second = gate.admit(1_000, &other).expect("there is room for one");
        assert_eq!((first.count(), second.count()), (2, 1));
        assert!(gate.admit(1, &one).is_none());
        drop(first);
        let again = gate.admit(1_000, &one).expect("there is room");
        assert_eq!(again.count(), 2);
    }

    #[test]
    fn one_client_leaves_places_to_others_and_has_its_own_back() {
        let (gate, greedy, other) = (Gate::new(100, None), source(1), source(2));
        let most = gate.admit(1_000, &greedy).expect("there is room");
        assert_eq!(most.count(), 75);
        assert!(gate.admit(1, &greedy).is_none());
        let others = gate.admit(10, &other).expect("there is room for others");
        assert_eq!(others.count(), 10);
        drop((most, others));
        assert_eq!(greedy.requests.load(Ordering::Relaxed), 0);
        assert_eq!(gate.admit(75, &greedy).expect("there is room").count(), 75);
    }
}
