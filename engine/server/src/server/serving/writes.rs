//! Calls that change something: proposed here, or passed on to the leader.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dengine_client::Answered;
use dengine_kv as kv;
use dengine_kv::{Batch, Command, RangeQuery, Reader};
use dengine_protocol::KvCall;
use dengine_protocol::checks::writes::{self, NoAnswer};
use dengine_protocol::checks::{Mutation, frame};
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::v1::{Consistency, OpenSessionRequest, OpenSessionResponse};
use dengine_types::{LeaseId, SessionId};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::openers::{Look, OpenNow, Opening, TooMany, after_look};
use super::range_writes::Cost;
use super::reads::no_room;
use super::{Caller, Serving, grants};
use crate::error::RequestError;
use crate::node::answers::Held;
use crate::node::{WriteGroup, Written};
use crate::server::forward::Origin;
use crate::server::gate::{Admitted, Kind};
use crate::storage::RocksStore;
use crate::telemetry::traces::Traces;

/// Leases that are read at once.
const LEASES_PAGE: usize = 1024;

/// What became of a write.
pub(in crate::server) struct Proposed<T> {
    pub(in crate::server) answer: T,
    pub(in crate::server) held: Option<Held>,
    pub(in crate::server) cost: Cost,
}

impl Serving {
    /// Opens a session, unless the caller has as many as it may; it may have been let in already.
    /// Whether it was opened is found out even if the caller leaves: who leaves early would
    /// otherwise have more.
    pub(in crate::server) async fn open_session(
        self: Arc<Self>,
        request: OpenSessionRequest,
        caller: Caller,
        admitted: Option<Admitted>,
    ) -> Result<OpenSessionResponse, Status> {
        let open = async move {
            let source = &caller.source;
            let open = async {
                let opening = self.place_for_session(&caller).await?;
                let opened = self.propose(request, &caller).await?.answer;
                opening.opened(SessionId(opened.session_id));
                Ok(opened)
            };
            let method = OpenSessionRequest::METHOD;
            let Some(admitted) = admitted else {
                return self.gate.pass(method, Kind::Write, source, open).await;
            };
            let opened = open.await;
            admitted.came_to(method, &opened);
            opened
        };
        let opened = tokio::spawn(open).await;
        // It may have been proposed.
        opened.map_err(|_| {
            let words = "this member is shutting down: the session may or may not be opened";
            Status::deadline_exceeded(words)
        })?
    }

    pub(in crate::server) async fn place_for_session(
        self: &Arc<Self>,
        caller: &Caller,
    ) -> Result<Opening, Status> {
        let (from, origin) = (caller.source.address(), caller.origin);
        let open = || -> Result<_, Status> {
            let in_all = self.reader()?.open_sessions();
            Ok(self.openers.open(from, origin, in_all))
        };
        let opening = open()?;
        let opening = match self.openers.look(opening.is_err()) {
            None => opening,
            Some(look) => {
                // Not the caller's read: what it finds is for all, and no other looks meanwhile.
                let looked = self.threads.spawn(Arc::clone(self).look_for_sessions(look));
                let stops = |_| Status::unavailable("this member is shutting down");
                let looked = looked.await.map_err(stops).flatten();
                after_look(opening, looked, open)?
            }
        };
        opening.map_err(|TooMany { own, all }| {
            Status::resource_exhausted(format!(
                "{all} sessions are open, {own} of them from your address ({from}) through this \
                 member, which is its limit; close some (`dengine admin sessions`), or let them \
                 expire"
            ))
        })
    }

    async fn look_for_sessions(self: Arc<Self>, look: Look) -> Result<(), Status> {
        let patience = self.limits.request_timeout();
        let read = |reader: &Reader<RocksStore>| {
            Ok(OpenNow {
                applied: reader.applied_index(),
                sessions: reader.session_ids()?,
            })
        };
        let now = self.aside.read(&self.node, None, patience, read).await?;
        look.seen(&now);
        Ok(())
    }

