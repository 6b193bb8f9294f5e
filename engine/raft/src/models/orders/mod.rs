//! What threads share through atomics.

mod lease;
mod published;
mod store;

use bytes::Bytes;
use dengine_kv::Command;

use crate::models::{KEY, entry};

/// Tries every order with at most three preemptions, which is what loom's authors advise: more find
/// hardly more.
fn every_order(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A put of [`KEY`].
fn put(value: u64) -> Command {
    Command::put(KEY, Bytes::copy_from_slice(&value.to_be_bytes()))
}
