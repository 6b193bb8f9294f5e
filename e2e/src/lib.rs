//! Demo, side-by-side bench and end-to-end tests of DEngine on this machine.
//!
//! May use every other crate and program of the project; no other crate may use this one.

pub mod bench;
pub mod cluster;
pub mod demo;
pub mod install;
pub mod kwok;
pub mod made;
pub mod observe;
pub mod product;
pub mod versions;
