//! Calls that change something: proposed here, or passed on to the leader.

use dengine_api::v1::Consistency;
use dengine_core::kv::{Batch, KeyRange, RangeQuery, Reader};
use dengine_wire::{
    Mutation,
    writes::{self, NoAnswer},
};
use tonic::{Code, Status};

use super::Serving;
use crate::{
    node::Written,
    server::{aside::read_aside, forward::Origin},
    storage::RocksStore,
};

impl Serving {
    /// Proposes what `request` asks for, or has the leader answer instead.
    pub(super) async fn write<M: Mutation>(
        &self,
        request: M,
        origin: Origin,
    ) -> Result<M::Answer, Status> {
        self.gate
            .pass(M::METHOD, self.propose(request, origin))
            .await
    }

    async fn propose<M: Mutation>(&self, request: M, origin: Origin) -> Result<M::Answer, Status> {
        let command = writes::command(&request, &self.request_limits)?;
        if let Some(batch) = command.read_only() {
            return self.read_batch(&request, batch.clone()).await;
        }
        self.check_returned(request.returned()).await?;
        match self.node.write(command).await {
            Ok(Written { term, outcome }) => {
                let header = self.headers.in_term(term);
                let answer = writes::answer(&request, header, outcome);
                answer.map_err(|why| no_answer(M::METHOD, why))
            }
            Err(error) => {
                let forwarded = self
                    .forwarder
                    .write(error, origin, M::METHOD, request.framed());
                M::unframed(forwarded.await?).map_err(|_| {
                    Status::internal("the leader answered another question than was asked")
                })
            }
        }
    }

    /// A batch that changes nothing: costs no entry of the log, on any member.
    async fn read_batch<M: Mutation>(
        &self,
        request: &M,
        batch: Batch,
    ) -> Result<M::Answer, Status> {
        self.freshen(Consistency::Linearizable.into(), None).await?;
        let patience = self.limits.request_timeout();
        let read = move |reader: &Reader<RocksStore>| reader.batch(&batch);
        let outcome = read_aside(&self.node, patience, read).await?;
        let outcome = outcome.ok_or_else(|| Status::internal("the batch changes something"))?;
        let answer = writes::answer(request, self.headers.now(), outcome);
        answer.map_err(|why| no_answer(M::METHOD, why))
    }

    /// What a delete returns is gathered while it is applied, by every member: it must not be large. Judged
    /// by what this member sees now, which is all that can be known before the delete has its place in the
    /// log.
    async fn check_returned(&self, ranges: Vec<KeyRange>) -> Result<(), Status> {
        for keys in ranges {
            let query = RangeQuery {
                max_bytes: self.request_limits.max_range_bytes,
                ..RangeQuery::new(keys)
            };
            let found = self.read(query).await;
            if found.map_err(nothing_proposed)?.more {
                return Err(Status::invalid_argument(format!(
                    "prev_kv: the range holds more than {} bytes (--max-range-bytes); delete it in parts, or without prev_kv",
                    self.request_limits.max_range_bytes
                )));
            }
        }
        Ok(())
    }
}

/// What a read ended with that came before a write.
fn nothing_proposed(status: Status) -> Status {
    match status.code() {
        // Of a write it would mean that it may have taken effect.
        Code::DeadlineExceeded => Status::unavailable(format!(
            "not served: {}; nothing was changed",
            status.message()
        )),
        _ => status,
    }
}

/// What the caller is told when the outcome of a write is no answer to it.
pub(super) fn no_answer(method: &str, why: NoAnswer) -> Status {
    if let NoAnswer::OfAnotherKind(outcome) = &why {
        tracing::error!(
            method,
            ?outcome,
            "the state machine gave an answer of another kind"
        );
    }
    why.into()
}
