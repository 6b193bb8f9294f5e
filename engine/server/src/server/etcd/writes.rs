//! What changes something: ordered here or by the leader, and shown here before it is answered.

use dengine_etcd::Header;
use dengine_etcd::writes::{self, Mutation};
use dengine_kv::{Command, Outcome};
use dengine_protocol::checks::forward;
use dengine_protocol::v1::{Consistency, Position};
use dengine_types::Term;
use tonic::{Request, Response, Status};

use super::door::{Door, ServedBy, header};
use crate::node::answers::Held;
use crate::server::gate::Kind;
use crate::server::serving::{Caller, counted};

/// What a command came to.
pub(super) struct Ordered {
    pub(super) outcome: Outcome,
    /// Of the answer.
    pub(super) header: Header,
    /// What counts the memory of what it returns.
    pub(super) held: Option<Held>,
}

impl Door {
    /// Has a request carried out that changes something, or that is a transaction.
    pub(super) async fn write<M>(
        &self,
        method: &'static str,
        request: Request<M>,
    ) -> Result<Response<M::Response>, Status>
    where
        M: Mutation + 'static,
    {
        self.admit(request.metadata(), ServedBy::Voters)?;
        let caller = Caller::of(&request);
        let request = request.into_inner();
        self.change(method, &request, &caller).await.map(counted)
    }

    /// Has it carried out for a caller that was admitted; with what counts the answer's memory.
    pub(super) async fn change<M>(
        &self,
        method: &'static str,
        request: &M,
        caller: &Caller,
    ) -> Result<(M::Response, Option<Held>), Status>
    where
        M: Mutation + 'static,
    {
        let command = writes::command(request)?.command;
        let reads = match request.is_serializable() {
            true => Consistency::Eventual,
            false => Consistency::Linearizable,
        };
        let ordered = self.order(method, command, reads, caller).await?;
        let answer = writes::answer(request, ordered.header, ordered.outcome)?;
        Ok((answer, ordered.held))
    }

    /// Has a command ordered, and applied by this member as well. While nobody leads it waits: so
    /// does etcd, and its clients do not repeat a write themselves. One that only reads is `reads`.
    pub(super) async fn order(
        &self,
        method: &'static str,
        command: Command,
        reads: Consistency,
        caller: &Caller,
    ) -> Result<Ordered, Status> {
        let serving = self.serving();
        let request = forward::request(command);
        // What is UNAVAILABLE was not ordered by anybody.
        let proposed = self.again(|| serving.propose_or_read(request.clone(), reads, caller));
        let passed = serving
            .gate
            .pass(method, Kind::Write, &caller.source, proposed);
        let passed = passed.await.map_err(|it| self.in_etcds_words(&it))?;
        let term = passed.answer.header.as_ref().map_or(0, |it| it.term);
        let header = header(serving.headers.in_term(Term(term)));
        let outcome = forward::outcome(passed.answer)?;
        self.apply_too(&outcome, caller).await;
        Ok(Ordered {
            outcome,
            header,
            held: passed.held,
        })
    }

    /// Has this member show what a write came to before its client is answered, whichever member
    /// has ordered it: so does etcd. A member that lags answers late, and all the same.
    async fn apply_too(&self, outcome: &Outcome, caller: &Caller) {
        let serving = self.serving();
        let revision = match outcome {
            Outcome::Put { revision, .. }
            | Outcome::Delete { revision, .. }
            | Outcome::Batch { revision, .. } => revision.0,
            // These have no revision of their own: a compaction, and a lease without keys that
            // comes or goes.
            Outcome::Compact { .. } | Outcome::LeaseGranted { .. } | Outcome::LeaseEnded { .. } => {
                if serving.node.other_leader().is_some() {
                    let _ = serving.freshen(Consistency::Linearizable).await;
                }
                return;
            }
            _ => return,
        };
        let position = Position {
            cluster_id: serving.headers.now().cluster_id.0,
            revision,
        };
        // It is done, whether it is seen here in time or not.
        let _ = serving.reach(position, &caller.source).await;
    }
}
