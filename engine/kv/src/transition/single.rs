//! Commands with a single operation.

use std::ops::ControlFlow;

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{LeaseId, Revision};

use super::Transition;
use crate::store::{Store, StoreError};
use crate::view::View;
use crate::{
    Expected, ExpiredKey, KeyRange, KeyValue, Outcome, PutLease, RANGE_DELETE_BYTES_MAX, Refusal,
};

impl<S: Store> Transition<'_, S> {
    /// Sets a key, once [`check_put`](Self::check_put) allows it. Returns the previous pair on
    /// request.
    pub(super) fn put(
        &mut self,
        key: Bytes,
        value: Bytes,
        ttl_ms: u64,
        lease: PutLease,
        prev_kv: bool,
    ) -> Result<Option<KeyValue>, StoreError> {
        let prev = self.previous(&key, prev_kv)?;
        let lease = match lease {
            PutLease::None => LeaseId::NONE,
            PutLease::Attach(lease) => lease,
            PutLease::Keep => prev.as_ref().map_or(LeaseId::NONE, |prev| prev.lease),
        };
        self.set(key, value, ttl_ms, lease, prev.as_ref());
        Ok(prev.filter(|_| prev_kv))
    }

    /// The value of a key, which a put is to keep.
    pub(super) fn value_of(&mut self, key: &Bytes) -> Result<Option<Bytes>, StoreError> {
        Ok(self.newest(key, true)?.map(|kv| kv.value))
    }

    /// The same before anything is changed: it will be written again, so it counts as visited.
    pub(super) fn value_to_keep(&mut self, key: &Bytes) -> Result<Option<Bytes>, StoreError> {
        let value = self.value_of(key)?;
        let bytes = value.as_ref().map_or(0, Bytes::len);
        let _: ControlFlow<()> = self.visits.add(bytes);
        Ok(value)
    }

    /// The pairs that a delete removes; or a refusal, if its ranges exceed the rest (`room`) of
    /// what one command may delete.
    pub(super) fn doomed(
        &mut self,
        keys: &KeyRange,
        prev_kv: bool,
        room: &mut usize,
    ) -> Result<Result<Vec<KeyValue>, Refusal>, StoreError> {
        if let KeyRange::One(key) = keys {
            return Ok(Ok(self.previous(key, prev_kv)?.into_iter().collect()));
        }
        let mut doomed = Vec::new();
        let mut fits = true;
        self.visit_live(keys, |live| {
            let Some(left) = room.checked_sub(live.size_bytes(!prev_kv)) else {
                fits = false;
                return ControlFlow::Break(());
            };
            *room = left;
            doomed.push(live.to_key_value(prev_kv));
            ControlFlow::Continue(())
        })?;
        Ok(match fits {
            true => self.visits.check().map(|()| doomed),
            false => Err(Refusal::DeletesTooMuch {
                bytes_max: RANGE_DELETE_BYTES_MAX as u64,
            }),
        })
    }

    /// Deletes the pairs that [`doomed`](Self::doomed) found. Returns their number, and the pairs
    /// on request.
    pub(super) fn delete(&mut self, doomed: Vec<KeyValue>, prev_kv: bool) -> (u64, Vec<KeyValue>) {
        if doomed.is_empty() && planted!(RevisionForNothing) {
            self.next_stamp();
        }
        doomed.iter().for_each(|old| self.unset(old));
        let deleted = doomed.len() as u64;
        (deleted, if prev_kv { doomed } else { Vec::new() })
    }

    pub(super) fn compare_and_swap(
        &mut self,
        key: Bytes,
        expected: &Expected,
        value: Bytes,
        ttl_ms: u64,
    ) -> Result<Outcome, StoreError> {
        let prev = self.newest(&key, true)?;
        let succeeded = match (expected, &prev) {
            (Expected::ModRevision(wanted), None) => *wanted == Revision(0),
            (Expected::ModRevision(wanted), Some(prev)) => *wanted == prev.mod_revision,
            (Expected::Value(_), None) => false,
            (Expected::Value(wanted), Some(prev)) => *wanted == prev.value,
        };
        if succeeded {
            self.set(key, value, ttl_ms, LeaseId::NONE, prev.as_ref());
        }
        Ok(Outcome::CompareAndSwap {
            revision: self.state.revision,
            succeeded,
            prev,
        })
    }

    /// Deletes the keys that were not changed since the leader found them expired.
    pub(super) fn expire_keys(&mut self, keys: &[ExpiredKey]) -> Result<Outcome, StoreError> {
        let mut deleted = 0;
        for expired in keys {
            let now = self.newest(&expired.key, false)?;
            let same = |now: &KeyValue| {
                let known = now.mod_revision == expired.mod_revision && now.ttl_ms != 0;
                known || planted!(ExpiryWithoutRevision)
            };
            if let Some(now) = now.filter(same) {
                self.unset(&now);
                deleted += 1;
            }
        }
        Ok(Outcome::ExpireKeys {
            revision: self.state.revision,
            deleted,
        })
    }
}
