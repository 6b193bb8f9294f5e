//! Calls that change something: proposed here, or passed on to the leader.

use std::{sync::Arc, time::Duration};

use dengine_api::{
    KvCall,
    v1::{Consistency, OpenSessionRequest, OpenSessionResponse, pipelined_call::Call},
};
use dengine_client::Answered;
use dengine_core::{
    kv::{self, Batch, KeyRange, Outcome, RangeQuery, Reader},
    types::SessionId,
};
use dengine_wire::{
    Mutation, frame,
    writes::{self, NoAnswer},
};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::{
    Caller, RANGE_WRITE_KEYS, Serving,
    openers::{OpenNow, Opening, TooMany},
    reads::no_room,
};
use crate::{
    connections::{Source, one_client},
    error::RequestError,
    node::{Written, answers::Held},
    server::{
        forward::Origin,
        gate::{Admitted, Kind},
        turns::{Turn, Whose},
    },
    storage::RocksStore,
};

/// What became of a write.
pub(super) struct Proposed<T> {
    pub(super) answer: T,
    pub(super) held: Option<Held>,
    /// See [`PipelinedAnswer::others_waited_for`](dengine_api::v1::PipelinedAnswer::others_waited_for).
    pub(super) others_waited_for: u64,
}

impl Serving {
    /// Proposes what `request` asks for, or has the leader answer instead.
    pub(super) async fn write<M: Mutation>(
        self: &Arc<Self>,
        request: M,
        caller: &Caller,
    ) -> Result<(M::Answer, Option<Held>), Status> {
        let source = &caller.source;
        let proposed = self.propose(request, caller);
        let gate = &self.gate;
        let proposed = gate.pass(M::METHOD, Kind::Write, source, proposed).await?;
        Ok((proposed.answer, proposed.held))
    }

    /// The same for a write that was let in.
    pub(super) async fn write_admitted<M: Mutation>(
        self: &Arc<Self>,
        request: M,
        caller: &Caller,
        admitted: &Admitted,
    ) -> Result<Proposed<M::Answer>, Status> {
        let written = self.propose(request, caller).await;
        admitted.came_to(M::METHOD, &written);
        written
    }

    /// Opens a session, unless the caller has as many as it may; it may have been let in already. Whether it was opened is found out even if the caller leaves:
    /// who leaves early would otherwise have more.
    pub(super) async fn open_session(
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
        opened.map_err(|_| Status::unavailable("this member is shutting down"))?
    }

    async fn place_for_session(&self, caller: &Caller) -> Result<Opening, Status> {
        let (from, origin) = (caller.source.address(), caller.origin);
        let open = || -> Result<_, Status> {
            let in_all = self.reader()?.open_sessions();
            Ok(self.openers.open(from, origin, in_all))
        };
        let opening = open()?;
        let opening = match self.openers.look(opening.is_err()) {
            None => opening,
            Some(look) => {
                let patience = self.limits.request_timeout();
                let read = |reader: &Reader<RocksStore>| {
                    Ok(OpenNow {
                        applied: reader.applied_index(),
                        sessions: reader.session_ids()?,
                    })
                };
                // Not the caller's read: what it finds is for all.
                let now = self.aside.read(&self.node, None, patience, read).await;
                if let Ok(now) = &now {
                    look.seen(now);
                }
                match opening {
                    Ok(opening) => Ok(opening),
                    Err(_) => now.and_then(|_| open())?,
                }
            }
        };
        opening.map_err(|TooMany { own, all }| {
            Status::resource_exhausted(format!(
                "{all} sessions are open, {own} of them from your address ({from}) through this member, and so many it may have; close some (`dengine admin sessions`), or let them expire"
            ))
        })
    }

    async fn propose<M: Mutation>(
        self: &Arc<Self>,
        request: M,
        caller: &Caller,
    ) -> Result<Proposed<M::Answer>, Status> {
        let whose = Some(caller.source.address());
        let command = writes::command(&request, &self.request_limits)?;
        if let Some(batch) = command.read_only() {
            return self.read_batch(&request, batch.clone(), whose).await;
        }
        let turn = match command.command.visits_ranges() {
            true => Some(self.turn_to_visit(&request, &caller.source).await?),
            false => None,
        };
        // Right before it is proposed: what it looks at changes.
        self.check_returned(request.returned(), whose).await?;
        let (answer, others_waited_for) = match turn {
            None => self.order(request, command, caller).await,
            Some(turn) => self.order_in_turn(turn, request, command, caller).await,
        };
        let (answer, held) = answer?;
        Ok(Proposed {
            answer,
            held,
            others_waited_for,
        })
    }

