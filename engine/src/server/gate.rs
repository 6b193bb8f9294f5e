//! What every request of a client passes: the bound on how many are served at once, and the measuring.

use std::{future::Future, sync::Arc, time::Instant};

use metrics::{Gauge, gauge, histogram};
use tokio::sync::{Semaphore, TryAcquireError};
use tonic::{Code, Response, Status};

use crate::telemetry::metrics as names;

/// Admits and measures requests. Clones share one bound.
#[derive(Clone)]
pub(super) struct Gate {
    places: Arc<Semaphore>,
    limit: usize,
    in_flight: Gauge,
}

impl Gate {
    /// Lets at most `limit` requests in at once.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(limit)),
            limit,
            in_flight: gauge!(names::REQUESTS_IN_FLIGHT),
        }
    }

    /// Serves one request, unless there are too many.
    pub(super) async fn pass<T>(
        &self,
        method: &'static str,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        let begun = Instant::now();
        let result = match self.places.try_acquire() {
            Ok(_place) => {
                let _counted = Counted::up(&self.in_flight);
                work.await
            }
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => Err(self.full()),
        };
        let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        histogram!(names::REQUEST_SECONDS, names::METHOD => method, names::CODE => code_name(code))
            .record(begun.elapsed());
        result.map(Response::new)
    }

    fn full(&self) -> Status {
        let limit = self.limit;
        Status::resource_exhausted(format!(
            "this member serves {limit} requests already; retry later or raise --max-concurrent-requests"
        ))
    }
}

/// Counts a request down when it ends, also when its caller hangs up.
struct Counted<'a>(&'a Gauge);

impl<'a> Counted<'a> {
    fn up(gauge: &'a Gauge) -> Self {
        gauge.increment(1);
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
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
