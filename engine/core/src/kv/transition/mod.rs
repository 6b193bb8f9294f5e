//! The step from one state to the next: what a run of entries changes, gathered into one batch.
//!
//! Nothing here is visible until the batch is written. Later entries of the run see earlier ones
//! through `pending`.

use crate::kv::Outcome;
use crate::kv::layout::{
    MEMBERSHIP_KEY, STATE_KEY, Stamp, State, Version, encode_state, put_change_key, put_data_key,
    put_version,
};
use crate::kv::scan::{find, scan};
use crate::kv::store::{Scope, Store, StoreError, WriteBatch};
use crate::kv::{
    Command, CommandError, Expected, KeyRange, KeyValue, Membership, MembershipChange, Request,
};
use crate::types::{Entry, EntryKind, Revision};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// The step while it is being gathered.
pub(in crate::kv) struct Transition<'a, S: Store> {
    store: &'a S,
    /// The state before the step.
    before: S::Cursor<'a>,
    /// Every key that the step changed, as it now is; `None`: deleted.
    pending: BTreeMap<Bytes, Option<KeyValue>>,
    state: State,
    membership: Arc<Membership>,
    batch: WriteBatch,
    buffer: Vec<u8>,
}

/// The step when it is complete.
pub(in crate::kv) struct Finished {
    pub(in crate::kv) batch: WriteBatch,
    pub(in crate::kv) state: State,
    pub(in crate::kv) membership: Arc<Membership>,
}

impl<'a, S: Store> Transition<'a, S> {
    pub(in crate::kv) fn new(store: &'a S, state: State, membership: Arc<Membership>) -> Self {
        Self {
            store,
            before: store.cursor(Scope::OneKey),
            pending: BTreeMap::new(),
            state,
            membership,
            batch: WriteBatch::default(),
            buffer: Vec::new(),
        }
    }

    /// Adds the effects of one entry.
    pub(in crate::kv) fn apply(&mut self, entry: &Entry) -> Result<Outcome, StoreError> {
        let outcome = match entry.kind {
            EntryKind::Membership => self.change_membership(&entry.data)?,
            EntryKind::Command if entry.data.is_empty() => Outcome::Empty,
            EntryKind::Command => match Request::decode(entry.data.clone())? {
                Ok(request) => self.command(request.command)?,
                Err(reason) => Outcome::Rejected(reason),
            },
        };
        self.state.applied_index = entry.index;
        self.state.applied_term = entry.term;
        Ok(outcome)
    }

    /// Closes the step; it is no longer looking at the store then.
    pub(in crate::kv) fn finish(mut self) -> Finished {
        self.batch.put(STATE_KEY, &encode_state(&self.state));
        Finished {
            batch: self.batch,
            state: self.state,
            membership: self.membership,
        }
    }

    fn command(&mut self, command: Command) -> Result<Outcome, StoreError> {
        match command {
            Command::Put {
                key,
                value,
                prev_kv,
                ttl_ms: _,
            } => {
                let prev = self.newest(&key, prev_kv)?;
                let revision = self.put(key, value, prev.as_ref());
                Ok(Outcome::Put {
                    revision,
                    prev: prev.filter(|_| prev_kv),
                })
            }
            Command::Delete { keys, prev_kv } => self.delete(&keys, prev_kv),
            Command::CompareAndSwap {
                key,
                expected,
                value,
                ttl_ms: _,
            } => self.compare_and_swap(key, &expected, value),
            _ => Ok(Outcome::Rejected(CommandError::Malformed(
                "not built yet".to_owned(),
            ))),
        }
    }

    fn compare_and_swap(
        &mut self,
        key: Bytes,
        expected: &Expected,
        value: Bytes,
    ) -> Result<Outcome, StoreError> {
        let prev = self.newest(&key, true)?;
        let succeeded = match (expected, &prev) {
            (Expected::ModRevision(wanted), None) => *wanted == Revision(0),
            (Expected::ModRevision(wanted), Some(prev)) => *wanted == prev.mod_revision,
            (Expected::Value(_), None) => false,
            (Expected::Value(wanted), Some(prev)) => *wanted == prev.value,
        };
        let revision = if succeeded {
            self.put(key, value, prev.as_ref())
        } else {
            self.state.revision
        };
        Ok(Outcome::CompareAndSwap {
            revision,
            succeeded,
            prev,
        })
    }

