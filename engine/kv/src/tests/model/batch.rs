//! Batches in the model: judged as a whole, then done one operation after the other.

use std::cmp::Ordering;

use bytes::Bytes;
use dengine_types::Revision;

use super::{Model, holds_for};
use crate::{
    Batch, BatchAnswer, BatchOperation, Compare, CompareTarget, KeyRange, KeyValue, Outcome,
    RangeRead, Refusal, RevisionBounds, Selection, SortBy, SortOrder,
};

/// The operations of a batch that are done, in the shape of their answers.
struct Chosen<'a> {
    holds: bool,
    operations: Vec<Operation<'a>>,
}

enum Operation<'a> {
    Single(&'a BatchOperation),
    Batch(Chosen<'a>),
}

impl<'a> Chosen<'a> {
    fn singles(&self) -> Vec<&'a BatchOperation> {
        let each = self.operations.iter().map(|operation| match operation {
            Operation::Single(single) => vec![*single],
            Operation::Batch(inner) => inner.singles(),
        });
        each.flatten().collect()
    }
}

impl Model {
    pub(super) fn batch(&mut self, batch: &Batch) -> Outcome {
        if changes(batch).is_none() {
            return Outcome::Refused(Refusal::DuplicateKey);
        }
        self.counts_single_keys = batch.is_new();
        let before = self.clone();
        let chosen = self.choose(batch);
        if let Some(refused) = self.visited_too_much() {
            return refused;
        }
        let singles = chosen.singles();
        if let Some(refusal) = singles.iter().find_map(|it| self.impossible(it)) {
            return Outcome::Refused(refusal);
        }
        singles.iter().for_each(|it| self.keep(it));
        if let Some(refused) = self.visited_too_much() {
            return refused;
        }
        for operation in singles {
            if let BatchOperation::Delete { keys, .. } = operation
                && !matches!(keys, KeyRange::One(_))
            {
                self.visit(keys, |_| false);
            }
        }
        let answers = self.operations(&chosen);
        if let Some(refused) = self.visited_too_much() {
            *self = before;
            return refused;
        }
        Outcome::Batch {
            revision: Revision(self.revision),
            succeeded: chosen.holds,
            answers,
        }
    }

    fn choose<'a>(&mut self, batch: &'a Batch) -> Chosen<'a> {
        let mut holds = true;
        for compare in &batch.compares {
            self.visit_to_compare(compare);
            holds = self.holds(compare);
            if !holds {
                break;
            }
        }
        let operations = match holds {
            true => &batch.then,
            false => &batch.otherwise,
        };
        let choose = |operation: &'a BatchOperation| match operation {
            BatchOperation::Batch(inner) => Operation::Batch(self.choose(inner)),
            single => Operation::Single(single),
        };
        Chosen {
            holds,
            operations: operations.iter().map(choose).collect(),
        }
    }

    /// Of a single key only its value costs more than the key.
    fn visit_to_compare(&mut self, compare: &Compare) {
        let KeyRange::One(key) = &compare.keys else {
            self.visit(&compare.keys, |kv| !holds_for(compare, kv));
            return;
        };
        if self.counts_single_keys {
            let found = self.get(key, self.revision);
            let value = match (&compare.target, found) {
                (CompareTarget::Value(_), Some(kv)) => kv.value.len(),
                _ => 0,
            };
            self.visited.push(32 + key.len() + value);
        }
    }

    /// A value that is kept is written again.
    fn keep(&mut self, operation: &BatchOperation) {
        if let BatchOperation::Put(put) = operation
            && put.ignore_value
        {
            let kept = self.get(&put.key, self.revision).expect("it was possible");
            self.visited.push(kept.value.len());
        }
    }

    fn impossible(&self, operation: &BatchOperation) -> Option<Refusal> {
        match operation {
            BatchOperation::Put(put) => {
                let lacks_value = put.ignore_value && self.get(&put.key, self.revision).is_none();
                let refused = self.refuses_put(&put.key, put.lease);
                refused.or(lacks_value.then_some(Refusal::KeyNotFound))
            }
            BatchOperation::Range(read) => {
                let requested = read.revision?;
                let (current, compacted) = (Revision(self.revision), Revision(self.compacted));
                if requested > current {
                    return Some(Refusal::Future { requested, current });
                }
                (requested < compacted).then_some(Refusal::Compacted {
                    requested,
                    compacted,
                })
            }
            _ => None,
        }
    }

    fn operations(&mut self, chosen: &Chosen<'_>) -> Vec<BatchAnswer> {
        let answer = |operation: &Operation<'_>| match operation {
            Operation::Single(single) => self.operation(single),
            Operation::Batch(inner) => BatchAnswer::Batch {
                succeeded: inner.holds,
                answers: self.operations(inner),
            },
        };
        chosen.operations.iter().map(answer).collect()
    }

    fn operation(&mut self, operation: &BatchOperation) -> BatchAnswer {
        match operation {
            BatchOperation::Put(put) => {
                let value = self.value_to_put(put).expect("it was possible");
                let prev = self.put(&put.key, &value, put.ttl_ms, put.lease);
                BatchAnswer::Put {
                    prev: prev.filter(|_| put.prev_kv),
                }
            }
            BatchOperation::Delete { keys, prev_kv } => {
                let prev = self.delete(keys);
                BatchAnswer::Delete {
                    deleted: prev.len() as u64,
                    prev: if *prev_kv { prev } else { Vec::new() },
                }
            }
            BatchOperation::Get {
                keys,
                limit,
                keys_only,
                count_only,
            } => self.read(keys, *limit, *keys_only, *count_only),
            BatchOperation::Range(read) => self.read_whole(read),
            BatchOperation::Batch(_) => panic!("it is not a single operation"),
        }
    }

    fn read(
        &mut self,
        keys: &KeyRange,
        limit: u64,
        keys_only: bool,
        count_only: bool,
    ) -> BatchAnswer {
        let mut left = match limit {
            _ if count_only => usize::MAX,
            0 => usize::MAX,
            limit => limit as usize,
        };
        self.visit(keys, |_| {
            left.checked_sub(1).map(|rest| left = rest).is_none()
        });
        let mut kvs = self.now(keys);
        let count = kvs.len() as u64;
        if count_only {
            kvs.clear();
        } else if limit > 0 {
            kvs.truncate(limit as usize);
        }
        if keys_only {
            kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
        }
        let more = !count_only && count > kvs.len() as u64;
        let count = if more { 0 } else { count };
        BatchAnswer::Get { kvs, more, count }
    }

    fn read_whole(&mut self, read: &RangeRead) -> BatchAnswer {
        match read.revision {
            None => self.visit(&read.keys, |_| false),
            Some(at) => self.visit_past(&read.keys, at.0),
        }
        let at = read.revision.map_or(self.revision, |at| at.0);
        let mut kvs = self.range(&read.keys, at);
        let count = kvs.len() as u64;
        let more = select(read.selection, read.limit as usize, &mut kvs) && !read.count_only;
        if read.count_only {
            kvs.clear();
        }
        if read.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
        }
        BatchAnswer::Get { kvs, more, count }
    }

    /// Records the cost of each key that a range of the past visits.
    fn visit_past(&mut self, keys: &KeyRange, at: u64) {
        let is_single = matches!(keys, KeyRange::One(_));
        if is_single && !self.counts_single_keys {
            return;
        }
        // What the command itself has changed is not written yet.
        let written = self.revision - u64::from(self.taken);
        for (key, versions) in self.history.iter().filter(|(key, _)| keys.contains(key)) {
            let versions = versions.iter().filter(|(it, _)| *it <= written);
            let (then, later): (Vec<_>, Vec<_>) = versions.partition(|(it, _)| *it <= at);
            if !later.is_empty() && !is_single {
                self.visited.push(32);
            }
            match then.last() {
                Some((_, Some(kv))) => self.visited.push(32 + key.len() + kv.value.len()),
                Some((deleted, None)) if *deleted > self.compacted && !is_single => {
                    self.visited.push(32 + key.len());
                }
                Some((_, None)) | None => {}
            }
        }
    }
}

