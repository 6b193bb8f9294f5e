//! Between what clients and peers send and what `dengine-kv` and `dengine-raft` take: checks,
//! conversions and status codes.
//!
//! Whatever comes from a network passes through here before it means anything, so these are the
//! functions that the fuzz targets of `dengine-fuzz` call, as `dengine` does: [`writes`], [`reads`]
//! and [`frame`] for calls of clients, [`watch`] for their watches, [`peer`], [`snapshot`] and
//! [`forward`] for what members send.
//!
//! What may live here: functions whose outcome depends on their arguments alone, from messages of
//! the Protocol Buffers to types of `dengine-raft` and `dengine-kv`, and back. What may not:
//! sockets, async, clocks, RocksDB, and any decision that needs more than the message and a piece
//! of state that is passed in.

mod batch;
pub mod forward;
pub mod frame;
pub mod header;
pub mod limits;
pub mod messages;
pub mod peer;
pub mod reads;
mod sessions;
pub mod snapshot;
pub mod status;
pub mod watch;
pub mod writes;

pub use header::Header;
pub use limits::RequestLimits;
pub use writes::Mutation;
