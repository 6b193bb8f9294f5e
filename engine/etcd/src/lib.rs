//! etcd's v3 API: messages, clients and servers generated from `proto/`, and what they mean to
//! `dengine-kv`.
//!
//! Names, numbers, types, codes and error strings are etcd's, on which its clients rely.
//!
//! What may live here: generated code and functions whose outcome depends on their arguments alone.
//! What may not: sockets, async, clocks and RocksDB; serving belongs to `dengine-server`.

#![warn(missing_docs)]

pub mod cluster;
pub mod codec;
pub mod contest;
pub mod errors;
pub mod header;
pub mod lease;
pub mod maintenance;
pub mod messages;
pub mod range;
pub mod range_stream;
#[cfg(test)]
mod tests;
pub mod txn;
pub mod watch;
pub mod writes;

pub use errors::EtcdError;
pub use header::Header;
pub use writes::Mutation;

/// The largest request that changes something, in bytes, as etcd's `--max-request-bytes` has it.
pub const REQUEST_BYTES_MAX: usize = 3 << 19;

/// The most comparisons or operations that each list of a transaction may have, and the longest
/// lists on a path into nested ones together, as etcd's `--max-txn-ops` has it.
pub const TXN_OPERATIONS_MAX: usize = 128;

/// The longest key, in bytes: a limit of the store, where etcd has none but that of the request.
pub const KEY_BYTES_MAX: usize = 32 << 10;

/// The longest time to live of a lease, in seconds.
pub const LEASE_TTL_MAX: i64 = 9_000_000_000;

/// Keys, watches, leases, members and maintenance.
#[allow(missing_docs, clippy::all)]
pub mod etcdserverpb {
    include!("generated/etcdserverpb.rs");
}

/// Pairs and events.
#[allow(missing_docs, clippy::all)]
pub mod mvccpb {
    include!("generated/mvccpb.rs");
}

/// Locks.
#[allow(missing_docs, clippy::all)]
pub mod v3lockpb {
    include!("generated/v3lockpb.rs");
}

/// Elections.
#[allow(missing_docs, clippy::all)]
pub mod v3electionpb {
    include!("generated/v3electionpb.rs");
}

/// Permissions.
#[allow(missing_docs, clippy::all)]
pub mod authpb {
    include!("generated/authpb.rs");
}
