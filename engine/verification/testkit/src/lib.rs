//! What test programs share, most of which run the server as a process: [`serve()`] says with which
//! flags and without which settings, [`Listen`] and [`free_port`] where it listens, [`Process`]
//! ends with its test, [`settings`] are what `make` passes to a test program, and [`Random`] draws.
//! `dengine-e2e` starts the members of `make bench` with the first three, so these are not for
//! tests alone.
//!
//! What may not live here: anything that compiles the engine, whose crates use this in their own
//! tests, and what only one test program needs, such as clusters, disks, networks and cgroups.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod ports;
mod process;
mod random;
mod serve;
pub mod settings;

pub use ports::free_port;
pub use process::Process;
pub use random::Random;
pub use serve::{Listen, built_program, serve, without_settings};
