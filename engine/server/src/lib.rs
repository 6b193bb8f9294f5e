//! A strongly consistent key-value engine: embed it, or run the `dengine` server.
//!
//! [`Node`] is one member. It is complete without a network front: [`server`] serves it over gRPC,
//! and an embedding program calls it directly (`examples/embedded.rs`).
//!
//! What may not live in this crate: anything of Kubernetes.

#![warn(missing_docs)]

pub mod config;
mod connections;
pub mod error;
pub mod files;
mod memory;
mod nicer;
pub mod node;
mod parts;
pub mod preemption;
pub mod server;
mod single_thread;
pub mod storage;
pub mod telemetry;
mod transport;
mod write_bytes;

pub use config::Config;
pub use dengine_kv as kv;
pub use dengine_types as types;
pub use error::{Fatal, LeaderHint, RequestError, StartError};
pub use node::{NewMember, Node, NodeStatus};
