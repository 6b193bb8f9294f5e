//! Outcomes as protobuf messages, as sessions store them. `docs/formats.md` describes the same
//! messages.

use bytes::Bytes;
use dengine_types::{LeaseId, Revision};
use prost::Message as _;

use super::{BatchAnswer, LeaseEnd, Outcome, Refusal};
use crate::{KeyValue, REPLY_BYTES_MAX, StoreError};

/// Encodes the stored reply to a stamped command: whole if it is not too large, otherwise without
/// its pairs.
///
/// # Panics
///
/// If a stamped command cannot have this outcome.
#[must_use]
pub fn encode_kept(outcome: &Outcome) -> Vec<u8> {
    let (trimmed, outcome) = match outcome {
        Outcome::Trimmed(outcome) => (true, &**outcome),
        whole => (false, whole),
    };
    let mut record = ReplyRecord {
        trimmed,
        kind: Some(outcome.into()),
    };
    if record.encoded_len() > REPLY_BYTES_MAX {
        record.trimmed = true;
        record.kind = record.kind.map(without_pairs);
    }
    record.encode_to_vec()
}

/// Encodes an outcome as [`encode_kept`] does, but whole, for the member that passed the command
/// on. `None` for an outcome that a command without a session cannot have, or that answers none.
#[must_use]
pub fn encode_whole(outcome: &Outcome) -> Option<Vec<u8>> {
    let (trimmed, outcome) = match outcome {
        Outcome::Trimmed(outcome) => (true, &**outcome),
        whole => (false, whole),
    };
    is_recorded(outcome).then(|| {
        let kind = Some(outcome.into());
        ReplyRecord { trimmed, kind }.encode_to_vec()
    })
}

/// Whether there is a record of it.
fn is_recorded(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Put { .. }
        | Outcome::Delete { .. }
        | Outcome::CompareAndSwap { .. }
        | Outcome::Batch { .. }
        | Outcome::Compact { .. }
        | Outcome::LeaseGranted { .. }
        | Outcome::LeaseEnded { .. } => true,
        Outcome::Refused(refusal) => !matches!(
            refusal,
            Refusal::UnknownSession(_)
                | Refusal::Acknowledged { .. }
                | Refusal::WindowFull { .. }
                | Refusal::TooManySessions(_)
                | Refusal::NotForSessions
        ),
        Outcome::SessionOpened { .. }
        | Outcome::SessionKept
        | Outcome::SessionClosed { .. }
        | Outcome::ExpireKeys { .. }
        | Outcome::LeasesCheckpointed { .. }
        | Outcome::Membership(_)
        | Outcome::Empty
        | Outcome::Rejected(_)
        | Outcome::Trimmed(_) => false,
    }
}

/// Decodes a stored reply. It shares the record's memory.
pub fn decode_kept(record: Bytes) -> Result<Outcome, StoreError> {
    let corrupt = |reason: &dyn std::fmt::Display| {
        StoreError::Corrupt(format!("an answer of a session does not read: {reason}"))
    };
    let record = ReplyRecord::decode(record).map_err(|error| corrupt(&error))?;
    let kind = record.kind.ok_or_else(|| corrupt(&"it has no kind"))?;
    let outcome = outcome(kind).ok_or_else(|| corrupt(&"it is incomplete"))?;
    Ok(if record.trimmed {
        Outcome::Trimmed(Box::new(outcome))
    } else {
        outcome
    })
}

fn without_pairs(mut kind: Kind) -> Kind {
    match &mut kind {
        Kind::Put(it) => it.prev = None,
        Kind::Delete(it) => it.prev.clear(),
        Kind::CompareAndSwap(it) => it.prev = None,
        Kind::Batch(it) => it.answers.clear(),
        Kind::Compact(_) | Kind::Refused(_) | Kind::LeaseGranted(_) | Kind::LeaseEnded(_) => {}
    }
    kind
}

