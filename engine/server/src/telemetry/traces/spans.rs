//! The spans of one write on one member. Each stage is named as its histogram is.
//!
//! ```text
//! dengine.v1.Kv/Put
//! ├─ write_wait      the replica's queue
//! ├─ replica_turn    until its batch is handed to log and peers
//! ├─ commit          until a quorum has it
//! │  └─ log_sync     by this member's own disk
//! ├─ apply_wait      the applier's queue
//! ├─ apply
//! ├─ answer
//! └─ forward         in place of all these where another member leads, whose spans are within it
//! ```

use std::borrow::Cow;
use std::time::{Instant, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanLinks,
};
use tonic::Code;

use super::write::Times;
use super::{Finished, Identity};

/// The service whose methods are traced.
const SERVICE: &str = "dengine.v1.Kv";

/// The same moment by both clocks: stages are measured by one, and spans want the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    pub(super) monotonic: Instant,
    pub(super) wall: SystemTime,
}

impl Clocks {
    pub(super) fn now() -> Self {
        Self {
            monotonic: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    fn wall(self, at: Instant) -> SystemTime {
        let before = self.monotonic.saturating_duration_since(at);
        self.wall - before + at.saturating_duration_since(self.monotonic)
    }
}

/// The spans of a write that was answered: the whole first, each stage that it came through behind
/// it.
pub(super) fn spans(finished: &Finished, clocks: Clocks, identity: Identity) -> Vec<SpanData> {
    let Finished { write, at, code } = finished;
    let times = *write.times();
    let ids = RandomIdGenerator::default();
    let span = |name: &'static str, id, parent, (from, to): (Instant, Instant)| SpanData {
        span_context: SpanContext::new(
            write.trace_id,
            id,
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        ),
        parent_span_id: parent,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: Cow::Borrowed(name),
        start_time: clocks.wall(from),
        end_time: clocks.wall(to.max(from)),
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("dengine").build(),
    };
    let parent = write.parent.unwrap_or(SpanId::INVALID);
    let mut whole = span("", write.span_id, parent, (write.arrived, *at));
    whole.name = Cow::Owned(format!("{SERVICE}/{}", write.method));
    whole.parent_span_is_remote = write.parent.is_some();
    whole.span_kind = SpanKind::Server;
    whole.attributes = attributes(write.method, *code, identity);
    whole.status = status(*code);
    let mut spans = vec![whole];
    for (name, stage) in stages(&times, *at) {
        let Some(stage) = stage else {
            continue;
        };
        let id = ids.new_span_id();
        spans.push(span(name, id, write.span_id, stage));
        if let ("commit", Some(synced)) = (name, own_sync(&times)) {
            spans.push(span("log_sync", ids.new_span_id(), id, synced));
        }
    }
    if let Some(passed_on) = times.passed_on {
        let stage = (passed_on, times.leader_answered.unwrap_or(*at));
        let mut forward = span("forward", write.forward_id, write.span_id, stage);
        forward.span_kind = SpanKind::Client;
        spans.push(forward);
    }
    spans
}

/// When each stage was, as far as the write came.
fn stages(times: &Times, answered: Instant) -> [(&'static str, Option<(Instant, Instant)>); 6] {
    let (applying, applied) = times.applied.unzip();
    let proposed = times.proposed.map(|(_, at)| at);
    [
        ("write_wait", times.handed_over.zip(times.taken_up)),
        ("replica_turn", times.taken_up.zip(proposed)),
        ("commit", proposed.zip(times.committed)),
        ("apply_wait", times.committed.zip(applying)),
        ("apply", times.applied),
        ("answer", applied.map(|applied| (applied, answered))),
    ]
}

/// The sync that brought the write to this member's disk, if one did before a quorum had it: others
/// may have been faster.
fn own_sync(times: &Times) -> Option<(Instant, Instant)> {
    let ((_, proposed), synced) = times.proposed.zip(times.synced)?;
    let (from, to) = synced;
    (from >= proposed && Some(to) <= times.committed).then_some(synced)
}

fn attributes(method: &'static str, code: Code, (cluster, member): Identity) -> Vec<KeyValue> {
    vec![
        KeyValue::new("rpc.system", "grpc"),
        KeyValue::new("rpc.service", SERVICE),
        KeyValue::new("rpc.method", method),
        KeyValue::new("rpc.grpc.status_code", i64::from(code as i32)),
        KeyValue::new("dengine.cluster.id", cluster.to_string()),
        KeyValue::new("dengine.member.id", member.to_string()),
    ]
}

/// Of a server's span only those are errors that are not the caller's: a key that is not as it was
/// compared with is none.
fn status(code: Code) -> Status {
    match code {
        Code::Unknown
        | Code::DeadlineExceeded
        | Code::Unimplemented
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => Status::error(code.description()),
        _ => Status::Unset,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use dengine_protocol::trace::TraceParent;
    use dengine_raft::AppendId;
    use dengine_types::{ClusterId, MemberId};

    use super::super::TracedWrite;
    use super::*;

    const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const IDENTITY: Identity = (ClusterId(7), MemberId(2));

    /// A write that arrived at `start`, with these times in microseconds from then.
    fn finished(start: Instant, code: Code, note: impl FnOnce(&mut Times)) -> Finished {
        let (ids, caller) = (RandomIdGenerator::default(), TraceParent::parse(CALLER));
        let write = TracedWrite::new(&ids, "Put", start, caller);
        note(&mut write.times());
        Finished {
            write: Arc::new(write),
            at: start + Duration::from_micros(1000),
            code,
        }
    }

    fn after(start: Instant, micros: u64) -> Instant {
        start + Duration::from_micros(micros)
    }

    /// Name, and from when to when in microseconds since the write arrived.
    fn shown(finished: &Finished) -> Vec<(String, u128, u128)> {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let monotonic = finished.write.arrived;
        let micros = |at: SystemTime| at.duration_since(wall).unwrap().as_micros();
        spans(finished, Clocks { monotonic, wall }, IDENTITY)
            .into_iter()
            .map(|it| {
                (
                    it.name.into_owned(),
                    micros(it.start_time),
                    micros(it.end_time),
                )
            })
            .collect()
    }

    fn led(times: &mut Times, start: Instant) {
        let at = |micros| after(start, micros);
        times.handed_over = Some(at(50));
        times.taken_up = Some(at(100));
        times.proposed = Some((AppendId(1), at(120)));
        times.synced = Some((at(130), at(400)));
        times.committed = Some(at(500));
        times.applied = Some((at(510), at(700)));
    }

    #[test]
    fn a_write_has_a_span_for_each_stage_and_they_follow_on_one_another() {
        let start = Instant::now();
        let write = finished(start, Code::Ok, |times| led(times, start));
        let expected = [
            ("dengine.v1.Kv/Put", 0, 1000),
            ("write_wait", 50, 100),
            ("replica_turn", 100, 120),
            ("commit", 120, 500),
            ("log_sync", 130, 400),
            ("apply_wait", 500, 510),
            ("apply", 510, 700),
            ("answer", 700, 1000),
        ];
        let expected = expected.map(|(name, from, to)| (name.to_owned(), from, to));
        assert_eq!(shown(&write), expected);
    }

    #[test]
    fn stages_are_within_the_write_the_sync_within_the_commit_and_all_in_the_callers_trace() {
        let start = Instant::now();
        let write = finished(start, Code::Ok, |times| led(times, start));
        let spans = spans(&write, Clocks::now(), IDENTITY);
        let caller = TraceParent::parse(CALLER).unwrap();
        let ids: BTreeMap<_, _> = spans
            .iter()
            .map(|it| (&*it.name, it.span_context.span_id()))
            .collect();
        assert_eq!(ids.len(), 8);
        for span in &spans {
            let parent = match &*span.name {
                "dengine.v1.Kv/Put" => SpanId::from_bytes(caller.span_id),
                "log_sync" => ids["commit"],
                _ => ids["dengine.v1.Kv/Put"],
            };
            assert_eq!(span.parent_span_id, parent, "{}", span.name);
            let trace_id = span.span_context.trace_id().to_bytes();
            assert_eq!(trace_id, caller.trace_id, "{}", span.name);
        }
        let whole = &spans[0];
        assert!(whole.parent_span_is_remote && whole.span_kind == SpanKind::Server);
        for attribute in [
            KeyValue::new("dengine.member.id", MemberId(2).to_string()),
            KeyValue::new("dengine.cluster.id", ClusterId(7).to_string()),
        ] {
            assert!(whole.attributes.contains(&attribute), "{attribute:?}");
        }
    }

    #[test]
    fn what_is_passed_on_has_one_stage_with_the_id_that_the_leader_was_given() {
        let start = Instant::now();
        let write = finished(start, Code::Ok, |times| {
            times.passed_on = Some(after(start, 10));
            times.leader_answered = Some(after(start, 900));
        });
        assert_eq!(shown(&write)[1], ("forward".to_owned(), 10, 900));
        let spans = spans(&write, Clocks::now(), IDENTITY);
        assert_eq!(spans.len(), 2);
        let forward = &spans[1];
        assert_eq!(forward.span_kind, SpanKind::Client);
        assert_eq!(forward.span_context.span_id(), write.write.forward_id);
    }

    /// The whole says what came of it.
    #[test]
    fn a_write_that_came_no_further_has_the_stages_that_it_came_through() {
        let start = Instant::now();
        let write = finished(start, Code::DeadlineExceeded, |times| {
            times.handed_over = Some(after(start, 50));
            times.taken_up = Some(after(start, 100));
        });
        let names: Vec<_> = shown(&write).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, ["dengine.v1.Kv/Put", "write_wait"]);
        let spans = spans(&write, Clocks::now(), IDENTITY);
        assert!(matches!(spans[0].status, Status::Error { .. }));
    }

    /// The disk was synced for what came before it, or others were faster.
    #[test]
    fn a_sync_that_the_commit_did_not_wait_for_is_no_part_of_it() {
        let start = Instant::now();
        for (from, to) in [(110, 400), (130, 600)] {
            let write = finished(start, Code::Ok, |times| {
                led(times, start);
                times.synced = Some((after(start, from), after(start, to)));
            });
            assert!(shown(&write).iter().all(|(name, ..)| name != "log_sync"));
        }
    }

    #[test]
    fn what_a_caller_did_wrong_is_no_error_of_the_member() {
        assert_eq!(status(Code::InvalidArgument), Status::Unset);
        assert!(matches!(status(Code::Unavailable), Status::Error { .. }));
    }
}
