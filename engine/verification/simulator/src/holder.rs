//! Holders of leases: each has one lease at a time, attaches keys of its own to it, keeps it alive
//! for a while and then forgets or revokes it.
//!
//! It asks whoever it takes for the leader, one that was deposed among them. Not every run has
//! holders, and those that have decide it apart from what they draw besides, so that the others are
//! what they would be if there were none.

use bytes::Bytes;
use dengine_kv as kv;
use dengine_kv::{Command, CommandVersion, Put, PutLease};
use dengine_raft::replica::RequestError;
use dengine_raft::{EncodedCommand, LeaseAnswer, LeaseAsk, Write, Written};
use dengine_types::{LeaseId, MemberId};

use super::invariants::Seen;
use super::plan::Plan;
use super::queue::{MILLI, Nanos, SECOND};
use super::random::Random;
use super::surroundings::{Event, Surroundings};
use super::ticket::{Answered, Asker, Request, Ticket};
use super::world::Members;

/// Keys of one holder.
const KEYS: u64 = 3;
/// How long it waits for an answer.
const PATIENCE: Nanos = 2 * SECOND;
/// How long leases last, in milliseconds.
const TTL_MS: (u64, u64) = (600, 4_000);
/// The ids of a holder's leases begin with its own.
const LEASES: i64 = 1_000_000;

pub(super) struct Holder {
    id: u64,
    random: Random,
    /// The last lease that it asked for.
    lease: LeaseId,
    ttl_ms: u64,
    /// Whether it has it, as far as it knows.
    held: bool,
    /// Counts what it asks for: an answer belongs to one of them.
    requests: u64,
    waiting: Option<Asked>,
}

/// What it waits for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    what: What,
    at: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Grant,
    KeepAlive,
    /// Attach one of its keys, or, with another lease or none, detach it.
    Put(PutLease),
    Revoke,
}

/// Those of a run. None where what was answered may be lost: a lease that was granted is gone then.
pub(super) fn of(seed: u64, plan: &Plan) -> Vec<Holder> {
    let mut random = Random::new(seed ^ 0x006c_6561_7365);
    let count = match random.chance(400_000) && !plan.memory_first {
        true => random.between(1, 4),
        false => 0,
    };
    (1..=count)
        .map(|id| Holder::new(id, random.fork()))
        .collect()
}

impl Holder {
    fn new(id: u64, random: Random) -> Self {
        let first = i64::try_from(id).expect("there are few") * LEASES;
        Self {
            id,
            random,
            lease: LeaseId(first),
            ttl_ms: 0,
            held: false,
            requests: 0,
            waiting: None,
        }
    }

    /// Asks for the next thing, unless it waits; where faults have ended, and clients ask for
    /// nothing new, for nothing.
    pub(super) fn next(&mut self, sim: &mut Surroundings, members: &mut Members, rests: bool) {
        let pause = self.random.between(20, 400) * MILLI;
        sim.after(pause, Event::Holder(self.id));
        let waits = self.waiting.is_some_and(|it| sim.now < it.at + PATIENCE);
        if waits || rests {
            return;
        }
        if self.waiting.take().is_some_and(|it| it.what == What::Grant) {
            // It may have it, and does not know.
            self.held = false;
        }
        let what = match self.held {
            true => self.choose(),
            false => What::Grant,
        };
        let Some(member) = self.choose_member(members) else {
            return;
        };
        self.ask(sim, members, member, what);
    }

    fn choose(&mut self) -> What {
        let other = self.random.below(2) == 0;
        match self.random.below(100) {
            0..60 => What::KeepAlive,
            60..85 => What::Put(PutLease::Attach(self.lease)),
            85..90 => What::Put(PutLease::Keep),
            90..94 => What::Put(PutLease::None),
            94..97 => What::Revoke,
            _ if other => What::Grant,
            // One that is its no more.
            _ => What::Put(PutLease::Attach(LeaseId(self.lease.0 - 1))),
        }
    }

