//! What clients ask for, and what answers mean to the checkers.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use dengine_checker::{Answer, BatchStep, Call, Expected, Level, Seen};
use dengine_client::policy::Failure;
use dengine_kv as kv;
use dengine_kv::{
    Batch, BatchOperation, Command, Compare, CompareTarget, KeyRange, KeyValue, Put, Refusal,
    Relation,
};
use dengine_raft::replica::{LeaderHint, RequestError};
use dengine_types::Revision;

use super::ranges::{deleted, is_range, just, keys_of, nested, replies_of, some_range, steps_of};
use super::{Outcome, Want};
use crate::random::Random;

/// What a client remembers of its answers.
#[derive(Default)]
pub(super) struct Memory {
    /// The newest revision that its session reads must not fall behind.
    revision: u64,
    /// Each key as it last saw it.
    pairs: BTreeMap<String, Option<Seen>>,
}

/// What the seed says of operations.
#[derive(Clone, Copy)]
pub(super) struct Habits {
    /// So many keys there are.
    pub(super) keys: u64,
    /// So many of a thousand operations write.
    pub(super) writes: u64,
    /// As in [`Load::levels`](crate::plan::Load::levels).
    pub(super) levels: [u64; 3],
    /// So many of a hundred puts, swaps, and puts of batches may expire.
    pub(super) expiring: u64,
}

impl Memory {
    /// Thinks of something to ask for. `unique` becomes part of what it writes.
    pub(super) fn invent(
        &self,
        random: &mut Random,
        habits: Habits,
        unique: String,
    ) -> (Call, Want) {
        let key = some_key(random, habits);
        let after = self.revision;
        let kind = match random.below(1_000) < habits.writes {
            true => random.below(60),
            false => 60,
        };
        match kind {
            0..30 => return put(key, unique, time_to_live(random, habits)),
            30..36 => return delete(key, &unique),
            36..50 => return self.swap(random, habits, key, unique),
            50..60 => return self.batch(random, habits, &unique),
            _ => {}
        }
        let mut keys = vec![key, some_key(random, habits)];
        keys.truncate(random.between(1, 3) as usize);
        keys.dedup();
        let [linearizable, lease, session] = habits.levels;
        let level = match random.below(100) {
            it if it < linearizable => Level::Linearizable,
            it if it < linearizable + lease => Level::Lease,
            it if it < linearizable + lease + session => Level::Session { after },
            _ => Level::Eventual,
        };
        read(keys, level)
    }

    /// Mostly it expects what it saw last.
    fn expect(&self, random: &mut Random, key: &str) -> Expected {
        let known = self.pairs.get(key).and_then(Option::as_ref);
        match known.filter(|_| random.chance(800_000)) {
            Some(seen) if random.chance(500_000) => Expected::Value(seen.value.clone()),
            Some(seen) => Expected::ModRevision(seen.mod_revision),
            None => Expected::ModRevision(0),
        }
    }

    fn swap(
        &self,
        random: &mut Random,
        habits: Habits,
        key: String,
        unique: String,
    ) -> (Call, Want) {
        let expected = self.expect(random, &key);
        let ttl_ms = time_to_live(random, habits);
        let command = Command::CompareAndSwap {
            key: Bytes::from(key.clone()),
            expected: match &expected {
                Expected::Value(value) => kv::Expected::Value(Bytes::from(value.clone())),
                Expected::ModRevision(revision) => kv::Expected::ModRevision(Revision(*revision)),
            },
            value: Bytes::from(unique.clone()),
            ttl_ms,
        };
        let call = Call::CompareAndSwap {
            key,
            expected,
            value: unique,
            expires: ttl_ms > 0,
        };
        (call, Want::Write(command))
    }

