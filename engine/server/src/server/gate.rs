//! What every request of a client passes: the bound on how many are served at once, of which no
//! client takes all, and the measuring.

use std::future::Future;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::{Gauge, Histogram, gauge, histogram};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Code, Status};

use super::slow::SlowLog;
use crate::config::Limits;
use crate::connections::{Share, Source, WAITING_UNIT_BYTES};
use crate::memory::{self, Use};
use crate::telemetry::metrics as names;

/// What one client may have of the places that no other has.
const SHARE: Share = Share::THREE_QUARTERS;
/// And of those for writes: each waits for all that were there before it.
const SHARE_OF_WRITES: Share = Share::HALF;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    /// It also takes a place of those that wait to be acknowledged.
    Write,
}

/// Methods whose measurements are not looked up each time.
const CALLED_MOST: [&str; 9] = [
    "Get",
    "Put",
    "Range",
    "Batch",
    "CompareAndSwap",
    "Delete",
    "EtcdRange",
    "EtcdPut",
    "EtcdTxn",
];

/// Bytes of requests that wait for a place or for their turn, of all clients together.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Admits and measures requests. Clones share one bound.
#[derive(Clone)]
pub(super) struct Gate {
    places: Places,
    writes: Places,
    waiting: Places,
    lately: Arc<Lately>,
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
    kind: Kind,
    source: Arc<Source>,
    _places: Vec<OwnedSemaphorePermit>,
    stream: Option<Arc<()>>,
}

/// A request that waits for a place or for its turn, until this is dropped. What it holds is
/// counted.
pub(super) struct Waiting {
    source: Arc<Source>,
    units: OwnedSemaphorePermit,
}

/// Which places the calls of one stream hold.
#[derive(Default)]
pub(super) struct OfStream {
    reads: Arc<()>,
    writes: Arc<()>,
}

/// The two clients that were let in last, the last one first, and when each was: enough to tell
/// whether there are others than one.
#[derive(Default)]
struct Lately(Mutex<[Option<(IpAddr, Instant)>; 2]>);

impl Lately {
    /// For so long after its last request a client counts.
    const REMEMBERED: Duration = Duration::from_secs(1);

    fn note(&self, client: IpAddr, now: Instant) {
        let mut two = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if two[0].is_some_and(|(last, _)| last != client) {
            two.swap(0, 1);
        }
        two[0] = Some((client, now));
    }

    fn others_than(&self, client: IpAddr, since: Instant) -> bool {
        let two = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_other = |(other, at): (IpAddr, Instant)| {
            other != client && since.saturating_duration_since(at) < Self::REMEMBERED
        };
        two.iter().copied().flatten().any(is_other)
    }
}

/// Places of one kind.
#[derive(Clone)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    limit: usize,
    share: Share,
}

impl Places {
    pub(super) fn new(limit: usize, share: Share) -> Self {
        Self {
            free: Arc::new(Semaphore::new(limit)),
            limit,
            share,
        }
    }

    /// All of `count`; `None` if a client with `own` may not have so many.
    fn take_all(&self, count: u32, own: usize) -> Option<OwnedSemaphorePermit> {
        let taken = self.limit.saturating_sub(self.free.available_permits());
        let more = self.share.more(self.limit, taken, own);
        if more < count as usize {
            return None;
        }
        Arc::clone(&self.free).try_acquire_many_owned(count).ok()
    }

    /// As many of `count` as there are and a client with `own` may have; `None` if it is not one.
    pub(super) fn take(&self, count: u32, own: usize) -> Option<OwnedSemaphorePermit> {
        loop {
            let taken = self.limit.saturating_sub(self.free.available_permits());
            let more = self.share.more(self.limit, taken, own).min(count as usize);
            let more = u32::try_from(more).ok().filter(|more| *more > 0)?;
            // Somebody else may be faster; then it is looked again.
            if let Ok(places) = Arc::clone(&self.free).try_acquire_many_owned(more) {
                return Some(places);
            }
        }
    }
}

