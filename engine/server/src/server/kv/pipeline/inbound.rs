//! Frames on their way in: what becomes of their calls.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use dengine_kv as kv;
use dengine_protocol::checks::Mutation;
use dengine_protocol::checks::frame::{self, Asked, Calls, ReadAlone, failed, framed};
use dengine_protocol::for_each_write;
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::v1::{Consistency, GetRequest, OpenSessionRequest, PipelinedAnswer};
use dengine_raft::consensus::LARGEST_PASSED_ON_BYTES;
use dengine_raft::replica::may_be_passed_on;
use futures::future::abortable;
use futures::{FutureExt, StreamExt};
use tonic::Status;

use super::waiting::{Part, PartCalls};
use super::{Caller, Done, Inbound, Pipeline, Reads, Serving, Writes, cancelled, too_late};
use crate::error::{LeaderHint, RequestError};
use crate::node::WriteGroup;
use crate::node::answers::Held;
use crate::node::waiters::Waiters;
use crate::preemption::timed;
use crate::server::forward::Origin;
use crate::server::gate::{Admitted, Kind};
use crate::server::kv::reads::Read;
use crate::server::serving::range_writes::Cost;
use crate::telemetry::traces::{Begun, Parent, Traces};

/// Calls under way on one stream; a client beyond it waits on its own side.
const CALLS_PER_STREAM_MAX: usize = 4096;

/// What a command takes besides its call, at most, on its way to the leader.
const PASSED_ON_OVERHEAD_BYTES: usize = 64;

impl Pipeline {
    /// Takes in frames as long as there is room for their calls.
    pub(super) fn take_in(&mut self, context: &mut Context<'_>) {
        while self.under_way < CALLS_PER_STREAM_MAX
            && let Inbound::Open(inbound) = &mut self.inbound
        {
            let calls = match inbound.poll_next_unpin(context) {
                Poll::Ready(Some(Ok(frame))) => Calls::sort(frame, &self.serving.request_limits),
                Poll::Ready(Some(Err(status))) => {
                    Err(frame::unreadable(&status, &self.serving.request_limits))
                }
                Poll::Ready(None) => {
                    self.inbound = Inbound::Ended(None);
                    return;
                }
                Poll::Pending => return,
            };
            match calls {
                Ok(calls) => self.begin(calls),
                Err(status) => self.inbound = Inbound::Ended(Some(status)),
            }
        }
    }

    fn begin(&mut self, calls: Calls) {
        let arrived = Instant::now();
        self.under_way += calls.count();
        self.cancel(calls.cancelled);
        for refused in calls.refused {
            self.outbound.answer(refused);
        }
        for (asked, read) in calls.reads_alone {
            self.begin_in_turn(arrived, PartCalls::ReadAlone(asked, read));
        }
        for (asked, call) in calls.writes_alone {
            self.begin_in_turn(arrived, PartCalls::WriteAlone(asked, call));
        }
        self.begin_in_turn(arrived, PartCalls::Writes(calls.writes, calls.commands));
        for (gets, level) in calls.gets.into_iter().zip(Calls::LEVELS) {
            self.begin_in_turn(arrived, PartCalls::Gets(gets, level));
        }
    }

    /// Behind those of its kind that wait for places.
    fn begin_in_turn(&mut self, arrived: Instant, calls: PartCalls) {
        let part = Part::new(arrived, calls);
        let kind = part.kind();
        let rest = match self.waiting.of(kind).is_empty() {
            _ if part.is_empty() => return,
            true => self.begin_part(part),
            false => Some(part),
        };
        let Some(mut rest) = rest else {
            return;
        };
        match rest.wait(&self.serving.gate, &self.caller.source) {
            true => self.waiting.of(kind).push_back(rest),
            false => self.refuse(&rest),
        }
    }