/// Returns whether some were left out because of the limit.
fn select(selection: Selection, limit: usize, kvs: &mut Vec<KeyValue>) -> bool {
    let limit = if limit == 0 { usize::MAX } else { limit };
    let any = RevisionBounds::default();
    let bounded = selection.mod_revisions != any || selection.create_revisions != any;
    if selection.order == SortOrder::None && !bounded {
        kvs.truncate(limit.saturating_add(1));
    }
    let fits = |bounds: RevisionBounds, revision: Revision| {
        let min = bounds.min.unwrap_or(Revision(0));
        let max = bounds.max.unwrap_or(Revision(u64::MAX));
        (min..=max).contains(&revision)
    };
    kvs.retain(|kv| fits(selection.mod_revisions, kv.mod_revision));
    kvs.retain(|kv| fits(selection.create_revisions, kv.create_revision));
    let compare = |left: &KeyValue, right: &KeyValue| -> Ordering {
        match selection.by {
            SortBy::Key => left.key.cmp(&right.key),
            SortBy::Version => left.version.cmp(&right.version),
            SortBy::CreateRevision => left.create_revision.cmp(&right.create_revision),
            SortBy::ModRevision => left.mod_revision.cmp(&right.mod_revision),
            SortBy::Value => left.value.cmp(&right.value),
        }
    };
    match selection.order {
        SortOrder::None | SortOrder::Ascending => kvs.sort_by(compare),
        SortOrder::Descending => kvs.sort_by(|left, right| compare(right, left)),
    }
    let more = kvs.len() > limit;
    kvs.truncate(limit);
    more
}

/// The keys that are put, and the ranges that are deleted.
type Changes = (Vec<Bytes>, Vec<KeyRange>);

/// What a batch changes, whichever of its lists is done; `None` if it changes a key twice.
fn changes(batch: &Batch) -> Option<Changes> {
    let (mut puts, mut deletes) = changes_of(&batch.then)?;
    let others = changes_of(&batch.otherwise)?;
    puts.extend(others.0);
    deletes.extend(others.1);
    Some((puts, deletes))
}

fn changes_of(operations: &[BatchOperation]) -> Option<Changes> {
    let of_one = |operation: &BatchOperation| match operation {
        BatchOperation::Put(put) => Some((vec![put.key.clone()], Vec::new())),
        BatchOperation::Delete { keys, .. } => Some((Vec::new(), vec![keys.clone()])),
        BatchOperation::Batch(inner) => changes(inner),
        BatchOperation::Get { .. } | BatchOperation::Range(_) => Some(Changes::default()),
    };
    let each: Vec<_> = operations.iter().map(of_one).collect::<Option<_>>()?;
    for (place, (puts, _)) in each.iter().enumerate() {
        let others = each.iter().enumerate().filter(|(other, _)| *other != place);
        let changed = |key: &Bytes| {
            others.clone().any(|(_, (puts, deletes))| {
                puts.contains(key) || deletes.iter().any(|keys| keys.contains(key))
            })
        };
        if puts.iter().any(changed) {
            return None;
        }
    }
    let (puts, deletes): (Vec<_>, Vec<_>) = each.into_iter().unzip();
    Some((puts.concat(), deletes.concat()))
}
