//! Frames of `Kv.Pipeline`: the calls of one, by how they are served, and the answers.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use dengine_kv as kv;
use dengine_kv::Outcome;
use prost::Message;
use tonic::{Code, Status};

use crate::checks::header::Header;
use crate::checks::limits::RequestLimits;
use crate::checks::writes::{self, Mutation, NoAnswer};
use crate::trace::TraceParent;
use crate::v1::pipelined_answer::Answer;
pub use crate::v1::pipelined_call::Call;
use crate::v1::{
    self, CallError, Consistency, GetRequest, PipelineRequest, PipelinedAnswer, PipelinedCall,
    RangeRequest,
};
use crate::{
    FRAME_BYTES_MAX, FRAME_CALLS_MAX, KvCall, LEADER_HINT_METADATA, LOW_ON_SPACE_METADATA, kv_calls,
};

/// Calls that wait together share the buffer of their frame, unless more than this of it is not
/// theirs, and most of it.
const NOT_THEIRS_BYTES_MAX: usize = 64 << 10;

/// What a client says of a call besides the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Its name on its stream.
    pub id: u64,
    /// For how long its answer is waited for; 0: as long as the server does.
    pub timeout_ms: u32,
    /// Its caller's trace, if it names one.
    pub trace: Option<TraceParent>,
}

impl Asked {
    /// For how long the call is served, by a server that serves none for longer than `longest`.
    #[must_use]
    pub fn patience(self, longest: Duration) -> Duration {
        self.own_patience(longest).unwrap_or(longest)
    }

    /// For how long its client waits, if that is less than such a server would serve it.
    #[must_use]
    pub fn own_patience(self, longest: Duration) -> Option<Duration> {
        let own = Duration::from_millis(self.timeout_ms.into());
        (self.timeout_ms != 0 && own < longest).then_some(own)
    }
}

/// The calls of a frame, each with what was said of it.
#[derive(Debug, Default)]
pub struct Calls {
    /// Calls of earlier frames that nobody waits for any more.
    pub cancelled: Vec<u64>,
    /// Writes that are proposed together.
    pub writes: Vec<(Asked, Call)>,
    /// What to replicate for each of them.
    pub commands: Vec<kv::Request>,
    /// Writes that take more than one step.
    pub writes_alone: Vec<(Asked, Call)>,
    /// Reads of single keys, by the freshness that they share: the state as it is, by lease,
    /// linearizable.
    pub gets: [VecDeque<(Asked, GetRequest)>; 3],
    /// Reads that wait for themselves.
    pub reads_alone: Vec<(Asked, ReadAlone)>,
    /// Answers to calls that cannot be served.
    pub refused: Vec<PipelinedAnswer>,
}

/// A read that waits for itself.
#[derive(Debug)]
pub enum ReadAlone {
    /// It waits for a revision of its own.
    Get(GetRequest),
    /// It takes its time.
    Range(RangeRequest),
}

impl Calls {
    /// The levels of [`gets`](Self::gets).
    pub const LEVELS: [Consistency; 3] = [
        Consistency::Eventual,
        Consistency::Lease,
        Consistency::Linearizable,
    ];

    /// Sorts the calls of a frame. None that is kept keeps much more of the frame than it has
    /// itself.
    ///
    /// # Errors
    /// There are too many. A call that is wrong fails by itself.
    pub fn sort(frame: PipelineRequest, limits: &RequestLimits) -> Result<Self, Status> {
        let count = frame.calls.len().max(frame.cancelled.len());
        if count > FRAME_CALLS_MAX {
            return Err(Status::invalid_argument(format!(
                "the stream ends at a frame of {count} calls; a frame has at most {FRAME_CALLS_MAX}"
            )));
        }
        let mut calls = Self {
            cancelled: frame.cancelled,
            ..Self::default()
        };
        let mut apart_bytes = 0;
        for call in frame.calls {
            let PipelinedCall {
                id,
                timeout_ms,
                call,
                traceparent,
            } = call;
            let asked = Asked {
                id,
                timeout_ms,
                trace: TraceParent::parse(&traceparent),
            };
            match call {
                Some(Call::Get(get)) => calls.add_get(asked, get),
                Some(Call::Range(range)) => {
                    apart_bytes += range.encoded_len();
                    let range = ReadAlone::Range(own_buffer(&range));
                    calls.reads_alone.push((asked, range));
                }
                Some(call) => apart_bytes += calls.add_write(asked, call, limits),
                None => calls.refused.push(failed(id, &unknown_call())),
            }
        }
        calls.leave_frame(apart_bytes, limits);
        Ok(calls)
    }

