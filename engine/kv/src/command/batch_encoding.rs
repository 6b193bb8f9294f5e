//! Batches as protobuf messages in the log; see `encoding.rs`.

use dengine_types::{LeaseId, Revision};

use super::encoding::key_range;
use super::records::{
    BatchRecord, CompareRecord, DeleteRecord, GetRecord, OperationKind, OperationRecord,
    RangeRecord, TargetRecord,
};
use super::{Batch, BatchOperation, CommandError, Compare, CompareTarget, RangeRead, Relation};
use crate::BATCH_DEPTH_MAX;
use crate::selection::{RevisionBounds, Selection, SortBy, SortOrder};

impl From<Batch> for BatchRecord {
    fn from(batch: Batch) -> Self {
        Self {
            compares: batch.compares.into_iter().map(Into::into).collect(),
            then: batch.then.into_iter().map(Into::into).collect(),
            otherwise: batch.otherwise.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<BatchRecord> for Batch {
    type Error = CommandError;

    fn try_from(record: BatchRecord) -> Result<Self, CommandError> {
        batch(record, 1)
    }
}

/// The batch, which is within one less than `depth` others.
fn batch(record: BatchRecord, depth: usize) -> Result<Batch, CommandError> {
    if depth > BATCH_DEPTH_MAX {
        return Err(CommandError::Malformed(format!(
            "more than {BATCH_DEPTH_MAX} batches are within each other"
        )));
    }
    let operations = |records: Vec<OperationRecord>| {
        let operations = records.into_iter().map(|it| operation(it, depth));
        operations.collect::<Result<_, _>>()
    };
    let compares = record.compares.into_iter().map(Compare::try_from);
    Ok(Batch {
        compares: compares.collect::<Result<_, _>>()?,
        then: operations(record.then)?,
        otherwise: operations(record.otherwise)?,
    })
}

impl From<Compare> for CompareRecord {
    fn from(compare: Compare) -> Self {
        Self {
            keys: Some(compare.keys.into()),
            relation: match compare.relation {
                Relation::Equal => 1,
                Relation::NotEqual => 2,
                Relation::Greater => 3,
                Relation::Less => 4,
            },
            target: Some(match compare.target {
                CompareTarget::Version(it) => TargetRecord::Version(it),
                CompareTarget::CreateRevision(it) => TargetRecord::CreateRevision(it.0),
                CompareTarget::ModRevision(it) => TargetRecord::ModRevision(it.0),
                CompareTarget::Value(it) => TargetRecord::Value(it),
                CompareTarget::Lease(it) => TargetRecord::Lease(it.0),
            }),
        }
    }
}

impl TryFrom<CompareRecord> for Compare {
    type Error = CommandError;

    fn try_from(record: CompareRecord) -> Result<Self, CommandError> {
        Ok(Self {
            keys: key_range(record.keys)?,
            relation: match record.relation {
                1 => Relation::Equal,
                2 => Relation::NotEqual,
                3 => Relation::Greater,
                4 => Relation::Less,
                _ => return Err(CommandError::Incomplete("relation")),
            },
            target: match record.target {
                Some(TargetRecord::Version(it)) => CompareTarget::Version(it),
                Some(TargetRecord::CreateRevision(it)) => {
                    CompareTarget::CreateRevision(Revision(it))
                }
                Some(TargetRecord::ModRevision(it)) => CompareTarget::ModRevision(Revision(it)),
                Some(TargetRecord::Value(it)) => CompareTarget::Value(it),
                Some(TargetRecord::Lease(it)) => CompareTarget::Lease(LeaseId(it)),
                None => return Err(CommandError::Incomplete("target")),
            },
        })
    }
}

impl From<BatchOperation> for OperationRecord {
    fn from(operation: BatchOperation) -> Self {
        let kind = match operation {
            BatchOperation::Put(put) => OperationKind::Put(put.into()),
            BatchOperation::Delete { keys, prev_kv } => OperationKind::Delete(DeleteRecord {
                keys: Some(keys.into()),
                prev_kv,
            }),
            BatchOperation::Get {
                keys,
                limit,
                keys_only,
                count_only,
            } => OperationKind::Get(GetRecord {
                keys: Some(keys.into()),
                limit,
                keys_only,
                count_only,
            }),
            BatchOperation::Range(read) => OperationKind::Range((*read).into()),
            BatchOperation::Batch(batch) => OperationKind::Batch((*batch).into()),
        };
        Self { kind: Some(kind) }
    }
}

/// The operation of a batch which is within one less than `depth` others.
fn operation(record: OperationRecord, depth: usize) -> Result<BatchOperation, CommandError> {
    Ok(match record.kind {
        Some(OperationKind::Put(put)) => BatchOperation::Put(put.into()),
        Some(OperationKind::Delete(delete)) => BatchOperation::Delete {
            keys: key_range(delete.keys)?,
            prev_kv: delete.prev_kv,
        },
        Some(OperationKind::Get(get)) => BatchOperation::Get {
            keys: key_range(get.keys)?,
            limit: get.limit,
            keys_only: get.keys_only,
            count_only: get.count_only,
        },
        Some(OperationKind::Range(read)) => BatchOperation::Range(Box::new(read.try_into()?)),
        Some(OperationKind::Batch(inner)) => {
            BatchOperation::Batch(Box::new(batch(inner, depth + 1)?))
        }
        None => return Err(CommandError::Incomplete("operation")),
    })
}

impl From<RangeRead> for RangeRecord {
    fn from(read: RangeRead) -> Self {
        let Selection {
            order,
            by,
            mod_revisions,
            create_revisions,
        } = read.selection;
        let number = |revision: Option<Revision>| revision.map(|it| it.0);
        Self {
            keys: Some(read.keys.into()),
            revision: number(read.revision),
            limit: read.limit,
            keys_only: read.keys_only,
            count_only: read.count_only,
            order: match order {
                SortOrder::None => 0,
                SortOrder::Ascending => 1,
                SortOrder::Descending => 2,
            },
            by: match by {
                SortBy::Key => 0,
                SortBy::Version => 1,
                SortBy::CreateRevision => 2,
                SortBy::ModRevision => 3,
                SortBy::Value => 4,
            },
            min_mod_revision: number(mod_revisions.min),
            max_mod_revision: number(mod_revisions.max),
            min_create_revision: number(create_revisions.min),
            max_create_revision: number(create_revisions.max),
        }
    }
}

impl TryFrom<RangeRecord> for RangeRead {
    type Error = CommandError;

    fn try_from(record: RangeRecord) -> Result<Self, CommandError> {
        let bounds = |min: Option<u64>, max: Option<u64>| RevisionBounds {
            min: min.map(Revision),
            max: max.map(Revision),
        };
        Ok(Self {
            keys: key_range(record.keys)?,
            revision: record.revision.map(Revision),
            limit: record.limit,
            keys_only: record.keys_only,
            count_only: record.count_only,
            selection: Selection {
                order: match record.order {
                    0 => SortOrder::None,
                    1 => SortOrder::Ascending,
                    2 => SortOrder::Descending,
                    _ => return Err(CommandError::Incomplete("order")),
                },
                by: match record.by {
                    0 => SortBy::Key,
                    1 => SortBy::Version,
                    2 => SortBy::CreateRevision,
                    3 => SortBy::ModRevision,
                    4 => SortBy::Value,
                    _ => return Err(CommandError::Incomplete("attribute to sort by")),
                },
                mod_revisions: bounds(record.min_mod_revision, record.max_mod_revision),
                create_revisions: bounds(record.min_create_revision, record.max_create_revision),
            },
        })
    }
}