    /// A place for the lease that a command is to grant, under its id, if it grants one that has
    /// none. It is kept though the caller leaves, for the lease may be granted all the same.
    async fn place_for_lease(
        self: &Arc<Self>,
        command: &Command,
        caller: &Caller,
    ) -> Result<Option<LeaseId>, Status> {
        let Command::GrantLease { lease, .. } = *command else {
            return Ok(None);
        };
        let (from, origin) = (caller.source.address(), caller.origin);
        let mut asked = self.grants.ask(lease, from, origin);
        if let Some(look) = self.grants.look(asked.is_err()) {
            // Not the caller's read: what it finds is for all, and no other looks meanwhile.
            let looking = self.threads.spawn(Arc::clone(self).look_for_leases(look));
            if asked.is_err() {
                let stops = |_| Status::unavailable("this member is shutting down");
                looking.await.map_err(stops).flatten()?;
                asked = self.grants.ask(lease, from, origin);
            }
        }
        match asked {
            Ok(is_new) => Ok(is_new.then_some(lease)),
            Err(grants::TooMany { own }) => Err(Status::resource_exhausted(format!(
                "{own} leases were granted to your address ({from}) through this member, which is \
                 its limit; revoke some, or let them expire"
            ))),
        }
    }

    async fn look_for_leases(self: Arc<Self>, look: grants::Look) -> Result<(), Status> {
        let patience = self.limits.request_timeout();
        let read = |reader: &Reader<RocksStore>| {
            let (mut held, mut after) = (HashSet::new(), None);
            loop {
                let page = reader.leases(after, LEASES_PAGE)?;
                held.extend(page.iter().map(|it| it.id));
                after = page.last().map(|it| it.id);
                if page.len() < LEASES_PAGE {
                    return Ok(held);
                }
            }
        };
        let held = self.aside.read(&self.node, None, patience, read).await?;
        look.seen(&held);
        Ok(())
    }

    /// Proposes what `request` asks for, or has the leader answer instead.
    pub(in crate::server) async fn propose<M: Mutation>(
        self: &Arc<Self>,
        request: M,
        caller: &Caller,
    ) -> Result<Proposed<M::Answer>, Status> {
        let reads = Consistency::Linearizable;
        self.propose_or_read(request, reads, caller).await
    }

    /// The same, but what only reads is read at this level.
    pub(in crate::server) async fn propose_or_read<M: Mutation>(
        self: &Arc<Self>,
        request: M,
        reads: Consistency,
        caller: &Caller,
    ) -> Result<Proposed<M::Answer>, Status> {
        let command = writes::command(&request, &self.request_limits)?;
        if let Some(batch) = command.read_only() {
            let batch = batch.clone();
            return self.read_batch(&request, batch, reads, caller).await;
        }
        // Without a turn in hand: it waits behind other long reads of its client.
        self.check_returned(&command.command, caller).await?;
        let granted = self.place_for_lease(&command.command, caller).await?;
        let (answer, cost) = match command.command.visits_ranges() {
            false => self.order(request, command, caller).await,
            true => self.order_in_turn(request, command, caller).await?,
        };
        if let (Some(lease), Err(status)) = (granted, &answer)
            && status.code() != Code::DeadlineExceeded
        {
            self.grants.forget(lease);
        }
        let (answer, held) = answer?;
        Ok(Proposed { answer, held, cost })
    }

