//! Clients: each asks for one thing at a time, and what it asks and hears is taken down for the checkers.

mod operation;

use super::member::ReadJob;
use super::queue::{MILLI, Nanos};
use super::random::Random;
use super::surroundings::{Event, Surroundings};
use crate::check::{Answer, Call, CallId, Level, Recorder};
use crate::kv::KeyValue;
use crate::replica::{RequestError, Written};
use crate::types::{MemberId, Revision};
use bytes::Bytes;
use operation::Memory;

/// Something about a client.
pub(super) enum ClientEvent {
    /// It asks for the next thing.
    Next(u64),
    /// What it asked for arrives at a member.
    Arrive {
        client: u64,
        call: u64,
        member: MemberId,
        ask: Ask,
    },
    /// An answer arrives.
    Answer {
        client: u64,
        call: u64,
        member: MemberId,
        outcome: Outcome,
    },
    /// It waits no longer.
    GiveUp { client: u64, call: u64 },
}

/// What a client asks a member for.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// Replicate this command.
    Write(Bytes),
    /// Read these keys.
    Read(Level, Vec<String>),
}

/// What a member answers.
#[derive(Debug)]
pub(super) enum Outcome {
    Written(Result<Written, RequestError>),
    Read(Revision, Vec<Option<KeyValue>>),
    /// A read was not served.
    ReadRefused(RequestError),
    /// Nobody there.
    Unreachable,
}

struct InFlight {
    id: CallId,
    call: Call,
    ask: Ask,
    deadline: Nanos,
}

pub(super) struct Client {
    id: u64,
    random: Random,
    /// Counts its calls.
    calls: u64,
    in_flight: Option<InFlight>,
    target: Option<MemberId>,
    memory: Memory,
}

impl Client {
    pub(super) fn new(id: u64, random: Random) -> Self {
        Self {
            id,
            random,
            calls: 0,
            in_flight: None,
            target: None,
            memory: Memory::default(),
        }
    }

    /// Asks for the next thing, of one of `members`.
    pub(super) fn next(&mut self, sim: &mut Surroundings, recorder: &mut Recorder, members: &[MemberId]) {
        self.calls += 1;
        let (client, number) = (self.id, self.calls);
        let unique = format!("{client}.{number}");
        let (call, ask) = self.memory.invent(&mut self.random, sim.plan.keys, unique);
        let hint = self.target.filter(|target| members.contains(target));
        let stay = !self.random.chance(50_000);
        let target = hint.filter(|_| stay).or_else(|| self.random.pick(members).copied());
        let Some(member) = target else {
            return self.rest(sim);
        };
        self.target = Some(member);
        sim.note(format_args!("client {client} asks {member} for {call:?}"));
        sim.count("operations");
        let deadline = sim.now + self.random.between(500, 3_000) * MILLI;
        self.in_flight = Some(InFlight {
            id: recorder.call(client, call.clone(), sim.now),
            call,
            ask: ask.clone(),
            deadline,
        });
        if !sim.random.chance(sim.plan.weather.loss) {
            let delay = sim.random.spread(sim.plan.weather.latency);
            let arrive = ClientEvent::Arrive {
                client,
                call: number,
                member,
                ask,
            };
            sim.after(delay, Event::Client(arrive));
        }
        let give_up = ClientEvent::GiveUp {
            client,
            call: number,
        };
        sim.queue.push(deadline, Event::Client(give_up));
    }

    /// Waits for a while before the next call.
    fn rest(&mut self, sim: &mut Surroundings) {
        let delay = sim.random.spread(sim.plan.think);
        sim.after(delay, Event::Client(ClientEvent::Next(self.id)));
    }

    /// The call that this number names, if the client still waits for it: its deadline and, if it reads, what.
    pub(super) fn waits_for(&self, call: u64) -> Option<Nanos> {
        let waiting = self.in_flight.as_ref().filter(|_| self.calls == call);
        waiting.map(|in_flight| in_flight.deadline)
    }

    /// What to read for a call, now that its member may.
    pub(super) fn read_job(&self, call: u64) -> Option<ReadJob> {
        let in_flight = self.in_flight.as_ref().filter(|_| self.calls == call)?;
        let Ask::Read(level, keys) = &in_flight.ask else {
            return None;
        };
        Some(ReadJob {
            client: self.id,
            call,
            keys: keys.clone(),
            after: match level {
                Level::Session { after } => Revision(*after),
                Level::Linearizable | Level::Lease | Level::Eventual => Revision(0),
            },
            deadline: in_flight.deadline,
        })
    }

    /// Takes an answer in, if it is the one that the client waits for.
    pub(super) fn on_answer(
        &mut self,
        sim: &mut Surroundings,
        recorder: &mut Recorder,
        call: u64,
        member: MemberId,
        outcome: &Outcome,
    ) {
        let Some(in_flight) = self.in_flight.take_if(|_| self.calls == call) else {
            return;
        };
        let answer = operation::answer(&in_flight.call, outcome);
        sim.note(format_args!("client {} hears from {member}: {answer:?}", self.id));
        self.memory.learn(&in_flight.call, &answer);
        self.choose_target(outcome);
        if answer == Answer::Unknown {
            sim.count("operations with an unknown outcome");
        } else {
            recorder.answer(in_flight.id, answer, member.0, sim.now);
        }
        self.rest(sim);
    }

    pub(super) fn on_give_up(&mut self, sim: &mut Surroundings, call: u64) {
        if self.calls == call && self.in_flight.take().is_some() {
            sim.note(format_args!("client {} gives up", self.id));
            sim.count("operations with an unknown outcome");
            self.target = None;
            self.rest(sim);
        }
    }

    /// Whom to ask next.
    fn choose_target(&mut self, outcome: &Outcome) {
        let error = match outcome {
            Outcome::Written(Err(error)) | Outcome::ReadRefused(error) => error,
            Outcome::Unreachable => return self.target = None,
            Outcome::Written(Ok(_)) | Outcome::Read(..) => return,
        };
        self.target = match error {
            RequestError::NotLeader { leader } => leader.as_ref().map(|leader| leader.id),
            _ => None,
        };
    }
}

/// Sends an answer to a client. It may be lost.
pub(super) fn reply(
    sim: &mut Surroundings,
    member: MemberId,
    (client, call): (u64, u64),
    outcome: Outcome,
) {
    if sim.random.chance(sim.plan.weather.loss) {
        return;
    }
    let delay = sim.random.spread(sim.plan.weather.latency);
    let event = ClientEvent::Answer {
        client,
        call,
        member,
        outcome,
    };
    sim.after(delay, Event::Client(event));
}
