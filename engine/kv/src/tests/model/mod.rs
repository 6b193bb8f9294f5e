//! The state machine against the simplest model: every version of every key in a map, and each
//! question answered by a full scan.

mod at_hand;
mod batch;
mod generate;
mod leases;
mod properties;

use std::collections::BTreeMap;

use bytes::Bytes;
use dengine_types::{Index, LeaseId, Revision, SessionId};

use self::leases::ModelLease;
use crate::visits::VisitBounds;
use crate::{
    ChangesQuery, Command, Compare, CompareTarget, Event, EventKind, Expected, ExpiringKey,
    KeyRange, KeyValue, Outcome, Put, PutLease, Refusal, Relation, Request, SessionStamp,
};

#[derive(Clone)]
struct Model {
    revision: u64,
    compacted: u64,
    /// Whether the command that is being applied has taken its revision.
    taken: bool,
    /// The versions of each key with their revisions, oldest first; `None`: deleted.
    history: BTreeMap<Bytes, Vec<(u64, Option<KeyValue>)>>,
    /// Which revision changed which key, in order.
    log: Vec<(u64, Bytes)>,
    sessions: BTreeMap<u64, ModelSession>,
    leases: BTreeMap<LeaseId, ModelLease>,
    /// The cost of each key that the ranges of the command have visited.
    visited: Vec<usize>,
    /// Whether single keys count as well.
    counts_single_keys: bool,
}

/// So small that commands often reach the limits.
const VISIT_BOUNDS: VisitBounds = VisitBounds {
    keys: 7,
    bytes: 240,
};

#[derive(Clone, Debug, Default)]
struct ModelSession {
    last_used: u64,
    acknowledged: u64,
    /// All answers; acknowledged ones are not used.
    answers: BTreeMap<u64, Outcome>,
}

impl ModelSession {
    fn kept(&self) -> impl Iterator<Item = &Outcome> {
        let unacknowledged = self.answers.range(self.acknowledged + 1..);
        unacknowledged.map(|(_, answer)| answer)
    }
}

impl Model {
    fn new() -> Self {
        Self {
            revision: 1,
            compacted: 0,
            taken: false,
            history: BTreeMap::new(),
            log: Vec::new(),
            sessions: BTreeMap::new(),
            leases: BTreeMap::new(),
            visited: Vec::new(),
            counts_single_keys: false,
        }
    }

    /// Visits the existing keys of a range until `enough`, and records the cost.
    fn visit(&mut self, keys: &KeyRange, mut enough: impl FnMut(&KeyValue) -> bool) {
        let is_single = matches!(keys, KeyRange::One(_));
        if is_single && !self.counts_single_keys {
            return;
        }
        for (key, versions) in self.history.iter().filter(|(key, _)| keys.contains(key)) {
            let now = versions.last().expect("a key without a version");
            match now {
                (_, Some(kv)) => self.visited.push(32 + key.len() + kv.value.len()),
                (_, None) if is_single => {}
                (at, None) if *at > self.compacted => self.visited.push(32 + key.len()),
                (_, None) => {}
            }
            if now.1.as_ref().is_some_and(&mut enough) {
                return;
            }
        }
    }

    fn visited_too_much(&self) -> Option<Outcome> {
        let bytes: usize = self.visited.iter().sum();
        let exceeded = self.visited.len() > VISIT_BOUNDS.keys || bytes > VISIT_BOUNDS.bytes;
        exceeded.then_some(Outcome::Refused(Refusal::RangesTooLarge {
            keys_max: VISIT_BOUNDS.keys as u64,
            bytes_max: VISIT_BOUNDS.bytes as u64,
        }))
    }

    /// Counts from the revision before the compact revision.
    fn revision_at(&self, number: u64) -> u64 {
        (self.compacted + number).saturating_sub(1)
    }

    fn get(&self, key: &Bytes, at: u64) -> Option<KeyValue> {
        let versions = self.history.get(key)?;
        let seen = versions.iter().rev().find(|(revision, _)| *revision <= at);
        seen.and_then(|(_, kv)| kv.clone())
    }

    fn range(&self, keys: &KeyRange, at: u64) -> Vec<KeyValue> {
        let inside = self.history.keys().filter(|key| keys.contains(key));
        inside.filter_map(|key| self.get(key, at)).collect()
    }

    fn now(&self, keys: &KeyRange) -> Vec<KeyValue> {
        self.range(keys, self.revision)
    }

