//! Clients: each asks for one thing at a time, and what it asks and hears is taken down for the
//! checkers.
//!
//! What a client sends again, where and when is `dengine-client`'s own logic
//! (`dengine_client::policy`).

mod attempt;
mod operation;
mod ranges;
mod renewal;
mod session;

use dengine_checker::{Answer, Level, Recorder};
use dengine_client::policy::{End, Failure, Next, Sequencer};
use dengine_kv as kv;
use dengine_kv::{Command, KeyValue, Request};
use dengine_raft::Written;
use dengine_raft::replica::RequestError;
use dengine_types::{MemberId, Revision};

use super::member::ReadJob;
use super::queue::{MILLI, Nanos};
use super::random::Random;
use super::surroundings::{Event, Surroundings};
use super::world::Members;
use attempt::{InFlight, time};
use operation::{Habits, Memory};
use renewal::Renewal;

/// Something about a client.
pub(super) enum ClientEvent {
    /// It asks for the next thing.
    Next(u64),
    /// It asks for the same again.
    Again { client: u64, attempt: u64 },
    /// What it asked for arrives at a member.
    Arrive {
        client: u64,
        attempt: u64,
        member: MemberId,
        ask: Ask,
        deadline: Nanos,
    },
    /// An answer arrives.
    Answer {
        client: u64,
        attempt: u64,
        member: MemberId,
        outcome: Outcome,
    },
    /// It takes an attempt for lost.
    Lost { client: u64, attempt: u64 },
}

/// What a client asks a member for.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// Replicate this command.
    Write(Request),
    /// Read, at this level.
    Read(Level),
}

/// What a client wants done.
#[derive(Clone, Debug)]
pub(super) enum Want {
    Write(Command),
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

pub(super) struct Client {
    id: u64,
    random: Random,
    /// Counts its calls.
    calls: u64,
    /// Counts its attempts, over all calls: an answer belongs to one of them.
    attempts: u64,
    in_flight: Option<InFlight>,
    /// The place in the list of members where its calls begin: a connection that it keeps.
    lane: usize,
    memory: Memory,
    /// A key that it does not want to lose.
    renewal: Option<Renewal>,
    /// Whether its writes carry stamps.
    stamps: bool,
    session: Option<Sequencer>,
}

impl Client {
    pub(super) fn new(id: u64, stamps: bool, mut random: Random) -> Self {
        Self {
            stamps,
            session: None,
            id,
            lane: random.below(1 << 16) as usize,
            random,
            calls: 0,
            attempts: 0,
            in_flight: None,
            memory: Memory::default(),
            renewal: None,
        }
    }

    /// Asks for the next thing.
    pub(super) fn next(
        &mut self,
        sim: &mut Surroundings,
        recorder: &mut Recorder,
        members: &Members,
    ) {
        if self.stamps && self.session.is_none() {
            return self.open_session(sim, members);
        }
        self.calls += 1;
        let (client, number) = (self.id, self.calls);
        let load = sim.plan.load;
        let habits = Habits {
            keys: sim.plan.keys,
            writes: sim
                .load_wave
                .writes(sim.now, client, load.writes_of(client)),
            levels: load.levels,
            expiring: load.expiring,
        };
        let mut unique = format!("{client}.{number}");
        if let Some(bytes) = sim.plan.value_bytes.filter(|_| self.random.chance(250_000)) {
            unique = format!("{unique:~<width$}", width = bytes as usize);
        }
        let (call, want) = match self.renewal.take() {
            Some(renewal) => renewal.go_on(&mut self.random, unique, &mut self.renewal),
            None => self.memory.invent(&mut self.random, habits, unique),
        };
        if self.random.chance(50_000) {
            self.lane = self.random.below(1 << 16) as usize;
        }
        sim.note(format_args!("client {client} begins {call:?}"));
        sim.count("operations");
        let patience = self.random.between(1_000, 8_000) * MILLI;
        let stamp = match (&want, &mut self.session) {
            (Want::Write(_), Some(session)) => session.stamp(),
            _ => None,
        };
        let known = Some((recorder.call(client, call.clone(), sim.now), call));
        let in_flight = InFlight::new(known, want, stamp, self.lane, sim.now + patience);
        let target = in_flight.attempts.first();
        self.in_flight = Some(in_flight);
        self.attempt(sim, members, &target);
    }

    pub(super) fn again(&mut self, sim: &mut Surroundings, members: &Members, attempt: u64) {
        let target = self.in_flight.as_mut().filter(|_| self.attempts == attempt);
        if let Some(target) = target.and_then(|in_flight| in_flight.next.take()) {
            sim.count("attempts made again");
            self.attempt(sim, members, &target);
        }
    }