    fn batch(&self, random: &mut Random, habits: Habits, unique: &str) -> (Call, Want) {
        let mut compares = Vec::new();
        if random.chance(700_000) {
            let key = some_key(random, habits);
            let expected = self.expect(random, &key);
            let keys = match expected {
                // Of all keys of a range it holds if it does of each; of others that can't be said.
                Expected::ModRevision(0) => some_range(&key, unique),
                _ => just(key.clone(), unique),
            };
            compares.push((keys, expected));
        }
        let then = steps(random, habits, &format!("{unique}y"));
        let otherwise = steps(random, habits, &format!("{unique}n"));
        let asked: Vec<_> = compares.iter().map(compare).collect();
        let then = nested(then, &asked, true, unique);
        let otherwise = nested(otherwise, &asked, false, unique);
        let command = Command::Batch(Batch {
            compares: asked,
            then: then.clone(),
            otherwise: otherwise.clone(),
        });
        let of_each = |(keys, expected)| {
            let keys = keys_of(&keys).into_iter();
            keys.map(move |key| (key, Expected::clone(&expected)))
        };
        let call = Call::Batch {
            compares: compares.into_iter().flat_map(of_each).collect(),
            then: then.iter().flat_map(steps_of).collect(),
            otherwise: otherwise.iter().flat_map(steps_of).collect(),
        };
        (call, Want::Write(command))
    }

    /// What it saw behind this revision may be gone.
    pub(super) fn forget_behind(&mut self, revision: Revision) {
        self.revision = self.revision.min(revision.0);
        self.pairs.clear();
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
                self.pairs
                    .extend(keys.iter().cloned().zip(found.iter().cloned()));
            }
            (Call::CompareAndSwap { key, .. }, Answer::CompareAndSwap { previous, .. }) => {
                self.pairs.insert(key.clone(), previous.clone());
            }
            _ => {}
        }
    }
}

fn some_key(random: &mut Random, habits: Habits) -> String {
    format!("k{}", random.below(habits.keys))
}

/// In milliseconds; 0: forever.
fn time_to_live(random: &mut Random, habits: Habits) -> u64 {
    match random.below(100) < habits.expiring {
        true => random.between(20, 3_000),
        false => 0,
    }
}

pub(super) fn read(keys: Vec<String>, level: Level) -> (Call, Want) {
    let call = Call::Read {
        keys: keys.clone(),
        level,
    };
    (call, Want::Read(level, keys))
}

pub(super) fn put(key: String, value: String, ttl_ms: u64) -> (Call, Want) {
    let command = Command::Put(Put {
        ttl_ms,
        ..Put::new(Bytes::from(key.clone()), Bytes::from(value.clone()))
    });
    let call = Call::Put {
        key,
        value,
        expires: ttl_ms > 0,
    };
    (call, Want::Write(command))
}

/// Of a range it deletes what the same number of steps would delete one by one.
fn delete(key: String, unique: &str) -> (Call, Want) {
    let keys = some_range(&key, unique);
    let command = Command::Delete {
        keys: keys.clone(),
        prev_kv: is_range(&keys),
    };
    let deletes: Vec<_> = keys_of(&keys).into_iter().map(BatchStep::Delete).collect();
    let call = match deletes.len() {
        1 => Call::Delete { key },
        _ => Call::Batch {
            compares: Vec::new(),
            then: deletes,
            otherwise: Vec::new(),
        },
    };
    (call, Want::Write(command))
}

/// Up to three steps. No key is changed twice, which would be refused.
fn steps(random: &mut Random, habits: Habits, unique: &str) -> Vec<BatchOperation> {
    let mut changed = BTreeSet::new();
    let mut steps = Vec::new();
    for number in 0..random.below(4) {
        let key = some_key(random, habits);
        let unique = format!("{unique}{number}");
        let fresh = changed.insert(key.clone());
        steps.push(match random.below(3) {
            0 if fresh => put_step(key, unique, time_to_live(random, habits)),
            1 if fresh => delete_step(key, &unique, &mut changed),
            _ => get_step(&key, &unique),
        });
    }
    steps
}

