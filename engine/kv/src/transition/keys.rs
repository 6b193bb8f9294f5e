//! Keys in the middle of a step, and the records that change them.

use std::iter;
use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use dengine_types::{LeaseId, Revision};

use super::Transition;
use crate::key_cache::Newest;
use crate::layout::{
    Change, Stamp, Version, put_change, put_change_key, put_data_key, put_expiring_key, put_ttl,
    put_version, user_key,
};
use crate::scan::{Scan, Seen, find};
use crate::store::{Scope, Store, StoreError};
use crate::view::{Live, View, Visited};
use crate::visits::Visits;
use crate::{KeyRange, KeyValue};

/// A key that the step has changed.
#[derive(Clone, Debug)]
pub(super) enum Changed {
    Put(KeyValue),
    /// Deleted at this revision.
    Deleted(Revision),
}

impl Changed {
    /// The current pair, if the key exists.
    pub(super) fn live(&self) -> Option<&KeyValue> {
        match self {
            Self::Put(kv) => Some(kv),
            Self::Deleted(_) => None,
        }
    }

    /// As the cache of keys has it.
    pub(super) fn newest(&self) -> Newest {
        match self {
            Self::Put(kv) => Newest::of(kv),
            Self::Deleted(revision) => Newest::Deleted(*revision),
        }
    }

    fn visited(&self, key: &Bytes) -> Visited<'_> {
        match self {
            Self::Put(kv) => Visited::Live(Live::Changed(kv)),
            Self::Deleted(revision) => Visited::Deleted(key.len(), *revision),
        }
    }
}

impl<S: Store> View for Transition<'_, S> {
    type Error = StoreError;

    fn newest(&mut self, key: &Bytes, with_value: bool) -> Result<Option<KeyValue>, StoreError> {
        if let Some(changed) = self.keys.get(key) {
            return Ok(changed.live().cloned());
        }
        if let Some(known) = self.cache.get(key, with_value) {
            return Ok(known);
        }
        let before = self
            .before
            .get_or_insert_with(|| self.store.cursor(Scope::OneKey));
        let found = find(before, &mut self.buffer, key, self.state.revision)?;
        Ok(found.map(|found| found.to_key_value(key.clone(), with_value)))
    }

    fn visit_live(
        &mut self,
        keys: &KeyRange,
        mut visit: impl FnMut(&Live<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let from = (Bound::Included(keys.start()), Bound::Unbounded);
        let changed = self.keys.range::<Bytes, _>(from);
        let mut changed = changed.take_while(|(key, _)| keys.contains(key)).peekable();
        let compacted = self.state.compact_revision;
        let visits = &mut self.visits;
        let is_counted = visits.counts(keys);
        let mut show = |visited: &Visited<'_>| {
            let cost = match (keys, visited) {
                // The store does not show a single key that is deleted, and members differ in
                // where the step begins.
                (KeyRange::One(_), Visited::Deleted(..)) => None,
                _ => visited.cost_bytes(compacted),
            };
            if is_counted && let Some(bytes) = cost {
                visits.add(bytes)?;
            }
            match visited {
                Visited::Live(live) => visit(live),
                Visited::Deleted(..) | Visited::Later => ControlFlow::Continue(()),
            }
        };
        let mut flow = ControlFlow::Continue(());
        Scan::new(self.store, keys).run(self.state.revision, |seen| {
            let (key, visited) = match seen {
                Seen::Live(found) => {
                    let key = found.key()?;
                    (key.clone(), Visited::Live(Live::Stored(key, found)))
                }
                Seen::Deleted { prefix, revision } => {
                    let key = user_key(prefix)?;
                    let visited = Visited::Deleted(key.len(), *revision);
                    (key.into(), visited)
                }
                Seen::Later => return Ok(ControlFlow::Continue(())),
            };
            let mut before = iter::from_fn(|| changed.next_if(|(other, _)| **other < key));
            flow = before.try_for_each(|(key, now)| show(&now.visited(key)));
            if flow.is_continue() {
                flow = match changed.next_if(|(other, _)| **other == key) {
                    Some((key, now)) => show(&now.visited(key)),
                    None => show(&visited),
                };
            }
            Ok(flow)
        })?;
        if flow.is_continue() {
            let _: ControlFlow<()> = changed.try_for_each(|(key, now)| show(&now.visited(key)));
        }
        Ok(())
    }

    fn visit_past(
        &mut self,
        keys: &KeyRange,
        at: Revision,
        mut visit: impl FnMut(&Live<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        assert!(at <= self.began_at, "what reads the past begins a step");
        let compacted = self.state.compact_revision;
        let visits = &mut self.visits;
        let is_counted = visits.counts(keys);
        Scan::new(self.store, keys).run(at, |seen| {
            let visited = Visited::of(seen)?;
            if is_counted
                && let Some(bytes) = visited.cost_bytes(compacted)
                && visits.add(bytes).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            Ok(match &visited {
                Visited::Live(live) => visit(live),
                Visited::Deleted(..) | Visited::Later => ControlFlow::Continue(()),
            })
        })?;
        Ok(())
    }

    fn visits(&mut self) -> &mut Visits {
        &mut self.visits
    }
}

impl<S: Store> Transition<'_, S> {
    /// Sets a key whose current pair is `prev`.
    pub(super) fn set(
        &mut self,
        key: Bytes,
        value: Bytes,
        ttl_ms: u64,
        lease: LeaseId,
        prev: Option<&KeyValue>,
    ) {
        let stamp = self.next_stamp();
        let new = KeyValue {
            key: key.clone(),
            value,
            create_revision: prev.map_or(stamp.revision, |prev| prev.create_revision),
            mod_revision: stamp.revision,
            version: prev.map_or(1, |prev| prev.version + 1),
            ttl_ms,
            lease,
        };
        let record = Version::Live {
            create_revision: new.create_revision,
            version: new.version,
            ttl_ms,
            lease,
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
        self.attach(&key, prev.map_or(LeaseId::NONE, |prev| prev.lease), lease);
        self.change(key, Changed::Put(new));
    }

    /// Deletes a key whose current pair is `prev`.
    pub(super) fn unset(&mut self, prev: &KeyValue) {
        let stamp = self.next_stamp();
        let replaces = Some(prev.mod_revision);
        self.write_version(&prev.key, stamp, &Version::Tombstone, replaces);
        self.forget_ttl(prev);
        self.attach(&prev.key, prev.lease, LeaseId::NONE);
        self.change(prev.key.clone(), Changed::Deleted(stamp.revision));
    }

    /// The place of the next change. All changes of one command have one revision.
    pub(super) fn next_stamp(&mut self) -> Stamp {
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
