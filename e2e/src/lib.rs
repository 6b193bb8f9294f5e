//! Demo, side-by-side bench and end-to-end tests of DEngine on this machine.
//!
//! May use every other crate and program of the project; nothing of the product may use this one, but for tests that need a
//! program that is built here.

pub mod bench;
pub mod cluster;
pub mod demo;
pub mod install;
pub mod made;
pub mod observe;
pub mod product;

pub use dengine_local_kubernetes::{self as kubernetes, images, programs, progress, shell};
