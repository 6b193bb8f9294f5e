//! What it takes to run programs on this one machine, for a local Kubernetes and for whatever else builds and starts some.
//!
//! Knows nothing of DEngine, and uses no other crate of the project.

pub mod cache;
pub mod progress;
pub mod shell;