    /// All changes since `from`.
    fn events(&self, query: &ChangesQuery) -> Vec<Event> {
        let log = self.log.iter().enumerate();
        let stamped = log.map(|(place, (at, key))| {
            let before = self.log[..place].iter().rev();
            let sub = before.take_while(|(other, _)| other == at).count() as u32;
            (*at, sub, key)
        });
        let from = (query.from.revision.0, query.from.sub);
        let wanted =
            stamped.filter(|(at, sub, key)| (*at, *sub) >= from && query.keys.contains(key));
        let events = wanted.map(|(at, sub, key)| {
            let now = self.get(key, at);
            let prev = self.get(key, at - 1);
            Event {
                kind: now.as_ref().map_or(EventKind::Delete, |_| EventKind::Put),
                sub,
                kv: now.unwrap_or_else(|| tombstone(key, at)),
                prev: prev.filter(|_| query.prev_kv && at > self.compacted),
            }
        });
        let filtered = |it: &Event| match it.kind {
            EventKind::Put => query.no_put,
            EventKind::Delete => query.no_delete,
        };
        events.filter(|it| !filtered(it)).collect()
    }

    fn expiring(&self) -> Vec<ExpiringKey> {
        let mut keys: Vec<_> = self.now(&KeyRange::From(Bytes::new()));
        keys.retain(|kv| kv.ttl_ms != 0);
        keys.sort_by_key(|kv| (kv.mod_revision, kv.key.clone()));
        keys.into_iter()
            .map(|kv| ExpiringKey {
                key: kv.key,
                mod_revision: kv.mod_revision,
                ttl_ms: kv.ttl_ms,
            })
            .collect()
    }

    fn apply(&mut self, index: u64, request: &Request) -> Outcome {
        let Some(stamp) = request.session else {
            return self.command(index, &request.command);
        };
        if !request.command.may_be_stamped() {
            return Outcome::Refused(Refusal::NotForSessions);
        }
        match self.repeated(index, stamp) {
            Some(answer) => answer,
            None => {
                let answer = self.command(index, &request.command);
                let session = self.sessions.get_mut(&stamp.id.0).expect("it was found");
                session.answers.insert(stamp.sequence, answer.clone());
                answer
            }
        }
    }

    /// The answer to a command that must not be applied.
    fn repeated(&mut self, index: u64, stamp: SessionStamp) -> Option<Outcome> {
        let Some(session) = self.sessions.get_mut(&stamp.id.0) else {
            return Some(Outcome::Refused(Refusal::UnknownSession(stamp.id)));
        };
        session.last_used = index;
        session.acknowledged = session.acknowledged.max(stamp.acknowledged);
        if stamp.sequence <= session.acknowledged {
            return Some(Outcome::Refused(Refusal::Acknowledged {
                sequence: stamp.sequence,
                acknowledged: session.acknowledged,
            }));
        }
        session.answers.get(&stamp.sequence).cloned()
    }

    fn command(&mut self, index: u64, command: &Command) -> Outcome {
        self.taken = false;
        self.visited.clear();
        self.counts_single_keys = false;
        match command {
            Command::Put(put) => {
                if let Some(refusal) = self.refuses_put(&put.key, put.lease) {
                    return Outcome::Refused(refusal);
                }
                let Some(value) = self.value_to_put(put) else {
                    return Outcome::Refused(Refusal::KeyNotFound);
                };
                let prev = self.put(&put.key, &value, put.ttl_ms, put.lease);
                let prev = prev.filter(|_| put.prev_kv);
                let revision = Revision(self.revision);
                Outcome::Put { revision, prev }
            }
            Command::Delete { keys, prev_kv } => {
                self.visit(keys, |_| false);
                if let Some(refused) = self.visited_too_much() {
                    return refused;
                }
                let prev = self.delete(keys);
                Outcome::Delete {
                    revision: Revision(self.revision),
                    deleted: prev.len() as u64,
                    prev: if *prev_kv { prev } else { Vec::new() },
                }
            }
            Command::CompareAndSwap {
                key,
                expected,
                value,
                ttl_ms,
            } => self.swap(key, expected, value, *ttl_ms),
            Command::Batch(batch) => self.batch(batch),
            Command::Compact { revision } => self.compact(revision.0),
            Command::ExpireKeys { keys } => {
                let mut deleted = 0;
                for expired in keys {
                    let now = self.get(&expired.key, self.revision);
                    if now.is_some_and(|now| {
                        now.ttl_ms > 0 && now.mod_revision == expired.mod_revision
                    }) {
                        deleted += self.delete(&KeyRange::One(expired.key.clone())).len() as u64;
                    }
                }
                let revision = Revision(self.revision);
                Outcome::ExpireKeys { revision, deleted }
            }
            Command::GrantLease { .. }
            | Command::RevokeLease { .. }
            | Command::ExpireLease { .. }
            | Command::CheckpointLeases { .. } => self.lease_command(index, command),
            about_a_session => self.session_command(index, about_a_session),
        }
    }

