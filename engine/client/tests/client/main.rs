//! The client against a scripted peer on loopback: one program, for each would be linked with all
//! of tonic.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admin;
mod kv;
mod leader;
mod sessions;
mod watch;