impl Gate {
    pub(super) fn new(limits: &Limits) -> Self {
        let (requests, writes) = (limits.max_concurrent_requests, limits.max_pending_proposals);
        // The largest request fits into the share of one client.
        let least = limits.max_write_bytes().div_ceil(3) * 4;
        let waiting = memory::most(Use::Waiting, WAITING_BYTES_MAX, least);
        Self::with(requests, writes, waiting, limits.slow_request())
    }

    /// Lets at most so many requests in at once, and so many of them writes, has so many bytes of
    /// them wait, and logs those that take `slow` or longer.
    fn with(requests: usize, writes: usize, waiting: usize, slow: Option<Duration>) -> Self {
        let ok = |method| (method, request_seconds(method, Code::Ok));
        Self {
            places: Places::new(requests, SHARE),
            writes: Places::new(writes, SHARE_OF_WRITES),
            waiting: Places::new(waiting.div_ceil(WAITING_UNIT_BYTES), SHARE),
            lately: Arc::default(),
            in_flight: gauge!(names::REQUESTS_IN_FLIGHT),
            slow: Arc::new(SlowLog::new(slow)),
            answered: CALLED_MOST.map(ok).into(),
        }
    }

    /// Serves one request, unless there are too many.
    pub(super) async fn pass<T>(
        &self,
        method: &'static str,
        kind: Kind,
        source: &Arc<Source>,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let Ok(admitted) = self.admit(kind, 1, source) else {
            let full = self.full();
            request_seconds(method, full.code()).record(0.0);
            return Err(full);
        };
        let result = work.await;
        admitted.came_to(method, &result);
        result
    }

    /// Lets as many of `count` requests in as there are places for that it may have.
    ///
    /// # Errors
    /// There is not one: of those for requests of any kind ([`Kind::Read`]), or of those for
    /// writes.
    pub(super) fn admit(
        &self,
        kind: Kind,
        count: usize,
        source: &Arc<Source>,
    ) -> Result<Admitted, Kind> {
        let own = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let mut count = u32::try_from(count).unwrap_or(u32::MAX);
        let mut all = Vec::with_capacity(2);
        if kind == Kind::Write {
            let places = self.writes.take(count, own(&source.writes));
            let places = places.ok_or(Kind::Write)?;
            count = places.num_permits() as u32;
            all.push(places);
        }
        let places = self.places.take(count, own(&source.requests));
        let places = places.ok_or(Kind::Read)?;
        let admitted = places.num_permits();
        if let Some(of_writes) = all.first_mut() {
            // What it has too many.
            drop(of_writes.split(count as usize - admitted));
            source.writes.fetch_add(admitted, Ordering::Relaxed);
        }
        all.push(places);
        source.requests.fetch_add(admitted, Ordering::Relaxed);
        self.lately.note(source.address(), Instant::now());
        self.in_flight.increment(admitted as f64);
        Ok(Admitted {
            gate: self.clone(),
            begun: Instant::now(),
            count: admitted as u32,
            kind,
            source: Arc::clone(source),
            _places: all,
            stream: None,
        })
    }

    /// A request of so many bytes begins to wait, if there is room for what it holds.
    pub(super) fn wait(&self, bytes: usize, source: &Arc<Source>) -> Option<Waiting> {
        let units = u32::try_from(bytes.div_ceil(WAITING_UNIT_BYTES)).unwrap_or(u32::MAX);
        let own = source.waiting.load(Ordering::Relaxed);
        let units = self.waiting.take_all(units, own)?;
        source
            .waiting
            .fetch_add(units.num_permits(), Ordering::Relaxed);
        Some(Waiting {
            source: Arc::clone(source),
            units,
        })
    }