impl From<&Outcome> for Kind {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Put { revision, prev } => Self::Put(PutRecord {
                revision: revision.0,
                prev: prev.as_ref().map(Into::into),
            }),
            Outcome::Delete {
                revision,
                deleted,
                prev,
            } => Self::Delete(DeleteRecord {
                revision: revision.0,
                deleted: *deleted,
                prev: prev.iter().map(Into::into).collect(),
            }),
            Outcome::CompareAndSwap {
                revision,
                succeeded,
                prev,
            } => Self::CompareAndSwap(CompareAndSwapRecord {
                revision: revision.0,
                succeeded: *succeeded,
                prev: prev.as_ref().map(Into::into),
            }),
            Outcome::Batch {
                revision,
                succeeded,
                answers,
            } => Self::Batch(BatchRecord {
                revision: revision.0,
                succeeded: *succeeded,
                answers: answers.iter().map(Into::into).collect(),
            }),
            Outcome::Compact { revision } => Self::Compact(revision.0),
            Outcome::LeaseGranted {
                lease,
                ttl_ms,
                revision,
            } => Self::LeaseGranted(LeaseGrantedRecord {
                lease: lease.0,
                ttl_ms: *ttl_ms,
                revision: revision.0,
            }),
            Outcome::LeaseEnded {
                lease,
                revision,
                deleted,
                end,
            } => Self::LeaseEnded(LeaseEndedRecord {
                lease: lease.0,
                revision: revision.0,
                deleted: *deleted,
                end: end_number(*end),
            }),
            Outcome::Refused(refusal) => Self::Refused(refusal.into()),
            Outcome::SessionOpened { .. }
            | Outcome::SessionKept
            | Outcome::SessionClosed { .. }
            | Outcome::ExpireKeys { .. }
            | Outcome::LeasesCheckpointed { .. }
            | Outcome::Membership(_)
            | Outcome::Empty
            | Outcome::Rejected(_)
            | Outcome::Trimmed(_) => {
                unreachable!("commands with a stamp do not have the outcome {outcome:?}")
            }
        }
    }
}

fn outcome(kind: Kind) -> Option<Outcome> {
    Some(match kind {
        Kind::Put(it) => Outcome::Put {
            revision: Revision(it.revision),
            prev: it.prev.map(Into::into),
        },
        Kind::Delete(it) => Outcome::Delete {
            revision: Revision(it.revision),
            deleted: it.deleted,
            prev: it.prev.into_iter().map(Into::into).collect(),
        },
        Kind::CompareAndSwap(it) => Outcome::CompareAndSwap {
            revision: Revision(it.revision),
            succeeded: it.succeeded,
            prev: it.prev.map(Into::into),
        },
        Kind::Batch(it) => Outcome::Batch {
            revision: Revision(it.revision),
            succeeded: it.succeeded,
            answers: it.answers.into_iter().map(answer).collect::<Option<_>>()?,
        },
        Kind::Compact(revision) => Outcome::Compact {
            revision: Revision(revision),
        },
        Kind::Refused(it) => Outcome::Refused(refusal(&it)?),
        Kind::LeaseGranted(it) => Outcome::LeaseGranted {
            lease: LeaseId(it.lease),
            ttl_ms: it.ttl_ms,
            revision: Revision(it.revision),
        },
        Kind::LeaseEnded(it) => Outcome::LeaseEnded {
            lease: LeaseId(it.lease),
            revision: Revision(it.revision),
            deleted: it.deleted,
            end: lease_end(it.end)?,
        },
    })
}

fn end_number(end: LeaseEnd) -> u32 {
    match end {
        LeaseEnd::Gone => 1,
        LeaseEnd::Dying => 2,
        LeaseEnd::NotDone => 3,
    }
}

fn lease_end(number: u32) -> Option<LeaseEnd> {
    match number {
        1 => Some(LeaseEnd::Gone),
        2 => Some(LeaseEnd::Dying),
        3 => Some(LeaseEnd::NotDone),
        _ => None,
    }
}

impl From<&BatchAnswer> for AnswerRecord {
    fn from(answer: &BatchAnswer) -> Self {
        let kind = match answer {
            BatchAnswer::Put { prev } => AnswerKind::Put(PutAnswerRecord {
                prev: prev.as_ref().map(Into::into),
            }),
            BatchAnswer::Delete { deleted, prev } => AnswerKind::Delete(DeleteAnswerRecord {
                deleted: *deleted,
                prev: prev.iter().map(Into::into).collect(),
            }),
            BatchAnswer::Get { kvs, more, count } => AnswerKind::Get(GetAnswerRecord {
                kvs: kvs.iter().map(Into::into).collect(),
                more: *more,
                count: *count,
            }),
            BatchAnswer::Batch { succeeded, answers } => AnswerKind::Batch(BatchAnswerRecord {
                succeeded: *succeeded,
                answers: answers.iter().map(Into::into).collect(),
            }),
        };
        Self { kind: Some(kind) }
    }
}

