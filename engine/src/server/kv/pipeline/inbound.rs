//! Frames on their way in: what becomes of their calls.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll},
};

use dengine_api::{
    KvCall,
    v1::{Consistency, GetRequest, PipelinedAnswer, RangeRequest, pipelined_call::Call},
};
use dengine_core::kv;
use dengine_wire::{
    Mutation, for_each_write,
    frame::{self, Calls, ReadAlone, failed, framed},
};
use futures::{FutureExt, StreamExt};
use tonic::Status;

use super::{Done, Inbound, Pipeline, Reads, Serving, Writes};
use crate::{node::answers::Held, server::forward::Origin};

/// Calls of one kind that wait for places.
pub(super) enum Part {
    Writes(Vec<(u64, Call)>, Vec<kv::Request>),
    Gets(VecDeque<(u64, GetRequest)>, Consistency),
}

/// Calls under way on one stream; a client beyond it waits on its own side.
const CALLS_PER_STREAM_MAX: usize = 4096;

impl Pipeline {
    /// Takes in frames as long as there is room for their calls.
    pub(super) fn take_in(&mut self, context: &mut Context<'_>) {
        while self.under_way < CALLS_PER_STREAM_MAX
            && self.waiting.is_empty()
            && let Inbound::Open(inbound) = &mut self.inbound
        {
            let calls = match inbound.poll_next_unpin(context) {
                Poll::Ready(Some(Ok(frame))) => Calls::sort(frame, &self.serving.request_limits),
                Poll::Ready(Some(Err(status))) => Err(frame::unreadable(&status)),
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
        self.under_way += calls.count();
        for refused in calls.refused {
            self.outbound.answer(refused);
        }
        for (id, read) in calls.reads_alone {
            match read {
                ReadAlone::Get(get) => self.read(id, get),
                ReadAlone::Range(range) => self.read(id, range),
            }
        }
        for (id, call) in calls.writes_alone {
            self.write_alone(id, call);
        }
        self.write_together(calls.writes, calls.commands);
        for (gets, level) in calls.gets.into_iter().zip(Calls::LEVELS) {
            self.read_together(gets, level);
        }
    }

    fn write_together(&mut self, mut calls: Vec<(u64, Call)>, mut commands: Vec<kv::Request>) {
        if commands.is_empty() {
            return;
        }
        let Some(admitted) = self.serving.gate.admit(calls.len()) else {
            return self.wait_or_refuse(Part::Writes(calls, commands));
        };
        let later = calls.split_off(admitted.count());
        if !later.is_empty() {
            let commands = commands.split_off(admitted.count());
            self.waiting.push_back(Part::Writes(later, commands));
        }
        let writes = Writes { admitted, calls };
        let serving = Arc::clone(&self.serving);
        self.work(async move {
            let held = Some(serving.answers.none());
            let (results, held) = serving.node.write_held(commands, held).await;
            Done::Written(writes, results, held)
        });
    }

    /// Places that calls of this stream give back go to those of it that wait. If it has none, others have them, and
    /// it is told so at once.
    fn wait_or_refuse(&mut self, part: Part) {
        let own = !self.working.is_empty() || !self.decided.is_empty() || !self.readable.is_empty();
        if own {
            return self.waiting.push_front(part);
        }
        let full = self.serving.gate.full();
        let ids: Vec<_> = match part {
            Part::Writes(calls, _) => calls.iter().map(|(id, _)| *id).collect(),
            Part::Gets(gets, _) => gets.iter().map(|(id, _)| *id).collect(),
        };
        for id in ids {
            self.outbound.answer(failed(id, &full));
        }
    }

    /// Begins calls that waited for places, as far as there are some.
    pub(super) fn begin_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some(Part::Writes(calls, commands)) => self.write_together(calls, commands),
                Some(Part::Gets(gets, level)) => self.read_together(gets, level),
                None => return,
            }
        }
    }

    /// A write that takes more than one step.
    fn write_alone(&mut self, id: u64, call: Call) {
        let (serving, origin) = (Arc::clone(&self.serving), self.origin);
        self.work(async move {
            let (answer, held) = serving.write_framed(id, call, origin).await;
            Done::Answered(answer, held)
        });
    }

    fn read<R: Read>(&mut self, id: u64, request: R) {
        let serving = Arc::clone(&self.serving);
        self.work(async move {
            let read = serving.gate.pass(R::METHOD, request.read(&serving));
            let (result, held) = apart(read.await);
            Done::Answered(framed::<R>(id, result), held)
        });
    }

    fn read_together(&mut self, mut gets: VecDeque<(u64, GetRequest)>, level: Consistency) {
        if gets.is_empty() {
            return;
        }
        let Some(admitted) = self.serving.gate.admit(gets.len()) else {
            return self.wait_or_refuse(Part::Gets(gets, level));
        };
        let later = gets.split_off(admitted.count());
        if !later.is_empty() {
            self.waiting.push_back(Part::Gets(later, level));
        }
        let reads = Reads { admitted, gets };
        let by_lease = level == Consistency::Lease;
        if level == Consistency::Eventual || by_lease && self.serving.node.lease_covers() {
            self.readable.push_back(reads);
            return;
        }
        if by_lease
            && self.origin == Origin::Client
            && let Some(leader) = self.serving.node.other_leader()
        {
            // It could answer without a round.
            self.outbound.tell_leader(&leader.client_address);
        }
        let serving = Arc::clone(&self.serving);
        self.work(async move {
            let fresh = serving.freshen(level.into(), None).await;
            Done::Fresh(reads, fresh)
        });
    }

    /// Works beside everything else of the stream.
    pub(super) fn work(&self, work: impl Future<Output = Done> + Send + 'static) {
        self.working.push(work.boxed());
    }
}

impl Serving {
    async fn write_framed(
        &self,
        id: u64,
        call: Call,
        origin: Origin,
    ) -> (PipelinedAnswer, Option<Held>) {
        async fn write<M: Mutation>(
            serving: &Serving,
            id: u64,
            request: M,
            origin: Origin,
        ) -> (PipelinedAnswer, Option<Held>) {
            let (result, held) = apart(serving.write(request, origin).await);
            (framed::<M>(id, result), held)
        }
        for_each_write!(call, it => write(self, id, it, origin).await,
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

/// A call that changes nothing, apart from its reading.
trait Read: KvCall {
    fn read(
        self,
        serving: &Serving,
    ) -> impl Future<Output = Result<(Self::Answer, Option<Held>), Status>> + Send;
}

impl Read for GetRequest {
    async fn read(self, serving: &Serving) -> Result<(Self::Answer, Option<Held>), Status> {
        serving.get(self).await
    }
}

impl Read for RangeRequest {
    async fn read(self, serving: &Serving) -> Result<(Self::Answer, Option<Held>), Status> {
        serving.range(self).await
    }
}
