//! Custom resources of DEngine: the types, their schema, and every name that others must agree on.
//!
//! What may live here: plain data with its validation, and constants. What may not: behaviour of
//! the operator, of the load generator or of the engine; this crate compiles without any of them.
//! Workloads and results are defined by the load generator's [`dengine_bench_model`].

pub mod benchmark;
pub mod cluster;
pub mod common;
pub mod conditions;
pub mod definitions;
pub mod names;
pub mod reasons;

pub use benchmark::{DEngineBenchmark, DEngineBenchmarkSpec, DEngineBenchmarkStatus};
pub use cluster::{DEngineCluster, DEngineClusterSpec, DEngineClusterStatus};
