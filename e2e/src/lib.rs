//! Local Kubernetes, demo and end-to-end tests of DEngine.
//!
//! May use every other crate and program of the project; nothing of the product may use this one.

pub mod cache;
pub mod images;
pub mod kubernetes;
pub mod private;
pub mod programs;
pub mod progress;
pub mod shell;

pub mod cluster;
pub mod product;
