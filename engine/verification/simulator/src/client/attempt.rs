//! One attempt after the other, until a call has an answer.

use std::time::Duration;

use dengine_checker::{Call, CallId};
use dengine_client::policy::{Attempts, Operation, RetryPolicy, Sequencer, Stamp, Target};
use dengine_kv::{Request, SessionStamp};
use dengine_types::{MemberId, SessionId};

use super::{Ask, Client, ClientEvent, Want};
use crate::member::Member;
use crate::queue::{MILLI, Nanos};
use crate::surroundings::{Event, Surroundings};
use crate::world::Members;

/// A call that has no answer yet.
pub(super) struct InFlight {
    /// As the history knows it, if it does.
    pub(super) known: Option<(CallId, Call)>,
    pub(super) want: Want,
    pub(super) stamp: Option<Stamp>,
    pub(super) deadline: Nanos,
    pub(super) attempts: Attempts,
    /// Where the next attempt goes, while the client pauses before it.
    pub(super) next: Option<Target>,
}

impl InFlight {
    pub(super) fn new(
        known: Option<(CallId, Call)>,
        want: Want,
        stamp: Option<Stamp>,
        lane: usize,
        deadline: Nanos,
    ) -> Self {
        let operation = match want {
            Want::Write(_) if stamp.is_some() => Operation::Once,
            Want::Write(_) => Operation::Write,
            Want::Read(..) => Operation::Read,
        };
        Self {
            known,
            want,
            stamp,
            deadline,
            attempts: Attempts::new(RetryPolicy::STANDARD, operation, lane, time(deadline)),
            next: None,
        }
    }

    /// As it is sent: the same each time, but for what is acknowledged by then.
    fn ask(&self, acknowledged: u64) -> Ask {
        match &self.want {
            Want::Read(level, _) => Ask::Read(*level),
            Want::Write(command) => {
                let session = self.stamp.map(|stamp| SessionStamp {
                    id: SessionId(stamp.session_id),
                    sequence: stamp.sequence,
                    acknowledged,
                });
                let command = command.clone();
                Ask::Write(Request { session, command })
            }
        }
    }
}

/// The client's clock.
pub(super) fn time(now: Nanos) -> Duration {
    Duration::from_nanos(now)
}

impl Client {
    /// Sends what is in flight to `target`.
    pub(super) fn attempt(&mut self, sim: &mut Surroundings, members: &Members, target: &Target) {
        self.attempts += 1;
        let (client, attempt) = (self.id, self.attempts);
        let Some(in_flight) = &self.in_flight else {
            return;
        };
        // A stream may break, or nothing be heard of it until the caller has no more time.
        let lost_at = match self.random.chance(500_000) {
            true => (sim.now + self.random.between(300, 2_000) * MILLI).min(in_flight.deadline),
            false => in_flight.deadline,
        };
        let lost = ClientEvent::Lost { client, attempt };
        sim.queue.push(lost_at, Event::Client(lost));
        let Some(member) = choose(members, target) else {
            return;
        };
        sim.note(format_args!(
            "client {client} asks {member}, attempt {attempt}"
        ));
        let acknowledged = self.session.as_ref().map_or(0, Sequencer::acknowledged);
        if !sim.random.chance(sim.plan.weather.loss) {
            let delay = sim.random.spread(sim.plan.weather.latency);
            let arrive = ClientEvent::Arrive {
                client,
                attempt,
                member,
                ask: in_flight.ask(acknowledged),
                deadline: in_flight.deadline,
            };
            sim.after(delay, Event::Client(arrive));
        }
    }

    /// Whether the answer to this attempt would be heard.
    pub(super) fn waits_for(&self, attempt: u64) -> bool {
        let waits = |in_flight: &InFlight| in_flight.next.is_none();
        self.attempts == attempt && self.in_flight.as_ref().is_some_and(waits)
    }
}

/// The members are the client's connections.
fn choose(members: &Members, target: &Target) -> Option<MemberId> {
    let lane = match target {
        Target::From(lane) => *lane,
        Target::Leader { address, otherwise } => {
            let named = |member: &&Member| member.record.client_address == *address;
            match members.values().find(named) {
                Some(member) => return Some(member.id),
                None => *otherwise,
            }
        }
    };
    members.keys().nth(lane % members.len().max(1)).copied()
}
