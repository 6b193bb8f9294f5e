//! Requests as protobuf messages in the log. `docs/formats.md` describes the same messages.

use bytes::{BufMut, Bytes, BytesMut};
use dengine_types::{Index, LeaseId, Revision, SessionId};
use prost::Message as _;

use super::records::{
    CheckpointLeasesRecord, CheckpointRecord, CompareAndSwapRecord, DeleteRecord, EndRecord,
    ExpectedRecord, ExpireKeysRecord, ExpireLeaseRecord, ExpireSessionRecord, ExpiredKeyRecord,
    GrantLeaseRecord, KeysRecord, Kind, PutLeaseRecord, PutRecord, RequestRecord, StampRecord,
};
use super::version::NotRead;
use super::{
    BatchOperation, Command, CommandError, CommandVersion, Compare, CompareTarget, Expected,
    ExpiredKey, LeaseCheckpoint, LoggedRequest, Put, PutLease, Request, SessionStamp,
};
use crate::{KeyRange, StoreError};

impl Request {
    /// Encodes the data of a log entry where every member reads up to the version `read_by_all`.
    ///
    /// If that lacks what it says, it is written in the version that has it
    /// ([`Self::version_needed`]), and the replica does not propose it.
    #[must_use]
    pub fn encode(self, read_by_all: CommandVersion) -> Bytes {
        let version = self.version_written(read_by_all);
        let record = RequestRecord::from(self);
        let mut data = BytesMut::with_capacity(1 + record.encoded_len());
        data.put_u8(version.number());
        record
            .encode(&mut data)
            .expect("a growing buffer takes every message");
        data.freeze()
    }

    /// Decodes the data of a log entry, with its version, which decides what it means. Keys and
    /// values share its memory.
    ///
    /// # Errors
    ///
    /// The outer one if a newer program wrote it, the inner one if it is not a command at all.
    pub fn decode(data: Bytes) -> Result<Result<LoggedRequest, CommandError>, StoreError> {
        Self::decode_up_to(CommandVersion::CURRENT, data)
    }

    /// Like [`Self::decode`], for a program that reads versions up to `reads_max` only.
    pub(crate) fn decode_up_to(
        reads_max: CommandVersion,
        mut data: Bytes,
    ) -> Result<Result<LoggedRequest, CommandError>, StoreError> {
        if data.is_empty() {
            return Ok(Err(CommandError::Incomplete("version")));
        }
        let number = data.split_to(1)[0];
        match CommandVersion::read(number, reads_max) {
            Ok(version) => {
                let request = Self::decode_record(data).and_then(|it| it.read_as(version));
                Ok(request.map(|request| LoggedRequest { version, request }))
            }
            Err(NotRead::Older) => Ok(Err(CommandError::Malformed(format!("version {number}")))),
            Err(NotRead::Newer) => Err(StoreError::NewerFormat {
                what: "a command in the log",
                found: u32::from(number),
                supported: u32::from(reads_max.number()),
            }),
        }
    }

    fn decode_record(data: Bytes) -> Result<Self, CommandError> {
        let record = RequestRecord::decode(data)
            .map_err(|error| CommandError::Malformed(error.to_string()))?;
        let kind = record.kind.ok_or(CommandError::Incomplete("kind"))?;
        Ok(Self {
            session: record.session.map(Into::into),
            command: kind.try_into()?,
        })
    }

    /// What programs read that know no later version: they skip fields that they do not know, and
    /// miss an operation of an unknown kind. No program writes any.
    fn read_as(mut self, version: CommandVersion) -> Result<Self, CommandError> {
        if version >= CommandVersion::V4 {
            return Ok(self);
        }
        let is_unknown = |operation: &BatchOperation| {
            matches!(
                operation,
                BatchOperation::Range(_) | BatchOperation::Batch(_)
            )
        };
        let is_about_lease = |compare: &Compare| matches!(compare.target, CompareTarget::Lease(_));
        match &mut self.command {
            Command::Put(put) => (put.ignore_value, put.lease) = (false, PutLease::None),
            Command::Batch(batch) if batch.compares.iter().any(is_about_lease) => {
                return Err(CommandError::Incomplete("target"));
            }
            Command::Batch(batch) if batch.any_operation(&is_unknown) => {
                return Err(CommandError::Incomplete("operation"));
            }
            Command::Batch(batch) => {
                for operation in batch.then.iter_mut().chain(&mut batch.otherwise) {
                    if let BatchOperation::Put(put) = operation {
                        (put.ignore_value, put.lease) = (false, PutLease::None);
                    }
                }
            }
            Command::GrantLease { .. }
            | Command::RevokeLease { .. }
            | Command::ExpireLease { .. }
            | Command::CheckpointLeases { .. } => return Err(CommandError::Incomplete("kind")),
            _ => {}
        }
        Ok(self)
    }
}