    /// Gives buffers of their own to calls that wait together, and are a small part of what came
    /// with them. So many bytes were of calls that wait alone, or are refused.
    fn leave_frame(&mut self, apart_bytes: usize, limits: &RequestLimits) {
        let no_gets = self.gets.iter().all(VecDeque::is_empty);
        if apart_bytes == 0 && (no_gets || self.writes.is_empty()) {
            return;
        }
        let is_little = |own, others| others > own && others > NOT_THEIRS_BYTES_MAX;
        let gets = self.gets.iter().flatten().map(|(_, get)| get.key.len());
        let gets_bytes = gets.sum::<usize>();
        let writes = self.writes.iter().map(|(_, call)| call.encoded_len());
        let writes_bytes = writes.sum::<usize>();
        if is_little(gets_bytes, apart_bytes + writes_bytes) {
            for (_, get) in self.gets.iter_mut().flatten() {
                get.key = Bytes::copy_from_slice(&get.key);
            }
        }
        if is_little(writes_bytes, apart_bytes + gets_bytes) {
            for ((_, call), command) in self.writes.iter_mut().zip(&mut self.commands) {
                *call = with_own_buffer(call);
                if let Ok(Plan::Together(same)) = plan(call, limits) {
                    *command = same;
                }
            }
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.writes.len()
            + self.writes_alone.len()
            + self.gets.iter().map(VecDeque::len).sum::<usize>()
            + self.reads_alone.len()
            + self.refused.len()
    }

    #[inline]
    fn add_get(&mut self, asked: Asked, get: GetRequest) {
        let level = match Consistency::try_from(get.consistency) {
            Ok(Consistency::Eventual) => 0,
            Ok(Consistency::Lease) => 1,
            Ok(Consistency::Unspecified | Consistency::Linearizable) => 2,
            Ok(Consistency::Session) | Err(_) => {
                let get = ReadAlone::Get(own_buffer(&get));
                return self.reads_alone.push((asked, get));
            }
        };
        self.gets[level].push_back((asked, get));
    }

    /// How many bytes it has, unless it waits together with others.
    #[inline]
    fn add_write(&mut self, asked: Asked, call: Call, limits: &RequestLimits) -> usize {
        match plan(&call, limits) {
            Ok(Plan::Together(command)) => {
                self.writes.push((asked, call));
                self.commands.push(command);
                return 0;
            }
            Ok(Plan::Alone) => self.writes_alone.push((asked, with_own_buffer(&call))),
            Err(status) => self.refused.push(failed(asked.id, &status)),
        }
        call.encoded_len()
    }
}

/// What is done alike for every call that writes.
#[macro_export]
macro_rules! for_each_write {
    ($call:expr, $it:ident => $work:expr, otherwise $otherwise:expr) => {
        $crate::kv_calls!([$crate::match_writes] $call, $it => $work, $otherwise)
    };
}

/// The `match` of [`for_each_write`], with an arm for every row of [`kv_calls`](crate::kv_calls).
#[doc(hidden)]
#[macro_export]
macro_rules! match_writes {
    ([$call:expr, $it:ident => $work:expr, $otherwise:expr] $(
        $kind:ident $variant:ident, $method:ident:
            $request:ident { $($filled_in:ident)? } => $answer:ident;
    )*) => {
        match $call {
            $($crate::checks::frame::Call::$variant($it) => {
                $crate::if_write!($kind, $it => $work, $otherwise)
            })*
        }
    };
}

/// The arm of a row by how its call is served.
#[doc(hidden)]
#[macro_export]
macro_rules! if_write {
    (read, $it:ident => $work:expr, $otherwise:expr) => {{
        let _ = $it;
        $otherwise
    }};
    ($write:ident, $it:ident => $work:expr, $otherwise:expr) => {
        $work
    };
}

/// How a call that writes is made.
enum Plan {
    /// With the others of its frame.
    Together(kv::Request),
    Alone,
}

fn plan(call: &Call, limits: &RequestLimits) -> Result<Plan, Status> {
    fn plan<M: Mutation>(request: &M, limits: &RequestLimits) -> Result<Plan, Status> {
        let command = writes::command(request, limits)?;
        let alone = !command.command.returned().is_empty()
            || command.read_only().is_some()
            // It waits for its turn.
            || command.command.visits_ranges()
            // It is counted whose the session is.
            || matches!(command.command, kv::Command::OpenSession { .. });
        Ok(match alone {
            true => Plan::Alone,
            false => Plan::Together(command),
        })
    }
    for_each_write!(call, it => plan(it, limits), otherwise Err(unknown_call()))
}

/// The same write, which does not keep the frame that it came in.
fn with_own_buffer(call: &Call) -> Call {
    for_each_write!(call, it => own_buffer(it).framed(), otherwise call.clone())
}

/// The same message in a buffer of its own.
fn own_buffer<M: Message + Default>(message: &M) -> M {
    let bytes = Bytes::from(message.encode_to_vec());
    M::decode(bytes).expect("it was encoded just now")
}

/// The answer to a write, from what it came to.
///
/// # Errors
/// It came to nothing that answers it.
pub fn answer(call: &Call, header: Header, outcome: Outcome) -> Result<Answer, NoAnswer> {
    fn answer<M: Mutation>(
        request: &M,
        header: Header,
        outcome: Outcome,
    ) -> Result<Answer, NoAnswer> {
        writes::answer(request, header, outcome).map(M::frame)
    }
    for_each_write!(call, it => answer(it, header, outcome),
        otherwise Err(NoAnswer::OfAnotherKind(outcome)))
}

/// Leaves out the pairs of a write's answer, for which there is no memory; that it took effect
/// stays told.
pub fn leave_out_pairs(answer: &mut Answer) {
    macro_rules! header_without_pairs {
        ([] $(
            $kind:ident $variant:ident, $method:ident:
                $request:ident { $($filled_in:ident)? } => $answer:ident;
        )*) => {
            match answer {
                $(Answer::$variant(it) => {
                    if_write!($kind, it => v1::$request::leave_out_pairs(it), None)
                })*
                Answer::Error(_) => None,
            }
        };
    }
    if let Some(header) = kv_calls!([header_without_pairs]) {
        header.trimmed = true;
    }
}

/// The name of a call that writes.
#[must_use]
pub fn method(call: &Call) -> &'static str {
    fn method<C: KvCall>(_: &C) -> &'static str {
        C::METHOD
    }
    for_each_write!(call, it => method(it), otherwise "")
}

