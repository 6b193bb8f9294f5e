//! What the comparisons and reads of a batch mean, whoever looks: the one who applies it, or a reader if it changes
//! nothing.

use super::scan::Found;
use super::store::StoreError;
use super::visits::Visits;
use super::{BatchAnswer, BatchOperation, Compare, CompareTarget, KeyRange, KeyValue, Relation};
use bytes::Bytes;
use dengine_types::Revision;
use std::cmp::Ordering;
use std::ops::ControlFlow;

/// What a pair costs in an answer besides its key and value, roughly.
const PAIR_OVERHEAD_BYTES: usize = 32;

/// A key that exists.
pub(super) enum Live<'a> {
    /// As the store has it.
    Stored(Bytes, &'a Found<'a>),
    /// As a step has made it that is not written yet.
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

/// A key that a range visits.
pub(super) enum Visited<'a> {
    /// It exists.
    Live(Live<'a>),
    /// It has so many bytes and was deleted by this revision.
    Deleted(usize, Revision),
}

impl Visited<'_> {
    /// What the visit counts for; `None` for a deleted key that history need not hold any more, for then it is a matter
    /// of chance which member still has it.
    pub(super) fn cost_bytes(&self, compacted: Revision) -> Option<usize> {
        match self {
            Self::Live(live) => Some(live.size_bytes(false)),
            Self::Deleted(key, revision) => {
                (*revision > compacted).then_some(PAIR_OVERHEAD_BYTES + key)
            }
        }
    }
}

/// A read of a batch.
#[derive(Clone, Copy)]
pub(super) struct Get<'a> {
    pub(super) keys: &'a KeyRange,
    /// 0: none.
    pub(super) limit: u64,
    pub(super) keys_only: bool,
    pub(super) count_only: bool,
}

impl<'a> Get<'a> {
    /// The operation, if it is a read.
    pub(super) fn of(operation: &'a BatchOperation) -> Option<Self> {
        match operation {
            BatchOperation::Get {
                keys,
                limit,
                keys_only,
                count_only,
            } => Some(Self {
                keys,
                limit: *limit,
                keys_only: *keys_only,
                count_only: *count_only,
            }),
            BatchOperation::Put { .. } | BatchOperation::Delete { .. } => None,
        }
    }
}

/// A state that a batch looks at.
pub(super) trait View {
    /// Why it does not show itself.
    type Error: From<StoreError>;

    /// A key as it is now, with its value only if that is wanted or free.
    fn newest(&mut self, key: &Bytes, with_value: bool) -> Result<Option<KeyValue>, Self::Error>;

    /// Shows every key of a range that exists now, in order, until `visit` has seen enough, or as many as [`Visits`] has
    /// room for.
    fn visit_live(
        &mut self,
        keys: &KeyRange,
        visit: impl FnMut(&Live<'_>) -> ControlFlow<()>,
    ) -> Result<(), Self::Error>;

    /// What ranges have visited.
    fn visits(&self) -> &Visits;

    /// The place of the first comparison that does not hold; none if all do.
    fn first_that_fails(&mut self, compares: &[Compare]) -> Result<Option<usize>, Self::Error> {
        for (at, compare) in compares.iter().enumerate() {
            if !self.holds(compare)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn holds(&mut self, compare: &Compare) -> Result<bool, Self::Error> {
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

    /// Reads a range. `room` is what all reads of the batch may still return; the pair that exceeds it is
    /// the last one.
    fn get(&mut self, get: Get<'_>, room: &mut usize) -> Result<BatchAnswer, Self::Error> {
        let limit = match get.limit {
            _ if get.count_only => 0,
            0 => u64::MAX,
            limit => limit,
        };
        let count_all = get.count_only || self.visits().count_all();
        let mut kvs = Vec::new();
        let mut count = 0;
        self.visit_live(get.keys, |live| {
            if count < limit && *room > 0 {
                let mut kv = live.to_key_value(!get.keys_only);
                if get.keys_only {
                    kv.value.clear();
                }
                *room = room.saturating_sub(live.size_bytes(get.keys_only));
                kvs.push(kv);
            } else if !count_all {
                count += 1;
                return ControlFlow::Break(());
            }
            count += 1;
            ControlFlow::Continue(())
        })?;
        let more = !get.count_only && count > kvs.len() as u64;
        Ok(BatchAnswer::Get {
            more,
            kvs,
            count: if count_all || !more { count } else { 0 },
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