    /// Begins calls that waited for places, as far as there are some; the rest stays in its order.
    pub(super) fn begin_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        for kind in [Kind::Write, Kind::Read] {
            while let Some(mut part) = self.waiting.of(kind).pop_front() {
                for id in part.leave_out(|asked, arrived| self.until(arrived, asked) <= now) {
                    self.outbound.answer(failed(id, &too_late()));
                }
                if part.is_empty() {
                    continue;
                }
                if let Some(rest) = self.begin_part(part) {
                    self.waiting.of(kind).push_front(rest);
                    break;
                }
            }
        }
    }

    /// Begins as many of these calls as there are places for; those that are left may wait.
    ///
    /// Places that calls of this stream give back go to those of it that wait. If it has none,
    /// others have them, and it is told so at once.
    fn begin_part(&mut self, part: Part) -> Option<Part> {
        let gate = &self.serving.gate;
        match gate.admit(part.kind(), part.count(), &self.caller.source) {
            Ok(mut admitted) => {
                self.places.holds(&mut admitted);
                self.begin_admitted(part, admitted)
            }
            Err(lacking) if self.places.will_give_back(lacking) => Some(part),
            Err(_) => {
                self.refuse(&part);
                None
            }
        }
    }

    /// Begins as many of these calls as were let in; the others are left.
    fn begin_admitted(&mut self, part: Part, admitted: Admitted) -> Option<Part> {
        let arrived = part.arrived();
        let (first, rest) = part.split_at(admitted.count());
        match first {
            PartCalls::Writes(calls, commands) => {
                self.write_together(arrived, calls, commands, admitted);
            }
            PartCalls::Gets(gets, level) => self.read_together(arrived, gets, level, admitted),
            PartCalls::WriteAlone(asked, call) => self.write_alone(arrived, asked, call, admitted),
            PartCalls::ReadAlone(asked, ReadAlone::Get(get)) => {
                self.read(arrived, asked, get, admitted);
            }
            PartCalls::ReadAlone(asked, ReadAlone::Range(range)) => {
                self.read(arrived, asked, range, admitted);
            }
        }
        rest
    }

    fn refuse(&mut self, part: &Part) {
        let full = self.serving.gate.full();
        for id in part.ids() {
            self.outbound.answer(failed(id, &full));
        }
    }

    /// Until when a call is served that arrived then.
    pub(super) fn until(&self, arrived: Instant, asked: Asked) -> Instant {
        arrived + asked.patience(self.serving.limits.request_timeout())
    }

    /// Until when its client waits for a call that arrived then, if that is sooner than the server
    /// gives up. What takes as long as the server gives it is ended by the server, who says what
    /// took so long.
    fn own_until(&self, arrived: Instant, asked: Asked) -> Option<Instant> {
        let longest = self.serving.limits.request_timeout();
        Some(arrived + asked.own_patience(longest)?)
    }

    /// Ends these calls, as far as they are under way or wait for places.
    fn cancel(&mut self, ids: Vec<u64>) {
        if ids.is_empty() {
            return;
        }
        let ids: HashSet<u64> = ids.into_iter().collect();
        for id in self.waiting.cancel(&ids) {
            self.outbound.answer(failed(id, &cancelled()));
        }
        self.together.retain(|waiters| {
            let waiters = waiters.upgrade();
            waiters.inspect(|it| it.cancel(&ids)).is_some()
        });
        for alone in ids.iter().filter_map(|id| self.alone.get(id)) {
            alone.abort();
        }
    }

    /// The callers of these calls, so that they can be cancelled.
    fn waiters<'a>(
        &mut self,
        arrived: Instant,
        calls: impl Iterator<Item = &'a Asked>,
    ) -> Arc<Waiters> {
        let waiters = calls.map(|asked| (asked.id, self.until(arrived, *asked)));
        let waiters = Arc::new(Waiters::new(waiters));
        // Those that are over go as often as there are twice as many.
        if self.together.len() == self.together.capacity() {
            self.together.retain(|it| it.strong_count() > 0);
        }
        self.together.push(Arc::downgrade(&waiters));
        waiters
    }

    fn write_together(
        &mut self,
        arrived: Instant,
        mut calls: Vec<(Asked, Call)>,
        mut commands: Vec<kv::Request>,
        admitted: Admitted,
    ) {
        let admitted = Arc::new(admitted);
        let mut may_be_traced = true;
        if self.caller.origin == Origin::Client
            && let Some(leader) = self.serving.node.other_leader()
        {
            self.outbound.tell_leader(&leader.client_address);
            (calls, commands) = self.forward_at_once(arrived, calls, commands, &admitted, &leader);
            may_be_traced = false;
            if calls.is_empty() {
                return;
            }
        }
        let waiters = self.waiters(arrived, calls.iter().map(|(asked, _)| asked));
        let (traces, traced) = match may_be_traced {
            true => self.trace_all(arrived, &calls),
            false => Default::default(),
        };
        let writes = Writes {
            admitted,
            arrived,
            calls,
            traced,
        };
        let serving = Arc::clone(&self.serving);
        let from = self.caller.source.address();
        let passes = self.caller.origin == Origin::Client;
        self.work(writes.calls.len(), async move {
            let group = WriteGroup {
                requests: commands,
                from: Some(from),
                passes,
                held: Some(serving.answers.none(from)),
                waiters: Some(waiters),
                traces,
            };
            let (results, held) = serving.node.write_held(group).await;
            Done::Written(writes, results, held)
        });
    }

    /// Has the leader answer those of these writes that are not passed on as messages between
    /// members, as far as that is known, and returns the others, behind which they would wait.
    fn forward_at_once(
        &mut self,
        arrived: Instant,
        calls: Vec<(Asked, Call)>,
        commands: Vec<kv::Request>,
        admitted: &Arc<Admitted>,
        leader: &LeaderHint,
    ) -> (Vec<(Asked, Call)>, Vec<kv::Request>) {
        let from = self.caller.source.address();
        let mut leader_takes = self.serving.node.leader_takes_bytes(from);
        let mut left = (Vec::new(), Vec::new());
        for ((asked, call), command) in calls.into_iter().zip(commands) {
            // A trace is to show the leader's stages too.
            let traced = self.trace(frame::method(&call), arrived, asked);
            let bytes = call.encoded_len() + PASSED_ON_OVERHEAD_BYTES;
            let is_passed_on = traced.is_none()
                && bytes <= leader_takes.min(LARGEST_PASSED_ON_BYTES)
                && may_be_passed_on(&command.command);
            if is_passed_on {
                leader_takes -= bytes;
                left.0.push((asked, call));
                left.1.push(command);
                continue;
            }
            let until = self.until(arrived, asked);
            let error = RequestError::NotLeader {
                leader: Some(leader.clone()),
            };
            self.forward(Arc::clone(admitted), (asked.id, traced), until, call, error);
        }
        left
    }

    /// Tells a client of the leader, which serves it with less work.
    fn tell_leader(&mut self) {
        if self.caller.origin == Origin::Client
            && let Some(leader) = self.serving.node.other_leader()
        {
            self.outbound.tell_leader(&leader.client_address);
        }
    }

    /// A write that takes more than one step.
    fn write_alone(&mut self, arrived: Instant, asked: Asked, call: Call, admitted: Admitted) {
        let (serving, own) = (Arc::clone(&self.serving), self.own_until(arrived, asked));
        let traced = self.trace(frame::method(&call), arrived, asked);
        let caller = Caller {
            until: Some(self.until(arrived, asked)),
            ..self.caller.clone()
        };
        let caller = caller.traced(traced.as_ref());
        self.work_alone(asked.id, async move {
            let written = serving.write_framed(asked.id, call, caller, admitted);
            let (answer, held) = in_time(own, asked.id, written).await;
            if let Some(traced) = traced {
                traced.answered(frame::code(&answer));
            }
            Done::Answered(answer, held)
        });
    }

    /// Begins to trace a call, if it is sampled: by ratio, unless it names its caller's span, as a
    /// member does that passes it on.
    fn trace(&self, method: &'static str, arrived: Instant, asked: Asked) -> Option<Begun> {
        let passed_on = self.caller.origin == Origin::Member;
        self.serving.tracer.begin(method, arrived, || Parent {
            span: asked.trace,
            passed_on,
        })
    }

    /// The same with each of these, which are written together: with the ids of those that are
    /// traced.
    fn trace_all(
        &self,
        arrived: Instant,
        calls: &[(Asked, Call)],
    ) -> (Traces, VecDeque<(u64, Begun)>) {
        let (mut traces, mut traced) = (Traces::default(), VecDeque::new());
        if !self.serving.tracer.is_on() {
            return (traces, traced);
        }
        for (place, (asked, call)) in calls.iter().enumerate() {
            if let Some(begun) = self.trace(frame::method(call), arrived, *asked) {
                traces.add(place, begun.write());
                traced.push_back((asked.id, begun));
            }
        }
        (traces, traced)
    }

    fn read<R: Read>(&mut self, arrived: Instant, asked: Asked, request: R, admitted: Admitted) {
        let (serving, own) = (Arc::clone(&self.serving), self.own_until(arrived, asked));
        let source = Arc::clone(&self.caller.source);
        self.work_alone(asked.id, async move {
            let read = async {
                let read = request.read(&serving, &source).await;
                admitted.came_to(R::METHOD, &read);
                let (result, held) = apart(read);
                (framed::<R>(asked.id, result), held)
            };
            let (answer, held) = in_time(own, asked.id, read).await;
            Done::Answered(answer, held)
        });
    }

    fn read_together(
        &mut self,
        arrived: Instant,
        gets: VecDeque<(Asked, GetRequest)>,
        level: Consistency,
        admitted: Admitted,
    ) {
        let waiters = self.waiters(arrived, gets.iter().map(|(asked, _)| asked));
        // `None` if one of them waits as long as the server does.
        let all_own = gets
            .iter()
            .map(|(asked, _)| self.own_until(arrived, *asked));
        let latest = all_own.collect::<Option<Vec<_>>>();
        let latest = latest.and_then(|all| all.into_iter().max());
        let reads = Reads {
            admitted,
            waiters,
            gets,
        };
        let by_lease = level == Consistency::Lease;
        if level == Consistency::Eventual || by_lease && self.serving.node.lease_covers() {
            self.readable.push_back(reads);
            return;
        }
        if matches!(level, Consistency::Lease | Consistency::Linearizable) {
            // It could answer without a round, or without being asked for one by another member.
            self.tell_leader();
        }
        let serving = Arc::clone(&self.serving);
        self.work(reads.gets.len(), async move {
            let fresh = before(latest, serving.freshen(level)).await;
            Done::Fresh(reads, fresh.unwrap_or_else(|| Err(too_late())))
        });
    }

    /// Works for so many calls beside everything else of the stream.
    fn work(&self, calls: usize, work: impl Future<Output = Done> + Send + 'static) {
        // A member passes on those of many clients, and a client makes all of them.
        let calls = match self.caller.origin {
            Origin::Member => calls,
            Origin::Client => 1,
        };
        self.working.push(timed(calls, work).boxed());
    }

    /// The same for one call, until its client gives it up.
    pub(super) fn work_alone(
        &mut self,
        id: u64,
        work: impl Future<Output = Done> + Send + 'static,
    ) {
        let (work, handle) = abortable(work);
        self.alone.insert(id, handle);
        self.work(1, async move { work.await.unwrap_or(Done::Cancelled(id)) });
    }
}

