//! Several operations as one command.

use std::vec;

use bytes::Bytes;
use dengine_planted::planted;

use super::{Changed, Transition};
use crate::store::{Store, StoreError};
use crate::view::{Get, ReadRoom, View, check_past};
use crate::{
    BATCH_KEPT_BYTES_MAX, BATCH_READ_BYTES_MAX, Batch, BatchAnswer, BatchOperation, KeyRange,
    KeyValue, Outcome, RANGE_DELETE_BYTES_MAX, Refusal,
};

/// What is known of the operations that are left to do.
struct Rest {
    /// Whether the comparisons hold of each batch that is done.
    verdicts: vec::IntoIter<bool>,
    /// The keys that range deletes remove.
    doomed: vec::IntoIter<Vec<KeyValue>>,
    /// What reads may return that are not whole.
    room: usize,
    /// What those may return that are.
    read_room: ReadRoom,
}

impl<S: Store> Transition<'_, S> {
    pub(super) fn batch(&mut self, batch: &Batch) -> Result<Outcome, StoreError> {
        if batch.duplicate_key().is_some() {
            return Ok(Outcome::Refused(Refusal::DuplicateKey));
        }
        let mut verdicts = Vec::new();
        let compared = self.judge(batch, &mut verdicts)?;
        if let Err(refusal) = self.visits.check() {
            return Ok(Outcome::Refused(refusal));
        }
        let mut operations = Vec::new();
        batch.add_chosen(&mut verdicts.iter().copied(), &mut operations);
        self.records = (compared + operations.len()).max(1);
        if let Err(refusal) = self.check_possible(&operations)? {
            return Ok(Outcome::Refused(refusal));
        }
        // Found before the first of them changes anything.
        let doomed = match self.all_doomed(&operations)? {
            Ok(doomed) => doomed.into_iter(),
            Err(refusal) => return Ok(Outcome::Refused(refusal)),
        };
        // Afterwards only a read can still fail, for it sees the effects of the operations before
        // it, and what it returns is known once it has.
        let may_fail = |operation: &&BatchOperation| match operation {
            BatchOperation::Get { keys, .. } => self.visits.counts(keys),
            BatchOperation::Range(_) => true,
            BatchOperation::Put(_) | BatchOperation::Delete { .. } | BatchOperation::Batch(_) => {
                false
            }
        };
        if operations.iter().any(may_fail) {
            self.begin_undo();
        }
        let mut rest = Rest {
            verdicts: verdicts.into_iter(),
            doomed,
            room: BATCH_READ_BYTES_MAX,
            read_room: ReadRoom::OF_BATCH,
        };
        let (succeeded, answers) = match self.operations(batch, &mut rest)? {
            Ok(done) => done,
            Err(refusal) => {
                self.undo();
                return Ok(Outcome::Refused(refusal));
            }
        };
        self.undo = None;
        Ok(Outcome::Batch {
            revision: self.state.revision,
            succeeded,
            answers,
        })
    }

    /// Whether operations can be done that depend on more than what they name, by the state before
    /// the first of them.
    fn check_possible(
        &mut self,
        operations: &[&BatchOperation],
    ) -> Result<Result<(), Refusal>, StoreError> {
        let (current, compacted) = (self.state.revision, self.state.compact_revision);
        let mut kept_bytes = 0;
        for operation in operations {
            let possible = match operation {
                BatchOperation::Put(put) => match self.check_put(&put.key, put.lease)? {
                    Ok(()) if put.ignore_value => self.check_kept(&put.key, &mut kept_bytes)?,
                    checked => checked,
                },
                BatchOperation::Range(read) => read
                    .revision
                    .map_or(Ok(()), |at| check_past(at, current, compacted)),
                BatchOperation::Delete { .. }
                | BatchOperation::Get { .. }
                | BatchOperation::Batch(_) => Ok(()),
            };
            if possible.is_err() {
                return Ok(possible);
            }
        }
        Ok(self.visits.check())
    }

    /// Whether a put can keep the value of its key. A batch of a few bytes must not write thousands
    /// of large ones.
    fn check_kept(
        &mut self,
        key: &Bytes,
        kept_bytes: &mut usize,
    ) -> Result<Result<(), Refusal>, StoreError> {
        let Some(value) = self.value_to_keep(key)? else {
            return Ok(Err(Refusal::KeyNotFound));
        };
        *kept_bytes += value.len();
        Ok(match *kept_bytes <= BATCH_KEPT_BYTES_MAX {
            true => Ok(()),
            false => Err(Refusal::ReadsTooMuch {
                bytes_max: BATCH_KEPT_BYTES_MAX as u64,
            }),
        })
    }

    /// Does what the verdict says, and returns it with the answers.
    fn operations(
        &mut self,
        batch: &Batch,
        rest: &mut Rest,
    ) -> Result<Result<(bool, Vec<BatchAnswer>), Refusal>, StoreError> {
        let mut holds = rest.verdicts.next().expect("each batch was judged");
        if planted!(NestedCompareAfterWrites) {
            holds = self.first_that_fails(&batch.compares)?.is_none();
        }
        let operations = batch.list(holds);
        let mut answers = Vec::with_capacity(operations.len());
        for operation in operations {
            let answer = match operation {
                BatchOperation::Batch(inner) => {
                    let done = self.operations(inner, rest)?;
                    done.map(|(succeeded, answers)| BatchAnswer::Batch { succeeded, answers })
                }
                BatchOperation::Range(read) => self.range(read, &mut rest.read_room)?,
                single => Ok(self.operation(single, rest)?),
            };
            // A read that visits too much was ended, so that its answer is not one.
            match self.visits.check().and(answer) {
                Ok(answer) => answers.push(answer),
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        Ok(Ok((holds, answers)))
    }

    /// Runs one operation.
    fn operation(
        &mut self,
        operation: &BatchOperation,
        rest: &mut Rest,
    ) -> Result<BatchAnswer, StoreError> {
        if let Some(get) = Get::of(operation) {
            return self.get(get, &mut rest.room);
        }
        match operation {
            BatchOperation::Put(put) => {
                let key = put.key.clone();
                let value = match put.ignore_value {
                    true => self
                        .value_of(&key)?
                        .expect("no operation deletes what is put"),
                    false => put.value.clone(),
                };
                let prev = self.put(key, value, put.ttl_ms, put.lease, put.prev_kv)?;
                Ok(BatchAnswer::Put { prev })
            }
            BatchOperation::Delete {
                keys: KeyRange::One(key),
                prev_kv,
            } => {
                let doomed = self.previous(key, *prev_kv)?.into_iter().collect();
                let (deleted, prev) = self.delete(doomed, *prev_kv);
                Ok(BatchAnswer::Delete { deleted, prev })
            }
            BatchOperation::Delete { prev_kv, .. } => {
                let mut doomed = rest.doomed.next().expect("there is one for each range");
                // Without those that an earlier range of the batch deleted; those that it put are
                // not among them.
                doomed.retain(|kv| !matches!(self.keys.get(&kv.key), Some(Changed::Deleted(_))));
                let (deleted, prev) = self.delete(doomed, *prev_kv);
                Ok(BatchAnswer::Delete { deleted, prev })
            }
            BatchOperation::Get { .. } | BatchOperation::Range(_) | BatchOperation::Batch(_) => {
                unreachable!("they are done above")
            }
        }
    }

    /// The keys that each range delete removes.
    fn all_doomed(
        &mut self,
        operations: &[&BatchOperation],
    ) -> Result<Result<Vec<Vec<KeyValue>>, Refusal>, StoreError> {
        let mut room = RANGE_DELETE_BYTES_MAX;
        let mut all = Vec::new();
        for operation in operations {
            if let BatchOperation::Delete { keys, prev_kv } = operation
                && !matches!(keys, KeyRange::One(_))
            {
                match self.doomed(keys, *prev_kv, &mut room)? {
                    Ok(doomed) => all.push(doomed),
                    Err(refusal) => return Ok(Err(refusal)),
                }
            }
        }
        Ok(Ok(all))
    }
}
