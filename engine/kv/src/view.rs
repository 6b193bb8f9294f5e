//! The meaning of the comparisons and reads of a batch, shared by the applier and, for a batch that
//! changes nothing, a reader.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use bytes::Bytes;
use dengine_types::{LeaseId, Revision};

use super::layout::user_key;
use super::scan::{Found, Seen};
use super::selection::{PAIR_OVERHEAD_BYTES, Selected};
use super::store::StoreError;
use super::visits::Visits;
use super::{
    BATCH_READ_BYTES_MAX, Batch, BatchAnswer, BatchOperation, Compare, CompareTarget, KeyRange,
    KeyValue, READER_BATCH_BYTES_MAX, RangeRead, Refusal, Relation,
};

/// What a pair adds to an answer, or to what a command deletes, without its value.
pub(super) fn pair_bytes(key: &[u8]) -> usize {
    PAIR_OVERHEAD_BYTES + key.len()
}

pub(super) enum Live<'a> {
    /// As it is in the store.
    Stored(Bytes, &'a Found<'a>),
    /// As a step has changed it, not written yet.
    Changed(&'a KeyValue),
}

impl Live<'_> {
    /// A copy; without its value unless that is wanted, or free.
    pub(super) fn to_key_value(&self, with_value: bool) -> KeyValue {
        match self {
            Self::Stored(key, found) => found.to_key_value(key.clone(), with_value),
            Self::Changed(kv) => KeyValue::clone(kv),
        }
    }

    /// The size that it adds to an answer. Equal on all members, so it must not depend on whether
    /// the step or the store has the key.
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
    Live(Live<'a>),
    /// Deleted by this revision; its records have this many bytes.
    Deleted(usize, Revision),
    /// Changed after the revision that is read. Then its change is in history on all members.
    Later,
}

impl<'a> Visited<'a> {
    /// What a scan has seen.
    pub(super) fn of(seen: &'a Seen<'a>) -> Result<Self, StoreError> {
        Ok(match seen {
            Seen::Live(found) => Self::Live(Live::Stored(found.key()?, found)),
            Seen::Deleted { prefix, revision } => Self::Deleted(user_key(prefix)?.len(), *revision),
            Seen::Later => Self::Later,
        })
    }

    /// The size that the visit counts; `None` for a deleted key that history need not have any
    /// more, because members differ in which of these they still have.
    pub(super) fn cost_bytes(&self, compacted: Revision) -> Option<usize> {
        match self {
            Self::Live(live) => Some(live.size_bytes(false)),
            Self::Deleted(key, revision) => {
                (*revision > compacted).then_some(PAIR_OVERHEAD_BYTES + key)
            }
            Self::Later => Some(PAIR_OVERHEAD_BYTES),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Get<'a> {
    pub(super) keys: &'a KeyRange,
    /// 0 for no limit.
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
            BatchOperation::Put(_)
            | BatchOperation::Delete { .. }
            | BatchOperation::Range(_)
            | BatchOperation::Batch(_) => None,
        }
    }
}

/// Whether a revision of the past can be read.
pub(super) fn check_past(
    requested: Revision,
    current: Revision,
    compacted: Revision,
) -> Result<(), Refusal> {
    if requested > current {
        return Err(Refusal::Future { requested, current });
    }
    if requested < compacted {
        return Err(Refusal::Compacted {
            requested,
            compacted,
        });
    }
    Ok(())
}

/// What the whole reads of a batch may return together.
pub(super) struct ReadRoom {
    left: usize,
    bytes_max: usize,
}

impl ReadRoom {
    pub(super) const OF_BATCH: Self = Self::new(BATCH_READ_BYTES_MAX);
    /// Of one that changes nothing: no other command waits for it.
    pub(super) const OF_READER: Self = Self::new(READER_BATCH_BYTES_MAX);

    const fn new(bytes_max: usize) -> Self {
        Self {
            left: bytes_max,
            bytes_max,
        }
    }
}

/// A state that a batch reads.
pub(super) trait View {
    /// Why a read fails.
    type Error: From<StoreError>;

    /// The current pair of a key, with its value if that is wanted or free.
    fn newest(&mut self, key: &Bytes, with_value: bool) -> Result<Option<KeyValue>, Self::Error>;

