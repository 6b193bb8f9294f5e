//! Keys as they are in the middle of a step, and the records that change them.

use super::Transition;
use crate::kv::layout::{
    Change, Stamp, Version, put_change, put_change_key, put_data_key, put_expiring_key, put_ttl,
    put_version,
};
use crate::kv::scan::{Found, Scan, find};
use crate::kv::store::{Scope, Store, StoreError};
use crate::kv::{KeyRange, KeyValue};
use crate::types::Revision;
use bytes::Bytes;
use std::iter;
use std::ops::{Bound, ControlFlow};

/// What a pair costs in an answer besides its key and value, roughly.
const PAIR_OVERHEAD_BYTES: usize = 32;

/// A key that exists in the middle of a step.
pub(super) enum Live<'a> {
    /// As the store has it.
    Stored(Bytes, &'a Found<'a>),
    /// As the step has made it.
    Changed(&'a KeyValue),
}

impl Live<'_> {
    /// A copy. Without its value unless that is wanted, or costs nothing.
    pub(super) fn to_key_value(&self, with_value: bool) -> KeyValue {
        match self {
            Self::Stored(key, found) => found.to_key_value(key.clone(), with_value),
            Self::Changed(kv) => KeyValue::clone(kv),
        }
    }

    /// What it adds to an answer. Equal on all members, so whether the step or the store has the key
    /// must not matter.
    pub(super) fn size_bytes(&self, keys_only: bool) -> usize {
        let (key, value) = match self {
            Self::Stored(key, found) => (key.len(), found.value_bytes()),
            Self::Changed(kv) => (kv.key.len(), kv.value.len()),
        };
        PAIR_OVERHEAD_BYTES + key + if keys_only { 0 } else { value }
    }
}

impl<S: Store> Transition<'_, S> {
    /// A key as it is now, with its value only if that is wanted or free.
    pub(super) fn newest(
        &mut self,
        key: &Bytes,
        with_value: bool,
    ) -> Result<Option<KeyValue>, StoreError> {
        if let Some(changed) = self.keys.get(key) {
            return Ok(changed.clone());
        }
        if !with_value && let Some(known) = self.recent.get(key) {
            return Ok(known.to_key_value(key.clone()));
        }
        let before = self
            .before
            .get_or_insert_with(|| self.store.cursor(Scope::OneKey));
        let found = find(before, &mut self.buffer, key, self.state.revision)?;
        Ok(found.map(|found| found.to_key_value(key.clone(), with_value)))
    }

    /// Shows every key of a range that exists now, in order, until `visit` has seen enough.
    pub(super) fn visit_live(
        &self,
        keys: &KeyRange,
        mut visit: impl FnMut(&Live<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let from = (Bound::Included(keys.start()), Bound::Unbounded);
        let changed = self.keys.range::<Bytes, _>(from);
        let mut changed = changed.take_while(|(key, _)| keys.contains(key)).peekable();
        let mut flow = ControlFlow::Continue(());
        Scan::new(self.store, keys).run(self.state.revision, |found| {
            let key = found.key()?;
            let mut before = iter::from_fn(|| changed.next_if(|(other, _)| **other < key));
            flow = before.try_for_each(|(_, now)| show(now, &mut visit));
            if flow.is_continue() {
                flow = match changed.next_if(|(other, _)| **other == key) {
                    Some((_, now)) => show(now, &mut visit),
                    None => visit(&Live::Stored(key, found)),
                };
            }
            Ok(flow)
        })?;
        if flow.is_continue() {
            let _: ControlFlow<()> = changed.try_for_each(|(_, now)| show(now, &mut visit));
        }
        Ok(())
    }

    /// Sets a key that is now `prev`.
    pub(super) fn set(&mut self, key: Bytes, value: Bytes, ttl_ms: u64, prev: Option<&KeyValue>) {
        let stamp = self.next_stamp();
        let new = KeyValue {
            key: key.clone(),
            value,
            create_revision: prev.map_or(stamp.revision, |prev| prev.create_revision),
            mod_revision: stamp.revision,
            version: prev.map_or(1, |prev| prev.version + 1),
            ttl_ms,
        };
        let record = Version::Live {
            create_revision: new.create_revision,
            version: new.version,
            ttl_ms,
            value: &new.value,
        };
        let replaces = prev.map(|prev| prev.mod_revision);
        self.write_version(&key, stamp, &record, replaces);
        prev.into_iter().for_each(|prev| self.forget_ttl(prev));
        if ttl_ms != 0 {
            self.batch.put_with(
                |out| put_expiring_key(out, stamp.revision, &key),
                |out| put_ttl(out, ttl_ms),
            );
        }
        self.keys.insert(key, Some(new));
    }

    /// Deletes a key that is now `prev`.
    pub(super) fn unset(&mut self, prev: &KeyValue) {
        let stamp = self.next_stamp();
        let replaces = Some(prev.mod_revision);
        self.write_version(&prev.key, stamp, &Version::Tombstone, replaces);
        self.forget_ttl(prev);
        self.keys.insert(prev.key.clone(), None);
    }

    /// Where the next change goes. All changes of one command have one revision.
    fn next_stamp(&mut self) -> Stamp {
        let stamp = match self.stamp {
            Some(last) => Stamp {
                sub: last.sub + 1,
                ..last
            },
            None => {
                self.state.revision = Revision(self.state.revision.0 + 1);
                Stamp {
                    revision: self.state.revision,
                    sub: 0,
                }
            }
        };
        self.stamp = Some(stamp);
        stamp
    }

    fn write_version(
        &mut self,
        key: &[u8],
        stamp: Stamp,
        record: &Version<'_>,
        replaces: Option<Revision>,
    ) {
        self.batch.put_with(
            |out| put_data_key(out, key, stamp.revision),
            |out| put_version(out, record),
        );
        let change = Change {
            key,
            deletes: *record == Version::Tombstone,
            replaces,
        };
        self.batch.put_with(
            |out| put_change_key(out, stamp),
            |out| put_change(out, change),
        );
    }

    fn forget_ttl(&mut self, prev: &KeyValue) {
        if prev.ttl_ms != 0 {
            let mut key = Vec::with_capacity(9 + prev.key.len());
            put_expiring_key(&mut key, prev.mod_revision, &prev.key);
            self.batch.delete(&key);
        }
    }
}

/// Shows a key that the step has changed, if it still exists.
fn show(
    now: &Option<KeyValue>,
    visit: &mut impl FnMut(&Live<'_>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    match now {
        Some(kv) => visit(&Live::Changed(kv)),
        None => ControlFlow::Continue(()),
    }
}
