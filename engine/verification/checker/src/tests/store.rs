//! A store that takes one operation after the other, and clients whose calls overlap: its histories
//! are right by construction. A fault makes it break exactly one guarantee, visibly.

use std::collections::BTreeMap;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

use crate::{Answer, BatchStep, Call, CallId, Expected, History, Level, Recorder, Reply, Seen};

const KEYS: u64 = 4;
const CLIENTS: u64 = 6;

/// How the store breaks a guarantee, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// A strong read sees the state before a write that was acknowledged before it began.
    StaleRead,
    /// A write is acknowledged, but was not done.
    LostWrite,
    /// A write is done twice.
    AppliedTwice,
    /// A compare-and-swap succeeds though it must not.
    BlindSwap,
    /// A read returns what no client wrote.
    InventedValue,
    /// A session read is older than what its client saw.
    SessionBack,
    /// Half of a batch is done.
    HalfBatch,
    /// A read of two keys sees each at another revision.
    TornRead,
}

/// A history, and whether the fault happened.
pub(super) struct Run {
    pub(super) history: History,
    pub(super) faulty: bool,
}

/// Lets the clients make `calls` calls; everything follows from `seed`.
pub(super) fn run(seed: u64, calls: usize, fault: Fault) -> Run {
    let mut world = World {
        random: Xoshiro256PlusPlus::seed_from_u64(seed),
        recorder: Recorder::new(Some(1)),
        states: vec![BTreeMap::new(), BTreeMap::new()],
        clients: (0..CLIENTS).map(|_| Client::default()).collect(),
        fault,
        fault_from: calls / 3,
        faulty: false,
        values: 0,
        expiring: BTreeMap::new(),
    };
    while world.recorder.len() < calls {
        let client = world.below(CLIENTS) as usize;
        world.turn(client);
    }
    for client in 0..CLIENTS as usize {
        if world.clients[client].must_hear {
            world.answer(client);
        }
    }
    world.read_everything();
    Run {
        history: world.recorder.into_history(),
        faulty: world.faulty,
    }
}

type State = BTreeMap<String, Seen>;

/// What a client is doing.
#[derive(Default)]
struct Client {
    call: Option<(CallId, Call)>,
    /// Set once it took effect.
    answer: Option<Answer>,
    /// The highest revision that any client knew when it called.
    floor: u64,
    /// What its session has seen.
    seen: u64,
    /// Its answer shows the fault.
    must_hear: bool,
}

struct World {
    random: Xoshiro256PlusPlus,
    recorder: Recorder,
    /// The state after each revision.
    states: Vec<State>,
    clients: Vec<Client>,
    fault: Fault,
    fault_from: usize,
    faulty: bool,
    values: u64,
    /// The revisions of pairs that may expire. There are none in broken histories: what is missing
    /// from them must have no excuse.
    expiring: BTreeMap<String, u64>,
}

impl World {
    fn revision(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.random_range(0..bound)
    }

    /// A client takes its next step: it calls, is served, or receives the answer.
    fn turn(&mut self, client: usize) {
        if self.fault == Fault::None && self.below(16) == 0 {
            self.expire();
        }
        match (&self.clients[client].call, &self.clients[client].answer) {
            (None, _) => self.call(client),
            (Some(_), None) => self.serve(client),
            (Some(_), Some(_)) => self.answer(client),
        }
    }

    fn call(&mut self, client: usize) {
        let call = self.invent(client);
        let id = self.recorder.call(client as u64, call.clone(), 0);
        self.clients[client].call = Some((id, call));
        self.clients[client].floor = self.revision_told();
    }

    /// The highest revision in an answer so far.
    fn revision_told(&self) -> u64 {
        let answers = self.recorder.history().operations.iter();
        answers
            .filter_map(|it| it.answer.revision())
            .max()
            .unwrap_or(1)
    }

    fn answer(&mut self, client: usize) {
        let (id, call) = self.clients[client].call.take().unwrap();
        let answer = self.clients[client].answer.take().unwrap();
        let must_hear = std::mem::take(&mut self.clients[client].must_hear);
        if !must_hear && self.below(20) == 0 {
            return; // Lost on the way: the client never hears.
        }
        let is_session = matches!(
            call,
            Call::Read {
                level: Level::Session { .. },
                ..
            }
        );
        let revision = answer.revision().unwrap_or(0);
        if is_session || !matches!(call, Call::Read { .. }) {
            self.clients[client].seen = self.clients[client].seen.max(revision);
        }
        self.recorder.answer(id, answer, 0, 0);
    }

