//! What clients ask for, and what answers mean to the checkers.

use super::{Outcome, Want};
use crate::check::{Answer, Call, Expected, Level, Seen};
use crate::kv::{self, Command, KeyRange, KeyValue, Refusal};
use crate::replica::{LeaderHint, RequestError};
use crate::sim::random::Random;
use crate::types::Revision;
use bytes::Bytes;
use dengine_client_core::Failure;
use std::collections::BTreeMap;

/// What a client remembers of its answers.
#[derive(Default)]
pub(super) struct Memory {
    /// The newest revision that its session reads must not fall behind.
    revision: u64,
    /// Each key as it last saw it.
    pairs: BTreeMap<String, Option<Seen>>,
}

impl Memory {
    /// Thinks of something to ask for. `unique` becomes part of what it writes.
    pub(super) fn invent(&self, random: &mut Random, keys: u64, unique: String) -> (Call, Want) {
        let key = format!("k{}", random.below(keys));
        let (name, new) = (Bytes::from(key.clone()), Bytes::from(unique.clone()));
        let after = self.revision;
        let level = match random.below(100) {
            0..35 => {
                let command = Command::Put {
                    key: name,
                    value: new,
                    prev_kv: false,
                    ttl_ms: 0,
                };
                let call = Call::Put {
                    key,
                    value: unique,
                    expires: false,
                };
                return (call, Want::Write(command));
            }
            35..42 => {
                let command = Command::Delete {
                    keys: KeyRange::One(name),
                    prev_kv: false,
                };
                return (Call::Delete { key }, Want::Write(command));
            }
            42..60 => return self.swap(random, key, unique),
            60..76 => Level::Linearizable,
            76..88 => Level::Lease,
            88..95 => Level::Session { after },
            _ => Level::Eventual,
        };
        let keys = vec![key];
        let call = Call::Read {
            keys: keys.clone(),
            level,
        };
        (call, Want::Read(level, keys))
    }

    /// Mostly it expects what it saw last.
    fn swap(&self, random: &mut Random, key: String, unique: String) -> (Call, Want) {
        let known = self.pairs.get(&key).and_then(Option::as_ref);
        let expected = match known.filter(|_| random.chance(800_000)) {
            Some(seen) if random.chance(500_000) => Expected::Value(seen.value.clone()),
            Some(seen) => Expected::ModRevision(seen.mod_revision),
            None => Expected::ModRevision(0),
        };
        let command = Command::CompareAndSwap {
            key: Bytes::from(key.clone()),
            expected: match &expected {
                Expected::Value(value) => kv::Expected::Value(Bytes::from(value.clone())),
                Expected::ModRevision(revision) => kv::Expected::ModRevision(Revision(*revision)),
            },
            value: Bytes::from(unique.clone()),
            ttl_ms: 0,
        };
        let call = Call::CompareAndSwap {
            key,
            expected,
            value: unique,
        };
        (call, Want::Write(command))
    }

    pub(super) fn learn(&mut self, call: &Call, answer: &Answer) {
        let weak = matches!(
            call,
            Call::Read {
                level: Level::Eventual,
                ..
            }
        );
        if let Some(revision) = answer.revision().filter(|_| !weak) {
            self.revision = self.revision.max(revision);
        }
        match (call, answer) {
            (Call::Read { keys, .. }, Answer::Read { found, .. }) => {
                self.pairs.extend(keys.iter().cloned().zip(found.iter().cloned()));
            }
            (Call::CompareAndSwap { key, .. }, Answer::CompareAndSwap { previous, .. }) => {
                self.pairs.insert(key.clone(), previous.clone());
            }
            _ => {}
        }
    }
}

/// What an answer means: to the checkers, or to whoever decides what follows from a failure.
pub(super) fn judge(outcome: &Outcome) -> Result<Answer, Failure> {
    match outcome {
        Outcome::Written(Ok(written)) => written_answer(&written.outcome),
        Outcome::Written(Err(error)) | Outcome::ReadRefused(error) => Err(failure(error)),
        Outcome::Unreachable => Err(Failure::NotSent),
        Outcome::Read(revision, found) => Ok(Answer::Read {
            revision: revision.0,
            found: found.iter().map(|pair| pair.as_ref().map(seen)).collect(),
        }),
    }
}

/// As the server's status codes say it.
fn failure(error: &RequestError) -> Failure {
    let address = |leader: &LeaderHint| leader.client_address.clone();
    match error {
        RequestError::NotLeader { leader } => Failure::NotServed {
            leader: leader.as_ref().map(address),
        },
        RequestError::Busy { .. } => Failure::Overloaded,
        RequestError::Refused(_) | RequestError::Invalid(_) => Failure::Refused,
        RequestError::UnknownOutcome { .. } => Failure::Undecided,
        RequestError::Storage(_) => Failure::Broken,
        other if other.retryable() => Failure::NotServed { leader: None },
        _ => Failure::Broken,
    }
}

fn written_answer(outcome: &kv::Outcome) -> Result<Answer, Failure> {
    Ok(match outcome {
        kv::Outcome::Put { revision, .. } => Answer::Put {
            revision: revision.0,
        },
        kv::Outcome::Delete {
            revision, deleted, ..
        } => Answer::Delete {
            revision: revision.0,
            deleted: *deleted > 0,
        },
        kv::Outcome::CompareAndSwap {
            revision,
            succeeded,
            prev,
        } => Answer::CompareAndSwap {
            revision: revision.0,
            succeeded: *succeeded,
            previous: prev.as_ref().map(seen),
        },
        kv::Outcome::Refused(Refusal::WindowFull { .. }) => return Err(Failure::Overloaded),
        kv::Outcome::Refused(_) => return Err(Failure::Refused),
        _ => return Err(Failure::Broken),
    })
}

fn seen(pair: &KeyValue) -> Seen {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    Seen {
        value: text(&pair.value),
        create_revision: pair.create_revision.0,
        mod_revision: pair.mod_revision.0,
        version: pair.version,
    }
}
