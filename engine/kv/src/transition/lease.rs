//! Leases, and the keys that are attached to them.
//!
//! Which keys those are is in three places that always agree: a live pair names its lease, a record
//! for each such key tells them by lease, and the lease itself has a record.

use std::collections::BTreeSet;

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{Index, LeaseId};

use super::{Changed, Transition};
use crate::layout::{
    Lease, attached_key, attached_range, decode_lease, encode_lease, lease_key, split_attached_key,
};
use crate::store::{Cursor, Scope, Store, StoreError};
use crate::view::{View as _, pair_bytes};
use crate::{
    LEASES_MAX, LeaseCheckpoint, LeaseEnd, Outcome, PutLease, RANGE_DELETE_BYTES_MAX, Refusal,
};

impl<S: Store> Transition<'_, S> {
    pub(super) fn grant_lease(
        &mut self,
        index: Index,
        lease: LeaseId,
        ttl_ms: u64,
    ) -> Result<Outcome, StoreError> {
        if lease == LeaseId::NONE {
            return Ok(Outcome::Refused(Refusal::LeaseNotFound(lease)));
        }
        // One that is dying too: its keys would be the new one's.
        if self.lease(lease)?.is_some() {
            return Ok(Outcome::Refused(Refusal::LeaseExists(lease)));
        }
        if self.state.leases >= LEASES_MAX {
            return Ok(Outcome::Refused(Refusal::TooManyLeases(self.state.leases)));
        }
        self.state.leases += 1;
        let granted = Lease {
            ttl_ms,
            remaining_ms: ttl_ms,
            touched: index,
            dying: false,
        };
        self.write_lease(lease, granted);
        Ok(Outcome::LeaseGranted {
            lease,
            ttl_ms,
            revision: self.state.revision,
        })
    }

    pub(super) fn revoke_lease(
        &mut self,
        index: Index,
        lease: LeaseId,
    ) -> Result<Outcome, StoreError> {
        match self.living_lease(lease)? {
            Some(record) => self.end_lease(index, lease, record),
            None => Ok(Outcome::Refused(Refusal::LeaseNotFound(lease))),
        }
    }

    /// Ends a lease, or goes on with that, unless its record was changed after the entry `seen`.
    pub(super) fn expire_lease(
        &mut self,
        index: Index,
        lease: LeaseId,
        seen: Index,
    ) -> Result<Outcome, StoreError> {
        match self.lease(lease)? {
            Some(record) if record.touched == seen => self.end_lease(index, lease, record),
            _ => Ok(Outcome::LeaseEnded {
                lease,
                revision: self.state.revision,
                deleted: 0,
                end: LeaseEnd::NotDone,
            }),
        }
    }

    fn end_lease(
        &mut self,
        index: Index,
        lease: LeaseId,
        record: Lease,
    ) -> Result<Outcome, StoreError> {
        let (keys, is_all) = self.attached(lease)?;
        self.records = keys.len() + 1;
        for key in &keys {
            if planted!(LeaseKeysGoApart) {
                self.stamp = None;
            }
            let now = self.newest(key, false)?.filter(|kv| kv.lease == lease);
            let now = now.ok_or_else(|| disagree(lease, key))?;
            self.unset(&now);
        }
        if is_all {
            self.state.leases = self.state.leases.checked_sub(1).ok_or_else(|| {
                StoreError::Corrupt(format!("lease {lease} exists, but the state counts none"))
            })?;
            self.batch.delete(&lease_key(lease));
            self.leases.insert(lease, None);
        } else {
            let dying = Lease {
                touched: index,
                dying: true,
                ..record
            };
            self.write_lease(lease, dying);
        }
        Ok(Outcome::LeaseEnded {
            lease,
            revision: self.state.revision,
            deleted: keys.len() as u64,
            end: match is_all {
                true => LeaseEnd::Gone,
                false => LeaseEnd::Dying,
            },
        })
    }

    pub(super) fn checkpoint_leases(
        &mut self,
        index: Index,
        leases: Vec<LeaseCheckpoint>,
    ) -> Result<Outcome, StoreError> {
        let mut recorded = Vec::with_capacity(leases.len());
        for checkpoint in leases {
            let LeaseCheckpoint { lease, seen, .. } = checkpoint;
            let living = self.living_lease(lease)?;
            let Some(record) = living.filter(|record| record.touched == seen) else {
                continue;
            };
            let remaining_ms = checkpoint.remaining_ms.min(record.ttl_ms);
            let checkpointed = Lease {
                remaining_ms,
                touched: index,
                ..record
            };
            self.write_lease(lease, checkpointed);
            recorded.push(LeaseCheckpoint {
                remaining_ms,
                ..checkpoint
            });
        }
        Ok(Outcome::LeasesCheckpointed { leases: recorded })
    }

    /// Whether a put can be done as far as leases are concerned.
    pub(super) fn check_put(
        &mut self,
        key: &Bytes,
        lease: PutLease,
    ) -> Result<Result<(), Refusal>, StoreError> {
        Ok(match lease {
            PutLease::None => Ok(()),
            PutLease::Attach(lease) => match self.living_lease(lease)? {
                Some(_) => Ok(()),
                None => Err(Refusal::LeaseNotFound(lease)),
            },
            PutLease::Keep => match self.newest(key, false)? {
                Some(_) => Ok(()),
                None => Err(Refusal::KeyNotFound),
            },
        })
    }

    /// Notes that a key that was attached to `before` is now attached to `now`.
    pub(super) fn attach(&mut self, key: &[u8], before: LeaseId, now: LeaseId) {
        if before == now {
            return;
        }
        if before != LeaseId::NONE && !planted!(DetachForgotten) {
            self.batch.delete(&attached_key(before, key));
        }
        if now != LeaseId::NONE {
            self.batch.put(&attached_key(now, key), &[]);
        }
    }

    /// The keys that are attached to a lease, in their order, and whether that is all of them: no
    /// more are returned than one command deletes, but one at least.
    fn attached(&mut self, lease: LeaseId) -> Result<(Vec<Bytes>, bool), StoreError> {
        let in_step = self.keys.iter();
        let is_attached = |now: &Changed| now.live().is_some_and(|kv| kv.lease == lease);
        let mut found: BTreeSet<Bytes> = in_step
            .filter(|(_, now)| is_attached(now))
            .map(|(key, _)| key.clone())
            .collect();
        let range = attached_range(lease);
        let mut cursor = self.store.cursor(Scope::Between(range.clone()));
        cursor.seek(&range.start)?;
        let mut room = Some(RANGE_DELETE_BYTES_MAX);
        while let Some(left) = room
            && let Some((record, _)) = cursor.record()
        {
            let (_, key) = split_attached_key(record)?;
            if self.keys.get(key).is_none_or(is_attached) {
                found.insert(Bytes::copy_from_slice(key));
                room = left.checked_sub(pair_bytes(key));
            }
            cursor.next()?;
        }
        let before = found.len();
        let mut room = RANGE_DELETE_BYTES_MAX;
        let mut fits = |key: &Bytes| {
            let left = room.checked_sub(pair_bytes(key));
            room = left.unwrap_or_default();
            left.is_some()
        };
        let keys: Vec<_> = found.into_iter().take_while(|key| fits(key)).collect();
        let is_all = keys.len() == before;
        Ok((keys, is_all))
    }

    /// A lease that has not ended.
    fn living_lease(&mut self, lease: LeaseId) -> Result<Option<Lease>, StoreError> {
        Ok(self.lease(lease)?.filter(|record| !record.dying))
    }

    fn lease(&mut self, lease: LeaseId) -> Result<Option<Lease>, StoreError> {
        if let Some(known) = self.leases.get(&lease) {
            return Ok(*known);
        }
        let record = self.store.get(&lease_key(lease))?;
        let known = record.map(|record| decode_lease(&record)).transpose()?;
        self.leases.insert(lease, known);
        Ok(known)
    }

    fn write_lease(&mut self, lease: LeaseId, now: Lease) {
        self.batch.put(&lease_key(lease), &encode_lease(&now));
        self.leases.insert(lease, Some(now));
    }
}

fn disagree(lease: LeaseId, key: &[u8]) -> StoreError {
    StoreError::Corrupt(format!(
        "lease {lease} lists the key {}, which is not attached to it",
        key[..key.len().min(64)].escape_ascii()
    ))
}
