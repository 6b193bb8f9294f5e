//! The write-ahead log, from outside: on every disk, damaged in every place, against a model.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod conformance;
mod damage;
mod faults;
mod model;
mod pieces;