fn answer(record: AnswerRecord) -> Option<BatchAnswer> {
    Some(match record.kind? {
        AnswerKind::Put(it) => BatchAnswer::Put {
            prev: it.prev.map(Into::into),
        },
        AnswerKind::Delete(it) => BatchAnswer::Delete {
            deleted: it.deleted,
            prev: it.prev.into_iter().map(Into::into).collect(),
        },
        AnswerKind::Get(it) => BatchAnswer::Get {
            kvs: it.kvs.into_iter().map(Into::into).collect(),
            more: it.more,
            count: it.count,
        },
        AnswerKind::Batch(it) => BatchAnswer::Batch {
            succeeded: it.succeeded,
            answers: it.answers.into_iter().map(answer).collect::<Option<_>>()?,
        },
    })
}

impl From<&Refusal> for RefusalRecord {
    fn from(refusal: &Refusal) -> Self {
        let (reason, requested, limit) = match refusal {
            Refusal::DuplicateKey => (1, 0, 0),
            Refusal::Future { requested, current } => (2, requested.0, current.0),
            Refusal::Compacted {
                requested,
                compacted,
            } => (3, requested.0, compacted.0),
            Refusal::DeletesTooMuch { bytes_max } => (4, 0, *bytes_max),
            Refusal::RangesTooLarge {
                keys_max,
                bytes_max,
            } => (5, *keys_max, *bytes_max),
            Refusal::KeyNotFound => (6, 0, 0),
            Refusal::ReadsTooMuch { bytes_max } => (7, 0, *bytes_max),
            Refusal::LeaseNotFound(lease) => (8, lease.0.cast_unsigned(), 0),
            Refusal::LeaseExists(lease) => (9, lease.0.cast_unsigned(), 0),
            Refusal::TooManyLeases(most) => (10, 0, *most),
            Refusal::UnknownSession(_)
            | Refusal::Acknowledged { .. }
            | Refusal::WindowFull { .. }
            | Refusal::TooManySessions(_)
            | Refusal::NotForSessions => {
                unreachable!("commands that a session admits are not refused with {refusal}")
            }
        };
        Self {
            reason,
            requested,
            limit,
        }
    }
}

fn refusal(record: &RefusalRecord) -> Option<Refusal> {
    let requested = Revision(record.requested);
    let lease = LeaseId(record.requested.cast_signed());
    match record.reason {
        1 => Some(Refusal::DuplicateKey),
        2 => Some(Refusal::Future {
            requested,
            current: Revision(record.limit),
        }),
        3 => Some(Refusal::Compacted {
            requested,
            compacted: Revision(record.limit),
        }),
        4 => Some(Refusal::DeletesTooMuch {
            bytes_max: record.limit,
        }),
        5 => Some(Refusal::RangesTooLarge {
            keys_max: record.requested,
            bytes_max: record.limit,
        }),
        6 => Some(Refusal::KeyNotFound),
        7 => Some(Refusal::ReadsTooMuch {
            bytes_max: record.limit,
        }),
        8 => Some(Refusal::LeaseNotFound(lease)),
        9 => Some(Refusal::LeaseExists(lease)),
        10 => Some(Refusal::TooManyLeases(record.limit)),
        _ => None,
    }
}

impl From<&KeyValue> for PairRecord {
    fn from(kv: &KeyValue) -> Self {
        Self {
            key: kv.key.clone(),
            value: kv.value.clone(),
            create_revision: kv.create_revision.0,
            mod_revision: kv.mod_revision.0,
            version: kv.version,
            ttl_ms: kv.ttl_ms,
            lease: kv.lease.0,
        }
    }
}

