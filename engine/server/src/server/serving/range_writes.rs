//! Writes that visit ranges: every other write waits while one is applied, so they take turns, and
//! an address whose write delayed others for long has to pause before its next one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dengine_kv as kv;
use dengine_kv::CommandVersion;
use dengine_protocol::checks::Mutation;
use dengine_protocol::checks::status::{read_status, refusal_status};
use futures::future::join_all;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::Status;

use super::{Caller, GONE_KEYS_MAX, RANGE_WRITE_KEYS, Serving};
use crate::connections::{Source, one_client};
use crate::node::answers::Held;
use crate::server::aside::Waiting;
use crate::server::forward::Origin;
use crate::server::turns::Turn;

/// For the addresses of members, by their names.
const LOOK_UP_PATIENCE: Duration = Duration::from_secs(1);

/// What a write cost those who had to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct Cost {
    /// Keys that its ranges visited, or KiB of them if these are more.
    pub(in crate::server) visited: u64,
    /// Whether there was anybody else, as far as it is known here.
    pub(in crate::server) others_waited: bool,
}

/// What became of one that was ordered, and what it cost.
type Ordered<T> = (Result<(T, Option<Held>), Status>, Cost);

impl Cost {
    pub(in crate::server) const NONE: Self = Self {
        visited: 0,
        others_waited: false,
    };

    /// How long is long enough after it: less than one in two hundred calls of others waits for
    /// such a write. One that visits fewer than [`RANGE_WRITE_KEYS`] is short enough.
    fn rest(self) -> Option<Duration> {
        /// Visiting a key takes 0.4 µs, and deleting it three.
        const FOR_EACH_KEY: Duration = Duration::from_micros(200);
        let beyond = self.visited.checked_sub(RANGE_WRITE_KEYS as u64)?;
        let rest = FOR_EACH_KEY * u32::try_from(beyond).unwrap_or(u32::MAX);
        self.others_waited.then_some(rest)
    }
}

impl Serving {
    /// Waits for the turn of a write of so many bytes.
    async fn turn_to_visit(&self, bytes: usize, source: &Arc<Source>) -> Result<Turn, Status> {
        // What waits is as large as a write may be.
        let waiting = self.gate.wait(bytes, source);
        let _waiting = waiting.ok_or_else(|| {
            Status::resource_exhausted(
                "the writes of ranges that wait for their turn hold as many bytes as they may, or \
                 those of your address do; nothing was changed: send fewer at once, or smaller \
                 ones",
            )
        })?;
        let whose = Some(source.address());
        let turn = timeout(self.limits.request_timeout(), self.range_writes.take(whose));
        turn.await.map_err(|_| {
            let at_once = self.range_writes.limit();
            Status::unavailable(format!(
                "this member has {at_once} writes of ranges under way at a time, fewer for one \
                 address, and none for a while after one that visited {RANGE_WRITE_KEYS} keys or \
                 more while others waited; the turn of this one did not come in time, and nothing \
                 was changed: send fewer at once, or of smaller ranges, or try again"
            ))
        })
    }

    /// How many keys its ranges hold that are gone and have to be stepped over, as far as this
    /// member is the one to order it. Refuses what no bound of commands refuses when it is applied:
    /// too many of them, and too many of all keys while a member has not announced that it reads
    /// commands with a bound. One whose ranges hold more keys than any command may visit is refused
    /// here as well: it would take long only to learn how many.
    ///
    /// Not [aside](crate::server::aside): there it would wait behind every long read, with its turn
    /// in hand.
    async fn survey(&self, command: &kv::Command) -> Result<u64, Status> {
        let status = self.node.status();
        if self.node.other_leader().is_some() {
            return Ok(0);
        }
        let (_waiting, reader) = Waiting::with(self.reader()?);
        let ranges: Vec<_> = command.ranges().cloned().collect();
        let look = move || reader.survey(&ranges, GONE_KEYS_MAX);
        let looked = timeout(
            self.limits.request_timeout(),
            tokio::task::spawn_blocking(look),
        );
        let found = match looked.await {
            Ok(Ok(found)) => found.map_err(|error| read_status(&error))?,
            Ok(Err(_)) => return Err(Status::unavailable("this member is shutting down")),
            Err(_) => return Err(too_many_gone()),
        };
        if found.gone > GONE_KEYS_MAX {
            return Err(too_many_gone());
        }
        let fits = match status.command_version < Some(CommandVersion::V3) {
            true => found.check(),
            false => found.check_either(),
        };
        fits.map_err(|it| refusal_status(&it))?;
        Ok(found.gone as u64)
    }

