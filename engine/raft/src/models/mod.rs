//! Models of what the threads of a member do to each other: the code that ships, under a scheduler
//! that tries the orders in which threads may run and loads may see stores. The simulator runs all
//! of a member in one thread and can find none of this.
//!
//! [`orders`] has what is shared through atomics (loom: every order, within a bound of
//! preemptions), [`turns`] what is handed over through locks and queues (shuttle: many random
//! orders). Each model is run once as it is, and must hold; and once with each
//! [`Bug`](dengine_planted::Bug) that concerns it, and must find that.
//!
//! What may not live here: copies of what ships. A model is a few threads that call it.

#[cfg(feature = "loom")]
mod orders;
#[cfg(all(feature = "shuttle", not(feature = "loom")))]
mod turns;

use bytes::Bytes;
use dengine_kv::{Command, CommandVersion, Request};
use dengine_types::{Entry, EntryKind, Index, Term};

const KEY: Bytes = Bytes::from_static(b"k");

/// An entry of term 1.
fn entry(index: u64, command: Command) -> Entry {
    let request = Request {
        session: None,
        command,
    };
    Entry {
        index: Index(index),
        term: Term(1),
        kind: EntryKind::Command,
        context: Bytes::copy_from_slice(&index.to_be_bytes()),
        data: request.encode(CommandVersion::CURRENT),
    }
}