    fn session_command(&mut self, index: u64, command: &Command) -> Outcome {
        match command {
            Command::OpenSession { .. } => {
                let session = ModelSession {
                    last_used: index,
                    ..ModelSession::default()
                };
                self.sessions.insert(index, session);
                Outcome::SessionOpened {
                    session: SessionId(index),
                }
            }
            Command::KeepAlive { session } => match self.sessions.get_mut(&session.0) {
                Some(found) => {
                    found.last_used = index;
                    Outcome::SessionKept
                }
                None => Outcome::Refused(Refusal::UnknownSession(*session)),
            },
            Command::CloseSession { session } => Outcome::SessionClosed {
                closed: self.sessions.remove(&session.0).is_some(),
            },
            Command::ExpireSession { session, last_used } => {
                let found = self.sessions.get(&session.0);
                let closed = found.is_some_and(|found| Index(found.last_used) == *last_used);
                if closed {
                    self.sessions.remove(&session.0);
                }
                Outcome::SessionClosed { closed }
            }
            other => panic!("{other:?} is not about a session"),
        }
    }

    fn change(&mut self, key: &Bytes, make: impl FnOnce(u64) -> Option<KeyValue>) {
        if !self.taken {
            self.revision += 1;
            self.taken = true;
        }
        let versions = self.history.entry(key.clone()).or_default();
        versions.push((self.revision, make(self.revision)));
        self.log.push((self.revision, key.clone()));
    }

    /// `None`: the value of a key that does not exist is to be kept.
    fn value_to_put(&self, put: &Put) -> Option<Bytes> {
        match put.ignore_value {
            true => self.get(&put.key, self.revision).map(|kv| kv.value),
            false => Some(put.value.clone()),
        }
    }

    /// Returns the previous pair.
    fn put(
        &mut self,
        key: &Bytes,
        value: &Bytes,
        ttl_ms: u64,
        lease: PutLease,
    ) -> Option<KeyValue> {
        let prev = self.get(key, self.revision);
        let lease = match lease {
            PutLease::None => LeaseId::NONE,
            PutLease::Attach(lease) => lease,
            PutLease::Keep => prev.as_ref().expect("it was looked for").lease,
        };
        self.change(key, |revision| {
            Some(KeyValue {
                key: key.clone(),
                value: value.clone(),
                create_revision: prev
                    .as_ref()
                    .map_or(Revision(revision), |prev| prev.create_revision),
                mod_revision: Revision(revision),
                version: prev.as_ref().map_or(1, |prev| prev.version + 1),
                ttl_ms,
                lease,
            })
        });
        prev
    }

    /// Returns the previous pairs.
    fn delete(&mut self, keys: &KeyRange) -> Vec<KeyValue> {
        let prev = self.now(keys);
        for kv in &prev {
            self.change(&kv.key, |_| None);
        }
        prev
    }

    fn swap(&mut self, key: &Bytes, expected: &Expected, value: &Bytes, ttl_ms: u64) -> Outcome {
        let prev = self.get(key, self.revision);
        let succeeded = match expected {
            Expected::ModRevision(wanted) => {
                prev.as_ref().map_or(0, |prev| prev.mod_revision.0) == wanted.0
            }
            Expected::Value(wanted) => prev.as_ref().is_some_and(|prev| prev.value == wanted),
        };
        if succeeded {
            self.put(key, value, ttl_ms, PutLease::None);
        }
        Outcome::CompareAndSwap {
            revision: Revision(self.revision),
            succeeded,
            prev,
        }
    }

    fn compact(&mut self, revision: u64) -> Outcome {
        let requested = Revision(revision);
        if revision <= self.compacted {
            let compacted = Revision(self.compacted);
            return Outcome::Refused(Refusal::Compacted {
                requested,
                compacted,
            });
        }
        let current = Revision(self.revision);
        if requested > current {
            return Outcome::Refused(Refusal::Future { requested, current });
        }
        self.compacted = revision;
        Outcome::Compact { revision: current }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let found = self.now(&compare.keys);
        let mut absent = Vec::new();
        if found.is_empty() && !matches!(compare.target, CompareTarget::Value(_)) {
            absent.push(tombstone(&Bytes::new(), 0));
        }
        let compared: Vec<_> = found.iter().chain(&absent).collect();
        !compared.is_empty() && compared.iter().all(|kv| holds_for(compare, kv))
    }
}

fn holds_for(compare: &Compare, kv: &KeyValue) -> bool {
    match &compare.target {
        CompareTarget::Version(it) => related(compare.relation, &kv.version, it),
        CompareTarget::CreateRevision(it) => related(compare.relation, &kv.create_revision, it),
        CompareTarget::ModRevision(it) => related(compare.relation, &kv.mod_revision, it),
        CompareTarget::Value(it) => related(compare.relation, &kv.value, it),
        CompareTarget::Lease(it) => related(compare.relation, &kv.lease, it),
    }
}

fn related<T: Ord>(relation: Relation, left: &T, right: &T) -> bool {
    match relation {
        Relation::Equal => left == right,
        Relation::NotEqual => left != right,
        Relation::Greater => left > right,
        Relation::Less => left < right,
    }
}

fn tombstone(key: &Bytes, revision: u64) -> KeyValue {
    KeyValue {
        key: key.clone(),
        value: Bytes::new(),
        create_revision: Revision(0),
        mod_revision: Revision(revision),
        version: 0,
        ttl_ms: 0,
        lease: LeaseId::NONE,
    }
}
