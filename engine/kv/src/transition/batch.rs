//! Several operations as one command.

use std::vec;

use super::{Changed, Transition};
use crate::store::{Store, StoreError};
use crate::view::{Get, View};
use crate::{
    BATCH_READ_BYTES_MAX, Batch, BatchAnswer, BatchOperation, KeyRange, KeyValue, Outcome,
    RANGE_DELETE_BYTES_MAX, Refusal,
};

impl<S: Store> Transition<'_, S> {
    pub(super) fn batch(&mut self, batch: Batch) -> Result<Outcome, StoreError> {
        if batch.duplicate_key().is_some() {
            return Ok(Outcome::Refused(Refusal::DuplicateKey));
        }
        let failed_at = self.first_that_fails(&batch.compares)?;
        let compared = failed_at.map_or(batch.compares.len(), |at| at + 1);
        let succeeded = failed_at.is_none();
        if let Err(refusal) = self.visits.check() {
            return Ok(Outcome::Refused(refusal));
        }
        let operations = if succeeded {
            batch.then
        } else {
            batch.otherwise
        };
        self.records = (compared + operations.len()).max(1);
        if let Err(refusal) = self.check_puts(&operations)? {
            return Ok(Outcome::Refused(refusal));
        }
        // Found before the first of them changes anything.
        let mut doomed = match self.all_doomed(&operations)? {
            Ok(doomed) => doomed.into_iter(),
            Err(refusal) => return Ok(Outcome::Refused(refusal)),
        };
        // Afterwards only a read of a range can still fail, for it sees the effects of the
        // operations before it.
        let reads_range = |operation: &BatchOperation| match operation {
            BatchOperation::Get { keys, .. } => !matches!(keys, KeyRange::One(_)),
            BatchOperation::Put { .. } | BatchOperation::Delete { .. } => false,
        };
        if operations.iter().any(reads_range) {
            self.begin_undo();
        }
        let mut room = BATCH_READ_BYTES_MAX;
        let mut answers = Vec::with_capacity(operations.len());
        for operation in operations {
            answers.push(self.operation(operation, &mut doomed, &mut room)?);
            if let Err(refusal) = self.visits.check() {
                self.undo();
                return Ok(Outcome::Refused(refusal));
            }
        }
        self.undo = None;
        Ok(Outcome::Batch {
            revision: self.state.revision,
            succeeded,
            answers,
        })
    }

    /// Runs one operation. The keys that range deletes remove are in `doomed`, in their order.
    fn operation(
        &mut self,
        operation: BatchOperation,
        doomed: &mut vec::IntoIter<Vec<KeyValue>>,
        room: &mut usize,
    ) -> Result<BatchAnswer, StoreError> {
        if let Some(get) = Get::of(&operation) {
            return self.get(get, room);
        }
        match operation {
            BatchOperation::Put {
                key,
                value,
                prev_kv,
                ttl_ms,
                lease,
            } => {
                let prev = self.put(key, value, ttl_ms, lease, prev_kv)?;
                Ok(BatchAnswer::Put { prev })
            }
            BatchOperation::Delete {
                keys: KeyRange::One(key),
                prev_kv,
            } => {
                let doomed = self.previous(&key, prev_kv)?.into_iter().collect();
                let (deleted, prev) = self.delete(doomed, prev_kv);
                Ok(BatchAnswer::Delete { deleted, prev })
            }
            BatchOperation::Delete { prev_kv, .. } => {
                let mut doomed = doomed.next().expect("there is one for each range");
                // Without those that an earlier range of the batch deleted; those that it put are
                // not among them.
                doomed.retain(|kv| !matches!(self.keys.get(&kv.key), Some(Changed::Deleted(_))));
                let (deleted, prev) = self.delete(doomed, prev_kv);
                Ok(BatchAnswer::Delete { deleted, prev })
            }
            BatchOperation::Get { .. } => unreachable!("reads are done above"),
        }
    }

    /// Whether all puts can be done, by the state before the first of them.
    fn check_puts(
        &mut self,
        operations: &[BatchOperation],
    ) -> Result<Result<(), Refusal>, StoreError> {
        for operation in operations {
            if let BatchOperation::Put { key, lease, .. } = operation
                && let Err(refusal) = self.check_put(key, *lease)?
            {
                return Ok(Err(refusal));
            }
        }
        Ok(Ok(()))
    }

    /// The keys that each range delete removes.
    fn all_doomed(
        &mut self,
        operations: &[BatchOperation],
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