    /// Has it ordered here, or by the leader; and for how much others waited ([`Proposed::others_waited_for`]).
    async fn order<M: Mutation>(
        &self,
        request: M,
        command: kv::Request,
        caller: &Caller,
    ) -> (Result<(M::Answer, Option<Held>), Status>, u64) {
        let whose = caller.source.address();
        let held = Some(self.answers.none());
        let written = self.node.write_held(vec![command], Some(whose), held, None);
        let (mut written, held) = written.await;
        match written.pop().expect("one answer to one write") {
            Ok(Written {
                term,
                outcome,
                visited,
            }) => {
                let header = self.headers.in_term(term);
                let answer = writes::answer(&request, header, outcome);
                let answer = answer.map_err(|why| no_answer(M::METHOD, why));
                let others_waited_for = match self.gate.others_than(whose) {
                    true => visited as u64,
                    false => 0,
                };
                (answer.map(|answer| (answer, held)), others_waited_for)
            }
            Err(error) => {
                let is_elsewhere = self.node.other_leader().is_some();
                let forwarded = self.forward(error, caller, M::METHOD, request.framed());
                match forwarded.await {
                    Ok((answered, held)) => {
                        let answer = M::unframed(answered.answer).map_err(|_| {
                            Status::internal("the leader answered another question than was asked")
                        });
                        let answer = answer.map(|answer| (answer, held));
                        (answer, answered.others_waited_for)
                    }
                    Err(status) => {
                        let others_waited = is_elsewhere || self.gate.others_than(whose);
                        let cost = match may_have_cost(&status) && others_waited {
                            true => u64::MAX,
                            false => 0,
                        };
                        (Err(status), cost)
                    }
                }
            }
        }
    }

    /// The same in a turn, after which its client rests if others waited long for it. Whether that one stays or leaves: what is
    /// proposed is applied, and who leaves early would have any number of them applied.
    async fn order_in_turn<M: Mutation>(
        self: &Arc<Self>,
        turn: Turn,
        request: M,
        command: kv::Request,
        caller: &Caller,
    ) -> (Result<(M::Answer, Option<Held>), Status>, u64) {
        let (serving, caller) = (Arc::clone(self), caller.clone());
        let ordered = tokio::spawn(async move {
            let (answer, others_waited_for) = serving.order(request, command, &caller).await;
            // No longer than a request waits for its turn: who has one after the other is served.
            let longest = serving.limits.request_timeout() * 9 / 10;
            if let Some(rest) = rest_after(others_waited_for)
                && !serving.is_for_another(&caller).await
            {
                turn.rest(rest.min(longest));
            }
            (answer, others_waited_for)
        });
        let stopping = || Err(Status::unavailable("this member is shutting down"));
        ordered.await.unwrap_or_else(|_| (stopping(), 0))
    }

    /// Whether a member has passed it on, which has its client rest. Whoever says that it is a member has to have the
    /// address of one.
    async fn is_for_another(&self, caller: &Caller) -> bool {
        if caller.origin == Origin::Client {
            return false;
        }
        let Ok(membership) = self.node.membership() else {
            return false;
        };
        for member in membership.members.values() {
            let addresses = tokio::net::lookup_host(member.peer_address.as_str()).await;
            let address = caller.source.address();
            if addresses.is_ok_and(|mut all| all.any(|it| one_client(it.ip()) == address)) {
                return true;
            }
        }
        false
    }

    async fn turn_to_visit<M: Mutation>(
        &self,
        request: &M,
        source: &Arc<Source>,
    ) -> Result<Turn, Status> {
        // What waits is as large as a write may be.
        let waiting = self.gate.wait(request.encoded_len(), source);
        let _waiting = waiting.ok_or_else(|| {
            Status::resource_exhausted(
                "the writes of ranges that wait for their turn hold as many bytes as they may, or those of your address do; nothing was changed: send fewer at once, or smaller ones",
            )
        })?;
        let whose = Some(source.address());
        let turn = timeout(self.limits.request_timeout(), self.range_writes.take(whose));
        turn.await.map_err(|_| {
            let at_once = self.range_writes.limit();
            Status::unavailable(format!(
                "this member has {at_once} writes of ranges under way at a time, fewer for one address, and none for a while after one that visited {RANGE_WRITE_KEYS} keys or more while others waited; the turn of this one did not come in time, and nothing was changed: send fewer at once, or of smaller ranges, or try again"
            ))
        })
    }