    fn serve(&mut self, client: usize) {
        if self.below(30) == 0 {
            // It never arrives; the client may or may not receive an error.
            let (id, _) = self.clients[client].call.take().unwrap();
            if self.below(2) == 0 {
                self.recorder.answer(id, Answer::Refused, 0, 0);
            }
            return;
        }
        let (_, call) = self.clients[client].call.clone().unwrap();
        let ripe = !self.faulty && self.recorder.len() >= self.fault_from;
        let answer = match (&call, ripe) {
            (Call::Read { keys, level }, ripe) => self.read(client, keys, *level, ripe),
            (_, ripe) => self.write(&call, ripe),
        };
        self.clients[client].answer = Some(answer);
        if ripe && self.faulty {
            self.clients[client].must_hear = true;
            self.read_everything();
        }
    }

    fn key(&mut self) -> String {
        format!("k{}", self.below(KEYS))
    }

    fn value(&mut self) -> String {
        self.values += 1;
        format!("v{}", self.values)
    }

    fn invent(&mut self, client: usize) -> Call {
        let key = self.key();
        match self.below(10) {
            0..=2 => Call::Put {
                key,
                value: self.value(),
                expires: self.expires(),
            },
            3 => Call::Delete { key },
            4 => Call::CompareAndSwap {
                expected: self.expected(&key),
                value: self.value(),
                key,
                expires: self.expires(),
            },
            5 => self.batch(),
            6 => Call::Read {
                keys: vec![key, self.key()],
                level: Level::Linearizable,
            },
            7 => Call::Read {
                keys: vec![key],
                level: Level::Lease,
            },
            8 => Call::Read {
                keys: vec![key],
                level: Level::Session {
                    after: self.clients[client].seen,
                },
            },
            _ => Call::Read {
                keys: vec![key],
                level: Level::Eventual,
            },
        }
    }

    /// What a key now is, or was some revisions ago.
    fn expected(&mut self, key: &str) -> Expected {
        let back = self.below(3).min(self.revision() - 1);
        let by_value = self.below(2) == 0;
        let state = &self.states[(self.revision() - back) as usize];
        match (state.get(key), by_value) {
            (Some(seen), true) => Expected::Value(seen.value.clone()),
            (Some(seen), _) => Expected::ModRevision(seen.mod_revision),
            (None, _) => Expected::ModRevision(0),
        }
    }

    fn batch(&mut self) -> Call {
        let (one, other) = (self.key(), self.key());
        let compared = self.key();
        let expected = self.expected(&compared);
        let mut then = vec![
            BatchStep::Get(one.clone()),
            BatchStep::Put(one.clone(), self.value()),
        ];
        if other != one {
            let value = self.value();
            then.push(put(&other, &value, self.expires()));
        }
        Call::Batch {
            compares: vec![(compared, expected)],
            then,
            otherwise: vec![BatchStep::Get(one.clone()), BatchStep::Delete(one)],
        }
    }

    fn read(&mut self, client: usize, keys: &[String], level: Level, ripe: bool) -> Answer {
        let now = self.revision();
        let floor = match level {
            Level::Eventual => 1,
            Level::Session { .. } => self.clients[client].seen.max(1),
            Level::Linearizable | Level::Lease => now,
        };
        let mut revision = now - self.below(now - floor + 1);
        let told = self.clients[client].floor;
        let breaks = match (self.fault, level) {
            (Fault::StaleRead, Level::Linearizable | Level::Lease) => told > 1,
            (Fault::SessionBack, Level::Session { .. }) => floor > 1,
            _ => false,
        };
        if ripe && breaks {
            self.faulty = true;
            revision = if self.fault == Fault::StaleRead {
                told
            } else {
                floor
            } - 1;
        }
        let mut found: Vec<_> = self.find(keys, revision);
        if ripe && self.fault == Fault::TornRead && keys.len() == 2 && revision > 3 {
            let before = self.find(keys, revision - 3);
            self.faulty = before[1] != found[1] && keys[0] != keys[1];
            found[1] = before[1].clone();
        }
        if let (true, Fault::InventedValue, Some(Some(seen))) =
            (ripe, self.fault, found.first_mut())
        {
            self.faulty = true;
            "invented".clone_into(&mut seen.value);
        }
        Answer::Read { revision, found }
    }

    fn find(&self, keys: &[String], revision: u64) -> Vec<Option<Seen>> {
        let state = &self.states[revision as usize];
        keys.iter().map(|key| state.get(key).cloned()).collect()
    }

    fn write(&mut self, call: &Call, ripe: bool) -> Answer {
        let before = self.revision();
        let blind = ripe && self.fault == Fault::BlindSwap;
        let answer = self.apply(call, blind);
        if ripe && self.revision() > before {
            self.spoil(call, &answer);
        }
        answer
    }

    /// Goes wrong after a write, if that is the fault.
    fn spoil(&mut self, call: &Call, answer: &Answer) {
        let last = self.states.len() - 1;
        match (self.fault, call, answer) {
            (Fault::LostWrite, ..) => {
                self.faulty = true;
                self.states[last] = self.states[last - 1].clone();
            }
            // For other calls, the second time could be explained by a lost call.
            (Fault::AppliedTwice, Call::Put { .. } | Call::CompareAndSwap { .. }, _) => {
                self.apply(call, true);
                self.faulty = self.states.len() - 1 > last;
            }
            (
                Fault::HalfBatch,
                Call::Batch { then, .. },
                Answer::Batch {
                    succeeded: true, ..
                },
            ) => {
                if let Some(BatchStep::Put(key, _)) = then.get(2) {
                    self.faulty = true;
                    match self.states[last - 1].get(key).cloned() {
                        Some(seen) => self.states[last].insert(key.clone(), seen),
                        None => self.states[last].remove(key),
                    };
                }
            }
            _ => {}
        }
    }

