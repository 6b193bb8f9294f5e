//! Several operations as one command.

use super::Transition;
use crate::kv::store::{Store, StoreError};
use crate::kv::{
    BATCH_READ_BYTES_MAX, Batch, BatchAnswer, BatchOperation, Compare, CompareTarget, KeyRange,
    KeyValue, Outcome, RANGE_DELETE_BYTES_MAX, Refusal, Relation,
};
use crate::types::Revision;
use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::vec;

/// Which part of a range an operation reads.
struct Bounds {
    /// 0: none.
    limit: u64,
    keys_only: bool,
    count_only: bool,
}

impl<S: Store> Transition<'_, S> {
    pub(super) fn batch(&mut self, batch: Batch) -> Result<Outcome, StoreError> {
        if batch.duplicate_key().is_some() {
            return Ok(Outcome::Refused(Refusal::DuplicateKey));
        }
        let succeeded = self.all_hold(&batch.compares)?;
        let operations = if succeeded {
            batch.then
        } else {
            batch.otherwise
        };
        // Before the first of them changes anything.
        let mut doomed = match self.all_doomed(&operations)? {
            Ok(doomed) => doomed.into_iter(),
            Err(refusal) => return Ok(Outcome::Refused(refusal)),
        };
        let mut room = BATCH_READ_BYTES_MAX;
        let mut answers = Vec::with_capacity(operations.len());
        for operation in operations {
            answers.push(self.operation(operation, &mut doomed, &mut room)?);
        }
        Ok(Outcome::Batch {
            revision: self.state.revision,
            succeeded,
            answers,
        })
    }

    /// Does one. What deletes find is in `doomed`, in their order.
    fn operation(
        &mut self,
        operation: BatchOperation,
        doomed: &mut vec::IntoIter<Vec<KeyValue>>,
        room: &mut usize,
    ) -> Result<BatchAnswer, StoreError> {
        match operation {
            BatchOperation::Put {
                key,
                value,
                prev_kv,
                ttl_ms,
            } => {
                let prev = self.put(key, value, ttl_ms, prev_kv)?;
                Ok(BatchAnswer::Put { prev })
            }
            BatchOperation::Delete { prev_kv, .. } => {
                let mut doomed = doomed.next().expect("there is one for each delete");
                // Not what an earlier range of the batch has deleted; what it has put can't be among them.
                doomed.retain(|kv| self.keys.get(&kv.key) != Some(&None));
                let (deleted, prev) = self.delete(doomed, prev_kv);
                Ok(BatchAnswer::Delete { deleted, prev })
            }
            BatchOperation::Get {
                keys,
                limit,
                keys_only,
                count_only,
            } => {
                let bounds = Bounds {
                    limit,
                    keys_only,
                    count_only,
                };
                self.get(&keys, &bounds, room)
            }
        }
    }

    /// What each of the deletes finds.
    fn all_doomed(
        &mut self,
        operations: &[BatchOperation],
    ) -> Result<Result<Vec<Vec<KeyValue>>, Refusal>, StoreError> {
        let mut room = RANGE_DELETE_BYTES_MAX;
        let mut all = Vec::new();
        for operation in operations {
            if let BatchOperation::Delete { keys, prev_kv } = operation {
                match self.doomed(keys, *prev_kv, &mut room)? {
                    Ok(doomed) => all.push(doomed),
                    Err(refusal) => return Ok(Err(refusal)),
                }
            }
        }
        Ok(Ok(all))
    }

    /// Reads a range. `room` is what all reads of the batch may still return; the pair that exceeds it is
    /// the last one.
    fn get(
        &self,
        keys: &KeyRange,
        bounds: &Bounds,
        room: &mut usize,
    ) -> Result<BatchAnswer, StoreError> {
        let limit = match bounds.limit {
            _ if bounds.count_only => 0,
            0 => u64::MAX,
            limit => limit,
        };
        let mut kvs = Vec::new();
        let mut count = 0;
        self.visit_live(keys, |live| {
            if count < limit && *room > 0 {
                let mut kv = live.to_key_value(!bounds.keys_only);
                if bounds.keys_only {
                    kv.value.clear();
                }
                *room = room.saturating_sub(live.size_bytes(bounds.keys_only));
                kvs.push(kv);
            }
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(BatchAnswer::Get {
            more: !bounds.count_only && count > kvs.len() as u64,
            kvs,
            count,
        })
    }

    fn all_hold(&mut self, compares: &[Compare]) -> Result<bool, StoreError> {
        for compare in compares {
            if !self.holds(compare)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn holds(&mut self, compare: &Compare) -> Result<bool, StoreError> {
        let with_value = matches!(compare.target, CompareTarget::Value(_));
        if let KeyRange::One(key) = &compare.keys {
            let now = self.newest(key, with_value)?;
            return Ok(holds_for(compare, now.as_ref()));
        }
        let mut exists = false;
        let mut all = true;
        self.visit_live(&compare.keys, |live| {
            exists = true;
            all = holds_for(compare, Some(&live.to_key_value(with_value)));
            match all {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        Ok(if exists {
            all
        } else {
            holds_for(compare, None)
        })
    }
}

/// Whether a comparison holds for a key, or for one that does not exist.
fn holds_for(compare: &Compare, kv: Option<&KeyValue>) -> bool {
    let revision = |of: fn(&KeyValue) -> Revision| kv.map_or(Revision(0), of);
    let ordering = match (&compare.target, kv) {
        (CompareTarget::Version(wanted), _) => kv.map_or(0, |kv| kv.version).cmp(wanted),
        (CompareTarget::CreateRevision(wanted), _) => revision(|kv| kv.create_revision).cmp(wanted),
        (CompareTarget::ModRevision(wanted), _) => revision(|kv| kv.mod_revision).cmp(wanted),
        (CompareTarget::Value(wanted), Some(kv)) => kv.value.cmp(wanted),
        // There is no way to write down a value that does not exist.
        (CompareTarget::Value(_), None) => return false,
    };
    match compare.relation {
        Relation::Equal => ordering == Ordering::Equal,
        Relation::NotEqual => ordering != Ordering::Equal,
        Relation::Greater => ordering == Ordering::Greater,
        Relation::Less => ordering == Ordering::Less,
    }
}
