//! The records of leases, and of the keys that are attached to them.

use std::ops::Range;

use dengine_types::{Index, LeaseId, NUMBER_MAX};

use super::{ATTACHED, LEASE_ID_BYTES, LEASES, be_u64, corrupt};
use crate::store::StoreError;

const LEASE_BYTES: usize = 25;
const FLAG_ALIVE: u8 = 0;
const FLAG_DYING: u8 = 1;

/// A lease as it is stored: keys may be attached to it, and are deleted with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// How long it lasts after it was granted or kept alive, in milliseconds.
    pub ttl_ms: u64,
    /// How much of that was left at the last checkpoint; all of it if there was none since it was
    /// kept alive. A new leader counts from there.
    pub remaining_ms: u64,
    /// The last entry that changed this record.
    pub touched: Index,
    /// It has ended, with more keys than one command deletes: those that are left still have to go.
    /// For everybody else there is no such lease.
    pub dying: bool,
}

/// The key of a lease.
#[must_use]
pub fn lease_key(lease: LeaseId) -> [u8; 1 + LEASE_ID_BYTES] {
    id_key(LEASES, lease)
}

/// Decodes the key of a lease.
pub fn split_lease_key(key: &[u8]) -> Result<LeaseId, StoreError> {
    match key.split_first() {
        Some((&LEASES, id)) if id.len() == LEASE_ID_BYTES => Ok(lease_id(id)),
        _ => Err(corrupt("key of a lease", key)),
    }
}

/// The range of all leases, or of those after `after`.
#[must_use]
pub fn lease_range(after: Option<LeaseId>) -> Range<Vec<u8>> {
    let mut lower = vec![LEASES];
    if let Some(after) = after {
        lower = lease_key(after).to_vec();
        // The first bytes after that key.
        lower.push(0);
    }
    lower..vec![LEASES + 1]
}

/// The record of a lease.
#[must_use]
pub fn encode_lease(lease: &Lease) -> [u8; LEASE_BYTES] {
    let mut record = [0; LEASE_BYTES];
    let numbers = [lease.ttl_ms, lease.remaining_ms, lease.touched.0];
    for (slot, number) in record.chunks_exact_mut(8).zip(numbers) {
        slot.copy_from_slice(&number.to_be_bytes());
    }
    record[LEASE_BYTES - 1] = if lease.dying { FLAG_DYING } else { FLAG_ALIVE };
    record
}

/// Decodes the record of a lease.
///
/// # Errors
///
/// If it is not one.
pub fn decode_lease(record: &[u8]) -> Result<Lease, StoreError> {
    let damaged = || corrupt("lease", record);
    let (flag, numbers) = record.split_last().ok_or_else(damaged)?;
    if record.len() != LEASE_BYTES || *flag > FLAG_DYING {
        return Err(damaged());
    }
    let lease = Lease {
        ttl_ms: be_u64(&numbers[..8]),
        remaining_ms: be_u64(&numbers[8..16]),
        touched: Index(be_u64(&numbers[16..])),
        dying: *flag == FLAG_DYING,
    };
    let possible = lease.remaining_ms <= lease.ttl_ms && lease.touched.0 <= NUMBER_MAX;
    possible.then_some(lease).ok_or_else(damaged)
}

/// The key of the record that `user_key` is attached to a lease. The user's key is not escaped:
/// what is before it has one length, so the records of a lease are in the order of their keys.
#[must_use]
pub fn attached_key(lease: LeaseId, user_key: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + LEASE_ID_BYTES + user_key.len());
    key.extend_from_slice(&id_key(ATTACHED, lease));
    key.extend_from_slice(user_key);
    key
}

/// Splits such a key into the lease and the user's key.
pub fn split_attached_key(key: &[u8]) -> Result<(LeaseId, &[u8]), StoreError> {
    match key.split_first() {
        Some((&ATTACHED, rest)) if rest.len() >= LEASE_ID_BYTES => {
            let (id, user_key) = rest.split_at(LEASE_ID_BYTES);
            Ok((lease_id(id), user_key))
        }
        _ => Err(corrupt("key of an attached key", key)),
    }
}

/// The range of the keys that are attached to a lease.
#[must_use]
pub fn attached_range(lease: LeaseId) -> Range<Vec<u8>> {
    let upper = match (lease.0.cast_unsigned()).checked_add(1) {
        Some(next) => id_key(ATTACHED, LeaseId(next.cast_signed())).to_vec(),
        None => vec![ATTACHED + 1],
    };
    attached_key(lease, &[])..upper
}

fn id_key(space: u8, lease: LeaseId) -> [u8; 1 + LEASE_ID_BYTES] {
    let mut key = [space; 1 + LEASE_ID_BYTES];
    key[1..].copy_from_slice(&lease.0.to_be_bytes());
    key
}

fn lease_id(bytes: &[u8]) -> LeaseId {
    LeaseId(be_u64(bytes).cast_signed())
}
