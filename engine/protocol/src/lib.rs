//! The wire contract of DEngine: messages, clients and servers generated from `proto/`.
//!
//! What may live here: generated code and the constants that both ends of a connection must agree
//! on, the table of the calls of `Kv` ([`kv_calls`]) and these as types ([`KvCall`]), how messages
//! are decoded ([`codec`]) and counted before ([`fields`]), the trace that a call belongs to
//! ([`trace`]) and, with the feature `checks`, how they are checked and converted ([`checks`]).
//! What may not: other behaviour. Retrying belongs to `dengine-client`, serving to `dengine`.

#![warn(missing_docs)]

mod call;
#[cfg(feature = "checks")]
pub mod checks;
pub mod codec;
pub mod fields;
pub mod trace;

pub use call::KvCall;

/// What applications speak (`Kv`) and what people and the operator speak (`Admin`).
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!("generated/dengine.v1.rs");
}

/// What members of one cluster speak among themselves.
#[allow(missing_docs, clippy::all)]
pub mod peer {
    include!("generated/dengine.peer.v1.rs");
}

/// Encoded `FileDescriptorSet` of everything above, for gRPC server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptors.bin");

/// Response metadata that names the leader's client address (`host:port`) when a member could not
/// serve a request that only the leader can, and knows who leads.
pub const LEADER_HINT_METADATA: &str = "dengine-leader";

/// Response metadata of a RESOURCE_EXHAUSTED whose bound is the disk of the leader: load passes by
/// itself, this does not.
pub const LOW_ON_SPACE_METADATA: &str = "dengine-low-on-space";

/// Response metadata of a member's UNAVAILABLE or RESOURCE_EXHAUSTED: its word that nothing was
/// changed. What stands in between, such as a proxy, may answer with these codes itself after it
/// has passed a write on, and gives none.
pub const UNCHANGED_METADATA: &str = "dengine-unchanged";

/// Response metadata of a peer that refuses whoever was removed from the cluster.
pub const REMOVED_METADATA: &str = "dengine-removed";

/// Request metadata that marks a request as already forwarded once; it is never forwarded again.
pub const FORWARDED_METADATA: &str = "dengine-forwarded";

/// Request metadata that names the trace of the caller, as W3C Trace Context does; see
/// [`trace`].
pub const TRACEPARENT_METADATA: &str = "traceparent";

/// Largest frame of calls or answers on `Kv.Pipeline`, in bytes. A call that is larger is made
/// alone; an answer that is larger is a frame by itself.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Largest message that a member sends and a client takes: an answer, or a frame of answers with
/// one that is larger than a frame.
pub const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// Most calls in a frame of `Kv.Pipeline`.
pub const FRAME_CALLS_MAX: usize = 4096;

/// Most operations in a list of a batch, and most compares; a server may be set to fewer.
pub const BATCH_OPERATIONS_MAX: usize = 16 * 1024;

/// Most messages in a frame from one member to another: as many as wait for a peer at most.
pub const PEER_FRAME_MESSAGES_MAX: usize = 4096;

/// Service names of the gRPC health protocol on the monitor port.
pub mod health {
    /// Serving once the member can answer a linearizable read now. For readiness probes.
    pub const READY: &str = "ready";
    /// Serving while the member's own threads make progress; never depends on a quorum. For
    /// liveness probes.
    pub const LIVE: &str = "live";
}

/// Ports that a member listens on unless told otherwise.
pub mod ports {
    /// `Kv`, `Watch`, health and reflection, and of `Admin` what changes nothing and costs nothing.
    pub const CLIENT: u16 = 4100;
    /// Raft messages between members.
    pub const PEER: u16 = 4101;
    /// Health and `/metrics`, in plain text, holding no data.
    pub const MONITOR: u16 = 4102;
    /// `Admin`: whoever reaches it may change who belongs to the cluster.
    pub const ADMIN: u16 = 4103;
    /// etcd's API, where it is served: the port of etcd itself.
    pub const ETCD: u16 = 2379;
}