    /// Whether other clients than this one were let in since then, or a moment before. Those that
    /// have waited all the time since are not let in again.
    pub(super) fn others_than(&self, client: IpAddr, since: Instant) -> bool {
        self.lately.others_than(client, since)
    }

    /// What those are told for whom there was no place.
    pub(super) fn full(&self) -> Status {
        let (requests, writes) = (self.places.limit, self.writes.limit);
        Status::resource_exhausted(format!(
            "this member serves as many requests as it does at once ({requests}, and {writes} \
             writes), or as many of your address as it may have of them; retry later or raise \
             --max-concurrent-requests or --max-pending-proposals"
        ))
    }
}

impl OfStream {
    /// Notes that its calls hold these.
    pub(super) fn holds(&self, admitted: &mut Admitted) {
        admitted.stream = Some(Arc::clone(match admitted.kind {
            Kind::Read => &self.reads,
            Kind::Write => &self.writes,
        }));
    }

    /// Whether a place of that kind, which is lacking, will be given back by calls of this stream.
    pub(super) fn will_give_back(&self, kind: Kind) -> bool {
        let held = |places: &Arc<()>| Arc::strong_count(places) > 1;
        held(&self.writes) || kind == Kind::Read && held(&self.reads)
    }
}

impl Admitted {
    /// Notes that the request came to that.
    pub(super) fn came_to<T>(&self, method: &'static str, result: &Result<T, Status>) {
        let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        self.answered(method, code);
    }

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
        if self.kind == Kind::Write {
            self.source.writes.fetch_sub(count, Ordering::Relaxed);
        }
        self.gate.in_flight.decrement(self.count);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let units = self.units.num_permits();
        self.source.waiting.fetch_sub(units, Ordering::Relaxed);
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
        let (gate, source) = (Gate::with(1, 1, 1, None), source(1));
        let (inner, from) = (gate.clone(), Arc::clone(&source));
        let outer = gate.pass("Put", Kind::Write, &source, async move {
            let refused = inner
                .pass("Put", Kind::Write, &from, async { Ok(()) })
                .await;
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted);
            assert!(refused.message().contains("--max-concurrent-requests"));
            Ok(())
        });
        outer.await.unwrap();
        let again = gate.pass("Put", Kind::Write, &source, async { Ok(()) });
        again.await.unwrap();
    }

    /// A frame may hold more calls than are ever served at once.
    #[test]
    fn of_many_as_many_are_let_in_as_there_is_room_for() {
        let (gate, one, other) = (Gate::with(3, 3, 1, None), source(1), source(2));
        let first = gate.admit(Kind::Read, 2, &one).expect("there is room");
        let second = gate
            .admit(Kind::Read, 1_000, &other)
            .expect("there is room for one");
        assert_eq!((first.count(), second.count()), (2, 1));
        assert!(gate.admit(Kind::Read, 1, &one).is_err());
        drop(first);
        let again = gate.admit(Kind::Read, 1_000, &one).expect("there is room");
        assert_eq!(again.count(), 2);
    }

    #[test]
    fn one_client_leaves_places_to_others_and_has_its_own_back() {
        let (gate, greedy, other) = (Gate::with(100, 40, 1, None), source(1), source(2));
        let most = gate
            .admit(Kind::Read, 1_000, &greedy)
            .expect("there is room");
        assert_eq!(most.count(), 75);
        assert!(gate.admit(Kind::Read, 1, &greedy).is_err());
        let others = gate
            .admit(Kind::Read, 10, &other)
            .expect("there is room for others");
        assert_eq!(others.count(), 10);
        drop((most, others));
        assert_eq!(greedy.requests.load(Ordering::Relaxed), 0);
        let again = gate.admit(Kind::Read, 75, &greedy);
        assert_eq!(again.expect("there is room").count(), 75);
    }

    #[test]
    fn there_are_others_for_a_second_after_they_were_let_in() {
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([127, 0, 0, last]));
        let (lately, begun) = (Lately::default(), Instant::now());
        let at = |millis| begun + Duration::from_millis(millis);
        let others = |millis| [a, b, c].map(|than| lately.others_than(than, at(millis)));
        assert_eq!(others(0), [false; 3], "nobody was");
        lately.note(a, at(0));
        lately.note(a, at(100));
        assert_eq!(others(100), [false, true, true]);
        lately.note(b, at(500));
        assert_eq!(others(500), [true; 3]);
        lately.note(c, at(600));
        lately.note(c, at(900));
        assert_eq!(others(1_400), [true; 3], "b and c were");
        assert_eq!(others(1_500), [true, true, false]);
        assert_eq!(others(1_900), [false; 3]);
    }

    /// A client with many writes under way had others refused, and those let in wait for them all.
    #[test]
    fn of_writes_one_client_has_half_and_reads_go_on_beside_them() {
        let (gate, greedy, other) = (Gate::with(100, 40, 1, None), source(1), source(2));
        let most = gate.admit(Kind::Write, 1_000, &greedy).expect("room");
        assert_eq!(most.count(), 20);
        assert!(gate.admit(Kind::Write, 1, &greedy).is_err());
        let others = gate.admit(Kind::Write, 5, &other).expect("room for others");
        assert_eq!(others.count(), 5);
        let reads = gate
            .admit(Kind::Read, 1_000, &greedy)
            .expect("room for reads");
        assert_eq!(
            reads.count(),
            52,
            "three quarters of 95, with the 20 writes"
        );
        // Where there is room for fewer requests than for writes, no place is kept.
        drop(others);
        let few = Gate::with(8, 40, 1, None);
        let writes = few.admit(Kind::Write, 10, &other).expect("room");
        assert_eq!(
            (writes.count(), few.writes.free.available_permits()),
            (6, 34)
        );
        drop((most, reads, writes));
        for source in [&greedy, &other] {
            assert_eq!(source.requests.load(Ordering::Relaxed), 0);
            assert_eq!(source.writes.load(Ordering::Relaxed), 0);
        }
    }

    /// What waits is whole requests, each as large as any.
    #[test]
    fn what_waits_is_bounded_and_no_client_has_all_of_it() {
        let (gate, greedy, other) = (Gate::with(1, 1, 8 << 10, None), source(1), source(2));
        let most = gate.wait(5_000, &greedy).expect("room");
        assert!(gate.wait(2_000, &greedy).is_none(), "it has five of six");
        let others = gate.wait(1_000, &other).expect("room for others");
        assert!(gate.wait(9_000, &other).is_none(), "more than there is");
        drop((most, others));
        assert_eq!(greedy.waiting.load(Ordering::Relaxed), 0);
        assert_eq!(gate.waiting.free.available_permits(), 8);
    }

    /// A put behind a stream's slow reads would wait for them, although they have nothing that it
    /// lacks.
    #[test]
    fn a_stream_waits_for_places_that_its_own_calls_hold() {
        let (gate, source) = (Gate::with(2, 1, 1, None), source(1));
        let stream = OfStream::default();
        let mut read = gate.admit(Kind::Read, 1, &source).expect("room");
        stream.holds(&mut read);
        assert!(stream.will_give_back(Kind::Read));
        assert!(!stream.will_give_back(Kind::Write));
        let mut write = gate.admit(Kind::Write, 1, &source).expect("room");
        stream.holds(&mut write);
        assert!(stream.will_give_back(Kind::Write));
        drop((read, write));
        assert!(!stream.will_give_back(Kind::Read));
    }

    /// However little memory there is: it was told forever to try again.
    #[test]
    fn the_largest_write_may_wait() {
        let limits = Limits {
            max_batch_request_bytes: 32 << 20,
            ..Limits::default()
        };
        let (gate, source) = (Gate::new(&limits), source(1));
        assert!(gate.wait(limits.max_write_bytes(), &source).is_some());
    }
}
