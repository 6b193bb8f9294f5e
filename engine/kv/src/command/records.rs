//! The protobuf messages of a request, as `docs/formats.md` lists them. Only `encoding.rs` uses
//! them.

use bytes::Bytes;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RequestRecord {
    #[prost(message, optional, tag = "1")]
    pub(super) session: Option<StampRecord>,
    #[prost(
        oneof = "Kind",
        tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15"
    )]
    pub(super) kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StampRecord {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) sequence: u64,
    #[prost(uint64, tag = "3")]
    pub(super) acknowledged: u64,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Kind {
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
    #[prost(uint64, tag = "7")]
    OpenSession(u64),
    #[prost(uint64, tag = "8")]
    KeepAlive(u64),
    #[prost(uint64, tag = "9")]
    CloseSession(u64),
    #[prost(message, tag = "10")]
    ExpireSession(ExpireSessionRecord),
    #[prost(message, tag = "11")]
    ExpireKeys(ExpireKeysRecord),
    #[prost(message, tag = "12")]
    GrantLease(GrantLeaseRecord),
    #[prost(int64, tag = "13")]
    RevokeLease(i64),
    #[prost(message, tag = "14")]
    ExpireLease(ExpireLeaseRecord),
    #[prost(message, tag = "15")]
    CheckpointLeases(CheckpointLeasesRecord),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PutRecord {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
    #[prost(bool, tag = "3")]
    pub(super) prev_kv: bool,
    #[prost(uint64, tag = "4")]
    pub(super) ttl_ms: u64,
    #[prost(oneof = "PutLeaseRecord", tags = "5, 6")]
    pub(super) lease: Option<PutLeaseRecord>,
    /// From version 4 on.
    #[prost(bool, tag = "7")]
    pub(super) ignore_value: bool,
}

/// From version 4 on.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum PutLeaseRecord {
    #[prost(int64, tag = "5")]
    Attach(i64),
    /// The value of the flag is ignored.
    #[prost(bool, tag = "6")]
    Keep(bool),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeysRecord {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    /// Absent: `key` alone.
    #[prost(oneof = "EndRecord", tags = "2, 3")]
    pub(super) end: Option<EndRecord>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum EndRecord {
    #[prost(bytes = "bytes", tag = "2")]
    Before(Bytes),
    /// Every key from `key` on; the value of the flag is ignored.
    #[prost(bool, tag = "3")]
    Open(bool),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DeleteRecord {
    #[prost(message, optional, tag = "1")]
    pub(super) keys: Option<KeysRecord>,
    #[prost(bool, tag = "2")]
    pub(super) prev_kv: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CompareAndSwapRecord {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(oneof = "ExpectedRecord", tags = "2, 3")]
    pub(super) expected: Option<ExpectedRecord>,
    #[prost(bytes = "bytes", tag = "4")]
    pub(super) value: Bytes,
    #[prost(uint64, tag = "5")]
    pub(super) ttl_ms: u64,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum ExpectedRecord {
    #[prost(uint64, tag = "2")]
    ModRevision(u64),
    #[prost(bytes = "bytes", tag = "3")]
    Value(Bytes),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BatchRecord {
    #[prost(message, repeated, tag = "1")]
    pub(super) compares: Vec<CompareRecord>,
    #[prost(message, repeated, tag = "2")]
    pub(super) then: Vec<OperationRecord>,
    #[prost(message, repeated, tag = "3")]
    pub(super) otherwise: Vec<OperationRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CompareRecord {
    #[prost(message, optional, tag = "1")]
    pub(super) keys: Option<KeysRecord>,
    /// 1 to 4, in the order of [`Relation`](super::Relation).
    #[prost(uint32, tag = "2")]
    pub(super) relation: u32,
    #[prost(oneof = "TargetRecord", tags = "3, 4, 5, 6, 7")]
    pub(super) target: Option<TargetRecord>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum TargetRecord {
    #[prost(uint64, tag = "3")]
    Version(u64),
    #[prost(uint64, tag = "4")]
    CreateRevision(u64),
    #[prost(uint64, tag = "5")]
    ModRevision(u64),
    #[prost(bytes = "bytes", tag = "6")]
    Value(Bytes),
    #[prost(int64, tag = "7")]
    Lease(i64),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OperationRecord {
    #[prost(oneof = "OperationKind", tags = "1, 2, 3, 4, 5")]
    pub(super) kind: Option<OperationKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum OperationKind {
    #[prost(message, tag = "1")]
    Put(PutRecord),
    #[prost(message, tag = "2")]
    Delete(DeleteRecord),
    #[prost(message, tag = "3")]
    Get(GetRecord),
    /// From version 4 on.
    #[prost(message, tag = "4")]
    Range(RangeRecord),
    /// From version 4 on.
    #[prost(message, tag = "5")]
    Batch(BatchRecord),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetRecord {
    #[prost(message, optional, tag = "1")]
    pub(super) keys: Option<KeysRecord>,
    #[prost(uint64, tag = "2")]
    pub(super) limit: u64,
    #[prost(bool, tag = "3")]
    pub(super) keys_only: bool,
    #[prost(bool, tag = "4")]
    pub(super) count_only: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RangeRecord {
    #[prost(message, optional, tag = "1")]
    pub(super) keys: Option<KeysRecord>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) revision: Option<u64>,
    #[prost(uint64, tag = "3")]
    pub(super) limit: u64,
    #[prost(bool, tag = "4")]
    pub(super) keys_only: bool,
    #[prost(bool, tag = "5")]
    pub(super) count_only: bool,
    /// 0 to 2, in the order of [`SortOrder`](crate::SortOrder).
    #[prost(uint32, tag = "6")]
    pub(super) order: u32,
    /// 0 to 4, in the order of [`SortBy`](crate::SortBy).
    #[prost(uint32, tag = "7")]
    pub(super) by: u32,
    #[prost(uint64, optional, tag = "8")]
    pub(super) min_mod_revision: Option<u64>,
    #[prost(uint64, optional, tag = "9")]
    pub(super) max_mod_revision: Option<u64>,
    #[prost(uint64, optional, tag = "10")]
    pub(super) min_create_revision: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) max_create_revision: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExpireSessionRecord {
    #[prost(uint64, tag = "1")]
    pub(super) session: u64,
    #[prost(uint64, tag = "2")]
    pub(super) last_used: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExpireKeysRecord {
    #[prost(message, repeated, tag = "1")]
    pub(super) keys: Vec<ExpiredKeyRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExpiredKeyRecord {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(uint64, tag = "2")]
    pub(super) mod_revision: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GrantLeaseRecord {
    #[prost(int64, tag = "1")]
    pub(super) lease: i64,
    #[prost(uint64, tag = "2")]
    pub(super) ttl_ms: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExpireLeaseRecord {
    #[prost(int64, tag = "1")]
    pub(super) lease: i64,
    #[prost(uint64, tag = "2")]
    pub(super) seen: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CheckpointLeasesRecord {
    #[prost(message, repeated, tag = "1")]
    pub(super) leases: Vec<CheckpointRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CheckpointRecord {
    #[prost(int64, tag = "1")]
    pub(super) lease: i64,
    #[prost(uint64, tag = "2")]
    pub(super) remaining_ms: u64,
    #[prost(uint64, tag = "3")]
    pub(super) seen: u64,
}