    /// Begins again: what it was told behind this revision may be lost, and ids of sessions be
    /// given out again. What it has asked for is never answered.
    pub(super) fn begin_anew(&mut self, sim: &mut Surroundings, revision: Revision) {
        self.memory.forget_behind(revision);
        self.renewal = None;
        self.session = None;
        self.attempts += 1;
        if self.in_flight.take().is_some() {
            self.rest(sim);
        }
    }

    /// Waits for a while before the next call.
    fn rest(&mut self, sim: &mut Surroundings) {
        let due = self
            .renewal
            .as_ref()
            .and_then(|it| it.due(&mut self.random));
        let delay = due.unwrap_or_else(|| sim.random.spread(sim.plan.think));
        sim.after(delay, Event::Client(ClientEvent::Next(self.id)));
    }

    /// What to read for an attempt, now that its member may.
    pub(super) fn read_job(&self, attempt: u64) -> Option<ReadJob> {
        let in_flight = self
            .in_flight
            .as_ref()
            .filter(|_| self.attempts == attempt)?;
        let Want::Read(level, keys) = &in_flight.want else {
            return None;
        };
        Some(ReadJob {
            client: self.id,
            attempt,
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
        attempt: u64,
        member: MemberId,
        outcome: &Outcome,
    ) {
        if !self.waits_for(attempt) {
            return;
        }
        if let Outcome::Written(Ok(written)) = outcome
            && let kv::Outcome::SessionOpened { session } = written.outcome
        {
            return self.on_session(sim, session);
        }
        let lost = Self::says_session_is_gone(outcome) || self.random.chance(2_000);
        let want = self.in_flight.as_ref().map(|it| &it.want);
        match operation::judge(outcome, want) {
            Ok(answer) => self.conclude(sim, recorder, member, answer),
            Err(failure) => self.fail(sim, recorder, member, &failure),
        }
        if lost && self.in_flight.is_none() {
            self.session = None;
        }
    }

    pub(super) fn on_lost(
        &mut self,
        sim: &mut Surroundings,
        recorder: &mut Recorder,
        attempt: u64,
    ) {
        if self.waits_for(attempt) {
            self.fail(sim, recorder, MemberId(0), &Failure::Lost);
        }
    }

    /// An attempt failed.
    fn fail(
        &mut self,
        sim: &mut Surroundings,
        recorder: &mut Recorder,
        member: MemberId,
        failure: &Failure,
    ) {
        let Some(in_flight) = &mut self.in_flight else {
            return;
        };
        let random = (self.random.next() >> 32) as u32;
        match in_flight.attempts.failed(failure, time(sim.now), random) {
            Next::Again { after, to } => {
                in_flight.next = Some(to);
                let (client, attempt) = (self.id, self.attempts);
                let event = ClientEvent::Again { client, attempt };
                sim.after(after.as_nanos() as Nanos, Event::Client(event));
            }
            Next::Stop(End::LastFailure) => self.conclude(sim, recorder, member, Answer::Refused),
            Next::Stop(End::UnknownOutcome) => {
                self.conclude(sim, recorder, member, Answer::Unknown);
            }
        }
    }

    /// The caller is told.
    fn conclude(
        &mut self,
        sim: &mut Surroundings,
        recorder: &mut Recorder,
        member: MemberId,
        answer: Answer,
    ) {
        let Some(in_flight) = self.in_flight.take() else {
            return;
        };
        sim.note(format_args!(
            "client {} ends: {answer:?}, by {member}",
            self.id
        ));
        if let (Some(stamp), Some(session)) = (in_flight.stamp, &mut self.session) {
            session.end(stamp.sequence);
        }
        let Some((id, call)) = in_flight.known else {
            return self.rest(sim);
        };
        self.memory.learn(&call, &answer);
        if self.renewal.is_none() && self.random.chance(500_000) {
            self.renewal = Renewal::of(&in_flight.want, &answer);
        }
        match answer {
            Answer::Unknown => sim.count("operations with an unknown outcome"),
            Answer::Refused => {
                sim.count("operations refused");
                recorder.answer(id, answer, member.0, sim.now);
            }
            _ => recorder.answer(id, answer, member.0, sim.now),
        }
        self.rest(sim);
    }
}

/// Sends an answer to a client. It may be lost.
pub(super) fn reply(
    sim: &mut Surroundings,
    member: MemberId,
    (client, attempt): (u64, u64),
    outcome: Outcome,
) {
    if sim.random.chance(sim.plan.weather.loss) {
        return;
    }
    let delay = sim.random.spread(sim.plan.weather.latency);
    let event = ClientEvent::Answer {
        client,
        attempt,
        member,
        outcome,
    };
    sim.after(delay, Event::Client(event));
}