    /// Has it ordered here, or by the leader; and what it cost.
    pub(in crate::server) async fn order<M: Mutation>(
        &self,
        request: M,
        command: kv::Request,
        caller: &Caller,
    ) -> (Result<(M::Answer, Option<Held>), Status>, Cost) {
        let (whose, begun) = (caller.source.address(), Instant::now());
        let others_waited = || self.gate.others_than(whose, begun);
        let group = WriteGroup {
            requests: vec![command],
            from: Some(whose),
            passes: caller.origin == Origin::Client,
            held: Some(self.answers.none(whose)),
            waiters: None,
            traces: Traces::of_one(caller.trace.as_ref()),
        };
        let (mut written, held) = self.node.write_held(group).await;
        match written.pop().expect("one answer to one write") {
            Ok(Written {
                term,
                outcome,
                visited,
            }) => {
                let header = self.headers.in_term(term);
                let answer = writes::answer(&request, header, outcome);
                let answer = answer.map_err(|why| no_answer(M::METHOD, why));
                let cost = Cost {
                    visited: visited as u64,
                    others_waited: others_waited(),
                };
                (answer.map(|answer| (answer, held)), cost)
            }
            Err(error) => {
                let is_elsewhere = self.node.other_leader().is_some();
                let forwarded = self.forward(error, caller, M::METHOD, request.framed());
                match forwarded.await {
                    Ok((answered, held)) => {
                        let answer = M::unframed(answered.answer).map_err(|_| {
                            Status::internal("the leader answered another question than was asked")
                        });
                        let cost = Cost {
                            visited: answered.visited,
                            // To the leader, all clients of this member are one.
                            others_waited: answered.others_waited || others_waited(),
                        };
                        (answer.map(|answer| (answer, held)), cost)
                    }
                    Err(status) => {
                        // Too large a range is refused after all that may be visited was.
                        let is_refused = status.code() == Code::InvalidArgument;
                        let is_unknown = status.code() == Code::DeadlineExceeded;
                        let cost = Cost {
                            visited: if is_refused || is_unknown {
                                u64::MAX
                            } else {
                                0
                            },
                            others_waited: others_waited() || is_refused && is_elsewhere,
                        };
                        (Err(status), cost)
                    }
                }
            }
        }
    }

    /// Has the leader answer a write that this member refused with `error`.
    pub(in crate::server) async fn forward(
        &self,
        error: RequestError,
        caller: &Caller,
        method: &'static str,
        call: Call,
    ) -> Result<(Answered, Option<Held>), Status> {
        let Caller { origin, until, .. } = *caller;
        let (from, trace) = (caller.source.address(), caller.trace.as_deref());
        let forwarded = self
            .forwarder
            .write(error, (origin, from), method, call, until, trace);
        let mut answered = forwarded.await?;
        let held = self.answers.hold(from, answered.answer.encoded_len());
        if held.is_none() {
            frame::leave_out_pairs(&mut answered.answer);
        }
        Ok((answered, held))
    }

    /// A batch that changes nothing: costs no entry of the log, on any member.
    async fn read_batch<M: Mutation>(
        &self,
        request: &M,
        batch: Batch,
        level: Consistency,
        caller: &Caller,
    ) -> Result<Proposed<M::Answer>, Status> {
        let (whose, patience) = (caller.source.address(), self.patience_of(caller));
        let begun = Instant::now();
        within(patience, self.freshen(level)).await?;
        let patience = patience.saturating_sub(begun.elapsed());
        let budget = self.answers.clone();
        let read = move |reader: &Reader<RocksStore>| {
            let outcome = reader.batch(&batch)?;
            // Counted where it is read: what is read may wait to be fetched from here.
            let held = outcome
                .as_ref()
                .map(|it| budget.hold(whose, it.pairs_bytes()));
            Ok(outcome.zip(held))
        };
        let read = self
            .aside
            .read(&self.node, Some(&caller.source), patience, read)
            .await;
        let read = read.map_err(|status| {
            unread(
                &status,
                "the batch's ranges could not be read in time; ask for less of them at once",
            )
        })?;
        let (outcome, held) =
            read.ok_or_else(|| Status::internal("the batch changes something"))?;
        let held = held.ok_or_else(no_room)?;
        let answer = writes::answer(request, self.headers.now(), outcome);
        Ok(Proposed {
            answer: answer.map_err(|why| no_answer(M::METHOD, why))?,
            held: Some(held),
            cost: Cost::NONE,
        })
    }

