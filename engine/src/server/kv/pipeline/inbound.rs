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
use crate::server::{forward::Origin, gate::Admitted};

/// Calls under way on one stream; a client beyond it waits on its own side.
const CALLS_PER_STREAM_MAX: usize = 4096;

impl Pipeline {
    /// Takes in frames as long as there is room for their calls.
    pub(super) fn take_in(&mut self, context: &mut Context<'_>) {
        while self.under_way < CALLS_PER_STREAM_MAX
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
            self.answer(refused);
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

    fn write_together(&mut self, calls: Vec<(u64, Call)>, commands: Vec<kv::Request>) {
        if commands.is_empty() {
            return;
        }
        let admitted = match self.admit(calls.len()) {
            Ok(admitted) => admitted,
            Err(full) => {
                let ids = calls.iter().map(|(id, _)| *id);
                return ids.for_each(|id| self.answer(failed(id, &full)));
            }
        };
        let writes = Writes { admitted, calls };
        let serving = Arc::clone(&self.serving);
        self.work(async move {
            let results = serving.node.write_all(commands).await;
            Done::Written(writes, results)
        });
    }

    /// A write that takes more than one step.
    fn write_alone(&mut self, id: u64, call: Call) {
        let (serving, origin) = (Arc::clone(&self.serving), self.origin);
        self.work(async move { Done::Answered(serving.write_framed(id, call, origin).await) });
    }

    fn admit(&self, calls: usize) -> Result<Admitted, Status> {
        let count = u32::try_from(calls).unwrap_or(u32::MAX);
        self.serving.gate.admit(count)
    }

    fn read<R: Read>(&mut self, id: u64, request: R) {
        let serving = Arc::clone(&self.serving);
        self.work(async move {
            let read = request.read(&serving);
            Done::Answered(framed::<R>(id, serving.gate.pass(R::METHOD, read).await))
        });
    }

    fn read_together(&mut self, gets: VecDeque<(u64, GetRequest)>, level: Consistency) {
        if gets.is_empty() {
            return;
        }
        let admitted = match self.admit(gets.len()) {
            Ok(admitted) => admitted,
            Err(full) => {
                gets.iter()
                    .for_each(|(id, _)| self.answer(failed(*id, &full)));
                return;
            }
        };
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
            self.leader = leader.client_address;
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
    async fn write_framed(&self, id: u64, call: Call, origin: Origin) -> PipelinedAnswer {
        async fn write<M: Mutation>(
            serving: &Serving,
            id: u64,
            request: M,
            origin: Origin,
        ) -> PipelinedAnswer {
            framed::<M>(id, serving.write(request, origin).await)
        }
        for_each_write!(call, it => write(self, id, it, origin).await,
            otherwise failed(id, &frame::unknown_call()))
    }
}

/// A call that changes nothing, apart from its reading.
trait Read: KvCall {
    fn read(self, serving: &Serving) -> impl Future<Output = Result<Self::Answer, Status>> + Send;
}

impl Read for GetRequest {
    async fn read(self, serving: &Serving) -> Result<Self::Answer, Status> {
        serving.get(self).await
    }
}

impl Read for RangeRequest {
    async fn read(self, serving: &Serving) -> Result<Self::Answer, Status> {
        serving.range(self).await
    }
}