/// A call that was answered.
#[must_use]
#[inline]
pub fn found(id: u64, answer: Answer) -> PipelinedAnswer {
    PipelinedAnswer {
        id,
        answer: Some(answer),
        visited: 0,
        others_waited: false,
    }
}

/// A call that failed.
#[must_use]
pub fn failed(id: u64, status: &Status) -> PipelinedAnswer {
    let leader = status.metadata().get(LEADER_HINT_METADATA);
    let error = CallError {
        code: status.code().into(),
        message: status.message().to_owned(),
        leader: leader
            .and_then(|leader| leader.to_str().ok())
            .unwrap_or_default()
            .to_owned(),
        low_on_space: status.metadata().contains_key(LOW_ON_SPACE_METADATA),
    };
    found(id, Answer::Error(error))
}

/// What a call came to that was answered so.
#[must_use]
pub fn code(answered: &PipelinedAnswer) -> Code {
    match &answered.answer {
        Some(Answer::Error(error)) => Code::from(error.code),
        _ => Code::Ok,
    }
}

/// A call that ended, one way or the other.
#[inline]
pub fn framed<C: KvCall>(id: u64, result: Result<C::Answer, Status>) -> PipelinedAnswer {
    match result {
        Ok(answer) => found(id, C::frame(answer)),
        Err(status) => failed(id, &status),
    }
}

/// What a call is told that this version cannot make.
#[must_use]
pub fn unknown_call() -> Status {
    Status::unimplemented("the call is missing, or not known to this version of the server")
}

