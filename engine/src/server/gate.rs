//! What every request of a client passes: the bound on how many are served at once, and the measuring.

use std::{future::Future, sync::Arc, time::Instant};

use metrics::{Gauge, Histogram, gauge, histogram};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Code, Status};

use crate::telemetry::metrics as names;

/// Admits and measures requests. Clones share one bound.
#[derive(Clone)]
pub(super) struct Gate {
    places: Arc<Semaphore>,
    limit: usize,
    in_flight: Gauge,
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
    /// Lets at most `limit` requests in at once.
    pub(super) fn new(limit: usize) -> Self {
        let ok = |method| (method, request_seconds(method, Code::Ok));
        Self {
            places: Arc::new(Semaphore::new(limit)),
            limit,
            in_flight: gauge!(names::REQUESTS_IN_FLIGHT),
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
        match self.admit(1) {
            Ok(admitted) => {
                let result = work.await;
                admitted.answered(
                    method,
                    result.as_ref().map_or_else(Status::code, |_| Code::Ok),
                );
                result
            }
            Err(full) => {
                request_seconds(method, full.code()).record(0.0);
                Err(full)
            }
        }
    }

    /// Lets `count` requests in, unless that would be too many.
    pub(super) fn admit(&self, count: u32) -> Result<Admitted, Status> {
        let Ok(places) = Arc::clone(&self.places).try_acquire_many_owned(count) else {
            return Err(self.full());
        };
        self.in_flight.increment(count);
        Ok(Admitted {
            gate: self.clone(),
            begun: Instant::now(),
            count,
            _places: places,
        })
    }

    fn full(&self) -> Status {
        let limit = self.limit;
        Status::resource_exhausted(format!(
            "this member serves {limit} requests already; retry later or raise --max-concurrent-requests"
        ))
    }
}

impl Admitted {
    /// Notes that one of the requests was answered.
    pub(super) fn answered(&self, method: &'static str, code: Code) {
        let known = self.gate.answered.iter().find(|it| it.0 == method);
        match known.filter(|_| code == Code::Ok) {
            Some((_, histogram)) => histogram.record(self.begun.elapsed()),
            None => request_seconds(method, code).record(self.begun.elapsed()),
        }
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
        let gate = Gate::new(1);
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
}