    /// Mostly one that believes that it leads.
    fn choose_member(&mut self, members: &Members) -> Option<MemberId> {
        let leads = members.values().filter(|member| member.is_leader());
        let leaders: Vec<_> = leads.map(|member| member.id).collect();
        let all: Vec<_> = members.keys().copied().collect();
        let some = match self.random.chance(950_000) {
            true => leaders,
            false => all,
        };
        self.random.pick(&some).copied()
    }

    fn ask(&mut self, sim: &mut Surroundings, members: &mut Members, at: MemberId, what: What) {
        let Some(member) = members.get_mut(&at) else {
            return;
        };
        self.requests += 1;
        let command = match what {
            What::Grant => {
                self.lease.0 += 1;
                self.ttl_ms = self.random.between(TTL_MS.0, TTL_MS.1);
                self.held = false;
                Some(Command::GrantLease {
                    lease: self.lease,
                    ttl_ms: self.ttl_ms,
                })
            }
            What::KeepAlive => None,
            What::Put(lease) => Some(Command::Put(Put {
                lease,
                ..Put::new(self.some_key(), Bytes::from(self.requests.to_string()))
            })),
            What::Revoke => {
                let lease = self.lease;
                self.held = false;
                sim.see(&Seen::LeaseRevoked(lease));
                Some(Command::RevokeLease { lease })
            }
        };
        sim.note(format_args!("holder {} asks {at} for {what:?}", self.id));
        let request = match command {
            Some(command) => {
                let replica = member.replica();
                let version =
                    replica.map_or(CommandVersion::OLDEST, |it| it.command_gate().version());
                Request::Write(Write::Command {
                    command: EncodedCommand::new(command.into(), version),
                    from: None,
                    passes: false,
                })
            }
            None => Request::Lease(self.lease, LeaseAsk::KeepAlive),
        };
        let ticket = Ticket {
            asker: Asker::Holder(self.id, self.requests),
            deadline: sim.now + PATIENCE,
        };
        self.waiting = Some(Asked { what, at: sim.now });
        member.ask(sim, request, ticket);
    }

    /// Before all keys of clients, whose ranges may have no end.
    fn some_key(&mut self) -> Bytes {
        let key = format!("held/{}/{}", self.id, self.random.below(KEYS));
        Bytes::from(key)
    }

    pub(super) fn on_answer(&mut self, sim: &mut Surroundings, request: u64, answer: Answered) {
        if request != self.requests {
            return;
        }
        let Some(asked) = self.waiting.take() else {
            return;
        };
        match answer {
            Answered::Lease(Ok(answer)) => self.on_lease(sim, asked, answer),
            Answered::Written(Ok(written)) => self.on_written(sim, asked, &written),
            Answered::Lease(Err(error)) | Answered::Written(Err(error)) => {
                sim.count("questions about leases not served");
                // It may be asked for again, as what it was.
                let again = matches!(error, RequestError::NotLeader { .. });
                self.held &= asked.what != What::Grant || again;
            }
            Answered::MayRead(_) | Answered::Leads => {}
        }
    }

    fn on_lease(&mut self, sim: &mut Surroundings, asked: Asked, answer: LeaseAnswer) {
        let lease = self.lease;
        match answer {
            LeaseAnswer::Kept { ttl_ms } => {
                sim.count("leases kept alive");
                let asked = asked.at;
                sim.see(&Seen::LeasePromised {
                    lease,
                    asked,
                    ttl_ms,
                });
            }
            LeaseAnswer::NotFound => {
                sim.count("leases found to be over");
                self.held = false;
                let asked = asked.at;
                sim.see(&Seen::LeaseMissing { lease, asked });
            }
            LeaseAnswer::Lasts { .. } => {}
        }
    }

    fn on_written(&mut self, sim: &mut Surroundings, asked: Asked, written: &Written) {
        match written.outcome {
            kv::Outcome::LeaseGranted { lease, ttl_ms, .. } => {
                sim.count("leases granted");
                self.held = true;
                let asked = asked.at;
                sim.see(&Seen::LeasePromised {
                    lease,
                    asked,
                    ttl_ms,
                });
            }
            kv::Outcome::Put { .. } => sim.count("keys put by holders of leases"),
            _ => {}
        }
    }
}