/// What the transport says of a frame that it can't read; tonic's codes mean other things in our
/// API.
#[must_use]
pub fn unreadable(status: &Status, limits: &RequestLimits) -> Status {
    match status.code() {
        Code::OutOfRange | Code::Internal => Status::invalid_argument(format!(
            "the stream ends at a frame that can't be read, or is larger than {FRAME_BYTES_MAX} \
             bytes and than any call that this member takes: keys up to {} bytes \
             (--max-key-bytes), values up to {} bytes (--max-value-bytes): {}",
            limits.max_key_bytes,
            limits.max_value_bytes,
            status.message()
        )),
        code => Status::new(code, status.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::limits::TEST_LIMITS;
    use crate::v1::{CloseSessionRequest, DeleteRequest, PutRequest};

    fn sort(calls: impl IntoIterator<Item = Option<Call>>) -> Result<Calls, Status> {
        let numbered = (1..).zip(calls);
        let calls = numbered.map(|(id, call)| PipelinedCall {
            id,
            call,
            ..PipelinedCall::default()
        });
        let frame = PipelineRequest {
            calls: calls.collect(),
            ..PipelineRequest::default()
        };
        Calls::sort(frame, &TEST_LIMITS)
    }

    fn put(key: &'static str) -> Option<Call> {
        Some(Call::Put(PutRequest {
            key: key.into(),
            ..PutRequest::default()
        }))
    }

    fn get(consistency: i32) -> Option<Call> {
        Some(Call::Get(GetRequest {
            key: "a".into(),
            consistency,
            ..GetRequest::default()
        }))
    }

    fn ids<'a, T: 'a>(calls: impl IntoIterator<Item = &'a (Asked, T)>) -> Vec<u64> {
        calls.into_iter().map(|(asked, _)| asked.id).collect()
    }

    #[test]
    fn writes_go_together_unless_they_take_more_than_one_step() {
        let delete = DeleteRequest {
            key: "a".into(),
            range_end: "b".into(),
            prev_kv: true,
            ..DeleteRequest::default()
        };
        let close = CloseSessionRequest { session_id: 3 };
        let calls = sort([
            put("a"),
            Some(Call::Delete(delete)),
            Some(Call::CloseSession(close)),
        ])
        .unwrap();
        assert_eq!(ids(&calls.writes), [1, 3]);
        assert_eq!(calls.commands.len(), 2);
        assert_eq!(ids(&calls.writes_alone), [2]);
    }

    #[test]
    fn reads_of_one_freshness_go_together() {
        let range = Some(Call::Range(RangeRequest::default()));
        let level = |level: Consistency| get(level.into());
        let calls = sort([
            get(0),
            level(Consistency::Eventual),
            level(Consistency::Session),
            level(Consistency::Lease),
            level(Consistency::Linearizable),
            range,
            get(99),
        ])
        .unwrap();
        let gets: Vec<_> = calls.gets.iter().map(ids).collect();
        assert_eq!(gets, [vec![2], vec![4], vec![1, 5]]);
        assert_eq!(ids(&calls.reads_alone), [3, 6, 7]);
    }

    /// The buffer of a frame of these calls and one of 100 KiB that is refused, and the calls as
    /// they were sorted.
    fn sort_with_large(calls: Vec<Option<Call>>) -> (Bytes, Calls) {
        let large = PutRequest {
            key: "large".into(),
            value: vec![7; 100 << 10].into(),
            ..PutRequest::default()
        };
        let calls = calls.into_iter().chain([Some(Call::Put(large))]);
        let call = |call| PipelinedCall {
            call,
            ..PipelinedCall::default()
        };
        let frame = PipelineRequest {
            calls: calls.map(call).collect(),
            ..PipelineRequest::default()
        };
        let buffer = Bytes::from(frame.encode_to_vec());
        let frame = crate::codec::decode(buffer.clone()).unwrap();
        (buffer, Calls::sort(frame, &TEST_LIMITS).unwrap())
    }

    /// Two thousand that waited took 3 MiB each, and were counted as one KiB.
    #[test]
    fn what_waits_does_not_keep_the_frame_that_it_came_in() {
        let with_prev = |key: &'static str| {
            Some(Call::Put(PutRequest {
                key: key.into(),
                prev_kv: true,
                ..PutRequest::default()
            }))
        };
        let range = RangeRequest {
            key: "a".into(),
            range_end: "b".into(),
            ..RangeRequest::default()
        };
        let delete = DeleteRequest {
            key: "a".into(),
            range_end: "b".into(),
            ..DeleteRequest::default()
        };
        let calls = [
            put("together"),
            with_prev("prev"),
            Some(Call::Delete(delete)),
            Some(Call::Range(range)),
            get(0),
            get(Consistency::Session.into()),
        ];
        for call in calls {
            let (buffer, kept) = sort_with_large(vec![call.clone()]);
            assert!(buffer.is_unique(), "{call:?}");
            assert_eq!(kept.count(), 2);
        }
    }

    #[test]
    fn what_is_most_of_a_frame_is_not_copied() {
        let puts = || {
            (0..2_000).map(|_| put("a key of more than fifty bytes, for there are two thousand"))
        };
        let (buffer, calls) = sort_with_large(puts().collect());
        assert!(!buffer.is_unique());
        assert_eq!(calls.writes.len(), 2_000);
        let mixed = puts().take(100).chain([get(0)]).collect();
        let (buffer, calls) = sort_with_large(mixed);
        assert!(buffer.is_unique());
        assert_eq!(calls.commands.len(), 100);
    }

    #[test]
    fn nobody_is_served_for_longer_than_they_wait_or_the_server_does() {
        let longest = Duration::from_secs(5);
        let asked = |timeout_ms| Asked {
            timeout_ms,
            ..Asked::default()
        };
        let patience = |timeout_ms| asked(timeout_ms).patience(longest);
        assert_eq!(patience(0), longest);
        assert_eq!(patience(1), Duration::from_millis(1));
        assert_eq!(patience(u32::MAX), longest);
        // Only who waits for less long than the server ends a call before the server does.
        let own = |timeout_ms| asked(timeout_ms).own_patience(longest);
        assert_eq!(own(4_999), Some(Duration::from_millis(4_999)));
        assert_eq!([own(0), own(5_000), own(u32::MAX)], [None; 3]);
    }

    /// One that makes no sense is as good as none.
    #[test]
    fn a_call_is_of_the_trace_that_it_names() {
        let named = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let call = |traceparent: &str| PipelinedCall {
            call: put("key"),
            traceparent: traceparent.to_owned(),
            ..PipelinedCall::default()
        };
        let frame = PipelineRequest {
            calls: [named, "", "nonsense"].map(call).into(),
            ..PipelineRequest::default()
        };
        let calls = Calls::sort(frame, &TEST_LIMITS).unwrap();
        let traces: Vec<_> = calls.writes.iter().map(|(asked, _)| asked.trace).collect();
        assert_eq!(traces, [TraceParent::parse(named), None, None]);
        assert!(traces[0].is_some());
    }

    #[test]
    fn a_frame_cancels_only_so_many_calls() {
        let sort = |count: usize| {
            let frame = PipelineRequest {
                cancelled: vec![7; count],
                ..PipelineRequest::default()
            };
            Calls::sort(frame, &TEST_LIMITS)
        };
        assert_eq!(
            sort(FRAME_CALLS_MAX).unwrap().cancelled.len(),
            FRAME_CALLS_MAX
        );
        assert!(sort(FRAME_CALLS_MAX + 1).is_err());
    }

    #[test]
    fn a_bad_call_fails_nobody_else() {
        let calls = sort([put(""), None, put("a")]).unwrap();
        assert_eq!(ids(&calls.writes), [3]);
        let codes = calls.refused.iter().map(|it| match &it.answer {
            Some(Answer::Error(error)) => (it.id, Code::from_i32(error.code)),
            other => panic!("{other:?}"),
        });
        let expect = [(1, Code::InvalidArgument), (2, Code::Unimplemented)];
        assert_eq!(codes.collect::<Vec<_>>(), expect);
    }

    #[test]
    fn a_call_that_failed_is_told_all_that_its_status_says() {
        let mut status = Status::resource_exhausted("no space");
        let low = tonic::metadata::MetadataValue::from_static("1");
        for said in [false, true] {
            let answer = failed(7, &status).answer;
            let Some(Answer::Error(error)) = answer else {
                panic!("{answer:?}");
            };
            assert_eq!(error.low_on_space, said);
            assert_eq!((&*error.message, &*error.leader), ("no space", ""));
            let metadata = status.metadata_mut();
            metadata.insert(LOW_ON_SPACE_METADATA, low.clone());
        }
    }

    #[test]
    fn an_answer_without_its_pairs_says_so() {
        let header = Some(crate::v1::ResponseHeader {
            revision: 7,
            ..Default::default()
        });
        let mut answer = Answer::CompareAndSwap(crate::v1::CompareAndSwapResponse {
            header,
            succeeded: true,
            prev_kv: Some(crate::v1::KeyValue::default()),
        });
        leave_out_pairs(&mut answer);
        let Answer::CompareAndSwap(left) = answer else {
            panic!("still the same kind")
        };
        let header = left.header.unwrap();
        assert!(left.succeeded && left.prev_kv.is_none());
        assert_eq!((header.revision, header.trimmed), (7, true));
    }

    /// A call may have two bytes, and its answer a hundred.
    #[test]
    fn a_frame_has_only_so_many_calls() {
        assert!(sort(vec![None; FRAME_CALLS_MAX]).is_ok());
        let status = sort(vec![None; FRAME_CALLS_MAX + 1]).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
}
