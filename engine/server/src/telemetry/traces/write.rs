//! A write that is traced: who it is in its trace, and when its stages began and ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use dengine_protocol::trace::TraceParent;
use dengine_raft::AppendId;
use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator};

/// A write that is traced, for all who carry it out.
#[derive(Debug)]
pub(crate) struct TracedWrite {
    pub(super) trace_id: TraceId,
    /// Of the span of the whole write on this member.
    pub(super) span_id: SpanId,
    /// Of the caller's span.
    pub(super) parent: Option<SpanId>,
    /// Of the span that holds the leader's, if another member leads.
    pub(super) forward_id: SpanId,
    pub(super) method: &'static str,
    pub(super) arrived: Instant,
    times: Mutex<Times>,
}

/// When stages of a write began and ended, as far as it came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// To the replica's queue.
    pub(super) handed_over: Option<Instant>,
    /// By a turn of the replica.
    pub(super) taken_up: Option<Instant>,
    /// To the log and the peers.
    pub(super) proposed: Option<(AppendId, Instant)>,
    /// It was found that a quorum has it, and it was handed to the applier.
    pub(super) committed: Option<Instant>,
    /// By this member's own disk.
    pub(super) synced: Option<(Instant, Instant)>,
    /// The application of its batch.
    pub(super) applied: Option<(Instant, Instant)>,
    /// It was passed on to the leader.
    pub(super) passed_on: Option<Instant>,
    /// The leader answered, or was waited for in vain.
    pub(super) leader_answered: Option<Instant>,
}

impl TracedWrite {
    pub(super) fn new(
        ids: &RandomIdGenerator,
        method: &'static str,
        arrived: Instant,
        parent: Option<TraceParent>,
    ) -> Self {
        let trace_id = parent.map(|it| TraceId::from_bytes(it.trace_id));
        Self {
            trace_id: trace_id.unwrap_or_else(|| ids.new_trace_id()),
            span_id: ids.new_span_id(),
            parent: parent.map(|it| SpanId::from_bytes(it.span_id)),
            forward_id: ids.new_span_id(),
            method,
            arrived,
            times: Mutex::default(),
        }
    }

    pub(super) fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was put into the replica's queue then.
    pub(crate) fn handed_over(&self, at: Instant) {
        self.times().handed_over = Some(at);
    }

    /// A turn of the replica takes it up.
    pub(crate) fn taken_up(&self) {
        self.times().taken_up = Some(Instant::now());
    }

    /// A quorum has it, and the applier is given it `at` that time. What it was appended with was
    /// handed to log and peers then, if that is remembered.
    pub(crate) fn committed(&self, appended: Option<(AppendId, Instant)>, at: Instant) {
        let mut times = self.times();
        times.proposed = appended;
        times.committed = Some(at);
    }

    /// Its batch is applied; `synced` says which sync brought something to this member's disk, if
    /// one has.
    pub(crate) fn applied(
        &self,
        since: Instant,
        synced: impl FnOnce(AppendId) -> Option<(Instant, Instant)>,
    ) {
        let mut times = self.times();
        times.applied = Some((since, Instant::now()));
        times.synced = times.proposed.and_then(|(id, _)| synced(id));
    }

    /// It is passed on to the leader, whose spans are within this one.
    pub(crate) fn passed_on(&self) -> TraceParent {
        self.times().passed_on = Some(Instant::now());
        TraceParent {
            trace_id: self.trace_id.to_bytes(),
            span_id: self.forward_id.to_bytes(),
            sampled: true,
        }
    }

    /// What became of it at the leader is known, or that it is not.
    pub(crate) fn leader_answered(&self) {
        self.times().leader_answered = Some(Instant::now());
    }
}

/// Which of several writes are traced, by their places among them.
#[derive(Debug, Default)]
pub(crate) struct Traces(Vec<(usize, Arc<TracedWrite>)>);

impl Traces {
    /// Of a single write.
    pub(crate) fn of_one(write: Option<&Arc<TracedWrite>>) -> Self {
        Self(write.map(|it| (0, Arc::clone(it))).into_iter().collect())
    }

    /// Another one, behind those that were added before.
    pub(crate) fn add(&mut self, place: usize, write: &Arc<TracedWrite>) {
        self.0.push((place, Arc::clone(write)));
    }

    /// That one, if it is traced.
    #[inline]
    pub(crate) fn get(&self, place: usize) -> Option<&Arc<TracedWrite>> {
        if self.0.is_empty() {
            return None;
        }
        let at = self.0.binary_search_by_key(&place, |(place, _)| *place);
        Some(&self.0[at.ok()?].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_of_a_group_are_traced_that_were_sampled() {
        let ids = RandomIdGenerator::default();
        let write = |method| Arc::new(TracedWrite::new(&ids, method, Instant::now(), None));
        let mut traces = Traces::default();
        assert!(traces.get(0).is_none());
        traces.add(1, &write("Put"));
        traces.add(7, &write("Delete"));
        let methods = [0, 1, 6, 7, 8].map(|place| traces.get(place).map(|it| it.method));
        assert_eq!(methods, [None, Some("Put"), None, Some("Delete"), None]);
        assert!(Traces::of_one(None).get(0).is_none());
        assert!(Traces::of_one(Some(&write("Put"))).get(0).is_some());
    }

    #[test]
    fn a_leader_gets_the_span_of_the_member_that_passed_the_write_on() {
        let ids = RandomIdGenerator::default();
        let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let caller = TraceParent::parse(caller);
        let write = TracedWrite::new(&ids, "Put", Instant::now(), caller);
        let to_leader = write.passed_on();
        assert_eq!(to_leader.trace_id, caller.unwrap().trace_id);
        assert_eq!(to_leader.span_id, write.forward_id.to_bytes());
        assert!(to_leader.sampled && write.times().passed_on.is_some());
    }
}