fn put_step(key: String, value: String, ttl_ms: u64) -> BatchOperation {
    BatchOperation::Put(Put {
        ttl_ms,
        ..Put::new(Bytes::from(key), Bytes::from(value))
    })
}

fn delete_step(key: String, unique: &str, changed: &mut BTreeSet<String>) -> BatchOperation {
    let mut keys = some_range(&key, unique);
    let others = |it: &String| *it != key;
    if keys_of(&keys)
        .iter()
        .filter(|it| others(it))
        .any(|it| changed.contains(it))
    {
        keys = just(key, unique);
    }
    changed.extend(keys_of(&keys));
    BatchOperation::Delete {
        prev_kv: is_range(&keys),
        keys,
    }
}

fn get_step(key: &str, unique: &str) -> BatchOperation {
    BatchOperation::Get {
        keys: some_range(key, unique),
        limit: 0,
        keys_only: false,
        count_only: false,
    }
}

fn compare((keys, expected): &(KeyRange, Expected)) -> Compare {
    Compare {
        keys: keys.clone(),
        relation: Relation::Equal,
        target: match expected {
            Expected::ModRevision(revision) => CompareTarget::ModRevision(Revision(*revision)),
            Expected::Value(value) => CompareTarget::Value(Bytes::from(value.clone())),
        },
    }
}

/// What an answer means: to the checkers, or to whoever decides what follows from a failure.
pub(super) fn judge(outcome: &Outcome, want: Option<&Want>) -> Result<Answer, Failure> {
    match outcome {
        Outcome::Written(Ok(written)) => written_answer(&written.outcome, want),
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
        RequestError::LowOnSpace { .. } => Failure::LowOnSpace,
        RequestError::Refused(_) | RequestError::Invalid(_) => Failure::Refused,
        RequestError::UnknownOutcome { .. } => Failure::Undecided,
        RequestError::Storage(_) => Failure::Broken,
        other if other.retryable() => Failure::NotServed { leader: None },
        _ => Failure::Broken,
    }
}

fn written_answer(outcome: &kv::Outcome, want: Option<&Want>) -> Result<Answer, Failure> {
    Ok(match (outcome, want) {
        (
            kv::Outcome::Delete { revision, prev, .. },
            Some(Want::Write(Command::Delete { keys, .. })),
        ) if keys_of(keys).len() > 1 => Answer::Batch {
            revision: revision.0,
            succeeded: true,
            replies: deleted(keys, prev),
        },
        (
            kv::Outcome::Batch {
                revision,
                succeeded,
                answers,
            },
            Some(Want::Write(Command::Batch(batch))),
        ) => {
            let done = match succeeded {
                true => &batch.then,
                false => &batch.otherwise,
            };
            let replies = done.iter().zip(answers);
            Answer::Batch {
                revision: revision.0,
                succeeded: *succeeded,
                replies: replies
                    .flat_map(|(step, answer)| replies_of(step, answer))
                    .collect(),
            }
        }
        (outcome, _) => return single_answer(outcome),
    })
}

fn single_answer(outcome: &kv::Outcome) -> Result<Answer, Failure> {
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
        kv::Outcome::Batch {
            revision,
            succeeded,
            ..
        } => Answer::Batch {
            revision: revision.0,
            succeeded: *succeeded,
            // To another call than this one; the checkers will say so.
            replies: Vec::new(),
        },
        kv::Outcome::Refused(Refusal::WindowFull { .. }) => return Err(Failure::Overloaded),
        kv::Outcome::Refused(_) => return Err(Failure::Refused),
        _ => return Err(Failure::Broken),
    })
}

pub(super) fn seen(pair: &KeyValue) -> Seen {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    Seen {
        value: text(&pair.value),
        create_revision: pair.create_revision.0,
        mod_revision: pair.mod_revision.0,
        version: pair.version,
    }
}