    /// Has the leader answer a write that this member refused with `error`.
    pub(super) async fn forward(
        &self,
        error: RequestError,
        caller: &Caller,
        method: &'static str,
        call: Call,
    ) -> Result<(Answered, Option<Held>), Status> {
        let Caller { origin, until, .. } = *caller;
        let forwarded = self.forwarder.write(error, origin, method, call, until);
        let mut answered = forwarded.await?;
        let held = self.answers.hold(answered.answer.encoded_len());
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
        whose: Whose,
    ) -> Result<Proposed<M::Answer>, Status> {
        self.freshen(Consistency::Linearizable).await?;
        let patience = self.limits.request_timeout();
        let budget = self.answers.clone();
        let read = move |reader: &Reader<RocksStore>| {
            let outcome = reader.batch(&batch)?;
            // Counted where it is read: what is read may wait to be fetched from here.
            let held = outcome.as_ref().map(|it| budget.hold(it.pairs_bytes()));
            Ok(outcome.zip(held))
        };
        let read = self.aside.read(&self.node, whose, patience, read).await?;
        let (outcome, held) =
            read.ok_or_else(|| Status::internal("the batch changes something"))?;
        let held = held.ok_or_else(no_room)?;
        let answer = writes::answer(request, self.headers.now(), outcome);
        Ok(Proposed {
            answer: answer.map_err(|why| no_answer(M::METHOD, why))?,
            held: Some(held),
            others_waited_for: 0,
        })
    }

    /// What a delete returns is gathered while it is applied, by every member: it must not be large. Judged
    /// by what this member sees now, which is all that can be known before the delete has its place in the
    /// log.
    async fn check_returned(&self, ranges: Vec<KeyRange>, whose: Whose) -> Result<(), Status> {
        for keys in ranges {
            let query = RangeQuery {
                max_bytes: self.request_limits.max_range_bytes,
                ..RangeQuery::new(keys)
            };
            let found = self.read(query, whose).await;
            let (found, _held) = found.map_err(|status| unread(&status))?;
            if found.more {
                return Err(Status::invalid_argument(format!(
                    "prev_kv: the range holds more than {} bytes (--max-range-bytes); delete it in parts, or without prev_kv",
                    self.request_limits.max_range_bytes
                )));
            }
        }
        Ok(())
    }
}

/// How long is long enough after a write for whose visit of so many keys others waited: less than one in two hundred of their
/// calls waits for such a one. Those below [`RANGE_WRITE_KEYS`] are short enough.
fn rest_after(keys: u64) -> Option<Duration> {
    /// Visiting a key takes 0.4 µs, and deleting it three.
    const FOR_EACH_KEY: Duration = Duration::from_micros(200);
    let beyond = keys.checked_sub(RANGE_WRITE_KEYS as u64)?;
    Some(FOR_EACH_KEY * u32::try_from(beyond).unwrap_or(u32::MAX))
}

/// Whether a write that failed may have visited all that it may, or do so yet: it was beyond the bound, or nobody knows.
fn may_have_cost(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument | Code::DeadlineExceeded
    )
}

/// What the caller is told when the outcome of a write is no answer to it.
pub(super) fn no_answer(method: &str, why: NoAnswer) -> Status {
    if let NoAnswer::OfAnotherKind(outcome) = &why {
        // Not the outcome itself: it may hold users' values.
        let answered = kind(outcome);
        tracing::warn!(
            method,
            answered,
            "a call got the answer to another kind of call: a session used one sequence twice, or this is a bug"
        );
    }
    why.into()
}

/// The range that a delete was to return could not be read: the delete was not proposed, so nothing was changed.
fn unread(status: &Status) -> Status {
    match status.code() {
        Code::DeadlineExceeded => Status::failed_precondition(format!(
            "prev_kv: the range could not be read in time, and nothing was changed; delete it in parts, or without prev_kv ({})",
            status.message()
        )),
        code => Status::new(code, status.message()),
    }
}

/// Of which kind an answer is.
fn kind(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Put { .. } => "Put",
        Outcome::Delete { .. } => "Delete",
        Outcome::CompareAndSwap { .. } => "CompareAndSwap",
        Outcome::Batch { .. } => "Batch",
        Outcome::Compact { .. } => "Compact",
        Outcome::Trimmed(outcome) => kind(outcome),
        _ => "other",
    }
}
