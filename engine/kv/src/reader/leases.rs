//! Leases and their keys.

use bytes::Bytes;
use dengine_types::{Index, LeaseId};

use super::{ReadError, Reader};
use crate::layout::{
    Lease, attached_key, attached_range, decode_lease, lease_key, lease_range, split_attached_key,
    split_lease_key,
};
use crate::store::{Cursor, Scope};
use crate::{Store, StoreError};

/// A lease as the state has it. How long it still lasts only its leader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    pub id: LeaseId,
    /// How long it lasts after it was granted or kept alive, in milliseconds.
    pub ttl_ms: u64,
    /// How much of that was left at the last checkpoint, in milliseconds.
    pub remaining_ms: u64,
    /// The last entry that changed its record.
    pub touched: Index,
    /// It has ended, and some of its keys are still to be deleted. For clients there is no such
    /// lease.
    pub dying: bool,
}

impl LeaseInfo {
    /// Decodes the record of a lease in the store.
    pub fn decode(id: LeaseId, record: &[u8]) -> Result<Self, StoreError> {
        let Lease {
            ttl_ms,
            remaining_ms,
            touched,
            dying,
        } = decode_lease(record)?;
        Ok(Self {
            id,
            ttl_ms,
            remaining_ms,
            touched,
            dying,
        })
    }
}

impl<S: Store> Reader<S> {
    /// One lease, if it exists.
    pub fn lease(&self, id: LeaseId) -> Result<Option<LeaseInfo>, ReadError> {
        let record = self.shared.store.get(&lease_key(id));
        let info = self.shared.reported(record)?;
        let info = info.map(|record| LeaseInfo::decode(id, &record));
        Ok(self.shared.reported(info.transpose())?)
    }

    /// The leases, ids from 1 on in their order and then the negative ones: at most `limit` after
    /// `after`.
    pub fn leases(
        &self,
        after: Option<LeaseId>,
        limit: usize,
    ) -> Result<Vec<LeaseInfo>, ReadError> {
        self.records(lease_range(after), limit, |key, record| {
            LeaseInfo::decode(split_lease_key(key)?, record)
        })
    }

    /// A lease, if it exists, and the keys that are attached to it at the same time: at most
    /// `limit` of those after the key `after`, in their order.
    pub fn lease_with_keys(
        &self,
        id: LeaseId,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Option<(LeaseInfo, Vec<Bytes>)>, ReadError> {
        let mut keys = attached_range(id);
        let both = keys.start.clone()..lease_range(None).end;
        // One cursor, so both are of one applied index.
        let mut cursor = self.shared.store.cursor(Scope::Between(both));
        if let Some(after) = after {
            keys.start = attached_key(id, after);
            // The first bytes after that record.
            keys.start.push(0);
        }
        let mut read = || {
            let key = lease_key(id);
            cursor.seek(&key)?;
            let found = cursor.record().filter(|(found, _)| *found == key);
            let Some((_, record)) = found else {
                return Ok(None);
            };
            let info = LeaseInfo::decode(id, record)?;
            let keys = attached_keys(&mut cursor, id, &keys.start, limit)?;
            Ok(Some((info, keys)))
        };
        Ok(self.shared.reported(read())?)
    }
}

fn attached_keys(
    cursor: &mut impl Cursor,
    id: LeaseId,
    start: &[u8],
    limit: usize,
) -> Result<Vec<Bytes>, StoreError> {
    // What follows them in the cursor's scope is of other leases.
    let end = attached_range(id).end;
    cursor.seek(start)?;
    let mut keys = Vec::new();
    while keys.len() < limit
        && let Some((record, _)) = cursor.record()
        && record < end.as_slice()
    {
        let (_, key) = split_attached_key(record)?;
        keys.push(Bytes::copy_from_slice(key));
        cursor.next()?;
    }
    Ok(keys)
}