    /// Has it [ordered](Self::order) in a turn, after which its client rests if others waited long
    /// for it. Whether that one stays or leaves: what is proposed is applied, and who leaves early
    /// would have any number of them applied. On threads of all: others want the turn back soon,
    /// and one that is given must not wait for threads that are nicer.
    ///
    /// # Errors
    /// Its turn did not come, or it would take too long; nothing was changed.
    pub(in crate::server) async fn order_in_turn<M: Mutation>(
        self: &Arc<Self>,
        request: M,
        command: kv::Request,
        caller: &Caller,
    ) -> Result<Ordered<M::Answer>, Status> {
        let serving = Arc::clone(self);
        let caller = Caller {
            // What it costs is known when it is answered, however soon its client leaves.
            until: None,
            ..caller.clone()
        };
        let (mut answer, answered) = oneshot::channel();
        self.threads.spawn(async move {
            let bytes = request.encoded_len();
            let turn = tokio::select! {
                turn = serving.turn_to_visit(bytes, &caller.source) => turn,
                // A caller that left before its turn wants it no more.
                () = answer.closed() => return,
            };
            let turn = match turn {
                Ok(turn) => turn,
                Err(late) => {
                    let _ = answer.send(Err(late));
                    return;
                }
            };
            let ordered = serving.order_surveyed(request, command, &caller).await;
            let (ordered, cost) = match ordered {
                Ok(ordered) => {
                    let cost = ordered.1;
                    (Ok(ordered), cost)
                }
                Err((refused, cost)) => (Err(refused), cost),
            };
            // No longer than a request waits for its turn: a client with one after the other is
            // served.
            let longest = serving.limits.request_timeout() * 9 / 10;
            let rest = cost.rest().map(|rest| rest.min(longest));
            match (rest, caller.origin) {
                // Before it hears of the answer: its next write would come sooner than the rest.
                (Some(rest), Origin::Client) => {
                    turn.rest(rest);
                    // A caller that left needs no answer, but rests.
                    let _ = answer.send(ordered);
                }
                // Members are looked up, for which no answer waits.
                (Some(rest), Origin::Member) => {
                    let _ = answer.send(ordered);
                    if !serving.is_for_another(&caller).await {
                        turn.rest(rest);
                    }
                }
                (None, _) => {
                    let _ = answer.send(ordered);
                }
            }
        });
        let ended = |_| {
            let words = "this member is shutting down: the write may or may not take effect";
            Err(Status::deadline_exceeded(words))
        };
        answered.await.unwrap_or_else(ended)
    }

    /// Has it ordered, unless it would visit too much.
    async fn order_surveyed<M: Mutation>(
        &self,
        request: M,
        command: kv::Request,
        caller: &Caller,
    ) -> Result<Ordered<M::Answer>, (Status, Cost)> {
        let begun = Instant::now();
        let gone = self.survey(&command.command).await;
        let gone = gone.map_err(|refused| (refused, self.cost_of_survey(caller, begun)))?;
        let (answer, mut cost) = self.order(request, command, caller).await;
        cost.visited = cost.visited.saturating_add(gone);
        Ok((answer, cost))
    }

    /// What one cost that was not ordered, for it would have visited too much: a survey of as much.
    fn cost_of_survey(&self, caller: &Caller, begun: Instant) -> Cost {
        Cost {
            visited: GONE_KEYS_MAX as u64,
            others_waited: self.gate.others_than(caller.source.address(), begun),
        }
    }

    /// Whether a member has passed it on, which has its client rest. A peer that says it is a
    /// member has to have the address of one, as far as these are known.
    async fn is_for_another(&self, caller: &Caller) -> bool {
        let Ok(membership) = self.node.membership() else {
            return false;
        };
        let address = caller.source.address();
        let looks = membership.members.values().map(|member| async {
            let addresses = tokio::net::lookup_host(member.peer_address.as_str()).await;
            // One that can't be looked up may be this one.
            addresses.map_or(true, |mut all| all.any(|it| one_client(it.ip()) == address))
        });
        let found = timeout(LOOK_UP_PATIENCE, join_all(looks)).await;
        found.map_or(true, |found| found.contains(&true))
    }
}

fn too_many_gone() -> Status {
    Status::resource_exhausted(format!(
        "the ranges hold more than {GONE_KEYS_MAX} deleted keys that are still being removed, and \
         every other write would wait while they are stepped over; nothing was changed: try again \
         later, name smaller ranges, or have all of the state merged (Defragment of etcd's API)"
    ))
}