    fn put(&mut self, key: Bytes, value: Bytes, prev: Option<&KeyValue>) -> Revision {
        let stamp = self.take_revision();
        let new = KeyValue {
            key: key.clone(),
            value,
            create_revision: prev.map_or(stamp.revision, |prev| prev.create_revision),
            mod_revision: stamp.revision,
            version: prev.map_or(1, |prev| prev.version + 1),
            ttl_ms: 0,
        };
        let record = Version::Live {
            create_revision: new.create_revision,
            version: new.version,
            value: &new.value,
        };
        self.write_version(&key, stamp, &record);
        self.pending.insert(key, Some(new));
        stamp.revision
    }

    fn delete(&mut self, keys: &KeyRange, prev_kv: bool) -> Result<Outcome, StoreError> {
        let prev = self.live(keys, prev_kv)?;
        if prev.is_empty() {
            return Ok(Outcome::Delete {
                revision: self.state.revision,
                deleted: 0,
                prev,
            });
        }
        let mut stamp = self.take_revision();
        for old in &prev {
            self.write_version(&old.key, stamp, &Version::Tombstone);
            self.pending.insert(old.key.clone(), None);
            stamp.sub += 1;
        }
        Ok(Outcome::Delete {
            revision: stamp.revision,
            deleted: prev.len() as u64,
            prev: if prev_kv { prev } else { Vec::new() },
        })
    }

    fn change_membership(&mut self, data: &[u8]) -> Result<Outcome, StoreError> {
        let change = match MembershipChange::decode(data)? {
            Ok(change) => change,
            Err(error) => return Ok(Outcome::Membership(Err(error.into()))),
        };
        let mut changed = Membership::clone(&self.membership);
        Ok(Outcome::Membership(match changed.apply(change) {
            Ok(()) => {
                self.batch.put(MEMBERSHIP_KEY, &changed.encode());
                self.membership = Arc::new(changed);
                Ok(Arc::clone(&self.membership))
            }
            Err(refusal) => Err(refusal),
        }))
    }

    /// A key as it is now, with its value only if that is wanted or free.
    fn newest(&mut self, key: &Bytes, with_value: bool) -> Result<Option<KeyValue>, StoreError> {
        if let Some(pending) = self.pending.get(key) {
            return Ok(pending.clone());
        }
        let found = find(&mut self.before, &mut self.buffer, key, self.state.revision)?;
        Ok(found.map(|found| found.to_key_value(key.clone(), with_value)))
    }

    /// All keys of a range that exist now, in order.
    fn live(&mut self, keys: &KeyRange, with_values: bool) -> Result<Vec<KeyValue>, StoreError> {
        if let KeyRange::One(key) = keys {
            return Ok(self.newest(key, with_values)?.into_iter().collect());
        }
        let mut live = BTreeMap::new();
        scan(self.store, keys, self.state.revision, |found| {
            let key = found.key()?;
            if !self.pending.contains_key(&key) {
                live.insert(key.clone(), found.to_key_value(key, with_values));
            }
            Ok(())
        })?;
        let from = Bound::Included(keys.start().clone());
        let pending = self.pending.range((from, Bound::Unbounded));
        for (key, now) in pending.take_while(|(key, _)| keys.contains(key)) {
            live.extend(now.clone().map(|now| (key.clone(), now)));
        }
        Ok(live.into_values().collect())
    }

    fn take_revision(&mut self) -> Stamp {
        self.state.revision.0 += 1;
        Stamp {
            revision: self.state.revision,
            sub: 0,
        }
    }

    fn write_version(&mut self, key: &[u8], stamp: Stamp, record: &Version<'_>) {
        self.batch.put_with(
            |out| put_data_key(out, key, stamp),
            |out| put_version(out, record),
        );
        self.batch.put_with(
            |out| put_change_key(out, stamp),
            |out| out.extend_from_slice(key),
        );
    }
}