    /// Visits every existing key of a range, in order, until `visit` breaks or the limit of
    /// [`Visits`] is reached.
    fn visit_live(
        &mut self,
        keys: &KeyRange,
        visit: impl FnMut(&Live<'_>) -> ControlFlow<()>,
    ) -> Result<(), Self::Error>;

    /// The same at a revision of the past, of which nothing is compacted that is visible there.
    fn visit_past(
        &mut self,
        keys: &KeyRange,
        at: Revision,
        visit: impl FnMut(&Live<'_>) -> ControlFlow<()>,
    ) -> Result<(), Self::Error>;

    /// What was visited.
    fn visits(&mut self) -> &mut Visits;

    /// The position of the first comparison that does not hold, if any.
    fn first_that_fails(&mut self, compares: &[Compare]) -> Result<Option<usize>, Self::Error> {
        for (at, compare) in compares.iter().enumerate() {
            if !self.holds(compare)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Judges the comparisons of a batch, and of the batches within it that are done in
    /// consequence. Adds whether they hold, for each batch in the order in which they are done;
    /// returns how many were made.
    fn judge(&mut self, batch: &Batch, verdicts: &mut Vec<bool>) -> Result<usize, Self::Error> {
        let failed_at = self.first_that_fails(&batch.compares)?;
        let mut compared = failed_at.map_or(batch.compares.len(), |at| at + 1);
        let holds = failed_at.is_none();
        verdicts.push(holds);
        for operation in batch.list(holds) {
            if let BatchOperation::Batch(inner) = operation {
                compared += self.judge(inner, verdicts)?;
            }
        }
        Ok(compared)
    }

    fn holds(&mut self, compare: &Compare) -> Result<bool, Self::Error> {
        let with_value = matches!(compare.target, CompareTarget::Value(_));
        if self.visits().is_exceeded() {
            // Nothing comes of the batch any more: whatever else it compares need not be read.
            return Ok(false);
        }
        if let KeyRange::One(key) = &compare.keys {
            let now = self.newest(key, with_value)?;
            if self.visits().counts(&compare.keys) {
                let value = now.as_ref().filter(|_| with_value);
                let bytes = pair_bytes(key) + value.map_or(0, |kv| kv.value.len());
                let _: ControlFlow<()> = self.visits().add(bytes);
            }
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

    /// Reads a range as a whole, if there is room for it.
    fn range(
        &mut self,
        read: &RangeRead,
        room: &mut ReadRoom,
    ) -> Result<Result<BatchAnswer, Refusal>, Self::Error> {
        let with_values = !read.keys_only || read.selection.needs_values();
        let mut selected = Selected::new(read.selection, read.limit);
        let mut count = 0;
        let mut fits = true;
        let visit = |live: &Live<'_>| {
            count += 1;
            if read.count_only || !selected.is_open() {
                return ControlFlow::Continue(());
            }
            let mut kv = live.to_key_value(with_values);
            if !with_values {
                kv.value.clear();
            }
            selected.offer(kv);
            fits = selected.size_bytes() <= room.left;
            match fits {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        match read.revision {
            None => self.visit_live(&read.keys, visit)?,
            Some(at) => self.visit_past(&read.keys, at, visit)?,
        }
        if !fits {
            return Ok(Err(Refusal::ReadsTooMuch {
                bytes_max: room.bytes_max as u64,
            }));
        }
        room.left -= selected.size_bytes();
        let (mut kvs, more) = selected.finish();
        if read.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value.clear());
        }
        Ok(Ok(BatchAnswer::Get { kvs, more, count }))
    }

    /// Reads a range. `room` is what all reads of the batch may still return; the pair that exceeds
    /// it is the last one.
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
        (CompareTarget::Lease(wanted), _) => kv.map_or(LeaseId::NONE, |kv| kv.lease).cmp(wanted),
        (CompareTarget::Value(wanted), Some(kv)) => kv.value.cmp(wanted),
        // A missing value cannot be expressed.
        (CompareTarget::Value(_), None) => return false,
    };
    match compare.relation {
        Relation::Equal => ordering == Ordering::Equal,
        Relation::NotEqual => ordering != Ordering::Equal,
        Relation::Greater => ordering == Ordering::Greater,
        Relation::Less => ordering == Ordering::Less,
    }
}