    /// What a delete returns is gathered while it is applied, by every member: it must not be
    /// large. Judged by what this member sees now, which is all that can be known before the delete
    /// has its place in the log.
    async fn check_returned(&self, command: &Command, caller: &Caller) -> Result<(), Status> {
        let patience = self.patience_of(caller);
        let begun = Instant::now();
        for keys in command.returned() {
            let query = RangeQuery {
                max_bytes: self.request_limits.max_range_bytes,
                ..RangeQuery::new(keys.clone())
            };
            let left = patience.saturating_sub(begun.elapsed());
            let found = self.read(query, &caller.source, left).await;
            let (found, _held) = found.map_err(|status| {
                unread(
                    &status,
                    "prev_kv: the range could not be read in time; delete it in parts, or without \
                     prev_kv",
                )
            })?;
            if found.more {
                return Err(Status::invalid_argument(format!(
                    "prev_kv: the range holds more than {} bytes (--max-range-bytes); delete it in \
                     parts, or without prev_kv",
                    self.request_limits.max_range_bytes
                )));
            }
        }
        Ok(())
    }

    /// For how long is read what a write needs to know before it is proposed, or what a batch reads
    /// that changes nothing.
    fn patience_of(&self, caller: &Caller) -> Duration {
        let left = caller
            .until
            .map(|until| until.saturating_duration_since(Instant::now()));
        reading_patience(left, self.limits.request_timeout())
    }
}

/// Clearly less than its caller waits: who gives up a write before it is told that nothing was
/// changed has to take it for one of unknown outcome.
fn reading_patience(left: Option<Duration>, longest: Duration) -> Duration {
    left.map_or(longest, |left| left.min(longest)) * 3 / 4
}

/// Has a batch that only reads be fresh, in the time that its caller has for that.
async fn within(
    patience: Duration,
    fresh: impl Future<Output = Result<(), Status>>,
) -> Result<(), Status> {
    timeout(patience, fresh).await.unwrap_or_else(|_| {
        let words = "no quorum confirmed in time what is newest; nothing was changed, try again";
        Err(Status::unavailable(words))
    })
}

/// What the caller is told when the outcome of a write is no answer to it.
pub(in crate::server) fn no_answer(method: &str, why: NoAnswer) -> Status {
    if let NoAnswer::OfAnotherKind(outcome) = &why {
        // Not the outcome itself: it may hold users' values.
        let answered = outcome.name();
        tracing::warn!(
            method,
            answered,
            "a call got the answer to another kind of call: a session used one sequence twice, or \
             this is a bug"
        );
    }
    why.into()
}

/// What is read for a write could not be: it was not proposed, so nothing was changed, which
/// `DEADLINE_EXCEEDED` would not say.
fn unread(status: &Status, late: &str) -> Status {
    match status.code() {
        Code::DeadlineExceeded => Status::failed_precondition(format!(
            "{late} (nothing was changed; {})",
            status.message()
        )),
        code => Status::new(code, status.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client had given up when the server did, and took a delete that was never proposed for
    /// one that may take effect.
    #[test]
    fn what_is_read_before_a_write_ends_before_its_caller_does() {
        let longest = Duration::from_secs(5);
        for left in [None, Some(4_999), Some(1_000), Some(60_000)] {
            let left = left.map(Duration::from_millis);
            let waits = left.unwrap_or(longest).min(longest);
            assert!(reading_patience(left, longest) <= waits * 4 / 5, "{left:?}");
        }
    }

    /// It was waited for as long as the caller does, who then took it for a write of unknown
    /// outcome.
    #[tokio::test]
    async fn a_batch_that_only_reads_is_told_in_time_that_nobody_confirms_it() {
        let late = within(Duration::ZERO, std::future::pending()).await;
        assert_eq!(late.unwrap_err().code(), Code::Unavailable);
        let refused = within(Duration::from_secs(3), async { Err(Status::cancelled("")) }).await;
        assert_eq!(refused.unwrap_err().code(), Code::Cancelled);
    }

    #[test]
    fn a_write_whose_ranges_were_not_read_changed_nothing() {
        let late = unread(&Status::deadline_exceeded("given up"), "too slow");
        assert_eq!(late.code(), Code::FailedPrecondition);
        let busy = unread(&Status::unavailable("no turn"), "too slow");
        assert_eq!(
            (busy.code(), busy.message()),
            (Code::Unavailable, "no turn")
        );
    }
}
