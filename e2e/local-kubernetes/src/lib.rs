//! The programs of a local Kubernetes and their images, built from source; and what it takes to run programs on this one machine.
//!
//! Knows nothing of DEngine, and uses no other crate of the project.

pub mod cache;
pub mod images;
pub mod programs;
pub mod progress;
pub mod shell;