    fn apply(&mut self, call: &Call, blind: bool) -> Answer {
        match call {
            Call::Put {
                key,
                value,
                expires,
            } => {
                let (revision, _) = self.steps(&[put(key, value, *expires)]);
                Answer::Put { revision }
            }
            Call::Delete { key } => {
                let (revision, replies) = self.steps(&[BatchStep::Delete(key.clone())]);
                let deleted = replies == [Reply::Delete(true)];
                Answer::Delete { revision, deleted }
            }
            Call::CompareAndSwap {
                key,
                expected,
                value,
                expires,
            } => {
                let previous = self.states[self.revision() as usize].get(key).cloned();
                let holds = self.holds(key, expected);
                self.faulty |= blind && !holds && self.fault == Fault::BlindSwap;
                let succeeded = holds || blind;
                let put = [put(key, value, *expires)];
                let (revision, _) = self.steps(if succeeded { &put } else { &[] });
                Answer::CompareAndSwap {
                    revision,
                    succeeded,
                    previous,
                }
            }
            Call::Batch {
                compares,
                then,
                otherwise,
            } => {
                let succeeded = compares.iter().all(|(key, it)| self.holds(key, it));
                let steps = if succeeded { then } else { otherwise };
                let (revision, replies) = self.steps(steps);
                Answer::Batch {
                    revision,
                    succeeded,
                    replies,
                }
            }
            Call::Read { .. } => unreachable!("reads are served elsewhere"),
        }
    }

    fn holds(&self, key: &str, expected: &Expected) -> bool {
        let now = self.states[self.revision() as usize].get(key);
        match expected {
            Expected::ModRevision(it) => now.map_or(0, |now| now.mod_revision) == *it,
            Expected::Value(it) => now.is_some_and(|now| now.value == *it),
        }
    }

    fn steps(&mut self, steps: &[BatchStep]) -> (u64, Vec<Reply>) {
        let mut state = self.states[self.revision() as usize].clone();
        let revision = self.revision() + 1;
        let mut changed = false;
        let mut replies = Vec::new();
        for step in steps {
            replies.push(match step {
                BatchStep::Get(key) => Reply::Get(state.get(key).cloned()),
                BatchStep::Delete(key) => {
                    let deleted = state.remove(key).is_some();
                    changed |= deleted;
                    Reply::Delete(deleted)
                }
                BatchStep::Put(key, value) | BatchStep::PutExpiring(key, value) => {
                    changed = true;
                    let before = state.get(key);
                    let seen = Seen {
                        value: value.clone(),
                        create_revision: before.map_or(revision, |it| it.create_revision),
                        mod_revision: revision,
                        version: before.map_or(1, |it| it.version + 1),
                    };
                    state.insert(key.clone(), seen);
                    if matches!(step, BatchStep::PutExpiring(..)) {
                        self.expiring.insert(key.clone(), revision);
                    }
                    Reply::Put
                }
            });
        }
        if changed {
            self.states.push(state);
        }
        (self.revision(), replies)
    }

    /// Whether what a client puts may expire.
    fn expires(&mut self) -> bool {
        self.fault == Fault::None && self.below(3) == 0
    }

    /// One or more pairs expire at one revision, if any can.
    fn expire(&mut self) {
        let mut state = self.states[self.revision() as usize].clone();
        let before = state.len();
        while let Some((key, put_at)) = self.expiring.pop_first() {
            if state.get(&key).is_some_and(|it| it.mod_revision == put_at) {
                state.remove(&key);
            }
            if state.len() < before && self.below(2) == 0 {
                break;
            }
        }
        if state.len() < before {
            self.states.push(state);
        }
    }

    /// Reads everything at the end, so that no fault stays unseen.
    fn read_everything(&mut self) {
        let keys: Vec<_> = (0..KEYS).map(|key| format!("k{key}")).collect();
        let call = Call::Read {
            keys: keys.clone(),
            level: Level::Linearizable,
        };
        let id = self.recorder.call(CLIENTS, call, 0);
        let revision = self.revision();
        let found = self.find(&keys, revision);
        self.recorder
            .answer(id, Answer::Read { revision, found }, 0, 0);
    }
}

fn put(key: &str, value: &str, expires: bool) -> BatchStep {
    let (key, value) = (key.to_owned(), value.to_owned());
    match expires {
        true => BatchStep::PutExpiring(key, value),
        false => BatchStep::Put(key, value),
    }
}
