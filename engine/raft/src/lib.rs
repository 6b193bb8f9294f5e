//! The part of DEngine that has to be right: consensus, the log's format and the key-value semantics.
//!
//! What may live here: code whose outcome depends on its arguments alone. What may not: clocks,
//! threads, sockets, async and RocksDB. I/O happens only through the traits of [`log`] and [`kv`], so
//! that a simulator can run exactly the code that ships.

pub mod answers;
pub mod channel;
pub mod consensus;
pub mod link_queue;
#[cfg(all(test, any(feature = "loom", feature = "shuttle")))]
mod models;
pub mod peer_queue;
pub mod replica;