impl From<PairRecord> for KeyValue {
    fn from(record: PairRecord) -> Self {
        Self {
            key: record.key,
            value: record.value,
            create_revision: Revision(record.create_revision),
            mod_revision: Revision(record.mod_revision),
            version: record.version,
            ttl_ms: record.ttl_ms,
            lease: LeaseId(record.lease),
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReplyRecord {
    #[prost(bool, tag = "1")]
    trimmed: bool,
    #[prost(oneof = "Kind", tags = "2, 3, 4, 5, 6, 7, 8, 9")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "2")]
    Put(PutRecord),
    #[prost(message, tag = "3")]
    Delete(DeleteRecord),
    #[prost(message, tag = "4")]
    CompareAndSwap(CompareAndSwapRecord),
    #[prost(message, tag = "5")]
    Batch(BatchRecord),
    #[prost(uint64, tag = "6")]
    Compact(u64),
    #[prost(message, tag = "7")]
    Refused(RefusalRecord),
    /// This and the next are of commands that are passed on; no session repeats them.
    #[prost(message, tag = "8")]
    LeaseGranted(LeaseGrantedRecord),
    #[prost(message, tag = "9")]
    LeaseEnded(LeaseEndedRecord),
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseGrantedRecord {
    #[prost(int64, tag = "1")]
    lease: i64,
    #[prost(uint64, tag = "2")]
    ttl_ms: u64,
    #[prost(uint64, tag = "3")]
    revision: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseEndedRecord {
    #[prost(int64, tag = "1")]
    lease: i64,
    #[prost(uint64, tag = "2")]
    revision: u64,
    #[prost(uint64, tag = "3")]
    deleted: u64,
    /// 1: gone. 2: dying. 3: not done.
    #[prost(uint32, tag = "4")]
    end: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutRecord {
    #[prost(uint64, tag = "1")]
    revision: u64,
    #[prost(message, optional, tag = "2")]
    prev: Option<PairRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DeleteRecord {
    #[prost(uint64, tag = "1")]
    revision: u64,
    #[prost(uint64, tag = "2")]
    deleted: u64,
    #[prost(message, repeated, tag = "3")]
    prev: Vec<PairRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CompareAndSwapRecord {
    #[prost(uint64, tag = "1")]
    revision: u64,
    #[prost(bool, tag = "2")]
    succeeded: bool,
    #[prost(message, optional, tag = "3")]
    prev: Option<PairRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct BatchRecord {
    #[prost(uint64, tag = "1")]
    revision: u64,
    #[prost(bool, tag = "2")]
    succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    answers: Vec<AnswerRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnswerRecord {
    #[prost(oneof = "AnswerKind", tags = "1, 2, 3, 4")]
    kind: Option<AnswerKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AnswerKind {
    #[prost(message, tag = "1")]
    Put(PutAnswerRecord),
    #[prost(message, tag = "2")]
    Delete(DeleteAnswerRecord),
    #[prost(message, tag = "3")]
    Get(GetAnswerRecord),
    #[prost(message, tag = "4")]
    Batch(BatchAnswerRecord),
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutAnswerRecord {
    #[prost(message, optional, tag = "1")]
    prev: Option<PairRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DeleteAnswerRecord {
    #[prost(uint64, tag = "1")]
    deleted: u64,
    #[prost(message, repeated, tag = "2")]
    prev: Vec<PairRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GetAnswerRecord {
    #[prost(message, repeated, tag = "1")]
    kvs: Vec<PairRecord>,
    #[prost(bool, tag = "2")]
    more: bool,
    #[prost(uint64, tag = "3")]
    count: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct BatchAnswerRecord {
    #[prost(bool, tag = "1")]
    succeeded: bool,
    #[prost(message, repeated, tag = "2")]
    answers: Vec<AnswerRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RefusalRecord {
    /// 1: duplicate key. 2: future revision. 3: compacted revision. 4: deletes too much. 5: ranges
    /// too large. 6: key not found. 7: reads too much. 8: lease not found. 9: lease exists. 10: too
    /// many leases.
    #[prost(uint32, tag = "1")]
    reason: u32,
    /// The revision, the limit of keys, or the lease.
    #[prost(uint64, tag = "2")]
    requested: u64,
    /// The store's revision, the compact revision, or the limit of bytes.
    #[prost(uint64, tag = "3")]
    limit: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PairRecord {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
    #[prost(uint64, tag = "3")]
    create_revision: u64,
    #[prost(uint64, tag = "4")]
    mod_revision: u64,
    #[prost(uint64, tag = "5")]
    version: u64,
    #[prost(uint64, tag = "6")]
    ttl_ms: u64,
    #[prost(int64, tag = "7")]
    lease: i64,
}