/// What a call comes to whose client may wait for less long than the server does.
async fn in_time(
    own: Option<Instant>,
    id: u64,
    work: impl Future<Output = (PipelinedAnswer, Option<Held>)>,
) -> (PipelinedAnswer, Option<Held>) {
    let answered = before(own, work).await;
    answered.unwrap_or_else(|| (failed(id, &too_late()), None))
}

/// What this comes to, if it does before then.
async fn before<T>(until: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(work.await),
        Some(until) => tokio::time::timeout_at(until.into(), work).await.ok(),
    }
}

impl Serving {
    async fn write_framed(
        self: Arc<Self>,
        id: u64,
        call: Call,
        caller: Caller,
        admitted: Admitted,
    ) -> (PipelinedAnswer, Option<Held>) {
        async fn write<M: Mutation>(
            serving: &Arc<Serving>,
            id: u64,
            request: M,
            caller: &Caller,
            admitted: &Admitted,
        ) -> (PipelinedAnswer, Option<Held>) {
            let proposed = serving.propose(request, caller).await;
            admitted.came_to(M::METHOD, &proposed);
            let cost = proposed.as_ref().map_or(Cost::NONE, |it| it.cost);
            let (result, held) = apart(proposed.map(|it| (it.answer, it.held)));
            let framed = PipelinedAnswer {
                visited: cost.visited,
                others_waited: cost.others_waited,
                ..framed::<M>(id, result)
            };
            (framed, held)
        }
        if let Call::OpenSession(open) = call {
            let opened = self.open_session(open, caller, Some(admitted)).await;
            return (framed::<OpenSessionRequest>(id, opened), None);
        }
        for_each_write!(call, it => write(&self, id, it, &caller, &admitted).await,
            otherwise (failed(id, &frame::unknown_call()), None))
    }
}

/// An answer, and apart from it what counts its memory.
fn apart<T>(result: Result<(T, Option<Held>), Status>) -> (Result<T, Status>, Option<Held>) {
    match result {
        Ok((answer, held)) => (Ok(answer), held),
        Err(status) => (Err(status), None),
    }
}