impl From<Request> for RequestRecord {
    fn from(request: Request) -> Self {
        Self {
            session: request.session.map(|stamp| StampRecord {
                id: stamp.id.0,
                sequence: stamp.sequence,
                acknowledged: stamp.acknowledged,
            }),
            kind: Some(request.command.into()),
        }
    }
}

impl From<StampRecord> for SessionStamp {
    fn from(record: StampRecord) -> Self {
        Self {
            id: SessionId(record.id),
            sequence: record.sequence,
            acknowledged: record.acknowledged,
        }
    }
}

impl From<Command> for Kind {
    fn from(command: Command) -> Self {
        match command {
            Command::Put(put) => Self::Put(put.into()),
            Command::Delete { keys, prev_kv } => Self::Delete(DeleteRecord {
                keys: Some(keys.into()),
                prev_kv,
            }),
            Command::CompareAndSwap {
                key,
                expected,
                value,
                ttl_ms,
            } => Self::CompareAndSwap(CompareAndSwapRecord {
                key,
                expected: Some(expected.into()),
                value,
                ttl_ms,
            }),
            Command::Batch(batch) => Self::Batch(batch.into()),
            Command::Compact { revision } => Self::Compact(revision.0),
            Command::OpenSession { ttl_ms } => Self::OpenSession(ttl_ms),
            Command::KeepAlive { session } => Self::KeepAlive(session.0),
            Command::CloseSession { session } => Self::CloseSession(session.0),
            Command::ExpireSession { session, last_used } => {
                Self::ExpireSession(ExpireSessionRecord {
                    session: session.0,
                    last_used: last_used.0,
                })
            }
            Command::ExpireKeys { keys } => Self::ExpireKeys(ExpireKeysRecord {
                keys: keys.into_iter().map(Into::into).collect(),
            }),
            Command::GrantLease { lease, ttl_ms } => Self::GrantLease(GrantLeaseRecord {
                lease: lease.0,
                ttl_ms,
            }),
            Command::RevokeLease { lease } => Self::RevokeLease(lease.0),
            Command::ExpireLease { lease, seen } => Self::ExpireLease(ExpireLeaseRecord {
                lease: lease.0,
                seen: seen.0,
            }),
            Command::CheckpointLeases { leases } => {
                Self::CheckpointLeases(CheckpointLeasesRecord {
                    leases: leases.into_iter().map(Into::into).collect(),
                })
            }
        }
    }
}

impl TryFrom<Kind> for Command {
    type Error = CommandError;

    fn try_from(kind: Kind) -> Result<Self, CommandError> {
        Ok(match kind {
            Kind::Put(put) => Self::Put(put.into()),
            Kind::Delete(delete) => Self::Delete {
                keys: key_range(delete.keys)?,
                prev_kv: delete.prev_kv,
            },
            Kind::CompareAndSwap(swap) => Self::CompareAndSwap {
                key: swap.key,
                expected: swap
                    .expected
                    .ok_or(CommandError::Incomplete("expected state"))?
                    .into(),
                value: swap.value,
                ttl_ms: swap.ttl_ms,
            },
            Kind::Batch(batch) => Self::Batch(batch.try_into()?),
            Kind::Compact(revision) => Self::Compact {
                revision: Revision(revision),
            },
            Kind::OpenSession(ttl_ms) => Self::OpenSession { ttl_ms },
            Kind::KeepAlive(id) => Self::KeepAlive {
                session: SessionId(id),
            },
            Kind::CloseSession(id) => Self::CloseSession {
                session: SessionId(id),
            },
            Kind::ExpireSession(it) => Self::ExpireSession {
                session: SessionId(it.session),
                last_used: Index(it.last_used),
            },
            Kind::ExpireKeys(it) => Self::ExpireKeys {
                keys: it.keys.into_iter().map(Into::into).collect(),
            },
            Kind::GrantLease(it) => Self::GrantLease {
                lease: LeaseId(it.lease),
                ttl_ms: it.ttl_ms,
            },
            Kind::RevokeLease(id) => Self::RevokeLease { lease: LeaseId(id) },
            Kind::ExpireLease(it) => Self::ExpireLease {
                lease: LeaseId(it.lease),
                seen: Index(it.seen),
            },
            Kind::CheckpointLeases(it) => Self::CheckpointLeases {
                leases: it.leases.into_iter().map(Into::into).collect(),
            },
        })
    }
}

impl From<Put> for PutRecord {
    fn from(put: Put) -> Self {
        Self {
            key: put.key,
            value: put.value,
            prev_kv: put.prev_kv,
            ttl_ms: put.ttl_ms,
            lease: put_lease_record(put.lease),
            ignore_value: put.ignore_value,
        }
    }
}

impl From<PutRecord> for Put {
    fn from(record: PutRecord) -> Self {
        Self {
            key: record.key,
            value: record.value,
            ignore_value: record.ignore_value,
            prev_kv: record.prev_kv,
            ttl_ms: record.ttl_ms,
            lease: put_lease(record.lease.as_ref()),
        }
    }
}

fn put_lease_record(lease: PutLease) -> Option<PutLeaseRecord> {
    match lease {
        PutLease::None => None,
        PutLease::Attach(id) => Some(PutLeaseRecord::Attach(id.0)),
        PutLease::Keep => Some(PutLeaseRecord::Keep(true)),
    }
}

fn put_lease(record: Option<&PutLeaseRecord>) -> PutLease {
    match record {
        None => PutLease::None,
        Some(PutLeaseRecord::Attach(id)) => PutLease::Attach(LeaseId(*id)),
        Some(PutLeaseRecord::Keep(_)) => PutLease::Keep,
    }
}

impl From<LeaseCheckpoint> for CheckpointRecord {
    fn from(checkpoint: LeaseCheckpoint) -> Self {
        Self {
            lease: checkpoint.lease.0,
            remaining_ms: checkpoint.remaining_ms,
            seen: checkpoint.seen.0,
        }
    }
}

impl From<CheckpointRecord> for LeaseCheckpoint {
    fn from(record: CheckpointRecord) -> Self {
        Self {
            lease: LeaseId(record.lease),
            remaining_ms: record.remaining_ms,
            seen: Index(record.seen),
        }
    }
}

impl From<Expected> for ExpectedRecord {
    fn from(expected: Expected) -> Self {
        match expected {
            Expected::ModRevision(it) => Self::ModRevision(it.0),
            Expected::Value(it) => Self::Value(it),
        }
    }
}

impl From<ExpectedRecord> for Expected {
    fn from(record: ExpectedRecord) -> Self {
        match record {
            ExpectedRecord::ModRevision(it) => Self::ModRevision(Revision(it)),
            ExpectedRecord::Value(it) => Self::Value(it),
        }
    }
}

impl From<ExpiredKey> for ExpiredKeyRecord {
    fn from(expired: ExpiredKey) -> Self {
        Self {
            key: expired.key,
            mod_revision: expired.mod_revision.0,
        }
    }
}

impl From<ExpiredKeyRecord> for ExpiredKey {
    fn from(record: ExpiredKeyRecord) -> Self {
        Self {
            key: record.key,
            mod_revision: Revision(record.mod_revision),
        }
    }
}

impl From<KeyRange> for KeysRecord {
    fn from(keys: KeyRange) -> Self {
        let (key, end) = match keys {
            KeyRange::One(key) => (key, None),
            KeyRange::Between { start, end } => (start, Some(EndRecord::Before(end))),
            KeyRange::From(start) => (start, Some(EndRecord::Open(true))),
        };
        Self { key, end }
    }
}

pub(super) fn key_range(record: Option<KeysRecord>) -> Result<KeyRange, CommandError> {
    let KeysRecord { key, end } = record.ok_or(CommandError::Incomplete("keys"))?;
    Ok(match end {
        None => KeyRange::One(key),
        Some(EndRecord::Before(end)) => KeyRange::Between { start: key, end },
        Some(EndRecord::Open(_)) => KeyRange::From(key),
    })
}
